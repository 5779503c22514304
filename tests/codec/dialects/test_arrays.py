"""Tensors as numpy arrays and back, and JSON in which arrays stand."""

import enum
import json
import math
from collections import OrderedDict, UserDict
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.dialects.arrays import (
    OBJECT_BYTES,
    array_bytes,
    array_of,
    datatype_of,
    json_text,
    made_outputs,
    parsed_json,
    request_of,
)
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.output import Output
from gateway.codec.inference import NonFinite, OutputSelection, Tensor
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.errors import CodecError

Array = npt.NDArray[Any]

NUMBERS = {
    "BOOL": np.array([True, False]),
    "UINT8": np.array([0, 255], np.uint8),
    "UINT16": np.array([0, 65535], np.uint16),
    "UINT32": np.array([0, 2**32 - 1], np.uint32),
    "UINT64": np.array([0, 2**64 - 1], np.uint64),
    "INT8": np.array([-128, 127], np.int8),
    "INT16": np.array([-(2**15), 2**15 - 1], np.int16),
    "INT32": np.array([-(2**31), 2**31 - 1], np.int32),
    "INT64": np.array([-(2**63), 2**63 - 1], np.int64),
    "FP16": np.array([0.1, 65504], np.float16),
    "FP32": np.array([0.1, 3.4e38], np.float32),
    "FP64": np.array([0.1, 1.7e308], np.float64),
}


def tensor_of(array: Array, datatype: str, before: int = 0) -> Tensor:
    """The tensor of *array*, at so many bytes of a body."""
    body = bytearray(before) + array.tobytes()
    return Tensor("x", DATATYPES[datatype], array.shape, memoryview(body)[before:])


def blob_of(*elements: bytes) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in elements)


# Inputs


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("name", NUMBERS)
def test_arrays_have_the_values_of_tensors_and_cannot_be_written(name: str, before: int) -> None:
    array = NUMBERS[name].reshape(2, 1)
    made = array_of(tensor_of(array, name, before))
    assert (made.dtype, made.shape, made.tolist()) == (array.dtype, (2, 1), array.tolist())
    assert made.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        made[0] = 1


def test_an_aligned_array_is_a_view_of_the_body() -> None:
    tensor = tensor_of(np.zeros(4), "FP64")
    assert np.shares_memory(array_of(tensor), np.frombuffer(tensor.blob, np.uint8))


def test_any_byte_but_zero_is_true() -> None:
    made = array_of(tensor_of(np.array([0, 1, 2, 255], np.uint8), "BOOL"))
    assert made.dtype == np.bool_
    assert made.tolist() == [False, True, True, True]


def test_bf16_is_fp32() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    made = array_of(tensor_of(bits, "BF16"))
    assert made.dtype == np.float32
    assert np.array_equal(made, bits.view(ml_dtypes.bfloat16).astype(np.float32), equal_nan=True)


def test_bytes_are_objects() -> None:
    tensor = Tensor("t", DATATYPES["BYTES"], (2, 1), memoryview(blob_of(b"a\0", b"\xff")))
    made = array_of(tensor)
    assert made.dtype == object
    assert made.tolist() == [[b"a\0"], [b"\xff"]]
    assert not made.flags.writeable
    assert array_bytes([tensor]) == len(tensor.blob) + 2 * OBJECT_BYTES


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1, 1)])
def test_shapes_stay(shape: tuple[int, ...]) -> None:
    for name, element in {"FP32": np.float32(1), "BOOL": np.True_}.items():
        assert array_of(tensor_of(np.full(shape, element), name)).shape == shape
    n_elements = 0 if 0 in shape else 1
    assert array_of(Tensor("t", DATATYPES["BYTES"], shape, memoryview(blob_of(*[b"a"] * n_elements)))).shape == shape


def test_what_numpy_cannot_have_is_refused() -> None:
    with pytest.raises(CodecError, match="input 'x'.*no array of numpy's"):
        array_of(Tensor("x", DATATYPES["FP32"], (0, 2**62, 2**62), memoryview(b"")))


# JSON


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([0.1], np.float16), "[0.099975586]"),
        (np.array([0.1], np.float32), "[0.1]"),
        (np.array([[True], [False]]), "[[true],[false]]"),
        (np.array(["a", "é"]), '["a","é"]'),
        (np.array([1.5, 2]).astype(str), '["1.5","2.0"]'),
        (np.array([b"a"]), '["a"]'),
        (np.array([b"a", "b", 1, None, 2.5], object), '["a","b",1,null,2.5]'),
        (np.array([[b"a"], [b"b"]], object), '[["a"],["b"]]'),
        (np.arange(6).reshape(2, 3)[:, ::2], "[[0,2],[3,5]]"),
        (np.arange(6).reshape(2, 3).T, "[[0,3],[1,4],[2,5]]"),
        (np.array([1, 2], ">i4"), "[1,2]"),
        (np.array([0.1], ">f4"), "[0.1]"),
        (np.array(["a"], ">U1"), '["a"]'),
        (np.array(3), "3"),
        (np.array(0.1, np.float32), "0.1"),
        (np.array(True), "true"),
        (np.array("a"), '"a"'),
        (np.array(b"a"), '"a"'),
        (np.float32(0.1), "0.1"),
        (np.int64(2**63 - 1), "9223372036854775807"),
        (np.uint64(2**64 - 1), "18446744073709551615"),
        (np.bool_(1), "true"),
        (np.str_("a"), '"a"'),
        (np.bytes_(b"a"), '"a"'),
        (b"a", '"a"'),
        (np.zeros((0, 3)), "[]"),
        ((1, [np.array([1])]), "[1,[[1]]]"),
        ({np.str_("a"): 1, 2: None}, '{"a":1,"2":null}'),
        (MappingProxyType({"a": OrderedDict(b=1)}), '{"a":{"b":1}}'),
        ([1, None, "null"], '[1,null,"null"]'),
    ],
)
def test_all_that_json_has_is_written(value: object, text: str) -> None:
    for policy in NonFinite:
        assert json_text({"v": value}, policy) == f'{{"v":{text}}}'.encode()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.array([1j]), "an array of complex128, which JSON doesn't have"),
        (np.zeros(1, [("a", "i4")]), "which JSON doesn't have"),
        (np.ma.masked_array([1, 2], [False, True]), "a masked array"),
        (np.array([b"\xff"]), "octets that are not UTF-8"),
        (np.array([object()]), "a object"),
        ({1}, "a set"),
        (np.longdouble(1), "a longdouble"),
        (2**64, "64-bit"),
        ("\ud800", "surrogates"),
    ],
)
def test_what_json_has_not_is_named(value: object, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        json_text({"v": value}, NonFinite.LITERAL)


def test_a_body_that_has_itself_in_it_is_refused() -> None:
    body: list[Any] = []
    body.append(body)
    with pytest.raises(CodecError, match="Recursion limit"):
        json_text(body, NonFinite.REJECT)


NANS = [
    (float("nan"), "NaN"),
    (np.float32("nan"), "NaN"),
    (np.array(np.nan), "NaN"),
    (np.array([1, np.nan], np.float16), "[1.0,NaN]"),
    (np.array([[1], [np.nan]], ">f4"), "[[1.0],[NaN]]"),
    (np.array([[1, 2], [np.nan, 3]]).T, "[[1.0,NaN],[2.0,3.0]]"),
    (np.array([np.nan, None], object), "[NaN,null]"),
    ((1, [float("nan")]), "[1,[NaN]]"),
]


@pytest.mark.parametrize(("value", "literal"), NANS)
def test_nan_is_what_the_policy_says(value: object, literal: str) -> None:
    assert json_text({"v": value}, NonFinite.LITERAL) == f'{{"v":{literal}}}'.encode()
    assert json_text({"v": value}, NonFinite.AS_NULL) == f'{{"v":{literal}}}'.replace("NaN", "null").encode()
    with pytest.raises(CodecError, match=r"the number at \['v'\].* is nan.*`nonfinite` is reject"):
        json_text({"v": value}, NonFinite.REJECT)


@pytest.mark.parametrize("value", [float("-inf"), np.float64("inf"), np.array([1, -np.inf], np.float32)])
def test_an_infinity_is_no_null(value: object) -> None:
    assert b"Infinity" in json_text([value], NonFinite.LITERAL)
    for policy in (NonFinite.AS_NULL, NonFinite.REJECT):
        with pytest.raises(CodecError, match=r"the number at \[0\]"):
            json_text([value], policy)


def test_the_place_of_a_number_in_an_array_is_named() -> None:
    with pytest.raises(CodecError, match=r"the number at \['a'\]\[1\]\[0\]\[1\] is inf"):
        json_text({"a": [0, np.array([[1, np.inf]])]}, NonFinite.REJECT)


@pytest.mark.parametrize(
    ("text", "value"),
    [(b'{"a": [NaN, -Infinity, 1]}', '{"a": [NaN, -Infinity, 1]}'), (b'"NaN"', '"NaN"'), (b"18446744073709551615", "")],
)
def test_answers_may_have_what_python_writes(text: bytes, value: str) -> None:
    assert json.dumps(parsed_json(text)) == (value or text.decode())


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b'{"a": 1', b"NaN x", b"\xff", b"[" * 100_000, b"[NaN" + b"[" * 100_000]
)
def test_what_is_no_json_is_told(text: bytes) -> None:
    with pytest.raises(CodecError, match="no JSON: "):
        parsed_json(text)


@pytest.mark.parametrize("made", [("/p?a=b&c=%20", [1]), ["/p?a=b&c=%20", [1]]])
def test_a_request_is_a_path_and_a_body(made: object) -> None:
    assert request_of(made, NonFinite.REJECT) == ("/p?a=b&c=%20", b"[1]")


@pytest.mark.parametrize(
    "made", [None, "/p", ("/p",), ("/p", 1, 2), (1, 2), ("p", 1), ("/ä", 1), ("/a b", 1), ("/a\n", 1), ("/a#b", 1), {}]
)
def test_anything_else_is_none(made: object) -> None:
    with pytest.raises(CodecError, match="expected a path"):
        request_of(made, NonFinite.REJECT)


# Outputs


def output(made: object, datatype: str, missing: str | None = None, **names: Any) -> Output:
    """The output `y` of what an adapter has *made* for it."""
    described = TensorDescription(DATATYPES[datatype], missing=missing, **names)
    (found,) = made_outputs({"y": made}, ModelDescription(outputs={"y": described}), OutputSelection(), {})
    return found


def wire(found: Output) -> bytes:
    return b"".join(found.blobs)


@pytest.mark.parametrize("name", NUMBERS)
def test_an_array_of_the_right_dtype_goes_out_as_it_is(name: str) -> None:
    array = NUMBERS[name]
    square = np.stack([array, array[::-1]])
    for each in (array, square, square.T, square[:, ::-1], square[:1], array.astype(array.dtype.newbyteorder(">"))):
        found = output(each, name)
        assert (found.shape, wire(found)) == (each.shape, each.astype(array.dtype).tobytes())
    for scalar in (array[0], array[0, ...]):
        assert (output(scalar, name).shape, wire(output(scalar, name))) == ((), array[:1].tobytes())
    assert output(np.zeros((0, 3), array.dtype), name).shape == (0, 3)
    assert datatype_of(array) is DATATYPES[name]


@pytest.mark.parametrize("name", NUMBERS)
def test_an_array_of_another_dtype_is_refused_with_what_to_write(name: str) -> None:
    for other, array in NUMBERS.items():
        if other != name:
            with pytest.raises(CodecError) as raised:
                output(array, name)
            expected = f"output 'y' ({name}): got an array of {array.dtype}, and `models`"
            assert str(raised.value).startswith(expected)
            assert f"write `.astype(np.{NUMBERS[name].dtype.name})`" in str(raised.value)


@pytest.mark.parametrize("array", [np.array([1], object), np.array(["1"]), np.array([1j]), np.array([1], "M8[s]")])
def test_an_array_of_no_numbers_is_refused(array: Array) -> None:
    with pytest.raises(CodecError, match="got an array of"):
        output(array, "FP32")


@given(st.lists(st.floats(width=32)))
def test_bf16_is_rounded_from_fp32_as_elsewhere(values: list[float]) -> None:
    array = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        expected = array.astype(ml_dtypes.bfloat16)
    if (np.isinf(expected) & np.isfinite(array)).any():
        with pytest.raises(CodecError, match="too large"):
            output(array, "BF16")
        return
    back = np.frombuffer(wire(output(array, "BF16")), ml_dtypes.bfloat16)
    assert np.array_equal(back.astype(np.float32), expected.astype(np.float32), equal_nan=True)
    assert wire(output(expected, "BF16")) == expected.tobytes()


def test_what_an_adapter_changes_afterwards_does_not_change_the_output() -> None:
    array = np.zeros(2, np.float32)
    found = output(array, "FP32")
    array[:] = 7
    assert wire(found) == bytes(8)


def test_nan_and_infinities_are_counted() -> None:
    assert output(np.array([np.nan, 1, np.inf], np.float32), "FP32").nonfinite == 2
    assert output([float("nan"), 1, float("-inf")], "FP64").nonfinite == 2
    assert wire(output([float("-inf")], "FP64")) == np.array([-np.inf]).tobytes()


@pytest.mark.parametrize(
    ("made", "datatype", "array"),
    [
        ([0.1, 1], "FP32", np.array([0.1, 1], np.float32)),
        (0.1, "FP32", np.array(0.1, np.float32)),
        ([[1], (2,)], "INT64", np.array([[1], [2]])),
        ([2**63 - 1], "INT64", np.array([2**63 - 1])),
        ([np.float32(0.1), np.array(0.5)], "FP32", np.array([0.1, 0.5], np.float32)),
        ([np.array([1, 2]), np.array([3, 4])], "INT8", np.array([[1, 2], [3, 4]], np.int8)),
        ([True, False], "BOOL", np.array([True, False])),
        ([], "FP32", np.array([], np.float32)),
        (True, "BOOL", np.array(True)),
    ],
)
def test_lists_and_numbers_become_the_datatype_as_numbers_in_json_do(made: object, datatype: str, array: Array) -> None:
    found = output(made, datatype)
    assert (found.shape, wire(found)) == (array.shape, array.tobytes())


@pytest.mark.parametrize(
    ("made", "datatype"),
    [([0.5], "INT64"), ([300], "UINT8"), ([1e39], "FP32"), ([[1], [1, 2]], "FP32"), (["a"], "FP32"), ({1: 2}, "FP32"),
     ({1, 2}, "FP32"), (object(), "FP32"), ([None], "INT64"), ([2**70], "FP64"), ("a", "FP32"), ([[[1]], [2]], "INT8")],
)  # fmt: skip
def test_lists_that_the_datatype_has_not_are_refused(made: object, datatype: str) -> None:
    with pytest.raises(CodecError, match=f"output 'y' .{datatype}"):
        output(made, datatype)


@pytest.mark.parametrize(
    ("made", "shape", "elements"),
    [
        (["a", b"\xff", "é"], (3,), (b"a", b"\xff", "é".encode())),
        (np.array([["a"], ["bc"]]), (2, 1), (b"a", b"bc")),
        (np.array([b"a", b"bc"]), (2,), (b"a", b"bc")),
        (np.array([["a", b"b"]], object).T, (2, 1), (b"a", b"b")),
        ("a", (), (b"a",)),
        (b"a", (), (b"a",)),
        (np.array("a"), (), (b"a",)),
        (np.str_("a"), (), (b"a",)),
        ([["a"], ("b",)], (2, 1), (b"a", b"b")),
        ([np.array(["a", "b"]), np.array(["c", "d"])], (2, 2), (b"a", b"b", b"c", b"d")),
        ([], (0,), ()),
        (["", "a" * 300], (2,), (b"", b"a" * 300)),
    ],
)
def test_texts_and_octets_become_bytes(made: object, shape: tuple[int, ...], elements: tuple[bytes, ...]) -> None:
    found = output(made, "BYTES")
    assert (found.shape, wire(found)) == (shape, blob_of(*elements))


def test_many_texts_become_bytes() -> None:
    texts = [f"é{number}" for number in range(10_000)]
    assert wire(output(np.array(texts), "BYTES")) == blob_of(*map(str.encode, texts))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (np.array([1, 2]), "got an array of int64, and `models`.* says BYTES; write `.astype.str.`"),
        ([1, 2], "expected str or bytes, got a int as element 0"),
        (
            [["a"], ["b", "c"]],
            "expected str or bytes, got a list as element 0; lists of different lengths are no tensor",
        ),
        (["a", None], "expected str or bytes, got None as element 1"),
        (["\ud800"], "element 0 contains half of a surrogate pair"),
        ({"a": 1}, "expected str or bytes, got a dict as element 0"),
    ],
)
def test_what_is_no_text_is_refused(made: object, words: str) -> None:
    with pytest.raises(CodecError, match=f"output 'y' .BYTES.: {words}"):
        output(made, "BYTES")


def test_a_missing_text_is_what_the_configuration_says() -> None:
    assert wire(output(["a", None], "BYTES", missing="?")) == blob_of(b"a", b"?")


class Lazy:
    """An array of another library, which may refuse to become one of numpy's."""

    def __init__(self, array: Array | None) -> None:
        self._array = array

    def __array__(self, dtype: object = None, copy: object = None) -> Array:
        if self._array is None:
            raise RuntimeError("it is on another device")
        return self._array


def test_arrays_of_other_libraries_are_arrays() -> None:
    assert wire(output(Lazy(np.array([1.5])), "FP64")) == np.array([1.5]).tobytes()
    assert datatype_of(Lazy(np.array([1.5]))) is DATATYPES["FP64"]
    with pytest.raises(CodecError, match="output 'y' .FP64.: no array: RuntimeError: it is on another device"):
        output(Lazy(None), "FP64")


@pytest.mark.parametrize("made", [[1], None, "y", 1.5, np.zeros(2)])
def test_outputs_come_by_name(made: object) -> None:
    with pytest.raises(CodecError, match="expected outputs by name"):
        made_outputs(made, ModelDescription(), OutputSelection(), {})


def test_named_dimensions_are_the_same_in_all_outputs_and_inputs() -> None:
    fp32 = DATATYPES["FP32"]
    described = {name: TensorDescription(fp32, ("n", -1, "k")) for name in "yz"}
    description = ModelDescription(outputs=described)

    def shapes(y: tuple[int, ...], z: tuple[int, ...]) -> list[tuple[int, ...]]:
        made = {"y": np.zeros(y, np.float32), "z": np.zeros(z, np.float32)}
        return [each.shape for each in made_outputs(made, description, OutputSelection(), {"n": 2})]

    assert shapes((2, 1, 3), (2, 5, 3)) == [(2, 1, 3), (2, 5, 3)]
    with pytest.raises(CodecError, match=r"output 'y' .* got the shape \[3, 1, 3\].* says \[n, -1, k\] \(n is 2\)"):
        shapes((3, 1, 3), (3, 1, 3))
    with pytest.raises(CodecError, match=r"output 'z' .* got the shape \[2, 1, 4\].* says .*n is 2, k is 3"):
        shapes((2, 1, 3), (2, 1, 4))


def test_outputs_that_nobody_wants_are_dropped_and_those_that_are_come_in_the_clients_order() -> None:
    described = {name: TensorDescription(DATATYPES["INT64"]) for name in "abc"}
    selection = OutputSelection(named={"c": True, "a": True})
    made = {"a": [1], "b": "no number", "c": [3]}
    assert [each.name for each in made_outputs(made, ModelDescription(outputs=described), selection, {})] == ["c", "a"]


class Half(enum.Enum):
    """Members that orjson writes as their values."""

    LOST = math.nan
    HALF = 0.5


@pytest.mark.parametrize(
    "body",
    [
        {"a": MappingProxyType({"b": [math.nan]})},
        {"a": UserDict(b=[Half.LOST])},
        {"a": OrderedDict(b=(np.float32("nan"),))},
    ],
)
def test_nan_is_found_in_mappings_and_enums_of_every_kind(body: object) -> None:
    with pytest.raises(CodecError, match=r"the number at \['a'\]\['b'\]\[0\] is nan, which JSON cannot carry"):
        json_text(body, NonFinite.REJECT)
    assert json_text(body, NonFinite.LITERAL) == b'{"a":{"b":[NaN]}}'
    assert json_text([Half.HALF, None, MappingProxyType({})], NonFinite.REJECT) == b"[0.5,null,{}]"


@pytest.mark.parametrize("number", [2**63 - 1, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40)])
def test_integers_of_any_size_are_read_exactly(number: int) -> None:
    assert parsed_json(b'{"a":[%d,0.5]}' % number) == {"a": [number, 0.5]}


def test_a_byte_order_mark_is_skipped() -> None:
    assert parsed_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("made", [[], np.array([], np.float32), np.zeros((0, 3), np.float32)])
def test_no_rows_have_the_shape_that_is_declared(made: object) -> None:
    description = ModelDescription(outputs={"y": TensorDescription(DATATYPES["FP32"], ("n", "k"))})
    (found,) = made_outputs({"y": made}, description, OutputSelection(), {"n": 0, "k": 3})
    assert found.whole_shape == (0, 3)
    with pytest.raises(CodecError, match=r"got the shape \[0, 3\], and .* says \[n, k\] \(n is 1, k is 3\)"):
        made_outputs({"y": made}, description, OutputSelection(), {"n": 1, "k": 3})
