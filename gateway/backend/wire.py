"""One connection to an endpoint: bytes out, an answer in, and how it ends.

A connection is in one of these states, of which `Wire._answer` and `Wire.transport` tell:

    state        bytes that come                           leaves it
    CONNECTING   none                                      `connection_made`
    IDLE         close it: nobody has asked for them       `begin`
    BUSY         go to the answer (`arriving.State`)       `end`, after which it is IDLE again
    CLOSED       none

From each of them `abort`, `cut`, the end of the backend's stream and errors lead to CLOSED.

Not here: who may use the connection (`connections`), what a request or an answer says (`attempt`), how an answer is
read (`arriving`), and what the kernel tells (`witness`).
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.backend.arriving import MAX_HEAD_BYTES, READ_BYTES, ArrivingAnswer, LostError
from gateway.backend.witness import Witness
from gateway.http1 import Heads
from gateway.sockets import reset_on_close
from gateway.tls import TlsLayer, why_refused

if TYPE_CHECKING:
    from gateway.backend.connections import Pool


class Wire(asyncio.Protocol):
    """A connection for one request at a time.

    `begin` opens an exchange: the request's bytes go out with `send`, the answer is read from what `begin` gives.
    Between exchanges, any byte that comes closes the connection (docs/architecture.md, "Connections to backends").
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: "Callable[[Wire], None]", sock: socket.socket) -> None:
        """*on_lost* is called when the connection is gone. *sock* is connected, and the kernel is asked about it."""
        self._loop = loop
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        """None before the connection is open, and when it is gone."""
        self.closed: asyncio.Future[None] = loop.create_future()
        """Done when the connection is gone."""
        self.pool: Pool | None = None
        """Whose it is, once it was taken for a request."""
        self.idle_since = 0.0
        self.is_reused = False
        self.tls: TlsLayer | None = None
        """Between this and the socket, where the endpoint speaks TLS."""
        self._heads = Heads(loop, MAX_HEAD_BYTES, is_for_requests=False)
        self._witness = Witness(sock)
        self._answer: ArrivingAnswer | None = None  # while an exchange is open
        self._is_discarded = False
        self._is_premature = False  # bytes came in this exchange that the backend sent before it had the request
        self._reset: BaseException | None = None
        self._room: asyncio.Future[None] | None = None  # done when more may be sent; None: it may

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open, with TLS behind the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    # Between exchanges

    def is_usable(self) -> bool:
        """Whether an idle connection can carry another exchange: still open, and nothing has come on it."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return False
        if self.tls is not None and not self.tls.is_at_rest:
            return False  # bytes have left the kernel, and are not decrypted yet
        return self._witness.is_quiet()

    def begin(self, method: str) -> ArrivingAnswer:
        """Open an exchange for a request of *method*; `send_first` must follow at once. The answer will come there."""
        assert self.transport is not None
        self._is_premature = False
        self._witness.begin(is_reused=self.is_reused)
        self._answer = answer = ArrivingAnswer(self._loop, self.transport, self._heads, method)
        if self.tls is None:
            answer.wakes_at_once = True
        return answer

    def end(self) -> bool:
        """Close the exchange; whether another may follow: all is sent, all is read, and nothing more has come.

        Then the connection is idle from now on.
        """
        transport, answer = self.transport, self._answer
        if (
            transport is None
            or answer is None
            or answer.is_last()
            or not answer.is_read
            or self._is_discarded
            or transport.is_closing()
            or transport.get_write_buffer_size()
            or (self.tls is not None and not self.tls.is_at_rest)
        ):
            return False
        self._answer = None
        self.idle_since = self._loop.time()
        self.is_reused = True
        return True

    @property
    def should_close(self) -> bool:
        """Whether the connection can carry no other exchange, as far as is known here."""
        return self._is_discarded or (self._answer is not None and self._answer.is_last())

    # Within an exchange

    @property
    def received_bytes(self) -> int:
        """How much has come in this exchange."""
        return 0 if self._answer is None else self._answer.received_bytes

    def send_first(self, data: bytes) -> None:
        """Hand the request's first bytes to the connection. Raises `LostError`.

        On a used connection it is made sure, as far as that can be, that nothing came before these bytes left.
        """
        if not self.is_reused:
            self.send(data)
            return
        witness = self._witness
        if self.transport is None or witness.has_unread():
            self._discard()
            raise LostError
        self.send(data)
        if self.transport is not None and witness.was_crossed():
            self._is_premature = True
            self._discard()
            raise LostError

    def send(self, data: bytes | bytearray | memoryview) -> None:
        """Hand *data* to the connection; `drain` waits until there is room for more. Raises `LostError`."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise LostError
        # not `writelines`, which buffers without limit in Python 3.12.0 to 3.12.8 and 3.13.0 to 3.13.1 (CVE-2024-12254)
        transport.write(data)

    async def drain(self) -> None:
        """Wait until the backend has taken so much that more may be sent. Raises `LostError`."""
        if self._room is not None:
            await self._room
        if self.transport is None:
            raise LostError

    @property
    def was_reset(self) -> bool:
        """Whether the connection ended otherwise than by the end of the backend's stream.

        With TLS a stream that is not ended by a `close_notify` may have been cut by whoever stands between (RFC 9112
        section 9.8).
        """
        return self._reset is not None or (self.tls is not None and not self.tls.has_ended)

    def data_received(self, data: bytes) -> None:
        """Count, and give it to the answer. Bytes that come while no exchange is open close the connection."""
        answer = self._answer
        if answer is None:
            self._discard()
            return
        if not answer.received_bytes and self._witness.is_too_early():
            self._is_premature = True
            self._discard()
            return
        self._witness.received_bytes += len(data)
        answer.feed(data)

    def eof_received(self) -> None:
        """The backend's stream has ended: its transport closes, for which it would wait until all was sent."""
        transport = self.transport
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()  # a backend that reads no more would hold up its answer, which has come to its end

    def pause_writing(self) -> None:
        """Too much waits to be sent."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """Most of what waited was sent."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def _discard(self) -> None:
        self._is_discarded = True
        if self.transport is not None:
            self.transport.abort()

    # The end

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone; the socket closes when this returns."""
        if self.tls is None:
            self.socket_closes(exc)
        self.transport = None
        if self._answer is not None:
            self._answer.lose()
        self.resume_writing()  # whoever waits for room finds out
        if not self.closed.done():
            self.closed.set_result(None)
        self._on_lost(self)

    def socket_closes(self, exc: BaseException | None) -> None:
        """The socket closes when this returns. With TLS that is before `connection_lost`."""
        self._reset = exc
        if self._answer is None or self.transport is None:
            return
        self._answer.wakes_at_once = False  # the reader shall find the connection closed
        if isinstance(exc, ConnectionError):
            has_ended = self._read_what_has_come(self._answer, self.transport)
            if has_ended and isinstance(exc, BrokenPipeError):  # behind other errors every reading ends like that
                self._reset = None
        self._witness.end()
        if self._witness.is_unsent():
            reset_on_close(self.transport)  # what the kernel holds of the request must not leave any more

    def _read_what_has_come(self, answer: ArrivingAnswer, transport: asyncio.Transport) -> bool:
        """Take what the backend sent before it closed the connection, which asyncio leaves where writing fails.

        Whether the end of its stream was among that: it may have ended its stream before it reset the connection.

        A backend may refuse a large request before it has read all of it, and close: the rest of the request is
        answered by a reset, and the answer is still there to be read. What was sent before the request came is none.
        """
        if not answer.received_bytes and self._witness.is_too_early():
            return False
        descriptor = transport.get_extra_info("socket").fileno()
        left = READ_BYTES
        with contextlib.suppress(OSError):  # nothing more is there, or the reset
            while left > 0:
                data = os.read(descriptor, left)
                if not data:
                    return True
                left -= len(data)
                if self.tls is None:
                    self.data_received(data)
                else:
                    self.tls.decrypt(data)
        return False

    def abort(self) -> None:
        """Close at once. A reader of the answer gets `LostError`."""
        if self._answer is not None:
            self._answer.cut()
        if self.transport is not None:
            self.transport.abort()

    def cut(self) -> None:
        """Close at once: the backend gets nothing more of what was sent, and learns that by a reset."""
        if self.transport is not None:
            reset_on_close(self.transport)
        self.abort()

    def why_certificate_was_refused(self, where: str) -> str | None:
        """In words why the backend refused the gateway's certificate on a new connection; None if it did not.

        *where* is the path of the TLS settings. Then it has read nothing of the request, see `tls.why_refused`.
        """
        if self.tls is None or self.is_reused or self.received_bytes or self.tls.version != "TLSv1.3":
            return None
        return why_refused(self._reset, where)

    def was_surely_not_read(self) -> bool:
        """Whether it is certain that the backend read nothing of this exchange's request.

        See docs/architecture.md, "Connections to backends".

        So it is only if none of its bytes left this machine. Once one has, nothing that is seen here is a proof: a
        reset may have overtaken the acknowledgement of what was read. Nor is the end of the stream without an
        acknowledgement one: a server that ends its side alone goes on reading, and on a network with latency its
        acknowledgement comes after the end that it sent before.
        """
        return not self.received_bytes and not self._is_premature and self._witness.is_unsent()
