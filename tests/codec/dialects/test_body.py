"""Bodies of requests that are described in YAML."""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import yaml

from gateway.codec import DATATYPES, DialectRequest, TensorPolicy, run
from gateway.codec.dialects.body import MAX_DEPTH, Body
from gateway.codec.dialects.writing import text_or_base64, writer_of
from gateway.codec.inference import BytesPolicy
from gateway.errors import CodecError

X = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2.5, 3, 4]}
N = {"name": "n", "shape": [2], "datatype": "INT64", "data": [2**63 - 1, -5]}
S = {"name": "s", "shape": [2], "datatype": "BYTES", "data": ["a\n", "é"]}
C = {"name": "c", "shape": [], "datatype": "FP64", "data": [0.5]}
EMPTY = {"name": "x", "shape": [0], "datatype": "FP32", "data": []}


def body_for(text: str, *inputs: Mapping[str, Any]) -> Body:
    known = {tensor["name"]: (DATATYPES[tensor["datatype"]], None) for tensor in inputs}
    return Body(yaml.safe_load(text), known, text_or_base64({}))


def written(text: str, *inputs: Mapping[str, Any], policy: TensorPolicy | None = None, **top: Any) -> Any:
    """What the body *text* makes of a request with *inputs*."""
    body = body_for(text, *inputs)
    assert not body.faults
    request = json.dumps({"inputs": inputs, **top}).encode()
    parsed = run(DialectRequest.parse(memoryview(request), None, policy or TensorPolicy(), recover=False))
    bound = parsed.bound(writer_of(body.part))
    whole = b"".join(bound.json_pieces())
    assert bound.small_json in (whole, None)
    return json.loads(whole)


@pytest.mark.parametrize(
    ("text", "inputs", "expected"),
    [
        ("{features: $x, user: web}", [X], {"features": [[1, 2.5], [3, 4]], "user": "web"}),
        ("$x", [X], [[1, 2.5], [3, 4]]),
        ("$c", [C], 0.5),
        ("[$c, 1, null, true, 'a $c', $$c]", [C], [0.5, 1, None, True, "a $c", "$c"]),
        ("{a: {b: [{c: $n}]}, $$d: {}, e: []}", [N], {"a": {"b": [{"c": N["data"]}]}, "$d": {}, "e": []}),
        ("{shape: {$shape: x}, values: {$flat: x}, n: {$rows: x}}", [X],
         {"shape": [2, 2], "values": X["data"], "n": 2}),
        ("{$each: {age: $n, plan: $s}}", [N, S], [{"age": 2**63 - 1, "plan": "a\n"}, {"age": -5, "plan": "é"}]),
        ("{rows: {$each: [$n, 1, $x]}}", [N, X], {"rows": [[2**63 - 1, 1, [1, 2.5]], [-5, 1, [3, 4]]]}),
        ("{$each: $x}", [X], [[1, 2.5], [3, 4]]),
        ("{$each: {v: {$flat: x}, s: {$shape: x}, n: {$rows: x}}}", [X],
         [{"v": [1, 2.5], "s": [2], "n": 2}, {"v": [3, 4], "s": [2], "n": 2}]),
        ("{all: $c, each: {$each: {n: $n}}}", [C, N], {"all": 0.5, "each": [{"n": n} for n in N["data"]]}),
        ("{data: {$b64: s}}", [S], {"data": ["YQo=", "w6k="]}),
        ("{$each: {v: $x}}", [EMPTY], []),
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
    request = run(DialectRequest.parse(memoryview(text + blob), len(text), policy, recover=False))
    body = writer_of(body_for("{s: $s, each: {$each: {v: $s}}}", S).part)
    assert b"".join(request.bound(body).json_pieces()) == b'{"s":["/w=="],"each":[{"v":"/w=="}]}'


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
    request = run(DialectRequest.parse(memoryview(text + values.tobytes()), len(text), TensorPolicy(), recover=False))
    bound = request.bound(writer_of(body_for("{a: {$each: {v: $n, k: 1}}, b: $n}", N).part))
    pieces = list(bound.json_pieces())
    assert max(map(len, pieces)) < 1 << 20
    body = json.loads(b"".join(pieces))
    assert body["b"] == values.tolist()
    assert body["a"][-1] == {"v": 299_999, "k": 1}


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
    request = run(DialectRequest.parse(memoryview(text), None, TensorPolicy(), recover=False))
    with pytest.raises(CodecError, match=words):
        request.bound(writer_of(body.part))


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("{a: $y, x: $x}", {".a": "no such input: there are x; .*"}),
        ("{a: 1}", {"": "input `x` stands nowhere in it"}),
        ("{a: [{$foo: x}], x: $x}", {".a[0].$foo": r"unknown; known are \$each, .*"}),
        ("{$flat: x, b: 1}", {".$flat": "expected `\\$flat` alone in its object", "": "input `x` .*"}),
        ("[{$flat: 3}, $x]", {"[0].$flat": "expected the name of an input: there are x"}),
        ("[{$b64: x}]", {"[0].$b64": "expected an input with `datatype: BYTES`.*"}),
        ("{$each: {$each: $x}}", {".$each.$each": "expected no `\\$each` inside.*",
                                  ".$each": "expected an input in it.*",
                                  "": "input `x` .*"}),
        ("[$x, {$each: 1}]", {"[1].$each": "expected an input in it.*"}),
        ("[$x, .nan, 2020-01-01, 99999999999999999999]",
         {f"[{index}]": "expected what JSON has.*" for index in (1, 2, 3)}),
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
        inputs = {f"x{index}": (DATATYPES["FP32"], shape) for index, shape in enumerate(shapes)}
        return Body({"$each": [f"${name}" for name in inputs]}, inputs, text_or_base64({})).faults

    assert not faults((-1, 4), (3,), None)
    assert faults((2,), (3,)) == {".$each": "expected inputs with the same first dimension: `x0` 2, `x1` 3"}
    assert faults((2,), ()) == {".$each": "input `x1` is a scalar, which has no rows"}
    assert Body("$x", {}, text_or_base64({})).faults == {
        "": "no such input: `inputs` names none; $parameters and $id are known, $$ is the text $"
    }
