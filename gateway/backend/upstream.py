"""Calls to one backend: which endpoint is asked, and how often.

Here: the attempts of a call, and its end. Not here: what goes over a connection (`attempt`), and connections
themselves (`connections`).
"""

import asyncio
import ssl
from types import TracebackType

from gateway.backend.attempt import Answer, BackendRequest, Sent, StaleConnectionError
from gateway.backend.connections import Connections
from gateway.backend.deadlines import Deadlines
from gateway.backend.endpoints import Endpoint, EndpointSet, EndpointState
from gateway.backend.health import HealthProbes
from gateway.backend.resolving import Names
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.plan import BackendPlan
from gateway.policy.balancing import RoundRobin


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
        self._plan = plan
        self._tls: ssl.SSLContext = ssl.create_default_context() if before is None else before._tls
        self.endpoints: EndpointSet = EndpointSet() if before is None else before.endpoints
        self.names: Names = Names(plan.name, self.endpoints) if before is None else before.names
        self.probes: HealthProbes = HealthProbes(plan.name, self.endpoints) if before is None else before.probes
        timeouts = settings.timeouts
        self.limits_s = {"first_byte": timeouts.first_byte, "idle": timeouts.idle, "total": timeouts.total}
        self.connections = Connections(
            plan.name,
            self.names,
            max_connections=plan.max_connections,
            queue_length=settings.queue.length,
            queue_timeout_s=settings.queue.timeout,
            connect_timeout_s=timeouts.connect,
            keep_alive_s=settings.keep_alive,
        )
        if before is None:
            self._take_over()

    def _take_over(self) -> None:
        """From now on the endpoints are those of this plan."""
        self.names.on_change = self._endpoints_changed
        settings = self._plan.settings
        self.names.configure([Endpoint.parse(url, self._tls) for url in settings.endpoints], settings.dns_refresh)

    def _endpoints_changed(self) -> None:
        self.balancer: RoundRobin[EndpointState] = RoundRobin(self.endpoints.states)
        self.probes.follow()

    async def start(self) -> None:
        """Take over from the one before, and begin what goes on beside the requests: looking names up, probing."""
        self._take_over()
        self.probes.start(self._plan.settings.health, self._plan.headers, self.connections)
        await self.names.start()

    def retire(self) -> None:
        """No plan names this backend any more: what is in flight is finished, and what is idle is closed."""
        self.names.stop()
        self.probes.stop()

    @property
    def is_usable(self) -> bool:
        """Whether an endpoint is not known to be down."""
        return any(state.is_up for state in self.endpoints.states)

    def call(
        self,
        request: BackendRequest,
        attempts: list[Attempt],
        *,
        total_at: float | None = None,
        sticky_key: str | None = None,
    ) -> "Call":
        """Send *request* and give its answer: `async with upstream.call(...) as answer`.

        What was tried is appended to *attempts*. *total_at*: when `timeouts.total` is over, by the event loop's
        clock, if it began before this call. *sticky_key*: requests with the same one go to the same endpoint. Entering,
        reading and leaving raise `GatewayError`.
        """
        return Call(self, request, attempts, total_at)

    async def close(self) -> None:
        """Close every connection."""
        await self.names.close()
        await self.probes.close()
        await self.connections.close()


class Call:
    """One request of the gateway to a backend, until its answer is read or given up."""

    __slots__ = ("_attempts", "_deadlines", "_last", "_request", "_sent", "_timeout", "_total_at", "_upstream")

    def __init__(
        self, upstream: Upstream, request: BackendRequest, attempts: list[Attempt], total_at: float | None
    ) -> None:
        self._upstream = upstream
        self._request = request
        self._attempts = attempts
        self._total_at = total_at
        self._timeout = asyncio.timeout(None)
        self._deadlines: Deadlines | None = None
        self._sent: Sent | None = None
        self._last: Attempt | None = None

    async def __aenter__(self) -> Answer:
        limits_s = self._upstream.limits_s
        total_at = self._total_at
        if total_at is None:
            total_at = asyncio.get_running_loop().time() + limits_s["total"]
        await self._timeout.__aenter__()
        self._deadlines = deadlines = Deadlines(self._timeout, limits_s, total_at)
        try:
            endpoint = self._upstream.balancer.pick().endpoint
            # an upload that cannot be read again from the client does not go over a connection that may have died
            must_be_fresh = not self._request.body.can_be_repeated
            try:
                return await self._attempt(endpoint, deadlines, fresh=must_be_fresh)
            except StaleConnectionError:
                return await self._attempt(endpoint, deadlines, fresh=True, has_place=True)
        except BaseException as error:
            await self._leave(deadlines, error)
            raise

    async def _attempt(
        self, endpoint: Endpoint, deadlines: Deadlines, *, fresh: bool, has_place: bool = False
    ) -> Answer:
        """Try once, on a *fresh* connection or any; *has_place*: with the place of the attempt before.

        Raises `GatewayError`; `StaleConnectionError`, with the place kept, where a fresh connection should be tried.
        """
        loop = asyncio.get_running_loop()
        connections = self._upstream.connections
        asked_s = loop.time()
        attempt = Attempt(endpoint.url, asked_s, is_metadata=self._request.is_metadata)
        self._attempts.append(attempt)
        self._last = attempt
        deadlines.enter("queue")
        try:
            try:
                if not has_place:
                    await connections.wait_for_place()
            finally:  # waiting in vain is not the backend's time either
                attempt.started_s = loop.time()
                attempt.queue_s = attempt.started_s - asked_s
            deadlines.enter("total")
            lease = await connections.lease(endpoint, fresh=fresh)
            sent = self._sent = Sent(self._upstream.name, self._request, lease, deadlines, attempt)
            answer = await sent.start(endpoint)
        except GatewayError as error:
            attempt.code = error.kind.label
            raise
        except StaleConnectionError:
            attempt.code = ErrorKind.UPSTREAM_CLOSED.label
            attempt.is_repeated = True
            attempt.seconds = loop.time() - attempt.started_s
            sent.drop_connection()
            raise
        attempt.code = str(answer.status)
        attempt.first_byte_s = loop.time() - attempt.started_s
        return answer

    async def __aexit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._deadlines is not None
        await self._leave(self._deadlines, error)

    async def _leave(self, deadlines: Deadlines, error: BaseException | None) -> None:
        """The call is over. Raises `GatewayError` in place of *error* if that came from a deadline."""
        deadlines.stop()
        if self._sent is not None:
            self._sent.abandon()
        attempt = self._last
        assert attempt is not None
        attempt.seconds = asyncio.get_running_loop().time() - attempt.started_s
        type_ = type(error) if error is not None else None
        try:
            await self._timeout.__aexit__(type_, error, None)
        except TimeoutError:
            expired = deadlines.expired(self._upstream.name)
            if attempt.first_byte_s is None:
                attempt.code = expired.kind.label
            raise expired from None
        finally:
            if self._sent is not None:
                await self._sent.stopped()
