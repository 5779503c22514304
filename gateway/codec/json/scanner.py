"""Reading a JSON document that arrives in pieces.

An inference document is small but for one thing: the `data` of its tensors. `Scanner` walks
the document as it comes and separates the two. Each `data` value goes to a sink that takes it
piece by piece; all the rest, the skeleton, stays together, with the number of the sink standing
where the value stood. The skeleton is ordinary JSON and is parsed (and so judged) by msgspec.

The scanner itself only has to be right about where strings and brackets begin and end. It never
recurses, so no nesting can exhaust it, and it reads every byte once.

Here: where things are. Not here: what any value means.
"""

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NoReturn, Protocol, TypeVar

import msgspec

from gateway.errors import CodecError

PIECE_BYTES = 64 * 1024
"""How much JSON text one step works on: a quarter of a millisecond of flat numbers, and it fits a cache."""

SKELETON_BYTES = 4 * 1024 * 1024
"""The most JSON around the `data` of the tensors: names, shapes, parameters, ids."""

MAX_TEXT_DEPTH = 512
"""The most brackets that may be open at once in a value that crosses as text."""

MAX_VALUES = 16
"""How often one object may say `data`: the last wins, but each is looked at."""

_STEP_TOKENS = 4096  # bounds a step over text that is all brackets and short strings

MAX_DEPTH = 64
"""The most brackets that may be open at once in a tensor's nested `data`; tensors have at most 32 dimensions."""

_SPACE = b" \t\r\n"
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_AFTER_SCALAR = re.compile(rb"[ \t\r\n,}\]]")
# A whole string, with the colon that makes it a key (1) or the end of the buffer, where that is not known yet (2);
# a bracket that opens (3) or closes (4); or a quote whose string is not complete (2).
_TOKEN = re.compile(rb'"(?:(?:[^"\\]++|\\.)*+"[ \t\r\n]*+(?:(:)|(?!\Z))|())|([\[{])|([\]}])', re.DOTALL)
_KEY_TOKEN, _OPEN_TOKEN, _CLOSE_TOKEN = 1, 3, 4
# A whole string, one that goes on behind the window (1), or a bracket.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|(\\?\Z))|[\[\]{}]', re.DOTALL)
# As much of a string's inside as is whole, where it is judged, and where only its end is looked for.
_INSIDE_STRING_WHOLE = re.compile(rb'(?:[^"\\]++|\\[^u]|\\u[0-9a-fA-F]{4})*+', re.DOTALL)
_INSIDE_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_STRING_OR_NONFINITE = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"|(?<![-+.\w])(?:-?Infinity|NaN)(?![-+.\w])', re.DOTALL
)  # alone: what is put in its place must not join a neighbour into a number

_QUOTE, _OBJECT, _END_OBJECT, _ARRAY, _END_ARRAY = b'"{}[]'
_CLOSER = {_OBJECT: b"}", _ARRAY: b"]"}

T = TypeVar("T")

Members = dict[str, bytes]
"""An object of JSON: each member's value is the text it came as."""

_OBJECT_DECODER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECTS_DECODER = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_ANY_DECODER = msgspec.json.Decoder(msgspec.Raw)


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


OpenValue = Callable[[Callable[[], bytes]], Sink]
"""Gives the sink for a value; can ask for the members before its `data`, as a JSON object."""


class Scanner:
    """Splits a document into its skeleton and the `data` values in the objects of one top-level array.

    *section* is the key of that array: `inputs` or `outputs`. *open_value* chooses a sink for each value; in
    the skeleton the n-th value is replaced by the number n, and `spans[n]` is where it was in the document.
    """

    def __init__(self, section: str, open_value: OpenValue) -> None:
        self.done = False
        self.consumed = 0
        self.spans: list[tuple[int, int]] = []
        self._section = b'"%b"' % section.encode()
        self._open_value = open_value
        self._skeleton = bytearray()
        self._buffer = bytearray()
        self._wait_for = 0
        self._sink: Sink | None = None
        self._sink_start = 0
        self._depth = 0
        self._inside_section = False
        self._entry_start = 0
        self._entry_values = 0
        self._key = b""
        self._trailing = 0

    def feed(self, chunk: bytes | memoryview) -> Iterator[None]:
        """Take the next bytes; yields after each step of work. What follows the document is only counted."""
        if self.done:
            self._trailing += len(bytes(chunk).strip(_SPACE))
            return
        self._buffer += chunk
        if len(self._buffer) < self._wait_for:
            return
        self._wait_for = 0
        while not self.done and self._buffer:
            taken = self._step() if self._sink is None else self._sink.step(self._buffer)
            if taken == 0:
                # A token that is larger than a piece is looked at again only when half as much came
                # again, so that a backend that sends byte by byte cannot make this quadratic.
                size = len(self._buffer)
                if self._sink is None and size > SKELETON_BYTES:
                    self._fail_skeleton()
                if size > PIECE_BYTES:
                    self._wait_for = size + size // 2
                elif self._sink is not None:
                    self._wait_for = PIECE_BYTES  # a sink is not asked again for less than a piece
                return
            del self._buffer[:taken]
            self.consumed += taken
            if self._sink is not None and self._sink.done:
                self.spans.append((self._sink_start, self.consumed))
                self._sink = None
            yield
        if self.done and self._buffer:
            self._trailing += len(self._buffer.strip(_SPACE))
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

    def trailing_bytes(self) -> int:
        """How many bytes that are not blank came behind the document."""
        return self._trailing

    def _step(self) -> int:
        """Walk the skeleton until a value for a sink, the document's end or the buffer's end."""
        buffer = self._buffer
        if self._depth == 0:
            first = _NOT_SPACE.search(buffer)
            if first is not None and first[0] != b"{":
                raise CodecError(f"expected a JSON object, got {bytes(buffer[first.start() : first.start() + 16])!r}")
        base = len(self._skeleton)
        depth = self._depth
        end = len(buffer)
        for token in _TOKEN.finditer(buffer):
            kind = token.lastindex
            if kind is None:
                continue
            if kind == _KEY_TOKEN:
                if depth == 1:
                    self._key = token[0]
                elif depth == 3 and self._inside_section and _is_key(token[0], b'"data"'):
                    end = self._keep(token.end())
                    self._open_sink(slice(self._entry_start, base + token.start()), self.consumed + end)
                    self._depth = depth
                    return end
            elif kind == _OPEN_TOKEN:
                depth += 1
                if depth == 2:
                    self._inside_section = token[0] == b"[" and _is_key(self._key, self._section)
                elif depth == 3:
                    self._entry_start = base + token.start()
                    self._entry_values = 0
            elif kind == _CLOSE_TOKEN:
                depth -= 1
                if depth == 0:
                    self.done = True
                    end = token.end()
                    break
                if depth == 1:
                    self._inside_section = False
            else:
                end = token.start()
                break
        self._depth = depth
        return self._keep(end)

    def _open_sink(self, entry: slice, start: int) -> None:
        self._entry_values += 1
        if self._entry_values > MAX_VALUES:
            raise CodecError(f"one object says `data` more than {MAX_VALUES} times")
        self._sink = self._open_value(lambda: bytes(self._skeleton[entry]).rstrip(_SPACE).rstrip(b",") + b"}")
        self._sink_start = start
        # the blank keeps the number apart from whatever wrongly follows the value
        self._skeleton += b"%d " % len(self.spans)

    def _fail_skeleton(self) -> NoReturn:
        raise CodecError(f"the JSON around the tensors' data is longer than {SKELETON_BYTES} bytes")

    def _keep(self, n_bytes: int) -> int:
        if len(self._skeleton) + n_bytes > SKELETON_BYTES:
            self._fail_skeleton()
        self._skeleton += memoryview(self._buffer)[:n_bytes]
        return n_bytes


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
            self._inside_string = end >= min(len(buffer), PIECE_BYTES) or buffer[end] != _QUOTE
            if not self._inside_string:
                end += 1
                self.done = not self._open
            return end
        window = bytes(memoryview(buffer)[:PIECE_BYTES])
        if not self._open:
            first = _NOT_SPACE.search(window)
            if first is None:
                return 0
            if first[0] not in b'[{"':
                end = scalar_end(window, first.start())
                self.done = end > 0
                return end
        tokens = list(islice(_STRING_OR_BRACKET.finditer(window), _STEP_TOKENS))
        end = _walk(self._open, tokens)
        if end:
            self.done = True
            return end
        if tokens and tokens[-1][1] is not None:
            self._inside_string = True
            return tokens[-1].start() + 1
        return tokens[-1].end() if len(tokens) == _STEP_TOKENS else len(window)


class TextSink:
    """Takes a value of any type as it is: one that stays JSON, waits for its datatype, or that nobody wants.

    It is proved to be JSON on the way: each piece ends at a comma, or where a string begins or ends that is longer
    than a piece, and is parsed with what is open at its start put before it and what is open at its end behind.
    """

    def __init__(self, label: str, pieces: list[bytes] | None) -> None:
        """The text is appended to *pieces*, where they are wanted."""
        self.done = False
        self.label = label
        self.held_bytes = 0
        self._pieces = pieces
        self._open = bytearray()
        self._before = b""
        self._long_string: bytes | None = None
        self._window_bytes = PIECE_BYTES

    def step(self, buffer: bytearray) -> int:
        """See `Sink.step`. Raises `CodecError` for what is no JSON."""
        try:
            while True:
                window = bytes(memoryview(buffer)[: self._window_bytes])
                taken = self._step(window)
                if taken or len(buffer) <= self._window_bytes:
                    return taken
                if self._window_bytes > 4 * PIECE_BYTES:
                    raise CodecError(f"{self._window_bytes} bytes without a comma")
                self._window_bytes *= 2
        except CodecError as error:
            raise CodecError(f"{self.label}: {error}") from None

    def _step(self, window: bytes) -> int:
        if self._long_string is not None:
            return self._continue_string(window, self._long_string)
        if not self._open:
            first = _NOT_SPACE.search(window)
            if first is None:
                return 0
            if first.start():
                return first.start()
            if first[0] not in b'[{"':
                end = scalar_end(window, 0)
                if end:
                    self._check(window[:end], b"", b"")
                    self._take(window[:end], done=True)
                return end
        may_go_on = len(window) >= PIECE_BYTES
        tokens = list(islice(_STRING_OR_BRACKET.finditer(window), _STEP_TOKENS))
        if len(tokens) == _STEP_TOKENS:
            window = window[: tokens[-1].end()]
            may_go_on = True
        opened = bytearray(self._open)
        end = _walk(opened, tokens)
        if end:
            self._check(window[:end], b"", b"")
            self._take(window[:end], done=True)
            return end
        if not may_go_on:
            return 0
        comma, whole_tokens = _last_comma(window, tokens)
        if comma < 0:
            return self._begin_string(window, tokens) if tokens and tokens[-1][1] is not None else 0
        opened = bytearray(self._open)
        _walk(opened, tokens[:whole_tokens])
        self._check(window[:comma], b"", opened, goes_on=True)
        self._open = opened
        self._before = b""
        return self._take(window[: comma + 1])

    def _begin_string(self, window: bytes, tokens: list[re.Match[bytes]]) -> int:
        """Take what stands before the inside of a string that goes on behind the window."""
        opened = bytearray(self._open)
        _walk(opened, tokens[:-1])
        text = window[: tokens[-1].start() + 1]
        try:
            self._check(text, b'"', opened)
            self._long_string = b'"":0' if opened[-1:] == b"{" else b"0"
        except CodecError:
            self._check(text, b'":0', opened)  # it is a key
            self._long_string = b'""'
        self._open = opened
        return self._take(text)

    def _continue_string(self, window: bytes, stand_in: bytes) -> int:
        """Take as much of a long string as is whole: no escape is cut, and no character."""
        inside = _INSIDE_STRING_WHOLE.match(window)
        end = inside.end() if inside is not None else 0
        is_closed = window[end : end + 1] == b'"'
        if not is_closed and len(window) < PIECE_BYTES:
            return 0
        text = window[:end]
        try:
            text.decode()
        except UnicodeDecodeError as error:
            if is_closed or end - error.start > 3:
                raise CodecError(f"JSON is not UTF-8: {error.reason}") from None
            text = text[: error.start]
        if not text and not is_closed:
            raise CodecError(f"a broken escape in a string: {window[:6]!r}")
        _decode(_ANY_DECODER, b'"%b"' % text)
        if not is_closed:
            return self._take(text)
        self._long_string = None
        self._before = stand_in
        return self._take(text + b'"', done=not self._open)

    def _check(self, text: bytes, behind: bytes, opened: bytes | bytearray, *, goes_on: bool = False) -> None:
        """Prove that *text* and then *behind* continue what was open, and leave *opened* open.

        *goes_on*: a comma follows.
        """
        text = self._before + text + behind
        check_cut(text, 0, len(text), continues=bool(self._open), goes_on=goes_on)
        outer = b"".join([b"[" if code == _ARRAY else b'{"":' for code in self._open[:-1]])
        suffix = b"".join([_CLOSER[code] for code in reversed(opened)])
        _decode(_ANY_DECODER, protect_literals(outer + self._open[-1:] + text + suffix)[0])

    def _take(self, text: bytes, *, done: bool = False) -> int:
        if self._pieces is not None:
            self._pieces.append(text)
            self.held_bytes += len(text)
        self.done = done
        self._window_bytes = PIECE_BYTES
        return len(text)


def scalar_end(window: bytes, start: int) -> int:
    """Where a number or word ends that begins at *start*; 0 if that is behind the window. Raises for none."""
    end = _AFTER_SCALAR.search(window, start)
    if end is None:
        if len(window) >= PIECE_BYTES:
            raise CodecError(f"a number or word of more than {PIECE_BYTES - start} bytes")
        return 0
    if end.start() == start:
        raise CodecError("data has no value")
    return end.start()


def _walk(opened: bytearray, tokens: list[re.Match[bytes]]) -> int:
    """Follow brackets through *tokens*, with *opened* as the stack; the end of the value, or 0 if it goes on."""
    for token in tokens:
        code = token[0][0]
        if code in (_OBJECT, _ARRAY):
            opened.append(code)
            if len(opened) > MAX_TEXT_DEPTH:
                raise CodecError(f"data is nested deeper than {MAX_TEXT_DEPTH}")
        elif code != _QUOTE:
            # '[' + 2 is ']' and '{' + 2 is '}'
            if not opened or opened.pop() + 2 != code:
                raise CodecError(f"brackets do not match: {chr(code)!r} closes what was not opened")
        elif token[1] is not None:
            return 0
        if not opened:
            return token.end()
    return 0


def _last_comma(window: bytes, tokens: list[re.Match[bytes]]) -> tuple[int, int]:
    """The last comma outside strings, and how many tokens stand before it; -1 where there is none."""
    limit = len(window)
    for n_tokens in range(len(tokens), -1, -1):
        if n_tokens and tokens[n_tokens - 1][1] is not None:
            limit = tokens[n_tokens - 1].start()
            continue
        start = tokens[n_tokens - 1].end() if n_tokens else 0
        comma = window.rfind(b",", start, limit)
        if comma >= 0:
            return comma, n_tokens
        if n_tokens:
            limit = tokens[n_tokens - 1].start()
    return -1, 0


def check_cut(text: bytes, start: int, end: int, *, continues: bool, goes_on: bool) -> None:
    """Raise `CodecError` where completing text[start:end] with brackets would hide a comma without a value beside it.

    *continues*: a comma stands before the piece. *goes_on*: one stands behind it.
    """
    first, last = text[start : start + 1], text[end - 1 : end]
    if first in _SPACE or last in _SPACE:
        stripped = text[start:end].strip(_SPACE)
        first, last = stripped[:1], stripped[-1:]
    if (continues and first in (b"", b"]", b"}")) or (goes_on and last in (b"", b"[", b"{")):
        raise CodecError("a comma without a value beside it")


def _is_key(text: bytes, wanted: bytes) -> bool:
    """Whether the key token *text* (quotes, maybe blanks and a colon) is *wanted* (with quotes)."""
    if text.startswith(wanted):
        return True
    if b"\\" not in text:
        return False
    try:
        return b'"%b"' % msgspec.json.decode(text[: text.rfind(b'"') + 1], type=str).encode() == wanted
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


def parse_object(text: bytes) -> Members:
    """The members of the JSON object *text*, each as the JSON it came as; of two with one key the last.

    Raises `CodecError` if it is not JSON, not UTF-8, not an object, or nested too deep to be read.
    """
    return {key: bytes(value) for key, value in _decode(_OBJECT_DECODER, text).items()}


def parse_objects(text: bytes) -> list[Members]:
    """The same for a JSON array of objects."""
    return [{key: bytes(value) for key, value in item.items()} for item in _decode(_OBJECTS_DECODER, text)]


def _decode(decoder: msgspec.json.Decoder[T], text: bytes) -> T:
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into the strings of a Raw
        return decoder.decode(text)
    except UnicodeDecodeError as error:
        raise CodecError(f"JSON is not UTF-8: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise CodecError("JSON is nested too deep to be read") from None
    except msgspec.DecodeError as error:
        words = str(error).replace("JSON is malformed", "malformed JSON")
        raise CodecError(words.replace("Input data was truncated", "JSON is cut off")) from None


_MARKERS = 2**63 - 1
_LITERALS = (b"NaN", b"Infinity", b"-Infinity")


def protect_literals(text: bytes) -> tuple[bytes, bytes]:
    """Put numbers in place of NaN, Infinity and -Infinity: no JSON, but written by many servers and clients.

    Returns the text and a marker for `restore_literals`; the marker is empty if there was nothing to protect.
    """
    if b"NaN" not in text and b"Infinity" not in text:
        return text, b""
    # nobody can write down a number that depends on all that is written, so this is one look
    number = hash(text) & _MARKERS
    while (marker := b"1%019d" % number) in text:
        number = (number + 1) & _MARKERS

    def protect(match: re.Match[bytes]) -> bytes:
        return match[0] if match[0].startswith(b'"') else b"%b%d" % (marker, _LITERALS.index(match[0]))

    protected, _ = _STRING_OR_NONFINITE.subn(protect, text)
    return (protected, marker) if protected != text else (text, b"")


def restore_literals(text: bytes, marker: bytes) -> bytes:
    """Undo `protect_literals`, in a part of what it returned."""
    if not marker:
        return text
    for index, literal in enumerate(_LITERALS):
        text = text.replace(b"%b%d" % (marker, index), literal)
    return text
