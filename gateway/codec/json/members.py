"""Small JSON objects: split into members whose values stay the text they came as, and put together again.

msgspec judges the text. Not here: documents that arrive in pieces (`scanner`).
"""

import re
from collections.abc import Generator
from typing import TypeVar

import msgspec
import orjson

from gateway.errors import CodecError

T = TypeVar("T")

Members = dict[str, bytes]
"""An object of JSON: each member's value is the text it came as."""

_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS_DECODER = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_ANY_DECODER = msgspec.json.Decoder(msgspec.Raw)

_MARKERS = 2**63 - 1
_LITERALS = (b"NaN", b"Infinity", b"-Infinity")
# A literal alone: what is put in its place must not join a neighbour into a number.
_STRING_OR_NONFINITE = re.compile(rb'"(?:[^"\\]++|\\.)*+"|(?<![-+.\w])(?:-?Infinity|NaN)(?![-+.\w])', re.DOTALL)


def parse_object(text: bytes) -> Members:
    """The members of the JSON object *text*, each as the JSON it came as; of two with one key the last.

    Raises `CodecError` if it is not JSON, not UTF-8, not an object, or nested too deep to be read.
    """
    return {key: bytes(value) for key, value in _decode(_OBJECT_DECODER, text).items()}


def parse_objects(text: bytes) -> list[Members]:
    """The same for a JSON array of objects."""
    return [{key: bytes(value) for key, value in item.items()} for item in _decode(_OBJECTS_DECODER, text)]


def sliced_object(text: bytes) -> Generator[None, None, Members]:
    """As `parse_object`, for an object of any length: yields after each step of work."""
    yield from ()
    return parse_object(text)


def sliced_objects(text: bytes, max_entries: int) -> Generator[None, None, list[Members]]:
    """As `parse_objects`, for an array of any length: yields after each step of work.

    Raises `CodecError` also if there are more than *max_entries* objects.
    """
    yield from ()
    entries = parse_objects(text)
    if len(entries) > max_entries:
        raise CodecError(f"more than {max_entries} entries; the limit is `limits.tensors`")
    return entries


def check_json(text: bytes) -> None:
    """Raise `CodecError` unless *text* is one JSON value, in UTF-8."""
    _decode(_ANY_DECODER, text)


def _decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
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


def members_of(raw: bytes, what: str) -> Members:
    """The members of a JSON object, unparsed. Raises `CodecError` naming *what* if it is none."""
    try:
        return parse_object(raw)
    except CodecError:
        raise CodecError(f"{what} must be an object, got {excerpt(raw)}") from None


def object_text(members: Members) -> bytes:
    """*members* as JSON, each value as it came."""
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(key), value) for key, value in members.items()]) + b"}"


def excerpt(raw: bytes) -> str:
    """*raw* for an error message, cut to a readable length."""
    text = raw.decode(errors="replace")
    return text if len(text) <= 64 else text[:64] + "..."


def protect_literals(text: bytes) -> tuple[bytes, bytes]:
    """Put numbers in place of NaN, Infinity and -Infinity: no JSON, but written by many servers and clients.

    Returns the text and a marker for `restore_literals`; the marker is empty if there was nothing to protect.
    """
    if b"NaN" not in text and b"Infinity" not in text:
        return text, b""
    # nobody can write down a number that depends on all that is written, so this is one look
    number = hash(text) & _MARKERS
    while (marker := b"1%019d" % number) in text:
        number = (number + 1) & _MARKERS

    def protect(match: re.Match[bytes]) -> bytes:
        return match[0] if match[0].startswith(b'"') else b"%b%d" % (marker, _LITERALS.index(match[0]))

    protected, _ = _STRING_OR_NONFINITE.subn(protect, text)
    return (protected, marker) if protected != text else (text, b"")


def sliced_protect(text: bytes) -> Generator[None, None, tuple[bytes, bytes]]:
    """As `protect_literals`, for a text of any length: yields after each step of work."""
    yield from ()
    return protect_literals(text)


def restore_literals(text: bytes, marker: bytes) -> bytes:
    """Undo `protect_literals`, in a part of what it returned."""
    if not marker:
        return text
    for index, literal in enumerate(_LITERALS):
        text = text.replace(b"%b%d" % (marker, index), literal)
    return text
