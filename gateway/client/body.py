"""A client's body: admitted, invited, read, inflated, or dropped.

Here: everything that reads from a client. Not here: what the bytes mean, and how aiohttp delivers them (`server`).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import numpy as np

from gateway.client.request import ClientRequest
from gateway.codec import Coding, Inflater, parse_content_encoding
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError
from gateway.exchange import Exchange
from gateway.pacing import Pacer
from gateway.policy.admission import Admission, Reservation

DROP_BYTES = 256 * 1024
DROP_S = 1.0
"""How much of a refused body is read and dropped, and for how long, so that the client gets to see the reply."""


class ClientBody:
    """The body of one request, and the memory that is reserved for it."""

    __slots__ = (
        "_admission",
        "_answer_bytes",
        "_coding",
        "_connection",
        "_exchange",
        "_is_invited",
        "_max_bytes",
        "_pacer",
        "_request",
        "_reservation",
    )

    def __init__(
        self, request: ClientRequest, exchange: Exchange, admission: Admission, max_bytes: int, pacer: Pacer
    ) -> None:
        """*max_bytes* is `limits.request_body`."""
        self._request = request
        self._connection = request.connection
        self._exchange = exchange
        self._admission = admission
        self._max_bytes = int(max_bytes)  # a `config.Size` would print its unit in messages that say "bytes"
        self._pacer = pacer
        self._reservation: Reservation | None = None
        self._coding: Coding | None = None
        self._is_invited = False
        self._answer_bytes = 0

    def admit(self, n_bytes: int) -> None:
        """Reserve memory for a body of *n_bytes* before it is read. Raises `GatewayError` (OVERLOADED) without room."""
        admission = self._admission
        self._reservation = admission.admit(n_bytes)
        if self._reservation is None:
            raise _overloaded(
                f"a request that needs {n_bytes} bytes has no room beside {admission.requests} of "
                f"{admission.max_requests} requests (limits.concurrent_requests) and {_held(admission)} in flight"
            )

    def reserve(self, n_bytes: int) -> None:
        """Reserve *n_bytes* more, for a part of the body whose size was unknown or for what its parsed header takes.

        Raises `GatewayError` (OVERLOADED) when there is no room.
        """
        if self._reservation is None:
            self.admit(n_bytes)
        elif not self._reservation.grow(n_bytes):
            raise _overloaded(
                f"{n_bytes} more bytes of this request have no room beside {_held(self._admission)} in flight"
            )

    def hold_answer(self, n_bytes: int) -> None:
        """Count the *n_bytes* that the answer has filled so far; they are held as long as the body."""
        if self._reservation is not None and n_bytes != self._answer_bytes:
            self._reservation.hold(n_bytes - self._answer_bytes)
            self._answer_bytes = n_bytes

    def release(self) -> None:
        """Give back everything that was reserved."""
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def read_arrived(self) -> memoryview | None:
        """Admit the body, and read it if all of it has arrived; None if it is to be read with `read_rest`.

        That is where one that is compressed, or whose length is unknown, is always read. Raises `GatewayError`.
        """
        request = self._request
        first = request.headers.first
        if "content-encoding" in first:
            self._coding = self._parse_coding()
        length = request.content_length
        if length is not None and length > self._max_bytes:
            raise self._too_large(length)
        is_plain = length is not None and self._coding is None
        self.admit(length if length is not None and is_plain else 0)
        if "expect" in first:
            self.invite()
        if not is_plain or not self._connection.has_arrived:
            return None
        whole = self._connection.read_arrived()
        self._exchange.client_request_bytes = len(whole)
        return memoryview(whole)

    async def read(self) -> memoryview:
        """The whole body, as `read_arrived` or else `read_rest` gives it. Raises `GatewayError`."""
        body = self.read_arrived()
        return await self.read_rest() if body is None else body

    def check_length(self) -> None:
        """Raise `GatewayError` if the body is known by now to be larger than `limits.request_body`."""
        length, received = self._request.content_length, self._exchange.client_request_bytes
        if length is not None and length > self._max_bytes:
            raise self._too_large(length)
        if received > self._max_bytes:
            raise GatewayError(
                ErrorKind.BODY_TOO_LARGE, f"the body is larger than limits.request_body, {self._max_bytes} bytes"
            )

    def _too_large(self, length: int) -> GatewayError:
        words = f"the body has {length} bytes, limits.request_body is {self._max_bytes}"
        return GatewayError(ErrorKind.BODY_TOO_LARGE, words)

    async def read_rest(self) -> memoryview:
        """The body in one buffer, inflated, within `limits.request_body` on the wire and after inflating.

        To be called where `read_arrived` gave None. Raises `GatewayError`.
        """
        if self._coding is not None:
            return await self._read_inflated(self._coding)
        length = self._request.content_length
        if length is None:
            grown = bytearray()
            async for chunk in self._limited_chunks():
                self.reserve(len(chunk))
                grown += chunk
            return memoryview(grown)
        # np.empty does not touch the pages before they are filled; bytearray(n) would clear all of them at once
        buffer: memoryview = np.empty(length, np.uint8).data
        received = 0
        async for chunk in self.chunks():
            buffer[received : received + len(chunk)] = chunk
            received += len(chunk)
        if received != length:
            raise GatewayError(
                ErrorKind.MALFORMED_REQUEST, f"the body has {received} bytes, Content-Length is {length}"
            )
        return buffer

    def _parse_coding(self) -> Coding | None:
        """The coding of the body. Raises `GatewayError` for one that is not supported (protocol 7)."""
        try:
            return parse_content_encoding(self._request.headers.joined("content-encoding"))
        except CodecError as error:
            accepted = [("Accept-Encoding", "gzip, deflate")]
            raise GatewayError(ErrorKind.UNSUPPORTED_ENCODING, str(error), headers=accepted) from error

    async def _read_inflated(self, coding: Coding) -> memoryview:
        inflater = Inflater(coding, self._max_bytes)
        grown = bytearray()
        try:
            async for chunk in self._limited_chunks():
                pieces = inflater.feed(chunk)
                while (piece := await self._pacer.next(pieces)) is not None:
                    self.reserve(len(piece))
                    grown += piece
            inflater.finish()
        except TooLargeError as error:
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"{error} (limits.request_body)") from error
        except CodecError as error:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, str(error)) from error
        return memoryview(grown)

    async def _limited_chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, on the wire no longer than `limits.request_body`."""
        async for chunk in self.chunks():
            self.check_length()
            yield chunk

    async def read_first(self, n_bytes: int) -> bytes:
        """Of a body that is relayed: wait until *n_bytes* or all of it have arrived, and read what is there.

        That may be more than *n_bytes*: aiohttp stops reading from a client when more than 512 KiB of its body wait,
        and the last read from the socket may have brought up to 256 KiB. Raises as `chunks` does.
        """
        exchange = self._exchange
        first = await self._connection.read()
        exchange.client_request_bytes += len(first)
        if len(first) >= n_bytes or self.at_end:
            return first
        pieces = [first]
        left = n_bytes - len(first)
        while left > 0 and (chunk := await self._connection.read()):
            exchange.client_request_bytes += len(chunk)
            pieces.append(chunk)
            left -= len(chunk)
        return b"".join(pieces)

    @property
    def at_end(self) -> bool:
        """Whether everything has arrived and was read."""
        return self._connection.is_read

    async def chunks(self) -> AsyncIterator[bytes]:
        """The rest of the body as it arrives, counted; others run in between, also while all of it is there.

        Raises as `Connection.read` does.
        """
        exchange = self._exchange
        while chunk := await self._connection.read():
            exchange.client_request_bytes += len(chunk)
            yield chunk
            if self.at_end:
                return
            await self._pacer.breathe()

    def invite(self) -> None:
        """Answer `Expect: 100-continue`, once, now that the body is welcome."""
        if self._waits_for_invitation():
            self._connection.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._is_invited = True

    def _waits_for_invitation(self) -> bool:
        """Whether the client sends its body only after `100 Continue`, which it was not sent."""
        request = self._request
        expects = request.headers.get("expect").strip().lower() == "100-continue"
        return expects and request.version >= (1, 1) and not self._is_invited

    def is_left_over(self) -> bool:
        """Whether so much of the body is unread that the connection cannot go on to a next request."""
        if self._connection.has_arrived:
            return False
        left = (self._request.content_length or DROP_BYTES + 1) - self._exchange.client_request_bytes
        return left > DROP_BYTES or self._waits_for_invitation()

    async def drop_rest(self) -> None:
        """Read and drop a bounded rest of a body that was refused, so that the client gets to see the reply.

        What is left after that ends with the connection.
        """
        connection = self._connection
        if connection.has_arrived or connection.is_closing or self._waits_for_invitation():
            return
        dropped = 0
        with suppress(TimeoutError, GatewayError):
            async with asyncio.timeout(DROP_S):
                while dropped < DROP_BYTES and (chunk := await connection.read()):
                    dropped += len(chunk)


def _held(admission: Admission) -> str:
    return f"{admission.held_bytes} of {int(admission.max_bytes)} bytes (limits.in_flight_bytes)"


def _overloaded(reason: str) -> GatewayError:
    return GatewayError(ErrorKind.OVERLOADED, f"too busy: {reason}; try again", headers=[("Retry-After", "1")])
