"""Values of tensors from JSON text that is there as a whole and short: in a few calls, where that can be done.

Sinks read text of any length, in pieces; they take six times as long for sixteen numbers, and three times for a
thousand. What is read here is what a sink makes of it, and whatever has to be looked at more closely is left to one.
"""

import math
from itertools import chain

import msgspec
import orjson

from gateway.codec.tensors.datatypes import BYTES, Datatype
from gateway.codec.tensors.elements import PREFIX_BYTES
from gateway.codec.tensors.nesting import MAX_DEPTH
from gateway.codec.tensors.number_parsing import read_few, read_flat
from gateway.codec.tensors.number_reading import PROTO3_TEXTS

SHORT_BYTES = 8 * 1024
"""The longest text of strings, or of nested numbers, that is read here: each value is looked at."""


class Value(msgspec.Struct, frozen=True, gc=False):
    """A tensor, or a part of it."""

    shape: tuple[int, ...]
    blobs: list[memoryview]
    nonfinite: int = 0

    @property
    def n_bytes(self) -> int:
        """Its size on the wire."""
        return sum(map(len, self.blobs))


def shaped_blob(text: bytes, datatype: Datatype, shape: tuple[int, ...]) -> memoryview | None:
    """The value of *shape* that *text* is, nested or flat, on the wire; None for one that a sink has to look at."""
    if text[:1] != b"[":
        return None
    n_elements = math.prod(shape)
    if datatype.kind is BYTES or text.find(b"[", 1) > 0:
        value = short_value(text, datatype)
        return value.blobs[0] if value is not None and value.shape in (shape, (n_elements,)) else None
    blob = read_few(text, datatype, n_elements) or read_flat(text, datatype, n_elements)
    return memoryview(blob) if blob else None


def short_value(text: bytes, datatype: Datatype, *, takes_texts: bool = False) -> Value | None:
    """The value that *text* is, whose nesting says its shape; None for one that a sink has to look at.

    *takes_texts*: numbers may be texts.
    """
    if len(text) > SHORT_BYTES:
        return None
    shape: list[int] = []
    try:
        level = [orjson.loads(text)]
        while isinstance(level[0], list):
            lengths = set(map(list.__len__, level))  # refuses what is no list
            if len(lengths) > 1 or 0 in lengths or len(shape) == MAX_DEPTH:
                return None
            shape += lengths
            level = list(chain.from_iterable(level))
    except (orjson.JSONDecodeError, TypeError):
        return None
    types = set(map(type, level))
    if list in types:
        return None
    if datatype.kind is not BYTES:
        has_texts = types == {str} and (takes_texts or datatype.name in PROTO3_TEXTS)
        flat = _flat(text, level, has_texts=has_texts)
        blob = read_few(flat, datatype, len(level)) or read_flat(flat, datatype, len(level))
    elif types == {str}:
        elements = map(str.encode, level)
        blob = b"".join([len(element).to_bytes(PREFIX_BYTES, "little") + element for element in elements])
    else:
        blob = None
    return Value(tuple(shape), [memoryview(blob)]) if blob else None


def _flat(text: bytes, items: list[str], *, has_texts: bool) -> bytes:
    """The numbers in *text*, which has *items*, in one list; empty if they are texts that a sink has to look at.

    The reader finds as many numbers as there are texts only if none of these has a comma.
    """
    if not has_texts:
        return b"[%b]" % text.translate(None, b"[]")
    flat = ",".join(items)
    return b"[%b]" % flat.encode() if "[" not in flat and "]" not in flat and b"\\" not in text else b""
