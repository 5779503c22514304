"""The fourteen tensor datatypes of the protocol (protocol 2.2): one row each.

Here: size, layout on the wire, and how values become arrays that orjson prints and come from the arrays that simdjson
returns (float64, int64, uint64). Not here: JSON text, shapes, names of tensors.

The wire is little-endian, row-major, without padding (Triton's binary tensor extension).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from operator import methodcaller
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_NO_BITS = np.uint64(0)


class Kind(Enum):
    """What the elements of a tensor are, and so which JSON values stand for them."""

    BOOL = auto()
    INTEGER = auto()
    FLOAT = auto()
    BYTES = auto()


BYTES, FLOAT = Kind.BYTES, Kind.FLOAT
"""For code that runs for each small tensor: Python 3.11 takes 70 ns to find a member in its enum."""


_same: Callable[[Array], Array] = np.asarray
"""An array as it is."""


def _truth(array: Array) -> Array:
    # protocol 2.5: any non-zero byte is true; orjson prints a raw bool view of 2 as false
    return np.not_equal(array, 0)


def _bfloat16_to_float32(array: Array) -> Array:
    # a BF16 is the upper half of an FP32: widening appends zero bits
    return (array.astype("<u4") << np.uint32(16)).view("<f4")


def _float64_to_bfloat16(values: Array) -> Array:
    """Round float64 to the nearest BF16 bits, ties to even, in one rounding.

    Going through float32 would round twice. So a float32 that is not exact gets an odd fraction: then it lies on the
    same side of every BF16, and of the middle of two, as the float64.
    """
    single = values.astype("<f4")
    bits = single.view("<u4")
    nan = np.isnan(single)
    back = single.astype("<f8")
    bits -= np.abs(back) > np.abs(values)
    bits |= back != values
    bits += np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    narrowed = (bits >> np.uint32(16)).astype("<u2")
    if nan.any():
        narrowed[nan] = 0x7FC0
    return narrowed


def _bfloat16_is_finite(array: Array) -> Array:
    finite: Array = (array & np.uint16(0x7F80)) != 0x7F80
    return finite


@dataclass(frozen=True, slots=True)
class Datatype:
    """One row of the table.

    `item_bytes` is the size of one element on the wire, 0 for BYTES. `wire` is the numpy type that views the wire;
    BF16, which numpy lacks, is viewed as its bits. `widen` gives an array of the same length that orjson prints
    exactly; `narrow` turns an array of `parsed` (`d` float64, `i` int64, `u` uint64: simdjson's letters) into `wire`
    and rounds as IEEE 754 says; beyond `highest` it becomes infinite, with numpy's warnings. `lowest` and `highest`
    bound the values, `lowest` that of integers only.
    """

    name: str
    kind: Kind
    item_bytes: int
    wire: np.dtype[np.generic]
    parsed: Literal["d", "i", "u"]
    widen: Callable[[Array], Array]
    narrow: Callable[[Array], Array]
    is_finite: Callable[[Array], Array] | None = None
    lowest: int = 0
    highest: float = 0
    dropped_bits: np.uint64 = _NO_BITS
    """Mask of the low bits of a float64's fraction that this datatype has no room for."""
    tie: np.uint64 = _NO_BITS
    """The dropped bits of a float64 exactly between two numbers of this datatype: only the highest is set."""
    smallest: float = 0.0
    """The smallest positive number."""
    smallest_normal: float = 0.0
    """The smallest positive number of full precision."""

    @property
    def bits(self) -> np.dtype[np.unsignedinteger[Any]]:
        """The unsigned integers that view the wire."""
        return np.dtype(f"<u{self.item_bytes}")

    def view(self, blob: memoryview) -> Array:
        """The elements of *blob* as an array of shape [elements], without a copy."""
        return np.frombuffer(blob, self.wire)  # half the time that it takes with `dtype=`


def _integer(name: str, wire: str) -> Datatype:
    bounds = np.iinfo(wire)
    parsed: Literal["i", "u"] = "u" if wire == "<u8" else "i"
    dtype: np.dtype[np.generic] = np.dtype(wire)
    return Datatype(
        name, Kind.INTEGER, dtype.itemsize, dtype, parsed, _same, _same, lowest=int(bounds.min), highest=int(bounds.max)
    )


def _float(
    name: str,
    wire: str,
    exponent_bits: int,
    fraction_bits: int,
    widen: Callable[[Array], Array] = _same,
    narrow: Callable[[Array], Array] | None = None,
    is_finite: Callable[[Array], Array] = np.isfinite,
) -> Datatype:
    dtype: np.dtype[np.generic] = np.dtype(wire)
    highest_exponent = 2 ** (exponent_bits - 1) - 1
    n_dropped = 52 - fraction_bits
    return Datatype(
        name,
        Kind.FLOAT,
        dtype.itemsize,
        dtype,
        "d",
        widen,
        narrow or methodcaller("astype", wire),
        is_finite,
        dropped_bits=np.uint64(2**n_dropped - 1),
        tie=np.uint64(2**n_dropped // 2),
        smallest=2.0 ** (1 - highest_exponent - fraction_bits),
        smallest_normal=2.0 ** (1 - highest_exponent),
        highest=(2 - 2.0**-fraction_bits) * 2.0**highest_exponent,
    )


_ROWS = (
    Datatype("BOOL", Kind.BOOL, 1, np.dtype("u1"), "i", _truth, _same, lowest=0, highest=1),
    _integer("UINT8", "u1"),
    _integer("UINT16", "<u2"),
    _integer("UINT32", "<u4"),
    _integer("UINT64", "<u8"),
    _integer("INT8", "i1"),
    _integer("INT16", "<i2"),
    _integer("INT32", "<i4"),
    _integer("INT64", "<i8"),
    _float("FP16", "<f2", 5, 10),
    _float("FP32", "<f4", 8, 23),
    _float("FP64", "<f8", 11, 52),
    _float("BF16", "<u2", 8, 7, _bfloat16_to_float32, _float64_to_bfloat16, _bfloat16_is_finite),
    Datatype("BYTES", Kind.BYTES, 0, np.dtype("u1"), "i", _same, _same),
)

DATATYPES: dict[str, Datatype] = {row.name: row for row in _ROWS}
"""Every datatype by its name on the wire, in upper case (protocol 2.2)."""


def element_count(shape: tuple[int, ...]) -> int:
    """How many elements a tensor of *shape* has; 1 for `()`. Python integers: nothing overflows."""
    return math.prod(shape)


def count_text(count: int) -> str:
    """*count* for an error: of a shape that no tensor can have only how large it is at least."""
    return str(count) if count < 2**64 else "more than 2^64"
