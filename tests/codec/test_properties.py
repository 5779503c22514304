"""Laws that hold for every tensor: each test's docstring is its law."""

import base64
import json
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.codec.inference import BytesPolicy, NonFinite, TensorPolicy
from gateway.codec.tensors.datatypes import DATATYPES, Kind
from gateway.errors import CodecError

from .make_pairs import WIRE, blob_of, nested
from .walk import LAYOUTS, backend_json, cut, nearest_bits, parse_request, read_answer

PROFILE = settings.get_profile("the same examples")

NUMERIC = [name for name in DATATYPES if name != "BYTES"]
FLOATS = [name for name in NUMERIC if DATATYPES[name].kind is Kind.FLOAT]
SHAPES = st.lists(st.integers(0, 5), max_size=4).filter(lambda shape: math.prod(shape) <= 200)
DICE = st.integers(0, 2**32).map(random.Random)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def header_of(datatype: str, shape: list[int], blob: bytes) -> bytes:
    parameters = {"binary_data_size": len(blob)}
    return json.dumps(
        {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "parameters": parameters}]}
    ).encode()


def data_of(text: bytes) -> Any:
    """The flat data of the one input, its floats as their text."""
    return json.loads(text, parse_float=str)["inputs"][0]["data"]


def blank(dice: random.Random) -> str:
    return "".join(dice.choices(" \t\r\n", k=dice.choice([0, 0, 0, 1, 3])))


def scrambled(value: Any, dice: random.Random) -> str:
    """*value* as JSON with its keys in random order, blanks anywhere, and letters escaped at random."""
    if isinstance(value, dict):
        members = [f"{scrambled(key, dice)}{blank(dice)}:{scrambled(item, dice)}" for key, item in value.items()]
        dice.shuffle(members)
        text = "{" + ",".join(members) + blank(dice) + "}"
    elif isinstance(value, list):
        text = "[" + ",".join(scrambled(item, dice) for item in value) + blank(dice) + "]"
    elif isinstance(value, Number):
        text = value
    else:
        text = json.dumps(value, ensure_ascii=dice.random() < 0.5)
    return blank(dice) + text + blank(dice)


class Number(str):
    """A number as the text that says it."""


def chunks_of(text: bytes, dice: random.Random) -> list[bytes]:
    """*text* cut at random, sometimes into single bytes."""
    longest = dice.choice([1, 3, 50, 10_000])
    if longest == 1:
        return cut(text, 1)
    chunks = []
    start = 0
    while start < len(text):
        end = start + dice.randint(1, longest)
        chunks.append(text[start:end])
        start = end
    return chunks


def echo(datatype: str, shape: list[int], data: list[Any], dice: random.Random, **parameters: str) -> bytes:
    """The blob that becomes of *data* when a backend sends it back in one of the many ways it may."""
    output = {
        "name": "y",
        "datatype": datatype,
        "shape": shape,
        "data": nested(data, shape) if dice.random() < 0.5 else data,
        "parameters": parameters or None,
    }
    answer = scrambled({"model_name": "m", "outputs": [output], "parameters": {"data": [1]}}, dice)
    (blob,) = read_answer(chunks_of(answer.encode(), dice)).blobs
    return bytes(blob)


@st.composite
def finite_tensors(draw: st.DrawFn, datatype: str) -> tuple[list[int], Any]:
    """A shape and an array of arbitrary bit patterns, finite for floats."""
    shape = draw(SHAPES)
    wire = WIRE[datatype]
    n_bytes = math.prod(shape) * wire.itemsize
    values = np.frombuffer(draw(st.binary(min_size=n_bytes, max_size=n_bytes)), wire).copy()
    if datatype in FLOATS:
        with np.errstate(invalid="ignore"):  # ml_dtypes converts signalling NaN to judge them
            values[~np.isfinite(values)] = -0.0
    return shape, values


def bits_of(values: Any) -> list[int]:
    return [int(bits) for bits in values.view(f"<u{values.itemsize}")]


@pytest.mark.rule("3.3", "4.7")
@pytest.mark.parametrize("datatype", NUMERIC)
@PROFILE
@given(data=st.data(), dice=DICE)
def test_numbers_cross_to_json_and_back_without_a_changed_bit(
    datatype: str, data: st.DataObject, dice: random.Random
) -> None:
    """bits -> JSON is exact under an independent parser, and that JSON echoed in any layout -> the same bits."""
    shape, values = data.draw(finite_tensors(datatype))
    blob = blob_of(values)
    printed = data_of(backend_json(header_of(datatype, shape, blob), blob))
    if datatype == "BOOL":
        assert printed == [bool(value) for value in values]
        expected = bytes(int(value != 0) for value in values)
        printed = [Number(json.dumps(value)) for value in printed]
    elif datatype in FLOATS:
        assert [nearest_bits(text, datatype) for text in printed] == bits_of(values)
        expected = blob
    else:
        assert printed == [int(value) for value in values]
        assert all(type(value) is int for value in printed)
        expected = blob
    assert echo(datatype, shape, [Number(value) for value in printed], dice) == expected


@pytest.mark.rule("3.3")
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@PROFILE
@given(data=st.data())
def test_float_text_is_as_short_as_any_that_reads_back(datatype: str, data: st.DataObject) -> None:
    """No decimal with fewer digits reads back to the same bits."""
    _, values = data.draw(finite_tensors(datatype))
    blob = blob_of(values)
    for text, value in zip(data_of(backend_json(header_of(datatype, [len(values)], blob), blob)), values, strict=True):
        shortest = np.format_float_scientific(value, unique=True, trim="-")
        assert digits(text) <= digits(shortest), (text, shortest)


def digits(text: str) -> int:
    return len(text.lower().split("e")[0].replace("-", "").replace(".", "").strip("0"))


@pytest.mark.parametrize("datatype", FLOATS)
@PROFILE
@given(value=st.floats(allow_nan=False, allow_infinity=False), dice=DICE)
def test_float64_text_in_an_answer_is_rounded_once(datatype: str, value: float, dice: random.Random) -> None:
    """The shortest text of any float64 becomes the nearest float of the datatype, or is refused as too large."""
    bits = nearest_bits(repr(value), datatype)
    exponent_bits, fraction_bits = LAYOUTS[datatype]
    infinity = (2**exponent_bits - 1) << fraction_bits
    if bits & infinity == infinity:
        with pytest.raises(CodecError, match=f"output 'y'.*{datatype} cannot hold"):
            only_flat(datatype, repr(value))
    else:
        expected = bits.to_bytes(WIRE[datatype].itemsize, "little")
        assert echo(datatype, [1], [Number(repr(value))], dice) == expected


def only_flat(datatype: str, text: str) -> None:
    answer = f'{{"outputs":[{{"name":"y","datatype":"{datatype}","shape":[1],"data":[{text}]}}]}}'
    read_answer([answer.encode()])


@pytest.mark.rule("3.5", "4.8")
@PROFILE
@given(shape=SHAPES, data=st.data(), dice=DICE)
def test_text_crosses_to_json_and_back_unchanged(shape: list[int], data: st.DataObject, dice: random.Random) -> None:
    """BYTES of any Unicode text -> JSON strings of the same text -> the same bytes, escaped or not."""
    n_elements = math.prod(shape)
    texts = data.draw(st.lists(UNICODE, min_size=n_elements, max_size=n_elements))
    blob = blob_of(texts)
    assert data_of(backend_json(header_of("BYTES", shape, blob), blob)) == texts
    assert echo("BYTES", shape, texts, dice) == blob


@pytest.mark.rule("3.5", "4.8")
@PROFILE
@given(shape=SHAPES, data=st.data(), dice=DICE)
def test_octets_cross_in_base64_and_back_unchanged(shape: list[int], data: st.DataObject, dice: random.Random) -> None:
    """BYTES of any bytes under `bytes: base64` -> base64 that says so -> the same bytes."""
    n_elements = math.prod(shape)
    octets = data.draw(st.lists(st.binary(max_size=40), min_size=n_elements, max_size=n_elements))
    blob = blob_of(octets)
    text = backend_json(header_of("BYTES", shape, blob), blob, TensorPolicy(bytes=BytesPolicy.BASE64))
    assert json.loads(text)["inputs"][0]["parameters"] == {"content_type": "base64"}
    encoded = data_of(text)
    assert [base64.b64decode(element, validate=True) for element in encoded] == octets
    assert echo("BYTES", shape, encoded, dice, content_type="base64") == blob


@pytest.mark.rule("3.5")
@PROFILE
@given(octets=st.lists(st.binary(max_size=12), min_size=1, max_size=5))
def test_octets_that_are_no_text_are_refused_by_number_and_all_others_pass(octets: list[bytes]) -> None:
    """Under `bytes: utf8` a tensor is refused exactly if Python refuses an element, and the first such is named."""
    broken = [index for index, octet in enumerate(octets) if not is_utf8(octet)]
    blob = blob_of(octets)
    header = header_of("BYTES", [len(octets)], blob)
    if broken:
        with pytest.raises(CodecError, match=f"input 'x'.*element {broken[0]} is not UTF-8"):
            backend_json(header, blob)
    else:
        assert data_of(backend_json(header, blob)) == [octet.decode() for octet in octets]


def is_utf8(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.rule("3.4")
@pytest.mark.parametrize("datatype", FLOATS)
@pytest.mark.parametrize("policy", NonFinite)
@PROFILE
@given(data=st.data())
def test_nonfinite_values_follow_the_policy_and_are_counted(
    policy: NonFinite, datatype: str, data: st.DataObject
) -> None:
    """NaN and infinities are refused by number, or sent as the policy says and counted; never changed silently."""
    wire = WIRE[datatype]
    patterns = st.one_of(st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.5]), st.floats(-4, 4, width=16))
    values = np.array(data.draw(st.lists(patterns, min_size=1, max_size=20)), "f8").astype(wire)
    wide = values.astype("f8")
    blob = blob_of(values)
    header = header_of(datatype, [len(values)], blob)
    refused = ~np.isfinite(wide) if policy is NonFinite.REJECT else np.isinf(wide)
    if policy is not NonFinite.LITERAL and refused.any():
        with pytest.raises(CodecError, match=f"input 'x'.*element {int(np.argmax(refused))} is "):
            backend_json(header, blob, TensorPolicy(policy))
        return
    request = parse_request(header + blob, len(header), TensorPolicy(policy))
    assert request is not None
    assert request.nonfinite == int(np.count_nonzero(~np.isfinite(wide)))
    printed = json.loads(b"".join(request.json_pieces()))["inputs"][0]["data"]
    for text, value in zip(printed, wide, strict=True):
        if math.isnan(value):
            assert text is None if policy is NonFinite.AS_NULL else math.isnan(text)
        else:
            assert np.float64(text).astype(wire).tobytes() == np.float64(value).astype(wire).tobytes()


@PROFILE
@given(datatype=st.sampled_from(list(DATATYPES)), shape=SHAPES, size=st.integers(0, 400), blob=st.binary(max_size=400))
def test_any_declaration_over_any_bytes_is_a_request_or_refused(
    datatype: str, shape: list[int], size: int, blob: bytes
) -> None:
    """A request is accepted only if size, shape and blob agree; otherwise it is a CodecError that names it."""
    header = json.dumps(
        {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}]}
    ).encode()
    try:
        request = parse_request(header + blob, len(header), TensorPolicy(NonFinite.LITERAL, BytesPolicy.BASE64))
    except CodecError as error:
        words = str(error)
        request = None
    else:
        words = ""
    if request is None:
        assert "'x'" in words or "left over" in words
        return
    assert request is not None and size == len(blob)
    assert len(data_of(b"".join(request.json_pieces()))) == math.prod(shape)


@PROFILE
@given(
    datatype=st.sampled_from(list(DATATYPES)), text=st.text('[],-01.eENatrufls"\\ud8/\n {}:', max_size=40), dice=DICE
)
def test_any_text_as_data_is_refused_or_what_json_says(datatype: str, text: str, dice: random.Random) -> None:
    """Whatever stands in `data` is a CodecError, or JSON to Python too with as many leaves as the shape asks for."""
    data = f"[{text}]" if dice.random() < 0.8 else text
    answer = f'{{"outputs":[{{"name":"y","datatype":"{datatype}","shape":[2],"data":{data}}}]}}'
    try:
        (blob,) = read_answer(chunks_of(answer.encode(), dice)).blobs
    except CodecError:
        return
    leaves = flat(json.loads(answer)["outputs"][0]["data"])
    assert len(leaves) == 2
    if datatype != "BYTES":
        assert len(blob) == 2 * WIRE[datatype].itemsize


def flat(value: Any) -> list[Any]:
    return [leaf for item in value for leaf in flat(item)] if isinstance(value, list) else [value]
