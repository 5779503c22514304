"""The reply to a client. Nothing else writes to one, except the invitation to send a body (`body`).

The head says which headers every reply carries, how the body is framed, and whether the connection is kept. An
exchange's status, error and reply bytes are set here alone. Not here: the content of replies.
"""

import re
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

import orjson

from gateway.client.request import ClientRequest
from gateway.errors import ErrorKind, GatewayError, proxy_status
from gateway.exchange import Exchange
from gateway.headers import Pairs
from gateway.pacing import Pacer

WRITE_BYTES = 256 * 1024
"""How many bytes are handed to a connection at once: Python 3.11 copies the bytes that the socket does not take."""

JOIN_BYTES = 64 * 1024
"""Up to this size the body of a whole reply is joined to its head and leaves in the same write."""

_WRITTEN_HERE = frozenset({"connection", "content-length", "keep-alive", "transfer-encoding", "x-request-id"})

_BODILESS = frozenset({204, 304})
# Control characters that no header value may hold (RFC 9110 section 5.5), except a tab; and bytes that are not UTF-8.
_UNSENDABLE = re.compile("[\0-\x08\n-\x1f\x7f\ud800-\udfff]")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Reply:
    """The reply to one request: `whole`, or `begin`, `write` and `end`, or `error`."""

    __slots__ = (
        "_connection",
        "_exchange",
        "_is_bodiless",
        "_is_chunked",
        "_is_draining",
        "_left",
        "_pacer",
        "_request",
        "_timing",
        "has_begun",
        "is_complete",
    )

    def __init__(
        self,
        request: ClientRequest,
        exchange: Exchange,
        *,
        is_draining: Callable[[], bool],
        timing: Callable[[Exchange], str] | None = None,
    ) -> None:
        """The connection is closed after the reply while *is_draining*. *timing* makes the value of `Server-Timing`."""
        self._request = request
        self._connection = request.connection
        self._exchange = exchange
        self._is_draining = is_draining
        self._timing = timing
        self._left: int | None = 0
        self._is_chunked = False
        self._is_bodiless = False
        self._pacer: Pacer | None = None
        self.has_begun = False
        """Whether a part of the reply was sent, so that an error can only cut it off."""
        self.is_complete = False
        """Whether the whole reply was handed to the socket: a client that leaves then was served."""

    async def complete(self) -> None:
        """Wait while too many written bytes wait to be sent. Raises `ConnectionError` when the client left."""
        await self._connection.out.drain()
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
        await self.complete()

    async def begin(self, status: int, headers: Pairs, length: int | None, lines: str = "") -> None:
        """Send the head of a reply whose body is written in pieces; *length* None: in chunks.

        Content-Length, Transfer-Encoding, Connection and X-Request-Id among *headers* are replaced. *lines* is the text
        of fields that go out before them, as it is. Raises `GatewayError` (MALFORMED_RESPONSE), before anything is
        sent, for headers that cannot be sent, and `ConnectionError` when the client left.
        """
        self._connection.out.write(self._head(status, headers, length, lines))
        self._left = length
        self._pacer = Pacer()
        if length == 0:
            await self.complete()

    async def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Send a piece of the body, in slices of `WRITE_BYTES` between which others run.

        The body of a reply to HEAD is dropped. Raises `GatewayError` (MALFORMED_RESPONSE), before sending, for more
        than the announced length, and `ConnectionError` when the client left.
        """
        n_bytes = len(piece)
        if not n_bytes or self._is_bodiless:
            return
        if self._left is not None:
            if n_bytes > self._left:
                raise GatewayError(
                    ErrorKind.MALFORMED_RESPONSE,
                    f"the body of the reply is {n_bytes - self._left} bytes longer than its Content-Length",
                )
            self._left -= n_bytes
        assert self._pacer is not None
        view = memoryview(piece)
        for start in range(0, n_bytes, WRITE_BYTES):
            part = view[start : start + WRITE_BYTES]
            self._connection.out.write(b"".join((b"%x\r\n" % len(part), part, b"\r\n")) if self._is_chunked else part)
            self._exchange.client_response_bytes += len(part)
            await self._connection.out.drain()
            if self._left == 0 and start + WRITE_BYTES >= n_bytes:
                break  # at once: the client may leave with its whole reply while others run
            await self._pacer.breathe()
        if self._left == 0:
            await self.complete()

    async def end(self) -> None:
        """End the body. Raises `GatewayError` (MALFORMED_RESPONSE) for less than the announced length."""
        if self._is_chunked:
            self._connection.out.write(b"0\r\n\r\n")
        elif self._left and not self._is_bodiless:
            raise GatewayError(
                ErrorKind.MALFORMED_RESPONSE,
                f"the body of the reply ended {self._left} bytes short of its Content-Length",
            )
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
            # an end without a reset would look like the end of a reply without length
            self._connection.keeps_alive = False
            self._connection.out.reset()
            return
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

    def _head(self, status: int, headers: Pairs, length: int | None, ready: str) -> bytes:
        """The head of the reply; from here on it has begun."""
        assert not self.has_begun, "a request has one reply"
        exchange = self._exchange
        is_old = self._request.version < (1, 1)
        self._is_bodiless = status in _BODILESS or self._request.method == "HEAD"
        self._is_chunked = length is None and not is_old and not self._is_bodiless
        self._decide(length)
        lines = [f"HTTP/1.{0 if is_old else 1} {status} {_PHRASES.get(status, '')}"]
        if ready:
            lines.append(ready)
        lines += [_line(name, value) for name, value in headers if name.lower() not in _WRITTEN_HERE]
        lines.append(f"X-Request-Id: {exchange.request_id}")
        if self._timing is not None:
            lines.append(f"Server-Timing: {self._timing(exchange)}")
        self._add_framing(lines, None if status == 204 else length, is_old=is_old)
        self.has_begun = True
        exchange.status = status
        if status >= 400 and exchange.error is None:
            exchange.error = ErrorKind.BACKEND_ERROR  # the gateway's own errors are set before
        return _finished("\r\n".join(lines))

    def _add_framing(self, lines: list[str], length: int | None, *, is_old: bool) -> None:
        """Add to *lines* the fields for the body's end and for the connection (RFC 9112 sections 6 and 9)."""
        if self._is_chunked:
            lines.append("Transfer-Encoding: chunked")
        elif length is not None:
            lines.append(f"Content-Length: {length}")
        if not self._connection.keeps_alive:
            lines.append("Connection: close")
        elif is_old:
            lines.append("Connection: keep-alive")

    def _decide(self, length: int | None) -> None:
        """Decide whether the connection serves another request behind this reply, as far as it is not decided yet."""
        connection = self._connection
        if (
            (not connection.has_arrived and connection.is_left_over)
            or self._is_draining()
            # a body without length that is not chunked ends with the connection
            or (length is None and not self._is_chunked and not self._is_bodiless)
        ):
            connection.keeps_alive = False


def _line(name: str, value: str) -> str:
    """A field of a head. Raises `GatewayError` for one that cannot be sent."""
    line = f"{name}: {value}"
    if _UNSENDABLE.search(line):
        words = f"header {name[:64]!r} of the answer holds a control character, or bytes that are not UTF-8"
        raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words)
    return line


def _finished(lines: str) -> bytes:
    """The head that *lines* are, with `Server` and `Date` if they are missing."""
    said = lines.lower()
    if "\r\nserver:" not in said:
        lines += "\r\nServer: tensor-gateway"
    if "\r\ndate:" not in said:
        lines += _date(int(time.time()))
    return f"{lines}\r\n\r\n".encode()


@lru_cache(maxsize=1)
def _date(now_s: int) -> str:
    """The `Date` header of this second, as a line behind others."""
    return f"\r\nDate: {formatdate(now_s, usegmt=True)}"
