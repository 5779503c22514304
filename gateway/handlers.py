"""What happens to a request, in which order, from its head to the last byte of its reply.

`Gateway.handle` finds the backend; then `_Call` does one of three things: `infer`, `server_metadata` or `relay`. Three
modules do it in another way: `translation` and `own_answers` for backends of another dialect, `passing` for those that
read binary themselves. Here is only the order of the steps. Not here: how they are done. `client` reads from the client
and writes to it, `codec` converts bytes, `policy` decides, `backend` calls backends, and `telemetry` reads the finished
exchange.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from gateway import own_answers
from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer, Read
from gateway.backend.metadata import MAX_BYTES as METADATA_BYTES
from gateway.backend.metadata import ModelMetadata, is_undescribed, is_worth_keeping
from gateway.backend.upstream import Upstream
from gateway.call import Answered, Call, Described
from gateway.client.request import ClientRequest, request_id
from gateway.codec import (
    DIALECTS,
    HELD_PER_BYTE,
    SHORT_ANSWER_BYTES,
    Framing,
    InferAnswer,
    InferRequest,
    ShortRequest,
    find_sequence_id,
    half_precision_outputs,
    parse_framing,
    read_short_answer,
    read_short_request,
    with_extension,
)
from gateway.codec import Reply as InferReply
from gateway.errors import ErrorKind, GatewayError, blaming
from gateway.exchange import Exchange, Format
from gateway.headers import Headers
from gateway.pacing import LOAD
from gateway.passing import pass_through, upload
from gateway.plan import BackendPlan, Plan
from gateway.policy.admission import Admission
from gateway.policy.crossing import Fields, relayed_to_client
from gateway.policy.quiet import OncePerInterval
from gateway.policy.routing import Match, PathKind
from gateway.policy.trace_context import Trace
from gateway.translation import Translation

WARNED_CLIENTS = 1000
"""How many client addresses are remembered that were warned of because they send no header length."""

log = logging.getLogger("gateway")


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
        self.metadata = ModelMetadata[bytes]()
        self.descriptions = ModelMetadata[Described]()
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
        await self.descriptions.close()


class _Call(Call):
    """One request while it is served: the ways that it can take."""

    async def serve(self, upstreams: Mapping[str, Upstream], match: Match) -> None:
        """Do what the path asks for. Raises `GatewayError`."""
        self.match = match
        method = self.request.method
        if match.kind is PathKind.INFER and method == "POST":
            await self.infer(upstreams)
            return
        upstream, backend = self.choose(upstreams)
        translation = None
        if backend.dialect != "v2" and match.kind is not PathKind.OTHER:
            translation = await self._translation(upstream, backend)
        if translation is not None:
            await own_answers.answer(translation)
        elif match.kind is PathKind.SERVER_METADATA and method == "GET":
            await self.server_metadata(upstream, backend)
        else:
            await self.relay(upstream, backend)

    async def _translation(self, upstream: Upstream, backend: BackendPlan) -> Translation | None:
        """What asks a backend of another dialect; None for one that speaks V2 after all. Raises `GatewayError`."""
        name = backend.dialect if backend.dialect != "auto" else (await upstream.spoken()).dialect
        dialect = DIALECTS.get(name)
        return None if dialect is None else Translation(self, upstream, backend, dialect)

    async def infer(self, upstreams: Mapping[str, Upstream]) -> None:
        """Binary or JSON in, JSON to the backend, binary or JSON out."""
        exchange = self.exchange
        exchange.is_inference = True
        request = self.request
        with blaming(ErrorKind.MALFORMED_REQUEST):
            framing = parse_framing(
                request.headers.all("inference-header-content-length"), request.headers.get("content-type")
            )
        body = sequence_id = None
        if self.match.destination.sticky.by_sequence:
            body = await self.body.read()
            sequence_id = await self.pacer.run(find_sequence_id(body, framing.header_length))
        upstream, backend = self.choose(upstreams, sequence_id)
        if backend.binary != "never" and (await upstream.spoken()).binary:
            transcode = partial(self._transcoded, upstream, backend, framing)
            answered = await pass_through(self, upstream, backend, framing, body, transcode)
        else:
            if body is None:
                body = self.body.read_arrived()
                if body is None:
                    body = await self.body.read_rest()
            if backend.dialect != "v2" and (translation := await self._translation(upstream, backend)) is not None:
                exchange.client_format = Format.JSON if framing.header_length is None else Format.BINARY
                await translation.infer(body, framing)
                return
            asked, read = await self._transcoded(upstream, backend, framing, body)
            answered = await self.send(upstream, asked, read)
        if answered is not None:
            await self.answer_inference(*answered, framing)

    async def _transcoded(
        self, upstream: Upstream, backend: BackendPlan, framing: Framing, body: memoryview
    ) -> tuple[BackendRequest, Read[Answered | None]]:
        """What the backend gets of *body* in JSON, and how its answer is read.

        That gives the reply, or None for JSON that is passed on, whose reply is written while it is read. Raises
        `GatewayError`.
        """
        exchange = self.exchange
        exchange.client_format = Format.JSON if framing.header_length is None else Format.BINARY
        parsed: InferRequest | ShortRequest | None = self._parse_short(backend, body, framing)
        if parsed is None:
            parsed = await self._parse(upstream, backend, body, framing)
        if parsed is None:
            return self._as_it_came(upstream, backend, body), self._pass_on
        self.note(parsed)
        declared = await self._declared_half_precision(upstream, backend) if parsed.promotes else {}
        json_body = (
            Body(whole=parsed.json) if isinstance(parsed, ShortRequest) else await self.json_body(parsed, backend)
        )
        fields = self.transcoded_headers(backend)

        async def read(answer: Answer) -> Answered:
            if answer.status >= 300:
                raise await self.backend_error(answer, json_bytes=exchange.attempts[-1].request_bytes)
            return await self._decode(answer, parsed, declared), answer.transcoded_lines()

        return self.asked(upstream, fields, json_body, is_read_whole=True), read

    def _parse_short(self, backend: BackendPlan, body: memoryview, framing: Framing) -> ShortRequest | None:
        """A small request in its common form, with the backend's JSON; None for any other. Raises `GatewayError`."""
        started = time.perf_counter()
        parsed = read_short_request(
            body, framing.header_length, backend.tensor_policy, self.plan.header_limits, self.own_id(backend)
        )
        if parsed is not None:
            exchange = self.exchange
            exchange.request_codec_at_s = started
            exchange.request_codec_s += time.perf_counter() - started
            self.body.reserve((framing.header_length or len(body)) * HELD_PER_BYTE)
        return parsed

    async def _parse(
        self, upstream: Upstream, backend: BackendPlan, body: memoryview, framing: Framing
    ) -> InferRequest | None:
        """The request, proved right; None if it is pure JSON. Raises `GatewayError`."""
        limits, reserve, own_id = self.plan.header_limits, self.body.reserve, self.own_id(backend)
        steps: Generator[None, None, InferRequest | None]
        if framing.header_length == 0:
            metadata = await self._metadata(upstream, backend)
            policy = backend.tensor_policy
            steps = InferRequest.parse_raw(body, metadata, policy, limits, own_id=own_id, reserve=reserve)
        else:
            steps = InferRequest.parse(
                body,
                framing.header_length,
                backend.tensor_policy,
                limits,
                own_id=own_id,
                reserve=reserve,
                recover=self.plan.recover_header_length,
            )
        return await self.run_parser(steps)

    async def _metadata(self, upstream: Upstream, backend: BackendPlan) -> bytes:
        """The model's metadata. Raises `GatewayError`."""

        async def read(answer: Answer) -> tuple[bytes, int]:
            if answer.status >= 300:
                raise await self.backend_error(answer)
            answer.refuse_encoded()
            text = await answer.read_whole(METADATA_BYTES, "the model's metadata")
            return text, len(text) if is_worth_keeping(answer.status, text) else 0

        path = self.match.path.removesuffix("/infer")
        try:
            return await self.ask_once(self.shared.metadata, upstream, backend, path, read)
        except GatewayError as error:
            described = own_answers.configured_metadata(backend, self.match) if is_undescribed(error) else None
            if described is None:
                raise
            return described

    async def _declared_half_precision(self, upstream: Upstream, backend: BackendPlan) -> Mapping[str, str]:
        """Outputs that the model declares as FP16 or BF16; none if the backend does not say. Raises `GatewayError`."""
        try:
            metadata = await self._metadata(upstream, backend)
            return await self.pacer.run(half_precision_outputs(metadata, self.plan.header_limits))
        except GatewayError as error:
            if not is_undescribed(error):
                raise
            log.debug("no metadata for %s: %s", self.exchange.path, error.message)
            return {}

    def _as_it_came(self, upstream: Upstream, backend: BackendPlan, body: memoryview) -> BackendRequest:
        """Pure JSON: byte for byte to the backend (protocol 3.6)."""
        request = self.request
        self.exchange.upstream_format = Format.JSON
        # what the gateway reads must not be compressed
        headers = backend.headers.transcoded(request) if self.match.is_renamed else backend.headers.inflated(request)
        return self.asked(upstream, self.with_own(headers), Body.of(body))

    async def _pass_on(self, answer: Answer) -> None:
        """The answer to pure JSON: if it is a 2xx, byte for byte to the client (protocol 3.6)."""
        if answer.status >= 300:
            raise await self.backend_error(answer)
        self.exchange.reply_format = Format.JSON
        await self.stream(answer)

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
            answered = await self.decode(
                answer,
                text,
                InferAnswer(
                    parsed.selection,
                    model=self.match.model or "",
                    is_renamed=self.match.is_renamed,
                    request_id=parsed.id,
                    sent_id=parsed.sent_id,
                    max_bytes=self.plan.limits.response_body,
                    limits=self.plan.header_limits,
                    declared=declared,
                ),
            )
        self.exchange.output_datatypes = answered.datatypes
        self.exchange.response_nonfinite = answered.nonfinite
        return answered

    def _decode_short(self, text: bytes, parsed: InferRequest | ShortRequest) -> InferReply | None:
        """The reply to a small answer in its common form; None for any other. Never raises."""
        if len(text) > self.plan.limits.response_body:
            return None
        started = time.perf_counter()
        model, is_renamed, limits = self.match.model or "", self.match.is_renamed, self.plan.header_limits
        answered = read_short_answer(
            text, parsed.selection, parsed.id, parsed.sent_id, model=model, is_renamed=is_renamed, limits=limits
        )
        exchange = self.exchange
        exchange.response_codec_at_s = started
        exchange.response_codec_s += time.perf_counter() - started
        if answered is not None:
            self.body.hold_answer(answered.n_bytes)
        return answered

    async def server_metadata(self, upstream: Upstream, backend: BackendPlan) -> None:
        """`GET /v2`: the backend's answer, with the extension among its extensions (protocol 8)."""
        request = self.request

        async def read(answer: Answer) -> tuple[bytes, Fields] | None:
            if answer.status >= 400:
                raise await self.backend_error(answer)
            length = answer.content_length or 0
            if answer.status != 200 or length > METADATA_BYTES or "content-encoding" in answer.headers:
                await self.stream(answer)
                return None
            text = await answer.read_whole(METADATA_BYTES, "the server's metadata")
            return text, relayed_to_client(answer.headers)

        described = await self.ask(upstream, self.with_own(backend.headers.relayed_uncoded(request)), Body(), read)
        if described is None:
            return
        text, crossing = described
        advertised = with_extension(text)
        if advertised != text:
            crossing = [field for field in crossing if field[0].lower() != "etag"]
        await self.reply.whole(200, crossing, advertised)

    async def relay(self, upstream: Upstream, backend: BackendPlan) -> None:
        """Any other request and its answer, as they stream."""
        request = self.request
        body = Body() if request.content_length is None else Body(whole=b"")
        if request.has_body:
            body = await upload(self, backend)
        elif request.method not in ("GET", "HEAD"):
            await self.body.admit(0)
        match, wanted = self.match, backend.headers
        headers = wanted.relayed_uncoded(request) if match.is_renamed else wanted.relayed(request)

        async def read(answer: Answer) -> None:
            if answer.status >= 400 and match.kind is not PathKind.OTHER:
                await self._refused(answer, upstream, backend)
            else:
                await self.stream(answer)

        try:
            await self.ask(upstream, self.with_own(headers), body, read)
        finally:
            if (reloaded := match.reloaded_path) is not None:
                self.shared.metadata.forget(backend.fingerprint, reloaded)

    async def _refused(self, answer: Answer, upstream: Upstream, backend: BackendPlan) -> None:
        """Answer in place of the server what it does not have and the gateway knows. Raises the server's error."""
        method = self.request.method
        if answer.status not in own_answers.LACKING:
            raise await self.backend_error(answer)
        text = own_answers.instead(self.match, backend, method, answer.status, is_usable=upstream.is_usable)
        if text is None:
            raise await self.backend_error(answer, hint=own_answers.hint(method, self.match.v2_path))
        await self.reply.whole(200, [own_answers.JSON], text)
