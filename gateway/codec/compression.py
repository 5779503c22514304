"""Compressed bodies (protocol section 7): gzip, and deflate in zlib's framing, piece by piece.

Here: bytes to bytes within limits, and the names of the codings. Not here: which bodies are compressed.
"""

import zlib
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice

from gateway.errors import CodecError, TooLargeError

PIECE_BYTES = 64 * 1024
"""How much one step produces at most."""

WINDOW_BYTES = 16 * 1024
"""How much compressed input zlib gets at once. It copies what it leaves over, once for each gzip member in it."""

BEGINNING_PIECES = 256
"""The most pieces of a beginning that is inflated in one go: an empty gzip member is one, and costs 3 microseconds."""

LEVEL = 1
"""The compression level of replies: four times as fast as zlib's default on tensors, and a few per cent larger."""


class Coding(Enum):
    """A content coding, and what zlib calls it."""

    GZIP = ("gzip", 31)
    DEFLATE = ("deflate", 15)

    def __init__(self, label: str, window_bits: int) -> None:
        self.label = label
        self.window_bits = window_bits


_BY_NAME = {"gzip": Coding.GZIP, "x-gzip": Coding.GZIP, "deflate": Coding.DEFLATE}


def parse_content_encoding(value: str) -> Coding | None:
    """The coding in a `Content-Encoding`; None for none. Raises `CodecError` for others, and for several."""
    names = [name for name in (part.strip().lower() for part in value.split(",")) if name not in ("", "identity")]
    if not names:
        return None
    if len(names) > 1 or names[0] not in _BY_NAME:
        raise CodecError(f"Content-Encoding {value[:64]!r} is not supported: expected one of gzip, deflate, identity")
    return _BY_NAME[names[0]]


def choose_coding(accept_encoding: str) -> Coding | None:
    """The coding that this `Accept-Encoding` prefers among ours; None for no compression."""
    weights: dict[str, float] = {}
    for part in accept_encoding.lower().split(","):
        name, _, parameters = part.partition(";")
        first = parameters.partition(";")[0].strip()
        weight = first.removeprefix("q=").strip() if first.startswith("q=") else "1"
        try:
            weights[name.strip()] = float(weight)
        except ValueError:
            weights[name.strip()] = 0.0
    anything = weights.get("*", 0.0)
    best = max(Coding, key=lambda coding: weights.get(coding.label, anything))
    weight_of_best = weights.get(best.label, anything)
    return best if weight_of_best > 0 and weight_of_best >= weights.get("identity", 0.0) else None


class Inflater:
    """Decompresses one body. Several gzip members, one after the other, are one body (protocol section 7)."""

    def __init__(self, coding: Coding, max_bytes: int) -> None:
        """*max_bytes* bounds what comes out, and is checked while it does."""
        self._coding = coding
        self._max_bytes = max_bytes
        self._produced = 0
        self._engine = zlib.decompressobj(coding.window_bits)
        self._started = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What *chunk* adds, in pieces of at most `PIECE_BYTES`; some may be empty.

        Raises `CodecError` for what is not of the coding, `TooLargeError` beyond *max_bytes*.
        """
        for start in range(0, len(chunk), WINDOW_BYTES):
            yield from self._inflate(chunk[start : start + WINDOW_BYTES])

    def _inflate(self, window: bytes) -> Iterator[bytes]:
        while window:
            if self._engine.eof:
                if self._coding is not Coding.GZIP:
                    raise CodecError("bytes follow the end of the deflate body")
                self._engine = zlib.decompressobj(self._coding.window_bits)
            self._started = True
            try:
                piece = self._engine.decompress(window, PIECE_BYTES)
            except zlib.error as error:
                raise CodecError(f"the body is not {self._coding.label}: {error}") from None
            window = self._engine.unused_data if self._engine.eof else self._engine.unconsumed_tail
            self._produced += len(piece)
            if self._produced > self._max_bytes:
                raise TooLargeError(f"the body is larger than {self._max_bytes:d} bytes after decompression")
            yield piece

    def finish(self) -> None:
        """Raise `CodecError` if the body is cut off."""
        if not self._engine.eof:
            raise CodecError(f"the {self._coding.label} body is cut off" if self._started else "empty request body")


def inflated_beginning(text: bytes, content_encoding: str, max_bytes: int) -> bytes:
    """*text*, maybe only the beginning of a body, without its *content_encoding*; empty if it cannot be undone.

    *max_bytes* is the most that may come out.
    """
    try:
        coding = parse_content_encoding(content_encoding)
        if coding is None:
            return text
        return b"".join(islice(Inflater(coding, max_bytes).feed(text), BEGINNING_PIECES))
    except CodecError:
        return b""


def compressed(buffers: Iterable[bytes | memoryview], coding: Coding) -> Iterator[bytes]:
    """*buffers*, one after the other, as one compressed body, in pieces; some may be empty."""
    engine = zlib.compressobj(LEVEL, zlib.DEFLATED, coding.window_bits)
    for buffer in buffers:
        view = memoryview(buffer)
        for start in range(0, len(view), PIECE_BYTES):
            yield engine.compress(view[start : start + PIECE_BYTES])
    yield engine.flush()
