"""The stand-ins are strict, the files written by hand say all of their formats, and the judge lets nothing pass."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
import yaml

from tests.formats import FORMATS, Format
from tests.formats.judge import ASKED, RIGHT, SILENT, FileOf, judge, judge_file, plain, standing_in
from tests.formats.prescription import Prescription, by_hand, said_in
from tests.formats.stand_in import Draw, RefusalError
from tests.formats.templates import (
    NUMPY,
    bind,
    decoded,
    has_missing,
    leaves,
    read,
    same_json,
    same_values,
    shape_of,
    steps_of,
)
from tests.formats.v2_clients import Sent, tensors_of

EACH = [pytest.param(each, id=each.name) for each in FORMATS.values()]
OF_TEMPLATES = [pytest.param(each, id=each.name) for each in FORMATS.values() if each.adapter is None]
OF_ADAPTERS = [pytest.param(each, id=each.name) for each in FORMATS.values() if each.adapter is not None]

LEAST_RIGHT_BY_DOCTOR = 60
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


@pytest.mark.parametrize("form", OF_ADAPTERS)
def test_an_adapter_writes_the_native_body_and_reads_the_native_answer(form: Format) -> None:
    assert form.adapter is not None
    declared = yaml.safe_load(form.adapter.models)
    module: dict[str, Any] = {}
    exec(form.adapter.source, module)
    for seed in range(9):
        body = new_body(form, seed, 1 + seed % 3)
        sent = tensors_of(form.adapter.inputs([body]), declared["inputs"])
        arrays = {each.name: array_of(each) for each in sent}
        assert {each.name: each.datatype for each in sent} == {
            name: each["datatype"] for name, each in declared["inputs"].items()
        }
        call = SimpleNamespace(inputs=arrays, model="m", parameters={})
        path, written = module["request"](call)
        assert path == form.path
        assert same_json(json.loads(orjson.dumps(written, option=orjson.OPT_SERIALIZE_NUMPY)), body)
        answer = plain(form.answer(body))
        outputs = module["answer"](call, 200, answer)
        for name, expected in form.adapter.outputs([answer]).items():
            found = [each.decode() if isinstance(each, bytes) else each for each in outputs[name].ravel().tolist()]
            assert same_values(expected, found), name


def array_of(sent: Sent) -> Any:
    if sent.datatype == "BYTES":
        return np.array([*(each.encode() for each in sent.values), None], object)[:-1].reshape(sent.shape)
    return np.array(sent.values, NUMPY[sent.datatype]).reshape(sent.shape)


# The judge


WRONG = [
    ("deepl", "constant", """
        inputs: {text: {datatype: BYTES, shape: [-1]}}
        outputs: {translation: {datatype: BYTES, shape: [-1]}, language: {datatype: BYTES, shape: [-1]}}
        request: {path: /v2/translate, body: {text: $text, target_lang: DE}}
        answer: {translation: "$.translations[*].text", language: "$.translations[*].detected_source_language"}
        """),
    ("deepl", "lost", """
        inputs: {text: {datatype: BYTES, shape: [-1]}, lang: {datatype: BYTES, shape: []}}
        outputs: {translation: {datatype: BYTES, shape: [-1]}}
        request: {path: /v2/translate, body: {text: $text, target_lang: $lang}}
        answer: {translation: "$.translations[*].text"}
        """),
    ("vertex-predict", "value", """
        inputs: {x: {datatype: FP64, shape: [-1, 4]}, scale: {datatype: FP64, shape: []}}
        outputs: {y: {datatype: FP32, shape: [-1]}}
        request: {path: "/v1/endpoints/1:predict", body: {instances: $x, parameters: {scale: $scale}}}
        answer: {y: $.predictions}
        """),
    ("openai-embeddings", "batch", """
        inputs: {text: {datatype: BYTES, shape: [-1]}}
        outputs: {index: {datatype: INT64, shape: [-1]}, embedding: {datatype: FP64, shape: [-1, 4]}}
        request: {path: /v1/embeddings, body: {input: $text, model: text-embedding-3-small}}
        answer: {index: "$.data[*].index", embedding: "$.data[*].embedding"}
        """),
    ("paddle-serving", "failure", """
        inputs: {value: {datatype: BYTES, shape: [-1]}}
        outputs: {prob: {datatype: BYTES, shape: [-1]}}
        request: {path: /uci/prediction, body: {key: [x], value: $value}}
        answer: {prob: $.value}
        """),
]  # fmt: skip


@pytest.mark.parametrize(("name", "cause", "block"), WRONG, ids=[cause for _, cause, _ in WRONG])
async def test_a_file_that_is_wrong_is_found(name: str, cause: str, block: str) -> None:
    form = FORMATS[name]
    wrong = Prescription({"dialect": "template", "models": {"m": yaml.safe_load(block)}})
    async with standing_in(form) as url:
        found = await judge_file(form, url, wrong)
        assert found.verdict == SILENT
        assert cause in found.causes <= {cause, "batch"}, found.found
        named = Prescription(wrong.backend, ("`target_lang` is constant, `detected_source_language` is no output",))
        is_named = cause in ("constant", "lost")
        assert (await judge_file(form, url, named)).verdict == (ASKED if is_named else SILENT)


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
