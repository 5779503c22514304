"""A client's body: admitted, read, inflated.

Everything that reads a body from a client is here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np

from gateway.client.request import ClientRequest, Served
from gateway.codec.compression import Coding, Inflater, parse_content_encoding
from gateway.codec.v2.framing import Framing, parse_framing
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError
from gateway.exchange import Exchange
from gateway.plan import Plan
from gateway.policy.admission import LOOK_S, MAX_WAIT_S, SMALL_BYTES, Admission, Claim, Reservation


class ClientBody(Reservation):
    """The body of one request, and the memory that is reserved for it."""

    _answer_bytes = 0
    _answer_room = 0  # reserved bytes that the request has left to its answer
    _beyond_bytes = 0  # bytes that `reserve` took without room for them

    def __init__(self, request: ClientRequest, exchange: Exchange, shared: Any, plan: Plan) -> None:
        """*shared* has what all requests share: the `admission`, and whether it `is_draining`.

        Nothing is reserved before the request is admitted.
        """
        self.admission: Admission = shared.admission
        self._shared = shared
        self._plan = plan
        self._request = request
        self._connection: Served = request.connection  # or another front's object in its place
        self._exchange = exchange

    async def admit(self, n_bytes: int) -> None:
        """Reserve *n_bytes* for a body before it is read, and a slot as well if the body is complete.

        A body that is not complete is an upload from now on, and gives way to others if it is slow. Waits, as `_take`
        does. Raises `GatewayError` (OVERLOADED) without room.
        """
        if self._connection.has_arrived and self.take(n_bytes, 1):
            return
        await self._take(n_bytes, 0)
        if not self._connection.has_arrived:
            self.begin_upload(self._connection.upload, self._fail)

    async def take_slot(self) -> None:
        """Take a slot of `limits.concurrent_requests` for an admitted body that is complete, or that is relayed.

        Waits, as `_take` does. Raises `GatewayError` (OVERLOADED) without one.
        """
        if not self.n_slots:
            await self._take(0, 1)

    def reserve(self, n_bytes: int) -> None:
        """Reserve *n_bytes* more at once, for the memory of the parsed header.

        A complete request gets `SMALL_BYTES` in any case. For more, slow uploads are ended; the request never waits.
        Raises `GatewayError` (OVERLOADED) when there is no room.
        """
        if self.take(n_bytes):
            return
        admission = self.admission
        if self._beyond_bytes + n_bytes <= SMALL_BYTES:
            self._beyond_bytes += n_bytes
            self.hold(n_bytes)
        else:
            now_s = asyncio.get_running_loop().time()
            claim = Claim(self, n_bytes, 0, now_s, lambda: True)
            if admission.wait(claim, now_s):
                admission.look(now_s)
            if not claim.is_granted:
                raise self._overloaded(n_bytes)

    async def _take(self, n_bytes: int, n_slots: int) -> None:
        """Take *n_bytes* and *n_slots*; wait, at most `MAX_WAIT_S`, where ending slow uploads could make room for them.

        `limits.connections` bounds how many wait, since each has a connection. Raises `GatewayError` (OVERLOADED).
        """
        if self.take(n_bytes, n_slots):
            return
        admission = self.admission
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        verdict = asyncio.Event()
        until_s, connection = began_s + MAX_WAIT_S, self._connection
        claim = Claim(self, n_bytes, n_slots, until_s, lambda: connection.has_arrived, verdict.set)
        if admission.wait(claim, began_s):
            admission.looking = admission.looking or loop.create_task(_look(admission))
            try:
                await verdict.wait()
            finally:
                admission.leave(claim)
                self._exchange.queue_s += loop.time() - began_s
        if not claim.is_granted:
            raise self._overloaded(n_bytes)

    def _overloaded(self, n_bytes: int) -> GatewayError:
        admission = self.admission
        words = (
            f"too busy: a request that needs {n_bytes + self.n_bytes} bytes has no room beside "
            f"{admission.requests} of {admission.max_requests} requests (limits.concurrent_requests) and "
            f"{admission.held_bytes} of {int(admission.max_bytes)} bytes (limits.in_flight_bytes) in flight; try again"
        )
        return GatewayError(ErrorKind.OVERLOADED, words, headers=[("Retry-After", "1")])

    def _fail(self, words: str) -> None:
        """End the upload, because its memory or slot is needed for others; *words* say how slow it was."""
        words = f"the client sent its body too slowly: {words}"
        self._connection.fail(GatewayError(ErrorKind.SLOW_CLIENT, words))

    def hold_answer(self, n_bytes: int) -> None:
        """Count the answer's *n_bytes* so far, as far as they exceed the room that the request has left to it."""
        if n_bytes != self._answer_bytes and not self.is_released:
            self.hold(max(n_bytes, self._answer_room) - max(self._answer_bytes, self._answer_room))
            self._answer_bytes = n_bytes

    def let_go(self) -> None:
        """Leave the request's reserved bytes to its answer, because the request is not held in memory any more."""
        if self._answer_room or self.is_released:
            return
        self._answer_room = self.n_bytes - self._answer_bytes
        self.hold(max(self._answer_bytes, self._answer_room) - self.n_bytes)

    def leave(self) -> Callable[[], None]:
        """Keep all that is reserved now beyond the end of the request, until the returned function is called."""
        held = Reservation(self.admission)
        held.hold(self.n_bytes)
        return held.release

    def framing(self) -> Framing:
        """The framing of an inference by the client's headers: where its JSON ends. Raises `CodecError`."""
        headers = self._request.headers
        return parse_framing(headers.all("inference-header-content-length"), headers.first.get("content-type", ""))

    async def read(self) -> memoryview:
        """The body in one buffer, inflated; `limits.request_body` holds before and after. Raises `GatewayError`."""
        coding = self._find_coding()
        self.check_length()
        length = self._request.content_length if coding is None else None
        if length is not None and self._connection.has_arrived and self.take(length, 1):
            body = memoryview(self._connection.read_arrived())
            self._exchange.client_request_bytes = len(body)
            return body
        await self.admit(length or 0)
        body = await (self._read_sized(length) if length is not None else self._read_growing(coding))
        self.end_upload()
        await self.take_slot()
        return body

    def check_length(self) -> None:
        """Raise `GatewayError` if the body's Content-Length or received bytes exceed `limits.request_body`."""
        length, max_bytes = self._request.content_length, self._plan.limits.request_body
        if self._exchange.client_request_bytes > max_bytes or (length is not None and length > max_bytes):
            size = f"more than {max_bytes:d}" if length is None else length
            words = f"the body has {size} bytes, limits.request_body is {max_bytes:d}"
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, words)

    def _find_coding(self) -> Coding | None:
        """The coding of the body. Raises `GatewayError` for one that is not supported (protocol 7)."""
        if "content-encoding" not in self._request.headers.first:
            return None
        try:
            return parse_content_encoding(self._request.headers.joined("content-encoding"))
        except CodecError as error:
            accepted = [("Accept-Encoding", "gzip, deflate")]
            raise GatewayError(ErrorKind.UNSUPPORTED_ENCODING, str(error), headers=accepted) from error

    async def _read_sized(self, n_bytes: int) -> memoryview:
        """Read a body of *n_bytes*, which are admitted, as it arrives."""
        # numpy asks for large pages: of a bytearray the kernel prepares one small page after the other, for 3 ms more
        # of 10 MiB
        body = np.empty(n_bytes, np.uint8).data
        end = 0
        async for chunk in self.limited_chunks():
            body[end : end + len(chunk)] = chunk
            end += len(chunk)
        return body

    async def _read_growing(self, coding: Coding | None) -> memoryview:
        """Read a body as it arrives, admit each piece of it, and inflate it if it has a *coding*."""
        grown = bytearray()
        try:
            max_bytes = self._plan.limits.request_body
            async for piece in self._pieces(None if coding is None else Inflater(coding, max_bytes)):
                await self._take(len(piece), 0)
                grown += piece
        except TooLargeError as error:
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"{error} (limits.request_body)") from error
        except CodecError as error:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, str(error)) from error
        return memoryview(grown)

    async def _pieces(self, inflater: Inflater | None) -> AsyncIterator[bytes]:
        async for chunk in self.limited_chunks():
            if inflater is None:
                yield chunk
                continue
            pieces = inflater.feed(chunk)
            while (piece := await self._exchange.request_codec.next(pieces)) is not None:
                yield piece
        if inflater is not None:
            inflater.finish()

    async def limited_chunks(self) -> AsyncIterator[bytes]:
        """As `chunks`, but no more than `limits.request_body`. Raises `GatewayError` for more."""
        async for chunk in self.chunks():
            self.check_length()
            yield chunk

    async def read_first(self, n_bytes: int) -> bytes:
        """Wait until *n_bytes* or all bytes of a relayed body have arrived, and read all that have.

        That may be more than *n_bytes*: a client is read until 256 KiB of its body wait, and the last read from the
        socket may have brought as many. Raises as `chunks` does.
        """
        pieces = []
        left = n_bytes
        while left > 0 and (chunk := await self._read()):
            pieces.append(chunk)
            left -= len(chunk)
        return b"".join(pieces)

    async def _read(self) -> bytes:
        """`Served.read_more`, with bytes counted in the exchange. Others run between two pieces, if they have come."""
        if self.at_end:
            return b""
        if self._exchange.client_request_bytes:
            await self._exchange.request_codec.breathe()
        chunk = await self._connection.read_more()
        self._exchange.client_request_bytes += len(chunk)
        return chunk

    @property
    def at_end(self) -> bool:
        """Whether the whole body has arrived and was read."""
        return self._connection.is_read

    async def chunks(self) -> AsyncIterator[bytes]:
        """The rest of the body as it arrives, counted. Raises as `Served.read_more` does."""
        while chunk := await self._read():
            yield chunk


async def _look(admission: Admission) -> None:
    """Let `Admission.look` decide about the claims as long as some wait."""
    loop = asyncio.get_running_loop()
    try:
        while admission.waiting:
            due_s = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            if loop.time() > due_s + LOOK_S:  # the loop stood still, and bytes of clients wait in the kernel
                await asyncio.sleep(LOOK_S)
            admission.look(loop.time())
    finally:
        admission.looking = None
