"""The sequence that a request belongs to, `parameters.sequence_id`, found before the request is parsed.

It chooses the endpoint that gets the request, also of JSON that nobody judges (protocol 8.4). Not here: the choice.
"""

import re
from collections.abc import Generator

import msgspec

from gateway.codec.json.member_finder import MemberFinder
from gateway.codec.v2.request_reading import contains

MAX_STEPS = 8 * 1024
"""How many steps a request's JSON is walked through for its sequence: about 128 MiB of numbers in flat or nested
arrays, less of what has more brackets. A step takes at most about half a millisecond, usually a tenth."""

MAX_ID_BYTES = 1024
"""The longest sequence id that is read, as JSON text; Triton allows 128 characters."""

_WORDS = (b"sequence_id", b"\\u00")
"""The name, and an escape that may hide it: where neither is, the walk through the JSON is spared."""

_VALUE = re.compile(rb'[ \t\r\n]*+(?:("(?:[^"\\]++|\\.)++")|(-?[1-9][0-9]*)(?=[ \t\r\n,}]))', re.DOTALL)
_STRING = msgspec.json.Decoder(str)


def find_sequence_id(body: memoryview, header_length: int | None) -> Generator[None, None, str | None]:
    """The sequence id of the request in *body*; None if it has none. Yields after each step of work.

    *header_length* is the client's, None if it sent none: then the JSON ends where its first value ends. A number and
    a string of the same digits are the same id. 0, the empty string and null are none (as for Triton), and so are
    values that are neither a string nor an integer, and what comes after `MAX_STEPS`. Of several the last counts.
    Nothing is judged: in a broken body anything may be found.
    """
    text = body if header_length is None else body[:header_length]
    if not (yield from contains(text, _WORDS)):
        return None
    finder = MemberFinder("parameters", "sequence_id")
    found: str | None = None
    position = 0
    for _ in range(MAX_STEPS):
        taken = finder.step(text[position:])
        if not taken:
            break
        position += taken
        if finder.found:
            found = _read(bytes(text[position : position + MAX_ID_BYTES]))
        elif finder.depth == 0 and bytes(text[position - 1 : position]) == b"}":
            break
        yield
    return found


def _read(text: bytes) -> str | None:
    value = _VALUE.match(text)
    if value is None:
        return None
    if value[2] is not None:
        return value[2].decode()
    try:
        return _STRING.decode(value[1]) or None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
