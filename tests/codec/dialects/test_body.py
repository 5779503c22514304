"""Bodies of requests that are described in YAML."""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.dialects import DIALECTS
from gateway.codec.dialects.body import MAX_DEPTH, NO_NAMES, Body, ModelNames, WrittenRequest
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription, Template
from gateway.codec.dialects.paths import AnswerForm, Node
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import BytesPolicy, TensorPolicy
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.errors import CodecError
from tests.codec.dialects.driving import parsing
from tests.steps import run

X = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2.5, 3, 4]}
N = {"name": "n", "shape": [2], "datatype": "INT64", "data": [2**63 - 1, -5]}
S = {"name": "s", "shape": [2], "datatype": "BYTES", "data": ["a\n", "é"]}
C = {"name": "c", "shape": [], "datatype": "FP64", "data": [0.5]}
FLAT = {"name": "x", "shape": [2, 0, 3], "datatype": "FP32", "data": []}
EMPTY = {"name": "x", "shape": [0], "datatype": "FP32", "data": []}


def body_for(text: str, *inputs: Mapping[str, Any]) -> Body:
    known = {tensor["name"]: TensorDescription(DATATYPES[tensor["datatype"]]) for tensor in inputs}
    return Body(yaml.safe_load(text), known)


def write(body: Body, request: DialectRequest) -> WrittenRequest:
    description = ModelDescription(template=Template("/", body, AnswerForm(Node("$"))))
    return DIALECTS["template"].write(request, description)


def written(text: str, *inputs: Mapping[str, Any], policy: TensorPolicy | None = None, **top: Any) -> Any:
    """What the body *text* makes of a request with *inputs*."""
    body = body_for(text, *inputs)
    assert not body.faults
    request = json.dumps({"inputs": inputs, **top}).encode()
    parsed = run(parsing(request, None, policy))
    bound = write(body, parsed)
    whole = b"".join(bound.json_pieces())
    assert bound.small_json in (whole, None)
    return json.loads(whole)


@pytest.mark.parametrize(
    ("text", "inputs", "expected"),
    [
        ("{features: $x, user: web}", [X], {"features": [[1, 2.5], [3, 4]], "user": "web"}),
        ("$x", [X], [[1, 2.5], [3, 4]]),
        ("$c", [C], 0.5),
        ("[$c, 18446744073709551617, -99999999999999999999]", [C], [0.5, 2**64 + 1, 1 - 10**20]),
        ("[$c, 1, null, true, 'a $c', $$c]", [C], [0.5, 1, None, True, "a $c", "$c"]),
        ("{a: {b: [{c: $n}]}, $$d: {}, e: []}", [N], {"a": {"b": [{"c": N["data"]}]}, "$d": {}, "e": []}),
        ("{shape: {$shape: x}, values: {$flat: x}, n: {$rows: x}}", [X],
         {"shape": [2, 2], "values": X["data"], "n": 2}),
        ("{$each: {age: $n, plan: $s}}", [N, S], [{"age": 2**63 - 1, "plan": "a\n"}, {"age": -5, "plan": "é"}]),
        ("{rows: {$each: [$n, 1, $x]}}", [N, X], {"rows": [[2**63 - 1, 1, [1, 2.5]], [-5, 1, [3, 4]]]}),
        ("{$each: {$shape: x}}", [X], [[2], [2]]),
        ("{$each: $x}", [X], [[1, 2.5], [3, 4]]),
        ("{$each: {v: {$flat: x}, s: {$shape: x}, n: {$rows: x}}}", [X],
         [{"v": [1, 2.5], "s": [2], "n": 2}, {"v": [3, 4], "s": [2], "n": 2}]),
        ("{all: $c, each: {$each: {n: $n}}}", [C, N], {"all": 0.5, "each": [{"n": n} for n in N["data"]]}),
        ("{data: {$b64: s}}", [S], {"data": ["YQo=", "w6k="]}),
        ("{$each: {v: $x}}", [EMPTY], []),
        ("{v: {$flat: x}, s: {$shape: x}, n: {$rows: x}}", [FLAT], {"v": [], "s": [2, 0, 3], "n": 2}),
        ("{$each: {v: {$flat: x}, s: {$shape: x}}}", [FLAT], [{"v": [], "s": [0, 3]}] * 2),
        ("{p: $parameters, id: $id, x: $x}", [X], {"p": {}, "id": None, "x": [[1, 2.5], [3, 4]]}),
    ],
)  # fmt: skip
def test_inputs_stand_where_the_body_says(text: str, inputs: list[Mapping[str, Any]], expected: Any) -> None:
    assert written(text, *inputs) == expected


def test_parameters_and_the_id_are_the_requests_own() -> None:
    body = written(
        "{p: $parameters, i: $id, x: {$rows: x}}", X, id='a"b', parameters={"k": [1], "binary_data_output": True}
    )
    assert body == {"p": {"k": [1]}, "i": 'a"b', "x": 2}


def test_binary_inputs_are_in_base64_where_the_policy_says_so() -> None:
    blob = b"\1\0\0\0\xff"
    header = {"name": "s", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}
    text = json.dumps({"inputs": [header]}).encode()
    policy = TensorPolicy(bytes=BytesPolicy.BASE64)
    request = run(parsing(text + blob, len(text), policy))
    body = body_for("{s: $s, each: {$each: {v: $s}}}", S)
    assert b"".join(write(body, request).json_pieces()) == b'{"s":["/w=="],"each":[{"v":"/w=="}]}'


def test_large_tensors_come_in_pieces() -> None:
    values = np.arange(300_000, dtype=np.int64)
    text = json.dumps(
        {
            "inputs": [
                {
                    "name": "n",
                    "shape": [len(values)],
                    "datatype": "INT64",
                    "parameters": {"binary_data_size": values.nbytes},
                }
            ]
        }
    ).encode()
    request = run(parsing(text + values.tobytes(), len(text), TensorPolicy()))
    bound = write(body_for("{a: {$each: {v: $n, k: 1}}, b: $n}", N), request)
    pieces = list(bound.json_pieces())
    assert max(map(len, pieces)) < 1 << 20
    body = json.loads(b"".join(pieces))
    assert body["b"] == values.tolist()
    assert body["a"][-1] == {"v": 299_999, "k": 1}


def test_a_small_input_with_much_beside_each_row_comes_in_pieces_too() -> None:
    x = {"name": "x", "shape": [10_000], "datatype": "UINT8", "data": [7] * 10_000}
    request = run(parsing(json.dumps({"inputs": [x]}).encode()))
    bound = write(body_for(f"{{$each: {{v: $x, k: {'k' * 200}}}}}", x), request)
    assert bound.small_json is None
    pieces = list(bound.json_pieces())
    assert max(map(len, pieces)) < 400_000
    assert json.loads(b"".join(pieces)) == [{"v": 7, "k": "k" * 200}] * 10_000


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([X], "input 'n' is missing"),
        ([X, C | {"name": "n"}], "input 'n' .*a scalar has no rows"),
        ([X, N | {"shape": [3], "data": [1, 2, 3]}], r"expected 3 rows, as input 'n'|expected 2 rows, as input 'x'"),
    ],
)
def test_what_a_request_lacks_is_refused(inputs: list[Mapping[str, Any]], words: str) -> None:
    body = body_for("{$each: {x: $x, n: $n}}", X, N)
    text = json.dumps({"inputs": inputs}).encode()
    request = run(parsing(text, None, TensorPolicy()))
    with pytest.raises(CodecError, match=words):
        write(body, request)


@pytest.mark.parametrize(
    ("text", "tensor", "words"),
    [
        (
            "{$each: {n: {$rows: n}}}",
            N,
            r"input 'n' \(INT64, shape \[2\]\): a scalar stands in `\$rows` of this backend's template",
        ),
        ("{n: {$rows: c}}", C, r"input 'c' \(FP64, shape \[\]\): a scalar stands in `\$rows`.*, which has no rows"),
        ("{x: $x}", FLAT, r"input 'x' \(FP32, shape \[2, 0, 3\]\): nested JSON cannot say the shape"),
        (
            "{$each: {$flat: x}}",
            FLAT | {"shape": [0, 3]},
            r"input 'x' \(FP32, shape \[0, 3\]\): nested JSON cannot say",
        ),
        ("{$each: {x: $x}}", FLAT, r"input 'x' \(FP32, shape \[2, 0, 3\]\): nested JSON cannot say the shape"),
        # rows without elements take no bytes of the request, however many of them its shape says
        ("{$each: {v: {$flat: x}}}", FLAT | {"shape": [10**12, 0, 3]}, "an empty tensor of more than 4096 lists"),
        ("{$each: {s: {$shape: x}}}", FLAT | {"shape": [4097, 0]}, "an empty tensor of more than 4096 lists"),
    ],
)
def test_what_a_place_cannot_say_is_told_of_the_clients_tensor(
    text: str, tensor: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(CodecError, match=words):
        written(text, tensor)


def test_an_input_with_the_name_of_something_else_is_told_so() -> None:
    faults = Body({"i": "$id"}, {"id": TensorDescription()}).faults
    assert faults == {"": "input `id` stands nowhere in it; `$id` is the request's own, so call it something else"}


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("{a: $y, x: $x}", {".a": "no such input: there are x; .*"}),
        ("{a: 1}", {"": "input `x` stands nowhere in it"}),
        ("{a: [{$foo: x}], x: $x}", {".a[0].$foo": r"unknown; known are \$each, .*"}),
        ("{$flat: x, b: 1}", {".$flat": "expected `\\$flat` alone in its object", "": "input `x` .*"}),
        ("[{$flat: 3}, $x]", {"[0].$flat": "no such input: there are x; .*"}),
        ("[{$flat: $x}, $x]", {"[0].$flat": "no such input: there are x; its name stands here without \\$"}),
        ("[$x, {$each: {a: {$rows: x}}}]", {}),
        ("[{$b64: x}]", {"[0].$b64": "expected an input with `datatype: BYTES`.*"}),
        ("{$each: {$each: $x}}", {".$each.$each": "expected no `\\$each` inside.*",
                                  ".$each": "expected an input in it.*",
                                  "": "input `x` .*"}),
        ("[$x, {$each: 1}]", {"[1].$each": "expected an input in it.*"}),
        ("[$x, .nan, 2020-01-01, 99999999999999999999]",
         {f"[{index}]": "expected what JSON has.*" for index in (1, 2)}),
        ("[" * MAX_DEPTH + "$x" + "]" * MAX_DEPTH, {"[0]" * MAX_DEPTH: "nested deeper than 64 levels",
                                                    "": "input `x` .*"}),
    ],
)  # fmt: skip
def test_faults_of_a_body_are_said_where_they_are(text: str, faults: dict[str, str]) -> None:
    found = body_for(text, X).faults
    assert sorted(found) == sorted(faults)
    for at, words in faults.items():
        assert re.fullmatch(words, found[at]), found[at]


def test_rows_need_first_dimensions_that_may_be_the_same() -> None:
    def faults(*shapes: tuple[int, ...] | None) -> dict[str, str]:
        inputs = {f"x{index}": TensorDescription(DATATYPES["FP32"], shape) for index, shape in enumerate(shapes)}
        return Body({"$each": [f"${name}" for name in inputs]}, inputs).faults

    assert not faults((-1, 4), (3,), None)
    assert faults((2,), (3,)) == {".$each": "expected inputs with the same first dimension: `x0` 2, `x1` 3"}
    for body in ({"$rows": "x"}, {"$each": ["$x", {"$rows": "x"}]}):
        shape = (3,) if "$each" in body else ()
        faulty = Body(body, {"x": TensorDescription(None, shape)}).faults
        assert list(faulty.values()) == ["input `x` is a scalar there, which has no rows"]
    assert not faults((2,), ())
    assert faults(()) == {".$each": "expected an input with rows: `x0` has none"}
    assert Body("$x", {}).faults == {
        "": "no such input: `inputs` names none; $parameters, $model, $version, $id, $row are known, $$ is the text $"
    }


WORDS = st.sampled_from(["$x", "$n", "$s", "$c", "$$x", "$", "$$", "$id", "$nope", "a", "", "é", "x", "n", "s", "c"])
KEYS = st.sampled_from(["a", "b c", "$$d", "$each", "$flat", "$shape", "$rows", "$b64", "$other", ""])
PLACES = st.builds(
    lambda key, name: {key: name}, st.sampled_from(["$flat", "$shape", "$rows", "$b64"]), st.sampled_from("xnsc")
)
VALUES = st.recursive(
    WORDS | PLACES | st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def meant_by(value: Any, tensors: Mapping[str, Any], shapes: Mapping[str, list[int]]) -> Any:
    """What a body without faults becomes for inputs of these nested values and *shapes*."""
    if isinstance(value, list):
        return [meant_by(item, tensors, shapes) for item in value]
    if isinstance(value, str):
        return (
            None
            if value == "$id"
            else tensors[value[1:]]
            if value[:1] == "$" != value[1:2]
            else value.removeprefix("$")
        )
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (key := next(iter(value)))[:1] == "$" != key[1:2]:
        inner = value[key]
        if key == "$each":
            rows = {name: each for name, each in tensors.items() if shapes[name]}
            n_rows = max(len(each) for name, each in rows.items())
            return [
                meant_by(inner, {name: each[row] for name, each in rows.items() if row < len(each)},
                         {name: shape[1:] for name, shape in shapes.items()})
                for row in range(n_rows)
            ]  # fmt: skip
        tensor = tensors[inner]
        if key == "$flat":
            return np.array(tensor, object).ravel().tolist() if shapes[inner] else [tensor]
        if key == "$b64":
            return [base64_of(text) for text in tensor] if isinstance(tensor, list) else base64_of(tensor)
        return shapes[inner] if key == "$shape" else shapes[inner][0]
    return {key.removeprefix("$"): meant_by(inner, tensors, shapes) for key, inner in value.items()}


def base64_of(text: str) -> str:
    return {"a\n": "YQo=", "é": "w6k="}[text]


@given(VALUES)
def test_any_value_is_a_body_or_has_faults(value: Any) -> None:
    inputs: list[dict[str, Any]] = [X, N, S, C]
    known = {tensor["name"]: TensorDescription(DATATYPES[tensor["datatype"]]) for tensor in inputs}
    body = Body(value, known)
    faults = {at: words for at, words in body.faults.items() if "stands nowhere" not in words}
    request = run(parsing(json.dumps({"inputs": inputs}).encode()))
    try:
        found = json.loads(b"".join(write(body, request).json_pieces()))
    except CodecError:  # shapes are known only now: a scalar has no rows
        assert faults or "$rows" in json.dumps(value) or "$each" in json.dumps(value)
        return
    if faults:
        return
    nested = {"x": [[1, 2.5], [3, 4]], "n": N["data"], "s": S["data"], "c": 0.5}
    assert found == meant_by(value, nested, {tensor["name"]: tensor["shape"] for tensor in inputs})


Q = {"name": "q", "shape": [], "datatype": "BYTES", "data": ["é?"]}


def described_body(text: str, shapes: Mapping[str, Any], *, is_row: bool = False, optional: str = "") -> Body:
    known = {}
    for tensor in (X, N, S, C, Q):
        name = str(tensor["name"])
        shape = tuple(shapes[name]) if name in shapes else None
        if re.search(rf"(?<!\$)\${name}\b", text):
            known[name] = TensorDescription(DATATYPES[str(tensor["datatype"])], shape, optional=name in optional)
    return Body(yaml.safe_load(text), known, is_row=is_row)


def made_of(body: Body, *inputs: Mapping[str, Any], names: ModelNames = NO_NAMES, **top: Any) -> Any:
    assert not body.faults, body.faults
    request = run(parsing(json.dumps({"inputs": inputs, **top}).encode()))
    description = ModelDescription(template=Template("/", body, AnswerForm(Node("$"))))
    return json.loads(b"".join(DIALECTS["template"].write(request, description, names).json_pieces()))


def test_a_row_has_its_number() -> None:
    body = described_body("{$each: {i: $row, n: $n}}", {})
    assert made_of(body, N) == [{"i": 0, "n": N["data"][0]}, {"i": 1, "n": N["data"][1]}]
    assert made_of(body, N, names=ModelNames(first_row=6))[1]["i"] == 7
    many = {**N, "shape": [5000], "data": [7] * 5000}
    assert [row["i"] for row in made_of(body, many)] == list(range(5000))
    long = {"name": "s", "shape": [2], "datatype": "BYTES", "data": ["a" * 300_000, "b"]}
    assert [row[0] for row in made_of(described_body("{$each: [$row, $s]}", {}), long)] == [0, 1]
    of_row = described_body("{i: $row, c: $c}", {}, is_row=True)
    assert made_of(of_row, C, names=ModelNames(first_row=3)) == {"i": 3, "c": 0.5}
    assert list(described_body("{i: $row, c: $c}", {}).faults) == [".i"]


def test_a_scalar_is_the_same_in_each_row() -> None:
    body = described_body("{pairs: {$each: [$q, $s]}}", {"q": [], "s": ["n"]})
    assert made_of(body, Q, S) == {"pairs": [["é?", "a\n"], ["é?", "é"]]}


def test_the_model_is_called_as_at_the_backend() -> None:
    body = described_body("{m: $model, v: $version, c: $c}", {})
    assert made_of(body, C, names=ModelNames('a"b', "7")) == {"m": 'a"b', "v": "7", "c": 0.5}
    assert made_of(body, C, names=ModelNames("m")) == {"m": "m", "v": None, "c": 0.5}
    assert body.uses_version


def test_parameters_are_put_over_their_defaults() -> None:
    body = described_body("{options: {$parameters: {top_k: 5, text: $c, $$x: [1]}}}", {})
    assert body.parameters == {"top_k", "text", "$x"}
    assert made_of(body, C) == {"options": {"top_k": 5, "text": 0.5, "$x": [1]}}
    found = made_of(body, C, parameters={"top_k": {"a": [1.5]}, "$x": None})
    assert found == {"options": {"top_k": {"a": [1.5]}, "text": 0.5, "$x": None}}
    assert described_body("[$parameters, {$parameters: {a: 1}}, $c]", {}).parameters is None
    for wrong in ("[$c, {$parameters: 3}]", "[$c, {$parameters: [1]}]", "[$c, {$parameters: {$flat: c}}]"):
        assert "[1].$parameters" in described_body(wrong, {}).faults


def test_a_parameter_cannot_stand_in_an_inputs_only_place() -> None:
    only = described_body("{options: {$parameters: {text: $c}}}", {})
    with pytest.raises(CodecError, match="input 'c' .*: one of the request's parameters takes its place"):
        made_of(only, C, parameters={"text": "other"})
    twice = described_body("{c: $c, options: {$parameters: {text: $c}}}", {})
    assert made_of(twice, C, parameters={"text": "other"}) == {"c": 0.5, "options": {"text": "other"}}
    shape = described_body("{c: $c, options: {$parameters: {text: {$shape: c}}}}", {})
    assert made_of(shape, C, parameters={"text": 1}) == {"c": 0.5, "options": {"text": 1}}


def test_inputs_of_which_only_the_shape_is_sent_are_told_apart() -> None:
    assert described_body("{c: $c, n: {$rows: x}, s: [$s, {$shape: s}]}", {}).sent == {"c", "s"}


def test_an_optional_input_that_is_missing_leaves_its_member_out() -> None:
    body = described_body("{a: $x, o: {n: $n, k: 1}, l: [1, $n], r: {$each: {s: $s, n: $n}}}", {}, optional="n")
    assert made_of(body, X, S) == {
        "a": [[1, 2.5], [3, 4]],
        "o": {"k": 1},
        "l": [1],
        "r": [{"s": "a\n"}, {"s": "é"}],
    }
    assert made_of(body, X, S, N)["o"] == {"n": N["data"], "k": 1}
    each = described_body("{a: $x, rows: {$each: {n: $n, i: $row}}}", {}, optional="n")
    assert made_of(each, X) == {"a": [[1, 2.5], [3, 4]]}
    with pytest.raises(CodecError, match="none of the inputs"):
        made_of(described_body("$n", {}, optional="n"))
    with pytest.raises(CodecError, match="input 'x' is missing"):
        made_of(body, S)


def test_braces_in_a_body_are_pointed_out() -> None:
    body = described_body("{url: '/m/{model}/x', v: ['{version}', '{other}'], c: $c}", {})
    assert body.braced == {".url": "model", ".v[0]": "version"}
