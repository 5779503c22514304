"""The other end of a client's connection, whatever the protocol: who it is, what is written to and held of it."""

import asyncio
import socket
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gateway.certificates import HTTP1
from gateway.config import Limits
from gateway.policy.crossing import UNIX_PEER
from gateway.policy.slowness import Upload
from gateway.sockets import reset_on_close, unacknowledged_bytes

if TYPE_CHECKING:
    from gateway.client.server import Server

UNCOUNTED_BYTES = 4 * 1024
"""A connection that holds no more than this is not counted: the head of an ordinary request, and a small body."""


def client_left() -> ConnectionResetError:
    """The error that reading from a client and writing to it raise when it has left."""
    return ConnectionResetError("the client closed the connection")


class Outgoing(asyncio.Protocol):
    """The writing half of a connection: counts bytes, waits for room, and judges whether the client reads in time.

    Without a transport it behaves as if the client had left.
    """

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        """The transport; None before the connection is open, and when it has ended."""
        self.is_behind = False
        """Whether so much waits to be sent that nothing more should be written before `drain`."""
        self._has_room = asyncio.Event()  # awaited while it is behind
        self._is_lost = False
        self._backlog: Upload | None = None  # of what is written, while the client is behind in reading
        self._taken = 0  # how many bytes the client had taken at the last look, since the connection was opened
        self.cut_reason = ""
        """Why the gateway has cut the connection of a client that does not read; empty if it has not."""
        self.written_bytes = 0
        """How many bytes were given to the connection so far."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write to the client. Raises `ConnectionResetError` when the client left."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise client_left()
        self.written_bytes += len(data)
        transport.write(data)

    async def drain(self) -> None:
        """Wait while too much waits to be sent. Raises `ConnectionError` when the client left."""
        while self.is_behind:
            await self._has_room.wait()
        if self._is_lost:
            raise client_left()

    def pause_writing(self) -> None:
        """See asyncio: too much waits to be sent, and `drain` waits."""
        self.is_behind = True
        self._has_room.clear()

    def resume_writing(self) -> None:
        """See asyncio: the client has taken so much that more may be written."""
        self.is_behind = False
        self._has_room.set()

    def reset(self) -> None:
        """Reset the connection, so that the client sees that its reply is cut off. What waits to be sent is dropped."""
        if self.transport is not None:
            reset_on_close(self.transport)  # also while it is closing, with what is unsent
            self.transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio: the connection is gone, with what waits to be sent."""
        self.transport = None
        self._is_lost = self.is_behind
        self.is_behind = False
        self._has_room.set()

    def is_read_too_slowly(self, now_s: float, limit_s: float) -> bool:
        """Whether the client has been behind in reading for too long; if so, `cut_reason` says why."""
        transport = self.transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if transport is None or not unsent:
            self._backlog = None
            return False
        # acknowledged bytes count: the kernel may take nothing for seconds though the client reads all the time
        taken = self.written_bytes - unsent - unacknowledged_bytes(transport)
        if self._backlog is None:
            self._backlog, self._taken = Upload(), taken
        self._backlog.go_on(taken - self._taken, now_s)
        self._taken = taken
        words = self._backlog.find_slowness(now_s, limit_s)
        if words is None:
            return False
        self.cut_reason = f"the client read its reply too slowly: {words} (limits.client_idle)"
        return True


NOBODY = Outgoing()
"""The `out` of a request that is over, and must not write to its connection any more."""


class Connection(Outgoing, ABC):
    """A connection as the server sees it, of any protocol."""

    protocol = HTTP1
    """The protocol above TLS, by its name in the handshake."""

    def __init__(self, owner: "Server") -> None:
        """Must be made on a running event loop."""
        super().__init__()
        self.owner = owner
        self.peer = "unknown"
        """The client's address, or `UNIX_PEER`."""
        self.scheme = "http"
        """`https` on a connection with TLS, else `http`."""
        self.held_bytes = 0
        """How many unserved bytes the owner has counted for this connection; 0 for nearly all connections."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio; with TLS this is called after the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peername = transport.get_extra_info("peername")
        if isinstance(peername, tuple):
            self.peer = str(peername[0])
        elif transport.get_extra_info("socket").family == socket.AF_UNIX:
            self.peer = UNIX_PEER
        if transport.get_extra_info("sslcontext") is not None:
            self.scheme = "https"
        self.owner.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        self.owner.closed(self)

    def pause_reading(self) -> None:
        """Stop reading for now. asyncio then does not notice when the client leaves, but the next look does."""
        if self.transport is not None:
            self.transport.pause_reading()

    def hold(self, n_bytes: int) -> None:
        """Tell the owner that the connection holds *n_bytes* that were not served yet."""
        if n_bytes <= UNCOUNTED_BYTES:
            n_bytes = 0
        if n_bytes != self.held_bytes and self.transport is not None:
            self.owner.hold_unread(n_bytes - self.held_bytes)
            self.held_bytes = n_bytes

    def time(self) -> float:
        """The clock by which clients are judged: the event loop's."""
        return self.owner.loop.time()

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

    def end_soon(self) -> None:
        """Tell the client to send no more requests, if the protocol has a message for it."""

    @abstractmethod
    def cancel(self) -> "asyncio.Future[Any] | None":
        """Cancel all current requests, and close; the future is done when they have ended. None if there are none."""
