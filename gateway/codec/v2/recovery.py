"""The header length of a request whose client did not say it (protocol section 6), where nothing else of it is read.

Not here: requests that become JSON, which recover it while they are parsed (`request`).
"""

from collections.abc import Generator

from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits
from gateway.codec.v2.request_reading import Reserve, may_have_binary_parameters, read_request, reserve_nothing
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
    text = yield from read_request(body, None, limits, reserve, recover=True, unjudged=())
    return len(body) - len(text.blobs) if text is not None and len(text.blobs) else None
