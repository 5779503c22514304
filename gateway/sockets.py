"""Questions to the kernel about a connection's socket, and a socket option, that asyncio does not offer.

These are unread bytes, hang-ups, resets and Linux's TCP counters. Not here: their meaning for a request or a reply
(`client`, `backend`).
"""

import asyncio
import fcntl
import select
import socket
import struct
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from functools import partial

_HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR
_RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: on, for 0 seconds

# Linux's struct tcp_info: u8 tcpi_state at 0, u64 tcpi_bytes_acked at 120, tcpi_bytes_received behind it, and
# tcpi_bytes_sent at 200 (kernel 4.19 and later).
_COUNTERS = struct.Struct("=B119xQQ64xQ")
_TCP_INFO = getattr(socket, "TCP_INFO", 0)  # 0 is no option of TCP, so that asking for it fails

TcpCounters = tuple[int, int, int, int]
"""The kernel's state of a connection, and three counts since it was opened: bytes that the other side's kernel has
acknowledged; bytes that have arrived, read or not; and bytes that left this machine, repeats included."""

STATE, ACKED, RECEIVED, SENT = range(4)
"""The places of the state and the counts in `TcpCounters`."""

ESTABLISHED = 1
"""The state of a connection that neither side has ended."""


class Watched:
    """The socket of one connection, prepared to be asked many times; must not be used once the socket is closed."""

    __slots__ = ("_getsockopt", "has_unread")

    def __init__(self, sock: socket.socket) -> None:
        self._getsockopt: Callable[..., bytes] = sock.getsockopt
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLIN)
        self.has_unread: Callable[[], object] = partial(poll.poll, 0)
        """Returns something true if bytes, or the end of the stream, have arrived and were not read yet."""

    def counters(self) -> TcpCounters | None:
        """The kernel's counters; None if this kernel does not have them."""
        try:
            return _COUNTERS.unpack(self._getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _COUNTERS.size))
        except (OSError, struct.error):  # another system does not have the option, an old kernel too few bytes of it
            return None


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Whether bytes, or the end of the stream, have arrived and were not read yet; also if the socket is closed."""
    return _shows(transport, select.POLLIN)


def hung_up(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side has closed the connection or its sending side; also if the socket is closed."""
    return _shows(transport, _HUNG_UP)


def _shows(transport: asyncio.BaseTransport, events: int) -> bool:
    poll = select.poll()
    try:
        poll.register(transport.get_extra_info("socket").fileno(), events)
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return True


def unacknowledged_bytes(transport: asyncio.BaseTransport) -> int:
    """How many bytes given to the kernel the other side has not acknowledged; 0 if the kernel does not say."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.fileno() < 0:
        return 0
    with suppress(OSError):
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0


def reset_on_close(transport: asyncio.BaseTransport) -> None:
    """Make the socket's close send a reset and drop unsent bytes; does nothing if the socket is closed."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
