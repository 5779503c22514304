"""The kernel's counters of a backend's connection: whether bytes came too early, and whether a request has left.

For each connection Linux counts the bytes that left this machine, that the backend's kernel has acknowledged, and that
have arrived (`sockets.TcpCounters`). Compared before and after an exchange, they answer questions that no error does.

Not here: the consequences for a request (`attempt`), and the socket's options and calls (`sockets`).
"""

import socket

from gateway.sockets import ACKED, ESTABLISHED, RECEIVED, SENT, STATE, TcpCounters, Watched


class Witness(Watched):
    """Watches the exchanges of one connection, one after the other."""

    __slots__ = ("_before", "_is_acknowledged", "is_unsent", "received_bytes")

    def __init__(self, sock: socket.socket) -> None:
        """*sock* is the connection's socket, and must be open."""
        super().__init__(sock)
        self.received_bytes = 0
        """The bytes read since the connection was opened, without the framing of TLS; the reader counts them here."""
        self.is_unsent = False
        """Whether it is certain, after `end`, that no byte of the request has left this machine."""
        self._before: TcpCounters | None = None  # before any byte of the request left
        self._is_acknowledged = False  # whether `was_crossed` has seen an acknowledgement of the request

    def is_quiet(self) -> bool:
        """Note the counters before a request. Whether nothing has come, neither bytes nor the end of the stream.

        The kernel is asked, because bytes may have arrived since the event loop last looked. With TLS they might be a
        session ticket, but servers send tickets before their first answer.
        """
        self.is_unsent = False
        self._is_acknowledged = False
        self._before = now = self.counters()
        if now is not None and now[RECEIVED] == self.received_bytes and now[STATE] == ESTABLISHED:
            return True  # all that arrived was read; with TLS the counts differ, and the next line decides
        return not self.has_unread()

    def was_crossed(self) -> bool:
        """Whether the bytes that came while the request left cannot be an answer: they acknowledge nothing of it.

        To be called if there are any when the first bytes were handed to the kernel.
        """
        if self._before is None:
            return False
        now = self.counters()
        if now is None or now[RECEIVED] == self._before[RECEIVED]:
            return False
        self._is_acknowledged = now[ACKED] != self._before[ACKED]
        return not self._is_acknowledged

    def is_too_early(self) -> bool:
        """Whether the first bytes that came cannot be an answer: the backend had nothing of the request by then.

        An answer acknowledges the bytes of the request that were read. If the kernel has counted no acknowledgement,
        the bytes were sent before the request arrived, as a 408 to an idle connection is.
        """
        if self._before is None or self._is_acknowledged:
            return False
        now = self.counters()
        return now is not None and now[ACKED] == self._before[ACKED]

    def end(self) -> None:
        """Find out whether the request `is_unsent`, before the socket closes."""
        before, after = self._before, self.counters()
        self.is_unsent = before is not None and after is not None and after[SENT] == before[SENT]
