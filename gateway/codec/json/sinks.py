"""Sinks: what takes one value of a document, piece by piece, as the scanner comes past it.

Here are the ones for values that stay JSON; those for tensors are in `codec.tensors`.
"""

import re
from itertools import islice
from typing import Protocol

from gateway.codec.json.brackets import QUOTE, STEP_TOKENS, STRING_OR_BRACKET, scalar_end, walk
from gateway.codec.json.prover import Prover
from gateway.codec.tensors.pieces import NOT_SPACE, PIECE_BYTES, SPACE
from gateway.errors import CodecError

# As much of a string's inside as is whole, where only its end is looked for.
_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


class Sink(Protocol):
    """Takes one value of a document, piece by piece."""

    done: bool
    label: str
    """What it takes, for errors."""

    @property
    def held_bytes(self) -> int:
        """How much memory what it has taken needs."""

    def step(self, buffer: bytearray) -> int:
        """Work on the front of *buffer*: how many bytes are finished with, 0 if more must arrive first.

        Takes about `PIECE_BYTES` at a time. Raises `CodecError` if the value is not what it should be.
        """


class SkipSink:
    """Takes a value of any type that nobody looks into, and only finds its end: where it stands is enough."""

    held_bytes = 0

    def __init__(self, label: str) -> None:
        self.done = False
        self.label = label
        self._open = bytearray()
        self._inside_string = False

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` where brackets do not match."""
        try:
            return self._step(buffer)
        except CodecError as error:
            raise CodecError(f"{self.label}: {error}") from None

    def _step(self, buffer: bytearray) -> int:
        if self._inside_string:
            match = _INSIDE_STRING.match(buffer, 0, PIECE_BYTES)
            end = match.end() if match else 0
            self._inside_string = end >= min(len(buffer), PIECE_BYTES) or buffer[end] != QUOTE
            if not self._inside_string:
                end += 1
                self.done = not self._open
            return end
        window = bytes(memoryview(buffer)[:PIECE_BYTES])
        if not self._open:
            first = NOT_SPACE.search(window)
            if first is None:
                return 0
            if first[0] not in b'[{"':
                end = scalar_end(window, first.start())
                self.done = end > 0
                return end
        tokens = list(islice(STRING_OR_BRACKET.finditer(window), STEP_TOKENS))
        end = walk(self._open, tokens)
        if end:
            self.done = True
            return end
        if tokens and tokens[-1][1] is not None:
            self._inside_string = True
            return tokens[-1].start() + 1
        return tokens[-1].end() if len(tokens) == STEP_TOKENS else len(window)


class TextSink:
    """Takes a value of any type as it is: one that stays JSON, waits for its datatype, or that nobody wants.

    It is proved to be JSON on the way.
    """

    def __init__(self, label: str, pieces: list[bytes] | None) -> None:
        """The text is appended to *pieces*, where they are wanted."""
        self.done = False
        self.label = label
        self.held_bytes = 0
        self._pieces = pieces
        self._prover = Prover()

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what is no JSON."""
        try:
            taken = self._prover.step(buffer)
        except CodecError as error:
            raise CodecError(f"{self.label}: {error}") from None
        if taken and self._pieces is not None:
            piece = bytes(memoryview(buffer)[:taken])
            if not self._pieces:
                piece = piece.lstrip(SPACE)
            if piece:
                self._pieces.append(piece)
                self.held_bytes += len(piece)
        self.done = self._prover.done
        return taken
