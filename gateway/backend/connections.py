"""The connections to one backend: opened, lent for one request at a time, kept for the next, closed.

A lease is the right to use one connection. It ends once: with `give_back`, where request and answer have been
exchanged to their ends, or with `close`. After that its holder cannot reach the connection any more.

At most `max_connections` are open. A request that finds them all in use waits in a queue of `queue.length` places for
at most `queue.timeout`; beyond either it is refused as `overloaded`.
"""

import asyncio
from collections import Counter, deque
from contextlib import suppress
from functools import partial

import aiohappyeyeballs

from gateway import tls
from gateway.backend.endpoints import Endpoint
from gateway.backend.resolving import Resolver, UnknownHostError
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError

NEXT_ADDRESS_S = 0.25
"""How long one address of a host name may take to connect before the next is tried beside it (RFC 8305)."""


class Lease:
    """One connection, for one request."""

    __slots__ = ("_connections", "_endpoint", "_wire")

    def __init__(self, connections: "Connections", endpoint: Endpoint, wire: Wire) -> None:
        self._connections = connections
        self._endpoint = endpoint
        self._wire: Wire | None = wire

    @property
    def wire(self) -> Wire:
        """The connection, while the lease lasts."""
        assert self._wire is not None, "the lease is over"
        return self._wire

    def give_back(self) -> None:
        """Keep the connection for another request, if it can carry one; else close it."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self._connections._take_back(self._endpoint, wire)

    def close(self) -> None:
        """Close the connection at once, without waiting for what is still to be sent."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self._connections._end(self._endpoint, wire)

    def close_and_keep_place(self) -> None:
        """As `close`, but keep the place for a `Connections.lease` that follows at once."""
        wire, self._wire = self._wire, None
        if wire is not None:
            self._connections._drop(self._endpoint, wire)


class Connections:
    """The connections of one backend, to all of its endpoints."""

    def __init__(
        self,
        backend: str,
        *,
        max_connections: int,
        queue_length: int,
        queue_timeout_s: float,
        connect_timeout_s: float,
        keep_alive_s: float,
    ) -> None:
        """*keep_alive_s* is how long an idle connection is kept: less than the backend's own idle timeout."""
        self._backend = backend
        self._max_connections = max_connections
        self._queue_length = queue_length
        self._queue_timeout_s = queue_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._keep_alive_s = keep_alive_s
        self._resolver = Resolver()
        self._in_use = 0  # places that requests hold, from before they are connected until their lease is over
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._busy: Counter[Endpoint] = Counter()
        self._idle: dict[Endpoint, deque[Wire]] = {}  # the last used is on the right
        self._open: set[Wire] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    def counts(self, endpoint: Endpoint) -> tuple[int, int]:
        """How many connections to *endpoint* are busy, and how many are idle."""
        return self._busy[endpoint], len(self._idle.get(endpoint, ()))

    async def wait_for_place(self) -> None:
        """Wait until one more connection may be used; then `lease` or `leave_place` must follow.

        Raises `GatewayError` OVERLOADED.
        """
        if self._in_use < self._max_connections:
            self._in_use += 1
            return
        if len(self._waiters) >= self._queue_length:
            raise self._overloaded(f"and {len(self._waiters)} requests are waiting (queue.length)")
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self.leave_place()  # it was given just when the wait ended
            else:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            if isinstance(error, TimeoutError):
                waited = f"{self._queue_timeout_s:g} s (queue.timeout)"
                raise self._overloaded(f"and none became free within {waited}") from None
            raise

    def leave_place(self) -> None:
        """Give up a place: the request that has waited longest gets it."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._in_use -= 1

    def _overloaded(self, reason: str) -> GatewayError:
        return GatewayError(
            ErrorKind.OVERLOADED,
            f"backend {self._backend!r}: all {self._max_connections} connections (max_connections) are in use, "
            + reason,
            headers=[("Retry-After", "1")],
            sent=False,
        )

    async def lease(self, endpoint: Endpoint, *, fresh: bool) -> Lease:
        """A connection to *endpoint*, for which `wait_for_place` has found a place; a *fresh* one was never used.

        Raises `GatewayError` UNREACHABLE. Whatever it raises, the place is given up.
        """
        try:
            wire = None if fresh else self._take_idle(endpoint)
            if wire is None:
                wire = await self._connect(endpoint)
        except BaseException:
            self.leave_place()
            raise
        self._busy[endpoint] += 1
        return Lease(self, endpoint, wire)

    def _take_idle(self, endpoint: Endpoint) -> Wire | None:
        """The connection that was used last, if there is one that is still sound."""
        idle = self._idle.get(endpoint)
        now = asyncio.get_running_loop().time()
        while idle:
            wire = idle.pop()
            if now - wire.idle_since < self._keep_alive_s and wire.is_usable():
                return wire
            wire.abort()
        return None

    async def _connect(self, endpoint: Endpoint) -> Wire:
        loop = asyncio.get_running_loop()
        self._make_room()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                addresses = await self._resolver.addresses(endpoint.host, endpoint.port)
                sock = await aiohappyeyeballs.start_connection(
                    addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop
                )
                wire = Wire(loop, partial(self._lost, endpoint))
                if endpoint.tls is None:
                    await loop.create_connection(lambda: wire, sock=sock)
                else:
                    wire.tls = await tls.connect(sock, wire, endpoint.tls, endpoint.name, wire.socket_closes)
        except TimeoutError:
            limit = f"{self._connect_timeout_s:g} s (timeouts.connect)"
            raise self._unreachable(endpoint, f"no connection within {limit}") from None
        except UnknownHostError as error:
            raise self._unreachable(endpoint, str(error)) from None
        except OSError as error:
            self._resolver.forget(endpoint.host, endpoint.port)
            raise self._unreachable(endpoint, _why(error)) from None
        self._open.add(wire)
        return wire

    def _unreachable(self, endpoint: Endpoint, reason: str) -> GatewayError:
        return GatewayError(
            ErrorKind.UNREACHABLE,
            f"backend {self._backend!r} cannot be reached at {endpoint.url}: {reason}",
            sent=False,
        )

    def _make_room(self) -> None:
        """Close the connection that was idle longest, if one more would be more than are allowed."""
        n_idle = sum(map(len, self._idle.values()))
        if self._in_use + n_idle > self._max_connections:
            longest = min(
                (idle for idle in self._idle.values() if idle), key=lambda idle: idle[0].idle_since, default=None
            )
            if longest is not None:
                longest.popleft().abort()

    def _take_back(self, endpoint: Endpoint, wire: Wire) -> None:
        if wire.can_go_on():
            loop = asyncio.get_running_loop()
            wire.end(loop.time())
            self._idle.setdefault(endpoint, deque()).append(wire)
            if self._sweeper is None:
                self._sweeper = loop.call_later(self._keep_alive_s, self._sweep)
            self._busy[endpoint] -= 1
            self.leave_place()
        else:
            self._end(endpoint, wire)

    def _end(self, endpoint: Endpoint, wire: Wire) -> None:
        self._drop(endpoint, wire)
        self.leave_place()

    def _drop(self, endpoint: Endpoint, wire: Wire) -> None:
        wire.cut()
        self._busy[endpoint] -= 1

    def _lost(self, endpoint: Endpoint, wire: Wire) -> None:
        """The connection is gone, for whatever reason."""
        self._open.discard(wire)
        with suppress(KeyError, ValueError):
            self._idle[endpoint].remove(wire)

    def _sweep(self) -> None:
        """Close what was idle for too long, and come again while anything is idle."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sweeper = None
        for idle in self._idle.values():
            while idle and now - idle[0].idle_since >= self._keep_alive_s:
                idle.popleft().abort()
        starts = [idle[0].idle_since for idle in self._idle.values() if idle]
        if starts:
            self._sweeper = loop.call_at(min(starts) + self._keep_alive_s, self._sweep)

    async def close(self) -> None:
        """Close every connection, and wait until they are gone."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for waiter in self._waiters:
            waiter.cancel()
        self._idle.clear()
        gone = [wire.closed for wire in self._open]
        for wire in self._open:
            wire.abort()
        await asyncio.gather(*(each for each in gone if each is not None), return_exceptions=True)


def _why(error: OSError) -> str:
    """The reason of *error* in words, that of a certificate too."""
    return str(getattr(error, "verify_message", "") or error.strerror or error)
