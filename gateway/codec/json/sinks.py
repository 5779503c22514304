"""Sinks: what takes one value of a document, piece by piece, as it arrives.

Here are the ones for values that stay JSON, and what all drivers of sinks need. Those for tensors are in
`codec.tensors`.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from gateway.codec.json.member_finder import MemberFinder
from gateway.codec.json.pieces import NOT_SPACE, PIECE_BYTES, scalar_end, skip_inside_string
from gateway.codec.json.prover import Prover
from gateway.errors import CodecError


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
    """Feed a value, whole in *pieces*, into *sink*; yields after each step. Raises `CodecError` with the label."""
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
    """Takes a value of any type without looking into it and only finds its end, where as many brackets close as open.

    For values in a body that is held anyway: they can be read again where they stand.
    """

    held_bytes = 0

    def __init__(self, label: str) -> None:
        self.done = False
        self.label = label
        self._finder = MemberFinder()
        self._is_string = False

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`."""
        if self._is_string:
            end, self.done = skip_inside_string(buffer)
            return end
        if not self._finder.depth:
            first = NOT_SPACE.search(buffer, 0, PIECE_BYTES)
            if first is None:
                return 0
            if first[0] == b'"':
                self._is_string = True
                return first.end()
            if first[0] not in b"[{":
                end = scalar_end(bytes(memoryview(buffer)[:PIECE_BYTES]), first.start())
                self.done = end > 0
                return end
        taken = self._finder.step(buffer)
        self.done = not self._finder.depth
        return taken


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
