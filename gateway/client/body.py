"""A client's body: let in, invited, read, inflated, or dropped.

Here: everything that reads from a client. Not here: what the bytes mean.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import numpy as np
from aiohttp import web

from gateway.codec import Coding, Inflater, parse_content_encoding
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError
from gateway.exchange import Exchange
from gateway.pacing import Pacer
from gateway.policy.admission import Admission, Reservation

DROP_BYTES = 256 * 1024
DROP_S = 1.0
"""How much of a body is read and dropped after a refusal, and for how long."""


class ClientBody:
    """The body of one request, and the room that is reserved for it."""

    def __init__(
        self, request: web.BaseRequest, exchange: Exchange, admission: Admission, max_bytes: int, pacer: Pacer
    ) -> None:
        """*max_bytes* is `limits.request_body`."""
        self._request = request
        self._exchange = exchange
        self._admission = admission
        self._max_bytes = max_bytes
        self._pacer = pacer
        self._reservation: Reservation | None = None
        self._is_invited = False
        self._answer_bytes = 0

    def admit(self, n_bytes: int) -> Reservation:
        """Reserve room for a body of *n_bytes*, or refuse it before it is read."""
        admission = self._admission
        reservation = self._reservation = admission.admit(n_bytes)
        if reservation is None:
            raise _overloaded(
                f"{admission.requests} of {admission.max_requests} requests and {admission.held_bytes} of "
                f"{admission.max_bytes} bytes are in flight"
            )
        return reservation

    def hold_answer(self, n_bytes: int) -> None:
        """Count the *n_bytes* that the answer has taken so far, and that are held as long as the body."""
        if self._reservation is not None and n_bytes != self._answer_bytes:
            self._reservation.hold(n_bytes - self._answer_bytes)
            self._answer_bytes = n_bytes

    def release(self) -> None:
        """Give back what was reserved."""
        if self._reservation is not None:
            self._reservation.release()

    async def read(self) -> memoryview:
        """The client's body in one buffer, inflated, within `limits.request_body` on the wire and after it."""
        request = self._request
        limit = self._max_bytes
        try:
            coding = parse_content_encoding(",".join(request.headers.getall("Content-Encoding", ())))
        except CodecError as error:
            accepted = {"Accept-Encoding": "gzip, deflate"}
            raise GatewayError(ErrorKind.UNSUPPORTED_ENCODING, str(error), headers=accepted) from error
        length = request.content_length
        if length is not None and length > limit:
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"the body has {length} bytes, limits.request_body is {limit}")
        reservation = self.admit(length if length is not None and coding is None else 0)
        await self.invite()
        if coding is not None:
            return await self._read_inflated(coding, reservation)
        if length is None:
            grown = bytearray()
            async for chunk in self._body_chunks():
                _grow(reservation, chunk)
                grown += chunk
            return memoryview(grown)
        # np.empty leaves the pages alone until they are written; bytearray(n) would clear them all at once
        buffer: memoryview = np.empty(length, np.uint8).data
        received = 0
        async for chunk in self._body_chunks():
            buffer[received : received + len(chunk)] = chunk
            received += len(chunk)
        if received != length:
            raise GatewayError(
                ErrorKind.MALFORMED_REQUEST, f"the body has {received} bytes, Content-Length is {length}"
            )
        return buffer

    async def _read_inflated(self, coding: Coding, reservation: Reservation) -> memoryview:
        limit = self._max_bytes
        inflater = Inflater(coding, limit)
        grown = bytearray()
        try:
            async for chunk in self._body_chunks():
                pieces = inflater.feed(chunk)
                while (piece := await self._pacer.next(pieces)) is not None:
                    _grow(reservation, piece)
                    grown += piece
            inflater.finish()
        except TooLargeError as error:
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"{error} (limits.request_body)") from error
        except CodecError as error:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, str(error)) from error
        return memoryview(grown)

    async def _body_chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, counted."""
        exchange = self._exchange
        limit = self._max_bytes
        try:
            while chunk := await self._request.content.readany():
                exchange.client_request_bytes += len(chunk)
                if exchange.client_request_bytes > limit:
                    raise GatewayError(
                        ErrorKind.BODY_TOO_LARGE, f"the body is larger than limits.request_body, {limit} bytes"
                    )
                yield chunk
        except web.RequestPayloadError as error:
            raise _unsound(error) from error.with_traceback(None)

    async def invite(self) -> None:
        """Answer `Expect: 100-continue`, now that the body is welcome."""
        request = self._request
        if self._waits_for_invitation():
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
            self._is_invited = True

    def _waits_for_invitation(self) -> bool:
        """Whether the client sends its body only after `100 Continue`, which it has not got."""
        request = self._request
        expects = request.headers.get("Expect", "").strip().lower() == "100-continue"
        return expects and request.version >= (1, 1) and not self._is_invited

    async def read_small(self, length: int) -> bytes:
        """A body of *length* bytes that is relayed as it is, and small enough to be held."""
        try:
            text = await self._request.content.readexactly(length)
        except (web.RequestPayloadError, asyncio.IncompleteReadError) as error:
            raise _unsound(error) from error.with_traceback(None)
        self._exchange.client_request_bytes = len(text)
        return text

    def is_left_over(self) -> bool:
        """Whether so much of the body is unread that the connection cannot go on to a next request."""
        if self._request.content.is_eof():
            return False
        left = (self._request.content_length or DROP_BYTES + 1) - self._exchange.client_request_bytes
        return left > DROP_BYTES or self._waits_for_invitation()

    async def drop_rest(self) -> None:
        """Read and drop a bounded rest of a body that nobody wanted, so that the client gets to see the reply.

        What is left after that ends with the connection.
        """
        content = self._request.content
        dropped = 0
        with suppress(TimeoutError, web.RequestPayloadError):
            if not content.is_eof() and not self._waits_for_invitation():
                async with asyncio.timeout(DROP_S):
                    while dropped < DROP_BYTES and (chunk := await content.readany()):
                        dropped += len(chunk)


def _grow(reservation: Reservation, piece: bytes) -> None:
    if not reservation.grow(len(piece)):
        raise _overloaded("no room for more of this body")


def _unsound(error: Exception) -> GatewayError:
    # raised from it without its traceback: aiohttp keeps the error, and would keep the last chunk with it
    return GatewayError(ErrorKind.MALFORMED_REQUEST, f"the body is not sound HTTP: {error}")


def _overloaded(reason: str) -> GatewayError:
    return GatewayError(ErrorKind.OVERLOADED, f"too busy: {reason}; try again", headers={"Retry-After": "1"})
