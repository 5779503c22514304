"""One backend at run time: its endpoints, its connections, and which endpoint is asked next."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from gateway.backend.asking import BackendRequest
from gateway.backend.attempt import Read, Transcode
from gateway.backend.calling import Call
from gateway.backend.connections import Connections, Limits
from gateway.backend.deadlines import DeadlineTimer
from gateway.backend.endpoints import Endpoint, EndpointSet, EndpointState
from gateway.backend.health import HealthProbes
from gateway.backend.resolving import Names
from gateway.backend.speaking import Speaking, Spoken, configured
from gateway.certificates import TlsContext, uses_tls
from gateway.codec.dialects import DIALECTS
from gateway.exchange import Attempt
from gateway.plan import BackendPlan
from gateway.policy.balancing import candidates, least_in_flight, pick_sticky, round_robin
from gateway.policy.ejection import Trial, leaves_enough
from gateway.policy.retry import RecentCalls

T = TypeVar("T")

_is_ejected = attrgetter("ejection.is_ejected")

log = logging.getLogger("gateway")


class Upstream:
    """One backend at run time, by one plan: its endpoints and its connections.

    A reload makes a new `Upstream`, which takes over the endpoints' state and the connections of the one *before*.
    Requests that began with the old one finish with it.
    """

    def __init__(self, plan: BackendPlan, before: "Upstream | None" = None) -> None:
        """`start` must be awaited. `close` must be awaited once, for the last in a chain of take-overs.

        Until `start`, nothing changes for the one *before*.
        """
        self.name = plan.name
        settings = plan.settings
        self.tls: TlsContext | None = None
        """The context for endpoints with https; None if there are none."""
        if uses_tls(settings.endpoints):
            self.tls = TlsContext.following(before.tls if before else None, f"backends.{plan.name}.tls", settings.tls)
        self.loop = asyncio.get_running_loop()  # kept, because `get_running_loop` costs a system call
        self.timer = DeadlineTimer(self.loop, settings.timeouts)
        self.retry = settings.retry
        self.plan = plan
        self._balance = least_in_flight if settings.balance == "least_in_flight" else round_robin
        self._turn = 0
        self.endpoints: EndpointSet = before.endpoints if before else EndpointSet()
        self.names: Names = before.names if before else Names(plan.name, self.endpoints)
        self.connections: Connections = before.connections if before else Connections(plan.name, self.names)
        probes = before.probes if before else HealthProbes(plan.name, self.endpoints, self.connections)
        self.probes: HealthProbes = probes
        self.recent_calls: RecentCalls = before.recent_calls if before else RecentCalls()
        self.speaking: Speaking = before.speaking if before else Speaking(plan.name, self.endpoints, self.connections)
        if before is None:
            self._take_over()

    def _take_over(self) -> None:
        """Set the endpoints and the limits of the connections to those of this plan."""
        settings = self.plan.settings
        self.names.configure([Endpoint.parse(url, self.tls) for url in settings.endpoints], settings.dns_refresh)
        queue, connect_s = settings.queue, settings.timeouts.connect
        limits = Limits(self.plan.max_connections, connect_s, queue.length, queue.timeout, settings.keep_alive)
        self.connections.configure(limits)
        fields, total_s = self.plan.headers.probing("what it speaks"), settings.timeouts.total
        self.speaking.configure(settings.dialect, settings.binary, fields, total_s)
        if not settings.eject.failures:
            for state in self.endpoints.states:
                if state.ejection.is_ejected:
                    state.note("ejection is switched off")
                state.ejection.clear()

    async def start(self) -> None:
        """Take over from the previous `Upstream`, and start looking up names and probing."""
        self._take_over()
        settings, headers = self.plan.settings, self.plan.headers
        self.probes.start(settings.health, headers, DIALECTS.get(settings.dialect))
        await self.names.start()

    def retire(self) -> None:
        """End without a successor: requests in flight finish, and idle connections are closed."""
        self.names.stop()
        self.probes.stop()
        self.connections.retire()

    @property
    def is_usable(self) -> bool:
        """Whether the backend has an endpoint that is not known to be down."""
        return any(state.is_up for state in self.endpoints.states)

    @property
    def configured(self) -> Spoken | None:
        """What the backend speaks by its configuration; None if endpoints have to be asked."""
        return configured(self.plan.settings.dialect, self.plan.settings.binary)

    async def spoken(self) -> Spoken:
        """What the endpoints speak: their dialect, and whether they read binary bodies. Raises `GatewayError`."""
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
        is_settled: Callable[[], bool] = bool,
    ) -> Coroutine[Any, Any, T]:
        """Send *request*, let *read* read the answer, and return its result. Raises `GatewayError`.

        A failed attempt may be followed by another (`retry`). If an attempt fails while its answer is read, *read* is
        called again with the next answer, and has to begin anew. *is_settled* says that a part of the answer has
        reached the client; no other attempt is made then. Each attempt is appended to *attempts*. *total_at* is when
        `timeouts.total` is over, by the event loop's clock, if it began before this call. Requests with the same
        *sticky_key* go to the same endpoint. *transcode* belongs to a request that passes unchanged: it is called once,
        before the first attempt at an endpoint that has not said that it reads binary; all attempts from then on use
        its result.
        """
        now_s = self.loop.time()
        self.recent_calls.count(now_s, 1, 0)
        self._turn += 1
        if total_at is None:
            total_at = now_s + self.plan.settings.timeouts.total
        return Call(self, request, attempts, read, transcode, total_at, sticky_key, self._turn).run(now_s, is_settled)

    def pick(self, call: Call[Any], now_s: float) -> EndpointState:
        """The endpoint for the next attempt of *call*.

        For a request that passes unchanged, an endpoint that may not get binary bodies is only picked if all others
        were tried; the call is then transcoded (protocol 11.5).
        """
        states: Sequence[EndpointState] = self.endpoints.states
        if len(states) == 1:
            return states[0]
        if call.request.is_passed:
            may_get = self.speaking.may_get_binary
            states = [state for state in states if state not in call.tried and may_get(state)] or states
        open_ = candidates(states, call.tried, now_s)
        if call.sticky_key is not None:
            names = [state.endpoint.url + state.endpoint.base_path for state in open_]
            return open_[pick_sticky(call.sticky_key, names)]
        for state in filter(_is_ejected, open_):
            if state.ejection.is_due(now_s):
                return state
        return self._balance(open_, call.turn)

    def note_failure(self, state: EndpointState, trial: Trial | None, reason: str) -> None:
        """Count a failure of the endpoint, and eject it if it has had too many."""
        states = self.endpoints.states
        n_others = sum(1 for each in states if each is not state and each.is_up and not each.ejection.is_ejected)
        eject, now_s = self.plan.settings.eject, self.loop.time()
        may_eject = leaves_enough(n_others, len(states), eject.panic_below)
        state.speech.doubt(now_s)
        if state in states and state.ejection.fail(
            now_s, trial, failures=eject.failures, window_s=eject.window, for_s=eject.for_, may_eject=may_eject
        ):
            state.note(reason)
            log.warning(
                "backend %r: %s is ejected for %g s: %d failures within %g s, the last: %s",
                *(self.name, state.url, eject.for_, eject.failures, eject.window, reason),
            )

    def note_success(self, state: EndpointState, trial: Trial) -> None:
        """End the endpoint's ejection, because its *trial* has succeeded."""
        if state.ejection.succeed(trial):
            state.note("a request to it has succeeded")
            log.info("backend %r: %s is back: a request to it has succeeded", self.name, state.url)

    async def close(self) -> None:
        """Close every connection."""
        await self.names.close()
        await self.probes.tasks.close()
        await self.speaking.tasks.close()
        await self.connections.close()
