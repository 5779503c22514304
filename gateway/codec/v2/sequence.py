"""The sequence that a request belongs to, `parameters.sequence_id`, found before the request is parsed.

It chooses the endpoint that gets the request, also of JSON that nobody judges (protocol 8.4). Not here: the choice.
"""

import re
from collections.abc import Generator

from msgspec import Raw

from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits
from gateway.codec.json.members import restore_literals
from gateway.codec.v2.messages import text_of
from gateway.codec.v2.request_reading import Reserve, contains, read_request, reserve_nothing
from gateway.errors import CodecError

MAX_ID_BYTES = 1024
"""The longest sequence id that is read, as JSON text; Triton allows 128 characters."""

_WORDS = (b"sequence_id", b"\\u00")
"""The name, and an escape that may hide it: where neither is, reading the JSON is spared."""

_INTEGER = re.compile(rb"-?[1-9][0-9]*")


def find_sequence_id(
    body: memoryview,
    header_length: int | None,
    limits: HeaderLimits = DEFAULT_LIMITS,
    reserve: Reserve = reserve_nothing,
) -> Generator[None, None, str | None]:
    """The sequence id of the request in *body*; None if it has none. Yields after each step of work.

    *header_length* is the client's, None if it sent none: then the JSON ends where its first value ends. A number and
    a string of the same digits are the same id. 0, the empty string and null are none (as for Triton), and so are
    values that are neither a string nor an integer. Nothing is judged: what cannot be read has none. *reserve* is asked
    as by `read_request`.
    """
    if not (yield from contains(body if header_length is None else body[:header_length], *_WORDS)):
        return None
    try:
        text = yield from read_request(body, header_length, limits, reserve, recover=True)
    except CodecError:
        return None
    assert text is not None  # it is judged
    value = restore_literals(bytes((text.request.get("parameters") or {}).get("sequence_id", b"")))
    if len(value) > MAX_ID_BYTES:
        return None
    return value.decode() if _INTEGER.fullmatch(value) else text_of(Raw(value)) or None
