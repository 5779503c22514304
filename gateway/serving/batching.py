"""Requests for one model that go to the server together, where `batch` of the configuration allows it.

A batch is a request of the gateway's own with the rows of several clients: it takes the corridor that theirs would take
(`inference`), and each gets its part of the answer. Where that does not work, each goes alone. Not here: who may go
with whom (`codec.read_share`), when they go (`policy.batching`), and how an inference is put to its backend.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial

import msgspec

from gateway.backend.upstream import Upstream
from gateway.client.body import ClientBody
from gateway.client.request import ClientRequest, new_request_id
from gateway.codec import Framing, Share, divided, joined, read_share, release
from gateway.errors import CodecError, ErrorKind, ForeignAnswerError, GatewayError
from gateway.exchange import Attempt, Exchange
from gateway.headers import HeaderLines, Headers
from gateway.pacing import Pacer
from gateway.plan import BackendPlan, Plan
from gateway.policy.admission import Reservation
from gateway.policy.batching import Batch, BatchLimits, Lane, Waiting
from gateway.policy.crossing import UNIX_PEER, Fields, crossing_of_all
from gateway.serving.call import Answered, Call, Shared, Unbatched

Serve = Callable[[Call, Upstream, BackendPlan, Framing, memoryview], Awaitable[Answered | None]]
"""Serves one inference: what the client gets, and what crosses of the answer's head."""

MAX_LANES = 1024
"""For how many paths at once requests are batched; others go alone."""

MAX_UNBATCHED = 1024
"""How many models that cannot be batched are remembered: clients may make up names."""

_EACH_ALONE = (ErrorKind.BACKEND_ERROR, ErrorKind.MALFORMED_REQUEST, ErrorKind.BODY_TOO_LARGE, ErrorKind.OVERLOADED)
"""Errors of a batch that may be those of one request in it, or of its size."""

log = logging.getLogger("gateway")


@dataclass(slots=True, eq=False)
class Doubt:
    """Whether a batch whose answer could not be read was at fault, or one of its requests, which are sent alone now."""

    words: str
    n_left: int
    """How many of them have got no answer yet. Those that never get one were at fault."""


@dataclass(slots=True, eq=False)
class Member:
    """A request that may be joined with others."""

    call: Call
    upstream: Upstream
    backend: BackendPlan
    framing: Framing
    body: memoryview
    serve: Serve
    share: Share
    verdict: "asyncio.Future[Answered | None]"
    """What its client gets; None: it is to go alone."""
    doubt: Doubt | None = None

    def served(self) -> Awaitable[Answered | None]:
        """What it gives alone."""
        return self.serve(self.call, self.upstream, self.backend, self.framing, self.body)

    def move(self) -> None:
        """Hold its part of what was joined, in place of what its client has sent."""
        header = bytes(self.body[: self.framing.header_length])
        release((self.body, *(self.framing.blobs or ())))
        self.framing = Framing(len(header), blobs=self.share.blobs)
        self.body = memoryview(header)

    @property
    def goes_alone(self) -> bool:
        """Whether the verdict is that it goes alone."""
        verdict = self.verdict
        return verdict.done() and not verdict.cancelled() and not verdict.exception() and verdict.result() is None

    @property
    def has_left(self) -> bool:
        """Whether nobody waits for the verdict any more."""
        return self.verdict.cancelled()


async def serve_batched(
    call: Call, upstream: Upstream, backend: BackendPlan, framing: Framing, body: memoryview, serve: Serve
) -> Answered | None:
    """What *serve* gives for the inference in *body*, maybe together with others. Raises `GatewayError`."""
    if not backend.batches or not framing.header_length:
        return await serve(call, upstream, backend, framing, body)
    match = call.match
    model = backend.name, (match.v2_path.model if match.is_renamed else match.model) or ""
    limits = backend.batch_limits(model[1])
    if limits is not None:
        call.exchange.batch_rows = 1  # at least; the parser says how many
    if limits is None or model in call.serving.unbatched:
        return await serve(call, upstream, backend, framing, body)
    lanes: dict[tuple[str, str], Batcher] = call.serving.lanes
    key = backend.name, match.path
    batcher = lanes.get(key)
    share = None
    if batcher is not None:
        share = await call.run_parser(read_share(body, framing, call.plan.header_limits))
        batcher = lanes.get(key)  # as it is by now
    if batcher is None and len(lanes) < MAX_LANES:  # nothing is under way
        batcher = lanes[key] = Batcher(limits, call.serving.unbatched, model, partial(lanes.pop, key, None))
        batcher.lane.begin()
        return await batcher.alone(serve(call, upstream, backend, framing, body))
    if batcher is None or share is None or not batcher.lane.takes(share.rows, share.n_bytes):
        return await serve(call, upstream, backend, framing, body)
    verdict: asyncio.Future[Answered | None] = asyncio.get_running_loop().create_future()
    member = Member(call, upstream, backend, framing, body, serve, share, verdict)
    return await batcher.join(member) or await batcher.again(member)


class Batcher:
    """Sends the requests of one lane, together or alone."""

    def __init__(
        self, limits: BatchLimits, unbatched: Unbatched, model: tuple[str, str], forget: Callable[[], object]
    ) -> None:
        """*model* is that of the lane, and joins *unbatched* if it cannot be batched.

        *forget* is called when nothing is under way any more.
        """
        self.lane: Lane[Member] = Lane(limits)
        self._unbatched = unbatched
        self._model = model
        self._forget = forget
        self._timer: asyncio.TimerHandle | None = None

    async def join(self, member: Member) -> Answered | None:
        """What the client of *member* gets as part of a batch; None: it is to go `alone`. Raises `GatewayError`."""
        call, share = member.call, member.share
        began_s = asyncio.get_running_loop().time()
        waiting = Waiting(member, _kind_of(call, member.backend, share), share.rows, share.n_bytes, began_s)
        self._send(self.lane.add(waiting))
        self._plan()
        try:
            return await call.within_total(member.backend, member.verdict)
        except BaseException:
            self.lane.remove(waiting)
            if member.has_left:
                call.exchange.batch_rows = 0
            elif member.goes_alone:
                self._ended()
            raise

    async def again(self, member: Member) -> Answered | None:
        """What *member* gets `alone`, after its batch."""
        answered = await self.alone(member.served())
        doubt = member.doubt
        if doubt is not None:
            doubt.n_left -= 1
            if not doubt.n_left:
                self._close(member, doubt.words)
        return answered

    async def alone(self, served: Awaitable[Answered | None]) -> Answered | None:
        """What *served* gives, which is counted as under way."""
        try:
            return await served
        finally:
            self._ended()

    def _ended(self) -> None:
        """A batch, or a request that went alone, is no longer under way."""
        self._send(self.lane.end())
        if self.lane.under_way == 0:
            self._forget()

    def _send(self, batches: Iterable[Batch[Member]]) -> None:
        """Let *batches* go, which the lane counts as under way."""
        for batch in batches:
            loop = asyncio.get_running_loop()
            for waiting in batch:
                waiting.what.call.exchange.batch_wait_s = loop.time() - waiting.since_s
            members = [waiting.what for waiting in batch if not waiting.what.has_left]
            if len(members) < 2 or self._model in self._unbatched:
                self._send_alone(members)
                self._ended()
                continue
            task = loop.create_task(self._run(members))
            left = partial(_cancel_if_left, task, members)
            for member in members:
                member.verdict.add_done_callback(left)

    def _send_alone(self, members: list[Member]) -> None:
        """Let each of *members* that has not left go `alone`."""
        for member in members:
            if not member.has_left:
                self.lane.begin()
                member.verdict.set_result(None)

    def _plan(self) -> None:
        """Look again when the next batch is due."""
        due_s = self.lane.next_due_s
        if due_s is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._send(self.lane.due(asyncio.get_running_loop().time()))
        self._plan()

    async def _run(self, members: list[Member]) -> None:
        """Serve *members* together, and tell each what it gets."""
        try:
            await self._serve(members)
        finally:
            self._ended()

    async def _serve(self, members: list[Member]) -> None:
        error: GatewayError | None = None
        try:
            replies = await _answers(members)
        except CodecError as unfit:  # the server has answered, but not with a row for each row
            self._close(members[0], str(unfit))
        except GatewayError as failed:
            if failed.kind is ErrorKind.MALFORMED_RESPONSE and not isinstance(failed.__cause__, ForeignAnswerError):
                doubt = Doubt(failed.message, len(members))
                for member in members:
                    member.doubt = doubt
            elif failed.kind not in _EACH_ALONE:
                error = failed
        except Exception as bug:
            log.exception("a batch of %d requests failed", len(members))
            error = GatewayError(ErrorKind.INTERNAL, f"internal error: {type(bug).__name__}")
        else:
            for member, answered in zip(members, replies, strict=True):
                if not member.has_left:
                    member.verdict.set_result(answered)
            return
        if error is None:
            self._send_alone(members)
            return
        for member in members:
            if not member.has_left:
                member.verdict.set_exception(_copy(error))

    def _close(self, member: Member, words: str) -> None:
        """Send everything alone from now on."""
        if self._model not in self._unbatched:
            if len(self._unbatched) == MAX_UNBATCHED:
                del self._unbatched[next(iter(self._unbatched))]
            self._unbatched[self._model] = None
            model, backend = member.call.match.model, member.backend.name
            log.warning("model %r of backend %r is batched no more until a reload: %s", model, backend, words)


async def _answers(members: list[Member]) -> list[Answered]:
    """What each of *members* gets of the answer to one request with the rows of all. Records it in their exchanges.

    Raises `GatewayError`, and `CodecError` for an answer that cannot be divided.
    """
    first = members[0]
    shares = [member.share for member in members]
    request_id = new_request_id()
    header, blobs = joined(shares, request_id)
    for member in members:
        member.move()
    call = _joined_call(first.call, request_id)
    try:
        framing = Framing(len(header), blobs=blobs)
        answered = await first.serve(call, first.upstream, first.backend, framing, memoryview(header))
        assert answered is not None, "a request with blobs becomes JSON"
        reply, crossing = answered
        replies = await call.pacer.run(divided(reply, shares))
        for member, each in zip(members, replies, strict=True):
            if not member.has_left:
                member.call.body.let_go()
                member.call.body.hold_answer(each.n_bytes)
                member.call.exchange.response_nonfinite = each.nonfinite
        to_all = _without_cookies(crossing)
        return [(each, to_all) for each in replies]
    finally:
        call.body.release()
        _record(call.exchange, members)


def _without_cookies(crossing: HeaderLines | Fields) -> HeaderLines | Fields:
    """*crossing*, which several clients get: a session would be that of all of them."""
    if not isinstance(crossing, HeaderLines) or "\nset-cookie:" not in f"\n{crossing.text}".lower():
        return crossing
    lines = [line for line in crossing.text.split("\r\n") if not line.lower().startswith("set-cookie:")]
    return msgspec.structs.replace(crossing, text="\r\n".join(lines), n_lines=len(lines)) if lines else []


def _joined_call(first: Call, request_id: str) -> Call:
    """The call of a batch, of which *first* is one; it gets the name *request_id*.

    Who the clients are and what names their requests is left out: that is not the same for all.
    """
    asked = first.request
    request = ClientRequest(
        asked.method,
        asked.path,
        Headers(crossing_of_all(asked.headers.pairs)),
        asked.host,
        UNIX_PEER,
        asked.scheme,
        asked.version,
        None,
        True,
        None,
        is_from_proxy=asked.is_from_proxy,
        protocol=asked.protocol,
        front=lambda *given: (_JoinedBody(*given), _NoReply()),
    )
    exchange = Exchange(
        client=first.exchange.client,
        method=asked.method,
        path=asked.path,
        request_id=request_id,
        started_s=asyncio.get_running_loop().time(),
        route=first.exchange.route,
        backend=first.exchange.backend,
        model=first.exchange.model,
        is_inference=True,
        trace=first.exchange.trace,
    )
    call = Call(first.shared, first.serving, request, exchange)
    call.match, call.sticky_key = first.match, first.sticky_key
    return call


def _kind_of(call: Call, backend: BackendPlan, share: Share) -> Hashable:
    """What requests must have in common to go together, beside backend and path."""
    request = call.request
    crossing = tuple(crossing_of_all(backend.headers.transcoded(request)))
    return share.kind, crossing, call.match.target, call.match.model, call.exchange.client_name, call.sticky_key


def _record(of_batch: Exchange, members: list[Member]) -> None:
    """Record in the exchange of each of *members* that is still there its share of what the batch took."""
    rows = sum(member.share.rows for member in members)
    for number, member in enumerate(member for member in members if not member.has_left):
        exchange, part = member.call.exchange, member.share.rows / rows
        exchange.batch_rows = rows
        exchange.is_transcoded, exchange.upstream_format = of_batch.is_transcoded, of_batch.upstream_format
        exchange.client_format = of_batch.client_format
        exchange.input_datatypes, exchange.output_datatypes = of_batch.input_datatypes, of_batch.output_datatypes
        exchange.request_codec_s += of_batch.request_codec_s * part
        exchange.response_codec_s += of_batch.response_codec_s * part
        exchange.request_nonfinite += of_batch.request_nonfinite if number == 0 else 0
        exchange.attempts += [_shared(attempt, part, is_joined=number > 0) for attempt in of_batch.attempts]


def _shared(attempt: Attempt, part: float, *, is_joined: bool) -> Attempt:
    return msgspec.structs.replace(
        attempt,
        request_bytes=round(attempt.request_bytes * part),
        response_bytes=round(attempt.response_bytes * part),
        is_joined=is_joined,
    )


def _cancel_if_left(task: "asyncio.Task[None]", members: list[Member], _: "asyncio.Future[Answered | None]") -> None:
    """Give up a batch that nobody waits for any more."""
    if all(member.has_left for member in members):
        task.cancel()


def _copy(error: GatewayError) -> GatewayError:
    """*error* for another client: each is raised in a task of its own."""
    return GatewayError(
        error.kind, error.message, headers=error.headers, status=error.status, body=error.body, sent=error.sent
    )


class _JoinedBody(ClientBody):
    """The memory of a batch beyond what its members have reserved: the answer before it is divided."""

    __slots__ = ()

    def __init__(self, request: ClientRequest, exchange: Exchange, shared: Shared, plan: Plan, pacer: Pacer) -> None:
        super().__init__(request, exchange, shared.admission, plan.limits.request_body, pacer)
        self._reservation = Reservation(shared.admission)


class _NoReply:
    """In place of the reply of a batch, which goes to nobody as it is."""

    has_begun = False
