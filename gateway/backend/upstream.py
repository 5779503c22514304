"""Calls to one backend: which endpoint is asked, how often, and what a failure means for the endpoint.

Here: the attempts of a call, and its end. Not here: what goes over a connection (`attempt`), connections themselves
(`connections`), and the decisions (`policy`).
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from gateway import __version__
from gateway.backend.asking import BackendRequest
from gateway.backend.attempt import Answer, Sent, StaleConnectionError
from gateway.backend.connections import Connections
from gateway.backend.deadlines import Deadlines, DeadlineWatch
from gateway.backend.endpoints import Endpoint, EndpointSet, EndpointState
from gateway.backend.health import HealthProbes
from gateway.backend.resolving import Names
from gateway.backend.speaking import Speaking, Spoken, configured
from gateway.certificates import TlsContext, uses_tls
from gateway.codec import DIALECTS
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.plan import BackendPlan
from gateway.policy.balancing import are_all_usable, candidates, least_in_flight, round_robin
from gateway.policy.ejection import FAILURES, EjectionRules, Trial
from gateway.policy.retry import RecentCalls, RetryPolicy
from gateway.policy.sticky import pick_sticky

USER_AGENT = f"tensor-gateway/{__version__} (what it speaks)"
"""How servers and their logs recognize a question about what they speak, unless `headers` says otherwise."""

T = TypeVar("T")

Read = Callable[[Answer], Awaitable[T]]
"""What is made of an answer."""

Transcode = Callable[[], Awaitable[tuple[BackendRequest, Read[T]]]]
"""Makes of a request that is passed on as it came one that every endpoint reads, and says how its answer is read."""

log = logging.getLogger("gateway")


def _never() -> bool:
    return False


class Upstream:
    """One backend at run time, as one plan wants it: its endpoints and its connections.

    A reload makes a new one, which takes over the endpoints' state and the connections of the one *before*; requests
    that began with that one finish with it.
    """

    def __init__(self, plan: BackendPlan, before: "Upstream | None" = None) -> None:
        """`start` must be awaited, and `close` by the last of those that took over from each other.

        Until `start`, nothing changes for the one *before*.
        """
        self.name = plan.name
        settings = plan.settings
        self.tls: TlsContext | None = None
        """For the endpoints whose URL begins with https; None if there is none."""
        if uses_tls(settings.endpoints):
            self.tls = TlsContext.following(before.tls if before else None, f"backends.{plan.name}.tls", settings.tls)
        timeouts, retry, eject = settings.timeouts, settings.retry, settings.eject
        self.deadlines = DeadlineWatch(
            {"first_byte": timeouts.first_byte, "idle": timeouts.idle, "total": timeouts.total}
        )
        self.retry = RetryPolicy(retry.attempts, retry.budget, retry.resend_after_sent, plan.workers)
        self.ejection_rules = EjectionRules(eject.failures, eject.window, eject.for_, eject.panic_below)
        self._plan = plan
        self._balance = least_in_flight if settings.balance == "least_in_flight" else round_robin
        self._turn = 0
        self.endpoints: EndpointSet = EndpointSet() if before is None else before.endpoints
        self.names: Names = Names(plan.name, self.endpoints) if before is None else before.names
        self.probes: HealthProbes = HealthProbes(plan.name, self.endpoints) if before is None else before.probes
        self.connections: Connections = Connections(plan.name, self.names) if before is None else before.connections
        self.recent_calls: RecentCalls = RecentCalls() if before is None else before.recent_calls
        self.speaking: Speaking = Speaking(plan.name, self.endpoints) if before is None else before.speaking
        self.configured = configured(plan.dialect, plan.binary)
        """What it speaks, if the configuration says so and no endpoint has to be asked."""
        if before is None:
            self.endpoints.on_replaced = self.connections.keep_only
            self.names.on_change = self.probes.follow
            self._take_over()

    def _take_over(self) -> None:
        """From now on the endpoints and the limits of the connections are those of this plan."""
        settings = self._plan.settings
        self.names.configure([Endpoint.parse(url, self.tls) for url in settings.endpoints], settings.dns_refresh)
        self.connections.configure(
            max_connections=self._plan.max_connections,
            queue_length=settings.queue.length,
            queue_timeout_s=settings.queue.timeout,
            connect_timeout_s=settings.timeouts.connect,
            keep_alive_s=settings.keep_alive,
        )
        fields = self._plan.headers.probing(USER_AGENT)
        plan, total_s = self._plan, settings.timeouts.total
        self.speaking.configure(plan.dialect, plan.binary, fields, self.connections, total_s)
        if not self.ejection_rules.failures:
            for state in self.endpoints.states:
                if state.is_ejected:
                    state.note_ejection("ejection is switched off")
                state.ejection.clear()

    async def start(self) -> None:
        """Take over from the one before, and start looking up names and probing."""
        self._take_over()
        plan = self._plan
        self.probes.start(plan.settings.health, plan.headers, self.connections, DIALECTS.get(plan.dialect))
        await self.names.start()

    def retire(self) -> None:
        """No plan names this backend any more: what is in flight is finished, and what is idle is closed."""
        self.names.stop()
        self.probes.stop()
        self.connections.retire()

    @property
    def is_usable(self) -> bool:
        """Whether an endpoint is not known to be down."""
        return any(state.is_up for state in self.endpoints.states)

    async def spoken(self) -> Spoken:
        """What the endpoints speak: their dialect, and whether they take binary bodies. Raises `GatewayError`."""
        return self.configured or await self.speaking.spoken()

    def call(
        self,
        request: BackendRequest,
        attempts: list[Attempt],
        read: Read[T],
        *,
        transcode: Transcode[T] | None = None,
        total_at: float | None = None,
        sticky_key: str | None = None,
        is_settled: Callable[[], bool] = _never,
    ) -> Coroutine[Any, Any, T]:
        """Send *request*, give its answer to *read*, and return what that returns. Raises `GatewayError`.

        A failed attempt may be followed by another (`retry`), also one that fails while its answer is read: then *read*
        is called again with the next answer, and has to begin anew. From when *is_settled*, because something of the
        answer has reached the client, no other attempt is made. What was tried is appended to *attempts*. *total_at*:
        when `timeouts.total` is over, by the event loop's clock, if it began before this call. *sticky_key*: requests
        with the same one go to the same endpoint. *transcode*, of a request that is passed on: called once, before an
        attempt at an endpoint that has not said that it reads binary; that attempt and all others are transcoded.
        """
        now_s = asyncio.get_running_loop().time()
        self.recent_calls.count_call(now_s)
        self._turn += 1
        if total_at is None:
            total_at = now_s + self.deadlines.limits_s["total"]
        return _Call(self, request, attempts, read, transcode, total_at, sticky_key, self._turn).run(is_settled)

    def pick(
        self,
        tried: Sequence[EndpointState],
        turn: int,
        sticky_key: str | None,
        now_s: float,
        *,
        is_passed: bool = False,
    ) -> EndpointState:
        """The endpoint for the next attempt of a call that has *tried* some already.

        *is_passed*: see `BackendRequest`. An endpoint that may not get it is only picked where no other is left that
        was not tried: then the caller transcodes (design: passed through or transcoded).
        """
        states: Sequence[EndpointState] = self.endpoints.states
        if len(states) == 1:
            return states[0]
        if is_passed:
            may_get = self.speaking.may_get_binary
            states = [state for state in states if state not in tried and may_get(state)] or states
        if not tried and sticky_key is None and are_all_usable(states):
            return self._balance(states, turn)
        open_ = candidates(states, tried, now_s)
        if sticky_key is not None:
            return open_[pick_sticky(sticky_key, [state.endpoint.url + state.endpoint.base_path for state in open_])]
        for state in open_:
            if state.ejection.is_ejected and state.ejection.is_due(now_s):
                return state
        return self._balance(open_, turn)

    def note_failure(self, state: EndpointState, trial: Trial | None, reason: str) -> None:
        """Count a failure of the endpoint, and eject it if it has had too many."""
        states = self.endpoints.states
        n_others = sum(1 for each in states if each is not state and each.is_up and not each.is_ejected)
        rules = self.ejection_rules
        now_s = asyncio.get_running_loop().time()
        self.speaking.doubt(state.url)
        if state in states and state.ejection.fail(now_s, rules, trial, n_others, len(states)):
            state.note_ejection(reason)
            log.warning(
                "backend %r: %s is ejected for %g s: %d failures within %g s, the last: %s",
                self.name,
                state.url,
                rules.for_s,
                rules.failures,
                rules.window_s,
                reason,
            )

    def note_success(self, state: EndpointState, trial: Trial) -> None:
        """The *trial* has shown that the endpoint works."""
        if state.ejection.succeed(trial):
            state.note_ejection("a request to it has succeeded")
            log.info("backend %r: %s is back: a request to it has succeeded", self.name, state.url)

    async def close(self) -> None:
        """Close every connection."""
        await self.names.close()
        await self.probes.close()
        await self.speaking.close()
        await self.connections.close()


class _NotBinaryError(Exception):
    """While a request that is passed on waited for a connection, what the endpoints speak has changed."""


class _Call(Generic[T]):
    """One request of the gateway to a backend, until its answer is read or given up."""

    _tried: Sequence[EndpointState] = ()
    _has_slot = False  # one that no lease holds
    _was_replaced = False  # a kept connection that had died
    # of the last attempt:
    _last: Attempt
    _trial: Trial | None = None
    _sent: Sent | None = None
    _answer: Answer | None = None
    _has_failed = False  # and the endpoint caused it

    def __init__(
        self,
        upstream: Upstream,
        request: BackendRequest,
        attempts: list[Attempt],
        read: Read[T],
        transcode: Transcode[T] | None,
        total_at: float,
        sticky_key: str | None,
        turn: int,
    ) -> None:
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
                self._sent = self._answer = None
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
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        picked = self._pick(asked_s)
        self._note(picked, asked_s)
        deadlines = upstream.deadlines.begin(self._total_at, asked_s)
        has_expired = is_in_flight = False
        try:
            try:
                if not (self._has_slot or upstream.connections.take_slot()):
                    picked = await self._wait_for_slot(deadlines)
                self._has_slot = True
                if not self._may_go_to(picked):
                    raise _NotBinaryError
                is_in_flight = True
                picked.in_flight += 1
                if picked.ejection.is_ejected:
                    self._trial = picked.ejection.begin_trial(self._last.started_s)
                self._answer = answer = await self._ask(picked, deadlines)
                try:
                    result = await self._read(answer)
                except GatewayError as error:
                    if error.kind is ErrorKind.BACKEND_ERROR:  # a refusal, of this request
                        self._approve()
                    raise
                self._approve()
            finally:
                has_expired = deadlines.stop()
                sent, last = self._sent, self._last
                if sent is not None and not sent.is_over and sent.abandon_and_keep_slot():
                    self._has_slot = True
                last.seconds = loop.time() - last.started_s
            if self._trial is not None:
                upstream.note_success(picked, self._trial)
            return result
        except GatewayError as error:
            # a server that closes because the client's upload does not arrive has not failed
            is_upload_late = error.kind is ErrorKind.UPSTREAM_CLOSED and self._answer is None and deadlines.is_clients()
            self._judge(picked, error, error.kind in FAILURES and not is_upload_late)
            raise
        except (asyncio.CancelledError, TimeoutError):
            if not has_expired:
                raise
            expired = deadlines.expired(upstream.name)
            self._judge(picked, expired, deadlines.was_silent())
            raise expired from None
        finally:
            # the attempt is no longer in flight, and a trial that has decided nothing makes room for another
            if is_in_flight:
                picked.in_flight -= 1
            if self._trial is not None:
                picked.ejection.end_trial(self._trial)
                self._trial = None
            if sent is not None and sent.has_begun_body:
                await sent.stopped()

    def _approve(self) -> None:
        """The answer was read and found right."""
        if self._sent is not None:
            self._sent.approve()

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

    async def _ask(self, state: EndpointState, deadlines: Deadlines) -> Answer:
        """Send the request, once more if a kept connection has died (design: executed once).

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
                return await sent.start(endpoint)
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

    def _judge(self, state: EndpointState, error: GatewayError, is_failure: bool) -> None:
        """Judge the endpoint by an attempt that ended with *error*; *is_failure*: the endpoint caused it."""
        if self._last.first_byte_s is None:
            self._last.code = error.kind.label
        answer = self._answer
        # a redirect, which the gateway does not follow, is a status, and no failure
        is_status = answer is not None and 300 <= answer.status < 400
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
