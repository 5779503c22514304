"""What V2's JSON says of one tensor beside its data: name, datatype and shape.

The same rules and words for inputs and for outputs (protocol 2.2, 4.4); the caller says which of them it is. Not
here: the data, and what the parameters mean.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from gateway.codec.inference import label_of
from gateway.codec.json.members import STAND_IN, excerpt, restore_literals
from gateway.codec.tensors.datatypes import DATATYPES, Datatype
from gateway.codec.v2.messages import Entry, text_of
from gateway.errors import CodecError

MAX_RANK = 64
"""The most dimensions a shape may have; frameworks stop at 32 or 64."""

MAX_DIMENSION = 2**63 - 1
"""The largest dimension: shapes are 64-bit signed integers in every server."""

Declaration = tuple[str, Datatype, tuple[int, ...]]
"""Name, datatype and shape."""

_Shape = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_DIMENSION)], ...], Meta(max_length=MAX_RANK)]
_STRING = msgspec.json.Decoder(str)
_SHAPE = msgspec.json.Decoder(_Shape)
_DECLARATION = msgspec.json.Decoder(tuple[str, Literal[tuple(DATATYPES)], _Shape])  # type: ignore[misc]


def declaration(entry: Entry, section: str, index: int) -> Declaration:
    """What *entry*, number *index* of its *section*, `input` or `output`, says of its tensor (protocol 2.2).

    Raises `CodecError` for a name that is no string, a datatype that is none of the fourteen, and a shape that is no
    list of integers >= 0.
    """
    try:
        text = b"[%b,%b,%b]" % (entry["name"], entry["datatype"], entry["shape"])
        name, datatype, shape = _DECLARATION.decode(restore_literals(text) if STAND_IN in text else text)
    except (KeyError, msgspec.DecodeError):
        raise CodecError(_what_is_wrong(entry, section, index)) from None
    return name, DATATYPES[datatype], shape


def name_of(entry: Entry, section: str, index: int) -> str:
    """The tensor's name, of an *entry* as for `declaration`. Raises `CodecError` if it is no string (protocol 2.2)."""
    try:
        text = bytes(entry["name"])
        name: str = _STRING.decode(restore_literals(text) if STAND_IN in text else text)
    except (KeyError, msgspec.DecodeError):
        raise CodecError(f"{section} {index}: name must be a string, got {_shown(entry.get('name'))}") from None
    return name


def _what_is_wrong(entry: Entry, section: str, index: int) -> str:
    name = name_of(entry, section, index)
    text, shape = entry.get("datatype"), entry.get("shape")
    datatype = text_of(text) or ""
    label = label_of(section, name)
    if datatype in DATATYPES:
        return f"{label}: shape must be a list of at most {MAX_RANK} integers >= 0, got {_shown(shape)}"
    name = datatype.upper()
    hint = f'; datatypes are in upper case, "{name}"' if name in DATATYPES else ""
    return f"{label}: datatype must be one of {' '.join(DATATYPES)}, got {_shown(text)}{hint}"


def _shown(value: Raw | None) -> str:
    return "none" if value is None else excerpt(bytes(value))
