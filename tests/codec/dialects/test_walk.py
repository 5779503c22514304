"""Answers whose outputs have paths of their own."""

import json
import re
import tracemalloc
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest

from gateway.codec.dialects.body import Body
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription, Template
from gateway.codec.dialects.paths import AnswerForm, form_of, steps_of, tree_of
from gateway.codec.dialects.walk import WAITING_BYTES
from gateway.codec.inference import HeaderLimits, OutputSelection
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.errors import CodecError, FailedAnswerError
from tests.codec.dialects.driving import read_answer
from tests.codec.walk import LIMITS

BINARY = OutputSelection(binary_by_default=True)
JSON = OutputSelection()


def read(
    text: str,
    paths: dict[str, str],
    datatypes: dict[str, str],
    *,
    chunk_bytes: int | None = None,
    selection: OutputSelection = JSON,
    shapes: Mapping[str, Any] | None = None,
    limits: HeaderLimits = LIMITS,
    error: str | None = None,
    missing: str | None = None,
    success: Mapping[str, Any] | None = None,
    order: str | None = None,
    first_sizes: Collection[int] = (),
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The outputs of the answer *text*: shape and values by name. *error* is the configuration's path of reasons."""
    described = {
        name: TensorDescription(DATATYPES[datatype], (shapes or {}).get(name), missing=missing)
        for name, datatype in datatypes.items()
    }
    form = form_of(paths, success or {}, error, order)
    template = Template("/predict", Body(None, {}), form, tuple(steps_of(error)) if error else ())
    body = text.encode()
    size = chunk_bytes or len(body) or 1
    reply = read_answer(
        [body[start : start + size] for start in range(0, len(body), size)],
        form,
        ModelDescription(outputs=described, template=template),
        selection,
        limits=limits,
        first_sizes=first_sizes,
        sizes=sizes or {},
    )
    header = json.loads(b"".join(reply.header))
    if reply.outputs:
        return {entry["name"]: (entry["shape"], entry["datatype"]) for entry in header["outputs"]}
    return {entry["name"]: (entry["shape"], entry["data"]) for entry in header["outputs"]}


CASES = [
    ('{"p": [[0.5, 1], [2, 3]], "l": ["a", "b"]}', {"y": "$.p", "s": "$.l"},
     {"y": ([2, 2], [0.5, 1, 2, 3]), "s": ([2], ["a", "b"])}),
    ('{"r": {"x": {"p": 0.5}, "l": "a"}, "t": 3}', {"y": "$.r.x.p", "s": "$.r.l"},
     {"y": ([], [0.5]), "s": ([], ["a"])}),
    ("[[1, 2], [3, 4]]", {"y": "$"}, {"y": ([2, 2], [1, 2, 3, 4])}),
    (" 7 ", {"y": "$"}, {"y": ([], [7])}),
    ("-12.5", {"y": "$"}, {"y": ([], [-12.5])}),
    ('"text"', {"s": "$"}, {"s": ([], ["text"])}),
    ('[{"label": "A", "score": 0.9}, {"score": 0.1, "label": "B"}]', {"y": "$[*].score", "s": "$[*].label"},
     {"y": ([2], [0.9, 0.1]), "s": ([2], ["A", "B"])}),
    ('{"rows": [[1, "a", [5]], [2, "b", [6]]]}', {"s": "$.rows[*][1]", "y": "$.rows[*][2]"},
     {"s": ([2], ["a", "b"]), "y": ([2, 1], [5, 6])}),
    ('{"rows": [{"a": {"p": [1, 2]}, "b": [0, {"l": "x"}]}, {"b": [0, {"l": "y"}], "a": {"p": [3, 4], "q": 1}}]}',
     {"y": "$.rows[*].a.p", "s": "$.rows[*].b[1].l"}, {"y": ([2, 2], [1, 2, 3, 4]), "s": ([2], ["x", "y"])}),
    ('{"rows": [], "l": []}', {"y": "$.rows[*].score", "s": "$.l[*]"}, {"y": ([0], []), "s": ([0], [])}),
    ('{"a": [9, [8], {"v": [1, 2]}, 7], "b": [["x"]]}', {"y": "$.a[2].v", "s": "$.b[0]"},
     {"y": ([2], [1, 2]), "s": ([1], ["x"])}),
    ('{"a": [{"v": 1}], "b": [{"s": "x"}, {"s": "y"}]}', {"y": "$.a[*].v", "s": "$.b[*].s"},
     {"y": ([1], [1]), "s": ([2], ["x", "y"])}),
    ('{"y": 1, "s": "old", "y": 2, "s": "new"}', {"y": "$.y", "s": "$.s"}, {"y": ([], [2]), "s": ([], ["new"])}),
    ('{"x y": {"é": [1]}, "s": {"": "e"}}', {"y": "$['x y'].é", "s": "$.s['']"}, {"y": ([1], [1]), "s": ([], ["e"])}),
]  # fmt: skip


@pytest.mark.parametrize("chunk_bytes", [None, 1, 3, 7])
@pytest.mark.parametrize(("text", "paths", "expected"), CASES)
def test_outputs_are_read_from_their_paths(
    text: str, paths: dict[str, str], expected: dict[str, Any], chunk_bytes: int | None
) -> None:
    datatypes = {name: {"y": "FP32", "s": "BYTES"}[name] for name in paths}
    assert read(text, paths, datatypes, chunk_bytes=chunk_bytes) == {
        name: (shape, pytest.approx(values)) if name == "y" else (shape, values)
        for name, (shape, values) in expected.items()
    }


@pytest.mark.parametrize("chunk_bytes", [None, 1000, 64 * 1024])
def test_long_values_are_read_from_their_paths_too(chunk_bytes: int | None) -> None:
    numbers = np.arange(30_000).tolist()
    long = "ä" * 20_000
    rows = [{"n": index, "s": long if index == 3 else "k", "more": [1] * 100} for index in range(500)]
    lists = [[[index] * 5000, "z", [0] * 5000] for index in range(9)]
    text = json.dumps({"skip": {"deep": [numbers[:100]]}, "a": [1, numbers, 2], "rows": rows, "l": lists})
    paths = {"a": "$.a[1]", "n": "$.rows[*].n", "s": "$.rows[*].s", "v": "$.l[*][0]"}
    found = read(text, paths, {"a": "INT32", "n": "INT64", "s": "BYTES", "v": "INT16"}, chunk_bytes=chunk_bytes)
    assert found["a"] == ([30_000], numbers)
    assert found["n"] == ([500], list(range(500)))
    assert found["s"] == ([500], [row["s"] for row in rows])
    assert found["v"] == ([9, 5000], [index for index in range(9) for _ in range(5000)])


@pytest.mark.parametrize("chunk_bytes", [None, 97])
@pytest.mark.parametrize(
    ("item", "inside"),
    [
        ('{"b": %s}', ".b"),
        ('{"b": %s, "c": [[1]]}', ".b"),
        ('{"c": 1, "b": %s}', ".b"),
        ("[%s, 5]", "[0]"),
        ("[[6], %s]", "[1]"),
    ],
)
@pytest.mark.parametrize("n_lists", [900, 1500, 4000])
def test_an_item_of_a_list_may_hold_a_value_that_is_too_long_for_a_step(
    n_lists: int, item: str, inside: str, chunk_bytes: int | None
) -> None:
    numbers = [[index] for index in range(n_lists)]
    text = json.dumps({"l": [0, json.loads(item % json.dumps(numbers)), 2]}, separators=(",", ":"))
    found = read(text, {"y": f"$.l[1]{inside}"}, {"y": "INT64"}, chunk_bytes=chunk_bytes)
    assert found == {"y": ([n_lists, 1], list(range(n_lists)))}


def test_outputs_that_are_not_wanted_may_be_anything() -> None:
    wanted = OutputSelection(named={"y": True})
    paths = {"y": "$.rows[*].y", "s": "$.rows[*].s", "t": "$.t"}
    datatypes = {"y": "FP32", "s": "BYTES", "t": "INT8"}
    for text in ('{"rows": [{"y": 1}, {"y": 2, "s": 3}]}', '{"t": "no", "rows": [{"y": 1, "s": []}, {"y": 2}]}'):
        assert read(text, paths, datatypes, selection=wanted) == {"y": ([2], "FP32")}


LONG = '"long": "' + "x" * 9000 + '",'


@pytest.mark.rule("1.6")
@pytest.mark.parametrize("between", ["", LONG])
@pytest.mark.parametrize("chunk_bytes", [None, 1000])
@pytest.mark.parametrize(
    ("first", "last", "paths", "words"),
    [
        ('"a": {"y": 1, "s": "a"}', '"a": {"y": 2}', {"y": "$.a.y", "s": "$.a.s"}, "output 's': nothing at"),
        ('"a": {"y": 1, "s": "a"}', '"a": 5', {"y": "$.a.y", "s": "$.a.s"}, r"\$.a is 5$"),
        ('"a": [[1], "a"]', '"a": [[2]]', {"y": "$.a[0]", "s": "$.a[1]"}, r"\$.a is a list of 1"),
        ('"r": [{"y": 1}]', '"r": null', {"y": "$.r[*].y"}, r"\$.r is null$"),
        ('"y": [1]', '"y": 3', {"y": "$.y[*]"}, r"\$.y is 3$"),
    ],
)
def test_of_two_members_with_one_name_nothing_of_the_first_is_taken(
    first: str, last: str, paths: dict[str, str], words: str, between: str, chunk_bytes: int | None
) -> None:
    datatypes = {name: {"y": "FP32", "s": "BYTES"}[name] for name in paths}
    member = f"{first}, {between} {last}"
    with pytest.raises(CodecError, match=words):
        read(f"{{{member}}}", paths, datatypes, chunk_bytes=chunk_bytes)
    below = {name: path.replace("$", "$.b") for name, path in paths.items()}
    with pytest.raises(CodecError, match=words.replace(r"\$", r"\$.b")):
        read(f'{{"b": {{{member}}}}}', below, datatypes, chunk_bytes=chunk_bytes)
    rows = {name: path.replace("$", "$[*]") for name, path in paths.items() if "[*]" not in path}
    if rows:
        with pytest.raises(CodecError, match=r"row 1: nothing at"):
            read(f"[{{{first}}}, {{{member}}}]", rows, datatypes, chunk_bytes=chunk_bytes)


def test_a_member_that_is_there_twice_is_told_once_and_as_it_was_last() -> None:
    for between in ("", LONG):
        with pytest.raises(CodecError, match=r"nothing at \$.a.b.y; \$.a has the members 'c'$"):
            read(f'{{"a": {{"b": {{"z": 1}}}}, {between} "a": {{"c": 1}}}}', {"y": "$.a.b.y"}, {"y": "FP32"})
        with pytest.raises(CodecError, match=r"nothing at \$.y; \$ has the members 'z'(, 'long')?$"):
            read(f'{{"z": 1, {between} "z": 2}}', {"y": "$.y"}, {"y": "FP32"})
        row = f'{{"a": {{"y": 1}}, {between} "c": 1}}'
        with pytest.raises(CodecError, match=r"row 1: nothing at \$\[\*\].a.y; \$\[\*\] has the members 'b'$"):
            read(f'[{row}, {{"b": 1}}]', {"y": "$[*].a.y"}, {"y": "FP32"})


@pytest.mark.parametrize("path", ["$.r", "$.r[*]", "$.r[*].y", "$.r[0].y", "$.r[*][0]"])
@pytest.mark.parametrize("last", ["null", "{}", "5"])
def test_of_two_members_with_one_name_nothing_of_the_first_is_left(path: str, last: str) -> None:
    first = {"$.r": "[1]", "$.r[*]": "[1]", "$.r[*][0]": "[[1]]"}.get(path, '[{"y": 1}]')
    assert read(f'{{"r": {first}}}', {"y": path}, {"y": "FP32"})["y"][1] == [1]
    for between in ("", LONG):
        text = f'{{"r": {first}, {between} "r": {last}}}'
        if path == "$.r" and last == "5":
            assert read(text, {"y": path}, {"y": "FP32"})["y"][0] == []
        else:
            with pytest.raises(CodecError, match="output 'y'.*(nothing at|expected values)"):
                read(text, {"y": path}, {"y": "FP32"})


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ('{"result": {"a": 1, "b": 2}}', "$.result.y",
         r"output 'y': nothing at \$.result.y; \$.result has the members 'a', 'b'"),
        ('{"error": "too hot"}', "$.result.y",
         r"nothing at \$.result.y; \$ has the members 'error', but an error: too hot"),
        ("{}", "$.y", r"nothing at \$.y; \$ has no members"),
        ('{"result": {}}', "$.result.y", r"\$.result has no members"),
        ("[1, 2]", "$.y", r"nothing at \$.y; \$ is \["),
        ('{"y": [1]}', "$.y[1]", r"nothing at \$.y\[1\]; \$.y is a list of 1"),
        ('{"y": 5}', "$.y[*]", r"nothing at \$.y; \$.y is 5$"),
        ('{"y": 5}', "$.y[*].z", r"nothing at \$.y\[\*\].z; \$.y is 5"),
        ('{"r": [{"y": 1}, {"x": 1, "z": 2}]}', "$.r[*].y",
         r"output 'y': row 1: nothing at \$.r\[\*\].y; \$.r\[\*\] has the members 'x', 'z'"),
        ('{"r": [{"y": 1}, "no"]}', "$.r[*].y", r'row 1: nothing at \$.r\[\*\].y; \$.r\[\*\] is "no"'),
        ('{"r": [[1], []]}', "$.r[*][0]", r"row 1: nothing at \$.r\[\*\]\[0\]; \$.r\[\*\] is a list of 0"),
        ('{"r": [{"y": 1}, {"y": [1]}]}', "$.r[*].y", "'y'.*"),
        ('{"r": [[1], NaN]}', "$.r[*][0]", r"row 1: nothing at \$.r\[\*\]\[0\]; \$.r\[\*\] is NaN"),
        ('{"r": [{"a": [1]}, {"a": NaN}]}', "$.r[*].a[0]", r"row 1: nothing at .*; \$.r\[\*\].a is NaN"),
        ('{"y": "text"}', "$.y", r"output 'y' \(FP32, at \$.y\): element 0: FP32 cannot hold \"text\"$"),
        ('{"r": [[1, true]]}', "$.r[*][1]", r"output 'y' \(FP32, at \$.r\[\*\]\[1\]\): .*FP32 cannot hold true$"),
        ('{"y": [[1, 2], [3]]}', "$.y", r"output 'y' \(FP32, at \$.y\): .*ragged"),
        ('{"y": {"v": 1}}', "$.y", r"output 'y' \(FP32, at \$.y\): expected values, got {\"v\": 1"),
        ('{"y": [1, 2', "$.y", "cut off"),
        ('{"y": 1} 2', "$.y", "but more follows|malformed"),
        ("", "$", "cut off"),
    ],
)  # fmt: skip
def test_answers_without_an_output_say_what_there_is(text: str, path: str, words: str, chunk_bytes: int | None) -> None:
    with pytest.raises(CodecError, match=words):
        read(text, {"y": path}, {"y": "FP32"}, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BYTES"])
@pytest.mark.parametrize("null", ["null", f"{' ' * 9000}null"])
def test_null_in_place_of_an_output_is_none(datatype: str, null: str, chunk_bytes: int | None) -> None:
    for text, path, error in (
        (f'{{"v": {null}, "error": "not loaded"}}', "$.v", ", but an error: not loaded"),
        (f'{{"detail": "busy", "r": {{"v": {null}}}}}', "$.r.v", ", but an error: busy"),
        (f'{{"v": [1, {null}]}}', "$.v[1]", ""),
        (null, "$", ""),
    ):
        words = f"output 'y': nothing at {path}; {path} is null{error}"
        with pytest.raises(CodecError, match=f"^{re.escape(words)}$"):
            read(text, {"y": path}, {"y": datatype}, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    ("text", "path", "error", "words"),
    [
        ('{"status": {"code": -1, "info": "not loaded"}, "data": null}', "$.data.v", "$.status.info", "not loaded"),
        ('{"v": null, "error": "?", "why": "not loaded"}', "$.v", "$.why", "not loaded"),
        (
            '{"data": {"faults": ["", {"é": "not loaded"}]}, "error": "?"}',
            "$.data.v",
            "$.data.faults[1].é",
            "not loaded",
        ),
        ('{"data": "not loaded"}', "$.data.v", "$.data", "not loaded"),
        ('[{"why": "not loaded"}, null]', "$[1]", "$[0].why", "not loaded"),
        ('{"why": "old", "why": "not loaded"}', "$.v", "$.why", "not loaded"),
        (f'{{"why": "not loaded", {LONG} "detail": "?"}}', "$.v", "$.why", "not loaded"),
        ('{"why": 5, "detail": "not loaded"}', "$.v", "$.why", "not loaded"),
        ('{"why": {"a": NaN}, "detail": "not loaded"}', "$.v", "$.why.a", "not loaded"),
        ('{"a": {"why": "other"}, "detail": "not loaded"}', "$.a.v", "$.why", "not loaded"),
    ],
)
def test_an_answer_without_an_output_has_its_reason_where_the_configuration_says(
    text: str, path: str, error: str, words: str, chunk_bytes: int | None
) -> None:
    with pytest.raises(CodecError, match=f"^output 'y': nothing at .*, but an error: {words}$"):
        read(text, {"y": path}, {"y": "FP32"}, error=error, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("text", ["<html>login</html>", "ok", "None", "5", "null", "-", "NaN"])
def test_an_answer_that_is_a_word_or_no_json_is_told_as_it_is(text: str) -> None:
    for path, kind in (
        ("$.v", "object"),
        ("$.r[*].v", "object"),
        ("$[0]", "list"),
        ("$[*]", "list"),
        ("$[*].v", "list"),
    ):
        with pytest.raises(CodecError, match=f"^expected a JSON {kind}, got {text}$"):
            read(text, {"y": path}, {"y": "FP32"})
        with pytest.raises(CodecError, match=f"^expected a JSON {kind}, got {text[0]}"):
            read(text, {"y": path}, {"y": "FP32"}, chunk_bytes=1)
    with pytest.raises(CodecError, match=r"output 'y'|ends after"):
        read("<html>login</html>", {"y": "$"}, {"y": "FP32"})


@pytest.mark.rule("4.7")
def test_null_inside_of_an_output_is_nan() -> None:
    for path, text in (
        ("$.v", '{"v": [1, null]}'),
        ("$.v[*]", '{"v": [1, null]}'),
        ("$[*].v", '[{"v": 1}, {"v": null}]'),
        ("$[*].v", f'[{{"v": 1}}, {{{LONG} "v": null}}]'),
    ):
        assert read(text, {"y": path}, {"y": "FP32"})["y"] == ([2], [1, pytest.approx(np.nan, nan_ok=True)])


@pytest.mark.rule("4.7")
def test_null_is_the_value_of_an_output_that_may_be_missing() -> None:
    with pytest.raises(CodecError, match=r"nothing at \$.v; \$.v is null"):
        read('{"v": null}', {"y": "$.v"}, {"y": "FP32"}, shapes={"y": ()})
    assert read('{"v": null}', {"y": "$.v"}, {"y": "BYTES"}, missing="none") == {"y": ([], ["none"])}


def test_shapes_that_are_said_are_demanded() -> None:
    paths, datatypes = {"y": "$.y"}, {"y": "FP32"}
    assert read('{"y": [[1, 2]]}', paths, datatypes, shapes={"y": (-1, 2)}) == {"y": ([1, 2], [1, 2])}
    assert read('{"y": []}', paths, datatypes, shapes={"y": (-1, 2)}) == {"y": ([0, 2], [])}
    for text, got in (('{"y": [[1]]}', r"\[1, 1\]"), ('{"y": [1, 2]}', r"\[2\]"), ('{"y": 1}', r"\[\]")):
        with pytest.raises(
            CodecError, match=rf"output 'y' \(FP32, at \$.y\): the answer has the shape {got}, and .* says \[-1, 2\]"
        ):
            read(text, paths, datatypes, shapes={"y": (-1, 2)})


def test_what_no_output_needs_is_skipped_however_long_it_is() -> None:
    limits = HeaderLimits(max_header_bytes=1000, max_tensors=10)
    beside = json.dumps({"echo": ["x"] * 400_000, "y": 1})
    for chunk_bytes in (None, 10_000):
        found = read(beside, {"y": "$.y"}, {"y": "FP32"}, limits=limits, chunk_bytes=chunk_bytes)
        assert found == {"y": ([], [1])}
    in_items = json.dumps({"a": [["x"] * 400, 1]})
    assert read(in_items, {"y": "$.a[1]"}, {"y": "FP32"}, limits=limits) == {"y": ([], [1])}
    rows = json.dumps({"r": [{"echo": ["x"] * 9000, "y": index} for index in range(3)]})
    assert read(rows, {"y": "$.r[*].y"}, {"y": "FP32"}, limits=limits) == {"y": ([3], [0, 1, 2])}


def test_values_that_json_does_not_have_are_taken() -> None:
    found = read(
        '{"r": [{"y": NaN}, {"y": -Infinity}, {"y": null}]}', {"y": "$.r[*].y"}, {"y": "FP32"}, selection=BINARY
    )
    assert found == {"y": ([3], "FP32")}


@pytest.mark.parametrize("path", ["$.r[*].y", pytest.param("$.r[*][0]", marks=pytest.mark.slow), "$.y", "$.a[1].y"])
def test_memory_is_the_tensors_and_a_bounded_text(path: str) -> None:
    values = list(range(100_000, 200_000))
    text = json.dumps(
        {
            "$.r[*].y": {"r": [{"y": value, "more": "x" * 20} for value in values]},
            "$.r[*][0]": {"r": [[value, "x" * 20] for value in values]},
            "$.y": {"y": values},
            "$.a[1].y": {"a": [0, {"y": values}]},
        }[path]
    ).encode()
    chunks = [text[start : start + 64 * 1024] for start in range(0, len(text), 64 * 1024)]
    form = AnswerForm(tree_of({"y": path}))
    description = ModelDescription(outputs={"y": TensorDescription(DATATYPES["FP64"])})
    tracemalloc.start()
    try:
        reply = read_answer(chunks, form, description, BINARY)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert b"".join(map(bytes, reply.blobs)) == np.array(values, np.float64).tobytes()
    assert peak_bytes < 1.3 * 8 * len(values) + 2 * WAITING_BYTES


# Several [*]


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
@pytest.mark.parametrize(
    ("text", "path", "shape", "values"),
    [
        ('{"d": [{"c": [{"v": 1}, {"v": 2}]}, {"c": [{"v": 3}, {"v": 4}]}]}', "$.d[*].c[*].v", [2, 2], [1, 2, 3, 4]),
        ('[[{"v": 1}], [{"v": 2}], [{"v": 3}]]', "$[*][*].v", [3, 1], [1, 2, 3]),
        ('[{"a": [{"b": [{"v": [1, 2]}]}]}, {"a": [{"b": [{"v": [3, 4]}]}]}]', "$[*].a[*].b[*].v", [2, 1, 1, 2],
         [1, 2, 3, 4]),
        ('{"d": [{"c": []}, {"c": []}]}', "$.d[*].c[*].v", [2, 0], []),
        ('{"d": [{"c": [[5, 6], [7, 8]], "x": 1}]}', "$.d[*].c[*][1]", [1, 2], [6, 8]),
        ('{"d": [{"c": [{"v": null}, {"v": NaN}]}]}', "$.d[*].c[*].v", [1, 2], [np.nan, np.nan]),
        (f'{{"d": [{{"c": [{{"v": 1}}]}}, {{{LONG} "c": [{{{LONG} "v": 2}}]}}]}}', "$.d[*].c[*].v", [2, 1], [1, 2]),
        ('{"d": [{"c": [1, 2]}, {"c": [3, 4]}]}', "$.d[*].c[*]", [2, 2], [1, 2, 3, 4]),
    ],
)  # fmt: skip
def test_each_star_is_a_dimension(
    text: str, path: str, shape: list[int], values: list[float], chunk_bytes: int | None
) -> None:
    found_shape, found = read(text, {"y": path}, {"y": "FP32"}, chunk_bytes=chunk_bytes)["y"]
    assert found_shape == shape
    assert found == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_outputs_may_stand_at_several_depths_of_rows(chunk_bytes: int | None) -> None:
    rows = [{"id": f"r{row}", "c": [{"name": f"n{row}{item}", "v": item / 2} for item in range(3)]} for row in range(4)]
    found = read(
        json.dumps({"data": rows}),
        {"id": "$.data[*].id", "name": "$.data[*].c[*].name", "v": "$.data[*].c[*].v"},
        {"id": "BYTES", "name": "BYTES", "v": "FP64"},
        chunk_bytes=chunk_bytes,
    )
    assert found["id"] == ([4], ["r0", "r1", "r2", "r3"])
    assert found["name"] == ([4, 3], [f"n{row}{item}" for row in range(4) for item in range(3)])
    assert found["v"] == ([4, 3], [0, 0.5, 1] * 4)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"d": [{"c": [{"v": 1}, {"v": 2}]}, {"c": [{"v": 3}]}]}', "ragged|different shapes"),
        ('{"d": [{"c": [{"v": 1}]}, {"c": [{"w": 3}]}]}', r"row 0: nothing at .*; .* has the members 'w'"),
        ('{"d": [{"c": [{"v": 1}]}, {}]}', r"row 1: nothing at \$.d\[\*\].c\[\*\].v; \$.d\[\*\] has no members"),
        ('{"d": [{"c": 5}]}', r"row 0: nothing at .*; \$.d\[\*\].c is 5"),
        ('{"d": [{"c": [{"v": 1}]}, {"c": [{"v": "x"}]}]}', "cannot hold"),
    ],
)
def test_rows_in_rows_that_do_not_fit_are_refused(text: str, words: str, chunk_bytes: int | None) -> None:
    with pytest.raises(CodecError, match=words):
        read(text, {"y": "$.d[*].c[*].v"}, {"y": "FP32"}, chunk_bytes=chunk_bytes)


# Failures inside of success


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"status": "failed", "y": 1, "error": "no disk"}', "no disk"),
        ('{"y": 1, "message": "no disk"}', "no disk"),
        ('{"status": null, "y": 1}', r"it has null at \$.status"),
        ('{"y": 1}', r"it has nothing at \$.status"),
        ('{"status": "ok", "status": "failed", "y": 1}', 'it has "failed"'),
        ('{"status": {"a": "ok"}, "y": 1}', "it has {"),
    ],
)
def test_an_answer_without_its_sign_of_success_is_a_failure(text: str, words: str, chunk_bytes: int | None) -> None:
    with pytest.raises(FailedAnswerError, match=words):
        read(text, {"y": "$.y"}, {"y": "FP32"}, success={"$['status']": "ok"}, chunk_bytes=chunk_bytes)


def test_an_answer_with_its_signs_of_success_is_read() -> None:
    text = '{"meta": {"code": 0, "ok": true}, "y": [1, 2]}'
    success = {"$.meta.code": 0, "$.meta.ok": True}
    assert read(text, {"y": "$.y"}, {"y": "FP32"}, success=success) == {"y": ([2], [1, 2])}
    with pytest.raises(FailedAnswerError):
        read(text.replace("true", "1"), {"y": "$.y"}, {"y": "FP32"}, success=success)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    "text",
    [
        '{"status": "failed", "output": null, "error": "no disk"}',
        '{"error": "no disk"}',
        '{"output": [], "error": "no disk"}',
        '{"output": [], "error": {"message": "no disk"}}',
        '{"output": [null], "error": "no disk"}',
        '{"error": "no disk", "output": [[1, null], [2, 3]]}',
    ],
)
def test_an_error_beside_outputs_without_values_is_a_failure(text: str, chunk_bytes: int | None) -> None:
    with pytest.raises(FailedAnswerError, match="no disk"):
        read(text, {"y": "$.output"}, {"y": "FP32"}, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize("output", ['"n/a"', "[[1], [2, 3]]", '{"why": 1}'])
def test_a_failed_answer_is_a_failure_whatever_stands_in_place_of_its_values(
    output: str, chunk_bytes: int | None
) -> None:
    """Malformed answers eject an endpoint, and a failure is none."""
    text = f'{{"status": "failed", "why": "no disk", "y": {output}}}'
    success = {"$.status": "succeeded"}
    with pytest.raises(FailedAnswerError, match="^no disk"):
        read(text, {"y": "$.y"}, {"y": "FP32"}, success=success, error="$.why", chunk_bytes=chunk_bytes)
    with pytest.raises(CodecError, match="^output 'y'") as malformed:
        read(text.replace("failed", "succeeded"), {"y": "$.y"}, {"y": "FP32"}, success=success, error="$.why")
    assert not isinstance(malformed.value, FailedAnswerError)


@pytest.mark.parametrize("chunk_bytes", [None, 1])
@pytest.mark.parametrize(
    ("row", "path", "datatype"),
    [
        ('{"y": [null, null], "error": "too long"}', "$.r[*].y", "FP32"),
        ('{"y": [1, null], "error": "too long"}', "$.r[*].y", "FP32"),
        ('{"y": [{"v": null}, {"v": 3}], "error": "too long"}', "$.r[*].y[*].v", "FP32"),
        ('{"error": "too long", "y": null}', "$.r[*].y", "BYTES"),
    ],
)
def test_an_error_beside_null_inside_of_a_rows_value_is_a_failure(
    row: str, path: str, datatype: str, chunk_bytes: int | None
) -> None:
    with pytest.raises(FailedAnswerError, match="^row 0: too long$"):
        read(
            f'{{"r": [{row}]}}',
            {"y": path},
            {"y": datatype},
            chunk_bytes=chunk_bytes,
            missing="-" * (datatype == "BYTES"),
        )


def test_an_error_beside_a_text_that_says_null_is_none() -> None:
    text = '{"r": [{"y": "null", "error": "cut"}]}'
    assert read(text, {"y": "$.r[*].y"}, {"y": "BYTES"})["y"] == ([1], ["null"])


@pytest.mark.parametrize("error", ["null", '""', "false", "0", "[]", "{}"])
def test_an_error_that_says_nothing_is_none(error: str) -> None:
    text = f'{{"output": [], "error": {error}}}'
    assert read(text, {"y": "$.output"}, {"y": "FP32"}) == {"y": ([0], [])}


@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_an_error_beside_null_in_a_row_is_a_failure(chunk_bytes: int | None) -> None:
    rows = '{"r": [{"y": 1, "error": null}, {"y": null, "error": "too long"}]}'
    with pytest.raises(FailedAnswerError, match="row 1: too long"):
        read(rows, {"y": "$.r[*].y"}, {"y": "FP32"}, chunk_bytes=chunk_bytes)
    warned = '{"r": [{"y": 1, "error": "cut"}, {"y": 2, "error": null}]}'
    assert read(warned, {"y": "$.r[*].y"}, {"y": "FP32"}, chunk_bytes=chunk_bytes) == {"y": ([2], [1, 2])}


# The order of rows, and rows that would be lost


@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_rows_are_put_into_the_order_that_they_say(chunk_bytes: int | None) -> None:
    rows = [{"index": index, "y": index + 0.5, "t": f"t{index}", "v": [index, -index]} for index in (2, 0, 3, 1)]
    found = read(
        json.dumps({"results": rows, "total": [9]}),
        {"y": "$.results[*].y", "t": "$.results[*].t", "v": "$.results[*].v", "total": "$.total"},
        {"y": "FP64", "t": "BYTES", "v": "INT32", "total": "INT64"},
        order="$.results[*].index",
        first_sizes=[4],
        chunk_bytes=chunk_bytes,
    )
    assert found["y"] == ([4], [0.5, 1.5, 2.5, 3.5])
    assert found["t"] == ([4], ["t0", "t1", "t2", "t3"])
    assert found["v"] == ([4, 2], [0, 0, 1, -1, 2, -2, 3, -3])
    assert found["total"] == ([1], [9])


@pytest.mark.parametrize(
    ("indexes", "words"),
    [
        ([0, 0], "expected each of the rows 0 to 1 once, got 0, 0"),
        ([1, 2], "got 1, 2"),
        ([0], "the answer has 1 rows, and the request has 2"),
        ([0, 1, 2], "the answer has 3 rows, and the request has 2"),
        ([0, None], "null"),
        ([0, 1.5], "1.5"),
    ],
)
def test_rows_that_are_not_each_there_once_are_refused(indexes: list[Any], words: str) -> None:
    text = json.dumps([{"i": index, "y": 1} for index in indexes])
    with pytest.raises(CodecError, match=words):
        read(text, {"y": "$[*].y"}, {"y": "FP32"}, order="$[*].i", first_sizes=[2])


def test_rows_are_as_many_as_one_of_the_inputs_has_where_these_differ() -> None:
    text = '[{"i": 1, "y": 1}, {"i": 0, "y": 0}]'
    with pytest.raises(CodecError, match="the answer has 2 rows, and the request has 1 or 3"):
        read(text, {"y": "$[*].y"}, {"y": "FP32"}, order="$[*].i", first_sizes=[1, 3])
    assert read(text, {"y": "$[*].y"}, {"y": "FP32"}, order="$[*].i", first_sizes=[1, 2])["y"] == ([2], [0, 1])


@pytest.mark.parametrize("path", ["$[0]", "$[0][*]", "$[0].y", "$.a[0].y"])
def test_a_path_that_would_lose_rows_is_refused(path: str) -> None:
    item = {"y": 1} if "y" in path else [1]
    text = json.dumps({"a": [item, item]} if ".a" in path else [item, item])
    with pytest.raises(CodecError, match=r"the request has 2 rows and .* is a list of 2, .* only \[0\]"):
        read(text, {"y": path}, {"y": "FP32"}, first_sizes=[2])
    assert read(text, {"y": path}, {"y": "FP32"}, first_sizes=[1])
    assert read(json.dumps(json.loads(text)[:1] if ".a" not in path else {"a": [item]}), {"y": path}, {"y": "FP32"},
                first_sizes=[2])  # fmt: skip


def test_names_of_dimensions_are_the_requests() -> None:
    shapes: Any = {"y": ("n", "k"), "z": ("k",)}
    paths, datatypes = {"y": "$.y", "z": "$.z"}, {"y": "FP32", "z": "FP32"}
    text = '{"y": [[1, 2, 3], [4, 5, 6]], "z": [1, 2, 3]}'
    assert read(text, paths, datatypes, shapes=shapes, sizes={"n": 2})
    with pytest.raises(CodecError, match=r"the shape \[2, 3\], and .* says \[n, k\] \(n is 1\)"):
        read(text, paths, datatypes, shapes=shapes, sizes={"n": 1})
    with pytest.raises(CodecError, match=r"output 'z' .* says \[k\] \(k is 3\)"):
        read(text.replace("[1, 2, 3]}", "[1]}"), paths, datatypes, shapes=shapes, sizes={"n": 2})
    assert read('{"y": [], "z": []}', paths, datatypes, shapes=shapes, sizes={"n": 0, "k": 0})["y"][0] == [0, 0]
