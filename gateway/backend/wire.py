"""One connection to an endpoint: bytes out, an answer in, and how it ends.

A connection is in one of these states, which follow from `Wire.answer` and `Wire.transport`:

    state        bytes that come                           leaves it
    CONNECTING   none                                      `connection_made`
    IDLE         close it: nobody has asked for them       `begin`
    BUSY         go to the answer                          `end`, after which it is IDLE again
    CLOSED       none

From each state `abort`, `cut`, the end of the backend's stream and errors lead to CLOSED.
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
    from gateway.backend.endpoints import Endpoint, EndpointState


class Wire(asyncio.Protocol):
    """A connection for one request at a time.

    `begin` opens an exchange with the request's first bytes; the others go out with `send`, and `answer` comes in.
    Any byte between two exchanges closes the connection (docs/architecture.md, "Connections to backends").
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: "Endpoint",
        on_lost: "Callable[[Wire], None]",
        sock: socket.socket,
    ) -> None:
        """*on_lost* is called when the connection is gone. *sock* must be connected; its kernel counters are read."""
        self._loop = loop
        self.endpoint = endpoint
        self._on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        """The transport; None before the connection is open, and when it is gone."""
        self.state: EndpointState | None = None
        """The endpoint's state, set when the connection is taken for a request."""
        self.answer: ArrivingAnswer | None = None
        """The answer of the exchange that is open."""
        self.idle_since = 0.0
        self.is_reused = False
        self.tls: TlsLayer | None = None
        """The TLS between this protocol and the socket; None if the endpoint does not speak TLS."""
        self._heads = Heads(loop, MAX_HEAD_BYTES, is_for_requests=False)
        self._witness = Witness(sock)
        self._reset: BaseException | None = None
        self._room: asyncio.Future[None] | None = None  # done when more may be sent; None: it may

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio; with TLS this is called after the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    # Between exchanges

    def begin(self, method: str, first_bytes: bytes) -> bool:
        """Open an exchange for a request of *method*, and send its *first_bytes*; `answer` is its answer from then on.

        False if this is a used connection that has ended, or on which bytes have come: it carries no other request. The
        kernel is asked immediately before the bytes leave, and again behind them.
        """
        transport, tls, witness = self.transport, self.tls, self._witness
        assert transport is not None
        answer = ArrivingAnswer(self._loop, transport, self._heads, method, at_once=tls is None)
        is_at_rest = tls is None or tls.is_at_rest  # if not, bytes have left the kernel, and are not decrypted yet
        if not (witness.is_quiet() and is_at_rest and not transport.is_closing()) and self.is_reused:
            return False
        self.answer = answer
        transport.write(first_bytes)
        if self.is_reused and witness.has_unread() and witness.is_too_early():
            transport.abort()
        return True

    def end(self) -> bool:
        """Close the exchange. True if another may follow: all is sent, all is read, and no more bytes have come.

        The connection is idle from then on.
        """
        transport, answer, tls = self.transport, self.answer, self.tls
        is_open = transport is not None and not (transport.is_closing() or transport.get_write_buffer_size())
        has_ended = answer is not None and answer.is_read and not (answer.is_last or answer.has_surplus)
        if not (is_open and has_ended and (tls is None or tls.is_at_rest)):
            return False
        self.answer = None
        self.idle_since = self._loop.time()
        self.is_reused = True
        return True

    # Within an exchange

    @property
    def received_bytes(self) -> int:
        """How many bytes have come in this exchange."""
        return 0 if self.answer is None else self.answer.received_bytes

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

    def data_received(self, data: bytes) -> None:
        """Give *data* to the answer. Bytes that cannot be a part of it close the connection."""
        answer, witness = self.answer, self._witness
        if answer is None or (not answer.received_bytes and witness.is_too_early()):
            if self.transport is not None:
                self.transport.abort()
            return
        witness.received_bytes += len(data)
        answer.feed(data)

    def eof_received(self) -> None:
        """See asyncio: the transport closes by itself, but only after all bytes were sent; here it need not wait."""
        transport = self.transport
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()  # a backend that does not read any more would delay the end of its answer

    def pause_writing(self) -> None:
        """See asyncio: too many bytes wait to be sent."""
        self._room = self._loop.create_future()

    def resume_writing(self) -> None:
        """See asyncio: most of the waiting bytes were sent."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    # The end

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone; the socket closes when this returns."""
        if self.tls is None:
            self.socket_closes(exc)
        self.transport = None
        if self.answer is not None:
            # with TLS a stream that ends without `close_notify` may have been cut in between (RFC 9112 section 9.8)
            self.answer.lose(was_reset=self._reset is not None or (self.tls is not None and not self.tls.has_ended))
        self.resume_writing()  # a `drain` that waits for room raises `LostError` now
        self._on_lost(self)

    def socket_closes(self, exc: BaseException | None) -> None:
        """Called before the socket closes, and with TLS before `connection_lost`: the last look at the kernel."""
        self._reset = exc
        if self.answer is None or self.transport is None:
            return
        self.answer.wakes_at_once = False  # the reader goes on after the connection is closed
        if isinstance(exc, ConnectionError):
            has_ended = self._read_what_has_come(self.answer, self.transport)
            if has_ended and isinstance(exc, BrokenPipeError):  # after any other error a read returns nothing, too
                self._reset = None
        self._witness.end()
        if self._witness.is_unsent:
            reset_on_close(self.transport)  # bytes of the request in the kernel must not leave any more

    def _read_what_has_come(self, answer: ArrivingAnswer, transport: asyncio.Transport) -> bool:
        """Read the bytes that the backend sent before it closed; asyncio does not read them if writing fails.

        True if they ended with the end of the stream: a backend may end its stream before it resets the connection.

        A backend may refuse a large request before it has read all of it, and close. The rest of the request then
        causes a reset, but the answer can still be read. Bytes sent before the request arrived are no answer.
        """
        if not answer.received_bytes and self._witness.is_too_early():
            return False
        descriptor = transport.get_extra_info("socket").fileno()
        left = READ_BYTES
        with contextlib.suppress(OSError):  # no more bytes, or the reset
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
        if self.answer is not None:
            self.answer.cut()
        if self.transport is not None:
            self.transport.abort()

    def cut(self) -> None:
        """Close at once with a reset: the backend gets no more of the bytes that were sent."""
        if self.transport is not None:
            reset_on_close(self.transport)
        self.abort()

    def why_certificate_was_refused(self) -> str | None:
        """Why the backend refused the gateway's certificate on a new connection, in words; None if it did not.

        The backend has read nothing of the request, see `tls.why_refused`.
        """
        settings = self.endpoint.tls
        if settings is None or self.tls is None or self.is_reused or self.received_bytes:
            return None
        return why_refused(self._reset, settings.where) if self.tls.version == "TLSv1.3" else None

    def was_surely_not_read(self) -> bool:
        """Whether it is certain that the backend read nothing of this exchange's request.

        It is certain only if no byte of the request left this machine. Once a byte has left, nothing here proves it: a
        reset may have overtaken the acknowledgement of bytes that were read. The end of the stream without an
        acknowledgement is no proof, either: a server that has ended only its own side goes on reading, and on a network
        with latency its acknowledgement comes after that end.
        """
        return not self.received_bytes and self._witness.is_unsent
