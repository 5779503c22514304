"""The header length of a request whose client did not say it (protocol section 6), where nothing else of it is read.

Not here: requests that become JSON, which recover it while they are parsed (`request`).
"""

from collections.abc import Generator

from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, TensorPolicy
from gateway.codec.v2.request_header import HeaderParser
from gateway.codec.v2.request_reading import Reserve, may_have_binary_parameters, reserve_nothing
from gateway.errors import CodecError


def find_header_length(
    body: memoryview, limits: HeaderLimits = DEFAULT_LIMITS, *, reserve: Reserve = reserve_nothing
) -> Generator[None, None, int | None]:
    """How many bytes of *body* are its JSON, if blobs follow them; None if it is JSON, or nothing, to its end.

    *reserve* is called as by `InferRequest.parse`. Yields after each step of work. Raises `CodecError` as that does.
    """
    if not body:
        raise CodecError("empty request body")  # protocol 1.6
    if not (yield from may_have_binary_parameters(body)):
        return None
    parsed = yield from HeaderParser(body, None, TensorPolicy(), limits, reserve, recover=True).parse_if_binary()
    if parsed is None:
        return None
    _, blobs = parsed
    return len(body) - len(blobs) if len(blobs) else None
