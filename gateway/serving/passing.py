"""Inferences for servers that read the binary extension themselves: they pass through as they come.

Bodies stream in both directions. There are three reasons to read a request's body first: it is small; it is compressed,
and few servers inflate; or it has no header length, which the gateway then finds (protocol section 6). The limits of
bodies hold; the content of tensors is not checked. Before an attempt at an endpoint that has not said that it reads
binary, the request is handed back to be transcoded (protocol 11.5).

Not here: whether a server reads the extension (`backend.speaking`).
"""

import re
from collections.abc import Awaitable, Callable

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer, Read
from gateway.backend.upstream import Upstream
from gateway.codec import HEADER_LENGTH, Framing, MemberReplacer, find_header_length
from gateway.errors import CodecError, ErrorKind, GatewayError, blamed
from gateway.exchange import Format
from gateway.plan import BackendPlan
from gateway.policy.crossing import Fields, relayed_to_client, renamed_to_client
from gateway.serving.call import Answered, Call
from gateway.serving.relaying import UPLOAD_BYTES, begin_upload, stream, streamed

WHOLE_BYTES = 1024 * 1024
"""A body of at most this Content-Length is read to its end before it is sent, instead of being streamed.

Such a body can be sent again, so the request goes over a kept connection. For an image of 600 KB this takes 0.6 times
the processor time of streaming over a new connection, and 0.5 times with TLS; with 4 MB the difference is gone
(measured).
"""

_HEADER_LENGTH = HEADER_LENGTH.lower()
_BYTES = "application/octet-stream"
_DIGITS = re.compile("[0-9]{1,18}", re.ASCII)
# Fields that say how the body is to be read; the longer set also has fields that describe a compressed body.
_REPLACED = frozenset({_HEADER_LENGTH, "content-type"})
_REPLACED_INFLATED = _REPLACED | {"content-digest", "content-encoding", "content-md5", "digest", "repr-digest"}


async def pass_through(
    call: Call,
    upstream: Upstream,
    backend: BackendPlan,
    framing: Framing,
    body: memoryview | None,
    transcode: Callable[[memoryview], Awaitable[tuple[BackendRequest, Read[Answered | None]]]],
) -> Answered | None:
    """Send the request as it came, and pass the answer on as it arrives. Raises `GatewayError`.

    *body* is None if it was not read yet; it then streams, unless it has to be read first (see above). *transcode*
    makes a JSON request of the whole body, for endpoints that have not said that they read binary; the reply is then
    not sent here, but returned. The first attempt goes to an endpoint that has said so, unless this has just changed.
    """
    exchange = call.exchange
    is_coded = "content-encoding" in call.request.headers.first
    header_length, length = framing.header_length, call.request.content_length
    is_missing = header_length is None and call.plan.recover_header_length
    is_small = length is not None and length <= WHOLE_BYTES
    if body is None and (is_coded or is_missing or is_small or framing.blobs is not None):
        body = await call.body.read()
    _check_header_length(header_length, length if body is None else len(body))
    held: list[memoryview] = []
    first = b""
    if body is None:
        call.body.check_length()
        first = await begin_upload(call, backend)
        call.body.check_length()
        sent = await streamed(call, first, call.body.limited_chunks)
    else:
        if is_missing:
            header_length = await _find_header_length(call, body)
        held = [body, *(framing.blobs or ())]
        sent = Body.of(*held)
    exchange.client_format = exchange.upstream_format = Format.JSON if header_length is None else Format.BINARY
    fields = _fields(call, backend, header_length, _REPLACED_INFLATED if is_coded else _REPLACED)

    async def read(answer: Answer) -> None:
        if answer.status >= 300:
            raise await call.backend_error(answer)
        call.let_go(answer, backend, held)
        await _pass_back(call, answer, framing)

    async def in_json() -> tuple[BackendRequest, Read[Answered | None]]:
        return await transcode(await _whole(call, backend, body, first))

    call.begin_total(backend)
    asked = call.asked(upstream, fields, sent, is_passed=True)
    return await call.send(upstream, asked, read, in_json)


def _check_header_length(header_length: int | None, n_bytes: int | None) -> None:
    """Raise `GatewayError` if the header length exceeds the body's *n_bytes*, where they are known (protocol 1.2).

    A server that fails on such a request would be blamed, and ejected.
    """
    if header_length is not None and n_bytes is not None and header_length > n_bytes:
        words = f"{HEADER_LENGTH} is {header_length}, but the whole body has {n_bytes} bytes"
        raise GatewayError(ErrorKind.MALFORMED_REQUEST, words)


async def _find_header_length(call: Call, body: memoryview) -> int | None:
    """The length of the JSON in *body*, None if no blobs follow it. Raises `GatewayError`."""
    try:
        found = await call.pacer.run(find_header_length(body, call.plan.header_limits, reserve=call.body.reserve))
    except CodecError as error:
        raise blamed(error, ErrorKind.MALFORMED_REQUEST) from error
    if found is not None:
        call.note_recovered()
    return found


def _fields(call: Call, backend: BackendPlan, header_length: int | None, replaced: frozenset[str]) -> Fields:
    """The client's headers for the backend, with header length and Content-Type corrected to match the body."""
    request, headers = call.request, backend.headers
    # the model's name can only be replaced in an answer that is not compressed
    relayed = headers.relayed_uncoded(request) if call.match.is_renamed else headers.relayed(request)
    # to some servers `_` and `-` in names of fields are the same
    fields = [field for field in relayed if field[0].lower().replace("_", "-") not in replaced]
    if header_length is not None:
        fields.append((HEADER_LENGTH, str(header_length)))
    fields.append(("Content-Type", _content_type(request.headers.get("content-type"), header_length)))
    return fields


def _content_type(said: str, header_length: int | None) -> str:
    """The Content-Type that the client has *said*; corrected if it is missing or contradicts the body.

    FastAPI's servers decide by this field how they read a body.

    tritonclient's asyncio client calls JSON `application/octet-stream`, because that is aiohttp's default.
    """
    if header_length is None:
        return said if said and said.lower() != _BYTES else "application/json"
    return said if said and "json" not in said.lower() else _BYTES


async def _pass_back(call: Call, answer: Answer, framing: Framing) -> None:
    """Pass an answer on as it arrives. Raises `GatewayError`."""
    answer.limit(int(call.plan.limits.response_body), "limits.response_body")
    text = answer.headers.get(_HEADER_LENGTH)
    if not _DIGITS.fullmatch(text):
        call.exchange.reply_format = Format.JSON
        await stream(call, answer)
        return
    call.exchange.reply_format = Format.BINARY
    header_length = int(text)
    if call.match.is_renamed:
        await _pass_back_renamed(call, answer, header_length, framing)
    else:
        await stream(call, answer, _said_as_asked(relayed_to_client(answer.headers), header_length, framing))


async def _pass_back_renamed(call: Call, answer: Answer, header_length: int, framing: Framing) -> None:
    """As `_pass_back`, but the JSON before the blobs gets the client's name of the model."""
    answer.refuse_encoded()
    max_bytes = call.plan.header_limits.max_header_bytes
    if header_length > max_bytes:
        words = f"the answer has {header_length} bytes of JSON, limits.header is {max_bytes}"
        raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
    chunks = answer.chunks_for_client()
    begun = bytearray()
    while len(begun) < header_length:
        chunk = await anext(chunks, b"")
        if not chunk:
            words = f"the answer ends inside of its JSON, which has {header_length} bytes ({HEADER_LENGTH})"
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
        begun += chunk
    replacer = MemberReplacer(call.match.naming_key(call.request.method), call.match.model or "")
    pieces = replacer.feed(bytes(begun[:header_length]))
    header = bytearray()
    while (piece := await call.pacer.next(pieces)) is not None:
        header += piece
    header += replacer.finish()
    headers = [field for field in renamed_to_client(answer.headers) if field[0].lower() != _HEADER_LENGTH]
    headers.append((HEADER_LENGTH, str(len(header))))
    length = answer.content_length
    if length is not None:
        length += len(header) - header_length
    reply = call.reply
    await reply.begin(answer.status, _said_as_asked(headers, len(header), framing), length, answer.reason)
    await reply.write(header)
    await reply.write(memoryview(begun)[header_length:])
    async for chunk in chunks:
        await reply.write(chunk)
    await reply.end()


def _said_as_asked(headers: Fields, header_length: int, framing: Framing) -> Fields:
    """*headers*, with the vendor's Content-Type if the request had one (protocol section 6)."""
    if framing.media_type is None:
        return headers
    others = [field for field in headers if field[0].lower() != "content-type"]
    return [*others, ("Content-Type", framing.content_type(header_length))]


async def _whole(call: Call, backend: BackendPlan, read_body: memoryview | None, first: bytes) -> memoryview:
    """The *read_body*; or *first*, the beginning of an upload, and its rest, read now. Raises `GatewayError`."""
    if read_body is not None:
        return read_body
    body = call.body
    body.reserve(max(0, len(first) - UPLOAD_BYTES))
    whole = bytearray(first)

    async def read() -> None:
        async for chunk in body.limited_chunks():
            body.reserve(len(chunk))
            whole.extend(chunk)

    if not body.at_end:
        await call.within_total(backend, read(), is_clients=True)
    return memoryview(whole)
