"""The reply to a client. Nothing else writes to one, except the invitation to send a body (`request`).

The head says which headers every reply carries, how the body is framed, and whether the connection is kept. An
exchange's status, error and reply bytes are set here alone. Not here: the content of replies.
"""

import time
from collections.abc import Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import orjson

from gateway.client.body import ClientBody
from gateway.errors import ErrorKind, GatewayError, proxy_status
from gateway.headers import Pairs

WRITE_BYTES = 256 * 1024
"""How many bytes are handed to a connection at once: Python 3.11 copies the bytes that the socket does not take."""

JOIN_BYTES = 64 * 1024
"""Up to this size the body of a whole reply is joined to its head and leaves in the same write."""

_WRITTEN_HERE = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "x-request-id"})

_BODILESS = frozenset({204, 304})
_KEPT = {False: "", True: "Connection: keep-alive\r\n"}  # by whether the client speaks HTTP/1.0
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Reply(ClientBody):
    """The body of one request, and the reply to it: `whole`, or `begin`, `write` and `end`, or `error`."""

    has_begun = False
    """Whether a part of the reply was sent, so that an error can only cut it off."""
    is_complete = False
    """Whether the whole reply was handed to the socket: a client that leaves then was served."""
    _left: int | None = 0  # of the announced length
    _is_chunked = False
    _is_bodiless = False

    async def complete(self) -> None:
        """Wait while too many written bytes wait to be sent. Raises `ConnectionError` when the client left."""
        out = self._connection.out
        if out.is_behind:
            await out.drain()
        self.is_complete = True

    async def whole(self, status: int, headers: Pairs, buffers: Sequence[bytes | memoryview], lines: str = "") -> None:
        """Send head and *buffers*, up to `JOIN_BYTES` of them in one write. Raises as `begin` does."""
        n_bytes = sum(map(len, buffers))
        if n_bytes > JOIN_BYTES:
            await self.begin(status, headers, n_bytes, lines)
            for buffer in buffers:
                await self.write(buffer)
            await self.end()
            return
        head = self._head(status, headers, n_bytes, lines)
        if not self._is_bodiless:
            head = b"".join([head, *buffers])
            self._exchange.client_response_bytes = n_bytes
        self._connection.out.write(head)
        if self._connection.out.is_behind:
            await self._connection.out.drain()
        self.is_complete = True

    async def begin(self, status: int, headers: Pairs, length: int | None, lines: str = "") -> None:
        """Send the head of a reply whose body is written in pieces; *length* None: in chunks.

        Content-Length, Transfer-Encoding, Connection and X-Request-Id among *headers* are replaced. *lines* is the text
        of fields that go out before them, as it is. Headers of a backend were checked with its answer's head
        (`backend.arriving`). Raises `ConnectionError` when the client left.
        """
        self._connection.out.write(self._head(status, headers, length, lines))
        self._left = length
        if length == 0:
            await self.complete()

    async def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Send a piece of the body, in slices of `WRITE_BYTES` between which others run.

        The body of a reply to HEAD is dropped. Raises `ConnectionError` when the client left.
        """
        n_bytes = len(piece)
        if not n_bytes or self._is_bodiless:
            return
        if self._left is not None:
            assert n_bytes <= self._left, "a body is as long as was announced: `http1` cuts that of an answer"
            self._left -= n_bytes
        view = memoryview(piece)
        for start in range(0, n_bytes, WRITE_BYTES):
            part = view[start : start + WRITE_BYTES]
            self._connection.out.write(b"".join((b"%x\r\n" % len(part), part, b"\r\n")) if self._is_chunked else part)
            self._exchange.client_response_bytes += len(part)
            await self._connection.out.drain()
            if self._left == 0 and start + WRITE_BYTES >= n_bytes:
                break  # at once: the client may leave with its whole reply while others run
            await self._exchange.response_codec.breathe()
        if self._left == 0:
            await self.complete()

    async def end(self) -> None:
        """End the body."""
        assert not self._left or self._is_bodiless, "a body is as long as was announced, or reading it has failed"
        if self._is_chunked:
            self._connection.out.write(b"0\r\n\r\n")
        await self.complete()

    async def error(self, error: GatewayError) -> None:
        """Send *error* in the shape of the protocol; if a reply has begun, cut it off with a reset.

        After the last byte of a whole reply, only the error's words are put into the exchange.
        """
        exchange = self._exchange
        exchange.detail = error.message
        if self.is_complete:
            return
        exchange.error = error.kind
        if self.has_begun:
            self._cut_off()
        else:
            await self._refuse(error)

    def _cut_off(self) -> None:
        # an end without a reset would look like the end of a reply without length
        self._connection.keeps_alive = False
        self._connection.out.reset()

    async def _refuse(self, error: GatewayError) -> None:
        """Send *error* as the whole reply."""
        body = error.body
        if body is None:
            body = orjson.dumps({"error": error.message.encode(errors="replace").decode()})
        fields = [("Content-Type", "application/json"), *error.headers, proxy_status(error)]
        await self.whole(error.status, fields, (body,))

    def client_left(self) -> None:
        """Record that the client went away, unless its whole reply had been handed to the socket (499).

        The same is recorded if the gateway has cut the connection because the client did not read.
        """
        exchange = self._exchange
        if exchange.error is None and not self.is_complete:
            exchange.error = ErrorKind.CLIENT_CLOSED
            exchange.status = ErrorKind.CLIENT_CLOSED.status
            exchange.detail = self._connection.out.cut_reason

    def _decide(self, status: int, length: int | None, *, is_old: bool) -> None:
        """The reply begins: decide how its body ends, and whether the connection serves another request behind it."""
        assert not self.has_begun, "a request has one reply"
        exchange, connection = self._exchange, self._connection
        if status in _BODILESS or self._request.method == "HEAD":
            self._is_bodiless = True
        elif length is None:
            self._is_chunked = not is_old
            if is_old:  # the body ends with the connection
                connection.keeps_alive = False
        if self._shared.is_draining or (not connection.has_arrived and connection.is_left_over):
            connection.keeps_alive = False
        exchange.status = status
        if status >= 400 and exchange.error is None:
            exchange.error = ErrorKind.BACKEND_ERROR  # the gateway's own errors are set before

    def _head(self, status: int, headers: Pairs, length: int | None, lines: str) -> bytes:
        """The head of the reply, which says how its body and the connection end (RFC 9112 sections 6 and 9)."""
        is_old = self._request.version < (1, 1)
        self._decide(status, length, is_old=is_old)
        first = f"HTTP/1.{0 if is_old else 1} {status} {_PHRASES.get(status, '')}\r\n"
        lines = f"{lines}\r\n" if lines else ""
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers if name.lower() not in _WRITTEN_HERE])
        timing = f"Server-Timing: {self._plan.timing(self._exchange)}\r\n" if self._plan.timing is not None else ""
        framing = "Transfer-Encoding: chunked\r\n" if self._is_chunked else ""
        if length is not None and status != 204:
            framing = f"Content-Length: {length}\r\n"
        persistence = _KEPT[is_old] if self._connection.keeps_alive else "Connection: close\r\n"
        text = f"{first}{lines}{fields}X-Request-Id: {self._exchange.request_id}\r\n{timing}{framing}{persistence}"
        said = text.lower()
        server = "" if "\r\nserver:" in said else "Server: tensor-gateway\r\n"
        date = "" if "\r\ndate:" in said else _date(int(time.time()))
        self.has_begun = True
        return f"{text}{server}{date}\r\n".encode()


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    """The `Date` header of this second, as a line."""
    return f"Date: {formatdate(now_s, usegmt=True)}\r\n"
