"""Steps that all ways of serving a request share: choosing a backend, asking it, wording its errors.

Not here: which of these steps a request takes, and in which order (`inference`, `relaying` and others).
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.backend.asking import BackendRequest, Body, Pieces
from gateway.backend.attempt import Answer, Read, Transcode
from gateway.backend.metadata import LIFE_S
from gateway.backend.upstream import Upstream
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest
from gateway.codec.compression import inflated_beginning
from gateway.codec.inference import release
from gateway.codec.json.pieced import PiecedJson
from gateway.codec.v2.error_bodies import error_body
from gateway.codec.v2.framing import Framing
from gateway.codec.v2.reply import Reply as InferReply
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt, Exchange
from gateway.plan import BackendPlan, Plan
from gateway.policy.crossing import Fields, transcoded_to_client
from gateway.policy.routing import Match
from gateway.serving.adapter_modules import AdapterModule

if TYPE_CHECKING:
    from gateway.serving.gateway import Gateway

ERROR_BYTES = 64 * 1024
"""How much of the body of a backend's error is read and passed on."""

MAX_LOCATION = 200
"""How many characters of a redirect's address an error quotes."""

T = TypeVar("T")

Answered = tuple[InferReply, str]
"""The client's reply, made of a decoded answer, and the fields of the answer's head that cross."""


@dataclass(frozen=True, slots=True)
class Serving:
    """The plan and the backends that serve a request from its beginning to its end; a reload makes a new value."""

    plan: Plan
    upstreams: Mapping[str, Upstream]
    """The plan's backends by name."""
    lanes: dict[tuple[str, str], Any] = field(default_factory=dict)
    """The `batching.Lane` of each backend and path with requests under way."""
    unbatched: dict[tuple[str, str], None] = field(default_factory=dict)
    """Models, by backend and name, whose requests cannot be batched; the one found first stands first."""
    adapters: Mapping[str, AdapterModule] = field(default_factory=dict)
    """The adapters of `dialect: python`, by backend."""


class Call:
    """One request while it is served, with everything that its steps need."""

    match: Match
    upstream: Upstream
    backend: BackendPlan
    """Where the request goes, once `choose` has found it."""
    framing: Framing
    """Where the JSON of an inference ends, and in which form its reply says the same."""
    total_at: float | None = None
    sticky_key: str | None = None
    rows = 0
    """The rows of a batch, or those of a request whose inputs all have as many, where requests are batched."""
    is_batch = False
    """Whether it has the rows of several clients' requests."""
    counted_for: str | None = None
    """The client whose concurrent requests it is counted among; None if clients have no limits."""
    words_in: Callable[[bytes], str | None] | None = None
    """Finds the reason in the body of an error, where the backend's dialect has it elsewhere than all others."""

    def __init__(self, shared: "Gateway", serving: Serving, request: ClientRequest, exchange: Exchange) -> None:
        """*shared* has the state that all requests share, whatever their plan."""
        self.serving = serving
        self.plan = plan = serving.plan
        self.shared = shared
        self.request = request
        self.exchange = exchange
        self.body = self.reply = (request.front or Reply)(request, exchange, shared, plan)

    def choose(self, sticky_key: str | None = None) -> None:
        """Choose the backend for the request, by its *sticky_key* unless the route finds that in a header."""
        destination = self.match.destination
        if destination.sticky_header:
            sticky_key = self.request.headers.get(destination.sticky_header).strip() or None
        self.sticky_key = sticky_key
        name = self.exchange.backend = destination.only or destination.pick(sticky_key or str(random.getrandbits(64)))
        self.upstream = upstream = self.serving.upstreams[name]
        self.backend = upstream.plan
        if self.request.deadline_s is not None:
            self.begin_total()

    # The client's request

    def let_go(self, answer: Answer, *views: memoryview) -> None:
        """Free the request's memory, held by *views* alone: its answer has begun, and it will not be sent again.

        A small request, which was sent whole, is kept, and so is a request that is still being sent.
        """
        if not (answer.is_streamed and answer.is_sent) or self.backend.settings.retry.resend_after_sent:
            return
        if release(views):
            self.body.let_go()

    # The time for it

    def begin_total(self) -> float:
        """Start `timeouts.total` unless it has begun, and return when it is over, by the event loop's clock."""
        if self.total_at is None:
            self.total_at = asyncio.get_running_loop().time() + self.backend.settings.timeouts.total
            if self.request.deadline_s is not None:
                self.total_at = min(self.total_at, self.request.deadline_s)
        return self.total_at

    async def within_total(self, awaited: Awaitable[T], *, is_clients: bool = False, late_s: float = 0.0) -> T:
        """Await *awaited*, but no longer than `timeouts.total` and *late_s*.

        Raises `GatewayError`: TIMEOUT, or SLOW_CLIENT if the client is waited for (*is_clients*).
        """
        try:
            async with asyncio.timeout_at(self.begin_total() + late_s):
                return await awaited
        except TimeoutError:
            total = f"{self.backend.settings.timeouts.total:g} s (timeouts.total)"
            if is_clients:
                words = f"the client kept the request open for more than {total}"
                raise GatewayError(ErrorKind.SLOW_CLIENT, words) from None
            words = f"backend {self.backend.name!r} took longer than {total}"
            raise GatewayError(ErrorKind.TIMEOUT, words) from None

    # The request to the backend, and its answer

    def asked(self, fields: Fields, body: Body, target: str = "", method: str = "", **flags: bool) -> BackendRequest:
        """A request to the backend with *fields*, `Via` and `X-Request-Id`; *flags* are those of `BackendRequest`.

        *target*, the raw path and query, and *method* are those of the client unless they are given.
        """
        method, target = method or self.request.method, target or self.match.target
        headers = [*fields, self.plan.via, ("X-Request-Id", self.exchange.request_id)]
        trace = self.exchange.trace
        if trace is not None:
            trace = self.backend.headers.trace(trace)
        max_bytes = self.plan.limits.response_body if self.exchange.is_inference else math.inf
        return BackendRequest(method, target, headers, body, trace=trace, max_answer_bytes=max_bytes, **flags)

    async def streamed_json(self, written: PiecedJson) -> Body:
        """The backend's JSON as a stream that is made while it is sent."""
        pacer = self.exchange.request_codec
        length = None
        if self.backend.settings.framing == "content-length":
            # The length is only known by making the JSON; it is made again while it is sent, and never held.
            length = await self.within_total(pacer.run(written.json_bytes()))

        async def pieces() -> Pieces:
            made = written.json_pieces()
            while (piece := await pacer.next(made)) is not None:
                yield piece

        return Body(open=pieces, length=length)

    def send(
        self,
        asked: BackendRequest,
        read: Read[T],
        transcode: Transcode[T] | None = None,
        attempts: list[Attempt] | None = None,
    ) -> Awaitable[T]:
        """Send *asked* and *read* the answer; retries until the reply has begun. *transcode*: see `Upstream.call`.

        The attempts are added to *attempts*, or else to those of the exchange.
        """
        reply = self.reply
        return self.upstream.call(
            asked,
            self.exchange.attempts if attempts is None else attempts,
            read,
            transcode=transcode,
            total_at=self.total_at,
            sticky_key=self.sticky_key,
            is_settled=lambda: reply.has_begun,
        )

    def question(self, path: str, read: Read[T], attempts: list[Attempt] | None = None) -> Awaitable[T]:
        """Ask for *path* on the gateway's own behalf, with the client's headers. Raises `GatewayError`.

        The attempts are added to *attempts*, or else to those of the exchange.
        """
        fields, is_inference = self.backend.headers.metadata(self.request), self.exchange.is_inference
        asked = self.asked(fields, Body(), path, "GET", is_metadata=is_inference, is_read_whole=True)
        attempts = self.exchange.attempts if attempts is None else attempts
        return self.upstream.call(asked, attempts, read, total_at=self.total_at)

    async def backend_error(
        self, answer: Answer, text: bytes | None = None, *, json_bytes: int | None = None, hint: str = ""
    ) -> GatewayError:
        """A backend's refusal in the shape of the protocol, with the backend's status and words (protocol 4.9).

        *text* is the body, or its beginning, if it has been read already. *json_bytes* is the size of the JSON that the
        gateway made of a transcoded request. *hint*: see `error_body`.
        """
        if answer.status < 400:
            status = f"{answer.status} {answer.head.reason}".strip()
            location = answer.headers.get("location")[:MAX_LOCATION]
            where = f" to {location}" if location else ""
            words = f"the backend answered {status}, a redirect{where}, which the gateway does not follow{hint}"
            return GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
        text = await answer.read_beginning(ERROR_BYTES) if text is None else text
        text = inflated_beginning(text, answer.headers.joined("content-encoding"), ERROR_BYTES)
        own_words = self.words_in(text) if self.words_in is not None else None
        backend, status_code = self.exchange.backend, answer.status
        body, words = error_body(
            text, status_code, answer.head.reason, json_bytes, backend=backend, own_words=own_words, hint=hint
        )
        headers = transcoded_to_client(answer.headers)
        return GatewayError(ErrorKind.BACKEND_ERROR, words, headers=headers, status=status_code, body=body)


class Question:
    """A question about a model to its backend, asked once for all requests that need it and have the same headers."""

    def __init__(self, call: Call, path: str, read: Read[tuple[Any, int]]) -> None:
        """*read* makes a value of the answer to *path*, and says how many bytes it takes; 0: it is not kept."""
        self._call = call
        self._path = path
        self._read = read
        self._key = (call.backend.fingerprint, path, tuple(call.backend.headers.metadata(call.request)))
        self._asking: asyncio.Task[tuple[Any, int]] | None = None

    def known(self, max_age_s: float = LIFE_S) -> Any:
        """The answer, if the question was asked less than *max_age_s* ago; else None."""
        return self._call.shared.metadata.known(self._key, max_age_s)

    async def get(self, max_age_s: float = LIFE_S) -> Any:
        """The answer, from a question that was asked less than *max_age_s* ago. Raises `GatewayError`."""
        known = self.known(max_age_s)
        if known is None:
            await self.begin()
            known = await self.answer()
        return known

    async def begin(self) -> None:
        """Send the question, unless it is on its way, and do not wait for the answer.

        When this returns the question has a connection, or its place in the queue for one.
        """
        self._call.begin_total()
        self._asking = self._call.shared.metadata.ask(self._key, self._fetch)
        await asyncio.sleep(0)

    async def answer(self) -> Any:
        """The answer to the question that has begun. Raises `GatewayError`."""
        assert self._asking is not None
        # this wait counts in the client's `timeouts.total`, also if another client's call has sent the question
        return (await self._call.within_total(asyncio.shield(self._asking)))[0]

    async def _fetch(self) -> tuple[Any, int]:
        """Ask. The attempts are put before the inference's, since records take the last attempt for the inference's."""
        attempts = list[Attempt]()
        try:
            return await self._call.question(self._path, self._read, attempts)
        finally:
            self._call.exchange.attempts[:0] = attempts
