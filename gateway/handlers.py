"""The corridor: what happens to a request, from its head to the last byte of its reply.

`Gateway.handle` reads from top to bottom as the life of a request: route, read, parse, send, decode,
reply, record. It decides nothing about bytes (`codec`) or policies (`policy`) and knows no metrics
(`telemetry` reads the finished exchange).
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, suppress

from multidict import CIMultiDict

from gateway.backend.metadata import ModelMetadata
from gateway.backend.upstream import Answer, Body, Pieces, Sending, Upstream
from gateway.client.body import ClientBody
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest, request_id
from gateway.codec import (
    HEADER_LENGTH,
    Coding,
    Framing,
    InferAnswer,
    InferRequest,
    KnownHeaders,
    choose_coding,
    compressed,
    error_body,
    half_precision_outputs,
    parse_framing,
    with_extension,
)
from gateway.codec import Reply as DecodedReply
from gateway.config import Compression, Limits
from gateway.errors import CodecError, ErrorKind, GatewayError, blaming
from gateway.exchange import Exchange, Format
from gateway.headers import Headers
from gateway.pacing import Pacer
from gateway.policy.admission import Admission
from gateway.policy.crossing import Fields, relayed_to_client, transcoded_to_client
from gateway.policy.paths import find_path_fault
from gateway.policy.quiet import OncePerInterval
from gateway.policy.routing import Match, PathKind, Router

WRITE_BYTES = 256 * 1024
"""How much of a body is handed to a backend's connection at once."""

SMALL_BYTES = 64 * 1024
"""Replies up to this size are joined and sent in one write."""

ERROR_BYTES = 64 * 1024
"""How much of a backend's error text is read and passed on."""

METADATA_BYTES = 1024 * 1024
"""The most metadata, of a server (`GET /v2`) or a model, that is read."""

WARNING_S = 60.0
WARNING_CLIENTS = 1000
"""A client address is warned of once in so long, and so many addresses are remembered."""

_RELOADED = re.compile(r"(.*)/v2/repository/models/([^/]+)/(?:load|unload)")

log = logging.getLogger("gateway")


class Gateway:
    """The data plane: one instance serves all requests of a process."""

    def __init__(
        self,
        router: Router,
        upstreams: Mapping[str, Upstream],
        limits: Limits,
        compression: Compression,
        *,
        recover_header_length: bool,
        record: Callable[[Exchange], None],
    ) -> None:
        """*record* is called once with each finished exchange."""
        self.limits = limits
        self.compression = compression
        self.admission = Admission(limits.in_flight_bytes, limits.concurrent_requests)
        self.metadata = ModelMetadata()
        self.known_headers = {name: KnownHeaders() for name in upstreams}
        self.recovered_warnings = OncePerInterval(WARNING_S, WARNING_CLIENTS)
        self.recover_header_length = recover_header_length
        self._router = router
        self._upstreams = upstreams
        self._record = record
        self.in_flight = 0
        self.is_draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def handle(self, request: ClientRequest) -> None:
        """Serve one request of a client."""
        loop = asyncio.get_running_loop()
        exchange = Exchange(
            client=request.peer,
            method=request.method,
            path=request.path,
            request_id=request_id(request.headers),
            started_s=loop.time(),
        )
        call = _Call(request, exchange, self)
        self.in_flight += 1
        self._idle.clear()
        try:
            try:
                match = self._route(request, exchange)
                await call.serve(self._upstreams[match.backend], match)
            except GatewayError as error:
                await call.reply.error(error)
            await call.body.drop_rest()
        except (asyncio.CancelledError, ConnectionError):
            call.reply.client_left()
            raise
        except Exception as error:
            log.exception("request %s failed", exchange.request_id)
            await call.reply.error(GatewayError(ErrorKind.INTERNAL, f"internal error: {type(error).__name__}"))
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()
            call.body.release()
            exchange.seconds = loop.time() - exchange.started_s
            self._record(exchange)

    async def close(self) -> None:
        """Drop what is on its way for later requests."""
        await self.metadata.close()

    async def wait_until_idle(self, timeout_s: float) -> int:
        """Wait until no request is in flight, at most *timeout_s*; how many still are."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self.in_flight

    def _route(self, request: ClientRequest, exchange: Exchange) -> Match:
        if request.fault is not None:
            raise request.fault
        path = exchange.path.partition("?")[0]
        fault = find_path_fault(path)
        if fault is not None:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, fault)
        match = self._router.match(request.host, path)
        if match is None:
            raise GatewayError(ErrorKind.NO_ROUTE, f"no route for {request.method} {path}")
        exchange.route = match.route
        exchange.backend = match.backend
        exchange.model = match.model
        return match


class _Call:
    """One request on its way: what all its steps need."""

    def __init__(self, request: ClientRequest, exchange: Exchange, gateway: Gateway) -> None:
        self._request = request
        self._exchange = exchange
        self._gateway = gateway
        self._limits = gateway.limits
        self._pacer = Pacer()
        limits = gateway.limits
        self._total_at: float | None = None
        self.body = ClientBody(request, exchange, gateway.admission, limits.request_body, self._pacer)
        self.reply = Reply(request, exchange, body=self.body, is_draining=lambda: gateway.is_draining)

    async def serve(self, upstream: Upstream, match: Match) -> None:
        """Do what the path asks for."""
        method = self._request.method
        if match.kind is PathKind.INFER and method == "POST":
            await self.infer(upstream, match)
            return
        if match.kind is PathKind.SERVER_METADATA and method == "GET":
            await self.server_metadata(upstream)
            return
        if method not in ("GET", "HEAD"):
            self.body.admit(0)
        await self.relay(upstream)

    # The life of an infer request

    async def infer(self, upstream: Upstream, match: Match) -> None:
        """Binary or JSON in, JSON to the backend, binary or JSON out."""
        exchange = self._exchange
        with blaming(ErrorKind.MALFORMED_REQUEST):
            framing = parse_framing(
                self._request.headers.all(HEADER_LENGTH.lower()), self._request.headers.get("content-type")
            )
        body = await self.body.read()
        exchange.client_format = Format.JSON if framing.header_length is None else Format.BINARY
        parsed = await self._parse(upstream, body, framing)
        if parsed is None:
            await self._pass_on(upstream, body)
            return
        exchange.is_transcoded = True
        exchange.upstream_format = Format.JSON
        exchange.client_format = Format.BINARY if parsed.inputs else Format.JSON
        exchange.header_recovered = parsed.header_recovered
        if parsed.header_recovered:
            self._warn_of_missing_header()
        exchange.request_nonfinite = parsed.nonfinite
        exchange.input_datatypes = [tensor.datatype.name for tensor in parsed.inputs]

        headers = self._backend_headers(upstream.headers.transcoded)
        declared = await self._declared_half_precision(upstream) if parsed.promotes else {}
        json_body = await self._json_body(parsed, upstream, headers)
        async with self._upstream_call(upstream, headers, json_body) as answer:
            if answer.status >= 300:
                await self._reply_error(answer)
                return
            reply = await self._decode(answer, parsed, match.model or "", declared)
            fields = transcoded_to_client(Headers(answer.headers.items()))
        await self._reply(reply, fields, framing)

    async def _parse(self, upstream: Upstream, body: memoryview, framing: Framing) -> InferRequest | None:
        """The request, proved right; None if it is pure JSON."""
        policy = upstream.backend.tensor_policy
        steps: Generator[None, None, InferRequest | None]
        if framing.header_length == 0:
            steps = InferRequest.parse_raw(body, await self._metadata(upstream), policy)
        else:
            recover = self._gateway.recover_header_length
            known = self._gateway.known_headers[upstream.name]
            steps = InferRequest.parse(body, framing.header_length, policy, recover=recover, known=known)
        with blaming(ErrorKind.MALFORMED_REQUEST):
            parsed = await self._pacer.run(steps)
        self._exchange.request_codec_s += self._pacer.take_seconds()
        return parsed

    async def _metadata(self, upstream: Upstream) -> bytes:
        """The model's metadata, asked of the backend with the client's headers unless it is known."""
        path = self._exchange.path.partition("?")[0].removesuffix("/infer")
        headers = self._backend_headers(upstream.headers.metadata)

        async def fetch() -> bytes:
            async with upstream.call("GET", path, headers, Body(), []) as answer:
                if answer.status < 300:
                    return await _read_bounded(answer, METADATA_BYTES, "the model's metadata")
                body, words = await _read_error(answer)
                raise GatewayError(ErrorKind.BACKEND_ERROR, words, status=answer.status, body=body)

        key = (upstream.name, path, self._request.headers.get("authorization"))
        # what is spent here is part of the client's time, also where it waits for another client's call
        total_s = upstream.backend.timeouts.total
        self._total_at = asyncio.get_running_loop().time() + total_s
        try:
            async with asyncio.timeout_at(self._total_at):
                return await self._gateway.metadata.get(key, fetch)
        except TimeoutError:
            raise GatewayError(
                ErrorKind.TIMEOUT, f"backend {upstream.name!r} took longer than {total_s:g} s (timeouts.total)"
            ) from None

    async def _declared_half_precision(self, upstream: Upstream) -> dict[str, str]:
        """Outputs that the model declares as FP16 or BF16; none if the backend does not say."""
        try:
            return half_precision_outputs(await self._metadata(upstream))
        except GatewayError as error:
            log.debug("no metadata for %s: %s", self._exchange.path, error.message)
            return {}

    def _warn_of_missing_header(self) -> None:
        client = self._exchange.client
        if self._gateway.recovered_warnings.allows(client, asyncio.get_running_loop().time()):
            log.warning("client %s sends binary bodies without %s; its sizes added up", client, HEADER_LENGTH)

    async def _pass_on(self, upstream: Upstream, body: memoryview) -> None:
        """Pure JSON: byte for byte to the backend, and a 2xx answer byte for byte back (protocol 3.6)."""
        self._exchange.upstream_format = Format.JSON
        headers = self._backend_headers(upstream.headers.inflated)
        headers["Content-Length"] = str(len(body))

        async def pieces(sending: Sending) -> AsyncIterator[memoryview]:
            for start in range(0, len(body), WRITE_BYTES):
                piece = body[start : start + WRITE_BYTES]
                sending.piece(len(piece))
                yield piece
            sending.done()

        whole = Body(whole=bytes(body)) if len(body) <= SMALL_BYTES else Body(open=pieces)
        async with self._upstream_call(upstream, headers, whole) as answer:
            if answer.status >= 300:
                await self._reply_error(answer)
                return
            self._exchange.reply_format = Format.JSON
            await self._stream(answer)

    async def _json_body(self, parsed: InferRequest, upstream: Upstream, headers: CIMultiDict[str]) -> Body:
        """The backend's JSON: whole if it is small, else a stream that is made while it is sent."""
        if parsed.is_small:
            text = await self._pacer.run(_joined(parsed))
            self._exchange.request_codec_s += self._pacer.take_seconds()
            return Body(whole=text)
        if upstream.backend.framing == "content-length":
            # The length is only known by making the JSON; it is made again while it is sent, and never held.
            n_bytes = await self._pacer.run(_length(parsed))
            headers["Content-Length"] = str(n_bytes)

        async def pieces(sending: Sending) -> Pieces:
            made = parsed.json_pieces()
            pacer = Pacer()
            while (piece := await pacer.next(made)) is not None:
                sending.piece(len(piece))
                yield piece
            self._exchange.request_codec_s += pacer.take_seconds()
            sending.done()

        return Body(open=pieces)

    async def _decode(
        self, answer: Answer, parsed: InferRequest, model: str, declared: Mapping[str, str]
    ) -> DecodedReply:
        """Turn the answer into the reply while it arrives."""
        limit = self._limits.response_body
        _refuse_encoded(answer)
        decoder = InferAnswer(parsed.selection, model=model, request_id=parsed.id, max_bytes=limit, declared=declared)
        received = 0
        with blaming(ErrorKind.MALFORMED_RESPONSE):
            async for chunk in answer.chunks():
                received += len(chunk)
                if received > limit:
                    raise CodecError(f"the answer is larger than limits.response_body, {int(limit)} bytes")
                await self._pacer.run(decoder.feed(chunk))
                self.body.hold_answer(decoder.held_bytes)
            if not received:
                raise CodecError(f"the answer ({answer.status}) has no body")
            reply = await self._pacer.run(decoder.finish())
            self.body.hold_answer(decoder.held_bytes)
        self._exchange.response_codec_s = self._pacer.take_seconds()
        self._exchange.output_datatypes = reply.datatypes
        self._exchange.response_nonfinite = reply.nonfinite
        return reply

    async def _reply(self, decoded: DecodedReply, headers: Fields, framing: Framing) -> None:
        """Send header and blobs without joining them."""
        self._exchange.reply_format = Format.BINARY if decoded.is_binary else Format.JSON
        if decoded.is_binary:
            headers.append(("Content-Type", framing.content_type(decoded.header_bytes)))
            headers.append((HEADER_LENGTH, str(decoded.header_bytes)))
        else:
            headers.append(("Content-Type", "application/json"))
        coding = None
        if self._gateway.compression.responses:
            headers.append(("Vary", "Accept-Encoding"))
            if decoded.n_bytes >= self._gateway.compression.min_size:
                coding = choose_coding(self._request.headers.joined("accept-encoding"))
        if coding is not None:
            await self._reply_compressed(decoded, headers, coding)
            return
        if decoded.n_bytes <= SMALL_BYTES:
            await self.reply.whole(200, headers, b"".join([*decoded.header, *decoded.blobs]))
            return
        await self.reply.begin(200, headers, decoded.n_bytes)
        buffers: list[bytes | memoryview] = [*decoded.header, *decoded.blobs]
        for buffer in buffers:
            await self.reply.write(buffer)
        await self.reply.end()

    async def _reply_compressed(self, decoded: DecodedReply, headers: Fields, coding: Coding) -> None:
        """Compress while sending; how long it gets shows only at the end, so it goes out in chunks."""
        headers.append(("Content-Encoding", coding.label))
        await self.reply.begin(200, headers, None)
        pieces = compressed([*decoded.header, *decoded.blobs], coding)
        while (piece := await self._pacer.next(pieces)) is not None:
            await self.reply.write(piece)
        await self.reply.end()

    async def _reply_error(self, answer: Answer) -> None:
        """Pass a backend's error on with its status, in the shape of the protocol (4.9)."""
        body, detail = await _read_error(answer)
        headers = transcoded_to_client(Headers(answer.headers.items()))
        self._exchange.error = ErrorKind.BACKEND_ERROR
        self._exchange.detail = detail
        headers.append(("Content-Type", "application/json"))
        await self.reply.whole(answer.status, headers, body)

    # Everything else

    async def server_metadata(self, upstream: Upstream) -> None:
        """`GET /v2`: the backend's answer, with the extension among its extensions (protocol section 8)."""
        headers = self._backend_headers(upstream.headers.relayed_uncoded)
        async with self._upstream_call(upstream, headers, Body()) as answer:
            length = int(answer.headers.get("Content-Length", "0"))
            if answer.status != 200 or length > METADATA_BYTES or "Content-Encoding" in answer.headers:
                await self._stream(answer)
                return
            text = await _read_bounded(answer, METADATA_BYTES, "the server's metadata")
            advertised = with_extension(text)
            fields = relayed_to_client(Headers(answer.headers.items()))
            if advertised != text:
                fields = [pair for pair in fields if pair[0].lower() != "etag"]
        await self.reply.whole(answer.status, fields, advertised)

    async def relay(self, upstream: Upstream) -> None:
        """Any other request and its answer, as they stream."""
        request = self._request
        headers = self._backend_headers(upstream.headers.relayed_uncoded)
        failed: list[GatewayError] = []

        async def pieces(sending: Sending) -> AsyncIterator[bytes]:
            sending.paused()
            try:
                async for chunk in self.body.chunks():
                    sending.piece(len(chunk))
                    yield chunk
                    sending.paused()
            except GatewayError as error:
                failed.append(error)
                raise
            sending.done()

        length = request.content_length
        if not request.has_body:
            body = Body()
            if length == 0:
                headers["Content-Length"] = "0"
        else:
            self.body.invite()
            if length is not None and length <= SMALL_BYTES:
                # small enough to be held, and so to be sent again if the connection turns out to be dead
                body = Body(whole=await self._read_small(length))
            else:
                if length is not None:
                    headers["Content-Length"] = str(length)
                body = Body(open=pieces, can_be_repeated=False)
        reloaded = _RELOADED.fullmatch(self._exchange.path.partition("?")[0])
        try:
            async with self._upstream_call(upstream, headers, body) as answer:
                await self._stream(answer)
        except GatewayError:
            if failed:
                raise failed[0] from None
            raise
        finally:
            if reloaded is not None:
                self._gateway.metadata.forget(upstream.name, f"{reloaded[1]}/v2/models/{reloaded[2]}")

    # Sending

    def _upstream_call(
        self, upstream: Upstream, headers: CIMultiDict[str], body: Body
    ) -> AbstractAsyncContextManager[Answer]:
        headers["X-Request-Id"] = self._exchange.request_id
        exchange = self._exchange
        return upstream.call(self._request.method, exchange.path, headers, body, exchange.attempts, self._total_at)

    def _backend_headers(self, make: Callable[..., Fields]) -> CIMultiDict[str]:
        request = self._request
        return CIMultiDict(make(request.headers, peer=request.peer, scheme=request.scheme, host=request.host))

    async def _read_small(self, length: int) -> bytes:
        """A body of *length* bytes that is relayed as it is, and small enough to be held."""
        text = await self.body.read_first(length)
        if len(text) < length:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, f"the body ended after {len(text)} of {length} bytes")
        return text

    async def _stream(self, answer: Answer) -> None:
        """Pass an answer on as it arrives."""
        headers = Headers(answer.headers.items())
        length = headers.get("content-length")
        fields = relayed_to_client(headers)
        await self.reply.begin(answer.status, fields, int(length) if length.isdecimal() else None, answer.reason)
        async for chunk in answer.chunks():
            await self.reply.write(chunk)
        await self.reply.end()
        if answer.status >= 400:
            self._exchange.error = ErrorKind.BACKEND_ERROR


def _joined(parsed: InferRequest) -> Generator[None, None, bytes]:
    pieces = []
    for piece in parsed.json_pieces():
        pieces.append(piece)
        yield
    return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], bytes) else b"".join(pieces)


def _length(parsed: InferRequest) -> Generator[None, None, int]:
    n_bytes = 0
    for piece in parsed.json_pieces():
        n_bytes += len(piece)
        yield
    return n_bytes


async def _read_error(answer: Answer) -> tuple[bytes, str]:
    """The body that the client gets for an answer of status 300 and beyond, and its words (protocol 4.9)."""
    if answer.status < 400:
        raise GatewayError(
            ErrorKind.MALFORMED_RESPONSE,
            f"the backend answered {answer.status} {answer.reason}, a redirect or nothing",
        )
    text = b""
    async for chunk in answer.chunks():
        text += chunk[: ERROR_BYTES - len(text)]
        if len(text) >= ERROR_BYTES:
            break
    is_plain = answer.headers.get("Content-Encoding", "").lower() in ("", "identity")
    return error_body(text if is_plain else b"", answer.status, answer.reason)


async def _read_bounded(answer: Answer, max_bytes: int, what: str) -> bytes:
    """The whole body of an answer that has no reason to be large."""
    text = b""
    async for chunk in answer.chunks():
        text += chunk
        if len(text) > max_bytes:
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"{what} is larger than {max_bytes} bytes")
    return text


def _refuse_encoded(answer: Answer) -> None:
    encoding = answer.headers.get("Content-Encoding", "identity")
    if encoding.lower() not in ("", "identity"):
        raise GatewayError(
            ErrorKind.MALFORMED_RESPONSE, f"the answer has Content-Encoding {encoding[:64]!r}, asked for was identity"
        )
