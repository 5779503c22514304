"""The connections to one backend: opened, lent for one request at a time, kept for the next, closed.

Whoever takes a connection has it alone until it is given up, once: with `give_back`, where request and answer have been
exchanged to their ends, or with `drop`. The holder is an `attempt.Answer`, which forgets the connection then.

A request needs a slot before it gets a connection, and there are `max_connections` slots. When all are held, up to
`queue.length` requests wait, each for `queue.timeout` at most; beyond either limit they are refused as `overloaded`.

Not here: what goes over a connection (`attempt`), and which endpoint is asked (`upstream`).
"""

import asyncio
import errno
import os
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import aiohappyeyeballs

from gateway import tls
from gateway.backend.endpoints import Endpoint
from gateway.backend.resolving import Names, UnknownHostError
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError

_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})  # of this process or machine

NEXT_ADDRESS_S = 0.25
"""How long one address of a host name may take to connect before the next is tried beside it (RFC 8305)."""


class Pool:
    """The connections to one endpoint that are open."""

    __slots__ = ("busy", "endpoint", "idle", "is_kept")

    def __init__(self, endpoint: Endpoint, *, is_kept: bool) -> None:
        self.endpoint = endpoint
        self.busy = 0
        self.idle: deque[Wire] = deque()  # the last used is on the right
        self.is_kept = is_kept
        """Whether the endpoint is still one of the backend's; else its connections end when they become idle."""


class UnreachableError(GatewayError):
    """No connection to an endpoint can be had; `reason` says why, without the endpoint's name."""

    def __init__(self, backend: str, endpoint: Endpoint, reason: str) -> None:
        super().__init__(
            ErrorKind.UNREACHABLE, f"backend {backend!r} cannot be reached at {endpoint.url}: {reason}", sent=False
        )
        self.reason = reason


class Connections:
    """The connections of one backend, to all of its endpoints. A reload changes their limits, not the connections."""

    def __init__(self, backend: str, names: Names) -> None:
        """*names* knows the addresses of the endpoints. `configure` must follow."""
        self.backend = backend
        """Its name."""
        self._names = names
        self._max_connections = 0
        self._queue_length = 0
        self._queue_timeout_s = 0.0
        self._connect_timeout_s = 0.0
        self._keep_alive_s = 0.0
        self._in_use = 0  # slots that requests hold, from before they are connected until the connection is given up
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._pools: dict[Endpoint, Pool] = {}
        self._open: set[Wire] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_retired = False

    def configure(
        self,
        *,
        max_connections: int,
        queue_length: int,
        queue_timeout_s: float,
        connect_timeout_s: float,
        keep_alive_s: float,
    ) -> None:
        """From now on these limits hold; who waits now keeps its time, and gets one of the new slots at once.

        *keep_alive_s* is how long an idle connection is kept: less than the backend's own idle timeout.
        """
        self._max_connections = max_connections
        self._queue_length = queue_length
        self._queue_timeout_s = queue_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._keep_alive_s = keep_alive_s
        self._admit_waiters()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweep()
        while self._n_idle() and self._in_use + self._n_idle() > max_connections:
            self._close_longest_idle()

    def keep_only(self, endpoints: Iterable[Endpoint]) -> None:
        """These are the backend's endpoints from now on: connections to others are closed as soon as they are idle.

        After `retire` nothing is kept, whatever the names of endpoints are found to stand for.
        """
        if self._is_retired:
            endpoints = ()
        for pool in self._pools.values():
            pool.is_kept = False
        for endpoint in endpoints:
            # the key becomes this very object: what is the same object is not compared field by field
            kept = self._pools.pop(endpoint, None) or Pool(endpoint, is_kept=True)
            kept.is_kept = True
            self._pools[endpoint] = kept
        for pool in list(self._pools.values()):
            if not pool.is_kept:
                self._empty(pool)

    def retire(self) -> None:
        """No new requests will come: every connection is closed as soon as it is idle."""
        self._is_retired = True
        self.keep_only(())

    def _empty(self, pool: Pool) -> None:
        """Close what is idle to an endpoint that is gone, and forget it when nothing is busy any more."""
        while pool.idle:
            pool.idle.popleft().abort()
        if not pool.busy and self._pools.get(pool.endpoint) is pool:
            del self._pools[pool.endpoint]

    def counts(self, endpoint: Endpoint) -> tuple[int, int]:
        """How many connections to *endpoint* are busy, and how many are idle."""
        pool = self._pools.get(endpoint)
        return (pool.busy, len(pool.idle)) if pool is not None else (0, 0)

    @property
    def is_full(self) -> bool:
        """Whether all that may be used are in use."""
        return self._in_use >= self._max_connections

    def take_slot(self) -> bool:
        """Whether one more connection may be used at once; then one must be taken, or `release_slot` follow."""
        if self.is_full:
            return False
        self._in_use += 1
        return True

    async def wait_for_slot(self) -> None:
        """As `take_slot`, but wait in the queue if all are in use. Raises `GatewayError` OVERLOADED."""
        if self.take_slot():
            return
        if len(self._waiters) >= self._queue_length:
            raise self._overloaded(f"and {len(self._waiters)} requests are waiting (queue.length)")
        timeout_s = self._queue_timeout_s
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self.release_slot()  # it was given just when the wait ended
            else:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            if isinstance(error, TimeoutError):
                raise self._overloaded(f"and none became free within {timeout_s:g} s (queue.timeout)") from None
            raise

    def release_slot(self) -> None:
        """Give up a slot: the request that has waited longest gets it."""
        self._in_use -= 1
        if self._waiters:
            self._admit_waiters()

    def _admit_waiters(self) -> None:
        while self._waiters and self._in_use < self._max_connections:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._in_use += 1
                waiter.set_result(None)

    def _overloaded(self, reason: str) -> GatewayError:
        return GatewayError(
            ErrorKind.OVERLOADED,
            f"backend {self.backend!r}: all {self._max_connections} connections (max_connections) are in use, "
            + reason,
            headers=[("Retry-After", "1")],
            sent=False,
        )

    def take_idle(self, endpoint: Endpoint, now_s: float) -> Wire | None:
        """A kept connection to *endpoint* for the holder of a slot, which goes with it; None if there is none.

        It is to be written to at once: nothing has come on it, as far as the kernel knows at this moment. It is the one
        that was used last, among those that are still usable *now_s*, by the event loop's clock.
        """
        pool = self._pools.get(endpoint)
        while pool is not None and pool.idle:
            wire = pool.idle.pop()
            if now_s - wire.idle_since < self._keep_alive_s and wire.is_usable():
                pool.busy += 1
                return wire
            wire.abort()
        return None

    async def take_new(self, endpoint: Endpoint) -> Wire:
        """A new connection to *endpoint* for the holder of a slot, which goes with it.

        Raises `GatewayError` UNREACHABLE, or OVERLOADED where this machine is at its limits. Whatever it raises, the
        holder still has the slot.
        """
        # an endpoint that has just left has a pool of its own
        pool = self._pools.get(endpoint) or Pool(endpoint, is_kept=False)
        if pool.idle:  # the request must not go over a kept one: without this, each such request would leave one more
            pool.idle.popleft().abort()
        elif self._in_use + self._n_idle() > self._max_connections:
            self._close_longest_idle()
        wire = await self.connect(endpoint)
        wire.pool = pool
        pool.busy += 1
        return wire

    async def connect(self, endpoint: Endpoint) -> Wire:
        """A new connection that takes none of the slots: whoever asks for it ends it with `abort`.

        Raises `UnreachableError`; another `GatewayError` says nothing about the endpoint.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                addresses = await self._names.addresses(endpoint)
                sock = await aiohappyeyeballs.start_connection(
                    addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop
                )
                wire = Wire(loop, partial(self._lost, endpoint), sock)
                if endpoint.tls is None:
                    await loop.create_connection(lambda: wire, sock=sock)
                else:
                    wire.tls = await tls.connect(sock, wire, endpoint.tls, endpoint.name, wire.socket_closes)
        except TimeoutError:
            self._names.look_up_soon(endpoint)
            limit = f"{self._connect_timeout_s:g} s (timeouts.connect)"
            reason = f"no connection within {limit}{self._names.waiting_for(endpoint)}"
            raise UnreachableError(self.backend, endpoint, reason) from None
        except UnknownHostError as error:
            raise UnreachableError(self.backend, endpoint, str(error)) from None
        except OSError as error:
            if error.errno in _OWN_LIMITS:
                words = f"no connection to {endpoint.url} can be opened by this machine: {_why(error)}"
                raise GatewayError(ErrorKind.OVERLOADED, words, headers=[("Retry-After", "1")], sent=False) from None
            self._names.look_up_soon(endpoint)
            raise UnreachableError(self.backend, endpoint, _why(error)) from None
        self._open.add(wire)
        return wire

    def _n_idle(self) -> int:
        return sum([len(pool.idle) for pool in self._pools.values()])

    def _close_longest_idle(self) -> None:
        """Close the connection that was idle longest, if any is, because there would be more than are allowed."""
        longest = min(
            (pool.idle for pool in self._pools.values() if pool.idle),
            key=lambda idle: idle[0].idle_since,
            default=None,
        )
        if longest is not None:
            longest.popleft().abort()

    def give_back(self, wire: Wire) -> None:
        """Keep a connection that was taken for another request, if it can carry one; else close it."""
        pool = wire.pool
        assert pool is not None
        if pool.is_kept and self._in_use <= self._max_connections and wire.end():
            pool.idle.append(wire)
            pool.busy -= 1
            if self._sweeper is None:
                self._sweeper = asyncio.get_running_loop().call_later(self._keep_alive_s, self._sweep)
        else:
            self.drop(wire)
        self._in_use -= 1
        if self._waiters:
            self._admit_waiters()

    def drop(self, wire: Wire) -> None:
        """Close a connection that was taken, at once. Its slot stays the holder's, to be used or released."""
        pool = wire.pool
        assert pool is not None
        wire.cut()
        pool.busy -= 1
        if not pool.is_kept:
            self._empty(pool)

    def _lost(self, endpoint: Endpoint, wire: Wire) -> None:
        """The connection is gone, for whatever reason."""
        self._open.discard(wire)
        with suppress(KeyError, ValueError):
            self._pools[endpoint].idle.remove(wire)

    def _sweep(self) -> None:
        """Close what was idle for too long, and come again while anything is idle."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sweeper = None
        idles = [pool.idle for pool in self._pools.values()]
        for idle in idles:
            while idle and now - idle[0].idle_since >= self._keep_alive_s:
                idle.popleft().abort()
        starts = [idle[0].idle_since for idle in idles if idle]
        if starts:
            self._sweeper = loop.call_at(min(starts) + self._keep_alive_s, self._sweep)

    async def close(self) -> None:
        """Close every connection, and wait until they are gone."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for waiter in self._waiters:
            waiter.cancel()
        self._pools.clear()
        gone = [wire.closed for wire in self._open]
        for wire in self._open:
            wire.abort()
        await asyncio.gather(*gone)


def _why(error: OSError) -> str:
    """The reason of *error* in words, that of a certificate too."""
    if error.errno is not None and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)  # asyncio would say `Connect call failed` and the address, whatever the cause
    return str(getattr(error, "verify_message", "") or error.strerror or error)
