"""What the ways of serving a request have in common: asking a backend, passing its answer on, wording its errors.

Here: one request while it is served, and the steps of which `handlers` and `translation` are made. Not here: which of
them a request takes, and in which order.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from gateway.backend.asking import BackendRequest, Body, Pieces, Sending
from gateway.backend.attempt import Answer, Read, Transcode
from gateway.backend.metadata import ModelMetadata
from gateway.backend.upstream import Upstream
from gateway.client.body import ClientBody
from gateway.client.reply import JOIN_BYTES, Reply
from gateway.client.request import ClientRequest
from gateway.codec import (
    HEADER_LENGTH,
    Coding,
    Framing,
    MemberReplacer,
    ModelDescription,
    choose_coding,
    compressed,
    error_body,
    inflated_beginning,
)
from gateway.codec import Reply as InferReply
from gateway.errors import CodecError, ErrorKind, GatewayError, blaming
from gateway.exchange import Exchange, Format
from gateway.headers import HeaderLines
from gateway.pacing import Pacer
from gateway.plan import BackendPlan, Plan
from gateway.policy.admission import Admission
from gateway.policy.crossing import Fields, may_name_model, relayed_to_client, renamed_to_client
from gateway.policy.quiet import OncePerInterval
from gateway.policy.routing import Match
from gateway.policy.trace_context import Trace

ERROR_BYTES = 64 * 1024
"""How much of a backend's error is read and passed on."""

MAX_LOCATION = 200
"""The most characters of a redirect's address that stand in an error."""

_JSON = ("Content-Type", "application/json")

log = logging.getLogger("gateway")

T = TypeVar("T")
V = TypeVar("V")


class Described(NamedTuple):
    """What is known of a model of another dialect than V2."""

    model: ModelDescription
    by_server: bool = True
    """Whether its server describes it, and so names all of its outputs."""
    fault: str = ""
    """Why what its server says of it cannot be used."""


Answered = tuple[InferReply, HeaderLines | Fields]
"""What the client gets of an answer that was decoded, and what crosses of its head."""


def _no_words(_: bytes) -> None:
    return None


class Shared(Protocol):
    """What all requests of a process share, whatever plan they are served by."""

    admission: Admission
    metadata: ModelMetadata[bytes]
    descriptions: ModelMetadata[Described]
    recovered_warnings: OncePerInterval
    is_draining: bool


class Proven(Protocol):
    """A client's request that has been proved right."""

    @property
    def datatypes(self) -> list[str]:
        """Of each binary input."""

    @property
    def header_recovered(self) -> bool:
        """Whether its header length was found out (protocol section 6)."""

    @property
    def nonfinite(self) -> int:
        """How many NaN and infinities are let through by policy."""


class Written(Protocol):
    """The JSON that a request becomes; it is made anew as often as it is asked for."""

    @property
    def is_small(self) -> bool:
        """Whether it can be made and sent in one go."""

    def whole_json(self) -> Generator[None, None, bytes]:
        """All of it; yields after each step of work."""

    def json_bytes(self) -> Generator[None, None, int]:
        """Its length; yields after each step of work."""

    def json_pieces(self) -> Iterator[bytes | bytearray | memoryview]:
        """It, in pieces of bounded size."""


class Decoder(Protocol):
    """Reads one answer: `feed` what arrives, then `finish`. Both yield after each step, and raise `CodecError`."""

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far."""

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Take the next bytes of the JSON."""

    def finish(self) -> Generator[None, None, InferReply]:
        """The reply."""


class Call:
    """One request while it is served: what all its steps need."""

    def __init__(self, shared: Shared, plan: Plan, request: ClientRequest, exchange: Exchange) -> None:
        self.plan = plan
        self.shared = shared
        self.request = request
        self.exchange = exchange
        self.pacer = Pacer()
        self.total_at: float | None = None
        self.match: Match
        self.sticky_key: str | None = None
        limits = plan.limits
        self.body = ClientBody(request, exchange, shared.admission, limits.request_body, self.pacer)
        self.reply = Reply(
            request, exchange, body=self.body, is_draining=lambda: shared.is_draining, timing=plan.timing
        )

    def own_id(self, backend: BackendPlan) -> bytes:
        """The id, as JSON text, of a request to *backend* where the client has none; empty: it has none there either.

        It is the value of `X-Request-Id`, which the server's log may have as well.
        """
        return msgspec.json.encode(self.exchange.request_id) if backend.settings.ids == "always" else b""

    def choose(self, upstreams: Mapping[str, Upstream], sequence_id: str | None = None) -> tuple[Upstream, BackendPlan]:
        """The backend that gets the request, which may have a *sequence_id*."""
        destination = self.match.destination
        self.sticky_key = sequence_id or destination.sticky.header_key(self.request.headers)
        name = self.exchange.backend = destination.pick(self.sticky_key, random.random())  # noqa: S311  no secret
        return upstreams[name], self.plan.backends[name]

    def transcoded_headers(self, backend: BackendPlan) -> Fields:
        """The headers that *backend* gets with JSON that the gateway has made."""
        fields = backend.headers.transcoded(self.request)
        fields.append(self.plan.via)
        fields.append(("X-Request-Id", self.exchange.request_id))
        return fields

    async def run_parser(self, steps: Generator[None, None, T]) -> T:
        """The client's request, which *steps* parse. Raises `GatewayError` if it is malformed."""
        self.exchange.request_codec_at_s = time.perf_counter()
        try:
            with blaming(ErrorKind.MALFORMED_REQUEST):
                return await self.pacer.run(steps)
        finally:
            self.add_request_codec(self.pacer)

    def add_request_codec(self, pacer: Pacer) -> None:
        """Record the steps of the request's codec that *pacer* has just run."""
        self.exchange.request_codec_s += pacer.take_seconds()
        self.exchange.request_codec_until_s = time.perf_counter()

    def note(self, parsed: Proven) -> None:
        """Record in the exchange what the request holds."""
        exchange = self.exchange
        exchange.is_transcoded = True
        exchange.upstream_format = Format.JSON
        exchange.client_format = Format.BINARY if parsed.datatypes else Format.JSON
        exchange.request_nonfinite = parsed.nonfinite
        exchange.input_datatypes = parsed.datatypes
        if parsed.header_recovered:
            self.note_recovered()

    def note_recovered(self) -> None:
        """Record that the client did not say how long its JSON is, and that it was found out (protocol section 6)."""
        exchange = self.exchange
        exchange.header_recovered = True
        if self.shared.recovered_warnings.allows(exchange.client, exchange.started_s):
            log.warning("client %s sends binary bodies without %s; it was recovered", exchange.client, HEADER_LENGTH)

    async def ask_once(
        self,
        known: ModelMetadata[V],
        upstream: Upstream,
        backend: BackendPlan,
        path: str,
        read: Callable[[Answer], Awaitable[tuple[V, int]]],
    ) -> V:
        """What *backend* says at *path* of a model: asked with the client's headers, unless it is *known*.

        *read* gives what it makes of the answer, and how many bytes it takes to keep that; 0 for what is not kept.
        Raises `GatewayError`.
        """
        headers = backend.headers.metadata(self.request)
        key = (backend.fingerprint, path, tuple(headers))
        if (answer := known.known(key)) is not None:
            return answer

        def fetch() -> Awaitable[tuple[V, int]]:
            return self._question(upstream, backend, path, headers, read)

        # what is spent here is part of the client's time, also where it waits for another client's call
        try:
            async with asyncio.timeout_at(self.begin_total(backend)):
                return await known.get(key, fetch)
        except TimeoutError:
            total_s = backend.settings.timeouts.total
            words = f"backend {upstream.name!r} took longer than {total_s:g} s (timeouts.total)"
            raise GatewayError(ErrorKind.TIMEOUT, words) from None

    def begin_total(self, backend: BackendPlan) -> float:
        """When `timeouts.total` is over, by the event loop's clock: it begins now, unless it has begun."""
        if self.total_at is None:
            self.total_at = asyncio.get_running_loop().time() + backend.settings.timeouts.total
        return self.total_at

    def question(
        self, upstream: Upstream, backend: BackendPlan, path: str, read: Callable[[Answer], Awaitable[T]]
    ) -> Awaitable[T]:
        """Ask for *path* what the gateway wants to know itself, with the client's headers. Raises `GatewayError`."""
        return self._question(upstream, backend, path, backend.headers.metadata(self.request), read)

    def _question(
        self,
        upstream: Upstream,
        backend: BackendPlan,
        path: str,
        headers: Fields,
        read: Callable[[Answer], Awaitable[T]],
    ) -> Awaitable[T]:
        asked = BackendRequest(
            "GET",
            path,
            self.with_own(headers),
            Body(),
            is_metadata=self.exchange.is_inference,
            trace=self.trace_for(backend),
            is_read_whole=True,
        )
        return upstream.call(asked, self.exchange.attempts, read, total_at=self.total_at)

    async def json_body(self, written: Written, backend: BackendPlan) -> Body:
        """The backend's JSON: whole if it is small, else a stream that is made while it is sent."""
        if written.is_small:
            text = await self.pacer.run(written.whole_json())
            self.add_request_codec(self.pacer)
            return Body(whole=text)
        length = None
        if backend.settings.framing == "content-length":
            # The length is only known by making the JSON; it is made again while it is sent, and never held.
            length = await self.pacer.run(written.json_bytes())

        async def pieces(sending: Sending) -> Pieces:
            made = written.json_pieces()
            pacer = Pacer()
            while (piece := await pacer.next(made)) is not None:
                # now, not at the end, which an attempt that fails does not see
                self.add_request_codec(pacer)
                sending.piece(len(piece))
                yield piece
            sending.done()

        return Body(open=pieces, length=length)

    async def decode(self, answer: Answer, text: bytes | None, decoder: Decoder) -> InferReply:
        """The reply, made of *answer* while it arrives; *text* is its body if that was read. Raises `GatewayError`."""
        limit = self.plan.limits.response_body
        received = 0
        self.exchange.response_codec_at_s = time.perf_counter()
        with blaming(ErrorKind.MALFORMED_RESPONSE):
            async for chunk in answer.chunks() if text is None else _once(text):
                received += len(chunk)
                if received > limit:
                    raise CodecError(f"larger than limits.response_body, {int(limit)} bytes")
                await self.pacer.run(decoder.feed(chunk))
                self.body.hold_answer(decoder.held_bytes)
            if not received:
                raise CodecError(f"{answer.status} without a body")
            answered = await self.pacer.run(decoder.finish())
            self.body.hold_answer(decoder.held_bytes)
        self.exchange.response_codec_s += self.pacer.take_seconds()
        self.exchange.response_codec_until_s = time.perf_counter()
        return answered

    async def answer_inference(self, answered: InferReply, crossing: HeaderLines | Fields, framing: Framing) -> None:
        """Send header and blobs without joining them, and what is *crossing* of the answer's head."""
        lines, headers = (crossing, Fields()) if isinstance(crossing, HeaderLines) else (None, crossing)
        if answered.is_binary:
            self.exchange.reply_format = Format.BINARY
            header_bytes = answered.header_bytes
            headers += (("Content-Type", framing.content_type(header_bytes)), (HEADER_LENGTH, str(header_bytes)))
        else:
            self.exchange.reply_format = Format.JSON
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
        while (piece := await self.pacer.next(pieces)) is not None:
            await self.reply.write(piece)
        await self.reply.end()

    def _reply_coding(self, answered: InferReply, headers: Fields) -> Coding | None:
        """How the reply is to be compressed, if at all (protocol 7); says in *headers* what that depends on."""
        headers.append(("Vary", "Accept-Encoding"))
        if answered.n_bytes < self.plan.compression.min_size:
            return None
        return choose_coding(self.request.headers.joined("accept-encoding"))

    def ask(
        self,
        upstream: Upstream,
        fields: Fields,
        body: Body,
        read: Read[T],
        *,
        target: str | None = None,
        is_read_whole: bool = False,
    ) -> Awaitable[T]:
        """Ask the backend what the client asks, and *read* its answer; see `asked` and `send`."""
        asked = self.asked(upstream, fields, body, target=target, is_read_whole=is_read_whole)
        return self.send(upstream, asked, read)

    def asked(
        self,
        upstream: Upstream,
        fields: Fields,
        body: Body,
        *,
        target: str | None = None,
        is_read_whole: bool = False,
        is_passed: bool = False,
    ) -> BackendRequest:
        """What the backend is asked for the client.

        *target* is the raw path and query where the backend has others than those of the protocol; *is_read_whole* and
        *is_passed* are those of `BackendRequest`.
        """
        trace = self.exchange.trace
        if trace is not None:
            trace = self.trace_for(self.plan.backends[upstream.name])
        return BackendRequest(
            self.request.method,
            self.match.target if target is None else target,
            fields,
            body,
            trace=trace,
            is_read_whole=is_read_whole,
            is_passed=is_passed,
        )

    def send(
        self, upstream: Upstream, asked: BackendRequest, read: Read[T], transcode: Transcode[T] | None = None
    ) -> Awaitable[T]:
        """Send what is *asked*, and *read* the answer, maybe again until the reply has begun.

        *transcode* is that of `Upstream.call`.
        """
        reply = self.reply
        return upstream.call(
            asked,
            self.exchange.attempts,
            read,
            transcode=transcode,
            total_at=self.total_at,
            sticky_key=self.sticky_key,
            is_settled=lambda: reply.has_begun,
        )

    def trace_for(self, backend: BackendPlan) -> Trace | None:
        """The request's trace, as far as *backend* may be told of it."""
        trace, lets_pass = self.exchange.trace, backend.headers.lets_pass
        if trace is None or not lets_pass("traceparent"):
            return None
        return trace if lets_pass("tracestate") else msgspec.structs.replace(trace, state="")

    def with_own(self, headers: Fields) -> Fields:
        """*headers* and those that the gateway adds to every request to a backend."""
        return [*headers, self.plan.via, ("X-Request-Id", self.exchange.request_id)]

    async def stream(self, answer: Answer, headers: Fields | None = None) -> None:
        """Pass an answer on as it arrives, with the client's name of the model in place of the backend's.

        *headers*: instead of the answer's own, for a body that has no name of the model that could be replaced.
        """
        reply = self.reply
        match = self.match
        if headers is None and match.is_renamed and may_name_model(answer.status, answer.headers):
            await self._stream_renamed(answer, MemberReplacer(match.naming_key(self.request.method), match.model or ""))
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

    async def _stream_renamed(self, answer: Answer, replacer: MemberReplacer) -> None:
        answer.refuse_encoded()
        headers = renamed_to_client(answer.headers)
        length = answer.content_length
        if length is not None and length <= JOIN_BYTES and self.request.method != "HEAD":
            text = await answer.read_whole(JOIN_BYTES, "the answer")
            whole = b"".join(replacer.feed(text)) + replacer.finish()
            await self.reply.whole(answer.status, headers, whole, answer.reason)
            return
        await self.reply.begin(answer.status, headers, None, answer.reason)
        async for chunk in answer.chunks_for_client():
            pieces = replacer.feed(chunk)
            passed = bytearray()
            while (piece := await self.pacer.next(pieces)) is not None:
                passed += piece
            await self.reply.write(passed)
        await self.reply.write(replacer.finish())
        await self.reply.end()

    async def backend_error(
        self,
        answer: Answer,
        text: bytes | None = None,
        *,
        json_bytes: int | None = None,
        words_in: Callable[[bytes], str | None] = _no_words,
        hint: str = "",
    ) -> GatewayError:
        """A backend's refusal in the shape of the protocol, with its status and its words (protocol 4.9).

        *text*: the body, or its beginning, where it has been read. *json_bytes*: how much JSON the gateway made of a
        request that it transcoded. *words_in* finds the reason in a body where the server has it in a place of its own.
        *hint*: see `error_body`.
        """
        if answer.status < 400:
            status = f"{answer.status} {answer.reason}".strip()
            location = answer.headers.get("location")[:MAX_LOCATION]
            where = f" to {location}" if location else ""
            words = f"the backend answered {status}, a redirect{where}, which the gateway does not follow{hint}"
            return GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
        text = await answer.read_beginning(ERROR_BYTES) if text is None else text
        text = inflated_beginning(text, answer.headers.joined("content-encoding"), ERROR_BYTES)
        steps = error_body(text, answer.status, answer.reason, json_bytes, own_words=words_in(text), hint=hint)
        body, words = await self.pacer.run(steps)
        headers = answer.transcoded_headers()
        return GatewayError(ErrorKind.BACKEND_ERROR, words, headers=headers, status=answer.status, body=body)


async def _once(text: bytes) -> AsyncIterator[bytes]:
    yield text
