"""Reading a JSON document that arrives in pieces.

An inference document is small but for one thing: the `data` of its tensors. `Scanner` walks through the document as
it arrives and takes the data out. Each `data` value goes to a sink, piece by piece. All the rest stays together: the
skeleton, in which a value's place has the number of its sink. The skeleton is ordinary JSON, which msgspec parses and
so judges.

Here: where things are. Not here: how a document is walked through (`member_finder`), and what any value means.
"""

from collections.abc import Callable, Iterator
from functools import partial

from gateway.codec.json.arriving import STEP, ArrivingText, Reading
from gateway.codec.json.brackets import WALK_BYTES
from gateway.codec.json.member_finder import EACH, MemberFinder
from gateway.codec.json.pieces import NOT_SPACE, SPACE
from gateway.codec.json.sinks import Sink
from gateway.errors import CodecError, TooLargeError

MAX_VALUES = 16
"""How many members called `data` one object may have: the last wins (protocol 1.6), but all are read."""

MAX_ENTRY_BYTES = 16 * 1024
"""The most text before an object's `data` that `open_value` can ask for; it gets no members where there is more."""

OpenValue = Callable[[Callable[[], bytes]], Sink]
"""Gives the sink for a value; can ask for the members before its `data`, as a JSON object."""


class Scanner:
    """Splits a document into its skeleton and the `data` values in the objects of one top-level array."""

    def __init__(
        self,
        section: str,
        open_value: OpenValue,
        *,
        max_skeleton_bytes: int,
        max_entries: int,
    ) -> None:
        """*section* is the key of the array, `inputs` or `outputs`; *open_value* chooses a sink for each value.

        *max_skeleton_bytes* is the most JSON beside the values, *max_entries* the most items in the array.
        """
        self.done = False
        """Whether the document has ended."""
        self.spans: list[tuple[int, int]] = []
        """Where each value was in the document."""
        self._max_skeleton_bytes = max_skeleton_bytes
        self._skeleton = bytearray()
        self._text = ArrivingText()
        self._trailing = 0
        # The generator knows nothing of the scanner: in a circle, a tensor would wait for the garbage collector.
        self._reading = _read(self._text, self._skeleton, self.spans, section, open_value, max_entries)

    @property
    def consumed(self) -> int:
        """How many bytes of the document have been read."""
        return self._text.consumed

    @property
    def skeleton(self) -> bytes:
        """The document with the number n in place of the n-th value."""
        return bytes(self._skeleton)

    @property
    def skeleton_bytes(self) -> int:
        """The length of the skeleton so far."""
        return len(self._skeleton)

    def trailing_bytes(self) -> int:
        """How many bytes came behind the document, without blanks around them."""
        return self._trailing

    def feed(self, chunk: bytes | memoryview) -> Iterator[None]:
        """Take the next bytes; yields after each step of work. What follows the document is only counted.

        Raises `TooLargeError` or `CodecError` for more than the limits allow, and what the sinks raise, labelled.
        """
        if self._text.add(chunk):
            yield from self._go_on()

    def finish(self) -> Iterator[None]:
        """Work off what `feed` put aside. Raises `CodecError` if the document is cut off."""
        self._text.end()
        yield from self._go_on()

    def _go_on(self) -> Iterator[None]:
        for is_step in self._reading:
            if len(self._skeleton) > self._max_skeleton_bytes:
                raise TooLargeError(
                    f"the JSON beside the tensors' data is longer than {self._max_skeleton_bytes:d} bytes, "
                    "which is the most that `limits.header` allows"
                )
            if not is_step:
                return
            yield
        self.done = True
        self._trailing += len(self._text.buffer.strip(SPACE))
        self._text.buffer.clear()


def _read(
    text: ArrivingText,
    skeleton: bytearray,
    spans: list[tuple[int, int]],
    section: str,
    open_value: OpenValue,
    max_entries: int,
) -> Reading[None]:
    """Read the document that *text* begins with into *skeleton* and *spans*; other parameters are as for `Scanner`."""
    finder = MemberFinder(section, EACH, "data")
    n_entries = entry_values = entry_start = 0
    while finder.depth or not skeleton.endswith(b"}"):
        if not finder.depth:
            _check_beginning(text.buffer)
        taken = finder.step(text.buffer)
        if not taken:
            yield from text.more()
            continue
        skeleton += memoryview(text.buffer)[:taken]
        text.drop(taken)
        if finder.is_item:
            entry_start, entry_values = len(skeleton) - 1, 0
            n_entries += 1
            if n_entries > max_entries:
                raise CodecError(
                    f"more than {max_entries} entries in `{section}`, which is the most that `limits.tensors` allows"
                )
        elif finder.found:
            entry_values += 1
            if entry_values > MAX_VALUES:
                raise CodecError(f"one object of `{section}` has more than {MAX_VALUES} members called `data`")
            sink = open_value(partial(_members, skeleton, entry_start))
            skeleton += b"%d " % len(spans)  # the blank keeps it apart from whatever wrongly follows the value
            start = text.consumed
            yield from text.pour(sink)
            spans.append((start, text.consumed))
        yield STEP


def _check_beginning(text: bytearray) -> None:
    first = NOT_SPACE.search(text, 0, WALK_BYTES)
    if first is not None and first[0] != b"{":
        raise CodecError(f"expected a JSON object, got {text[first.start() : first.start() + 16].decode('latin-1')!r}")


def _members(skeleton: bytearray, start: int) -> bytes:
    """The members of the object that begins at *start*, but for the key that *skeleton* ends with."""
    end = skeleton.rfind(b'"', 0, skeleton.rfind(b'"'))  # no quote can be in a key that is found
    if end - start > MAX_ENTRY_BYTES:
        return b"{}"
    return bytes(skeleton[start:end]).rstrip(SPACE).rstrip(b",") + b"}"
