"""What V2's JSON says of one tensor beside its data: name, datatype, shape, parameters.

The same rules and words for inputs and for outputs (protocol 2.2, 4.4); the caller says which of them it is. Not
here: the data, and what the parameters mean.
"""

from collections.abc import Generator
from typing import Annotated

import msgspec

from gateway.codec.json.members import Members, excerpt, members_of, sliced_object
from gateway.codec.tensors.datatypes import DATATYPES, Datatype
from gateway.codec.v2.steps import SHORT_BYTES
from gateway.errors import CodecError

MAX_RANK = 64
"""The most dimensions a shape may have; frameworks stop at 32 or 64."""

MAX_DIMENSION = 2**63 - 1
"""The largest dimension: shapes are 64-bit signed integers in every server."""

MAX_SHAPE_BYTES = 16 * 1024
"""The longest text of a shape that is read: `MAX_RANK` numbers of 19 digits, each on an indented line of its own."""

MEMBERS = ("name", "shape", "datatype", "parameters")
"""The order in which a tensor's members are written, behind others and before its `data` (protocol 3.2, 4.4)."""

_STRING = msgspec.json.Decoder(str)
_SHAPES = {
    lowest: msgspec.json.Decoder(
        Annotated[
            tuple[Annotated[int, msgspec.Meta(ge=lowest, le=MAX_DIMENSION)], ...], msgspec.Meta(max_length=MAX_RANK)
        ]
    )
    for lowest in (-1, 0)
}


def text_of(entry: Members, key: str) -> str | None:
    """The string that *entry* has at *key*; None if it has none there."""
    raw = entry.get(key)
    return _STRING.decode(raw) if raw is not None and raw[:1] == b'"' else None


def name_of(entry: Members, label: str) -> str:
    """The tensor's name (protocol 2.2). Raises `CodecError` that begins with *label* if it is no string."""
    name = text_of(entry, "name")
    if name is None:
        raise CodecError(f"{label}: name must be a string, got {_shown(entry, 'name')}")
    return name


def datatype_of(entry: Members, label: str) -> Datatype:
    """The tensor's datatype. Raises `CodecError` that begins with *label* for anything but the fourteen names."""
    name = text_of(entry, "datatype") or ""
    datatype = DATATYPES.get(name)
    if datatype is None:
        hint = f'; datatypes are in upper case, "{name.upper()}"' if name.upper() in DATATYPES else ""
        raise CodecError(
            f"{label}: datatype must be one of {' '.join(DATATYPES)}, got {_shown(entry, 'datatype')}{hint}"
        )
    return datatype


def shape_of(entry: Members, label: str) -> tuple[int, ...]:
    """The tensor's shape. Raises `CodecError` that begins with *label* for anything but a list of integers >= 0."""
    shape = parse_shape(entry.get("shape", b""))
    if shape is None:
        raise CodecError(
            f"{label}: shape must be a list of at most {MAX_RANK} integers >= 0, got {_shown(entry, 'shape')}"
        )
    return shape


def parse_shape(raw: bytes, lowest: int = 0) -> tuple[int, ...] | None:
    """The shape that *raw* (JSON) says; None unless it is an array of at most `MAX_RANK` integers >= *lowest*."""
    if len(raw) > MAX_SHAPE_BYTES or (lowest == 0 and b"-" in raw):  # with a minus sign even 0 is refused
        return None
    try:
        shape: tuple[int, ...] = _SHAPES[lowest].decode(raw)
    except msgspec.DecodeError:
        return None
    return shape


def parse_parameters(text: bytes, where: str) -> Members:
    """The `parameters` that *text* says; none if it is null (protocol 2.8).

    Raises `CodecError` that begins with *where* if it is no object.
    """
    return members_of(text, f"{where}parameters") if text != b"null" else {}


def sliced_parameters(text: bytes, where: str) -> Generator[None, None, Members]:
    """As `parse_parameters`, for a *text* of any length: yields after each step of work."""
    if len(text) <= SHORT_BYTES:
        return parse_parameters(text, where)
    try:
        return (yield from sliced_object(text))
    except CodecError:
        raise CodecError(f"{where}parameters must be an object, got {excerpt(text)}") from None


def _shown(entry: Members, key: str) -> str:
    return excerpt(entry[key]) if key in entry else "none"
