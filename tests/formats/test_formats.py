"""The stand-ins are strict, the files written by hand say all of their formats, and the judge lets nothing pass."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.formats import FORMATS, Format
from tests.formats.judge import RIGHT, SILENT, FileOf, Prescription, by_hand, judge, plain, said_in
from tests.formats.stand_in import Draw, RefusalError
from tests.formats.templates import bind, decoded, has_missing, leaves, read, shape_of, steps_of

EACH = [pytest.param(each, id=each.name) for each in FORMATS.values()]
OF_TEMPLATES = [pytest.param(each, id=each.name) for each in FORMATS.values() if each.adapter is None]

LEAST_RIGHT_BY_DOCTOR = 25
"""How many formats the doctor alone gets right, at least."""


def new_body(form: Format, seed: int, n_rows: int = 3) -> Any:
    draw = Draw(seed)
    rows = [form.row(draw) for _ in range(n_rows if form.many else 1)]
    return plain(form.body(rows, form.options(draw)))


@pytest.mark.parametrize("form", EACH)
def test_a_stand_in_answers_its_samples_and_new_values_always_alike_and_in_json(form: Format) -> None:
    for body in (*form.samples, *(new_body(form, seed) for seed in range(9)), *form.fails):
        answer = form.answer(plain(body))
        assert answer == form.answer(plain(body)) == plain(answer)
    answers = [form.answer(new_body(form, seed)) for seed in range(9)]
    for path in form.values:
        assert any(list(leaves(steps_of(path), answer)) for answer in answers), path


@pytest.mark.parametrize("form", EACH)
def test_an_unknown_member_is_refused_or_fails(form: Format) -> None:
    body = new_body(form, 1)
    body = [{**each, "unknown": 1} for each in body] if isinstance(body, list) else {**body, "unknown": 1}
    try:
        answer = form.answer(body)
    except RefusalError as error:
        assert error.status >= 400
        assert json.dumps(error.document)
        return
    assert form.flag
    assert answer != form.answer(new_body(form, 1))


@pytest.mark.parametrize("form", EACH)
def test_what_a_client_sends_decides_what_it_gets(form: Format) -> None:
    """Each value of the request that new rows and options change moves the answer, or gets the request refused."""
    bodies = [new_body(form, seed, 2) for seed in range(20)]
    answers = {json.dumps(form.answer(body), sort_keys=True) for body in bodies}
    assert len(answers) > 8


@pytest.mark.parametrize("form", OF_TEMPLATES)
def test_a_template_written_by_hand_says_all_that_the_format_has(form: Format, tmp_path: Path) -> None:
    file = FileOf(form, by_hand(form, tmp_path))
    draw = Draw(form.name)
    for n_rows in (1, 3, 2, 1):
        rows = [form.row(draw) for _ in range(n_rows if form.many or file.rows else 1)]
        bodies = file.bodies(rows, form.options(draw))
        bound = file.bound(bodies)
        assert [each.frozen for each in bound] == [{} for _ in bound]
        inputs = file.inputs(bound)
        sizes: dict[str, int] = {}
        for name, value in inputs.items():
            assert fits(shape_of(value), file.block["inputs"][name]["shape"], sizes), (name, value)
        answers = [plain(form.answer(body)) for body in bodies]
        for name, values in file.expected(answers).items():
            assert not has_missing(values), name
            shape = file.block["outputs"][name]["shape"]
            forms = [values[0]] if len(values) == 1 and not file.rows else []
            forms += [values, [row for each in values if isinstance(each, list) for row in each]]
            assert any(fits(shape_of(each), shape, dict(sizes)) for each in forms), (name, values, shape)
        needed = {leaf for path in form.values for leaf in leaves(steps_of(path), answers[0])}
        names_of_rows = {leaf for leaf in needed if leaf[-1] in ("dims", "index")}
        assert needed - names_of_rows <= file.covered(answers[0])


def fits(found: tuple[int, ...] | None, declared: list[int | str], sizes: dict[str, int]) -> bool:
    """Whether the shape *found* is the one *declared*, with names of dimensions in *sizes*."""
    if found is None or len(found) != len(declared):
        return False
    return all(
        each in (-1, size) or sizes.setdefault(str(each), size) == size
        for size, each in zip(found, declared, strict=True)
    )


def test_the_corpus_has_formats_of_every_kind() -> None:
    kinds = Counter(word for form in FORMATS.values() for word in form.kinds.split())
    assert len(FORMATS) >= 40
    assert set(kinds) == {"one", "sorts", "texts", "echo", "depend", "pairs", "fails", "python"}
    assert min(kinds.values()) >= 2


# The judge


def test_a_body_is_bound_to_a_template() -> None:
    template = {
        "q": "$q",
        "k": 1,
        "rows": {"$each": [{"a": "$a"}, "$row"]},
        "o": {"$parameters": {"t": 0.5}},
        "$$d": "$$x",
    }
    body = {"q": "hi", "k": 2, "rows": [[{"a": 1}, 0], [{"a": 2}, 1]], "o": {"t": 0.7}, "$d": "$x", "more": 1}
    bound = bind(template, body, {"q": {}, "a": {}})
    assert bound.inputs == {"q": "hi", "a": [1, 2]}
    assert bound.parameters == {"t": 0.7}
    assert set(bound.frozen) == {"$.k", "$.more"}
    assert bound.settled == {"q": "hi", "k": 1, "rows": [[{"a": 1}, 0], [{"a": 2}, 1]], "o": {"t": 0.7}, "$d": "$x"}


def test_paths_are_read_in_answers() -> None:
    answer = {"r": [{"c": [{"v": 1}, {"v": 2}]}, {"c": [{"v": 3}]}], "a b": ["x"]}
    assert read(steps_of("$.r[*].c[*].v"), answer) == [[1, 2], [3]]
    assert read(steps_of("$['a b'][0]"), answer) == "x"
    assert has_missing(read(steps_of("$.r[*].d"), answer))
    assert decoded(["1.5", "2"], "text", "FP64") == [1.5, 2.0]


@pytest.mark.parametrize(
    ("words", "path", "is_named"),
    [
        ("question  $.query: 'hello' is the same in every request", "$.query", True),
        ("question  `query` is the same in every request", "$.query", True),
        ("problem   the query language is not known", "$.query", False),
        ("problem   $.rows[0] is no output: ragged", "$.rows[*].boxes", True),
        ("problem   $.rows.boxes2 is no output", "$.rows[*].boxes", False),
        ("ok        $.query is the same", "$.query", False),
        ("problem   $ is no output", "$[*][*]", True),
    ],
)
def test_what_the_doctor_names_is_recognized(words: str, path: str, is_named: bool) -> None:
    assert Prescription({}, said_in(f"Model\n  {words}\n", "")).names(path) is is_named


# Doctor and gateway


@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [1, 2])
async def test_nothing_is_wrong_without_a_word_with_the_doctors_file(n_samples: int) -> None:
    found = [await judge(form, "doctor", n_samples) for form in FORMATS.values()]
    assert {each.format.name: each.found for each in found if each.verdict == SILENT} == {}
    assert sum(each.verdict == RIGHT for each in found) >= LEAST_RIGHT_BY_DOCTOR


@pytest.mark.slow
@pytest.mark.parametrize("form", EACH)
async def test_the_file_written_by_hand_is_right(form: Format) -> None:
    found = await judge(form, "file")
    assert (found.verdict, found.found) == (RIGHT, [])
