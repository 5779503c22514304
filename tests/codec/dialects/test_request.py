"""Requests in other dialects: what is accepted, what the backend gets, what is refused before anything is sent."""

import base64
import json
import math
import random
import struct
from collections.abc import Generator, Iterable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription, v2_metadata
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import BytesPolicy, HeaderLimits, NonFinite, TensorPolicy
from gateway.codec.json.members import HELD_PER_BYTE
from gateway.codec.tensors.datatypes import DATATYPES, Kind
from gateway.codec.tensors.nested_printing import FEW_DIMENSIONS, FEW_ELEMENTS
from gateway.codec.v2.raw import read_raw
from gateway.errors import CodecError, TooLargeError
from tests.codec.dialects.driving import (
    MLFLOW,
    WRITERS,
    Writer,
    json_or_error,
    mlflow_dataframe_split,
    mlflow_inputs,
    mlflow_instances,
    parse_request,
    parsing,
    tensorflow_columnar,
    tensorflow_row,
)
from tests.codec.make_pairs import WIRE, blob_of, nested
from tests.codec.test_properties import NUMERIC, PROFILE, SHAPES, UNICODE, bits_of, finite_tensors
from tests.codec.v2.random_messages import damage, random_request
from tests.codec.v2.requests import entry, header_of
from tests.codec.walk import exhaust
from tests.codec.walk import parsing as parsing_v2
from tests.steps import run

DEFAULT = TensorPolicy()
LITERAL = TensorPolicy(nonfinite=NonFinite.LITERAL)


def request_of(header: bytes, blobs: bytes = b"", policy: TensorPolicy = DEFAULT, **options: Any) -> DialectRequest:
    length = options.pop("length", len(header))
    if not options:
        return parse_request(header + blobs, length, policy)
    return run(parsing(header + blobs, length, policy, recover=True, **options))


def json_request(*inputs: dict[str, Any], policy: TensorPolicy = DEFAULT, **top: Any) -> DialectRequest:
    return request_of(header_of(*inputs, **top), policy=policy, length=None)


def json_input(name: str, datatype: str, shape: list[int], data: Any, **members: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **members}


def body_of(request: DialectRequest, writer: Writer) -> Any:
    text = b"".join(writer(request).json_pieces())
    assert writer(request).small_json in (text, None)
    assert run(writer(request).json_bytes()) == len(text)
    return json.loads(text)


X = json_input("x", "FP32", [2, 2], [[1, 2], [3, 4.5]])
N = json_input("n", "INT64", [2], [2**63 - 1, -5])
S = json_input("s", "BYTES", [2, 1], ["a\n", "é"])


# the forms


@pytest.mark.parametrize(
    ("writer", "inputs", "body"),
    [
        (tensorflow_columnar(""), [X, N], {"inputs": {"x": [[1, 2], [3, 4.5]], "n": [2**63 - 1, -5]}}),
        (tensorflow_columnar("sig"), [S], {"signature_name": "sig", "inputs": {"s": [["a\n"], ["é"]]}}),
        (tensorflow_columnar(""), [json_input("c", "FP64", [], [2.5])], {"inputs": {"c": 2.5}}),
        (tensorflow_columnar(""), [], {"inputs": {}}),
        (tensorflow_row(""), [X], {"instances": [[1, 2], [3, 4.5]]}),
        (
            tensorflow_row("sig"),
            [X, S],
            {"signature_name": "sig", "instances": [{"x": [1, 2], "s": ["a\n"]}, {"x": [3, 4.5], "s": ["é"]}]},
        ),
        (mlflow_inputs(False), [X], {"inputs": {"x": [[1, 2], [3, 4.5]]}, "params": {"k": [1, "v"]}}),
        (mlflow_inputs(True), [X], {"inputs": [[1, 2], [3, 4.5]], "params": {"k": [1, "v"]}}),
        (mlflow_instances(), [X], {"instances": [[1, 2], [3, 4.5]], "params": {"k": [1, "v"]}}),
        (
            mlflow_dataframe_split(),
            [N, S],
            {
                "dataframe_split": {"columns": ["n", "s"], "data": [[2**63 - 1, "a\n"], [-5, "é"]]},
                "params": {"k": [1, "v"]},
            },
        ),
    ],
)
def test_each_form_says_the_inputs(writer: Writer, inputs: list[Any], body: Any) -> None:
    parameters = {"k": [1, "v"]} if "params" in body else {}
    assert body_of(json_request(*inputs, parameters={"binary_data_output": True, **parameters}), writer) == body


@pytest.mark.parametrize("name", ["$x", "$$", "$each", "id", "$id", "", "é"])
def test_inputs_and_signatures_may_have_any_names(name: str) -> None:
    one, two = json_input(name, "FP32", [1], [1]), json_input("other", "FP32", [1], [2])
    assert body_of(json_request(one), tensorflow_columnar("$sig")) == {"signature_name": "$sig", "inputs": {name: [1]}}
    assert body_of(json_request(one, two), tensorflow_row("")) == {"instances": [{name: 1, "other": 2}]}
    table = {"columns": [name, "other"], "data": [[1, 2]]}
    assert body_of(json_request(one, two), mlflow_dataframe_split()) == {"dataframe_split": table}


def test_only_a_request_with_parameters_has_params() -> None:
    for parameters in (None, {}, {"binary_data_output": False}):
        assert set(body_of(json_request(X, parameters=parameters), mlflow_inputs(False))) == {"inputs"}


FORMS = [tensorflow_columnar(""), tensorflow_row(""), mlflow_inputs(False), mlflow_instances()]


@pytest.mark.parametrize("datatype", NUMERIC)
@PROFILE
@given(data=st.data(), in_json=st.booleans(), is_flat=st.booleans())
def test_numbers_reach_the_backend_in_their_lists_without_a_changed_bit(
    datatype: str, data: st.DataObject, in_json: bool, is_flat: bool
) -> None:
    """Binary or in JSON, nested or flat -> nested JSON that Python reads to the same bits."""
    shape, values = data.draw(finite_tensors(datatype))
    if math.prod(shape) == 0:
        return
    exact = [value.item() if datatype != "BOOL" else bool(value) for value in values]
    if datatype in ("FP16", "BF16", "FP32"):
        exact = [float(value) for value in values]
    if in_json:
        request = json_request(json_input("x", datatype, shape, exact if is_flat else nested(exact, shape)))
    else:
        blob = blob_of(values)
        request = request_of(header_of(entry(datatype=datatype, shape=shape, size=len(blob))), blob)
    (tensor,) = request.inputs
    if datatype == "BOOL":
        assert [bool(byte) for byte in tensor.blob] == exact
    else:
        assert bits_of(np.frombuffer(tensor.blob, WIRE[datatype])) == bits_of(values)
    printed = body_of(request, tensorflow_columnar(""))["inputs"]["x"]
    read = np.array(printed, object).reshape(-1)
    if datatype in ("FP16", "BF16", "FP32", "FP64"):
        back = np.array(read, "f8").astype(WIRE[datatype])
        assert bits_of(back) == bits_of(values)
    else:
        assert read.tolist() == exact
    if shape:
        assert np.array(printed, object).shape == tuple(shape)
        assert body_of(request, tensorflow_row(""))["instances"] == printed


@PROFILE
@given(shape=SHAPES, data=st.data(), in_json=st.booleans())
def test_text_reaches_the_backend_in_its_lists(shape: list[int], data: st.DataObject, in_json: bool) -> None:
    n_elements = math.prod(shape)
    if n_elements == 0:
        return
    texts = data.draw(st.lists(UNICODE, min_size=n_elements, max_size=n_elements))
    if in_json:
        request = json_request(json_input("x", "BYTES", shape, nested(texts, shape) if shape else texts))
    else:
        blob = blob_of(texts)
        request = request_of(header_of(entry(datatype="BYTES", shape=shape, size=len(blob))), blob)
    expected = nested(texts, shape) if shape else texts[0]
    assert body_of(request, tensorflow_columnar(""))["inputs"]["x"] == expected
    assert body_of(request, mlflow_inputs(True))["inputs"] == expected


# octets


def test_octets_are_b64_objects_for_tensorflow() -> None:
    blob = blob_of([b"\xff\x00", b"abc"])
    header = header_of(entry("s", "BYTES", [2], len(blob)), entry("t_bytes", "BYTES", [1], 5), N)
    request = request_of(header, blob + struct.pack("<I", 1) + b"x")
    objects = [{"b64": "/wA="}, {"b64": "YWJj"}]
    body = body_of(request, tensorflow_columnar(""))
    assert body["inputs"] == {"s": objects, "t_bytes": [{"b64": "eA=="}], "n": N["data"]}


@pytest.mark.parametrize("writer", FORMS[2:])
def test_octets_are_refused_by_element_for_mlflow_unless_the_policy_is_base64(writer: Writer) -> None:
    blob = blob_of([b"abc", b"\xff\x00"])
    header = header_of(entry("s", "BYTES", [2], len(blob)))
    with pytest.raises(CodecError, match="input 's'.*element 1 is not UTF-8"):
        writer(request_of(header, blob))
    body = body_of(request_of(header, blob, TensorPolicy(bytes=BytesPolicy.BASE64)), mlflow_instances())
    assert body == {"instances": ["YWJj", "/wA="]}


@pytest.mark.parametrize("policy", BytesPolicy)
def test_the_way_out_for_octets_is_the_key_that_forbids_them(policy: BytesPolicy) -> None:
    blob = blob_of([b"\xff"])
    request = request_of(header_of(entry("s", "BYTES", [1], len(blob))), blob, TensorPolicy(bytes=policy))
    fault = "input 's' (BYTES, shape [1]): element 0 is not UTF-8 at byte 0, and JSON has only text; set "

    def answer_of(encoding: str) -> bytes | str:
        tensor = TensorDescription(DATATYPES["BYTES"], encoding=encoding)
        return json_or_error(request, lambda request: MLFLOW.write(request, ModelDescription({"s": tensor})))

    assert answer_of("text") == f"{fault}`encoding: base64` for this input in `models` if it reads base64"
    is_sent = policy is BytesPolicy.BASE64
    assert answer_of("") == (
        b'{"inputs":{"s":["/w=="]}}' if is_sent else f"{fault}`bytes: base64` for this backend if it reads base64"
    )
    assert answer_of("base64") == b'{"inputs":{"s":["/w=="]}}'


def test_policy_base64_says_octets_of_every_binary_input() -> None:
    policy = TensorPolicy(bytes=BytesPolicy.BASE64)
    blob = blob_of(["a"])
    request = request_of(header_of(entry("b", "BYTES", [1], len(blob)), S), blob, policy)
    assert body_of(request, mlflow_inputs(False))["inputs"] == {"b": ["YQ=="], "s": [["a\n"], ["é"]]}
    assert body_of(request, tensorflow_columnar(""))["inputs"]["b"] == [{"b64": "YQ=="}]


def test_json_strings_that_say_base64_are_decoded() -> None:
    said = json_input("s", "BYTES", [1], ["/wA="], parameters={"content_type": "base64"})
    request = json_request(said)
    assert bytes(request.inputs[0].blob) == blob_of([b"\xff\x00"])
    assert body_of(request, tensorflow_columnar(""))["inputs"]["s"] == [{"b64": "/wA="}]
    said["data"] = ["no base64"]
    with pytest.raises(CodecError, match="input 's'.*element 0 is not base64"):
        json_request(said)


@pytest.mark.parametrize("policy", BytesPolicy)
@given(data=st.data(), source=st.sampled_from(["binary", "text", "base64"]), name=st.sampled_from(["s", "s_bytes"]))
@PROFILE
def test_strings_reach_the_backend_however_they_came_or_are_refused(
    policy: BytesPolicy, data: st.DataObject, source: str, name: str
) -> None:
    values = data.draw(st.lists(UNICODE.map(str.encode) if source == "text" else st.binary(max_size=4), min_size=1))
    if source == "binary":
        blob = blob_of(values)
        request = request_of(
            header_of(entry(name, "BYTES", [len(values)], len(blob))), blob, TensorPolicy(bytes=policy)
        )
    else:
        texts = [value.decode() if source == "text" else base64.b64encode(value).decode() for value in values]
        parameters = {"content_type": "base64"} if source == "base64" else {}
        said = json_input(name, "BYTES", [len(values)], texts, parameters=parameters)
        request = json_request(said, policy=TensorPolicy(bytes=policy))
    for dialect, writer in (("tensorflow", tensorflow_row("")), ("mlflow", mlflow_instances())):
        try:
            strings = body_of(request, writer)["instances"]
        except CodecError:
            assert (dialect, policy) == ("mlflow", BytesPolicy.UTF8)
            assert not all(map(is_text, values))
            continue
        if dialect == "mlflow" and policy is BytesPolicy.BASE64 and source != "text":
            strings = [{"b64": string} for string in strings]
        assert [octets_of(string) for string in strings] == values


def is_text(value: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        value.decode()
        return True
    return False


def octets_of(string: Any) -> bytes:
    """The element of BYTES that *string*, as TensorFlow Serving reads it, is."""
    return base64.b64decode(string["b64"], validate=True) if isinstance(string, dict) else string.encode()


# what is not finite


@pytest.mark.parametrize("in_json", [True, False])
def test_nonfinite_values_follow_the_policy_in_every_input(in_json: bool) -> None:
    def parsed(policy: TensorPolicy, *values: float) -> DialectRequest:
        if in_json:
            return json_request(json_input("x", "FP32", [len(values)], list(values)), policy=policy)
        return request_of(
            header_of(entry(shape=[len(values)], size=4 * len(values))), blob_of(np.array(values, "<f4")), policy
        )

    with pytest.raises(CodecError, match="input 'x'.*element 1 is nan.*`nonfinite` is reject"):
        parsed(DEFAULT, 1.0, math.nan)
    with pytest.raises(CodecError, match="element 0 is inf"):
        parsed(TensorPolicy(nonfinite=NonFinite.AS_NULL), math.inf)
    request = parsed(TensorPolicy(nonfinite=NonFinite.AS_NULL), 1.0, math.nan)
    assert body_of(request, tensorflow_row(""))["instances"] == [1.0, None]
    assert request.nonfinite == 1
    request = parsed(LITERAL, -math.inf, math.nan, 2.0)
    assert b"".join(tensorflow_row("")(request).json_pieces()) == b'{"instances":[-Infinity,NaN,2.0]}'
    assert request.nonfinite == 2


def test_literals_stand_in_rows_of_several_inputs_too() -> None:
    other = json_input("y", "FP64", [2, 1], [math.nan, 1.5])
    request = json_request(json_input("x", "FP16", [2], [1.5, -math.inf]), other, policy=LITERAL)
    text = b"".join(tensorflow_row("")(request).json_pieces())
    assert text == b'{"instances":[{"x":1.5,"y":[NaN]},{"x":-Infinity,"y":[1.5]}]}'


# what a form cannot say


EMPTY = json_input("e", "FP32", [0, 4], [])
SCALAR = json_input("c", "FP32", [], [1])


@pytest.mark.parametrize(
    ("writer", "inputs", "words"),
    [
        *((writer, [EMPTY], r"input 'e' \(FP32, shape \[0, 4\]\): .*empty") for writer in FORMS),
        (tensorflow_row(""), [SCALAR], "input 'c' .*a scalar has no rows"),
        (tensorflow_row(""), [X, SCALAR], "input 'c' .*a scalar has no rows"),
        (mlflow_instances(), [SCALAR], "a scalar has no rows"),
        (tensorflow_row(""), [X, json_input("y", "FP32", [3], [1, 2, 3])], "input 'y' .*expected 2 rows, as input 'x'"),
        (tensorflow_row(""), [], "without inputs"),
        (mlflow_inputs(True), [X, N], "no name; the request has 2"),
        (mlflow_dataframe_split(), [X], r"input 'x' .*shape \[n\] or \[n, 1\]"),
        (mlflow_dataframe_split(), [SCALAR], r"shape \[n\] or \[n, 1\]"),
        (mlflow_dataframe_split(), [N, json_input("y", "FP32", [3], [1, 2, 3])], "expected 2 rows"),
    ],
)
def test_what_a_form_cannot_say_is_refused_before_anything_is_made(
    writer: Writer, inputs: list[Any], words: str
) -> None:
    with pytest.raises(CodecError, match=words):
        writer(json_request(*inputs))


@pytest.mark.parametrize("shape", [[0], [2, 0], [1, 3, 0]])
def test_empty_tensor_whose_lists_say_its_shape_is_sent(shape: list[int]) -> None:
    expected = np.zeros(shape).tolist()
    for request in (
        json_request(json_input("x", "INT8", shape, [])),
        json_request(json_input("x", "INT8", shape, expected)),
        request_of(header_of(entry(datatype="INT8", shape=shape, size=0))),
        request_of(header_of(entry(datatype="BYTES", shape=shape, size=0))),
    ):
        assert body_of(request, tensorflow_columnar("")) == {"inputs": {"x": expected}}
        assert body_of(request, tensorflow_row("")) == {"instances": expected}


# what is refused while it is parsed


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([json_input("x", "FP32", [2], [1])], r"input 'x' \(FP32, shape \[2\]\): .*expected 2 elements, got 1"),
        ([json_input("x", "FP32", [2], [1, 2, 3])], "input 'x'.*expected 2 elements, got"),
        ([json_input("x", "FP32", [2, 2], [[1, 2, 3], [4]])], "input 'x'.*nested, but not like the shape"),
        ([json_input("x", "UINT8", [1], [256])], "input 'x'.*element 0"),
        ([json_input("x", "INT32", [1], [1.5])], "input 'x'.*element 0"),
        ([json_input("x", "BYTES", [1], [7])], "input 'x'.*element 0.*string"),
        ([json_input("x", "FP32", [1], "a")], "input 'x'.*data must be an array"),
        ([json_input("x", "FP32", [2**40, 2**40], [1])], "input 'x'.*expected more than 2.64 elements"),
        ([json_input("x", "FP32", [2**30], [1])], "input 'x'.*expected 1073741824 elements, got 3 bytes of JSON"),
        ([json_input("x", "FLOAT", [1], [1])], "input 'x': datatype must be one of"),
        ([json_input("x", "fp32", [1], [1])], 'upper case, got "fp32"'),
        ([json_input("x", "FP32", [-1], [1])], "input 'x': shape must be"),
        ([{"datatype": "FP32", "shape": [1], "data": [1]}], "input 0: name must be a string, got none"),
        ([X, X], "input 'x' is given more than once"),
        ([{"name": "x", "parameters": {"shared_memory_region": "r"}}], "input 'x': .*shared memory"),
        ([{"name": "x"}], "got none of them"),
    ],
)
def test_inputs_that_are_not_what_they_say_are_refused_by_name(inputs: list[Any], words: str) -> None:
    with pytest.raises(CodecError, match=words):
        json_request(*inputs)


@pytest.mark.parametrize(
    ("body", "length", "words"),
    [
        (b"", None, "empty request body"),
        (b"[]", None, "expected a JSON object"),
        (b"{}", None, "no `inputs` array"),
        (b'{"inputs":[', None, "cut off"),
        (b'{"inputs":[]}', 20, "the whole body has 13 bytes"),
        (b'{"inputs":[]}abc', 13, "3 bytes left over"),
        (b'{"inputs":[]}abc', None, "header Inference-Header-Content-Length is missing"),
    ],
)
def test_bodies_that_are_no_request_are_refused(body: bytes, length: int | None, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        request_of(body, length=length)


@pytest.mark.parametrize("seed", range(8))
def test_what_v2_refuses_is_refused_in_the_same_words(seed: int) -> None:
    """Damaged requests are a request or a `CodecError`, in all forms; without JSON inputs whenever they are in V2."""
    dice = random.Random(seed)
    n_read = n_refused = 0
    for _ in range(300):
        body, header_length = random_request(dice, json_share=0.2)
        changed = bytearray(body)
        for _ in range(dice.randrange(3)):
            damage(changed, dice)
        policy = TensorPolicy(nonfinite=NonFinite.LITERAL, bytes=BytesPolicy.BASE64)
        length = None if dice.random() < 0.2 else header_length
        in_v2 = refusal(parsing_v2(memoryview(changed), length, policy, recover=True))
        words = refusal(steps := kept(parsing(changed, length, policy, recover=True)))
        if words is not None:
            n_refused += 1
            assert in_v2 == words or b'"data"' in changed or length is None  # V2 does not judge all JSON
            continue
        n_read += 1
        request = steps.value
        assert in_v2 is None or request.in_json
        for writer in (*FORMS, mlflow_dataframe_split()):
            with suppress(CodecError):
                json.loads(b"".join(writer(request).json_pieces()))
    assert n_read > 50
    assert n_refused > 30


class kept:  # noqa: N801
    """Steps that keep their value."""

    def __init__(self, steps: Generator[None, None, DialectRequest]) -> None:
        self.value: DialectRequest
        self._steps = steps

    def __iter__(self) -> Generator[None, None, None]:
        self.value = yield from self._steps


def refusal(steps: Iterable[None]) -> str | None:
    """The words with which *steps* end; None if they end well."""
    try:
        exhaust(steps)
    except CodecError as error:
        return str(error)
    return None


def test_limits_hold() -> None:
    with pytest.raises(TooLargeError, match=r"limits\.header"):
        json_request_with(HeaderLimits(max_header_bytes=100), "x" * 200)
    with pytest.raises(CodecError, match=r"limits\.tensors"):
        request_of(header_of(X, N), limits=HeaderLimits(max_tensors=1), length=None)


def json_request_with(limits: HeaderLimits, request_id: str) -> DialectRequest:
    return request_of(header_of(X, id=request_id), limits=limits, length=None)


# what else is known of a request


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"shared_memory_region": "r", "shared_memory_byte_size": 4}, "output 'y': .*shared memory"),
        ({"classification": 3}, "output 'y': .*classification"),
        ({"binary_data": True, "classification": 3}, "output 'y': .*classification"),
    ],
)
def test_outputs_that_only_a_server_of_v2_could_give_are_refused_by_name(parameters: Any, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        json_request(X, outputs=[{"name": "z"}, {"name": "y", "parameters": parameters}])
    assert json_request(X, outputs=[{"name": "y", "parameters": dict.fromkeys(parameters)}]).selection.named


def test_request_says_what_the_client_asked_for() -> None:
    outputs = [{"name": "y", "parameters": {"binary_data": True}}, {"name": "z"}]
    header = header_of(N, entry(datatype="FP16", size=8), id="7", outputs=outputs, parameters={"a": math.nan})
    request = request_of(header, bytes(8), length=None)
    assert [tensor.name for tensor in request.inputs] == ["n", "x"]
    assert request.datatypes == ["FP16"]
    assert request.header_recovered
    assert request.id == b'"7"'
    assert dict(request.selection.named) == {"y": True, "z": False}
    assert request.parameters == {"a": b"NaN"}
    assert not json_request(X, id="").id


def test_binary_inputs_are_views_of_the_body() -> None:
    body = header_of(entry()) + bytes(range(16))
    request = run(parsing(body, len(body) - 16))
    assert request.inputs[0].blob.obj is body


def test_memory_is_asked_for_before_it_is_taken() -> None:
    asked: list[int] = []
    header = header_of(X, S)
    request = request_of(header, reserve=asked.append)
    assert asked[0] <= len(header) * HELD_PER_BYTE
    assert asked[1] == 16
    assert asked[2] >= len(request.inputs[1].blob)

    def refuse(n_bytes: int) -> None:
        if n_bytes == 16:
            raise MemoryError

    with pytest.raises(MemoryError):
        request_of(header, reserve=refuse)


def test_raw_body_is_the_only_input() -> None:
    def raw(body: bytes, datatype: str, shape: tuple[int, ...]) -> DialectRequest:
        described = ModelDescription({"x": TensorDescription(DATATYPES[datatype], shape)})
        return run(DialectRequest.parse(read_raw(memoryview(body), v2_metadata("m", described)), DEFAULT))

    request = raw(struct.pack("<4f", 1, 2, 3, 4), "FP32", (-1, 2))
    assert body_of(request, tensorflow_row("")) == {"instances": [[1, 2], [3, 4]]}
    assert request.selection.binary_by_default
    assert request.datatypes == ["FP32"]
    assert body_of(raw(b"text", "BYTES", (1,)), tensorflow_row("")) == {"instances": ["text"]}
    with pytest.raises(CodecError, match="expected a multiple of 8 bytes, got 3"):
        raw(b"abc", "FP32", (-1, 2))


def test_steps_and_pieces_are_bounded_for_large_and_for_many_inputs() -> None:
    inputs = [json_input(f"x{index}", "FP32", [1, 1], [[0.5]]) for index in range(1000)]
    inputs.append(json_input("long", "FP64", [1, 40_000], [[0.123456789] * 40_000]))
    inputs.append(json_input("tall", "BYTES", [40_000, 1], [["some text"]] * 40_000))
    body = header_of(*inputs)
    steps = parsing(body)
    n_steps = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            request = stop.value
            break
        n_steps += 1
    assert n_steps > len(body) / 256 / 1024
    pieces = list(tensorflow_columnar("")(request).json_pieces())
    assert max(map(len, pieces)) <= 1024 * 1024
    assert json.loads(b"".join(pieces))["inputs"] == {entry["name"]: entry["data"] for entry in inputs}


def test_small_bodies_are_those_whose_json_is_small() -> None:
    assert tensorflow_row("")(json_request(X)).small_json
    deep = json_request(json_input("x", "UINT8", [2000, *[1] * 40], [1] * 2000))
    assert tensorflow_row("")(deep).small_json is None


@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("shape", [(FEW_ELEMENTS,), (1, 16), (2, 3, 4), (5, 1), (1,) * FEW_DIMENSIONS, (1,) * 40])
def test_few_numbers_are_printed_as_many_are(datatype: str, shape: tuple[int, ...]) -> None:
    """Many are the same rows again and again, until they are more than few."""
    is_float = DATATYPES[datatype].kind is Kind.FLOAT
    blob = blob_of((np.arange(math.prod(shape)) * (0.1 if is_float else 1)).astype(WIRE[datatype]))
    times = FEW_ELEMENTS // math.prod(shape) + 1

    def printed(times: int) -> list[str]:
        many = entry("x", datatype, [times * shape[0], *shape[1:]], times * len(blob))
        request = request_of(header_of(many), blob * times)
        texts = [json_or_error(request, writer) for writer in WRITERS]
        # errors name the shape, and tables of 8 bits leave blanks
        return [text.partition("): ")[2] if isinstance(text, str) else text.decode().replace(" ", "") for text in texts]

    assert [repeated(text, times) for text in printed(1)] == printed(times)


def repeated(text: str, times: int) -> str:
    """*text*, in which all rows come so many *times*; an error stays as it is."""
    if not text.startswith("{"):
        return text
    start, end = text.index("[", text.find('"data"') + 1), text.rindex("]")
    return text[: start + 1] + ",".join([text[start + 1 : end]] * times) + text[end:]
