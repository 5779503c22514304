"""JSON objects as members: split so that each value stays the text it came as, and put together again.

msgspec judges the text, which must be JSON in UTF-8; of two members with one key the last wins (protocol 1.6). NaN,
Infinity and -Infinity are taken beside what JSON allows: many servers and clients write them.
"""

import re
import secrets
from typing import TypeVar

import msgspec

from gateway.errors import CodecError

T = TypeVar("T")

Members = dict[str, bytes]
"""An object of JSON: each member's value is the text it came as."""

HELD_PER_BYTE = 32
"""How many bytes of memory one byte of JSON takes at most when it has been split into members and protected.

Measured with tracemalloc: objects with one member (`{"":10},`) 31, empty objects 26; a mebibyte of members with names
of one character beyond U+FFFF 16, with NaN as values 19; arrays and long strings 1, of NaN 5.
"""

MAX_NAME_BYTES = 64 * 1024
"""The longest name, in an object that arrives in pieces, of a member whose value is long."""

EXCERPT_CHARACTERS = 64
"""How much of a wrong value an error shows."""

OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
OBJECTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
LISTS = msgspec.json.Decoder(list[list[msgspec.Raw]])
_ANY = msgspec.json.Decoder(msgspec.Raw)

STAND_IN = b"[1%014d" % secrets.randbelow(10**14)
"""What the stand-ins for literals begin with: a number that no sender can know, and so write."""

_AT_BYTE = re.compile(r"(?<=\(byte )[0-9]+")
"""Where in a text the words of an error say that it is wrong."""

_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})(?!\\u[dD][c-fC-F])")
"""Half of a pair, as servers write it that cut a text inside of an emoji; the decoder takes it for the text's end."""

_STAND_INS = {
    literal: b"%b%d]" % (STAND_IN, index) for index, literal in enumerate((b"-Infinity", b"Infinity", b"NaN"))
}


def parse_object(text: bytes) -> Members:
    """The members of the JSON object *text*.

    Raises `CodecError` if it is not JSON, not UTF-8, not an object, or nested too deep to be read.
    """
    return restore_members(decoded(OBJECT, text))


def decoded(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    """What *decoder* makes of *text*, with stand-ins for literals. Raises `CodecError` as `parse_object` does."""
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into the strings of a Raw
        return decoder.decode(text)
    except UnicodeDecodeError as error:
        raise CodecError(f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise CodecError("JSON is nested too deep to be read") from None
    except msgspec.DecodeError as error:
        # looking for literals first takes longer than decoding
        protected = protect_literals(text)
        if protected != text:
            return decoded(decoder, protected)
        words = _AT_BYTE.sub(lambda at: str(len(restore_literals(text[: int(at[0])]))), str(error))
        words = words.replace("JSON is malformed", "malformed JSON")
        if "Expected" not in words and (lone := _LONE_SURROGATE.search(text)) is not None:
            words = f"malformed JSON: a lone surrogate, {lone[1].decode()}, in a string"
        raise CodecError(words.replace("Input data was truncated", "JSON is cut off")) from None


def parse_list(text: bytes) -> list[bytes]:
    """The text of each value in the JSON array *text*. Raises `CodecError` as `parse_object` does."""
    return [restore_literals(bytes(value)) for value in decoded(_LIST, text)]


def check_json(text: bytes) -> None:
    """Raise `CodecError` unless *text* is one JSON value."""
    decoded(_ANY, text)


def object_text(members: Members) -> bytes:
    """*members* as JSON, each value as it came."""
    return msgspec.json.encode({key: msgspec.Raw(value) for key, value in members.items()})


def excerpt(raw: bytes) -> str:
    """*raw* for an error message, cut to `EXCERPT_CHARACTERS`; stand-ins in it are undone."""
    beginning = restore_literals(raw[: 8 * (4 * EXCERPT_CHARACTERS + 4)])  # a stand-in has up to six times the bytes
    text = beginning[: 4 * EXCERPT_CHARACTERS + 4].decode(errors="replace")
    return text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "..."


def protect_literals(text: bytes) -> bytes:
    """Put stand-ins, which are arrays, in place of NaN, Infinity and -Infinity.

    Strings that have these words in them are changed too, which `restore_literals` undoes. An array cannot join what
    stands beside it into one value, so what was no JSON still is none.
    """
    for literal, stand_in in _STAND_INS.items():
        text = text.replace(literal, stand_in)
    return text


def restore_literals(text: bytes) -> bytes:
    """Undo `protect_literals` in *text*, a part of the text that it returned."""
    if text.find(STAND_IN) < 0:  # `in` first takes the bytes that it searches for a number, and drops a TypeError
        return text
    for literal, stand_in in _STAND_INS.items():
        text = text.replace(stand_in, literal)
    return text


def restore_members(members: dict[str, msgspec.Raw]) -> Members:
    """Undo `protect_literals` in the *members* of an object."""
    if not members:
        return {}
    texts = restore_literals(b"\0".join(members.values())).split(b"\0")  # no JSON has this byte
    names = list(members)
    if STAND_IN.decode() in "".join(names):
        names = [restore_literals(name.encode()).decode() for name in names]
    return dict(zip(names, texts, strict=True))
