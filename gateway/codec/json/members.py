"""JSON objects as members: split so that each value stays the text it came as, and put together again.

msgspec judges the text, which must be JSON in UTF-8; of two members with one key the last wins (protocol 1.6). NaN,
Infinity and -Infinity are taken beside what JSON allows: many servers and clients write them.

Not here: documents that arrive in pieces (`scanner`), and what any member means.
"""

from functools import lru_cache
from typing import TypeVar

import msgspec

from gateway.errors import CodecError

T = TypeVar("T")

Members = dict[str, bytes]
"""An object of JSON: each member's value is the text it came as."""

RawMembers = dict[str, msgspec.Raw]

HELD_PER_BYTE = 32
"""How many bytes of memory one byte of JSON takes at most when it has been split into members and protected.

Measured with tracemalloc: objects with one member (`{"":10},`) 31, empty objects 26; a mebibyte of members with names
of one character beyond U+FFFF 16, with NaN as values 19; arrays and long strings 1, of NaN 6.
"""

MAX_NAME_BYTES = 64 * 1024
"""The longest name, in an object that arrives in pieces, of a member whose value is long."""

EXCERPT_CHARACTERS = 64
"""How much of a wrong value an error shows."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS = msgspec.json.Decoder(list[list[msgspec.Raw]])
_ANY = msgspec.json.Decoder(msgspec.Raw)

_LITERALS = (b"-Infinity", b"Infinity", b"NaN")
_MARKER_VALUES = 10**7  # a short marker keeps a text that is all literals small


def parse_object(text: bytes) -> Members:
    """The members of the JSON object *text*.

    Raises `CodecError` if it is not JSON, not UTF-8, not an object, or nested too deep to be read.
    """
    text, marker = protect_literals(text)
    return restore_members(split_object(text), marker)


def parse_objects(text: bytes) -> list[Members]:
    """The members of each object in the JSON array *text*. Raises `CodecError` as `parse_object` does."""
    text, marker = protect_literals(text)
    return [restore_members(item, marker) for item in split_objects(text)]


def split_object(text: bytes) -> RawMembers:
    """As `parse_object`, of text in which literals are protected, and still are in the members."""
    return decoded(_OBJECT, text)


def split_objects(text: bytes) -> list[RawMembers]:
    """As `parse_objects`, of text in which literals are protected, and still are in the members."""
    return decoded(_OBJECTS, text)


def decoded(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """What *decoder* makes of *text*, in which literals are protected. Raises `CodecError` as `parse_object` does."""
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into the strings of a Raw
        return decoder.decode(text)
    except UnicodeDecodeError as error:
        raise CodecError(f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise CodecError("JSON is nested too deep to be read") from None
    except msgspec.DecodeError as error:
        words = str(error).replace("JSON is malformed", "malformed JSON")
        raise CodecError(words.replace("Input data was truncated", "JSON is cut off")) from None


def parse_list(text: bytes) -> list[bytes]:
    """The text of each value in the JSON array *text*. Raises `CodecError` as `parse_object` does."""
    text, marker = protect_literals(text)
    return [restore_literals(bytes(value), marker) for value in decoded(_LIST, text)]


def parse_lists(text: bytes) -> list[list[bytes]]:
    """The texts of the values in each array in the JSON array *text*. Raises `CodecError` as `parse_object` does."""
    text, marker = protect_literals(text)
    return [[restore_literals(bytes(value), marker) for value in item] for item in decoded(_LISTS, text)]


def check_json(text: bytes) -> None:
    """Raise `CodecError` unless *text* is one JSON value."""
    decoded(_ANY, protect_literals(text)[0])


def object_text(members: Members) -> bytes:
    """*members* as JSON, each value as it came."""
    return msgspec.json.encode({key: msgspec.Raw(value) for key, value in members.items()})


def excerpt(raw: bytes) -> str:
    """*raw* for an error message, cut to `EXCERPT_CHARACTERS`."""
    text = raw[: 4 * EXCERPT_CHARACTERS + 4].decode(errors="replace")
    return text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "..."


def protect_literals(text: bytes) -> tuple[bytes, bytes]:
    """Put arrays in place of NaN, Infinity and -Infinity: the text, and a marker for `restore_literals`.

    The marker is empty if there was nothing to protect. Strings that have these words in them are changed too, which
    restoring undoes. An array cannot join what stands beside it into one value, so what was no JSON still is none.
    """
    if b"NaN" not in text and b"Infinity" not in text:
        return text, b""
    # hash() is keyed per process, so a sender cannot predict the marker and write it, nor the next one that is tried
    marker = text
    while marker in text:
        marker = b"[1%07d" % (hash(marker) % _MARKER_VALUES)
    for stand_in, literal in _literals_of(marker).items():
        text = text.replace(literal, stand_in)
    return text, marker


def restore_literals(text: bytes, marker: bytes) -> bytes:
    """Undo `protect_literals` in *text*, a part of the text that it returned."""
    if not marker or marker not in text:
        return text
    for stand_in, literal in _literals_of(marker).items():
        text = text.replace(stand_in, literal)
    return text


def restore_members(members: RawMembers, marker: bytes) -> Members:
    """Undo `protect_literals` in the *members* of an object."""
    if not marker:
        return {key: bytes(value) for key, value in members.items()}
    literals = _literals_of(marker)
    word = marker.decode()
    restored = {}
    for key, value in members.items():
        text = bytes(value)
        if word in key:
            key = restore_literals(key.encode(), marker).decode()  # noqa: PLW2901  a name with such a word in it
        restored[key] = literals.get(text) or restore_literals(text, marker)
    return restored


@lru_cache(maxsize=1)  # one text has many parts
def _literals_of(marker: bytes) -> dict[bytes, bytes]:
    """Each literal by the array that stands in its place."""
    return {b"%b%d]" % (marker, index): literal for index, literal in enumerate(_LITERALS)}
