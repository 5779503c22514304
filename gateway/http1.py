"""One HTTP/1.1 message while it arrives: its head, and then the pieces of its body.

aiohttp's parser reads heads and chunked bodies; a body of known length, and one that ends with the connection, need
no parser. The parser of heads is told that no message has a body: it gets one head after the other, cut at the end of
each, and never sees another byte. A chunked body has a parser of its own. So no byte of one message can be taken for a
part of another one.

What comes next is named by `Phase`:

    HEAD ----> SIZED ---------> DONE        the head says how long the body is
         ----> CHUNKED -------> DONE        the body says itself where it ends
         ----> UNTIL_END -----> DONE        only the end of the connection ends the body
         --------------------> DONE        there is no body
         ----> HEAD                         an interim answer (100, 103): another head follows

`feed` takes bytes as they come and is cheap, whatever they are. Chunks are decoded when the body is read, in pieces of
`PIECE_BYTES`: so whoever reads decides when others run in between.

Not here: connections, and what a request or an answer says (`client`, `backend`).
"""

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from enum import Enum, auto

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpResponseParser, RawRequestMessage, RawResponseMessage
from aiohttp.http_exceptions import BadStatusLine, HttpProcessingError, InvalidHeader, InvalidURLError, LineTooLong
from aiohttp.streams import StreamReader

PIECE_BYTES = 8 * 1024
"""How much of a chunked body is decoded in one go at most: of chunks of one byte that takes 0.8 ms."""

DOUBTED_BYTES = 1024
"""The same at the beginning of a body, and behind a piece less than half of which was carried: a tenth of that time."""

WINDOW_BYTES = 64 * 1024
"""Over how many bytes on the wire a chunked body is judged, see `MIN_SHARE`."""

MIN_SHARE = 3
"""A chunked body that carries less than one byte in so many is refused: a chunk of one byte carries one in six."""

MAX_FIELDS = 128
"""How many fields a head may have."""

MAX_LINES = 2 * MAX_FIELDS
"""How many lines a head may have, as a field may go on in further ones: the parser copies it for each of them."""

_NEVER_FULL = 2**30  # bytes that may wait in the parser's own reader, which is emptied after each piece
_HEAD_END = re.compile(rb"\n\r?\n")  # the parser of answers also takes lines that end without a carriage return
_CHUNKED_REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNKED_ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_TLS = "Received HTTPS traffic on an HTTP port"  # says aiohttp's parser
_HTTP2_PREFACE = b"PRI * HTTP/2"  # how a client begins that knows that the server speaks HTTP/2 (RFC 9113 section 3.4)
_OTHER_PROTOCOL = "this port speaks HTTP/1.1; the client speaks HTTP/2, as gRPC does: it needs the URL for HTTP"
_TOO_MANY = "Too many headers received"  # says aiohttp's parser


class Phase(Enum):
    """What comes next of a message."""

    HEAD = auto()
    SIZED = auto()
    CHUNKED = auto()
    UNTIL_END = auto()
    DONE = auto()


# an attribute of an enum costs as much as a call
_HEAD, _SIZED, _CHUNKED, _DONE = Phase.HEAD, Phase.SIZED, Phase.CHUNKED, Phase.DONE


class MalformedError(Exception):
    """What came is not HTTP; the message says why, without the bytes themselves, which may hold a secret."""


class HeadTooLargeError(MalformedError):
    """The head has too many bytes or too many fields."""


class _NoPauses(BaseProtocol):
    """Whom the parser's reader would ask to pause and to go on, which is never needed: see `Incoming.read`."""

    def pause_reading(self) -> None:
        """See aiohttp."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """See aiohttp."""


_Parser = HttpRequestParser | HttpResponseParser

_NO_PAUSES = _NoPauses(None)  # type: ignore[arg-type]  # it never asks for the loop


class Heads:
    """Parses the heads of one connection, one after the other."""

    __slots__ = ("_is_for_requests", "_loop", "_parser", "max_bytes")

    def __init__(self, loop: asyncio.AbstractEventLoop, max_bytes: int, *, is_for_requests: bool) -> None:
        """The other side sends requests, or else answers; a head of more than *max_bytes* is refused."""
        self._loop = loop
        self._is_for_requests = is_for_requests
        self.max_bytes = max_bytes
        self._parser = self._new_parser(with_body=False)

    def feed(self, text: bytes, *, is_end: bool) -> RawRequestMessage | RawResponseMessage | None:
        """Take *text* of a head; the head if its last line, which is empty, *is_end*s it. Raises `MalformedError`."""
        feed_data = self._parser.feed_data
        try:
            early = feed_data(text[:-1] if is_end else text)[0]
            heads = feed_data(b"\n")[0] if is_end else early
        except HttpProcessingError as error:
            raise _malformed(error) from None
        except ValueError:  # from the URL that the parser makes of a target
            raise MalformedError("malformed HTTP") from None
        if early or len(heads) != is_end:
            # the parser of answers ends a head also at lines that are not empty, such as `X:` and two CR
            raise MalformedError(_OTHER_PROTOCOL if text.startswith(_HTTP2_PREFACE) else "malformed HTTP")
        if not is_end:
            return None
        head = heads[0][0]
        if head.upgrade:  # the parser would take what comes next for another protocol
            self._parser = self._new_parser(with_body=False)
        if self._is_for_requests and not head.chunked and "Transfer-Encoding" in head.headers:
            # nobody knows where its body ends (RFC 9112 section 6.3); the parser only says so where it reads bodies
            raise MalformedError("a request whose Transfer-Encoding does not end in 'chunked'")
        return head

    def chunks(self) -> "_Chunks":
        """What decodes a chunked body behind such a head."""
        return _Chunks(self._new_parser(with_body=True), is_for_request=self._is_for_requests)

    def _new_parser(self, *, with_body: bool) -> "_Parser":
        make = HttpRequestParser if self._is_for_requests else HttpResponseParser
        return make(
            _NO_PAUSES,
            self._loop,
            _NEVER_FULL,
            max_line_size=self.max_bytes,
            max_field_size=self.max_bytes,
            max_headers=MAX_FIELDS,
            response_with_body=with_body,
            read_until_eof=True,
            auto_decompress=False,
        )


class Incoming:
    """One message of the other side, from its first byte to its last.

    `feed_head` until it returns bytes; then one of the `expect_` methods; then `feed_body` and `read`.
    """

    __slots__ = (
        "_chunks",
        "_heads",
        "_left",
        "_n_lines",
        "_pieces",
        "_tail",
        "has_arrived",
        "has_begun",
        "has_surplus",
        "head_bytes",
        "is_ascii",
        "phase",
        "unread_bytes",
    )

    def __init__(self, heads: Heads) -> None:
        """The next message of the connection that *heads* belongs to; the one before has come to its end."""
        self._heads = heads
        self.phase = _HEAD
        self.has_arrived = False
        """Whether the message has come to its end (it need not be read yet)."""
        self.head_bytes = 0
        """How much of the head has come, with interim heads and blank lines before it."""
        self.unread_bytes = 0
        """How much has come behind the head and was not read, on the wire."""
        self.has_surplus = False
        """Whether bytes have come behind the message that `feed_body` could not tell from it."""
        self.has_begun = False
        """Whether the first line of a head has begun to come."""
        self.is_ascii = True
        """Whether the head is, as far as it has come."""
        self._tail = b""  # the last bytes of the head so far, in which its end may have begun
        self._n_lines = 0  # of the head so far
        self._pieces: deque[bytes] = deque()
        self._left = 0  # bytes of a body of known length that are still to come
        self._chunks: _Chunks | None = None

    def feed_head(self, data: bytes) -> tuple[RawRequestMessage | RawResponseMessage, bytes] | None:
        """Take bytes of the head; the head and the bytes behind it, once its end has come.

        To be called again behind an interim head (100 to 199). Raises `MalformedError`.
        """
        heads, tail = self._heads, self._tail
        # blank lines before a message are passed over (RFC 9112 section 2.2)
        text = data if self.has_begun else data.lstrip(b"\r\n")
        found = _HEAD_END.search(tail + text)
        end = len(text) if found is None else found.end() - len(tail)
        self.head_bytes += len(data) - len(text) + end
        if self.head_bytes > heads.max_bytes:
            raise HeadTooLargeError(f"the head has more than {heads.max_bytes} bytes")
        self._n_lines += text.count(b"\n", 0, end)
        if self._n_lines > MAX_LINES:
            raise HeadTooLargeError(f"the head has more than {MAX_LINES} lines")
        behind = text[end:]
        if behind:
            text = text[:end]
        if not text.isascii():
            self.is_ascii = False
        head = heads.feed(text, is_end=found is not None)
        if head is None:
            self.has_begun = self.has_begun or bool(text)
            self._tail = (tail + text)[-2:]
            return None
        self._tail = b""
        self._n_lines = 0
        self.has_begun = False
        return head, behind

    def expect_sized(self, n_bytes: int) -> None:
        """The body has *n_bytes*."""
        self._left = n_bytes
        self.phase = _SIZED
        if not n_bytes:
            self.expect_nothing()

    def expect_chunks(self) -> None:
        """The body is chunked."""
        self._chunks = self._heads.chunks()
        self.phase = Phase.CHUNKED

    def expect_until_end(self) -> None:
        """The body ends with the connection."""
        self.phase = Phase.UNTIL_END

    def expect_nothing(self) -> None:
        """There is no body."""
        self.phase = _DONE
        self.has_arrived = True

    def feed_body(self, data: bytes) -> bytes:
        """Take bytes of the body; those behind it, which is as far as its length is known.

        What comes behind a chunked body is dropped with it: see `has_surplus`.
        """
        if self.has_arrived:
            return data
        behind = b""
        n_bytes = len(data)
        if self.phase is _SIZED:
            left = self._left
            if n_bytes > left:
                data, behind = data[:left], data[left:]
                n_bytes = left
            self._left = left = left - n_bytes
            if not left:
                self.phase = _DONE
                self.has_arrived = True
        self.unread_bytes += n_bytes
        if n_bytes > PIECE_BYTES and self.phase is _CHUNKED:
            self._pieces.extend(data[start : start + PIECE_BYTES] for start in range(0, n_bytes, PIECE_BYTES))
        elif n_bytes:
            self._pieces.append(data)
        return behind

    def read(self) -> bytes:
        """The next bytes of the body; empty if none have come that make any, or if all was read (`is_read`).

        Of a chunked body at most `PIECE_BYTES` are decoded. Raises `MalformedError`.
        """
        pieces = self._pieces
        if not pieces:
            return b""
        if self.phase is _CHUNKED:
            return self._decode()
        whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.unread_bytes = 0
        return whole

    @property
    def is_read(self) -> bool:
        """Whether the message has come to its end, and all of it was read."""
        return self.has_arrived and not self._pieces

    def end(self) -> None:
        """The stream has ended: a body that ends with it is complete."""
        if self.phase is Phase.UNTIL_END:
            self.expect_nothing()

    def drop(self) -> None:
        """Forget what was not read."""
        self._pieces.clear()
        self.unread_bytes = 0

    def _decode(self) -> bytes:
        """Decode the next piece of a chunked body. Raises `MalformedError`."""
        chunks, pieces = self._chunks, self._pieces
        assert chunks is not None
        piece = pieces.popleft()
        if len(piece) > chunks.piece_bytes:
            pieces.appendleft(piece[chunks.piece_bytes :])
            piece = piece[: chunks.piece_bytes]
        self.unread_bytes -= len(piece)
        text = chunks.decode(piece)
        if chunks.is_at_end:
            self.has_surplus = chunks.has_surplus or bool(pieces)
            self.expect_nothing()
            self.drop()
        return text


class _Chunks:
    """Decodes one chunked body, and judges what its chunks cost."""

    __slots__ = ("_n_bytes", "_n_carried", "_parser", "_reader", "has_surplus", "is_at_end", "piece_bytes")

    def __init__(self, parser: "_Parser", *, is_for_request: bool) -> None:
        """*parser* is a new one; the body is that of a request, or of an answer."""
        self._parser = parser
        heads, _, _ = parser.feed_data(_CHUNKED_REQUEST if is_for_request else _CHUNKED_ANSWER)
        self._reader: StreamReader = heads[0][1]
        self._n_bytes = self._n_carried = 0
        self.piece_bytes = DOUBTED_BYTES
        """How much is decoded next."""
        self.is_at_end = False
        self.has_surplus = False
        """Whether bytes have come behind the end."""

    def decode(self, piece: bytes) -> bytes:
        """What *piece* carries. Raises `MalformedError`."""
        reader = self._reader
        broken: HttpProcessingError | None = None
        heads: Sequence[object] = ()
        try:
            heads, _, _ = self._parser.feed_data(piece)
        except HttpProcessingError as error:
            broken = error
        if reader.is_eof():
            self.is_at_end = True
            self.has_surplus = broken is not None or bool(heads) or self._has_begun_another()
        elif broken is not None:
            raise _malformed(broken) from None
        text = reader.read_nowait(-1)
        self._judge(len(piece), len(text))
        return text

    def _has_begun_another(self) -> bool:
        """Whether the parser holds back a part of another head, which only its end makes it give."""
        try:
            return self._parser.feed_eof() is not None
        except HttpProcessingError:  # what has come of the head is none
            return True

    def _judge(self, n_bytes: int, n_carried: int) -> None:
        """Raise `MalformedError` for chunks that carry too little of what they cost (`MIN_SHARE`)."""
        self.piece_bytes = PIECE_BYTES if 2 * n_carried >= n_bytes else DOUBTED_BYTES
        self._n_bytes += n_bytes
        self._n_carried += n_carried
        if self._n_bytes >= WINDOW_BYTES:
            if self._n_carried * MIN_SHARE < self._n_bytes:
                raise MalformedError(
                    f"its chunks are too small: {self._n_bytes} bytes carry {self._n_carried}, "
                    f"less than one in {MIN_SHARE}"
                )
            self._n_bytes = self._n_carried = 0


def _malformed(error: HttpProcessingError) -> MalformedError:
    """What aiohttp's parser says of its *error*, without the other side's bytes, which may hold a secret.

    Some errors have a dump of these bytes in further lines, others quote them in the middle of their words.
    """
    if isinstance(error, LineTooLong):
        return HeadTooLargeError(f"a line of the head is longer than {error.args[1]} bytes")
    line, dump, _ = error.message.partition("\n")
    if line == _TOO_MANY:
        return HeadTooLargeError(f"the head has more than {MAX_FIELDS} fields")
    if isinstance(error, InvalidURLError | InvalidHeader | BadStatusLine) and not dump and line != _TLS:
        return MalformedError("malformed HTTP")
    return MalformedError(line.rstrip(":") or "malformed HTTP")
