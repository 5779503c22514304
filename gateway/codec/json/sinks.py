"""Sinks: what takes one value of a document, piece by piece, as the scanner comes past it.

Here are the ones for values that stay JSON, and what all drivers of sinks need. Those for tensors are in
`codec.tensors`.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from gateway.codec.json.brackets import (
    ARRAY,
    MAX_TEXT_DEPTH,
    STEP_TOKENS,
    STRING_OR_BRACKET,
    scalar_end,
    skip_inside_string,
    walk,
)
from gateway.codec.json.pieces import NOT_SPACE, PIECE_BYTES
from gateway.codec.json.prover import Prover
from gateway.errors import CodecError

MAX_LEVELS = 8
"""The deepest nesting of lists that are skipped together: each level takes one more pass over their brackets."""

SKIP_BYTES = 512
"""How much text the first step of a skipped value searches for its end; each further step searches twice as much.

Many values are short, and text that was searched behind a value's end is searched again for the next value.
"""

_BESIDE_LISTS = bytes(byte for byte in range(256) if byte not in b"[]")


class Sink(Protocol):
    """Takes one value of a document, piece by piece."""

    done: bool
    label: str
    """What it takes, for errors. It stands before the sink's errors where `step_of` drives it."""

    @property
    def held_bytes(self) -> int:
        """How much memory the part of the value that has been taken needs."""

    def step(self, buffer: bytearray) -> int:
        """Work on the front of *buffer*: how many bytes are finished with, 0 if more must arrive first.

        Takes about `PIECE_BYTES` at a time. Raises `CodecError`, without the label, if the value is not what it
        should be.
        """


def step_of(sink: Sink, buffer: bytearray) -> int:
    """What `Sink.step` returns; the label of *sink* stands before the `CodecError` that it raises."""
    try:
        return sink.step(buffer)
    except CodecError as error:
        raise CodecError(f"{sink.label}: {error}") from None


def taken_out(pieces: list[bytes]) -> Iterator[bytes]:
    """The *pieces*, each taken out of the list, so that its memory is free when it has been read."""
    pieces.reverse()
    while pieces:
        yield pieces.pop()


def pour(pieces: Iterable[bytes | memoryview], sink: Sink) -> Iterator[None]:
    """Feed a whole value, which is in *pieces*, into *sink*; yields after each step of work.

    Raises `CodecError` with the label.
    """
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        while buffer and not sink.done:
            taken = step_of(sink, buffer)
            if not taken:
                break
            del buffer[:taken]
            yield
    if not sink.done:
        raise CodecError(f"{sink.label}: data is cut off")


class SkipSink:
    """Takes a value of any type without looking into it and only finds its end.

    For values in a body that is held anyway: they can be read again where they stand.
    """

    held_bytes = 0

    def __init__(self, label: str) -> None:
        self.done = False
        self.label = label
        self._open = bytearray()
        self._inside_string = False
        self._window_bytes = SKIP_BYTES

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` where brackets do not match."""
        if self._inside_string:
            end, is_closed = skip_inside_string(buffer, 0)
            self._inside_string = not is_closed
            self.done = is_closed and not self._open
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
        window = window[: self._window_bytes]
        self._window_bytes = min(2 * self._window_bytes, PIECE_BYTES)
        if self._open and self._skip_lists(window):
            return len(window)
        tokens = list(islice(STRING_OR_BRACKET.finditer(window), STEP_TOKENS))
        end = walk(self._open, tokens)
        if end:
            self.done = True
            return end
        if tokens and tokens[-1][1] is not None:
            self._inside_string = True
            return tokens[-1].start() + 1
        return tokens[-1].end() if len(tokens) == STEP_TOKENS else len(window)

    def _skip_lists(self, window: bytes) -> bool:
        """Follow the brackets of lists of numbers, if *window* has nothing else and the value goes on behind it.

        Pairs of brackets are taken out, the innermost first. What is left closes lists that were open before *window*,
        and opens lists that go on behind it. Ten times as fast as one bracket at a time.
        """
        if b'"' in window or b"{" in window or b"}" in window:
            return False
        brackets = window.translate(None, _BESIDE_LISTS)
        for _ in range(MAX_LEVELS):
            if b"[]" not in brackets:
                break
            brackets = brackets.replace(b"[]", b"")
        n_ends = brackets.rfind(b"]") + 1
        n_open = len(self._open) - n_ends
        if n_open <= 0 or n_open + len(brackets) - n_ends > MAX_TEXT_DEPTH or b"[" in brackets[:n_ends]:
            return False
        if self._open.count(ARRAY, n_open) != n_ends:
            return False
        self._open[n_open:] = brackets[n_ends:]
        return True


class TextSink(Prover):
    """Takes a value of any type as it is: one that stays JSON, waits for its datatype, or that nobody wants.

    It is proved to be JSON on the way, with NaN and the infinities that many servers write (protocol 4.7).
    """

    def __init__(self, label: str, pieces: list[bytes] | None) -> None:
        """The text, without the blanks before it, is appended to *pieces*; None if nobody wants it."""
        super().__init__(label)
        self.held_bytes = 0
        self._pieces = pieces

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what is no JSON."""
        is_begun = self._is_begun
        taken = super().step(buffer)
        is_blank = not (is_begun or self._is_begun or self.done)
        if taken and self._pieces is not None and not is_blank:
            self._pieces.append(bytes(memoryview(buffer)[:taken]))
            self.held_bytes += taken
        return taken
