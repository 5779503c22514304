"""Reading a JSON document that arrives in pieces.

An inference document is small but for one thing: the `data` of its tensors. `Scanner` walks through the document as
it comes and separates the two. Each `data` value goes to a sink that takes it piece by piece; all the rest, the
skeleton, stays together, with the number of the sink standing where the value stood. The skeleton is ordinary JSON
and is parsed (and so judged) by msgspec.

The scanner itself only has to be right about where strings and brackets begin and end. It never recurses, so no
nesting can exhaust it, and it reads every byte once.

Here: where things are. Not here: what any value means.
"""

import re
from collections.abc import Callable, Iterator
from typing import NoReturn

import msgspec

from gateway.codec.json.brackets import STEP_TOKENS, WALK_BYTES, skip_inside_string
from gateway.codec.json.sinks import Sink, labelling
from gateway.codec.tensors.pieces import NOT_SPACE, PIECE_BYTES, SPACE
from gateway.errors import CodecError, TooLargeError

MAX_VALUES = 16
"""How often one object may say `data`: the last wins (protocol 1.6), but each is looked at."""

MAX_ENTRY_BYTES = 16 * 1024
"""An object with more than this before its `data` is opened as if it had said nothing: parsing it would take long."""

# A whole string, with the colon that makes it a key (1) or the end of the window, where that is not known yet (2);
# a bracket that opens (3) or closes (4); or a quote whose string is not complete (2).
# It begins with one set of bytes, for which `re` searches ten times faster than for alternatives.
TOKEN = re.compile(
    rb'["\[\]{}](?:(?<=")(?:(?:[^"\\]++|\\.)*+"[ \t\r\n]*+(?:(:)|(?!\Z))|())|(?<=[\[{])()|(?<=[\]}])())', re.DOTALL
)
KEY_TOKEN, OPEN_TOKEN, CLOSE_TOKEN = 1, 3, 4
_WHOLE_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)

OpenValue = Callable[[Callable[[], bytes]], Sink]
"""Gives the sink for a value; can ask for the members before its `data`, as a JSON object."""


class Scanner:
    """Splits a document into its skeleton and the `data` values in the objects of one top-level array.

    *section* is the key of that array: `inputs` or `outputs`. *open_value* chooses a sink for each value; in
    the skeleton the n-th value is replaced by the number n, and `spans[n]` is where it was in the document.
    """

    def __init__(
        self,
        section: str,
        open_value: OpenValue,
        *,
        max_skeleton_bytes: int,
        max_entries: int,
    ) -> None:
        """*max_skeleton_bytes* is the most JSON beside the values, *max_entries* the most objects in the array."""
        self.done = False
        self.consumed = 0
        self.spans: list[tuple[int, int]] = []
        self._section = section
        self._section_key = b'"%b"' % section.encode()
        self._open_value = open_value
        self._max_skeleton_bytes = max_skeleton_bytes
        self._max_entries = max_entries
        self._skeleton = bytearray()
        self._buffer = bytearray()
        self._wait_for = 0
        self._window_bytes = WALK_BYTES
        self._inside_string = False
        self._sink: Sink | None = None
        self._sink_start = 0
        self._depth = 0
        self._inside_section = False
        self._n_entries = 0
        self._entry_start = 0
        self._entry_values = 0
        self._key = b""
        self._trailing = 0

    def feed(self, chunk: bytes | memoryview) -> Iterator[None]:
        """Take the next bytes; yields after each step of work. What follows the document is only counted.

        Raises `TooLargeError` or `CodecError` for more than the limits allow, and what the sinks raise, labelled.
        """
        if self.done:
            self._trailing += len(bytes(chunk).strip(SPACE))
            return
        self._buffer += chunk
        if len(self._buffer) < self._wait_for:
            return
        self._wait_for = 0
        while not self.done and self._buffer:
            taken = self._step() if self._sink is None else self._step_sink(self._sink)
            if not taken:
                self._wait()
                return
            del self._buffer[:taken]
            self.consumed += taken
            if self._sink is not None and self._sink.done:
                self.spans.append((self._sink_start, self.consumed))
                self._sink = None
            yield
        if self.done and self._buffer:
            self._trailing += len(self._buffer.strip(SPACE))
            self._buffer.clear()

    def finish(self) -> Iterator[None]:
        """Work off what `feed` put aside. Raises `CodecError` if the document is cut off."""
        self._wait_for = 0
        yield from self.feed(b"")
        if not self.done:
            where = f"{self._sink.label}: " if self._sink is not None else ""
            raise CodecError(f"{where}JSON is cut off after {self.consumed + len(self._buffer)} bytes")

    @property
    def skeleton(self) -> bytes:
        """The document with numbers in place of the values that went to sinks."""
        return bytes(self._skeleton)

    @property
    def skeleton_bytes(self) -> int:
        """The length of the skeleton so far."""
        return len(self._skeleton)

    def trailing_bytes(self) -> int:
        """How many bytes that are not blank came behind the document."""
        return self._trailing

    def _wait(self) -> None:
        """What is there cannot be worked on: decide how much more must arrive before it is looked at again.

        Half as much again, or what a sink likes to work on, so that a sender that sends byte by byte does not make
        the work quadratic.
        """
        size = len(self._buffer)
        if self._sink is None and len(self._skeleton) + size > self._max_skeleton_bytes:
            self._fail_skeleton()
        self._wait_for = size + size // 2 if self._sink is None or size > PIECE_BYTES else PIECE_BYTES

    def _step_sink(self, sink: Sink) -> int:
        with labelling(sink):
            return sink.step(self._buffer)

    def _step(self) -> int:
        """Walk through the skeleton: how many bytes are finished with, 0 if more must arrive first."""
        if self._inside_string:
            end, is_closed = skip_inside_string(self._buffer, 0)
            self._inside_string = not is_closed
            return self._keep(end)
        while True:
            taken = self._walk(min(len(self._buffer), self._window_bytes))
            if taken:
                self._window_bytes = WALK_BYTES
            if taken or len(self._buffer) <= self._window_bytes:
                return taken
            self._window_bytes *= 2  # a string, which may be a key, and then a window or more of blanks

    def _walk(self, window_bytes: int) -> int:
        """Walk up to a value for a sink, the document's end, the window's end, or `STEP_TOKENS` tokens further."""
        buffer = self._buffer
        if self._depth == 0:
            first = NOT_SPACE.search(buffer, 0, window_bytes)
            if first is not None and first[0] != b"{":
                beginning = buffer[first.start() : first.start() + 16].decode("latin-1")
                raise CodecError(f"expected a JSON object, got {beginning!r}")
        base = len(self._skeleton)
        depth = self._depth
        end = window_bytes
        for n_tokens, token in enumerate(TOKEN.finditer(buffer, 0, window_bytes)):
            kind = token.lastindex
            if n_tokens == STEP_TOKENS:
                end = token.start()
                break
            if kind is None:
                continue
            if kind == KEY_TOKEN:
                if depth == 1:
                    self._key = token[0]
                elif depth == 3 and self._inside_section and is_key(token[0], b'"data"'):
                    end = self._keep(token.end())
                    self._open_sink(slice(self._entry_start, base + token.start()), self.consumed + end)
                    self._depth = depth
                    return end
            elif kind == OPEN_TOKEN:
                depth += 1
                if depth == 2:
                    self._inside_section = token[0] == b"[" and is_key(self._key, self._section_key)
                elif depth == 3:
                    self._entry_start = base + token.start()
                    self._entry_values = 0
                    self._count_entry()
            elif kind == CLOSE_TOKEN:
                depth -= 1
                if depth == 0:
                    self.done = True
                    end = token.end()
                    break
                if depth == 1:
                    self._inside_section = False
            else:
                end = token.start()
                if end == 0 and window_bytes >= WALK_BYTES and not _WHOLE_STRING.match(buffer, 0, window_bytes):
                    # longer than any key that is looked for, however many escapes it is written with
                    self._inside_string = True
                    self._key = b""
                    end = 1
                break
        self._depth = depth
        return self._keep(end)

    def _count_entry(self) -> None:
        if self._inside_section:
            self._n_entries += 1
            if self._n_entries > self._max_entries:
                raise CodecError(
                    f"more than {self._max_entries} entries in `{self._section}`, "
                    "which is the most that `limits.tensors` allows"
                )

    def _open_sink(self, entry: slice, start: int) -> None:
        self._entry_values += 1
        if self._entry_values > MAX_VALUES:
            raise CodecError(f"one object of `{self._section}` has more than {MAX_VALUES} members called `data`")

        def entry_text() -> bytes:
            if entry.stop - entry.start > MAX_ENTRY_BYTES:
                return b"{}"
            return bytes(self._skeleton[entry]).rstrip(SPACE).rstrip(b",") + b"}"

        self._sink = self._open_value(entry_text)
        self._sink_start = start
        # the blank keeps the number apart from whatever wrongly follows the value
        self._skeleton += b"%d " % len(self.spans)

    def _fail_skeleton(self) -> NoReturn:
        raise TooLargeError(
            f"the JSON beside the tensors' data is longer than {self._max_skeleton_bytes:d} bytes, "
            "which is the most that `limits.header` allows"
        )

    def _keep(self, n_bytes: int) -> int:
        if len(self._skeleton) + n_bytes > self._max_skeleton_bytes:
            self._fail_skeleton()
        self._skeleton += memoryview(self._buffer)[:n_bytes]
        return n_bytes


def is_key(text: bytes, wanted: bytes) -> bool:
    """Whether the key token *text* (quotes, maybe blanks and a colon) is *wanted* (with quotes)."""
    if text.startswith(wanted):
        return True
    if b"\\" not in text:
        return False
    try:
        return b'"%b"' % msgspec.json.decode(text[: text.rfind(b'"') + 1], type=str).encode() == wanted
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
