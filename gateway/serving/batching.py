"""Requests for one model that go to the server together, where `batch` of the configuration allows it.

A batch is a request of the gateway's own with the rows of several clients. It takes the same corridor as their requests
would (`inference`), and each client gets its part of the answer. If the batch fails, each request goes alone. Not here:
which requests may go together (`codec.read_share`), and when (`policy.batching`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TypeVar

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
"""Serves one inference, and returns the client's reply and the fields of the answer's head that cross."""

T = TypeVar("T")

MAX_LANES = 1024
"""How many paths are batched at the same time; requests for further paths go alone."""

MAX_UNBATCHED = 1024
"""How many models that cannot be batched are remembered; bounded since clients may make up names."""

_EACH_ALONE = (ErrorKind.BACKEND_ERROR, ErrorKind.MALFORMED_REQUEST, ErrorKind.BODY_TOO_LARGE, ErrorKind.OVERLOADED)
"""Errors of a batch that one of its requests, or its size, may have caused: each request is then sent alone."""

log = logging.getLogger("gateway")


@dataclass(slots=True, eq=False)
class Doubt:
    """A batch whose answer could not be read, while its requests are sent alone.

    If all of them succeed alone, the batching was at fault; a request that fails alone, too, was at fault itself.
    """

    words: str
    n_left: int
    """How many of the requests have got no answer alone yet."""


@dataclass(slots=True, eq=False)
class Member:
    """A request that may go to the server together with others."""

    call: Call
    upstream: Upstream
    backend: BackendPlan
    framing: Framing
    body: memoryview
    serve: Serve
    share: Share
    verdict: "asyncio.Future[Answered | None]"
    """The client's reply, from the batch; None: the request has to go alone."""
    doubt: Doubt | None = None

    def served(self) -> Awaitable[Answered | None]:
        """The request's own inference, without others."""
        return self.serve(self.call, self.upstream, self.backend, self.framing, self.body)

    def move(self) -> None:
        """Replace the client's body by views of the joined blobs, so that the body can be freed."""
        header = bytes(self.body[: self.framing.header_length])
        release((self.body, *(self.framing.blobs or ())))
        self.framing = Framing(len(header), blobs=self.share.blobs)
        self.body = memoryview(header)

    @property
    def goes_alone(self) -> bool:
        """Whether the verdict is that the request goes alone."""
        verdict = self.verdict
        return verdict.done() and not verdict.cancelled() and not verdict.exception() and verdict.result() is None

    @property
    def has_left(self) -> bool:
        """Whether the client has left, so that nobody waits for the verdict."""
        return self.verdict.cancelled()


async def serve_batched(
    call: Call, upstream: Upstream, backend: BackendPlan, framing: Framing, body: memoryview, serve: Serve
) -> Answered | None:
    """Serve the inference in *body*, which has a header, by *serve*, maybe with others. Raises `GatewayError`."""
    match = call.match
    model = backend.name, (match.v2_path.model if match.is_renamed else match.model) or ""
    limits = backend.batch_limits(model[1])
    if limits is not None:
        call.exchange.batch_rows = 1  # at least; the parser will set the number
    if limits is None or model in call.serving.unbatched:
        return await serve(call, upstream, backend, framing, body)
    lanes: dict[tuple[str, str], Batcher] = call.serving.lanes
    key = backend.name, match.path
    batcher = lanes.get(key)
    share = None
    if batcher is not None:
        share = await call.run_parser(read_share(body, framing, call.plan.header_limits))
        batcher = lanes.get(key)  # again: other requests ran while the body was read
    if batcher is None and len(lanes) < MAX_LANES:  # nothing is under way
        batcher = lanes[key] = Batcher(limits, call.serving.unbatched, model, partial(lanes.pop, key, None))
        batcher.lane.begin()
        return await batcher.counted(serve(call, upstream, backend, framing, body))
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
        """*model* is the lane's backend and model, which is put into *unbatched* if it cannot be batched.

        *forget* is called when no request of the lane is under way any more.
        """
        self.lane: Lane[Member] = Lane(limits)
        self._unbatched = unbatched
        self._model = model
        self._forget = forget
        self._timer: asyncio.TimerHandle | None = None

    async def join(self, member: Member) -> Answered | None:
        """Serve *member* as part of a batch; None if it has to go alone (`again`). Raises `GatewayError`."""
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
        """Serve *member* alone, because its batch failed or had no other request."""
        answered = await self.counted(member.served())
        doubt = member.doubt
        if doubt is not None:
            doubt.n_left -= 1
            if not doubt.n_left:
                self._close(member, doubt.words)
        return answered

    async def counted(self, served: Awaitable[T]) -> T:
        """Await *served*, which the lane has counted as under way, and count its end."""
        try:
            return await served
        finally:
            self._ended()

    def _ended(self) -> None:
        """Count the end of a batch, or of a request that went alone; batches that waited for it go now."""
        self._send(self.lane.end())
        if self.lane.under_way == 0:
            self._forget()

    def _send(self, batches: Iterable[Batch[Member]]) -> None:
        """Start *batches*, which the lane has counted as under way."""
        for batch in batches:
            loop = asyncio.get_running_loop()
            for waiting in batch:
                waiting.what.call.exchange.batch_wait_s = loop.time() - waiting.since_s
            members = [waiting.what for waiting in batch if not waiting.what.has_left]
            if len(members) < 2 or self._model in self._unbatched:
                self._send_alone(members)
                self._ended()
                continue
            task = loop.create_task(self.counted(self._serve(members)))
            left = partial(_cancel_if_left, task, members)
            for member in members:
                member.verdict.add_done_callback(left)

    def _send_alone(self, members: list[Member]) -> None:
        """Let *members* go alone (`again`), except those whose clients have left."""
        for member in members:
            if not member.has_left:
                self.lane.begin()
                member.verdict.set_result(None)

    def _plan(self) -> None:
        """Set the timer for the next batch that is due."""
        due_s = self.lane.next_due_s
        if due_s is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._send(self.lane.due(asyncio.get_running_loop().time()))
        self._plan()

    async def _serve(self, members: list[Member]) -> None:
        """Serve *members* together, and set the verdict of each."""
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
        """Send all requests for the model alone from now on, and warn once, with *words* for the reason."""
        if self._model not in self._unbatched:
            if len(self._unbatched) == MAX_UNBATCHED:
                del self._unbatched[next(iter(self._unbatched))]
            self._unbatched[self._model] = None
            model, backend = member.call.match.model, member.backend.name
            log.warning("model %r of backend %r is batched no more until a reload: %s", model, backend, words)


async def _answers(members: list[Member]) -> list[Answered]:
    """Send one request with the rows of all *members*, and divide its answer: one reply for each, in their order.

    Records the batch in the members' exchanges. Raises `GatewayError`, and `CodecError` for an answer that cannot be
    divided.
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
    """*crossing* without cookies: several clients get these fields, and would share a session."""
    if not isinstance(crossing, HeaderLines) or "\nset-cookie:" not in f"\n{crossing.text}".lower():
        return crossing
    lines = [line for line in crossing.text.split("\r\n") if not line.lower().startswith("set-cookie:")]
    return msgspec.structs.replace(crossing, text="\r\n".join(lines), n_lines=len(lines)) if lines else []


def _joined_call(first: Call, request_id: str) -> Call:
    """The call of a batch with the id *request_id*; *first* is one of its members' calls.

    Fields that name a client or a request are left out, because they differ between the members.
    """
    asked = first.request
    request = msgspec.structs.replace(
        asked,
        headers=Headers(crossing_of_all(asked.headers.pairs)),
        peer=UNIX_PEER,
        content_length=None,
        has_body=True,
        connection=None,
        begin=None,
        deadline_s=None,
        # the whole answer goes to no client, only its parts do
        front=lambda *given: (_JoinedBody(*given), SimpleNamespace(has_begun=False)),
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
    """The key of requests that may go together; backend and path are the same in a lane."""
    request = call.request
    crossing = tuple(crossing_of_all(backend.headers.transcoded(request)))
    return share.kind, crossing, call.match.target, call.match.model, call.exchange.client_name, call.sticky_key


def _record(of_batch: Exchange, members: list[Member]) -> None:
    """Record in the exchanges of *members*, except those that have left, their shares of the batch's time and bytes."""
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
    """Cancel a batch if all of its clients have left."""
    if all(member.has_left for member in members):
        task.cancel()


def _copy(error: GatewayError) -> GatewayError:
    """A copy of *error* for another client: an exception that several tasks raise would mix up their tracebacks."""
    return GatewayError(
        error.kind, error.message, headers=error.headers, status=error.status, body=error.body, sent=error.sent
    )


class _JoinedBody(ClientBody):
    """The memory of a batch beside its members' own reservations: the answer before it is divided."""

    __slots__ = ()

    def __init__(self, request: ClientRequest, exchange: Exchange, shared: Shared, plan: Plan, pacer: Pacer) -> None:
        super().__init__(request, exchange, shared.admission, plan.limits.request_body, pacer)
        self._reservation = Reservation(shared.admission)
