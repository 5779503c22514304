"""JSON that is made in pieces while it is sent, as often as it is sent, and never held."""

from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator

from gateway.codec.json.pieces import PIECE_BYTES

PIECE_SEGMENTS = 64
"""The most short texts that are put into one piece: each costs some microseconds, however short it is."""

SINGLE_PIECE_BYTES = 16 * 1024
"""The most body that is made to JSON in one piece; one-byte types take up to six times as much as text."""

Piece = bytes | bytearray | memoryview
"""Some JSON text."""


class PiecedJson:
    """A document for a backend."""

    __slots__ = ()

    @abstractmethod
    def texts(self) -> Iterator[Piece]:
        """The document in texts of bounded size; an empty one ends a step of work. Every call makes it anew."""

    def json_pieces(self) -> Iterator[Piece]:
        """The document in pieces that are worth sending, of which some may be empty."""
        return joined(self.texts())

    def json_bytes(self) -> Generator[None, None, int]:
        """The document's length; it is made for it and not kept. Yields after each step of work."""
        n_bytes = 0
        for piece in self.json_pieces():
            n_bytes += len(piece)
            yield
        return n_bytes


def joined(texts: Iterable[Piece], long_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """*texts* in pieces: those shorter than *long_bytes* are put together.

    An empty text ends a step of work: what there is so far goes out, though it may be nothing.
    """
    pending: list[Piece] = []
    pending_bytes = 0
    for text in texts:
        if not text or len(text) >= long_bytes:
            if pending:
                yield b"".join(pending)
            if text or not pending:
                yield text
            pending, pending_bytes = [], 0
            continue
        pending.append(text)
        pending_bytes += len(text)
        if pending_bytes >= long_bytes or len(pending) >= PIECE_SEGMENTS:
            yield b"".join(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield b"".join(pending)
