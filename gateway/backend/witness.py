"""What the kernel tells of a backend's connection: whether bytes have come too early, and whether a request has left.

Linux counts, for each connection, what left this machine, what the backend's kernel has acknowledged and what has
arrived (`sockets.TcpCounters`). Compared before and after an exchange, these counters show what no error shows.

Not here: what follows from it for a request (`attempt`), and the socket's options and calls (`sockets`).
"""

import socket

from gateway.sockets import ACKED, ESTABLISHED, RECEIVED, SENT, STATE, TcpCounters, Watched


class Witness:
    """Watches the exchanges of one connection, one after the other."""

    __slots__ = ("_after", "_before", "_is_acknowledged", "_socket", "has_unread", "received_bytes")

    def __init__(self, sock: socket.socket) -> None:
        """*sock* is that of the connection, and open."""
        self._socket = Watched(sock)
        self.has_unread = self._socket.has_unread
        """What it gives is true if bytes, or the end of the stream, have arrived and were not read yet."""
        self.received_bytes = 0
        """Since the connection was opened, without the framing of TLS; whoever reads them counts them."""
        self._before: TcpCounters | None = None  # any byte of the request left
        self._after: TcpCounters | None = None  # the connection ended
        self._is_acknowledged = False  # some of the request, as far as was asked

    def is_quiet(self) -> bool:
        """Whether nothing has come on an idle connection, neither bytes nor the end of the stream.

        The kernel is asked, because what has arrived since the event loop last looked is not known here yet. With TLS
        that may be a session ticket, but servers send these before their first answer.
        """
        self._before = now = self._socket.counters()
        if now is not None and now[RECEIVED] == self.received_bytes and now[STATE] == ESTABLISHED:
            return True  # all that has arrived was read; with TLS, where that counts otherwise, the next line tells
        return not self.has_unread()

    def begin(self, *, is_reused: bool) -> None:
        """A request follows; on a connection that *is_reused*, `is_quiet` was asked at this moment."""
        self._after = None
        self._is_acknowledged = False
        if not is_reused:
            self._before = self._socket.counters()

    def was_crossed(self) -> bool:
        """Whether bytes have arrived while the request left, and are no answer: that would acknowledge the request.

        To be asked when the first bytes were handed to the kernel.
        """
        if self._before is None or not self.has_unread():
            return False
        now = self._socket.counters()
        if now is None or now[RECEIVED] == self._before[RECEIVED]:
            return False
        self._is_acknowledged = now[ACKED] != self._before[ACKED]
        return not self._is_acknowledged

    def is_too_early(self) -> bool:
        """Whether the first bytes that came cannot be an answer: the backend had nothing of the request by then.

        An answer acknowledges what was read of the request. Where the kernel has counted no acknowledgement, these
        bytes were sent before the request arrived, such as the 408 of a server that tires of an idle connection.
        """
        if self._before is None or self._is_acknowledged:
            return False
        now = self._socket.counters()
        return now is not None and now[ACKED] == self._before[ACKED]

    def end(self) -> None:
        """The socket closes when this returns."""
        self._after = self._socket.counters()

    def is_unsent(self) -> bool:
        """Whether it is certain, after `end`, that no byte of the request has left this machine."""
        return self._before is not None and self._after is not None and self._after[SENT] == self._before[SENT]
