"""Requests of some rows each, and answers that are put together in the rows' order."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from gateway.codec.dialects.declared import Shape, TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.output import JOINED_BYTES, Output
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.dialects.rows import RowCut, RowOutputs, cut_rows, row_description, rows_label
from gateway.codec.inference import OutputSelection, Tensor, TensorPolicy
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.values import Value
from gateway.errors import CodecError
from tests.steps import run

FP32, BYTES = DATATYPES["FP32"], DATATYPES["BYTES"]
SCALAR: Mapping[str, TensorDescription] = {"s": TensorDescription(FP32, ())}


def tensor_of(name: str, array: np.ndarray[Any, Any]) -> Tensor:
    return Tensor(name, FP32, array.shape, memoryview(array.astype("<f4").tobytes()))


def strings_of(name: str, values: list[bytes], shape: tuple[int, ...] | None = None) -> Tensor:
    blob = bytes(serialize_byte_tensor(np.array(values, dtype=object)).item()) if values else b""
    return Tensor(name, BYTES, (len(values),) if shape is None else shape, memoryview(blob))


def request_of(*inputs: Tensor) -> DialectRequest:
    return DialectRequest(list(inputs), OutputSelection(), b"", {}, False, 0, {}, {}, TensorPolicy())


def cut(
    per_request: int, *inputs: Tensor, described: Mapping[str, TensorDescription] = SCALAR
) -> tuple[RowCut, list[list[Tensor]]]:
    found = run(cut_rows(request_of(*inputs), described, per_request))
    return found, [found.part(index).inputs for index in range(found.n_requests)]


def values_of(tensor: Tensor) -> Any:
    if tensor.datatype is BYTES:
        return deserialize_bytes_tensor(bytes(tensor.blob)).tolist()
    return np.frombuffer(tensor.blob, "<f4").reshape(tensor.shape).tolist()


def output_of(name: str, values: object, described: TensorDescription | None = None) -> Output:
    """An output as a decoder gives it, without the description's shape."""
    array = np.asarray(values, "<f4")
    output = Output(name, described or TensorDescription(FP32), FP32)
    output.take(Value(array.shape, [memoryview(array.tobytes())]))
    return output


def outputs_for(shape: Shape | None, per_request: int = 1, **sizes: int) -> RowOutputs:
    return RowOutputs({"y": TensorDescription(FP32, shape)}, per_request, sizes)


def numbers_in(output: Output) -> Any:
    return np.frombuffer(b"".join(output.blobs), "<f4").reshape(output.shape).tolist()


def packed_output(name: str, values: object) -> Output:
    """As `output_of`, of texts in base64 with the numbers of the last dimension in each."""
    return output_of(name, values, TensorDescription(FP32, None, "base64"))


# Cutting


def test_with_one_row_for_each_request_inputs_are_without_their_dimension_of_rows() -> None:
    x = np.arange(6).reshape(3, 2)
    found, parts = cut(1, tensor_of("x", x), strings_of("t", [b"a", b"", "é".encode()]))
    assert (found.n_rows, found.n_requests) == (3, 3)
    assert [values_of(each) for each, _ in parts] == x.tolist()
    assert [(each.shape, values_of(each)) for _, each in parts] == [((), [b"a"]), ((), [b""]), ((), ["é".encode()])]


def test_with_several_rows_inputs_keep_their_first_dimension_and_the_last_request_has_the_rest() -> None:
    x = np.arange(10).reshape(5, 2)
    found, parts = cut(2, tensor_of("x", x), strings_of("t", [b"%d" % n for n in range(5)]))
    assert [each.shape for each, _ in parts] == [(2, 2), (2, 2), (1, 2)]
    assert list(itertools.chain.from_iterable(values_of(each) for each, _ in parts)) == x.tolist()
    assert [values_of(each) for _, each in parts] == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert [found.rows_of(index) for index in range(3)] == [(0, 2), (2, 2), (4, 1)]


def test_tensors_are_views_of_the_clients_bytes() -> None:
    body = bytearray(np.arange(4, dtype="<f4").tobytes())
    found = run(cut_rows(request_of(Tensor("x", FP32, (4,), memoryview(body))), {}, 1))
    part = found.part(2).inputs[0]
    body[8:12] = np.float32(7).tobytes()
    assert values_of(part) == 7
    part.blob.release()
    assert values_of(found.part(2).inputs[0]) == 7  # each request has views of its own


def test_an_input_declared_as_a_scalar_is_the_same_in_each_request() -> None:
    _, parts = cut(1, tensor_of("x", np.arange(2)), tensor_of("s", np.array(5)))
    assert [(values_of(x), values_of(s)) for x, s in parts] == [(0, 5), (1, 5)]


@pytest.mark.parametrize(("per_request", "shape"), [(1, ()), (3, (1,))])
def test_a_scalar_whose_shape_nobody_declares_is_one_row(per_request: int, shape: tuple[int, ...]) -> None:
    found, [[x]] = cut(per_request, tensor_of("x", np.array(5)))
    assert (found.n_rows, x.shape, bytes(x.blob)) == (1, shape, np.float32(5).tobytes())


def test_scalars_alone_are_one_request() -> None:
    found, [[s]] = cut(4, tensor_of("s", np.array(5)))
    assert (found.n_rows, s.shape) == (1, ())


@pytest.mark.parametrize("shape", [(0,), (0, 4)])
def test_no_rows_are_no_request(shape: tuple[int, ...]) -> None:
    found, parts = cut(1, Tensor("x", FP32, shape, memoryview(b"")), strings_of("t", []))
    assert (found.n_rows, found.n_requests, parts) == (0, 0, [])


def test_rows_without_elements_are_rows() -> None:
    _, parts = cut(2, Tensor("x", FP32, (3, 0), memoryview(b"")), strings_of("t", [], (3, 0)))
    assert [(x.shape, t.shape, len(t.blob)) for x, t in parts] == [((2, 0), (2, 0), 0), ((1, 0), (1, 0), 0)]


@pytest.mark.parametrize("n_rows", [4097, 2**60])
def test_rows_without_values_are_no_more_than_nested_json_may_have(n_rows: int) -> None:
    """Each would be a request, and cost the client nothing."""
    empty = Tensor("x", FP32, (n_rows, 0), memoryview(b""))
    with pytest.raises(CodecError, match="an empty tensor of more than 4096 lists"):
        cut(1, empty)
    assert cut(1, Tensor("x", FP32, (4096, 0), memoryview(b"")))[0].n_requests == 4096


def test_inputs_with_different_numbers_of_rows_are_refused_with_both_names() -> None:
    words = r"input 't' \(BYTES, shape \[1\]\): expected 2 rows, as input 'x' has: each request"
    with pytest.raises(CodecError, match=words):
        cut(1, tensor_of("x", np.arange(2)), strings_of("t", [b"a"]))


@given(
    st.lists(st.one_of(st.binary(max_size=3), st.binary(min_size=250, max_size=900)), max_size=200),
    st.integers(1, 3),
    st.integers(1, 9),
)
def test_strings_of_any_length_are_found(values: list[bytes], per_row: int, per_request: int) -> None:
    values = values[: len(values) // per_row * per_row]
    n_rows = len(values) // per_row
    _, parts = cut(per_request, strings_of("t", values, (n_rows, per_row)))
    found = [values_of(t) for (t,) in parts]
    step = per_row * per_request
    assert found == [values[start : start + step] for start in range(0, len(values), step)]


def test_strings_longer_than_a_window_are_found_among_short_ones() -> None:
    values = [b"a" * 300_000 if n % 7 == 3 else b"b" * (n % 5) for n in range(60)]
    _, parts = cut(4, strings_of("t", values))
    assert list(itertools.chain.from_iterable(values_of(t) for (t,) in parts)) == values


def test_finding_strings_is_counted_and_done_in_steps() -> None:
    reserved: list[int] = []
    n_rows = 100_000
    steps = cut_rows(request_of(strings_of("t", [b"ab"] * n_rows)), {}, 1, reserved.append)
    assert sum(1 for _ in steps) > 3
    assert reserved == [8 * (n_rows + 1)]


# Putting together


@pytest.mark.parametrize("declared", [None, (-1, 2), ("n", 2), (3, 2), (-1, -1)])
def test_answers_without_the_dimension_of_rows_are_stacked(declared: Shape | None) -> None:
    outputs = outputs_for(declared, n=3)
    for row in range(3):
        run(outputs.add(row, 1, [output_of("y", [row, 0.5])]))
    (y,) = outputs.finish([])
    assert (y.shape, numbers_in(y)) == ((3, 2), [[0, 0.5], [1, 0.5], [2, 0.5]])


def test_answers_that_have_it_are_joined() -> None:
    one, two = outputs_for((-1, 2)), outputs_for(None, 2)
    for row in range(2):
        run(one.add(row, 1, [output_of("y", [[row, 0.5]])]))
        run(two.add(2 * row, 2, [output_of("y", [row, row + 0.5])]))
    assert numbers_in(one.finish([])[0]) == [[0, 0.5], [1, 0.5]]
    assert numbers_in(two.finish([])[0]) == [0, 0.5, 1, 1.5]


def test_the_last_of_several_requests_may_have_one_row_and_no_dimension_for_it() -> None:
    outputs = outputs_for((-1,), 2)
    run(outputs.add(0, 2, [output_of("y", [1, 2])]))
    run(outputs.add(2, 1, [output_of("y", 3)]))
    assert numbers_in(outputs.finish([])[0]) == [1, 2, 3]


def test_answers_are_put_together_in_the_rows_order_whatever_their_own() -> None:
    for seed in range(20):
        rows = list(range(10))
        random.Random(seed).shuffle(rows)
        outputs = outputs_for((-1,))
        for row in rows:
            run(outputs.add(row, 1, [output_of("y", row)]))
        assert numbers_in(outputs.finish([])[0]) == list(range(10))
        assert outputs.held_bytes == 40


def test_many_answers_that_have_waited_are_put_together_in_steps() -> None:
    outputs = outputs_for((-1,))
    for row in range(1, 100):
        assert not list(outputs.add(row, 1, [output_of("y", row)]))
    steps = outputs.add(0, 1, [output_of("y", 0)])
    next(steps)
    assert len(list(outputs.add(100, 1, [output_of("y", 100)]))) == 100  # another answer comes between two steps
    assert not list(steps)
    assert numbers_in(outputs.finish([])[0]) == list(range(101))


def test_outputs_may_come_in_another_order_in_each_answer() -> None:
    outputs = RowOutputs({"y": TensorDescription(FP32), "z": TensorDescription(FP32)}, 1, {})
    run(outputs.add(0, 1, [output_of("z", 0), output_of("y", 1)]))
    run(outputs.add(1, 1, [output_of("y", 3), output_of("z", 2)]))
    assert {each.name: numbers_in(each) for each in outputs.finish([])} == {"z": [0, 2], "y": [1, 3]}
    with pytest.raises(CodecError, match=r"expected the outputs 'z', 'y', as in the answer to row 0, got 'y'$"):
        run(outputs.add(2, 1, [output_of("y", 3)]))


@pytest.mark.parametrize(
    ("declared", "per_request", "n_rows", "values", "words"),
    [
        ((-1, 3), 1, 1, [1, 2], r"has the shape \[2\] for a row, and `models` .* says \[-1, 3\]"),
        ((-1,), 1, 1, [1, 2], r"has the shape \[2\] for a row"),
        ((-1, 2), 2, 2, [1, 2], r"has the shape \[2\] for 2 rows"),
        ((-1,), 3, 3, [1, 2], r"has the shape \[2\] for 3 rows"),
        (("n", "m"), 1, 1, [1, 2], r"says \[n, m\] \(n is 4, m is 5\)"),
        (None, 3, 3, [1, 2], r"expected a list of 3 values, one for each row, got the shape \[2\]"),
        (None, 3, 1, 1, r"expected a list with a value for each row, got the shape \[\]"),
    ],
)
def test_answers_that_have_no_row_for_each_row_are_refused(
    declared: Shape | None, per_request: int, n_rows: int, values: object, words: str
) -> None:
    outputs = outputs_for(declared, per_request, n=4, m=5)
    with pytest.raises(CodecError, match=rf"output 'y' \(FP32\): .*{words}"):
        run(outputs.add(0, n_rows, [output_of("y", values)]))
    assert outputs.held_bytes == 0


def test_rows_of_different_shapes_are_refused_with_the_output_and_the_rows() -> None:
    outputs = outputs_for((-1, -1))
    run(outputs.add(3, 1, [output_of("y", [1, 2])]))
    words = r"output 'y' \(FP32\): rows of different shapes: \[2\] in the answer to row 3, here \[1\]"
    with pytest.raises(CodecError, match=words):
        run(outputs.add(0, 1, [output_of("y", [1])]))
    run(outputs.add(0, 1, [output_of("y", [3, 4])]))  # what was refused is not there


def test_a_name_is_one_size_in_all_answers() -> None:
    outputs = RowOutputs({"y": TensorDescription(FP32, ("n", "k")), "z": TensorDescription(FP32, (-1, "k"))}, 1, {})
    with pytest.raises(CodecError, match=r"output 'z'.* \[3\] for a row, and .* says \[-1, k\] \(k is 2\)"):
        run(outputs.add(0, 1, [output_of("y", [1, 2]), output_of("z", [1, 2, 3])]))


def test_all_rows_together_have_the_declared_number() -> None:
    outputs = outputs_for((5,))
    run(outputs.add(0, 1, [output_of("y", 1)]))
    with pytest.raises(CodecError, match=r"the answer has the shape \[1\], and .* says \[5\]"):
        outputs.finish([])


@pytest.mark.parametrize(("declared", "shape"), [((-1, -1, 4), (2, 0, 4)), ((-1, "k", "m"), (2, 0, 3))])
def test_empty_rows_get_the_dimensions_that_their_lists_cannot_show(declared: Shape, shape: tuple[int, ...]) -> None:
    outputs = outputs_for(declared, m=3)
    for row in range(2):
        run(outputs.add(row, 1, [output_of("y", [])]))
    assert outputs.finish([])[0].shape == shape


@pytest.mark.parametrize(("declared", "shape"), [((-1, 4), (0, 4)), (("n",), (0,)), (("n", "m"), (0, 3))])
def test_without_rows_outputs_are_empty_and_as_declared(declared: Shape, shape: tuple[int, ...]) -> None:
    (y,) = outputs_for(declared, n=0, m=3).finish(["y"])
    assert (y.name, y.shape, y.blobs) == ("y", shape, [])


@pytest.mark.parametrize("declared", [None, (-1, -1), ("n", "k")])
def test_without_rows_an_output_has_to_be_declared(declared: Shape | None) -> None:
    with pytest.raises(CodecError, match=r"no rows, .* shape of output 'y' is not known; expected .* `models`"):
        outputs_for(declared).finish(["y"])


def test_values_of_many_rows_are_few_buffers_and_large_ones_are_not_copied() -> None:
    outputs, n_rows = outputs_for((-1, 256)), 5000
    for row in range(n_rows):
        run(outputs.add(row, 1, [output_of("y", np.full(256, row))]))
    (y,) = outputs.finish([])
    assert len(y.blobs) <= n_rows * 1024 // JOINED_BYTES + 1
    assert outputs.held_bytes == y.n_bytes == n_rows * 1024
    large = outputs_for((-1, -1))
    value = output_of("y", np.zeros(JOINED_BYTES))
    run(large.add(0, 1, [value]))
    assert memoryview(large.finish([])[0].blobs[0]).obj is memoryview(value.blobs[0]).obj


# Descriptions


def test_the_reader_of_one_answer_does_not_judge_shapes() -> None:
    described = ModelDescription(outputs={"y": TensorDescription(BYTES, (-1, 2), missing="-")})
    assert row_description(described).outputs == {"y": TensorDescription(BYTES, None, missing="-")}


def test_errors_name_rows() -> None:
    assert (rows_label(3, 1), rows_label(4, 4)) == ("row 3", "rows 4 to 7")


@pytest.mark.parametrize(("shape", "n_rows"), [((-1,), 2), ((-1,), 1), (("n", 3), 2)])
def test_texts_in_base64_with_one_number_each_may_be_scalars(shape: Shape, n_rows: int) -> None:
    """A row's only number is a text, and so is a row of numbers."""
    outputs = RowOutputs({"y": TensorDescription(FP32, shape, "base64")}, 2, {})
    values = np.arange(n_rows * 3, dtype="<f4").reshape(n_rows, 3)[:, : 1 if len(shape) == 1 else 3]
    run(outputs.add(0, n_rows, [packed_output("y", values)]))
    (output,) = outputs.finish([])
    assert numbers_in(output) == (values[:, 0] if len(shape) == 1 else values).tolist()


def test_empty_lists_are_completed_whichever_way_they_are_read() -> None:
    """`[[]]` has as many dimensions as declared if it is a row, and one less if it is the rows."""
    outputs = outputs_for(("n", "m", 2), m=0)
    run(outputs.add(0, 1, [output_of("y", np.empty((1, 0)))]))
    (output,) = outputs.finish([])
    assert output.shape == (1, 0, 2)
