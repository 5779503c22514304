"""Requests for one model that go to the server together (docs/configuration.md, "Requests that go together").

A batch is a request of the gateway's own with the rows of several clients. It takes the same corridor as their requests
would (`inference`), and each client gets its part of the answer. If the batch fails, each request goes alone. Not here:
how requests become one, and its answer several (`codec`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from gateway.client.request import new_request_id
from gateway.codec.dialects.description import may_be_joined
from gateway.codec.inference import release
from gateway.codec.v2.batches import Share, check_rows, divided, joined, read_share
from gateway.codec.v2.framing import Framing
from gateway.config.schema import Batch
from gateway.errors import CodecError, ErrorKind, ForeignAnswerError, GatewayError
from gateway.exchange import Attempt, Exchange
from gateway.headers import Headers
from gateway.policy.crossing import UNIX_PEER, crossing_of_all
from gateway.serving.call import Answered, Call

Serve = Callable[[Call, memoryview], Awaitable[Answered | None]]
"""Serves one inference, and returns the client's reply."""

BATCH_BYTES = 8 * 1024 * 1024
"""The most bytes of tensors in one batch: to copy them takes a millisecond.

A request of this size or more gains nothing by going with others.
"""

MAX_UNBATCHED = 1024
"""How many models that cannot be batched are remembered; bounded since clients may make up names."""

LATE_S = 0.5
"""How long a request whose time is over still waits for its batch, which has no more time, unless it has a deadline."""

_EACH_ALONE = (ErrorKind.BACKEND_ERROR, ErrorKind.MALFORMED_REQUEST, ErrorKind.BODY_TOO_LARGE)
"""Errors of a batch that one of its requests, or its size, may have caused: each request is then sent alone.

So it is after an error without an attempt, for want of memory. In an attempt they have waited for a connection already.
"""

log = logging.getLogger("gateway")


@dataclass(slots=True, eq=False)
class Member:
    """A request that may go to the server together with others."""

    call: Call
    body: memoryview
    share: Share
    kind: Hashable
    """Requests of one kind may go together."""
    since_s: float
    verdict: "asyncio.Future[Answered | None]"
    """The client's reply, from the batch; None: the request has to go alone."""
    batch: Call | None = None
    """The request to the server that has its rows, once it was sent."""
    beside: list[None] = field(default_factory=list)
    """Shared by all that are in `batch`: an element for each, but for those that have left and were recorded."""
    doubt: list[str] | None = None
    """Of a batch whose answer could not be read: why, once for each of its requests that has not succeeded alone yet.

    If all of them do, the batching was at fault; a request that fails alone, too, was at fault itself.
    """

    def move(self) -> None:
        """Replace the client's body by views of the joined blobs, so that the body can be freed."""
        framing = self.call.framing
        header = bytes(self.body[: framing.header_length])
        release((self.body, *(framing.blobs or ())))
        self.call.framing = msgspec.structs.replace(framing, header_length=len(header), blobs=self.share.blobs)
        self.body = memoryview(header)

    @property
    def has_left(self) -> bool:
        """Whether nobody waits for the verdict: the client has left, or its time is over."""
        return self.verdict.cancelled()


async def serve_batched(call: Call, body: memoryview, serve: Serve) -> Answered | None:
    """Serve the inference in *body*, which has a header, by *serve*, maybe with others. Raises `GatewayError`."""
    match, lanes = call.match, call.serving.lanes
    model = (match.v2_path.model if match.is_renamed else match.model) or ""
    limits = call.backend.batch(model)
    if limits.max_size > 1:
        call.exchange.batch_rows = 1  # at least; the parser will set the number
    if limits.max_size == 1 or (call.backend.name, model) in call.serving.unbatched:
        return await serve(call, body)
    key = call.backend.name, match.path
    share = None
    if key in lanes:
        share = await call.exchange.request_codec.run(read_share(body, call.framing, call.plan.header_limits))
    lane: Lane | None = lanes.get(key)  # again: other requests ran while the body was read
    if lane is None:  # nothing is under way
        lane = lanes[key] = Lane(call, model, limits, serve)
        try:
            return await lane.serve_alone(call, body)
        finally:
            lane.leave(call)
    if share is None or share.rows >= limits.max_size or share.n_bytes >= BATCH_BYTES:
        return await lane.serve_alone(call, body)
    if not call.backend.is_v2 and not may_be_joined(share.names, call.backend.described(model)):
        return await lane.serve_apart(call, body)
    return await lane.join(call, body, share)


class Lane:
    """The requests for one path of one backend, as long as any of them is under way.

    Those of one kind go together as soon as they have enough rows, or the first of them has waited long enough, or the
    server has answered all requests that it was sent.
    """

    def __init__(self, call: Call, model: str, limits: Batch, serve: Serve) -> None:
        """*call*, the first, is under way alone."""
        self._serving = call.serving
        self._key = call.backend.name, call.match.path
        self._model = call.backend.name, model
        self._limits = limits
        self._serve = serve
        self._under_way = {call}
        self._waiting: dict[Hashable, list[Member]] = {}

    async def serve_alone(self, call: Call, body: memoryview) -> Answered | None:
        """Serve *call* alone, and look whether the answer has as many rows. Raises `GatewayError`."""
        answered = await self._serve(call, body)
        try:
            if answered is not None and call.rows:
                check_rows(answered[0], call.rows)
        except CodecError as unfit:
            self._close(call, str(unfit))
        return answered

    async def serve_apart(self, call: Call, body: memoryview) -> Answered | None:
        """Serve *call*, whose inputs must not be joined with others, alone. Raises `GatewayError`.

        If that is so for every request for the model, it is said.
        """
        described = call.backend.described(self._model[1])
        needed = [name for name, each in described.inputs.items() if not each.optional]
        if not may_be_joined(needed, described):
            self._close(call, "by `models` not every first dimension of its inputs and outputs is that of the rows")
        return await self.serve_alone(call, body)

    async def join(self, call: Call, body: memoryview, share: Share) -> Answered | None:
        """Serve *call* as part of a batch, or alone if its batch fails or has no other. Raises `GatewayError`."""
        loop = asyncio.get_running_loop()
        member = Member(call, body, share, _kind_of(call, share), loop.time(), loop.create_future())
        self._add(member)
        try:
            answered = await call.within_total(member.verdict, late_s=LATE_S)
            if answered is None:
                answered = await self.serve_alone(call, member.body)
                words = member.doubt.pop() if member.doubt is not None else ""
                if words and not member.doubt:
                    self._close(call, words)
            return answered
        finally:
            if member.has_left:
                if member.batch is not None:
                    member.beside.pop()
                    _record(member.batch, [member], are_counted=bool(member.beside))
                if member.batch is None or not member.batch.exchange.attempts:
                    call.exchange.batch_rows = 0
                waiting = self._waiting.get(member.kind, [])
                if member in waiting:  # its body is counted no more, and must not stay until the others go
                    waiting.remove(member)
            self.leave(call)

    def leave(self, *calls: Call) -> None:
        """Count the end of *calls*. If no request is under way any more, those that wait go now."""
        self._under_way.difference_update(calls)
        if not self._under_way:
            for kind in list(self._waiting):
                self._send(kind)
        if not self._under_way and self._serving.lanes.get(self._key) is self:
            del self._serving.lanes[self._key]

    def _add(self, member: Member) -> None:
        """Let *member* wait, and send the batches that go now because of it."""
        kind, max_rows = member.kind, self._limits.max_size
        waiting = self._waiting.setdefault(kind, [])
        shares = [each.share for each in (*waiting, member)]
        if sum(share.rows for share in shares) > max_rows or sum(share.n_bytes for share in shares) > BATCH_BYTES:
            self._send(kind)
            waiting = self._waiting[kind] = []
        waiting.append(member)
        if sum(each.share.rows for each in waiting) == max_rows:
            self._send(kind)
        elif len(waiting) == 1:
            asyncio.get_running_loop().call_later(self._limits.max_delay, self._send, kind, waiting)

    def _send(self, kind: Hashable, only: list[Member] | None = None) -> None:
        """Send all requests of *kind* that wait, together if there are several.

        With *only*, whose first has waited long enough, nothing is done if these are sent already.
        """
        if only is not None and self._waiting.get(kind) is not only:
            return
        loop = asyncio.get_running_loop()
        members = [member for member in self._waiting.pop(kind) if not member.has_left]
        for member in members:
            member.call.exchange.batch_wait_s = loop.time() - member.since_s
            self._under_way.add(member.call)
        if len(members) < 2 or self._model in self._serving.unbatched:
            for member in members:
                member.verdict.set_result(None)
            return
        task = loop.create_task(self._serve_together(members))
        left = partial(_cancel_if_left, task, members)
        for member in members:
            member.verdict.add_done_callback(left)

    async def _serve_together(self, members: list[Member]) -> None:
        """Serve *members* together, and set the verdict of each."""
        batch = _joined_call(members[0])
        replies: list[Answered | None] = [None] * len(members)
        error: GatewayError | None = None
        try:
            replies = await self._answers(members, batch)
        except CodecError:  # of a request, which is then refused alone
            log.debug("a batch of %d requests cannot be sent", len(members))
        except GatewayError as failed:
            if failed.kind is ErrorKind.MALFORMED_RESPONSE and not isinstance(failed.__cause__, ForeignAnswerError):
                doubt = [failed.message] * len(members)
                for member in members:
                    member.doubt = doubt
            elif failed.kind not in _EACH_ALONE and batch.exchange.attempts:
                error = failed
        except Exception as bug:
            log.exception("a batch of %d requests failed", len(members))
            error = GatewayError(ErrorKind.INTERNAL, f"internal error: {type(bug).__name__}")
        for member, reply in zip(members, replies, strict=True):
            if not member.has_left:
                if error is None:
                    member.verdict.set_result(reply)
                else:
                    member.verdict.set_exception(error)
        if error is not None or None not in replies:
            self.leave(*(member.call for member in members))

    async def _answers(self, members: list[Member], call: Call) -> list[Answered | None]:
        """Send *call* with the rows of all *members*, and divide its answer: one reply for each, in their order.

        Without replies if the answer cannot be divided, because the server has not answered with a row for each row.
        Records the batch in the members' exchanges. Raises `GatewayError`, and `CodecError` for a malformed request.
        """
        shares = [member.share for member in members]
        call.rows = sum(share.rows for share in shares)
        header, blobs = joined(shares, call.exchange.request_id)
        beside = [None] * len(members)
        for member in members:
            member.move()
            member.batch, member.beside = call, beside
        try:
            call.framing = Framing(len(header), blobs=blobs)
            answered = await self._serve(call, memoryview(header))
            assert answered is not None, "a request with blobs becomes JSON"
            reply, crossing = answered
            if self._model in self._serving.unbatched:  # the answer to a request alone has shown it meanwhile
                return [None] * len(members)
            try:
                replies = await call.exchange.response_codec.run(divided(reply, shares))
            except CodecError as unfit:
                self._close(call, str(unfit))
                return [None] * len(members)
            for member, each in zip(members, replies, strict=True):
                if not member.has_left:
                    member.call.body.let_go()
                    member.call.body.hold_answer(each.n_bytes)
                    member.call.exchange.response_nonfinite = each.nonfinite
            # several clients get these fields, and by their cookies would share a session
            to_all = "\r\n".join(line for line in crossing.split("\r\n") if not line.lower().startswith("set-cookie:"))
            return [(each, to_all) for each in replies]
        finally:
            call.body.release()
            _record(call, [member for member in members if not member.has_left])

    def _close(self, call: Call, words: str) -> None:
        """Send all requests for the model of *call* alone from now on, and warn once, with *words* for the reason."""
        unbatched = self._serving.unbatched
        if self._model not in unbatched:
            if len(unbatched) == MAX_UNBATCHED:
                del unbatched[next(iter(unbatched))]
            unbatched[self._model] = None
            backend, _ = self._model
            log.warning(
                "model %r of backend %r is batched no more until a reload: %s", call.match.model, backend, words
            )


def _joined_call(member: Member) -> Call:
    """The call of a batch, of which *member* is the first: so it has no more time than any of them.

    Fields that name a client or a request are left out, because they differ between the members.
    """
    first = member.call
    asked, sent = first.request, first.exchange
    headers = Headers(crossing_of_all(asked.headers.pairs))
    request = msgspec.structs.replace(asked, headers=headers, peer=UNIX_PEER, deadline_s=None, front=None)
    now_s = asyncio.get_running_loop().time()
    exchange = Exchange(sent.client, asked.method, asked.path, new_request_id(), now_s)
    exchange.route, exchange.backend, exchange.model = sent.route, sent.backend, sent.model
    exchange.is_inference, exchange.trace = True, sent.trace
    # its body holds the answer before it is divided, beside what its members hold; nobody gets its reply
    call = Call(first.shared, first.serving, request, exchange)
    call.is_batch, call.match, call.sticky_key = True, first.match, first.sticky_key
    call.upstream, call.backend = first.upstream, first.backend
    call.total_at = member.since_s + first.backend.settings.timeouts.total
    return call


def _kind_of(call: Call, share: Share) -> Hashable:
    """The key of requests that may go together; backend and path are the same in a lane."""
    crossing = tuple(crossing_of_all(call.backend.headers.transcoded(call.request)))
    return share.kind, crossing, call.match.target, call.match.model, call.exchange.client_name, call.sticky_key


def _record(batch: Call, members: list[Member], *, are_counted: bool = False) -> None:
    """Record in the exchanges of *members* their shares of the time and bytes of *batch* so far.

    The first of them counts its attempts, unless these *are_counted* by another.
    """
    of_batch = batch.exchange
    for number, member in enumerate(members):
        exchange, part, is_joined = member.call.exchange, member.share.rows / batch.rows, are_counted or number > 0
        exchange.batch_rows = batch.rows
        exchange.is_transcoded, exchange.upstream_format = of_batch.is_transcoded, of_batch.upstream_format
        exchange.client_format = of_batch.client_format
        exchange.input_datatypes, exchange.output_datatypes = of_batch.input_datatypes, of_batch.output_datatypes
        exchange.request_codec.seconds += of_batch.request_codec.seconds * part
        exchange.response_codec.seconds += of_batch.response_codec.seconds * part
        exchange.request_nonfinite += 0 if is_joined else of_batch.request_nonfinite
        exchange.attempts += [_shared(attempt, part, is_joined=is_joined) for attempt in of_batch.attempts]


def _shared(attempt: Attempt, part: float, *, is_joined: bool) -> Attempt:
    so_far_s = asyncio.get_running_loop().time() - attempt.started_s if attempt.connection else 0.0
    shared = msgspec.structs.replace(attempt, seconds=attempt.seconds or so_far_s, is_joined=is_joined)
    shared.request_bytes = round(attempt.request_bytes * part)
    shared.response_bytes = round(attempt.response_bytes * part)
    return shared


def _cancel_if_left(task: "asyncio.Task[None]", members: list[Member], _: "asyncio.Future[Answered | None]") -> None:
    """Cancel a batch if all of its clients have left."""
    if all(member.has_left for member in members):
        task.cancel()
