"""Reading a document from its front while it arrives, by generators that read on as if all of it were there.

A `Reading` yields `STEP` after each step of work and `MORE` where it cannot go on before more text has arrived;
`ArrivingText` is what it reads from. So what is nested in a document is nested in the program as well: a function
reads an object, and calls another one for a value in it.

The members of an object, and the items of an array, are mostly short. Short ones are parsed together, in runs of whole
members or items. A long one is read by itself: a member's name first, then the value, piece by piece, by the
function that the caller gives. What counts as long depends on the text alone, never on where the chunks were cut.
"""

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from gateway.codec.json.members import MAX_NAME_BYTES, excerpt, parse_object
from gateway.codec.json.pieces import MAX_TEXT_DEPTH, NOT_SPACE, OBJECT, PIECE_BYTES, QUOTE, SPACE
from gateway.codec.json.sinks import Sink, TextSink, step_of
from gateway.errors import CodecError

T = TypeVar("T")

Reading = Generator[bool, None, T]
"""Reads from an `ArrivingText`; yields `STEP` and `MORE`."""

STEP, MORE = True, False


def stepwise(steps: Generator[None, None, T]) -> Reading[T]:
    """Do *steps*, work that needs no more text, as steps of a reading."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result
        yield STEP


RUN_BYTES = 8 * 1024
"""How much text of short items is parsed together: half a millisecond of the smallest ones."""

BEGINNING_BYTES = 64
"""How much of a value shows how it begins."""

ITEM_DEPTH = 6
"""How deep items may be nested that are parsed together."""

_COMMA = ord(",")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
# Whole items, each with a comma or a closing bracket behind it: three times faster than token by token. The parser that
# gets them sees whether their brackets match. Items that are nested deeper are read one by one.
_BESIDE_LISTS = rb'(?>(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*)'
_INSIDE = _BESIDE_LISTS
for _ in range(ITEM_DEPTH - 1):
    _INSIDE = rb"%b(?>(?:[\[{]%b[\]}]%b)*)" % (_BESIDE_LISTS, _INSIDE, _BESIDE_LISTS)
_ITEMS = re.compile(
    rb'(?:(?>(?:[^"\[\]{},]++|"(?:[^"\\]++|\\.)*+"|[\[{]%b[\]}])*)(?:,|(?=[\]}])))+' % _INSIDE, re.DOTALL
)


class ArrivingText:
    """The part of a document, or of one value, that has arrived and has not been read."""

    consumed = 0
    """How many bytes have been read."""
    poured = 0
    """How many of these were poured into sinks."""
    _is_whole = False
    _wait_for = 0

    def __init__(self, run_bytes: int = RUN_BYTES) -> None:
        """Items of at most *run_bytes* together are parsed together."""
        self.buffer = bytearray()
        self._run_bytes = run_bytes

    @classmethod
    def of_value(cls, value: bytearray) -> "ArrivingText":
        """A *value* that is there as a whole, with no blanks behind it; it is taken, not copied."""
        text = cls()
        value += b" "  # a number ends where something follows it
        text.buffer = value
        text.end()
        return text

    def add(self, chunk: bytes | memoryview) -> bool:
        """Append *chunk*: whether a reading that has yielded `MORE` should look at the text again."""
        self.buffer += chunk
        return len(self.buffer) >= self._wait_for

    def end(self) -> None:
        """No more will come."""
        self._is_whole = True

    def drop(self, n_bytes: int) -> None:
        """The first *n_bytes* have been read."""
        del self.buffer[:n_bytes]
        self.consumed += n_bytes

    def more(self, label: str = "", enough: int = 0) -> Reading[None]:
        """Wait until the buffer has grown by half, or has *enough* bytes; an empty buffer waits for any byte.

        A sender that sends byte by byte would make the work quadratic otherwise. Raises `CodecError`, which begins with
        *label*, if no more will come.
        """
        size = len(self.buffer)
        if self._is_whole:
            raise CodecError(f"{label}{': ' if label else ''}JSON is cut off after {self.consumed + size} bytes")
        self._wait_for = max(size + size // 2, enough) if size else 0
        yield MORE

    def first(self, at: int = 0) -> Reading[int]:
        """The first byte from *at* on that is not blank; the blanks before it are dropped."""
        while True:
            if len(self.buffer) > at and self.buffer[at] not in SPACE:
                return self.buffer[at]
            found = NOT_SPACE.search(self.buffer, at, at + PIECE_BYTES)
            blanks = (found.start() if found else min(len(self.buffer), at + PIECE_BYTES)) - at
            del self.buffer[at : at + blanks]
            self.consumed += blanks
            if found:
                continue
            if len(self.buffer) > at:
                yield STEP
            else:
                yield from self.more()

    def string(self, at: int = 0) -> Reading[bytes]:
        """The string that begins at *at*, with its quotes; it stays. Empty if it has more than `MAX_NAME_BYTES`."""
        while True:
            found = _STRING.match(self.buffer, at, at + MAX_NAME_BYTES)
            if found:
                return found[0]
            if len(self.buffer) >= at + MAX_NAME_BYTES:
                return b""
            yield from self.more()

    def beginning(self) -> Reading[bytes]:
        """The first brackets of the value that comes next, at most two, and the name behind a brace, if it is short."""
        at = 0
        while (yield from self.first(at)) in b"[{" and at < 2:
            at += 1
        if at and self.buffer[at - 1] == OBJECT and self.buffer[at] == QUOTE:
            yield from self.string(at)
        return bytes(self.buffer[:BEGINNING_BYTES])

    def run(self) -> Reading[bytes]:
        """As many whole items as one step parses, up to a comma or a closing bracket; they stay in the buffer.

        Empty if the first item is too long for one step.
        """
        while True:
            window = bytes(memoryview(self.buffer)[: self._run_bytes])
            items = _ITEMS.match(window)
            if items and items.end():
                return window[: items.end()].removesuffix(b",")
            if len(window) == self._run_bytes or self._is_whole:
                yield STEP
                return b""
            yield from self.more()

    def parse_whole(self, parse: Callable[[bytes], T | None]) -> T | None:
        """What *parse* makes of the whole text, if that is there and short; None where it makes nothing of it."""
        text = self.buffer
        # parsers may not read deeper, which depends on Python
        is_short = len(text) <= self._run_bytes and text.count(b"[") + text.count(b"{") <= MAX_TEXT_DEPTH
        if self.consumed or not (self._is_whole and is_short):
            return None
        try:
            parsed = parse(bytes(text))
        except CodecError:  # what is wrong is told where it is read item by item
            return None
        if parsed:
            self.drop(len(text))
        return parsed

    def pour(self, sink: Sink) -> Reading[None]:
        """Let *sink* take the value that comes next."""
        while not sink.done:
            taken = step_of(sink, self.buffer)
            if taken:
                self.drop(taken)
                self.poured += taken
                yield STEP
            else:
                yield from self.more(sink.label, PIECE_BYTES)

    def value(self, label: str) -> Reading[bytes]:
        """The text of the value that comes next, proved to be JSON; *label* is for errors."""
        pieces: list[bytes] = []
        poured = self.poured
        for state in self.pour(TextSink(label, pieces)):
            self.poured = poured  # it is kept
            yield state
        return b"".join(pieces)


def read_members(
    text: ArrivingText,
    read_run: Callable[[T], Reading[None]],
    read_long: Callable[[str], Reading[None]],
    parse: Callable[[bytes], T] = parse_object,  # type: ignore[assignment]
) -> Reading[None]:
    """Read the object that *text* begins with.

    *read_run* gets some whole members at a time, as *parse* makes them of an object. *read_long* gets the name of one
    member and reads its value from *text*: that of a long member, and that of a short one which is malformed, so that
    the error can name it. Of two members with one name, the last is read last; in one run, only the last is there.
    Raises `CodecError`.
    """

    def read_member() -> "Reading[None]":
        if text.buffer[0] != QUOTE:
            raise CodecError(f"malformed JSON: expected a member, got {excerpt(bytes(text.buffer[:256]))}")
        name = yield from text.string()
        if not name:
            raise CodecError(f"the name of a member has more than {MAX_NAME_BYTES} bytes")
        text.drop(len(name))
        if (yield from text.first()) != ord(":"):
            raise CodecError(f"malformed JSON: expected a colon, got {excerpt(bytes(text.buffer[:256]))}")
        text.drop(1)
        (key,) = parse_object(b"{%b:0}" % name)
        yield from read_long(key)

    return _read(text, b"{%b}", parse, read_run, read_member)


def read_items(
    text: ArrivingText,
    parse: Callable[[bytes], T | None],
    read_run: Callable[[T], Reading[None]],
    read_long: Callable[[], Reading[None]],
) -> Reading[None]:
    """Read the array that *text* begins with.

    *parse* makes something of an array of short items, and *read_run* gets it, unless it is empty. *read_long* reads
    from *text* an item that is long, is malformed, or is refused by *parse*. Raises `CodecError`.
    """
    return _read(text, b"[%b]", parse, read_run, read_long)


def _read(
    text: ArrivingText,
    brackets: bytes,
    parse: Callable[[bytes], T | None],
    read_run: Callable[[T], Reading[None]],
    read_single: Callable[[], Reading[None]],
) -> Reading[None]:
    """Read the array or object that *text* begins with, which has *brackets*; *parse* makes the short items."""
    items = text.parse_whole(parse)
    if items:
        yield from read_run(items)
        return
    closing = brackets[-1]
    text.drop(1)
    code = yield from text.first()
    read_singly_to = 0
    while code != closing:
        items = None
        if text.consumed >= read_singly_to:
            run = yield from text.run()
            try:
                items = parse(brackets % run)
                text.drop(len(run))
            except CodecError:
                read_singly_to = text.consumed + len(run)
        yield from (read_run(items) if items else read_single())
        yield STEP
        code = yield from text.first()
        if code == closing:
            break
        if code != _COMMA:
            raise CodecError(f"malformed JSON: expected a comma, got {excerpt(bytes(text.buffer[:256]))}")
        text.drop(1)
        code = yield from text.first()
        if code == closing:
            raise CodecError("malformed JSON: a comma without a value behind it")
    text.drop(1)
