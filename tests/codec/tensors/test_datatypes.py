"""The table of datatypes, checked exhaustively where that is possible and against exact arithmetic elsewhere."""

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from gateway.codec.tensors.datatypes import DATATYPES, Kind, element_count
from tests.codec.make_pairs import WIRE
from tests.codec.walk import nearest_bits, one_output, only_blob, parse_request

SIZES = {
    **{"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8},
    **{"FP16": 2, "FP32": 4, "FP64": 8, "BF16": 2, "BYTES": 0},
}


@pytest.mark.rule("2.2")
def test_table_has_the_fourteen_datatypes_with_their_sizes() -> None:
    assert {name: row.item_bytes for name, row in DATATYPES.items()} == SIZES
    assert all(row.name == name for name, row in DATATYPES.items())


@pytest.mark.parametrize("name", [name for name in SIZES if name.startswith(("INT", "UINT"))])
def test_integer_rows_know_their_bounds(name: str) -> None:
    row, limits = DATATYPES[name], np.iinfo(WIRE[name])
    assert (row.kind, row.lowest, row.highest) == (Kind.INTEGER, int(limits.min), int(limits.max))


@pytest.mark.rule("2.3")
@pytest.mark.parametrize(
    ("shape", "count"), [((), 1), ((0,), 0), ((2, 0, 3), 0), ((1, 3, 224, 224), 150528), ((2**60,) * 64, 2**3840)]
)
def test_element_count_is_the_product_and_never_overflows(shape: tuple[int, ...], count: int) -> None:
    assert element_count(shape) == count


def finite_patterns(name: str) -> npt.NDArray[Any]:
    bits = np.arange(2**16, dtype="<u2")
    values = bits.view(WIRE[name])
    with np.errstate(invalid="ignore"):  # ml_dtypes converts signalling NaN to judge them
        finite: npt.NDArray[Any] = values[np.isfinite(values)]
    return finite


def printed(name: str, values: npt.NDArray[Any]) -> list[float]:
    blob = values.tobytes()
    entry = {"name": "x", "datatype": name, "shape": [len(values)], "parameters": {"binary_data_size": len(blob)}}
    header = json.dumps({"inputs": [entry]}).encode()
    request = parse_request(header + blob, len(header))
    assert request is not None
    data: list[float] = json.loads(b"".join(request.json_pieces()))["inputs"][0]["data"]
    return data


@pytest.mark.rule("3.3")
@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_every_finite_half_is_printed_as_the_float_it_is(name: str) -> None:
    values = finite_patterns(name)
    assert len(values) == {"FP16": 2 * 31 * 1024, "BF16": 2 * 255 * 128}[name]
    assert np.array(printed(name, values), "f8").astype("<f4").tobytes() == values.astype("<f4").tobytes()


@pytest.mark.parametrize("name", ["FP16", "BF16"])
@pytest.mark.parametrize("chunk_bytes", [None, 1000])
def test_every_finite_half_comes_back_from_its_exact_and_its_short_text(name: str, chunk_bytes: int | None) -> None:
    values = finite_patterns(name)
    for texts in (map(repr, printed(name, values)), (repr(float(value)) for value in values)):
        answer = one_output(f"[{','.join(texts)}]", name, f"[{len(values)}]")
        assert only_blob(answer, chunk_bytes) == values.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["FP32", "FP64"])
def test_millions_of_random_bit_patterns_cross_both_ways(name: str, seed: int) -> None:
    wire = WIRE[name]
    values = np.frombuffer(np.random.default_rng(seed).bytes(1_000_000 * wire.itemsize), wire).copy()
    values[~np.isfinite(values)] = 0
    numbers = printed(name, values)
    # exact but for a float64 that lies between two FP32, of which none is among these
    assert np.array(numbers, "f8").astype(wire).tobytes() == values.tobytes()
    answer = one_output(f"[{','.join(map(repr, numbers))}]", name, f"[{len(values)}]")
    assert only_blob(answer, 65536) == values.tobytes()


def bfloat16_bits(values: list[float]) -> list[int]:
    with np.errstate(over="ignore"):
        return [int(bits) for bits in DATATYPES["BF16"].narrow(np.array(values, "<f8"))]


def exact_text(value: float) -> str:
    numerator, denominator = value.as_integer_ratio()
    return f"{numerator}/{denominator}"


def test_bfloat16_ties_go_to_even_and_their_neighbours_to_the_nearest() -> None:
    """Between each two neighbours: the middle, and the float64 just below and above it."""
    bits = np.arange(0, 0x7F7F, 7, dtype="<u4")
    low = (bits << np.uint32(16)).view("<f4").astype("f8")
    high = ((bits + np.uint32(1)) << np.uint32(16)).view("<f4").astype("f8")
    middle = (low + high) / 2
    cases = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf)])
    cases = np.concatenate([cases, -cases])
    expected = [nearest_bits_of(value) for value in cases]
    assert bfloat16_bits(list(cases)) == expected


def nearest_bits_of(value: float) -> int:
    return nearest_bits(exact_text(float(value)), "BF16")


def test_bfloat16_of_random_float64_is_the_nearest_by_exact_arithmetic() -> None:
    dice = np.random.default_rng(21)
    values = dice.uniform(-1, 1, 4000) * 2.0 ** dice.integers(-140, 127, 4000)
    assert bfloat16_bits(list(values)) == [nearest_bits_of(value) for value in values]


def test_bfloat16_of_every_kind_of_float32_is_what_ml_dtypes_says() -> None:
    singles = np.random.default_rng(22).integers(0, 2**32, 1_000_000, dtype="u4").view("<f4")
    singles = singles[np.isfinite(singles)]
    with np.errstate(over="ignore"):
        expected = singles.astype(ml_dtypes.bfloat16).view("<u2")
    assert np.array_equal(DATATYPES["BF16"].narrow(singles.astype("<f8")), expected)


def test_bfloat16_keeps_nan_infinities_and_the_sign_of_zero() -> None:
    nan, *others = bfloat16_bits([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e39, -1e39, 1e-60, -1e-60])
    assert others == [0x7F80, 0xFF80, 0, 0x8000, 0x7F80, 0xFF80, 0, 0x8000]
    assert nan & 0x7F80 == 0x7F80 and nan & 0x7F


@pytest.mark.rule("2.5")
def test_bool_reads_every_byte_but_zero_as_true() -> None:
    row = DATATYPES["BOOL"]
    values = row.widen(row.view(memoryview(bytes(range(256)))))
    assert list(values) == [False] + [True] * 255


def test_wire_is_little_endian() -> None:
    assert only_blob(one_output("[258]", "UINT16")) == b"\x02\x01"
    assert only_blob(one_output("[1.5]", "FP64")) == struct.pack("<d", 1.5)


def test_views_do_not_copy() -> None:
    blob = bytearray(8)
    view = DATATYPES["UINT32"].view(memoryview(blob))
    blob[0] = 7
    assert list(view) == [7, 0]
