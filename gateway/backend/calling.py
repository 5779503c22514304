"""One request of the gateway to a backend: its attempts, and what each of them says of the endpoint that was asked.

Not here: what goes over a connection (`attempt`), which endpoint is asked (`upstream`), and the decisions (`policy`).
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from gateway.backend.asking import BackendRequest
from gateway.backend.attempt import Read, Sent, StaleConnectionError, Transcode
from gateway.backend.deadlines import Deadlines
from gateway.backend.endpoints import EndpointState
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.policy.ejection import FAILURES, Trial

if TYPE_CHECKING:
    from gateway.backend.upstream import Upstream

T = TypeVar("T")


class _NotBinaryError(Exception):
    """While a request that is passed on waited for a connection, what the endpoints speak has changed."""


class Call(Generic[T]):
    """One request of the gateway to a backend, until its answer is read or given up."""

    _tried: Sequence[EndpointState] = ()
    _has_slot = False  # one that no lease holds
    _was_replaced = False  # a kept connection that had died
    # of the last attempt:
    _last: Attempt
    _trial: Trial | None = None
    _sent: Sent | None = None
    _has_failed = False  # and the endpoint caused it

    def __init__(
        self,
        upstream: "Upstream",
        request: BackendRequest,
        attempts: list[Attempt],
        read: Read[T],
        transcode: Transcode[T] | None,
        total_at: float,
        sticky_key: str | None,
        turn: int,
    ) -> None:
        """See `Upstream.call`; *turn* counts the calls of the backend."""
        self._upstream = upstream
        self._request = request
        self._attempts = attempts
        self._read = read
        self._transcode = transcode
        self._total_at = total_at
        self._sticky_key = sticky_key
        self._turn = turn

    async def run(self, is_settled: Callable[[], bool]) -> T:
        """Attempts, until one succeeds or no other may follow."""
        number = 1
        try:
            while True:
                try:
                    if self._request.is_passed and not self._may_go_to(self._pick(asyncio.get_running_loop().time())):
                        await self._change_form()
                    return await self._attempt()
                except _NotBinaryError:
                    self._attempts.pop()  # it has waited in vain, and sent nothing
                    continue
                except GatewayError as error:
                    delay_s = None if is_settled() else self._delay_before_next(number, error)
                    if delay_s is None:
                        raise
                    self._last.repeated_for = error.kind.label
                number += 1
                self._sent = None
                self._has_failed = False
                if delay_s:
                    await asyncio.sleep(delay_s)
        finally:
            if self._has_slot:
                self._upstream.connections.release_slot()

    def _delay_before_next(self, number: int, error: GatewayError) -> float | None:
        """Seconds to wait before another attempt after number *number*, which ended with *error*; None: there is none.

        Raises `GatewayError` if there would be one, but what is left of the body cannot be transcoded.
        """
        upstream = self._upstream
        is_body_lost = self._sent is not None and self._sent.has_begun_body and not self._request.body.can_be_repeated
        # of an upload that was late it is not known why the connection was closed
        if not (self._has_failed or (is_body_lost and error.kind is ErrorKind.UPSTREAM_CLOSED)):
            return None
        now_s = asyncio.get_running_loop().time()
        delay_s = upstream.retry.delay_before_next(
            number,
            sent=error.sent,
            has_other=self._pick(now_s) not in self._tried,
            remaining_s=self._total_at - now_s,
            jitter=random.random(),  # noqa: S311  no secret
        )
        if delay_s is None or not upstream.retry.is_within_budget(*upstream.recent_calls.totals(now_s)):
            return None
        if is_body_lost:
            if not self._may_go_to(self._pick(now_s)):
                raise self._not_binary(
                    "part of this upload is gone already, so it cannot be turned into JSON"
                ) from error
            return None
        upstream.recent_calls.count_retry(now_s)
        return delay_s

    def _may_go_to(self, state: EndpointState) -> bool:
        """Whether the endpoint can read the request in its form: binary only if it has said so."""
        return not self._request.is_passed or self._upstream.speaking.may_get_binary(state)

    async def _change_form(self) -> None:
        """From now on the attempts are transcoded. Raises `GatewayError`.

        No slot is held meanwhile: the rest of an upload may have to be read, and the model's metadata to be asked for.
        """
        if self._has_slot:
            self._has_slot = False
            self._upstream.connections.release_slot()
        if self._transcode is None:
            raise self._not_binary("this request cannot be turned into JSON")
        self._request, self._read = await self._transcode()

    def _not_binary(self, why: str) -> GatewayError:
        words = f"backend {self._upstream.name!r}: no endpoint is left that has said that it reads binary, and {why}"
        return GatewayError(ErrorKind.UNREACHABLE, words, sent=False)

    def _pick(self, now_s: float) -> EndpointState:
        is_passed = self._request.is_passed
        return self._upstream.pick(self._tried, self._turn, self._sticky_key, now_s, is_passed=is_passed)

    async def _attempt(self) -> T:
        """Try one endpoint, once, and judge it by the outcome. Raises `GatewayError`."""
        upstream = self._upstream
        asked_s = asyncio.get_running_loop().time()
        state = self._pick(asked_s)
        self._note(state, asked_s)
        deadlines = upstream.deadlines.begin(self._total_at, asked_s)
        has_expired = is_in_flight = False
        try:
            try:
                if not (self._has_slot or upstream.connections.take_slot()):
                    state = await self._wait_for_slot(deadlines)
                self._has_slot = True
                if self._request.is_passed and not self._may_go_to(state):
                    raise _NotBinaryError
                is_in_flight = True
                state.in_flight += 1
                if state.ejection.is_ejected:
                    self._trial = state.ejection.begin_trial(self._last.started_s)
                result = await self._ask(state, deadlines)
            finally:
                has_expired = deadlines.stop()
                self._let_go()
            if self._trial is not None:
                upstream.note_success(state, self._trial)
            return result
        except GatewayError as error:
            self._judge(state, error, error.kind in FAILURES and not self._is_upload_late(error, deadlines))
            raise
        except (asyncio.CancelledError, TimeoutError):
            if not has_expired:
                raise
            expired = deadlines.expired(upstream.name)
            self._judge(state, expired, deadlines.was_silent())
            raise expired from None
        finally:
            if is_in_flight:
                state.in_flight -= 1
            if self._trial is not None:  # one that has decided nothing makes room for another
                state.ejection.end_trial(self._trial)
                self._trial = None
            if self._sent is not None and self._sent.has_begun_body:
                await self._sent.stopped()

    def _let_go(self) -> None:
        """The attempt is over: close its connection, unless it was given back; the slot is kept for another one."""
        sent, last = self._sent, self._last
        if sent is not None and not sent.is_over and sent.abandon_and_keep_slot():
            self._has_slot = True
        last.seconds = asyncio.get_running_loop().time() - last.started_s

    def _note(self, state: EndpointState, now_s: float) -> None:
        """Record an attempt that begins now."""
        self._last = Attempt(state.endpoint.url, now_s, queue_s=0.0, is_metadata=self._request.is_metadata)
        self._attempts.append(self._last)

    async def _wait_for_slot(self, deadlines: Deadlines) -> EndpointState:
        """Wait in the queue; the endpoint for the attempt is only then decided. Raises `GatewayError` OVERLOADED."""
        loop = asyncio.get_running_loop()
        attempt = self._last
        asked_s = attempt.started_s
        attempt.queue_s = None
        deadlines.enter("queue")
        try:
            await self._upstream.connections.wait_for_slot()
        finally:  # waiting in vain is not the backend's time either
            attempt.started_s = loop.time()
            attempt.queue_s = attempt.started_s - asked_s
        deadlines.enter("total")
        state = self._pick(attempt.started_s)
        attempt.endpoint = state.url
        return state

    async def _ask(self, state: EndpointState, deadlines: Deadlines) -> T:
        """Send the request and read its answer. The connection is kept if that is found right, or a refusal.

        The request is sent once more if a kept connection has died (docs/architecture.md, "Connections to backends").
        That happens once in a call: a GET that was read each time would be executed by every endpoint otherwise.
        """
        upstream = self._upstream
        endpoint = state.endpoint
        # an upload that cannot be read again from the client does not go over a connection that may have died
        must_be_fresh = self._was_replaced or not self._request.body.can_be_repeated
        while True:
            attempt = self._last
            lease = None if must_be_fresh else upstream.connections.lease_idle(endpoint, attempt.started_s)
            if lease is not None:
                attempt.connection = "reused"
            else:
                lease = await upstream.connections.lease_new(endpoint)
                attempt.connection = "new"
            self._has_slot = False  # it goes with the lease
            self._sent = sent = Sent(upstream.name, self._request, lease, deadlines, attempt)
            try:
                answer = await sent.start(endpoint)
                break
            except StaleConnectionError:
                deadlines.enter("total")  # connecting is not the endpoint's time to answer in
                self._was_replaced = must_be_fresh = True
                self._has_slot = sent.abandon_and_keep_slot()
                now_s = asyncio.get_running_loop().time()
                attempt.code = attempt.repeated_for = ErrorKind.UPSTREAM_CLOSED.label
                attempt.seconds = now_s - attempt.started_s
                self._note(state, now_s)
            except GatewayError:
                attempt.first_byte_s = None  # what began to come was no answer
                raise
        try:
            result = await self._read(answer)
        except GatewayError as error:
            if error.kind is ErrorKind.BACKEND_ERROR:  # a refusal, of this request
                sent.approve()
            raise
        sent.approve()
        return result

    def _is_upload_late(self, error: GatewayError, deadlines: Deadlines) -> bool:
        """Whether *error* is that of a server that closed because the client's upload did not come: no failure."""
        has_answered = self._sent is not None and self._sent.status is not None
        return error.kind is ErrorKind.UPSTREAM_CLOSED and not has_answered and deadlines.is_clients()

    def _judge(self, state: EndpointState, error: GatewayError, is_failure: bool) -> None:
        """Judge the endpoint by an attempt that ended with *error*; *is_failure*: the endpoint caused it."""
        if self._last.first_byte_s is None:
            self._last.code = error.kind.label
        status = None if self._sent is None else self._sent.status
        # a redirect, which the gateway does not follow, is a status, and no failure
        is_status = status is not None and 300 <= status < 400
        is_redirect = is_status and error.kind is ErrorKind.MALFORMED_RESPONSE
        if is_failure and not is_redirect:
            self._has_failed = True
            self._tried = (*self._tried, state)
            if error.kind is ErrorKind.UNREACHABLE:
                self._upstream.speaking.forget(state.url)
            self._upstream.note_failure(state, self._trial, error.message)
        elif is_redirect or error.kind is ErrorKind.BACKEND_ERROR:
            self._upstream.speaking.doubt(state.url)  # another kind of server may have taken its place
            if self._trial is not None:
                self._upstream.note_success(state, self._trial)
