"""One request of the gateway to a backend: its attempts, and how each attempt changes the state of its endpoint."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from gateway.backend.asking import BackendRequest
from gateway.backend.attempt import Answer, Read, StaleConnectionError, Transcode
from gateway.backend.deadlines import Deadlines
from gateway.backend.endpoints import EndpointState
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.policy.ejection import FAILURES, Trial

if TYPE_CHECKING:
    from gateway.backend.upstream import Upstream

T = TypeVar("T")


class _NotBinaryError(Exception):
    """A request that passes unchanged has a slot, and its endpoint has not said that it reads binary."""


@dataclass(eq=False)
class Call(Generic[T]):
    """One request of the gateway to a backend, until its answer is read or given up; see `Upstream.call`."""

    _upstream: "Upstream"
    request: BackendRequest
    _attempts: list[Attempt]
    _read: Read[T]
    _transcode: Transcode[T] | None
    _total_at: float
    sticky_key: str | None
    turn: int
    """How many calls the backend has had so far."""
    tried: Sequence[EndpointState] = field(default=(), init=False)
    """The endpoints that have failed."""
    _has_slot = False  # whether this call holds a slot itself, and not its connection
    # whether a kept connection that had died was replaced: once in a call, since otherwise every endpoint could execute
    # a GET that it had read before it closed (docs/architecture.md, "Connections to backends")
    _was_replaced = False
    # about the last attempt:
    _last: Attempt = field(init=False)
    _trial: Trial | None = field(default=None, init=False)
    _answer: Answer | None = field(default=None, init=False)
    _has_failed = False  # by the endpoint's fault

    async def run(self, now_s: float, is_settled: Callable[[], bool]) -> T:
        """Make attempts, from *now_s* on, until one succeeds or no other may follow. Raises `GatewayError`."""
        number = 1
        try:
            while True:
                try:
                    return await self._attempt(now_s)
                except StaleConnectionError:
                    self._was_replaced = True
                    self._last.code = self._last.repeated_for = ErrorKind.UPSTREAM_CLOSED.label
                except _NotBinaryError:
                    self._attempts.pop()  # this attempt has sent nothing
                    await self._change_form()
                except GatewayError as error:
                    delay_s = None if is_settled() else self._delay_before_next(number, error)
                    if delay_s is None:
                        raise
                    self._last.repeated_for = error.kind.label
                    number += 1
                    if delay_s:
                        await asyncio.sleep(delay_s)
                now_s = self._upstream.loop.time()
                self._answer, self._has_failed = None, False
        finally:
            if self._has_slot:
                self._upstream.connections.release_slot()

    def _delay_before_next(self, number: int, error: GatewayError) -> float | None:
        """Seconds to wait before the next attempt, after attempt *number* ended with *error*; None to give up.

        Raises `GatewayError` if another attempt would be allowed, but the rest of the body cannot be transcoded.
        """
        upstream = self._upstream
        has_begun_body = self._answer is not None and self._answer.is_streamed
        is_body_lost = has_begun_body and not self.request.body.can_be_repeated
        # if the client's upload was late, the endpoint may have closed the connection for that reason
        if not (self._has_failed or (is_body_lost and error.kind is ErrorKind.UPSTREAM_CLOSED)):
            return None
        now_s = self._upstream.loop.time()
        next_ = upstream.pick(self, now_s)
        delay_s = upstream.retry.delay_before_next(
            number,
            sent=error.sent,
            has_other=next_ not in self.tried,
            remaining_s=self._total_at - now_s,
            jitter=random.random(),  # noqa: S311  no secret
        )
        if delay_s is None or not upstream.retry.is_within_budget(
            *upstream.recent_calls.totals(now_s), upstream.plan.workers
        ):
            return None
        if is_body_lost:
            if self.request.is_passed and not upstream.speaking.may_get_binary(next_):
                words = (
                    f"backend {upstream.name!r}: no endpoint is left that has said that it reads binary, and part of "
                    "this upload is gone already, so it cannot be turned into JSON"
                )
                raise GatewayError(ErrorKind.UNREACHABLE, words, sent=False) from error
            return None
        upstream.recent_calls.count(now_s, 0, 1)
        return delay_s

    async def _change_form(self) -> None:
        """Turn the request into JSON, for this and all later attempts. Raises `GatewayError`.

        No slot is held meanwhile, because the rest of an upload may have to be read, and metadata to be asked for.
        """
        if self._has_slot:
            self._has_slot = False
            self._upstream.connections.release_slot()
        assert self._transcode is not None, "a request that passes unchanged comes with a way to transcode it"
        self.request, self._read = await self._transcode()

    async def _attempt(self, now_s: float) -> T:
        """Make one attempt, from *now_s* on. Raises `GatewayError`, `StaleConnectionError` and `_NotBinaryError`."""
        upstream, request, connections = self._upstream, self.request, self._upstream.connections
        state = upstream.pick(self, now_s)
        self._last = attempt = Attempt(state.endpoint.url, now_s, queue_s=0.0, is_metadata=request.is_metadata)
        self._attempts.append(attempt)
        is_in_flight = False
        deadlines = Deadlines(upstream.timer, self._total_at, now_s)
        try:
            if not (self._has_slot or connections.take_slot()):
                state = await self._wait_for_slot(deadlines)
            self._has_slot = True
            if request.is_passed and not upstream.speaking.may_get_binary(state):
                raise _NotBinaryError
            is_in_flight = True
            state.in_flight += 1
            if state.ejection.is_ejected:
                self._trial = state.ejection.begin_trial(attempt.started_s)
            first_bytes = request.first_bytes(state.endpoint, attempt)
            # an upload cannot be read again from the client, so it does not risk a kept connection, which may have died
            may_reuse = request.body.can_be_repeated and not self._was_replaced
            wire = connections.take_idle(state, attempt.started_s, request.method, first_bytes) if may_reuse else None
            if wire is None:
                wire = await connections.take_new(state, request.method, first_bytes)
            self._has_slot = False  # the slot belongs to the connection now
            self._answer = answer = Answer(request, connections, wire, deadlines, attempt)
            await answer.begin()
            result = await self._read(answer)
        except BaseException as error:
            self._fail(state, deadlines, error)
            raise
        else:
            self._end(deadlines, is_right=True)
            if self._trial is not None:
                upstream.note_success(state, self._trial)
            return result
        finally:
            if self._trial is not None:  # a trial without a result makes room for another
                state.ejection.end_trial(self._trial)
                self._trial = None
            if is_in_flight:
                state.in_flight -= 1
            if self._answer is not None and self._answer.is_streamed:
                await self._answer.stopped()

    def _end(self, deadlines: Deadlines, *, is_right: bool) -> bool:
        """End the attempt; its answer was found right or not (*is_right*). True if a timeout has ended it."""
        if self._answer is not None and self._answer.end(is_right=is_right):
            self._has_slot = True  # for another attempt
        self._last.seconds = self._upstream.loop.time() - self._last.started_s
        return deadlines.stop()

    def _fail(self, state: EndpointState, deadlines: Deadlines, error: BaseException) -> None:
        """Judge the endpoint by *error*, which ended the attempt. Raises `GatewayError` if a timeout had ended it."""
        answer = self._answer
        kind = error.kind if isinstance(error, GatewayError) else None
        # a whole answer that refuses the request is right
        has_expired = self._end(deadlines, is_right=kind is ErrorKind.BACKEND_ERROR)
        if isinstance(error, GatewayError):
            # the server may have closed because the client's upload was late, which is not its failure
            has_answered = answer is not None and answer.status
            is_late = kind is ErrorKind.UPSTREAM_CLOSED and not has_answered and deadlines.phase == "client"
            self._judge(state, error, kind in FAILURES and not is_late)
        elif has_expired and isinstance(error, asyncio.CancelledError | TimeoutError):
            timeout = deadlines.expired(self._upstream.name)
            self._judge(state, timeout, deadlines.was_silent())
            try:
                raise timeout from None
            finally:
                del timeout  # else this frame and the error would hold each other, and with them the request

    async def _wait_for_slot(self, deadlines: Deadlines) -> EndpointState:
        """Wait in the queue, and choose the attempt's endpoint afterwards. Raises `GatewayError` OVERLOADED."""
        attempt = self._last
        asked_s = attempt.started_s
        attempt.queue_s = None
        deadlines.enter("queue")
        try:
            connections = self._upstream.connections
            await (connections.wait_in_turn() if self.request.is_continued else connections.wait_for_slot())
        finally:  # a wait in vain is not the backend's time, either
            attempt.started_s = self._upstream.loop.time()
            attempt.queue_s = attempt.started_s - asked_s
        deadlines.enter("total")
        state = self._upstream.pick(self, attempt.started_s)
        attempt.endpoint = state.url
        return state

    def _judge(self, state: EndpointState, error: GatewayError, is_failure: bool) -> None:
        """Judge the endpoint by an attempt that ended with *error*; *is_failure*: the endpoint caused it."""
        if self._last.first_byte_s is None:
            self._last.code = error.kind.label
        status = 0 if self._answer is None else self._answer.status
        # the gateway does not follow redirects, but an endpoint that sends one works
        is_redirect = 300 <= status < 400 and error.kind is ErrorKind.MALFORMED_RESPONSE
        if is_failure and not is_redirect:
            self._has_failed = True
            self.tried = (*self.tried, state)
            if error.kind is ErrorKind.UNREACHABLE:
                state.speech.forget()
            self._upstream.note_failure(state, self._trial, error.message)
        elif is_redirect or error.kind is ErrorKind.BACKEND_ERROR:
            state.speech.doubt(self._upstream.loop.time())  # another kind of server may run there now
            if self._trial is not None:
                self._upstream.note_success(state, self._trial)
