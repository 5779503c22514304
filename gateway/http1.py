"""One HTTP/1.1 message while it arrives: its head, and then the pieces of its body.

aiohttp's parser reads heads and chunked bodies. A body of known length needs no parser, nor does a body that ends with
the connection. The parser of heads is told that no message has a body: it gets the heads alone, one after the other,
each cut off at its end. A chunked body has a parser of its own. So no byte of one message can be taken for a part of
another one.

`Phase` names the part of the message that comes next:

    HEAD ----> SIZED ---------> DONE        the head says how long the body is
         ----> CHUNKED -------> DONE        the last chunk ends the body
         ----> UNTIL_END -----> DONE        only the end of the connection ends the body
         --------------------> DONE        there is no body
         ----> HEAD                         an interim answer (100, 103): another head follows

`feed_body` takes bytes as they come, and is cheap for any bytes. Chunks are decoded when the body is read, in pieces of
`PIECE_BYTES`: so the reader decides when other requests run in between.

Not here: connections, and the meaning of a request's or an answer's head (`client`, `backend`).
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
"""As `PIECE_BYTES`, where chunks may be tiny: at the beginning of a body, and after a piece of which more than half was
framing. This takes a tenth of the time."""

WINDOW_BYTES = 64 * 1024
"""After how many bytes on the wire a chunked body is judged by `MIN_SHARE`, again and again."""

MIN_SHARE = 3
"""A chunked body is refused if less than one byte in three is content; in chunks of one byte, one in six is."""

MAX_CONTENT_LENGTH = 2**63 - 1
"""The largest length of a body that is believed. aiohttp's parser takes 2**64 - 1 for no body at all."""

MAX_DIGITS = 32
"""How many digits a `Content-Length` may have, zeros before it included; with more it is taken for too large."""

MAX_FIELDS = 128
"""How many fields a head may have, also that of a call of gRPC."""

_ENDLESS = 2**63  # more bytes than any body has
_NEVER_FULL = 2**30  # bytes that may wait in the parser's own reader, which is emptied after each piece
# What ends a head: an empty line (the parser of answers also takes lines that end without a carriage return); or group
# 1, a field that goes on in another line, which is refused because the parser copies the field for each line.
_HEAD_END = re.compile(rb"\n(?:\r?\n|([ \t]))")
_CHUNKED_REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNKED_ANSWER = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_TLS = "Received HTTPS traffic on an HTTP port"  # a message of aiohttp's parser
_HTTP2_PREFACE = b"PRI * HTTP/2"  # the first bytes of a client of HTTP/2 without TLS (RFC 9113 section 3.4)
_OTHER_PROTOCOL = "this port speaks HTTP/1.1; the client speaks HTTP/2, as gRPC does: it needs the URL for HTTP"
_TOO_MANY = "Too many headers received"  # a message of aiohttp's parser


class Phase(Enum):
    """Which part of a message comes next."""

    HEAD = auto()
    SIZED = auto()
    CHUNKED = auto()
    UNTIL_END = auto()
    DONE = auto()


# as globals, because looking up an enum's attribute costs as much as a call
_HEAD, _SIZED, _CHUNKED, _DONE = Phase.HEAD, Phase.SIZED, Phase.CHUNKED, Phase.DONE


class MalformedError(Exception):
    """Bytes that are not HTTP. The message says why, without quoting the bytes, which may hold a secret."""


class HeadTooLargeError(MalformedError):
    """The head has too many bytes or too many fields."""


class _NoPauses(BaseProtocol):
    """Stands where the parser's reader expects a protocol to pause. Nothing is paused: see `Incoming.read`."""

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
        """A head of more than *max_bytes* is refused. If not *is_for_requests*, the heads are those of answers."""
        self._loop = loop
        self._is_for_requests = is_for_requests
        self.max_bytes = max_bytes
        self._parser = self._new_parser(with_body=False)

    def feed(self, text: bytes, *, is_end: bool) -> RawRequestMessage | RawResponseMessage | None:
        """Take *text*: the head if *is_end*, which is where its empty line ends, else None. Raises `MalformedError`."""
        try:
            early = self._parser.feed_data(text[:-1] if is_end else text)[0]
            heads = self._parser.feed_data(b"\n")[0] if is_end else early
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
        if head.upgrade:  # after such a head the parser would take all bytes for another protocol
            self._parser = self._new_parser(with_body=False)
        if self._is_for_requests and not head.chunked and "Transfer-Encoding" in head.headers:
            # the end of its body is not defined (RFC 9112 section 6.3); the parser only checks this if it reads bodies
            raise MalformedError("a request whose Transfer-Encoding does not end in 'chunked'")
        return head

    def chunks(self) -> "_Chunks":
        """A decoder for the chunked body behind a head."""
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

    Call `feed_head` until it returns a head, then `expect`, then `feed_body` and `read`.
    """

    phase = _HEAD
    has_arrived = False
    """Whether the whole message has come, read or not."""
    head_bytes = 0
    """How many bytes of the head have come, with interim heads and blank lines before it."""
    unread_bytes = 0
    """How many bytes of the body, on the wire, have come and were not read."""
    has_surplus = False
    """Whether bytes have come behind a chunked body, which `feed_body` cannot tell from the body."""
    is_ascii = True
    """Whether the head has only ASCII, as far as it has come."""
    left = 0
    """How many bytes of the body are still to come: exactly in phase SIZED, at most in any other."""
    _tail = b""  # the last two bytes of the head so far, in which its end may have begun
    _chunks: "_Chunks | None" = None

    def __init__(self, heads: Heads) -> None:
        """The next message of the connection of *heads*, whose previous message has come to its end."""
        self._heads = heads
        self._pieces: list[bytes] | deque[bytes] = []

    def feed_head(self, data: bytes) -> tuple[RawRequestMessage | RawResponseMessage, bytes] | None:
        """Take bytes of the head. Returns the head and the bytes behind it once its end has come, else None.

        To be called again after an interim head (100 to 199). Raises `MalformedError`.
        """
        heads, tail = self._heads, self._tail
        # blank lines before a message are ignored (RFC 9112 section 2.2)
        text = data if tail else data.lstrip(b"\r\n")
        found = _HEAD_END.search(tail + text)
        end = len(text) if found is None else found.end() - len(tail)
        self.head_bytes += len(data) - len(text) + end
        if self.head_bytes > heads.max_bytes:
            raise HeadTooLargeError(f"the head has more than {heads.max_bytes} bytes")
        if found is not None and found[1]:
            raise MalformedError("a field of the head goes on in another line (RFC 9112 section 5.2)")
        text, behind = text[:end], text[end:]
        if not text.isascii():
            self.is_ascii = False
        self._tail = b"" if found is not None else (tail + text)[-2:]
        head = heads.feed(text, is_end=found is not None)
        return None if head is None else (head, behind)

    @property
    def has_begun(self) -> bool:
        """Whether the first line of a head has begun to come, and its end has not."""
        return bool(self._tail)

    def expect(self, phase: Phase, n_bytes: int = 0) -> None:
        """The body ends as *phase* says: SIZED after *n_bytes*; DONE means that there is none."""
        if phase is not _SIZED:
            n_bytes = 0 if phase is _DONE else _ENDLESS
            if phase is _CHUNKED:
                self._chunks = self._heads.chunks()
                self._pieces = deque()  # chunks are decoded from its front
        self.phase = phase if n_bytes else _DONE
        self.left = n_bytes
        self.has_arrived = not n_bytes

    def feed_body(self, data: bytes) -> bytes:
        """Take bytes of the body. Returns the bytes behind a body of known length.

        Bytes behind a chunked body are dropped when its end is read: see `has_surplus`.
        """
        body, behind = data[: self.left], data[self.left :]
        if body:
            self.left -= len(body)
            if not self.left:
                self.phase, self.has_arrived = _DONE, True
            self.unread_bytes += len(body)
            self._pieces.append(body)
        return behind

    def read(self) -> bytes:
        """The next bytes of the body; empty if none can be decoded yet, or if everything was read (`is_read`).

        Of a chunked body at most `PIECE_BYTES` are decoded. Raises `MalformedError`.
        """
        if self.phase is _CHUNKED:
            return self._decode() if self._pieces else b""
        whole = b"".join(self._pieces)  # a single piece is not copied
        self._pieces.clear()
        self.unread_bytes = 0
        return whole

    @property
    def is_read(self) -> bool:
        """Whether the whole message has come and was read."""
        return self.has_arrived and not self._pieces

    @property
    def is_mostly_framing(self) -> bool:
        """Whether the body comes in tiny chunks, as far as it was read: each of its bytes is dear."""
        return self._chunks is not None and self._chunks.is_mostly_framing

    def end(self) -> None:
        """The connection's stream has ended: in phase UNTIL_END this completes the body."""
        if self.phase is Phase.UNTIL_END:
            self.expect(_DONE)

    def drop(self) -> None:
        """Forget the bytes that were not read."""
        self._pieces.clear()
        self.unread_bytes = 0

    def _decode(self) -> bytes:
        """Decode the next piece of a chunked body. Raises `MalformedError`."""
        chunks, pieces = self._chunks, self._pieces
        assert chunks is not None
        assert isinstance(pieces, deque)
        piece = pieces.popleft()
        if len(piece) > PIECE_BYTES:  # in pieces of their own: a view of the last would keep all of them in memory
            starts = reversed(range(0, len(piece), PIECE_BYTES))
            pieces.extendleft([piece[start : start + PIECE_BYTES] for start in starts])
            piece = pieces.popleft()
        if len(piece) > chunks.piece_bytes:
            pieces.appendleft(piece[chunks.piece_bytes :])
            piece = piece[: chunks.piece_bytes]
        self.unread_bytes -= len(piece)
        text = chunks.decode(piece)
        if chunks.is_at_end:
            self.has_surplus = chunks.has_surplus or bool(pieces)
            self.expect(_DONE)
            self.drop()
        return text


class _Chunks:
    """Decodes one chunked body, and refuses chunks that are too small for the work they make."""

    def __init__(self, parser: "_Parser", *, is_for_request: bool) -> None:
        """*parser* must be new. If not *is_for_request*, the body is that of an answer."""
        self._parser = parser
        heads, _, _ = parser.feed_data(_CHUNKED_REQUEST if is_for_request else _CHUNKED_ANSWER)
        self._reader: StreamReader = heads[0][1]
        self._n_bytes = self._n_carried = 0
        self.piece_bytes = DOUBTED_BYTES
        """How many bytes the next call of `decode` may get."""
        self.is_mostly_framing = False
        """Whether less than half of the last piece was content."""
        self.is_at_end = False
        self.has_surplus = False
        """Whether bytes have come behind the body's end."""

    def decode(self, piece: bytes) -> bytes:
        """The content of the chunks in *piece*. Raises `MalformedError`."""
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
        """Whether the parser holds a part of another head, which it only gives when the stream ends."""
        try:
            return self._parser.feed_eof() is not None
        except HttpProcessingError:  # bytes that are no head
            return True

    def _judge(self, n_bytes: int, n_carried: int) -> None:
        """Raise `MalformedError` if too few of the bytes on the wire are content (`MIN_SHARE`)."""
        self.is_mostly_framing = 2 * n_carried < n_bytes
        self.piece_bytes = DOUBTED_BYTES if self.is_mostly_framing else PIECE_BYTES
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
    """The words of aiohttp's *error* without the other side's bytes, which may hold a secret.

    Some errors have a dump of these bytes in further lines; others quote the bytes in the middle of the message.
    """
    if isinstance(error, LineTooLong):
        return HeadTooLargeError(f"a line of the head is longer than {error.args[1]} bytes")
    line, dump, _ = error.message.partition("\n")
    if line == _TOO_MANY:
        return HeadTooLargeError(f"the head has more than {MAX_FIELDS} fields")
    if isinstance(error, InvalidURLError | InvalidHeader | BadStatusLine) and not dump and line != _TLS:
        return MalformedError("malformed HTTP")
    return MalformedError(line.rstrip(":") or "malformed HTTP")
