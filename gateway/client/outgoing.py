"""The writing half of a client's connection. Not here: making replies (`reply`), and reading (`connection`)."""

import asyncio

from gateway.policy.slowness import Backlog
from gateway.sockets import reset_on_close, unacknowledged_bytes
from gateway.waiting import Waiter


def client_left() -> ConnectionResetError:
    """The error that reading from a client and writing to it raise when it has left."""
    return ConnectionResetError("the client closed the connection")


class Outgoing:
    """The writing half of a connection: counts bytes, waits for room, and judges whether the client reads in time.

    Without `open` it behaves as if the client had left.
    """

    __slots__ = ("_backlog", "_transport", "_waiters", "cut_reason", "is_behind", "written_bytes")

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiters: list[Waiter] = []  # of `drain`, which several streams of HTTP/2 may wait in
        self._backlog: Backlog | None = None  # while the client is behind in reading
        self.cut_reason = ""
        """Why the gateway has cut the connection of a client that does not read; empty if it has not."""
        self.is_behind = False
        """Whether so much waits to be sent that nothing more should be written before `drain`."""
        self.written_bytes = 0
        """How many bytes were given to the connection so far."""

    def open(self, transport: asyncio.Transport) -> None:
        """The connection is open."""
        self._transport = transport

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self._transport is None or self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write to the client. Raises `ConnectionResetError` when the client left."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise client_left()
        self.written_bytes += len(data)
        transport.write(data)

    async def drain(self) -> None:
        """Wait while too much waits to be sent. Raises `ConnectionError` when the client left."""
        while self.is_behind:
            if self._transport is None:
                raise client_left()
            waiter = Waiter(asyncio.get_running_loop())
            self._waiters.append(waiter)
            await waiter

    def go_on(self) -> None:
        """Let `drain` return, because the client has taken so much that more may be written."""
        self.is_behind = False
        self._wake()

    def reset(self) -> None:
        """End the connection with a reset, so that the client sees that its reply is incomplete.

        Bytes that wait to be sent are dropped.
        """
        if self._transport is not None:
            reset_on_close(self._transport)  # also while it is closing, with what is unsent
            self._transport.abort()

    def close(self) -> None:
        """The connection is gone."""
        self._transport = None
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake_soon()

    def is_read_too_slowly(self, now_s: float, limit_s: float) -> bool:
        """Whether the client has been behind in reading for too long; if so, `cut_reason` says why."""
        transport = self._transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if transport is None or not unsent:
            self._backlog = None
            return False
        # acknowledged bytes count: the kernel may take nothing for seconds though the client reads all the time
        taken = self.written_bytes - unsent - unacknowledged_bytes(transport)
        if self._backlog is None:
            self._backlog = Backlog(taken, now_s)
            return False
        words = self._backlog.find_slowness(taken, now_s, limit_s)
        if words is None:
            return False
        self.cut_reason = f"the client read its reply too slowly: {words} (limits.client_idle)"
        return True


NOBODY = Outgoing()
"""The `out` of a request that is over, and must not write to its connection any more."""
