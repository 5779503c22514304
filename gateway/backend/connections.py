"""The connections to one backend: opened, lent for one request at a time, kept for the next, closed.

The kept connections of an endpoint belong to its state (`endpoints.EndpointState`).

A connection has one holder, an `attempt.Answer`, which gives it up once: with `give_back` if request and answer have
come to their ends, else with `drop`. Afterwards the holder forgets the connection.

A request needs a slot before it gets a connection, and there are `max_connections` slots. When all are held, up to
`queue.length` requests wait, each for `queue.timeout` at most; beyond either limit they are refused as `overloaded`.
"""

import asyncio
import errno
import os
import ssl
from collections import deque
from contextlib import suppress
from typing import NamedTuple

import aiohappyeyeballs

from gateway import tls
from gateway.backend.endpoints import Endpoint, EndpointState
from gateway.backend.resolving import Names, UnknownHostError
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError

_OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})  # limits of this process or machine

NEXT_ADDRESS_S = 0.25
"""How long one address of a host name may take to connect before the next is tried beside it (RFC 8305)."""


class NoAnswerError(GatewayError):
    """A server gave no answer, or none in HTTP; the cause is the connection's error, if there is one."""

    def __init__(self, kind: ErrorKind, message: str, why: str) -> None:
        """*why* says the reason alone; *message* also names the server and the question."""
        super().__init__(kind, message, sent=False)
        self.why = why


class Limits(NamedTuple):
    """The limits of a backend's connections, which a reload may change."""

    max_connections: int
    connect_timeout_s: float
    queue_length: int = 0
    queue_timeout_s: float = 0.0
    keep_alive_s: float = 0.0
    """How long an idle connection is kept: less than the backend's own idle timeout."""


class Connections:
    """The connections of one backend, to all of its endpoints. A reload changes their limits, not the connections."""

    def __init__(self, backend: str, names: Names, limits: Limits | None = None) -> None:
        """*names* knows the endpoints and their addresses. Without *limits*, `configure` must follow."""
        self.backend = backend
        """The backend's name."""
        self._names = names
        self._endpoints = names.endpoints
        self._limits = limits or Limits(0, 0.0)
        self._in_use = 0  # slots held by requests, from before they have a connection until they give it up
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._open: set[Wire] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    def configure(self, limits: Limits) -> None:
        """Set the limits. Requests in the queue keep their waiting time, and get new slots at once."""
        self._limits = limits
        self._admit_waiters()
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweep()
        while self._n_idle() and self._in_use + self._n_idle() > limits.max_connections:
            self._close_longest_idle()

    def retire(self) -> None:
        """Close every connection as soon as it is idle, because no new requests will come."""
        self.configure(self._limits._replace(keep_alive_s=0.0))

    @property
    def is_full(self) -> bool:
        """Whether all slots are taken."""
        return self._in_use >= self._limits.max_connections

    def take_slot(self) -> bool:
        """Take a slot; False if none is free. A connection must be taken then, or `release_slot` called."""
        if self._in_use >= self._limits.max_connections:
            return False
        self._in_use += 1
        return True

    async def wait_for_slot(self) -> None:
        """Take a slot, and wait in the queue if none is free. Raises `GatewayError` OVERLOADED."""
        if self.take_slot():
            return
        if len(self._waiters) >= self._limits.queue_length:
            raise self._overloaded(f"and {len(self._waiters)} requests are waiting (queue.length)")
        timeout_s = self._limits.queue_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait_in_turn()
        except TimeoutError:
            raise self._overloaded(f"and none became free within {timeout_s:g} s (queue.timeout)") from None

    async def wait_in_turn(self) -> None:
        """Take a slot, and wait in the queue if none is free, however many wait and for as long as it takes."""
        if self.take_slot():
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self.release_slot()  # a slot was given at the moment when the wait ended
            else:
                with suppress(ValueError):
                    self._waiters.remove(waiter)
            raise

    def release_slot(self) -> None:
        """Give up a slot; the request that has waited longest gets it."""
        self._in_use -= 1
        if self._waiters:
            self._admit_waiters()

    def _admit_waiters(self) -> None:
        while self._waiters and self._in_use < self._limits.max_connections:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._in_use += 1
                waiter.set_result(None)

    def _overloaded(self, reason: str) -> GatewayError:
        in_use = f"all {self._limits.max_connections} connections (max_connections) are in use"
        words = f"backend {self.backend!r}: {in_use}, {reason}"
        return GatewayError(ErrorKind.OVERLOADED, words, headers=[("Retry-After", "1")], sent=False)

    def take_idle(self, state: EndpointState, now_s: float, method: str, first_bytes: bytes) -> Wire | None:
        """A kept connection to an endpoint, on which a request has begun (`Wire.begin`); None if there is none.

        It goes to the holder of a slot, and the slot with it. Of the connections that are usable *now_s* (by the event
        loop's clock) it is the one used last.
        """
        idle = state.idle
        while idle:
            wire = idle.pop()
            if now_s - wire.idle_since < self._limits.keep_alive_s and wire.begin(method, first_bytes):
                state.busy += 1
                return wire
            wire.abort()
        return None

    async def take_new(self, state: EndpointState, method: str, first_bytes: bytes) -> Wire:
        """A new connection to an endpoint, on which a request has begun, for the holder of a slot, which goes with it.

        Raises `GatewayError` UNREACHABLE, or OVERLOADED if this machine is at its limits; the holder then still has
        the slot.
        """
        if state.idle:  # kept ones must not carry this request, and without this their number would grow with each
            state.idle.popleft().abort()
        elif self._in_use + self._n_idle() > self._limits.max_connections:
            self._close_longest_idle()
        wire = await self.connect(state.endpoint)
        wire.state = state
        state.busy += 1
        wire.begin(method, first_bytes)
        return wire

    async def connect(self, endpoint: Endpoint) -> Wire:
        """A new connection without a slot, which the caller ends with `abort`.

        Raises `NoAnswerError`; another `GatewayError` says nothing about the endpoint.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.connect_timeout_s):
                addresses = await self._names.addresses(endpoint)
                sock = await aiohappyeyeballs.start_connection(
                    addresses, happy_eyeballs_delay=NEXT_ADDRESS_S, interleave=1, loop=loop
                )
                wire = Wire(loop, endpoint, self._lost, sock)
                if endpoint.tls is None:
                    await loop.create_connection(lambda: wire, sock=sock)
                else:
                    wire.tls = await tls.connect(sock, wire, endpoint.tls, endpoint.name, wire.socket_closes)
        except TimeoutError:
            self._names.look_up_soon(endpoint)
            why = f"no connection within {self._limits.connect_timeout_s:g} s (timeouts.connect)"
            raise self._unreachable(endpoint, f"{why}{self._names.waiting_for(endpoint)}") from None
        except UnknownHostError as error:
            raise self._unreachable(endpoint, str(error)) from None
        except OSError as error:
            if error.errno in _OWN_LIMITS:
                words = f"no connection to {endpoint.url} can be opened by this machine: {_why(error)}"
                raise GatewayError(ErrorKind.OVERLOADED, words, headers=[("Retry-After", "1")], sent=False) from None
            self._names.look_up_soon(endpoint)
            raise self._unreachable(endpoint, _why(error)) from None
        self._open.add(wire)
        return wire

    def _unreachable(self, endpoint: Endpoint, why: str) -> NoAnswerError:
        words = f"backend {self.backend!r} cannot be reached at {endpoint.url}: {why}"
        return NoAnswerError(ErrorKind.UNREACHABLE, words, why)

    def _n_idle(self) -> int:
        return sum([len(state.idle) for state in self._endpoints.states])

    def _close_longest_idle(self) -> None:
        """Close the connection that was idle longest, if any is idle, to make room for a new one."""
        idles = [state.idle for state in self._endpoints.states if state.idle]
        if idles:
            min(idles, key=lambda idle: idle[0].idle_since).popleft().abort()

    def give_back(self, wire: Wire) -> None:
        """Give back a connection and its slot: it is kept if it can carry another request, else closed."""
        state = wire.state
        assert state is not None
        is_same = state.endpoint is wire.endpoint or state.endpoint == wire.endpoint  # comparing takes a microsecond
        if is_same and state.is_kept and self._in_use <= self._limits.max_connections and wire.end():
            state.idle.append(wire)
            state.busy -= 1
            if self._sweeper is None:
                self._sweeper = asyncio.get_running_loop().call_later(self._limits.keep_alive_s, self._sweep)
        else:
            self.drop(wire)
        self.release_slot()

    def drop(self, wire: Wire) -> None:
        """Close a taken connection at once. The slot stays the holder's, to be used again or released."""
        assert wire.state is not None
        wire.cut()
        wire.state.busy -= 1

    def _lost(self, wire: Wire) -> None:
        """Forget a connection that has ended, for whatever reason."""
        self._open.discard(wire)
        if wire.state is not None:
            with suppress(ValueError):
                wire.state.idle.remove(wire)

    def _sweep(self) -> None:
        """Close connections that were idle for too long, and plan the next sweep if any are still idle."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._sweeper = None
        idles = [state.idle for state in self._endpoints.states]
        for idle in idles:
            while idle and now - idle[0].idle_since >= self._limits.keep_alive_s:
                idle.popleft().abort()
        starts = [idle[0].idle_since for idle in idles if idle]
        if starts:
            self._sweeper = loop.call_at(min(starts) + self._limits.keep_alive_s, self._sweep)

    async def close(self) -> None:
        """Close every connection, and wait until they are gone."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for waiter in self._waiters:
            waiter.cancel()
        for wire in self._open:
            wire.abort()
        while self._open:  # noqa: ASYNC110  the event loop closes each in one of its next turns
            await asyncio.sleep(0)


def _why(error: OSError) -> str:
    """The reason of *error* in words, also if a certificate was not accepted."""
    if error.errno is not None and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)  # asyncio would say `Connect call failed` and the address, whatever the cause
    return str(getattr(error, "verify_message", "") or error.strerror or error)
