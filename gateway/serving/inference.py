"""An inference, from the client's body to its reply: read, parse, send, decode, reply.

The steps are the same for every backend. Not here: how each dialect takes them (`speech`, `foreign`), and binary
inferences that cross unchanged (`relaying`).
"""

from functools import partial

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer, Read
from gateway.codec.compression import Coding, choose_coding, compressed
from gateway.codec.v2.answer import WHOLE_BYTES
from gateway.codec.v2.framing import HEADER_LENGTH
from gateway.codec.v2.reply import Reply as InferReply
from gateway.codec.v2.request_reading import find_sequence_id
from gateway.errors import CodecError, ErrorKind, blamed
from gateway.exchange import BINARY, JSON
from gateway.policy.crossing import Fields, transcoded_lines
from gateway.serving.adapting import foreign_to
from gateway.serving.batching import serve_batched
from gateway.serving.call import Answered, Call
from gateway.serving.foreign import dialect_of
from gateway.serving.relaying import pass_back, pass_through
from gateway.serving.row_requests import RowRequests, send_rows
from gateway.serving.speech import Prepared, prepare


async def infer(call: Call) -> None:
    """Serve an inference. Raises `GatewayError`."""
    call.exchange.is_inference = True
    call.framing = framing = call.body.framing()
    body = sequence_id = None
    if call.match.destination.sticky == "sequence_id":
        body = await call.body.read()
        sequence_id = await call.exchange.request_codec.run(
            find_sequence_id(body, framing.header_length, call.plan.header_limits, call.body.reserve)
        )
    call.choose(sequence_id)
    if call.backend.settings.binary != "never" and (await call.upstream.spoken()).binary:
        answered = await pass_through(call, body, partial(_transcoded, call))
    else:
        if body is None:
            body = await call.body.read()
        if call.backend.batches and framing.header_length:
            answered = await serve_batched(call, body, _served)
        else:
            answered = await _served(call, body)
    if answered is not None:
        await _reply(call, *answered)


async def _served(call: Call, body: memoryview) -> Answered | None:
    """Send the inference in *body* to the backend as JSON, and decode the answer; None if it is passed on.

    Raises `GatewayError`, and `CodecError` for a malformed request.
    """
    prepared = await _prepared(call, body)
    if isinstance(prepared, RowRequests):
        return await send_rows(call, prepared, body)
    return await call.send(*await _sendable(call, prepared, body))


async def _transcoded(call: Call, body: memoryview) -> tuple[BackendRequest, Read[Answered | None]]:
    """As `_sendable`, of *body*, for a backend that might have read it as it is."""
    prepared = await _prepared(call, body)
    assert not isinstance(prepared, RowRequests), "servers that read binary bodies get all rows together"
    return await _sendable(call, prepared, body)


async def _prepared(call: Call, body: memoryview) -> Prepared | RowRequests | None:
    """The inference in *body*, ready to be sent; None if it crosses byte for byte (protocol 3.6).

    Raises `GatewayError`, and `CodecError` for a malformed request.
    """
    exchange = call.exchange
    exchange.client_format = JSON if call.framing.header_length is None else BINARY
    dialect = None if call.backend.is_v2 else await dialect_of(call)
    prepared = await (prepare(call, body) if dialect is None else foreign_to(call, dialect).prepare(body))
    exchange.upstream_format = JSON
    if prepared is None:
        return None
    request = prepared.request
    exchange.is_transcoded = True
    exchange.input_datatypes = datatypes = request.datatypes
    exchange.client_format = BINARY if datatypes else JSON
    exchange.request_nonfinite = request.nonfinite
    if exchange.batch_rows:
        rows = {tensor.shape[0] if tensor.shape else 0 for tensor in request.inputs}
        exchange.batch_rows = max(rows, default=0) or 1
        call.rows = exchange.batch_rows if len(rows) == 1 and 0 not in rows else 0
    exchange.header_recovered = request.header_recovered
    return prepared


async def _sendable(
    call: Call, prepared: Prepared | None, body: memoryview
) -> tuple[BackendRequest, Read[Answered | None]]:
    """The request to the backend in JSON, *prepared* from *body*, and a function that reads its answer.

    The function returns the reply; or None for pure JSON that is passed on, since the reply is then written already.
    """
    headers = call.backend.headers
    if prepared is None:
        # a renamed model's answer must not be compressed, because the gateway replaces the name in it
        fields = headers.transcoded(call.request) if call.match.is_renamed else headers.inflated(call.request)
        return call.asked(fields, Body.of(body)), partial(pass_back, call, (body,))
    text = prepared.small_json
    json_body = Body(whole=text) if text is not None else await call.streamed_json(prepared.written)
    asked = call.asked(headers.transcoded(call.request), json_body, prepared.target, is_read_whole=True)
    return asked, partial(_decoded, call, prepared, body)


async def _decoded(call: Call, prepared: Prepared, request_body: memoryview, answer: Answer) -> Answered:
    """Decode *answer* while it arrives, and return the reply. Raises `GatewayError`.

    If the decoder fails on a short answer, the answer is decoded once more if there is another decoder for it.
    """
    exchange, body = call.exchange, call.body
    if answer.status >= 300:
        raise await call.backend_error(answer, json_bytes=exchange.attempts[-1].request_bytes)
    if answer.is_streamed:
        _let_go(call, prepared, request_body, answer)
    answer.refuse_encoded()
    pacer = exchange.response_codec
    whole = chunk = await answer.next(WHOLE_BYTES)
    if prepared.refresh is not None:
        await prepared.refresh()
    decoder = prepared.decoder()
    try:
        while chunk and not answer.is_read:
            await pacer.run(decoder.feed(chunk))
            body.hold_answer(decoder.held_bytes)
            chunk = await answer.next(WHOLE_BYTES)
        if not whole:
            raise CodecError(f"{answer.status} without a body")
        finished = pacer.run(decoder.finish(chunk)) if prepared.finish is None else prepared.finish(decoder, chunk)
        answered = await finished
    except CodecError as error:
        find_other = prepared.other_decoder if answer.is_read and chunk is whole else None
        other = await find_other(answer) if find_other is not None else None
        if other is None:
            raise blamed(error, ErrorKind.MALFORMED_RESPONSE) from error
        decoder = other
        try:
            answered = await pacer.run(decoder.finish(whole))
        except CodecError as again:
            raise blamed(again, ErrorKind.MALFORMED_RESPONSE) from again
    body.hold_answer(decoder.held_bytes)
    exchange.output_datatypes = answered.datatypes
    exchange.response_nonfinite = answered.nonfinite
    return answered, transcoded_lines(answer.headers)


def _let_go(call: Call, prepared: Prepared, request_body: memoryview, answer: Answer) -> None:
    """Free the request's memory, unless an adapter gets it once more, with the answer."""
    if prepared.finish is None:
        call.let_go(answer, *prepared.request.views, request_body, *(call.framing.blobs or ()))


async def _reply(call: Call, answered: InferReply, lines: str) -> None:
    """Send the reply: the JSON header and the blobs without joining them, with the fields in *lines*."""
    if answered.outputs:
        call.exchange.reply_format = BINARY
        n_bytes = answered.header_bytes
        headers = [("Content-Type", call.framing.content_type(n_bytes)), (HEADER_LENGTH, str(n_bytes))]
    else:
        call.exchange.reply_format = JSON
        headers = [("Content-Type", "application/json")]
    buffers: list[bytes | memoryview] = [*answered.header, *answered.blobs]
    coding = _reply_coding(call, answered, headers) if call.plan.compression.responses else None
    if coding is None:
        await call.reply.whole(200, headers, buffers, lines)
        return
    headers.append(("Content-Encoding", coding.label))
    # in chunks, because the compressed length is only known at the end
    await call.reply.begin(200, headers, None, lines=lines)
    pieces = compressed(buffers, coding)
    while (piece := await call.exchange.response_codec.next(pieces)) is not None:
        await call.reply.write(piece)
    await call.reply.end()


def _reply_coding(call: Call, answered: InferReply, headers: Fields) -> Coding | None:
    """The coding for the reply (protocol 7), None for none; adds `Vary` to *headers* in either case."""
    headers.append(("Vary", "Accept-Encoding"))
    if answered.n_bytes < call.plan.compression.min_size:
        return None
    return choose_coding(call.request.headers.joined("accept-encoding"))
