"""What V2's JSON says of one tensor beside its data: name, datatype, shape, parameters.

The same rules and words for inputs and for outputs (protocol 2.2, 4.4); the caller says which of them it is. Not
here: the data, and what the parameters mean.
"""

from typing import Annotated

import msgspec
from msgspec import Raw

from gateway.codec.inference import label_of
from gateway.codec.json.members import excerpt
from gateway.codec.tensors.datatypes import DATATYPES, Datatype
from gateway.codec.v2.messages import Entry, text_of
from gateway.errors import CodecError

MAX_RANK = 64
"""The most dimensions a shape may have; frameworks stop at 32 or 64."""

MAX_DIMENSION = 2**63 - 1
"""The largest dimension: shapes are 64-bit signed integers in every server."""

MAX_SHAPE_BYTES = 16 * 1024
"""The longest text of a shape that is read: `MAX_RANK` numbers of 19 digits, each on an indented line of its own."""

_BY_TEXT = {b'"%b"' % name.encode(): datatype for name, datatype in DATATYPES.items()}
_SHAPES = {
    lowest: msgspec.json.Decoder(
        Annotated[
            tuple[Annotated[int, msgspec.Meta(ge=lowest, le=MAX_DIMENSION)], ...], msgspec.Meta(max_length=MAX_RANK)
        ]
    )
    for lowest in (-1, 0)
}


def name_of(entry: Entry, section: str, index: int) -> str:
    """The tensor's name (protocol 2.2); *entry* is number *index* of its *section*, `input` or `output`.

    Raises `CodecError` if it is no string, and the functions below for what they do not expect.
    """
    name = text_of(entry.get("name"))
    if name is None:
        raise CodecError(f"{section} {index}: name must be a string, got {_shown(entry.get('name'))}")
    return name


def datatype_of(entry: Entry, section: str, tensor: str) -> Datatype:
    """The datatype of the *tensor* with this name: one of fourteen."""
    text = entry.get("datatype")
    datatype = _BY_TEXT.get(bytes(text or b"")) or DATATYPES.get(text_of(text) or "")
    if datatype is None:
        name = (text_of(text) or "").upper()
        hint = f'; datatypes are in upper case, "{name}"' if name in DATATYPES else ""
        label, names = label_of(section, tensor), " ".join(DATATYPES)
        raise CodecError(f"{label}: datatype must be one of {names}, got {_shown(text)}{hint}")
    return datatype


def shape_of(entry: Entry, section: str, tensor: str) -> tuple[int, ...]:
    """The shape of the *tensor* with this name: a list of integers >= 0."""
    text = entry.get("shape")
    shape = parse_shape(bytes(text or b""))
    if shape is None:
        expected = f"a list of at most {MAX_RANK} integers >= 0"
        raise CodecError(f"{label_of(section, tensor)}: shape must be {expected}, got {_shown(text)}")
    return shape


def parse_shape(raw: bytes, lowest: int = 0) -> tuple[int, ...] | None:
    """The shape that *raw* (JSON) says; None unless it is an array of at most `MAX_RANK` integers >= *lowest*."""
    if len(raw) > MAX_SHAPE_BYTES:
        return None
    try:
        shape: tuple[int, ...] = _SHAPES[lowest].decode(raw)
    except msgspec.DecodeError:
        return None
    return None if 0 in shape and lowest == 0 and b"-" in raw else shape  # with a minus sign even 0 is refused


def _shown(value: Raw | None) -> str:
    return "none" if value is None else excerpt(bytes(value))
