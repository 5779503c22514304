"""The kernel's counters of a backend's connection: whether bytes came too early, and whether a request has left.

For each connection Linux counts the bytes that left this machine, that the backend's kernel has acknowledged, and that
have arrived (`sockets.TcpCounters`). Compared before and after an exchange, they answer questions that no error does.
"""

import socket

from gateway.sockets import ACKED, ESTABLISHED, RECEIVED, SENT, STATE, TcpCounters, Watched


class Witness(Watched):
    """Watches the exchanges of one connection, one after the other."""

    __slots__ = ("_before", "is_unsent", "received_bytes")

    def __init__(self, sock: socket.socket) -> None:
        """*sock* is the connection's socket, and must be open."""
        super().__init__(sock)
        self.received_bytes = 0
        """The bytes read since the connection was opened, without the framing of TLS; the reader counts them here."""
        self.is_unsent = False
        """Whether it is certain, after `end`, that no byte of the request has left this machine."""
        # before any byte of the request left; None once the backend's kernel has acknowledged a part of the request
        self._before: TcpCounters | None = None

    def is_quiet(self) -> bool:
        """Note the counters before a request. Whether nothing has come, neither bytes nor the end of the stream.

        The kernel is asked, because bytes may have arrived since the event loop last looked. With TLS they might be a
        session ticket, but servers send tickets before their first answer.
        """
        self._before = now = self.counters()
        if now is not None and now[RECEIVED] == self.received_bytes and now[STATE] == ESTABLISHED:
            return True  # all that arrived was read; with TLS the counts differ, and the next line decides
        return not self.has_unread()

    def is_too_early(self) -> bool:
        """Whether what came first, bytes or the end of the stream, was sent before the request arrived: no answer.

        An answer acknowledges the bytes of the request that were read. If the kernel has counted no acknowledgement,
        the backend had nothing of the request, as when it sends a 408 to an idle connection.
        """
        if self._before is None:
            return False
        now = self.counters()
        if now is None or now[ACKED] != self._before[ACKED]:
            self._before = None
        return self._before is not None

    def end(self) -> None:
        """Find out whether the request `is_unsent`, before the socket closes."""
        before, after = self._before, self.counters()
        self.is_unsent = before is not None and after is not None and after[SENT] == before[SENT]
