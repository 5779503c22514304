"""What crosses as it came, streamed in both directions: requests that are no inferences, and binary inferences.

A binary inference passes to servers that read the binary extension themselves (protocol 11.5). There are three reasons
to read its body first: it is small; it is compressed, and few servers inflate; or it has no header length, which the
gateway then finds (protocol section 6). The limits of bodies hold; the content of tensors is not checked.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer, Read
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.client.reply import JOIN_BYTES
from gateway.codec.json.member_finder import MemberReplacer
from gateway.codec.v2.framing import HEADER_LENGTH
from gateway.codec.v2.request_reading import find_header_length
from gateway.codec.v2.server_metadata import with_extension
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import BINARY, JSON
from gateway.policy.crossing import Fields, changed_to_client, may_name_model, relayed_to_client
from gateway.policy.routing import PathKind
from gateway.serving import own_answers
from gateway.serving.call import Answered, Call

UPLOAD_BYTES = 64 * 1024
"""A relayed upload takes a connection to its backend once so many bytes, or the whole body, have come."""

WHOLE_BYTES = 1024 * 1024
"""A binary body of at most this Content-Length is read to its end before it is sent, instead of being streamed.

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


async def relay(call: Call) -> None:
    """Relay a request that is no inference, and stream the answer. Raises `GatewayError`."""
    request, match, wanted = call.request, call.match, call.backend.headers
    body = Body() if request.content_length is None else Body(whole=b"")
    if request.has_body:
        body = await _streamed(call, await _begin_upload(call), call.body.chunks)
    elif request.method not in ("GET", "HEAD"):
        await call.body.admit(0)
    # tritonclient's asyncio client accepts gzip, but does not inflate metadata and health
    is_read_raw = match.kind is not PathKind.OTHER and request.method in ("GET", "HEAD")
    headers = wanted.relayed_uncoded(request) if match.is_renamed or is_read_raw else wanted.relayed(request)

    async def read(answer: Answer) -> None:
        if answer.status < 400 or match.kind is PathKind.OTHER:
            await (_advertise if _is_server_metadata(call, answer) else stream)(call, answer)
            return
        error = await call.backend_error(answer)
        text = await own_answers.instead(call, answer.status)
        if text is None:
            raise error
        await call.reply.whole(200, [own_answers.JSON], (text,))

    try:
        await call.send(call.asked(headers, body), read)
    finally:
        if (reloaded := match.reloaded_path) is not None:
            call.shared.metadata.forget(call.backend.fingerprint, reloaded)


def _is_server_metadata(call: Call, answer: Answer) -> bool:
    """Whether *answer* may hold the server's metadata, to which the extension is added (protocol 8)."""
    is_asked = call.match.kind is PathKind.SERVER_METADATA and call.request.method == "GET"
    is_short = (answer.head.length or 0) <= METADATA_BYTES
    return is_asked and answer.status == 200 and is_short and "content-encoding" not in answer.headers.first


async def _advertise(call: Call, answer: Answer) -> None:
    """Pass on the server's metadata, with the binary extension added to its extensions."""
    text = await answer.read_whole(METADATA_BYTES, "the server's metadata")
    advertised = with_extension(text)
    cross = relayed_to_client if advertised == text else changed_to_client
    await call.reply.whole(200, cross(answer.headers), (advertised,))


async def pass_through(
    call: Call,
    body: memoryview | None,
    transcode: Callable[[memoryview], Awaitable[tuple[BackendRequest, Read[Answered | None]]]],
) -> Answered | None:
    """Send an inference as it came, and pass the answer on as it arrives. Raises `GatewayError`.

    *body* is None if it was not read yet; it then streams, unless it has to be read first (see above). *transcode*
    makes a JSON request of the whole body, for endpoints that have not said that they read binary; the reply is then
    not sent here, but returned. The first attempt goes to an endpoint that has said so, unless this has just changed.
    """
    exchange, header_length = call.exchange, call.framing.header_length
    body = await _read_first(call, body)
    held: list[memoryview] = []
    first = b""
    if body is None:
        call.body.check_length()
        first = await _begin_upload(call)
        call.body.check_length()
        sent = await _streamed(call, first, call.body.limited_chunks)
    else:
        if header_length is None and call.plan.recover_header_length:
            steps = find_header_length(body, call.plan.header_limits, reserve=call.body.reserve)
            header_length = await call.exchange.request_codec.run(steps)
            exchange.header_recovered = header_length is not None
        held = [body, *(call.framing.blobs or ())]
        sent = Body.of(*held)
    exchange.client_format = exchange.upstream_format = JSON if header_length is None else BINARY
    fields = _fields(call, header_length)

    async def in_json() -> tuple[BackendRequest, Read[Answered | None]]:
        return await transcode(await _whole(call, first) if body is None else body)

    call.begin_total()
    return await call.send(call.asked(fields, sent, is_passed=True), partial(pass_back, call, held), in_json)


async def _read_first(call: Call, body: memoryview | None) -> memoryview | None:
    """The *body* of an inference that passes, read now if it has to be; None if it streams. Raises `GatewayError`."""
    header_length, n_bytes = call.framing.header_length, call.request.content_length
    if body is None and (
        "content-encoding" in call.request.headers.first
        or (header_length is None and call.plan.recover_header_length)
        or (n_bytes is not None and n_bytes <= WHOLE_BYTES)
        or call.framing.blobs is not None  # it was read with its message
    ):
        body = await call.body.read()
    if body is not None:
        n_bytes = len(body)
    if n_bytes is not None and (header_length or 0) > n_bytes:
        # a server that fails on such a request (protocol 1.2) would be blamed, and ejected
        words = f"{HEADER_LENGTH} is {header_length}, but the whole body has {n_bytes} bytes"
        raise GatewayError(ErrorKind.MALFORMED_REQUEST, words)
    return body


def _fields(call: Call, header_length: int | None) -> Fields:
    """The client's headers for the backend, with header length and Content-Type corrected to match the body.

    FastAPI's servers decide by the Content-Type how they read a body; tritonclient's asyncio client calls JSON
    `application/octet-stream`, because that is aiohttp's default.
    """
    request, headers = call.request, call.backend.headers
    # the model's name can only be replaced in an answer that is not compressed
    relayed = headers.relayed_uncoded(request) if call.match.is_renamed else headers.relayed(request)
    replaced = _REPLACED_INFLATED if "content-encoding" in request.headers.first else _REPLACED
    # to some servers `_` and `-` in names of fields are the same
    fields = [field for field in relayed if field[0].lower().replace("_", "-") not in replaced]
    said = request.headers.get("content-type")
    if header_length is None:
        is_wrong, right = said.lower() in ("", _BYTES), "application/json"
    else:
        is_wrong, right = not said or "json" in said.lower(), _BYTES
        fields.append((HEADER_LENGTH, str(header_length)))
    return [*fields, ("Content-Type", right if is_wrong else said)]


async def pass_back(call: Call, held: Sequence[memoryview], answer: Answer) -> None:
    """Pass an inference's answer on as it arrives; the request, held by *held*, is let go. Raises `GatewayError`."""
    if answer.status >= 300:
        raise await call.backend_error(answer)
    call.let_go(answer, *held)
    text = answer.headers.get(_HEADER_LENGTH)
    if not _DIGITS.fullmatch(text):
        call.exchange.reply_format = JSON
        await stream(call, answer)
        return
    call.exchange.reply_format = BINARY
    header_length = int(text)
    if call.match.is_renamed:
        await _pass_back_renamed(call, answer, header_length)
    else:
        await stream(call, answer, _said_as_asked(call, relayed_to_client(answer.headers), header_length))


async def _pass_back_renamed(call: Call, answer: Answer, header_length: int) -> None:
    """As `pass_back`, but the JSON before the blobs gets the client's name of the model."""
    answer.refuse_encoded()
    max_bytes = call.plan.header_limits.max_header_bytes
    if header_length > max_bytes:
        words = f"the answer has {header_length} bytes of JSON, limits.header is {max_bytes}"
        raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
    chunks = answer.chunks_for_client()
    begun = bytearray()
    while len(begun) < header_length and (chunk := await anext(chunks, b"")):
        begun += chunk
    if len(begun) < header_length:
        words = f"the answer ends inside of its JSON, which has {header_length} bytes ({HEADER_LENGTH})"
        raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
    replacer = MemberReplacer("model_name", call.match.model or "")
    header = await _replaced(call, replacer, bytes(begun[:header_length])) + replacer.finish()
    headers = _without(changed_to_client(answer.headers), _HEADER_LENGTH)
    headers.append((HEADER_LENGTH, str(len(header))))
    length = answer.head.length
    if length is not None:
        length += len(header) - header_length
    reply = call.reply
    await reply.begin(answer.status, _said_as_asked(call, headers, len(header)), length)
    await reply.write(header)
    await reply.write(memoryview(begun)[header_length:])
    async for chunk in chunks:
        await reply.write(chunk)
    await reply.end()


def _said_as_asked(call: Call, headers: Fields, header_length: int) -> Fields:
    """*headers*, with the vendor's Content-Type if the request had one (protocol section 6)."""
    if call.framing.media_type is None:
        return headers
    return [*_without(headers, "content-type"), ("Content-Type", call.framing.content_type(header_length))]


def _without(fields: Fields, name: str) -> Fields:
    return [field for field in fields if field[0].lower() != name]


# Streams


async def stream(call: Call, answer: Answer, headers: Fields | None = None) -> None:
    """Pass an answer on as it arrives, with the client's name of the model in place of the backend's.

    *headers* replace the answer's own; given for a body in which no name has to be replaced.
    """
    reply, replacer, length = call.reply, None, answer.head.length
    if headers is None and call.match.is_renamed and may_name_model(answer.status, answer.headers):
        answer.refuse_encoded()
        # metadata, which GET asks for, has the name in `name`
        member = "name" if call.request.method in ("GET", "HEAD") else "model_name"
        replacer, length = MemberReplacer(member, call.match.model or ""), None
        headers = changed_to_client(answer.headers)
    elif headers is None:
        headers = relayed_to_client(answer.headers)
    # a short answer in which the name is replaced is sent as a whole, with its new length
    is_replaced = replacer is not None and answer.head.length is not None
    arrived = await answer.next(JOIN_BYTES) if is_replaced else answer.read_arrived()
    if answer.is_read:
        if replacer is not None:
            arrived = await _replaced(call, replacer, arrived) + replacer.finish()
        if arrived:
            await reply.whole(answer.status, headers, (arrived,))
            return
    await reply.begin(answer.status, headers, length)
    async for chunk in answer.chunks_for_client(arrived):
        await reply.write(chunk if replacer is None else await _replaced(call, replacer, chunk))
    if replacer is not None:
        await reply.write(replacer.finish())
    await reply.end()


async def _replaced(call: Call, replacer: MemberReplacer, chunk: bytes) -> bytes:
    """What *replacer* lets cross of *chunk*."""
    pieces = replacer.feed(chunk)
    passed = bytearray()
    while (piece := await call.exchange.response_codec.next(pieces)) is not None:
        passed += piece
    return bytes(passed)


async def _begin_upload(call: Call) -> bytes:
    """Read the beginning of the body: `UPLOAD_BYTES`, or all of it if it is shorter. Raises `GatewayError`.

    It is awaited before the request is sent, so that a client that sends nothing holds no slot and no connection of a
    backend.
    """
    length = call.request.content_length
    await call.body.admit(UPLOAD_BYTES if length is None else min(length, UPLOAD_BYTES))
    first: bytes = await call.within_total(call.body.read_first(UPLOAD_BYTES), is_clients=True)
    return first


async def _streamed(call: Call, first: bytes, rest: Callable[[], AsyncIterator[bytes]]) -> Body:
    """The client's body as a stream of *first*, the part that was read, and the *rest* as it arrives.

    A body that was read to its end is whole instead, so that it can be sent again over another connection.
    Takes a slot first. Raises `GatewayError` without one.
    """
    await call.body.take_slot()
    if call.body.at_end:
        return Body(whole=first)

    async def pieces() -> AsyncIterator[bytes]:
        yield first
        async for chunk in rest():
            yield chunk

    return Body(open=pieces, length=call.request.content_length, can_be_repeated=False)


async def _whole(call: Call, first: bytes) -> memoryview:
    """*first*, the beginning of an upload, and its rest, read now. Raises `GatewayError`."""
    body = call.body
    body.reserve(max(0, len(first) - UPLOAD_BYTES))
    whole = bytearray(first)

    async def read() -> None:
        async for chunk in body.limited_chunks():
            body.reserve(len(chunk))
            whole.extend(chunk)

    if not body.at_end:
        await call.within_total(read(), is_clients=True)
    return memoryview(whole)
