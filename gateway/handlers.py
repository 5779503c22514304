"""What happens to a request, in which order, from its head to the last byte of its reply.

`Gateway.handle` finds the backend; then `_Call` does one of three things: `infer`, `server_metadata` or `relay`. Here
is only the order of the steps. Not here: how they are done. `client` reads from the client and writes to it, `codec`
converts bytes, `policy` decides, `backend` calls backends, and `telemetry` reads the finished exchange.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from gateway.backend.attempt import Answer, BackendRequest, Body, Pieces, Sending, header_lines
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.metadata import ModelMetadata, is_undescribed, is_worth_keeping
from gateway.backend.upstream import Upstream
from gateway.client.body import ClientBody
from gateway.client.reply import JOIN_BYTES, Reply
from gateway.client.request import ClientRequest, KnownHead, request_id
from gateway.codec import (
    HEADER_LENGTH,
    HELD_PER_BYTE,
    SHORT_ANSWER_BYTES,
    Coding,
    Framing,
    InferAnswer,
    InferRequest,
    MemberReplacer,
    ShortRequest,
    choose_coding,
    compressed,
    error_body,
    find_sequence_id,
    half_precision_outputs,
    inflated_beginning,
    parse_framing,
    read_short_answer,
    read_short_request,
    with_extension,
)
from gateway.codec import Reply as InferReply
from gateway.errors import CodecError, ErrorKind, GatewayError, blaming
from gateway.exchange import Exchange, Format
from gateway.headers import HeaderLines, Headers
from gateway.pacing import LOAD, Pacer
from gateway.plan import BackendPlan, HeadNotes, Plan
from gateway.policy.admission import Admission
from gateway.policy.crossing import Fields, may_name_model, relayed_to_client, renamed_to_client
from gateway.policy.quiet import OncePerInterval
from gateway.policy.routing import Match, PathKind
from gateway.policy.trace_context import Trace

UPLOAD_BYTES = 64 * 1024
"""A relayed upload takes a connection to its backend when so much of it, or all of it, is there to be sent."""

ERROR_BYTES = 64 * 1024
"""How much of a backend's error is read and passed on."""

WARNED_CLIENTS = 1000
"""How many client addresses are remembered that were warned of because they send no header length."""

_JSON = ("Content-Type", "application/json")

log = logging.getLogger("gateway")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Serving:
    """What a request is served by, from its beginning to its end: one value, which a reload replaces in one step."""

    plan: Plan
    upstreams: Mapping[str, Upstream]
    """The plan's backends by name."""


class Gateway:
    """Serves all requests of a process. The plan can be replaced while it runs; its state stays."""

    def __init__(self, serving: Serving, record: Callable[[Exchange], None]) -> None:
        """*record* is called once with each finished exchange."""
        self.serving = serving
        self.begin_trace: Callable[[Headers], Trace] | None = None
        """Gives each request its trace; None: requests are not traced. A reload may replace it."""
        plan = serving.plan
        self.admission = Admission(plan.limits.in_flight_bytes, plan.limits.concurrent_requests)
        self.metadata = ModelMetadata()
        self.recovered_warnings = OncePerInterval(max_keys=WARNED_CLIENTS)
        self.in_flight = 0
        self.is_draining = False
        self._record = record
        self._idle = asyncio.Event()
        self._idle.set()

    def replace(self, serving: Serving) -> None:
        """Serve by *serving* from now on; requests that have begun keep what they took (design: reload)."""
        self.serving = serving
        limits = serving.plan.limits
        self.admission.max_bytes = limits.in_flight_bytes
        self.admission.max_requests = limits.concurrent_requests

    async def handle(self, request: ClientRequest) -> None:
        """Serve one request of a client."""
        loop = asyncio.get_running_loop()
        serving = self.serving
        exchange = Exchange(
            client=request.peer,
            method=request.method,
            path=request.path,
            request_id=request_id(request.headers),
            started_s=loop.time(),
        )
        if self.begin_trace is not None:
            exchange.trace, exchange.scheme = self.begin_trace(request.headers), request.scheme
        proxies = serving.plan.proxies
        if proxies is not None and proxies.trusts(request.peer):
            request.is_from_proxy = True
            exchange.client = proxies.client_of(request.peer, request.headers.joined("x-forwarded-for"))
        call = _Call(self, serving.plan, request, exchange)
        self.in_flight += 1
        LOAD.requests += 1
        self._idle.clear()
        try:
            try:
                await call.serve(serving.upstreams, self._route(request, call.plan, exchange))
            except GatewayError as error:
                await call.reply.error(error)
            if not request.connection.has_arrived:
                await call.body.drop_rest()
        except (asyncio.CancelledError, ConnectionError):
            call.reply.client_left()
            raise
        except Exception as error:
            log.exception("request %s failed", exchange.request_id)
            await call.reply.error(GatewayError(ErrorKind.INTERNAL, f"internal error: {type(error).__name__}"))
        finally:
            self.in_flight -= 1
            LOAD.requests -= 1
            if self.in_flight == 0:
                self._idle.set()
            call.body.release()
            exchange.seconds = loop.time() - exchange.started_s
            self._record(exchange)

    def _route(self, request: ClientRequest, plan: Plan, exchange: Exchange) -> Match:
        """Where the request goes, if its client may send it there. Raises `GatewayError`."""
        notes = request.head.notes if request.head is not None else None
        if notes is not None and notes.plan is plan:
            match = notes.match
        else:
            request.headers = plan.access.authorize(request.headers)
            if request.fault is not None:
                raise request.fault
            match = plan.route(request.method, request.host, request.path, request.headers)
        exchange.route = match.destination.route
        exchange.backend = match.destination.only or "none"
        exchange.model = match.model
        return match

    async def wait_until_idle(self, timeout_s: float) -> int:
        """Wait until no request is in flight, at most *timeout_s*; how many still are."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self.in_flight

    async def close(self) -> None:
        """Give up metadata that is being fetched for requests."""
        await self.metadata.close()


class _Call:
    """One request while it is served: what all its steps need."""

    def __init__(self, gateway: Gateway, plan: Plan, request: ClientRequest, exchange: Exchange) -> None:
        self.plan = plan
        self._gateway = gateway
        self._request = request
        self._exchange = exchange
        self._pacer = Pacer()
        self._total_at: float | None = None
        self._match: Match
        self._sticky_key: str | None = None
        limits = plan.limits
        self.body = ClientBody(request, exchange, gateway.admission, limits.request_body, self._pacer)
        self.reply = Reply(
            request, exchange, body=self.body, is_draining=lambda: gateway.is_draining, timing=plan.timing
        )

    async def serve(self, upstreams: Mapping[str, Upstream], match: Match) -> None:
        """Do what the path asks for. Raises `GatewayError`."""
        self._match = match
        method = self._request.method
        if match.kind is PathKind.INFER and method == "POST":
            await self.infer(upstreams)
        elif match.kind is PathKind.SERVER_METADATA and method == "GET":
            await self.server_metadata(*self._choose(upstreams))
        else:
            await self.relay(*self._choose(upstreams))

    def _choose(
        self, upstreams: Mapping[str, Upstream], sequence_id: str | None = None
    ) -> tuple[Upstream, BackendPlan]:
        """The backend that gets the request, which may have a *sequence_id*."""
        destination = self._match.destination
        self._sticky_key = sequence_id or destination.sticky.header_key(self._request.headers)
        name = self._exchange.backend = destination.pick(self._sticky_key, random.random())  # noqa: S311  no secret
        return upstreams[name], self.plan.backends[name]

    # The life of an infer request

    async def infer(self, upstreams: Mapping[str, Upstream]) -> None:
        """Binary or JSON in, JSON to the backend, binary or JSON out."""
        exchange = self._exchange
        exchange.is_inference = True
        request = self._request
        notes = request.head.notes if request.head is not None else None
        if notes is not None and notes.plan is self.plan:
            framing = notes.framing_of(request.headers)
        else:
            with blaming(ErrorKind.MALFORMED_REQUEST):
                framing = parse_framing(
                    request.headers.all("inference-header-content-length"), request.headers.get("content-type")
                )
        body = self.body.read_arrived()
        if body is None:
            body = await self.body.read_rest()
        exchange.client_format = Format.JSON if framing.header_length is None else Format.BINARY
        sequence_id = None
        if self._match.destination.sticky.by_sequence:
            sequence_id = await self._pacer.run(find_sequence_id(body, framing.header_length))
        upstream, backend = self._choose(upstreams, sequence_id)
        parsed: InferRequest | ShortRequest | None = self._parse_short(backend, body, framing)
        if parsed is None:
            parsed = await self._parse(upstream, backend, body, framing)
        if parsed is None:
            await self._pass_on(upstream, backend, body)
            return
        self._note(parsed)
        declared = await self._declared_half_precision(upstream, backend) if parsed.promotes else {}
        json_body = (
            Body(whole=parsed.json) if isinstance(parsed, ShortRequest) else await self._json_body(parsed, backend)
        )
        lines, fields = self._transcoded_headers(backend, framing)

        async def read(answer: Answer) -> tuple[InferReply, HeaderLines | Fields]:
            if answer.status >= 300:
                raise await self._backend_error(answer, json_bytes=exchange.attempts[-1].request_bytes)
            return await self._decode(answer, parsed, declared), answer.transcoded_lines()

        answered, crossing = await self._ask(upstream, fields, json_body, read, lines=lines, is_read_whole=True)
        await self._reply(answered, crossing, framing)

    def _transcoded_headers(self, backend: BackendPlan, framing: Framing) -> tuple[str, Fields]:
        """The headers that *backend* gets: as lines that were made once for all heads like this, and as fields."""
        request = self._request
        head = request.head
        own = ("X-Request-Id", self._exchange.request_id)
        if head is None:
            return "", [*backend.headers.transcoded(request), self._via, own]
        notes = head.notes
        if notes is None or not notes.hold_for(backend, request):
            notes = self._notes(backend, framing, head)
            if not self.plan.access.needs_token:
                head.notes = notes
        return notes.lines, [*notes.fields_of(request.headers), *backend.headers.hop(request), own]

    def _notes(self, backend: BackendPlan, framing: Framing, head: KnownHead) -> HeadNotes:
        """What this request has in common with all whose head is like *head*."""
        request = self._request
        # a field that the configuration sets is not the client's
        varying = {name for name in head.varying if backend.headers.lets_pass(name)}
        fields = [*backend.headers.transcoded_of_head(request), self._via]
        lines = header_lines([field for field in fields if field[0].lower() not in varying])
        names = [(name, name.lower()) for name, _ in fields if name.lower() in varying]
        is_from_proxy = request.is_from_proxy
        return HeadNotes(self.plan, self._match, framing, backend, request.scheme, is_from_proxy, lines, names)

    def _parse_short(self, backend: BackendPlan, body: memoryview, framing: Framing) -> ShortRequest | None:
        """A small request in its common form, with the backend's JSON; None for any other. Raises `GatewayError`."""
        started = time.perf_counter()
        parsed = read_short_request(body, framing.header_length, backend.tensor_policy, self.plan.header_limits)
        if parsed is not None:
            exchange = self._exchange
            exchange.request_codec_at_s = started
            exchange.request_codec_s += time.perf_counter() - started
            self.body.reserve((framing.header_length or len(body)) * HELD_PER_BYTE)
        return parsed

    async def _parse(
        self, upstream: Upstream, backend: BackendPlan, body: memoryview, framing: Framing
    ) -> InferRequest | None:
        """The request, proved right; None if it is pure JSON. Raises `GatewayError`."""
        limits, reserve = self.plan.header_limits, self.body.reserve
        steps: Generator[None, None, InferRequest | None]
        if framing.header_length == 0:
            metadata = await self._metadata(upstream, backend)
            steps = InferRequest.parse_raw(body, metadata, backend.tensor_policy, limits, reserve=reserve)
        else:
            steps = InferRequest.parse(
                body,
                framing.header_length,
                backend.tensor_policy,
                limits,
                reserve=reserve,
                recover=self.plan.recover_header_length,
            )
        self._exchange.request_codec_at_s = time.perf_counter()
        try:
            with blaming(ErrorKind.MALFORMED_REQUEST):
                return await self._pacer.run(steps)
        finally:
            self._add_request_codec(self._pacer)

    def _add_request_codec(self, pacer: Pacer) -> None:
        """Record the steps of the request's codec that *pacer* has just run."""
        self._exchange.request_codec_s += pacer.take_seconds()
        self._exchange.request_codec_until_s = time.perf_counter()

    def _note(self, parsed: InferRequest | ShortRequest) -> None:
        """Record in the exchange what the request holds."""
        exchange = self._exchange
        exchange.is_transcoded = True
        exchange.upstream_format = Format.JSON
        exchange.client_format = Format.BINARY if parsed.datatypes else Format.JSON
        exchange.header_recovered = parsed.header_recovered
        exchange.request_nonfinite = parsed.nonfinite
        exchange.input_datatypes = parsed.datatypes
        if parsed.header_recovered and self._gateway.recovered_warnings.allows(exchange.client, exchange.started_s):
            log.warning("client %s sends binary bodies without %s; it was recovered", exchange.client, HEADER_LENGTH)

    async def _metadata(self, upstream: Upstream, backend: BackendPlan) -> bytes:
        """The model's metadata, asked of the backend with the client's headers unless it is known."""
        request = self._request
        path = self._match.path.removesuffix("/infer")
        headers = backend.headers.metadata(request)
        trace = self._trace_for(backend)
        question = BackendRequest(
            "GET", path, self._with_own(headers), Body(), is_metadata=True, trace=trace, is_read_whole=True
        )

        async def read(answer: Answer) -> tuple[bytes, bool]:
            if answer.status >= 300:
                raise await self._backend_error(answer)
            answer.refuse_encoded()
            text = await answer.read_whole(METADATA_BYTES, "the model's metadata")
            return text, is_worth_keeping(answer.status, text)

        def fetch() -> Awaitable[tuple[bytes, bool]]:
            return upstream.call(question, self._exchange.attempts, read, total_at=self._total_at)

        # what is spent here is part of the client's time, also where it waits for another client's call
        total_s = backend.settings.timeouts.total
        self._total_at = asyncio.get_running_loop().time() + total_s
        try:
            async with asyncio.timeout_at(self._total_at):
                return await self._gateway.metadata.get((backend.fingerprint, path, tuple(headers)), fetch)
        except TimeoutError:
            words = f"backend {upstream.name!r} took longer than {total_s:g} s (timeouts.total)"
            raise GatewayError(ErrorKind.TIMEOUT, words) from None

    async def _declared_half_precision(self, upstream: Upstream, backend: BackendPlan) -> Mapping[str, str]:
        """Outputs that the model declares as FP16 or BF16; none if the backend does not say. Raises `GatewayError`."""
        try:
            metadata = await self._metadata(upstream, backend)
            return await self._pacer.run(half_precision_outputs(metadata, self.plan.header_limits))
        except GatewayError as error:
            if not is_undescribed(error):
                raise
            log.debug("no metadata for %s: %s", self._exchange.path, error.message)
            return {}

    async def _pass_on(self, upstream: Upstream, backend: BackendPlan, body: memoryview) -> None:
        """Pure JSON: byte for byte to the backend, and a 2xx answer byte for byte back (protocol 3.6)."""
        request = self._request
        self._exchange.upstream_format = Format.JSON
        # what the gateway reads must not be compressed
        headers = backend.headers.transcoded(request) if self._match.is_renamed else backend.headers.inflated(request)

        async def read(answer: Answer) -> None:
            if answer.status >= 300:
                raise await self._backend_error(answer)
            self._exchange.reply_format = Format.JSON
            await self._stream(answer)

        await self._ask(upstream, self._with_own(headers), Body.of(body), read)

    async def _json_body(self, parsed: InferRequest, backend: BackendPlan) -> Body:
        """The backend's JSON: whole if it is small, else a stream that is made while it is sent."""
        if parsed.is_small:
            text = await self._pacer.run(parsed.whole_json())
            self._add_request_codec(self._pacer)
            return Body(whole=text)
        length = None
        if backend.settings.framing == "content-length":
            # The length is only known by making the JSON; it is made again while it is sent, and never held.
            length = await self._pacer.run(parsed.json_bytes())

        async def pieces(sending: Sending) -> Pieces:
            made = parsed.json_pieces()
            pacer = Pacer()
            while (piece := await pacer.next(made)) is not None:
                # now, not at the end, which an attempt that fails does not see
                self._add_request_codec(pacer)
                sending.piece(len(piece))
                yield piece
            sending.done()

        return Body(open=pieces, length=length)

    async def _decode(
        self, answer: Answer, parsed: InferRequest | ShortRequest, declared: Mapping[str, str]
    ) -> InferReply:
        """Turn the answer into the reply. Raises `GatewayError`."""
        answer.refuse_encoded()
        text = answer.take_arrived(SHORT_ANSWER_BYTES)
        if text is None and 0 < (answer.content_length or 0) <= SHORT_ANSWER_BYTES:
            text = await answer.read_whole(SHORT_ANSWER_BYTES, "the answer")
        answered = self._decode_short(text, parsed) if text is not None and not declared else None
        if answered is None:
            answered = await self._decode_long(answer, text, parsed, declared)
        self._exchange.output_datatypes = answered.datatypes
        self._exchange.response_nonfinite = answered.nonfinite
        return answered

    def _decode_short(self, text: bytes, parsed: InferRequest | ShortRequest) -> InferReply | None:
        """The reply to a small answer in its common form; None for any other. Never raises."""
        if len(text) > self.plan.limits.response_body:
            return None
        started = time.perf_counter()
        model, is_renamed, limits = self._match.model or "", self._match.is_renamed, self.plan.header_limits
        answered = read_short_answer(
            text, parsed.selection, parsed.id, model=model, is_renamed=is_renamed, limits=limits
        )
        exchange = self._exchange
        exchange.response_codec_at_s = started
        exchange.response_codec_s += time.perf_counter() - started
        if answered is not None:
            self.body.hold_answer(answered.n_bytes)
        return answered

    async def _decode_long(
        self, answer: Answer, text: bytes | None, parsed: InferRequest | ShortRequest, declared: Mapping[str, str]
    ) -> InferReply:
        """As `_decode`, for any answer, while it arrives; *text* is its body if that was read."""
        limit = self.plan.limits.response_body
        decoder = InferAnswer(
            parsed.selection,
            model=self._match.model or "",
            is_renamed=self._match.is_renamed,
            request_id=parsed.id,
            max_bytes=limit,
            limits=self.plan.header_limits,
            declared=declared,
        )
        received = 0
        self._exchange.response_codec_at_s = time.perf_counter()
        with blaming(ErrorKind.MALFORMED_RESPONSE):
            async for chunk in answer.chunks() if text is None else _once(text):
                received += len(chunk)
                if received > limit:
                    raise CodecError(f"larger than limits.response_body, {int(limit)} bytes")
                await self._pacer.run(decoder.feed(chunk))
                self.body.hold_answer(decoder.held_bytes)
            if not received:
                raise CodecError(f"{answer.status} without a body")
            answered = await self._pacer.run(decoder.finish())
            self.body.hold_answer(decoder.held_bytes)
        self._exchange.response_codec_s += self._pacer.take_seconds()
        self._exchange.response_codec_until_s = time.perf_counter()
        return answered

    async def _reply(self, answered: InferReply, crossing: HeaderLines | Fields, framing: Framing) -> None:
        """Send header and blobs without joining them, and what is *crossing* of the answer's head."""
        lines, headers = (crossing, Fields()) if isinstance(crossing, HeaderLines) else (None, crossing)
        if answered.is_binary:
            self._exchange.reply_format = Format.BINARY
            header_bytes = answered.header_bytes
            headers += (("Content-Type", framing.content_type(header_bytes)), (HEADER_LENGTH, str(header_bytes)))
        else:
            self._exchange.reply_format = Format.JSON
            headers.append(_JSON)
        buffers: list[bytes | memoryview] = [*answered.header, *answered.blobs]
        coding = self._reply_coding(answered, headers) if self.plan.compression.responses else None
        if coding is None:
            await self.reply.buffers(200, headers, buffers, lines)
            return
        headers.append(("Content-Encoding", coding.label))
        # how long it gets shows only at the end, so it goes out in chunks
        await self.reply.begin(200, headers, None, lines=lines)
        pieces = compressed(buffers, coding)
        while (piece := await self._pacer.next(pieces)) is not None:
            await self.reply.write(piece)
        await self.reply.end()

    def _reply_coding(self, answered: InferReply, headers: Fields) -> Coding | None:
        """How the reply is to be compressed, if at all (protocol 7); says in *headers* what that depends on."""
        headers.append(("Vary", "Accept-Encoding"))
        if answered.n_bytes < self.plan.compression.min_size:
            return None
        return choose_coding(self._request.headers.joined("accept-encoding"))

    # Everything else

    async def server_metadata(self, upstream: Upstream, backend: BackendPlan) -> None:
        """`GET /v2`: the backend's answer, with the extension among its extensions (protocol 8)."""
        request = self._request

        async def read(answer: Answer) -> tuple[bytes, Fields] | None:
            length = answer.content_length or 0
            if answer.status != 200 or length > METADATA_BYTES or "content-encoding" in answer.headers:
                await self._stream(answer)
                return None
            text = await answer.read_whole(METADATA_BYTES, "the server's metadata")
            return text, relayed_to_client(answer.headers)

        described = await self._ask(upstream, self._with_own(backend.headers.relayed_uncoded(request)), Body(), read)
        if described is None:
            return
        text, crossing = described
        advertised = with_extension(text)
        if advertised != text:
            crossing = [field for field in crossing if field[0].lower() != "etag"]
        await self.reply.whole(200, crossing, advertised)

    async def relay(self, upstream: Upstream, backend: BackendPlan) -> None:
        """Any other request and its answer, as they stream."""
        request = self._request
        body = Body() if request.content_length is None else Body(whole=b"")
        if request.has_body:
            body = await self._upload(backend)
        elif request.method not in ("GET", "HEAD"):
            self.body.admit(0)
        match, wanted = self._match, backend.headers
        headers = wanted.relayed_uncoded(request) if match.is_renamed else wanted.relayed(request)

        async def read(answer: Answer) -> None:
            if answer.status >= 400 and match.kind is not PathKind.OTHER:
                raise await self._backend_error(answer)
            await self._stream(answer)

        try:
            await self._ask(upstream, self._with_own(headers), body, read)
        finally:
            if (reloaded := match.reloaded_path) is not None:
                self._gateway.metadata.forget(backend.fingerprint, reloaded)

    async def _upload(self, backend: BackendPlan) -> Body:
        """A body that is relayed: whole if it is small, and so can be sent again if a connection turns out to be dead.

        Its beginning is waited for here, so that a client that sends nothing holds no connection of a backend.
        """
        length = self._request.content_length
        self.body.admit(UPLOAD_BYTES if length is None else min(length, UPLOAD_BYTES))
        self.body.invite()
        total_s = backend.settings.timeouts.total
        self._total_at = asyncio.get_running_loop().time() + total_s
        try:
            async with asyncio.timeout_at(self._total_at):
                first = await self.body.read_first(UPLOAD_BYTES)
        except TimeoutError:
            words = f"the client kept the request open for more than {total_s:g} s (timeouts.total)"
            raise GatewayError(ErrorKind.SLOW_CLIENT, words) from None
        if self.body.at_end:
            return Body(whole=first)

        async def pieces(sending: Sending) -> AsyncIterator[bytes]:
            sending.piece(len(first))
            yield first
            sending.paused()
            async for chunk in self.body.chunks():
                sending.piece(len(chunk))
                yield chunk
                sending.paused()
            sending.done()

        return Body(open=pieces, length=length, can_be_repeated=False)

    # What these have in common

    def _ask(
        self,
        upstream: Upstream,
        fields: Fields,
        body: Body,
        read: Callable[[Answer], Awaitable[T]],
        *,
        lines: str = "",
        is_read_whole: bool = False,
    ) -> Awaitable[T]:
        """Ask the backend what the client asks, and *read* its answer, maybe again until the reply has begun."""
        request = self._request
        exchange, reply = self._exchange, self.reply
        trace = exchange.trace
        if trace is not None:
            trace = self._trace_for(self.plan.backends[upstream.name])
        asked = BackendRequest(
            request.method, self._match.target, fields, body, lines=lines, trace=trace, is_read_whole=is_read_whole
        )
        return upstream.call(
            asked,
            exchange.attempts,
            read,
            total_at=self._total_at,
            sticky_key=self._sticky_key,
            is_settled=lambda: reply.has_begun,
        )

    def _trace_for(self, backend: BackendPlan) -> Trace | None:
        """The request's trace, as far as *backend* may be told of it."""
        trace, lets_pass = self._exchange.trace, backend.headers.lets_pass
        if trace is None or not lets_pass("traceparent"):
            return None
        return trace if lets_pass("tracestate") else msgspec.structs.replace(trace, state="")

    def _with_own(self, headers: Fields) -> Fields:
        """*headers* and those that the gateway adds to every request to a backend."""
        return [*headers, self._via, ("X-Request-Id", self._exchange.request_id)]

    @property
    def _via(self) -> tuple[str, str]:
        return "Via", f"1.1 {self.plan.name}"

    async def _stream(self, answer: Answer) -> None:
        """Pass an answer on as it arrives, with the client's name of the model in place of the backend's."""
        reply = self.reply
        match = self._match
        if match.is_renamed and may_name_model(answer.status, answer.headers):
            await self._stream_renamed(
                answer, MemberReplacer(match.naming_key(self._request.method), match.model or "")
            )
            return
        headers = relayed_to_client(answer.headers)
        if whole := answer.take_arrived(JOIN_BYTES):
            await reply.whole(answer.status, headers, whole, answer.reason)
            return
        await reply.begin(answer.status, headers, answer.content_length, answer.reason)
        async for chunk in answer.chunks_for_client():
            await reply.write(chunk)
        await reply.end()

    async def _stream_renamed(self, answer: Answer, replacer: MemberReplacer) -> None:
        answer.refuse_encoded()
        headers = renamed_to_client(answer.headers)
        length = answer.content_length
        if length is not None and length <= JOIN_BYTES and self._request.method != "HEAD":
            text = await answer.read_whole(JOIN_BYTES, "the answer")
            whole = b"".join(replacer.feed(text)) + replacer.finish()
            await self.reply.whole(answer.status, headers, whole, answer.reason)
            return
        await self.reply.begin(answer.status, headers, None, answer.reason)
        async for chunk in answer.chunks_for_client():
            pieces = replacer.feed(chunk)
            passed = bytearray()
            while (piece := await self._pacer.next(pieces)) is not None:
                passed += piece
            await self.reply.write(passed)
        await self.reply.write(replacer.finish())
        await self.reply.end()

    async def _backend_error(self, answer: Answer, *, json_bytes: int | None = None) -> GatewayError:
        """A backend's refusal in the shape of the protocol, with its status and its words (protocol 4.9).

        *json_bytes*: how much JSON the gateway made of a request that it transcoded.
        """
        if answer.status < 400:
            status = f"{answer.status} {answer.reason}".strip()
            words = f"the backend answered {status}, a redirect, instead of an inference"
            return GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
        text = await answer.read_beginning(ERROR_BYTES)
        text = inflated_beginning(text, answer.headers.joined("content-encoding"), ERROR_BYTES)
        body, words = await self._pacer.run(error_body(text, answer.status, answer.reason, json_bytes))
        headers = answer.transcoded_headers()
        return GatewayError(ErrorKind.BACKEND_ERROR, words, headers=headers, status=answer.status, body=body)


async def _once(text: bytes) -> AsyncIterator[bytes]:
    yield text
