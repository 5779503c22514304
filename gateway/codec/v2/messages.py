"""Requests and answers of V2 as their JSON says them, beside the `data` of their tensors.

A message is small there (`limits.header`), so it is split in a few calls into members whose values are the texts that
came, in the order in which they came; what a member says is judged by whoever uses it. Members that the protocol does
not know stay among the others. NaN and the infinities do so too (protocol 2.7), as stand-ins: `printed`, `text_of` and
`excerpt` undo them, and whoever looks at a text otherwise.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from msgspec import Meta, Raw

from gateway.codec.inference import HeaderLimits, label_of
from gateway.codec.json.arriving import STEP, ArrivingText, Reading, read_items, read_members
from gateway.codec.json.members import OBJECT, decoded, excerpt, protect_literals, restore_literals, restore_members
from gateway.codec.json.pieces import ARRAY, SPACE
from gateway.codec.json.pieces import OBJECT as BRACE
from gateway.codec.tensors.datatypes import DATATYPES, Datatype
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.errors import CodecError, TooLargeError

L = TypeVar("L")

Parameters = dict[str, Raw]


class Entry(TypedDict, total=False):
    """What a message says of one input or output; there may be members that the protocol does not know."""

    name: Raw
    shape: Raw
    datatype: Raw
    parameters: Parameters | None
    data: Any
    """Its text, as `Raw`; of long data what `TakeData` returns."""


class Request(TypedDict, total=False):
    """A request; there may be members that the protocol does not know."""

    id: Raw
    parameters: Parameters | None
    inputs: list[Entry]
    outputs: list[Entry] | None


class Answer(TypedDict, total=False):
    """An answer; there may be members that the protocol does not know."""

    model_name: Raw
    model_version: Raw
    id: Raw
    parameters: Raw
    outputs: list[Entry]


MAX_RANK = 64
"""The most dimensions a shape may have; frameworks stop at 32 or 64."""

MAX_DIMENSION = 2**63 - 1
"""The largest dimension: shapes are 64-bit signed integers in every server."""

Declaration = tuple[str, Datatype, tuple[int, ...]]
"""Name, datatype and shape."""

_Shape = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_DIMENSION)], ...], Meta(max_length=MAX_RANK)]

M = TypeVar("M", Request, Answer)

TakeData = Callable[[ArrivingText, Entry], Reading[Any]]
"""Reads the long `data` of an entry, whose members before it are known; returns what the entry gets in its place."""

ABSENT = frozenset((b"", b"null", b'""'))
"""The texts of an `id` that is none (protocol 2.8)."""

LATER = b"\0"
"""Stands in a printed message for `data` whose text comes later. No JSON has this byte."""

RUN_BYTES = 1024
"""How much text of short members and entries is read together. If one is longer, the text was searched in vain."""

LIST_LATER = Raw(b"[%b]" % LATER)
"""Stands for `data` of which only the inside of the array comes later."""

_SECTIONS: dict[type, tuple[str, ...]] = {Request: ("inputs", "outputs"), Answer: ("outputs",)}
"""The arrays of entries in each message, of which the first must be there."""

_ENTRIES = msgspec.json.Decoder(list[Parameters] | None)
_PARAMETERS = msgspec.json.Decoder(Parameters | None)
_STRING = msgspec.json.Decoder(str)
_DECLARATION = msgspec.json.Decoder(tuple[str, Literal[tuple(DATATYPES)], _Shape])  # type: ignore[misc]
_ENCODER = msgspec.json.Encoder()


def read_message(said: dict[str, Any], kind: type[M], max_tensors: int) -> M:
    """The request or answer whose members are *said*, as *kind* says; its sections may be split into entries already.

    Raises `CodecError` that says what is wrong.
    """
    sections, section = _SECTIONS[kind], ""
    try:
        if kind is Request and "parameters" in said:
            said["parameters"] = _PARAMETERS.decode(said["parameters"])
        for section in filter(said.__contains__, sections):
            value = said[section]
            said[section] = entries = value if isinstance(value, list) else _ENTRIES.decode(value)
            if entries and len(entries) > max_tensors:
                raise _too_many(section, max_tensors)
            for index, entry in enumerate(entries or ()):  # noqa: B007  an error shows it
                if "parameters" in entry:
                    entry["parameters"] = _PARAMETERS.decode(entry["parameters"])
    except msgspec.DecodeError:
        what, value = "parameters must be an object", said.get("parameters")
        if section and isinstance(said[section], Raw):
            what, value = f"`{section}` must be an array of objects", said[section]
        elif section:
            what, value = f"{label_of_entry(entry, section[:-1], index)}: {what}", entry["parameters"]
        raise CodecError(f"{what}, got {excerpt(bytes(value))}") from None
    if said.get(sections[0]) is None:
        raise CodecError(f"no `{sections[0]}`{_what_else(said)}")
    return said  # type: ignore[return-value]


def _too_many(section: str, max_tensors: int) -> CodecError:
    return CodecError(f"more than {max_tensors} entries in `{section}`, which is the most that `limits.tensors` allows")


def _what_else(said: dict[str, Any]) -> str:
    """What is *said* where a section is missing: the words of an error, or nothing (protocol 4.9, 1.6)."""
    words = words_of(restore_members({key: said[key] for key in WORD_MEMBERS if key in said}))
    return f", but an error: {shortened(words)}" if words else " array"


def printed(message: Mapping[str, Any], later: Sequence[Sequence[L]] = ()) -> list[bytes | L]:
    """*message* as JSON, in pieces: each `LATER` gives way to one of the values that come *later*, in one or more."""
    text = restore_literals(_ENCODER.encode(message))
    if not later:
        return [text]
    beginning, *texts_behind = text.split(LATER)
    pieces: list[bytes | L] = [beginning]
    for values, behind in zip(later, texts_behind, strict=True):
        pieces += values
        pieces.append(behind)
    return pieces


class ArrivingMessage:
    """A message that is read while it arrives. Long `data` is read by the function that the caller gives."""

    def __init__(self, kind: Any, limits: HeaderLimits, take_data: TakeData, *, is_all: bool = True) -> None:
        """*kind* is `Request` or `Answer`. *is_all*: only blanks may come behind it."""
        self.text = ArrivingText(RUN_BYTES)
        self.done = False
        """Whether the message has ended."""
        self.data_bytes = 0
        """How much memory the short data takes, whose text is kept."""
        self._short_bytes = 0  # how much of the text that is; stand-ins for literals are longer than these
        self._said: dict[str, Any] = {}
        self._entries: list[Any] = []  # of the section, if that is long
        self._kind = kind
        self._section = _SECTIONS[kind][0]
        self._limits = limits
        self._take_data = take_data
        self._is_all = is_all

    @property
    def header_bytes(self) -> int:
        """How much JSON beside data has been read; a section of less than `RUN_BYTES` counts with its data."""
        return self.text.consumed - self.text.poured - self._short_bytes

    def message(self) -> Any:
        """The message, when it is `done`. Raises `CodecError` as `read_message` does."""
        return read_message(self._said, self._kind, self._limits.max_tensors)

    def go_on(self, reading: Reading[None]) -> Generator[None, None, None]:
        """Go on with *reading*, which `read` has made, as far as the text goes; yields after each step of work.

        The caller holds *reading*: here, a tensor in it would wait for the garbage collector. Raises `TooLargeError`,
        and `CodecError` for what is no JSON.
        """
        is_step: bool | None = True
        while is_step is not None:
            is_step = next(reading, None)
            if self.header_bytes > self._limits.max_header_bytes:
                raise TooLargeError(
                    f"the JSON beside the tensors' data is longer than {self._limits.max_header_bytes:d} bytes, "
                    "which is the most that `limits.header` allows"
                )
            if is_step is False:
                return
            yield
        self.done = True
        if self._is_all:
            if self.text.buffer.strip(SPACE):
                raise CodecError(f"malformed JSON: trailing characters behind {self.text.consumed} bytes")
            self.text.buffer.clear()

    def read(self) -> Reading[None]:
        """Read the message that the text begins with."""
        if (yield from self.text.first()) != BRACE:
            raise CodecError(f"expected a JSON object, got {self.text.buffer[:16].decode('latin-1')!r}")
        yield from self._object(self._said, self._member)

    def _object(self, said: Any, read_long: Callable[[str], Reading[None]]) -> Reading[None]:
        """Read the message, or an entry, into what is *said*."""

        # quoted, because an annotation of an inner function is made anew each time, which takes 2.5 us here
        def take(members: Parameters) -> "Reading[None]":
            said.update(members)
            return self._step([members] if said is not self._said else [])

        return read_members(self.text, take, read_long, lambda text: decoded(OBJECT, text))

    def _step(self, kept: list[Any]) -> Reading[None]:
        """End a step that has *kept* what entries say."""
        texts = [bytes(entry["data"]) for entry in kept if "data" in entry]
        self.data_bytes += sum(map(len, texts))
        self._short_bytes += sum(map(len, map(restore_literals, texts)))
        if len(self._entries) > self._limits.max_tensors:
            raise _too_many(self._section, self._limits.max_tensors)
        yield STEP

    def _member(self, name: str) -> Reading[None]:
        """Read the long member *name* of the message."""
        if name != self._section or (yield from self.text.first()) != ARRAY:
            self._said[name] = yield from self._value(name)
            return
        self._said[name] = self._entries = []

        def take(entries: list[Any]) -> "Reading[None]":
            self._entries.extend(entries)
            return self._step(entries)

        yield from read_items(self.text, lambda text: decoded(_ENTRIES, text) or [], take, self._entry)

    def _entry(self) -> Reading[None]:
        """Read a long entry."""
        if (yield from self.text.first()) != BRACE:
            raise CodecError(f"`{self._section}` must be an array of objects")
        entry: Any = {}
        self._entries.append(entry)
        yield from self._step([])

        def read_long(name: str) -> "Reading[None]":
            entry[name] = yield from self._take_data(self.text, entry) if name == "data" else self._value(name)

        yield from self._object(entry, read_long)

    def _value(self, name: str) -> Reading[Raw]:
        return Raw(protect_literals((yield from self.text.value(name))))


# What a message says, judged


def text_of(value: Raw | None) -> str | None:
    """The string that *value* is; None if it is none."""
    try:
        return None if value is None else _STRING.decode(restore_literals(bytes(value)))
    except msgspec.DecodeError:
        return None


def label_of_entry(entry: Entry, section: str, index: int) -> str:
    """How errors call *entry*, number *index* of its *section*, `input` or `output`."""
    name = text_of(entry.get("name"))
    return f"{section} {index}" if name is None else label_of(section, name)


def declaration(entry: Entry, section: str, index: int) -> Declaration:
    """What *entry*, number *index* of its *section*, `input` or `output`, says of its tensor (protocol 2.2).

    Raises `CodecError` for a name that is no string, a datatype that is none of the fourteen, and a shape that is no
    list of integers >= 0.
    """
    try:
        text = b"".join((b"[", entry["name"], b",", entry["datatype"], b",", entry["shape"], b"]"))
        name, datatype, shape = _DECLARATION.decode(restore_literals(text))
    except (KeyError, msgspec.DecodeError):
        label = label_of(section, name_of(entry, section, index))
        if text_of(entry.get("datatype")) in DATATYPES:
            wrong, got = f"shape must be a list of at most {MAX_RANK} integers >= 0", entry.get("shape")
        else:
            wrong, got = f"datatype must be one of {' '.join(DATATYPES)}, in upper case", entry.get("datatype")
        raise CodecError(f"{label}: {wrong}, got {_shown(got)}") from None
    return name, DATATYPES[datatype], shape


def name_of(entry: Entry, section: str, index: int) -> str:
    """The tensor's name, of an *entry* as for `declaration`. Raises `CodecError` if it is no string (protocol 2.2)."""
    try:
        return _STRING.decode(restore_literals(bytes(entry["name"])))
    except (KeyError, msgspec.DecodeError):
        raise CodecError(f"{section} {index}: name must be a string, got {_shown(entry.get('name'))}") from None


def _shown(value: Raw | None) -> str:
    return "none" if value is None else excerpt(bytes(value))
