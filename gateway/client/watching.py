"""What connections of clients have in common, whatever their protocol, and the timers that all of them share.

One timer is for slow clients, and one for clients that leave while they are not read; their connections are aborted
here. Not here: when a client is too slow (`policy.slowness`).
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateway.client.outgoing import Outgoing
from gateway.client.request import Peer, peer_of
from gateway.config import Limits
from gateway.sockets import hung_up

if TYPE_CHECKING:
    from gateway.client.server import Server

LOOK_S = 1.0
"""How often each connection is looked at. A limit takes effect this much late at most, or a quarter of the limit."""

LOOK_AT_ONCE = 128
"""How many connections are looked at before others run: 0.3 ms at most, since each look costs 0.3 to 2.3 us."""

GONE_CHECK_S = 1.0
"""How often the gateway looks whether clients from which it does not read at the moment have left."""

UNCOUNTED_BYTES = 4 * 1024
"""A connection that holds no more than this is not counted: the head of an ordinary request, and a small body."""

log = logging.getLogger("gateway")


class Connection(asyncio.Protocol, ABC):
    """A connection as the server sees it, of any protocol."""

    def __init__(self, owner: "Server") -> None:
        """Must be made on a running event loop."""
        self.owner = owner
        self.transport: asyncio.Transport | None = None
        """The transport; None before the connection is open, and when it has ended."""
        self.peer = Peer("unknown", "http")
        self.out = Outgoing()
        self.held_bytes = 0
        """How many unserved bytes the owner has counted for this connection; 0 for nearly all connections."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio; with TLS this is called after the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.out.open(transport)
        self.peer = peer_of(transport)
        self.owner.opened(self)

    def pause_writing(self) -> None:
        """See asyncio."""
        self.out.is_behind = True

    def resume_writing(self) -> None:
        """See asyncio."""
        self.out.go_on()

    def pause_reading(self) -> None:
        """Stop reading for now. asyncio then does not notice when the client leaves, but `GoneCheck` does."""
        transport = self.transport
        if transport is not None and transport.is_reading():
            transport.pause_reading()
            self.owner.gone_check.watch(self)

    def hold(self, n_bytes: int) -> None:
        """Tell the owner that the connection holds *n_bytes* that were not served yet."""
        if n_bytes <= UNCOUNTED_BYTES:
            n_bytes = 0
        if n_bytes != self.held_bytes and self.transport is not None:
            self.owner.hold_unread(n_bytes - self.held_bytes)
            self.held_bytes = n_bytes

    def time(self) -> float:
        """The clock by which clients are judged, see `Watcher.time`."""
        return self.owner.watcher.time()

    @property
    @abstractmethod
    def is_in_head(self) -> bool:
        """Whether a part of a request's head has come, which is not served yet."""

    @property
    @abstractmethod
    def is_silent(self) -> bool:
        """Whether nothing has come yet."""

    @abstractmethod
    def look(self, now_s: float, limits: Limits) -> None:
        """End the connection if the client is too slow for *limits* (docs/configuration.md, "Limits")."""

    def drain(self) -> None:
        """Tell the client to send no more requests, if the protocol has a message for it."""

    @abstractmethod
    def end(self) -> None:
        """Serve no other request: close the connection now if it is idle, else behind the reply."""

    @abstractmethod
    def cancel(self) -> "asyncio.Future[Any] | None":
        """Cancel all current requests; the future is done when they have ended. None if there are none."""


class Watcher:
    """Looks at every connection once per `LOOK_S`, without a task or timer of its own for any of them.

    A limit of seconds needs no more than a look per second, and requests cost nothing here. A timer that is set and
    cancelled for each phase of each request would cost more than the codec takes for a small tensor.
    """

    def __init__(self, limits: Callable[[], Limits]) -> None:
        """*limits* returns the current limits. Must be made on a running event loop."""
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._watched: set[Connection] = set()
        self._left: list[Connection] = []
        self._next: asyncio.Handle | None = None
        self._due_s = 0.0
        self._lost_s = 0.0

    def time(self) -> float:
        """The clock by which clients are judged: the event loop's, without the time in which the loop stood still.

        Bytes that clients sent meanwhile wait in the kernel. The loop stands still if the process is stopped or gets no
        processor; this is measured by how late a look comes.
        """
        return self._loop.time() - self._lost_s

    @property
    def is_at_work(self) -> bool:
        """Whether another look is planned: as long as there are connections."""
        return self._next is not None

    def watch(self, connection: Connection) -> None:
        """Look at *connection* from now on."""
        self._watched.add(connection)
        if self._next is None:
            self._plan()

    def unwatch(self, connection: Connection) -> None:
        """*connection* has ended."""
        self._watched.discard(connection)

    def _plan(self) -> None:
        limits = self._limits()
        shortest_s = min(limits.header_timeout, limits.body_timeout, limits.client_idle, limits.client_keep_alive)
        self._due_s = self._loop.time() + min(LOOK_S, shortest_s / 4)
        self._next = self._loop.call_at(self._due_s, self._begin)

    def _begin(self) -> None:
        self._lost_s += max(0.0, self._loop.time() - self._due_s)
        self._left = list(self._watched)
        if self._left:
            self._go_on()
        else:
            self._next = None

    def _go_on(self) -> None:
        """Look at the next `LOOK_AT_ONCE` connections."""
        left = self._left
        limits = self._limits()
        now_s = self.time()
        for _ in range(min(LOOK_AT_ONCE, len(left))):
            connection = left.pop()
            try:
                connection.look(now_s, limits)
            except Exception:  # must not end the looks at all other connections
                log.exception("a connection could not be checked for a slow client")
        if left:
            self._next = self._loop.call_soon(self._go_on)
        else:
            self._plan()


class GoneCheck:
    """Aborts connections that are not read and whose client has left; this cancels the handler (protocol 10, case 25).

    asyncio does not watch a connection that is not read. Without this check the call to the backend would go on until
    it ends or times out.
    """

    def __init__(self) -> None:
        """Must be made on a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._unread: set[Connection] = set()
        self._next: asyncio.TimerHandle | None = None

    @property
    def is_at_work(self) -> bool:
        """Whether another look is planned: as long as there are connections that are not read."""
        return self._next is not None

    def watch(self, connection: Connection) -> None:
        """Check *connection*, which is not read from now on, every `GONE_CHECK_S`."""
        self._unread.add(connection)
        if self._next is None:
            self._next = self._loop.call_later(GONE_CHECK_S, self._abort_gone)

    def unwatch(self, connection: Connection) -> None:
        """Stop checking *connection*, because it is read again or has ended."""
        self._unread.discard(connection)

    def _abort_gone(self) -> None:
        self._next = None
        if not self._unread:
            return
        transports = [connection.transport for connection in self._unread]
        for transport in hung_up(each for each in transports if each is not None and not each.is_closing()):
            transport.abort()
        self._next = self._loop.call_later(GONE_CHECK_S, self._abort_gone)
