"""Requests that are no inferences, and the streams of uploads and answers, which cross unchanged.

Not here: binary inferences, which cross only to servers that read them (`passing`), and the gateway's answers in place
of a server (`own_answers`).
"""

from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from gateway.backend.asking import Body, Sending
from gateway.backend.attempt import Answer
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.upstream import Upstream
from gateway.client.reply import JOIN_BYTES
from gateway.codec import MemberReplacer, with_extension
from gateway.plan import BackendPlan
from gateway.policy.crossing import Fields, may_name_model, relayed_to_client, renamed_to_client
from gateway.policy.routing import PathKind
from gateway.serving import own_answers
from gateway.serving.call import Call

UPLOAD_BYTES = 64 * 1024
"""A relayed upload takes a connection to its backend once so many bytes, or the whole body, have come."""

T = TypeVar("T")


async def relay(call: Call, upstream: Upstream, backend: BackendPlan) -> None:
    """Relay a request that is no inference, and stream the answer. Raises `GatewayError`."""
    request = call.request
    body = Body() if request.content_length is None else Body(whole=b"")
    if request.has_body:
        body = await streamed(call, await begin_upload(call, backend), call.body.chunks)
    elif request.method not in ("GET", "HEAD"):
        await call.body.admit(0)
    match, wanted = call.match, backend.headers
    # tritonclient's asyncio client accepts gzip, but does not inflate metadata and health
    is_read_raw = match.kind is PathKind.V2 and request.method in ("GET", "HEAD")
    headers = wanted.relayed_uncoded(request) if match.is_renamed or is_read_raw else wanted.relayed(request)

    async def read(answer: Answer) -> None:
        if answer.status >= 400 and match.kind is not PathKind.OTHER:
            await _refused(call, answer, upstream, backend)
        else:
            await stream(call, answer)

    try:
        await call.send(upstream, call.asked(upstream, headers, body), read)
    finally:
        if (reloaded := match.reloaded_path) is not None:
            call.shared.metadata.forget(backend.fingerprint, reloaded)


async def _refused(call: Call, answer: Answer, upstream: Upstream, backend: BackendPlan) -> None:
    """Answer in place of a server that lacks the path, if the gateway can; else raise the server's error."""
    method = call.request.method
    if answer.status not in own_answers.LACKING:
        raise await call.backend_error(answer)
    text = own_answers.instead(call.match, backend, method, answer.status, is_usable=upstream.is_usable)
    if text is None:
        error = await call.backend_error(answer, hint=own_answers.hint(method, call.match.v2_path))
        text = await own_answers.ready_by_metadata(call, upstream, backend)
        if text is None:
            raise error
    await call.reply.whole(200, [own_answers.JSON], text)


async def server_metadata(call: Call, upstream: Upstream, backend: BackendPlan) -> None:
    """Serve `GET /v2`: the backend's answer, with the binary extension added to its extensions (protocol 8)."""

    async def read(answer: Answer) -> tuple[bytes, Fields] | None:
        if answer.status >= 400:
            raise await call.backend_error(answer)
        length = answer.content_length or 0
        if answer.status != 200 or length > METADATA_BYTES or "content-encoding" in answer.headers:
            await stream(call, answer)
            return None
        text = await answer.read_whole(METADATA_BYTES, "the server's metadata")
        return text, relayed_to_client(answer.headers)

    asked = call.asked(upstream, backend.headers.relayed_uncoded(call.request), Body())
    described = await call.send(upstream, asked, read)
    if described is None:
        return
    text, crossing = described
    advertised = with_extension(text)
    if advertised != text:
        crossing = [field for field in crossing if field[0].lower() != "etag"]
    await call.reply.whole(200, crossing, advertised)


async def stream(call: Call, answer: Answer, headers: Fields | None = None) -> None:
    """Pass an answer on as it arrives, with the client's name of the model in place of the backend's.

    *headers* replace the answer's own; given for a body in which no name has to be replaced.
    """
    reply = call.reply
    match = call.match
    if headers is None and match.is_renamed and may_name_model(answer.status, answer.headers):
        await _stream_renamed(call, answer, MemberReplacer(match.naming_key(call.request.method), match.model or ""))
        return
    if headers is None:
        headers = relayed_to_client(answer.headers)
    if whole := answer.take_arrived(JOIN_BYTES):
        await reply.whole(answer.status, headers, whole, answer.reason)
        return
    await reply.begin(answer.status, headers, answer.content_length, answer.reason)
    async for chunk in answer.chunks_for_client():
        await reply.write(chunk)
    await reply.end()


async def _stream_renamed(call: Call, answer: Answer, replacer: MemberReplacer) -> None:
    answer.refuse_encoded()
    headers = renamed_to_client(answer.headers)
    length = answer.content_length
    if length is not None and length <= JOIN_BYTES and call.request.method != "HEAD":
        text = await answer.read_whole(JOIN_BYTES, "the answer")
        whole = b"".join(replacer.feed(text)) + replacer.finish()
        await call.reply.whole(answer.status, headers, whole, answer.reason)
        return
    await call.reply.begin(answer.status, headers, None, answer.reason)
    async for chunk in answer.chunks_for_client():
        pieces = replacer.feed(chunk)
        passed = bytearray()
        while (piece := await call.pacer.next(pieces)) is not None:
            passed += piece
        await call.reply.write(passed)
    await call.reply.write(replacer.finish())
    await call.reply.end()


async def begin_upload(call: Call, backend: BackendPlan) -> bytes:
    """Read the beginning of the body: `UPLOAD_BYTES`, or all of it if it is shorter. Raises `GatewayError`.

    It is awaited before the request is sent, so that a client that sends nothing holds no slot and no connection of a
    backend.
    """
    body = call.body
    length = call.request.content_length
    await body.admit(UPLOAD_BYTES if length is None else min(length, UPLOAD_BYTES))
    body.invite()
    first: bytes = await call.within_total(backend, body.read_first(UPLOAD_BYTES), is_clients=True)
    return first


async def streamed(call: Call, first: bytes, rest: Callable[[], AsyncIterator[bytes]]) -> Body:
    """The client's body as a stream of *first*, the part that was read, and the *rest* as it arrives.

    A body that was read to its end is whole instead, so that it can be sent again over another connection.
    Takes a slot first. Raises `GatewayError` without one.
    """
    await call.body.take_slot()
    if call.body.at_end:
        return Body(whole=first)

    async def pieces(sending: Sending) -> AsyncIterator[bytes]:
        sending.piece(len(first))
        yield first
        sending.paused()
        async for chunk in rest():
            sending.piece(len(chunk))
            yield chunk
            sending.paused()
        sending.done()

    return Body(open=pieces, length=call.request.content_length, can_be_repeated=False)
