"""JSON objects as members: split so that each value stays the text it came as, and put together again.

msgspec judges the text, which must be strict JSON in UTF-8; of two members with one key the last wins (protocol 1.6).
A short text is one call. A long one (a header may have a mebibyte) takes the `sliced_` functions, generators that
yield after each step of about half a millisecond and come to the same end.

Not here: documents that arrive in pieces (`scanner`), and what any member means.
"""

import re
from collections.abc import Container, Generator, Iterable
from itertools import islice
from typing import TypeVar

import msgspec
import orjson

from gateway.codec.json.brackets import ARRAY, END_ARRAY, END_OBJECT, OBJECT, STEP_TOKENS, skip_inside_string
from gateway.codec.json.items import RUN_BYTES, end_of_run
from gateway.codec.json.prover import Prover
from gateway.codec.tensors.pieces import NOT_SPACE, PIECE_BYTES
from gateway.errors import CodecError

T = TypeVar("T")

Members = dict[str, bytes]
"""An object of JSON: each member's value is the text it came as."""

HELD_PER_BYTE = 30
"""How many bytes of memory one byte of JSON takes at most when it has been split into members and protected.

Measured with tracemalloc: objects with one member (`{"":10},`) 29, empty objects 26; a mebibyte of members with names
of one character beyond U+FFFF 16, with NaN as values 19; arrays and long strings 1, of NaN 6.
"""

WHOLE_BYTES = RUN_BYTES
"""The longest text that the `sliced_` functions parse in one call."""

MAX_NAME_BYTES = 64 * 1024
"""The longest name, in a long object, of a member that takes several steps."""

EXCERPT_CHARACTERS = 64
"""How much of a wrong value an error shows."""

_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS_DECODER = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_LIST_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_LISTS_DECODER = msgspec.json.Decoder(list[list[msgspec.Raw]])
_ANY_DECODER = msgspec.json.Decoder(msgspec.Raw)
_NAME_DECODER = msgspec.json.Decoder(str)
_COMMA = ord(",")
_NAME = re.compile(rb'[ \t\r\n]*+("(?:[^"\\]++|\\.)*+")[ \t\r\n]*+:', re.DOTALL)

_LITERALS = (b"NaN", b"Infinity", b"-Infinity")
_LONGEST_LITERAL = len(b"-Infinity")
_MARKER_VALUES = 10**7  # a short marker keeps a text that is all literals small
# A whole string, one that goes on behind the window (1), or a literal (2). A literal stands alone: what is put in its
# place must not join a neighbour into a number.
_STRING_OR_LITERAL = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|(\\?\Z))|(?<![-+.\w])(-?Infinity|NaN)(?![-+.\w])', re.DOTALL)


def parse_object(text: bytes) -> Members:
    """The members of the JSON object *text*.

    Raises `CodecError` if it is not JSON, not UTF-8, not an object, or nested too deep to be read.
    """
    return {key: bytes(value) for key, value in _decode(_OBJECT_DECODER, text).items()}


def parse_objects(text: bytes) -> list[Members]:
    """The members of each object in the JSON array *text*. Raises `CodecError` as `parse_object` does."""
    return [{key: bytes(value) for key, value in item.items()} for item in _decode(_OBJECTS_DECODER, text)]


def parse_list(text: bytes) -> list[bytes]:
    """The text of each value in the JSON array *text*. Raises `CodecError` as `parse_object` does."""
    return [bytes(value) for value in _decode(_LIST_DECODER, text)]


def parse_lists(text: bytes) -> list[list[bytes]]:
    """The texts of the values in each array in the JSON array *text*. Raises `CodecError` as `parse_object` does."""
    return [[bytes(value) for value in item] for item in _decode(_LISTS_DECODER, text)]


def check_json(text: bytes) -> None:
    """Raise `CodecError` unless *text* is one JSON value."""
    _decode(_ANY_DECODER, text)


def sliced_object(text: bytes) -> Generator[None, None, Members]:
    """As `parse_object`, for an object of any length: yields after each step of work.

    In a long object, values may be nested up to `MAX_TEXT_DEPTH` deep, and names have at most `MAX_NAME_BYTES`.
    """
    if len(text) <= WHOLE_BYTES:
        return parse_object(text)
    start = yield from _skip_blanks(text, 0)
    if text[start] != OBJECT:
        raise CodecError("expected an object")
    members, end = yield from _members_from(text, start + 1, None)
    yield from _check_end(text, end)
    return members


def sliced_objects(
    text: bytes, max_entries: int, wanted: Container[str] | None = None
) -> Generator[None, None, list[Members]]:
    """As `parse_objects`, for an array of any length: yields after each step of work.

    Only members with *wanted* names are kept, None: all. The others must be valid JSON too.
    Raises `CodecError` also for more than *max_entries* objects, as soon as they are there.
    """
    if len(text) <= WHOLE_BYTES:
        entries = [_only(entry, wanted) for entry in parse_objects(text)]
        _check_entries(entries, max_entries)
        return entries
    start = yield from _skip_blanks(text, 0)
    if text[start] != ARRAY:
        raise CodecError("expected an array")
    entries = []
    while text[start] != END_ARRAY:
        start = yield from _skip_blanks(text, start + 1)
        if text[start] == END_ARRAY and not entries:
            break
        end = end_of_run(text, start, END_ARRAY)
        if end == start:
            raise CodecError("malformed JSON: a comma without a value beside it")
        if end:
            entries += [_only(entry, wanted) for entry in parse_objects(b"[%b]" % text[start:end])]
        elif text[start] == OBJECT:
            members, end = yield from _members_from(text, start + 1, wanted)
            entries.append(members)
            end = yield from _separator(text, end, END_ARRAY)
        else:
            raise CodecError(f"expected an object, got {excerpt(text[start : start + 256])}")
        _check_entries(entries, max_entries)
        start = end
        yield
    yield from _check_end(text, start + 1)
    return entries


def _members_from(text: bytes, start: int, wanted: Container[str] | None) -> Generator[None, None, tuple[Members, int]]:
    """The members of the object whose bracket opens before *start*, and where it ends behind its closing bracket."""
    members: Members = {}
    start -= 1
    is_empty = True
    while text[start] != END_OBJECT:
        start = yield from _skip_blanks(text, start + 1)
        if text[start] == END_OBJECT and is_empty:
            break
        is_empty = False
        end = end_of_run(text, start, END_OBJECT)
        if end == start:
            raise CodecError("malformed JSON: a comma without a member beside it")
        if end:
            members |= _only(parse_object(b"{%b}" % text[start:end]), wanted)
        else:
            name = _NAME.match(text, start, start + MAX_NAME_BYTES)
            if name is None:
                raise CodecError(f"expected a member, got {excerpt(text[start : start + 256])}")
            value_start = yield from _skip_blanks(text, name.end())
            value_end = yield from _prove(text, value_start)
            key = _decode(_NAME_DECODER, name[1])
            if wanted is None or key in wanted:
                members[key] = text[value_start:value_end]
            end = yield from _separator(text, value_end, END_OBJECT)
        start = end
        yield
    return members, start + 1


def _only(members: Members, wanted: Container[str] | None) -> Members:
    return members if wanted is None else {key: value for key, value in members.items() if key in wanted}


def _prove(text: bytes, start: int) -> Generator[None, None, int]:
    """Where the value ends that begins at *start*. Raises `CodecError` if it is no JSON."""
    prover = Prover(check_json)
    view = memoryview(text)
    while not prover.done:
        taken = prover.step(view[start:])
        if not taken:
            raise CodecError("JSON is cut off")
        start += taken
        yield
    return start


def _skip_blanks(text: bytes, start: int) -> Generator[None, None, int]:
    """The first byte from *start* on that is not blank. Raises `CodecError` if there is none."""
    while start < len(text):
        first = NOT_SPACE.search(text, start, start + PIECE_BYTES)
        if first is not None:
            return first.start()
        start += PIECE_BYTES
        yield
    raise CodecError("JSON is cut off")


def _separator(text: bytes, start: int, closing: int) -> Generator[None, None, int]:
    """Where the comma or the *closing* bracket stands behind an item that ends at *start*."""
    start = yield from _skip_blanks(text, start)
    if text[start] not in (_COMMA, closing):
        raise CodecError(f"malformed JSON: expected a comma, got {excerpt(text[start : start + 256])}")
    return start


def _check_end(text: bytes, end: int) -> Generator[None, None, None]:
    for start in range(end, len(text), PIECE_BYTES):
        if NOT_SPACE.search(text, start, start + PIECE_BYTES):
            raise CodecError(f"malformed JSON: more follows its end at byte {end}")
        yield


def _check_entries(entries: list[Members], max_entries: int) -> None:
    if len(entries) > max_entries:
        raise CodecError(f"more than {max_entries} entries, which is the most that `limits.tensors` allows")


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
    """The members of the JSON object *raw*. Raises `CodecError` naming *what* if it is none."""
    try:
        return parse_object(raw)
    except CodecError:
        raise CodecError(f"{what} must be an object, got {excerpt(raw)}") from None


def object_text(members: Members) -> bytes:
    """*members* as JSON, each value as it came."""
    return b"{" + b",".join([b"%b:%b" % (orjson.dumps(key), value) for key, value in members.items()]) + b"}"


def put_last(members: Members, keys: Iterable[str]) -> None:
    """Move the members with these *keys* behind all others, in the order of *keys*."""
    for key in keys:
        if key in members:
            members[key] = members.pop(key)


def excerpt(raw: bytes) -> str:
    """*raw* for an error message, cut to `EXCERPT_CHARACTERS`."""
    text = raw[: 4 * EXCERPT_CHARACTERS + 4].decode(errors="replace")
    return text if len(text) <= EXCERPT_CHARACTERS else text[:EXCERPT_CHARACTERS] + "..."


def protect_literals(text: bytes) -> tuple[bytes, bytes]:
    """Put numbers in place of NaN, Infinity and -Infinity: no JSON, but written by many servers and clients.

    Returns the text and a marker for `restore_literals`; the marker is empty if there was nothing to protect.
    """
    if b"NaN" not in text and b"Infinity" not in text:
        return text, b""
    protection = sliced_protect(text)
    while True:
        try:
            next(protection)
        except StopIteration as stop:
            protected: tuple[bytes, bytes] = stop.value
            return protected


def sliced_protect(text: bytes) -> Generator[None, None, tuple[bytes, bytes]]:
    """As `protect_literals`, for a text of any length: yields after each step of work."""
    if b"NaN" not in text and b"Infinity" not in text:
        return text, b""
    # a fraction, for NaN must not pass for an integer in a shape or a size
    # hash() is keyed per process, so a sender cannot predict the marker and write it, nor the next one that is tried
    marker = text
    while marker in text:
        marker = b"1.%07d" % (hash(marker) % _MARKER_VALUES)
    protected = bytearray()
    copied = position = 0
    inside_string = False
    while position < len(text):
        if inside_string:
            end, is_closed = skip_inside_string(text, position)
            if end == position:
                break  # the text ends with a backslash; whoever parses it will say so
            position, inside_string = end, not is_closed
            yield
            continue
        limit = min(len(text), position + PIECE_BYTES)
        tokens = list(islice(_STRING_OR_LITERAL.finditer(text, position, limit), STEP_TOKENS))
        if len(tokens) < STEP_TOKENS:
            # a literal that is cut at the window's end is looked at again with what follows it
            position = limit if limit == len(text) else limit - _LONGEST_LITERAL
        for token in tokens:
            if token[1] is not None:
                inside_string = True
                position = token.start() + 1
            elif token[2] is not None and token.end() == limit < len(text):
                position = token.start()
            else:
                position = max(position, token.end())
                if token[2] is not None:
                    protected += b"%b%b%d" % (text[copied : token.start()], marker, _LITERALS.index(token[2]))
                    copied = token.end()
        yield
    if not copied:
        return text, b""
    protected += text[copied:]
    return bytes(protected), marker


def restore_literals(text: bytes, marker: bytes) -> bytes:
    """Undo `protect_literals`, in a part of what it returned."""
    if not marker:
        return text
    for index, literal in enumerate(_LITERALS):
        text = text.replace(b"%b%d" % (marker, index), literal)
    return text
