"""What the ways of serving a request have in common: choosing a backend, asking it, wording its errors.

Not here: which of these steps a request takes, and in which order.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer, Read, Transcode
from gateway.backend.metadata import LIFE_S, ModelMetadata
from gateway.backend.upstream import Upstream
from gateway.client.body import ClientBody
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest
from gateway.codec import HEADER_LENGTH, ModelDescription, error_body, inflated_beginning, release
from gateway.codec import Reply as InferReply
from gateway.errors import CodecError, ErrorKind, GatewayError, blamed
from gateway.exchange import Attempt, Exchange
from gateway.headers import HeaderLines
from gateway.pacing import Pacer
from gateway.plan import BackendPlan, Plan
from gateway.policy.admission import Admission
from gateway.policy.crossing import Fields
from gateway.policy.quiet import OncePerInterval
from gateway.policy.routing import Match
from gateway.policy.trace_context import Trace

ERROR_BYTES = 64 * 1024
"""How much of a backend's error is read and passed on."""

MAX_LOCATION = 200
"""The most characters of a redirect's address that stand in an error."""

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


Unbatched = dict[tuple[str, str], None]
"""By backend and name: models whose requests cannot go to the server together, in the order in which that was found."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What a request is served by, from its beginning to its end: one value, which a reload replaces in one step."""

    plan: Plan
    upstreams: Mapping[str, Upstream]
    """The plan's backends by name."""
    lanes: dict[tuple[str, str], Any] = field(default_factory=dict)
    """By backend and path: the requests that may go to the server together (`batching`)."""
    unbatched: Unbatched = field(default_factory=dict)


class Shared(Protocol):
    """What all requests of a process share, whatever plan they are served by."""

    admission: Admission
    metadata: ModelMetadata[bytes]
    descriptions: ModelMetadata[Described]
    recovered_warnings: OncePerInterval
    is_draining: bool


class Call:
    """One request while it is served: what all its steps need."""

    def __init__(self, shared: Shared, serving: Serving, request: ClientRequest, exchange: Exchange) -> None:
        self.serving = serving
        self.plan = plan = serving.plan
        self.upstreams = serving.upstreams
        self.shared = shared
        self.request = request
        self.exchange = exchange
        self.pacer = Pacer()
        self.total_at: float | None = None
        self.match: Match
        self.sticky_key: str | None = None
        self.counted_for: str | None = None
        """The client for which it counts as one of those at once; None where clients have no limits."""
        if request.front is not None:
            self.body, self.reply = request.front(request, exchange, shared, plan, self.pacer)
            return
        self.body = ClientBody(request, exchange, shared.admission, plan.limits.request_body, self.pacer)
        self.reply = Reply(
            request, exchange, body=self.body, is_draining=lambda: shared.is_draining, timing=plan.timing
        )

    def choose(self, sequence_id: str | None = None) -> tuple[Upstream, BackendPlan]:
        """The backend that gets the request, which may have a *sequence_id*."""
        destination = self.match.destination
        self.sticky_key = sequence_id or destination.sticky.header_key(self.request.headers)
        name = self.exchange.backend = destination.pick(self.sticky_key, random.random())  # noqa: S311  no secret
        if self.request.deadline_s is not None:
            self.begin_total(self.plan.backends[name])
        return self.upstreams[name], self.plan.backends[name]

    async def run_parser(self, steps: Generator[None, None, T]) -> T:
        """The client's request, which *steps* parse. Raises `GatewayError` if it is malformed."""
        self.exchange.request_codec_at_s = time.perf_counter()
        try:
            return await self.pacer.run(steps)
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_REQUEST) from error
        finally:
            self.add_request_codec(self.pacer)

    def add_request_codec(self, pacer: Pacer) -> None:
        """Record the steps of the request's codec that *pacer* has just run."""
        self.exchange.request_codec_s += pacer.take_seconds()
        self.exchange.request_codec_until_s = time.perf_counter()

    def note_recovered(self) -> None:
        """Record that the client did not say how long its JSON is, and that it was found out (protocol section 6)."""
        exchange = self.exchange
        exchange.header_recovered = True
        if self.shared.recovered_warnings.allows(exchange.client, exchange.started_s):
            log.warning("client %s sends binary bodies without %s; it was recovered", exchange.client, HEADER_LENGTH)

    def begin_total(self, backend: BackendPlan) -> float:
        """When `timeouts.total` is over, by the event loop's clock: it begins now, unless it has begun."""
        if self.total_at is None:
            self.total_at = asyncio.get_running_loop().time() + backend.settings.timeouts.total
            if self.request.deadline_s is not None:
                self.total_at = min(self.total_at, self.request.deadline_s)
        return self.total_at

    async def within_total(self, backend: BackendPlan, awaited: Awaitable[T], *, is_clients: bool = False) -> T:
        """What *awaited* gives before `timeouts.total` is over.

        Raises `GatewayError`: TIMEOUT, or SLOW_CLIENT where it is the client that is waited for (*is_clients*).
        """
        try:
            async with asyncio.timeout_at(self.begin_total(backend)):
                return await awaited
        except TimeoutError:
            total = f"{backend.settings.timeouts.total:g} s (timeouts.total)"
            if is_clients:
                words = f"the client kept the request open for more than {total}"
                raise GatewayError(ErrorKind.SLOW_CLIENT, words) from None
            raise GatewayError(ErrorKind.TIMEOUT, f"backend {backend.name!r} took longer than {total}") from None

    def question(
        self, upstream: Upstream, backend: BackendPlan, path: str, read: Callable[[Answer], Awaitable[T]]
    ) -> Awaitable[T]:
        """Ask for *path* what the gateway wants to know itself, with the client's headers. Raises `GatewayError`."""
        asked = self.asking(backend, path, backend.headers.metadata(self.request))
        return upstream.call(asked, self.exchange.attempts, read, total_at=self.total_at)

    def asking(self, backend: BackendPlan, path: str, headers: Fields) -> BackendRequest:
        """A question of the gateway's own to *backend*, with those *headers* of the client that cross."""
        return BackendRequest(
            "GET",
            path,
            self.with_own(headers),
            Body(),
            is_metadata=self.exchange.is_inference,
            trace=self.trace_for(backend),
            is_read_whole=True,
        )

    def ask(self, upstream: Upstream, fields: Fields, body: Body, read: Read[T]) -> Awaitable[T]:
        """Ask the backend what the client asks, and *read* its answer; see `asked` and `send`."""
        return self.send(upstream, self.asked(upstream, fields, body), read)

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

    def let_go(self, answer: Answer, backend: BackendPlan, views: Iterable[memoryview]) -> None:
        """Free the request, of which *views* are all that there is: its answer has begun, and it is not sent again.

        A small one, which was sent whole, is kept, as is one of which not all is sent yet.
        """
        sending = answer.sending
        if sending is None or not sending.is_sent or backend.settings.retry.resend_after_sent:
            return
        if release(views):
            self.body.let_go()

    def trace_for(self, backend: BackendPlan) -> Trace | None:
        """The request's trace, as far as *backend* may be told of it."""
        trace, lets_pass = self.exchange.trace, backend.headers.lets_pass
        if trace is None or not lets_pass("traceparent"):
            return None
        return trace if lets_pass("tracestate") else msgspec.structs.replace(trace, state="")

    def with_own(self, headers: Fields) -> Fields:
        """*headers* and those that the gateway adds to every request to a backend."""
        return [*headers, self.plan.via, ("X-Request-Id", self.exchange.request_id)]

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
        body, words = error_body(
            text,
            answer.status,
            answer.reason,
            json_bytes,
            backend=self.exchange.backend,
            own_words=words_in(text),
            hint=hint,
        )
        headers = answer.transcoded_headers()
        return GatewayError(ErrorKind.BACKEND_ERROR, words, headers=headers, status=answer.status, body=body)


class Question(Generic[V]):
    """What a backend says of a model: asked once for all requests that need it and have the same headers."""

    def __init__(
        self,
        call: Call,
        answers: ModelMetadata[V],
        upstream: Upstream,
        backend: BackendPlan,
        path: str,
        read: Callable[[Answer], Awaitable[tuple[V, int]]],
    ) -> None:
        """*read* gives what it makes of the answer to *path*, and the bytes that it takes; 0 for what is not kept."""
        self._call = call
        self._answers = answers
        self._upstream = upstream
        self._backend = backend
        self._path = path
        self._read = read
        self._headers = backend.headers.metadata(call.request)
        self._key = (backend.fingerprint, path, tuple(self._headers))
        self._asking: asyncio.Task[tuple[V, int]] | None = None

    def known(self, max_age_s: float = LIFE_S) -> V | None:
        """The answer, if the question was asked less than *max_age_s* ago."""
        return self._answers.known(self._key, max_age_s)

    async def get(self, max_age_s: float = LIFE_S) -> V:
        """The answer, from a question that was asked less than *max_age_s* ago. Raises `GatewayError`."""
        known = self.known(max_age_s)
        if known is None:
            await self.begin()
            known = await self.answer()
        return known

    async def begin(self) -> None:
        """Ask, unless the question is on its way, and do not wait for its answer.

        When this returns it has a connection, or its place in the queue for one.
        """
        self._call.begin_total(self._backend)
        self._asking = self._answers.ask(self._key, self._fetch)
        await asyncio.sleep(0)

    async def answer(self) -> V:
        """The answer to the question that has begun. Raises `GatewayError`."""
        assert self._asking is not None
        # what is spent here is part of the client's time, also where it waits for another client's call
        return (await self._call.within_total(self._backend, asyncio.shield(self._asking)))[0]

    async def _fetch(self) -> tuple[V, int]:
        """Ask. The attempts are recorded before those of the inference, which is the last that a record looks at."""
        call, attempts = self._call, list[Attempt]()
        asked = call.asking(self._backend, self._path, self._headers)
        try:
            return await self._upstream.call(asked, attempts, self._read, total_at=call.total_at)
        finally:
            call.exchange.attempts[:0] = attempts
