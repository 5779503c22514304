"""Requests and answers of V2 as their JSON says them, beside the `data` of their tensors.

A message is small there (`limits.header`), so it is split in a few calls into members whose values are the texts that
came, in the order in which they came; what a member says is judged by whoever uses it. Members that the protocol does
not know stay among the others. NaN and the infinities do so too (protocol 2.7), as stand-ins: `printed`, `text_of` and
`excerpt` undo them, and whoever looks at a text otherwise.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import msgspec
from msgspec import Raw

from gateway.codec.inference import label_of
from gateway.codec.json.members import OBJECT, STAND_IN, decoded, excerpt, restore_literals, restore_members
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.errors import CodecError

L = TypeVar("L")

Parameters = dict[str, Raw]


class Entry(TypedDict, total=False):
    """What a message says of one input or output; there may be members that the protocol does not know."""

    name: Raw
    shape: Raw
    datatype: Raw
    parameters: Parameters | None
    data: Raw


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


M = TypeVar("M", Request, Answer)

LATER = b"\0"
"""The `data` of an entry whose text is not known when the message is printed; no JSON has it."""

LIST_LATER = Raw(b"[%b]" % LATER)
"""The same where only the inside of the array comes later."""

_SECTIONS: dict[type, tuple[str, ...]] = {Request: ("inputs", "outputs"), Answer: ("outputs",)}
"""The arrays of entries in each message, of which the first must be there."""

_ENTRIES = msgspec.json.Decoder(list[Parameters] | None)
_PARAMETERS = msgspec.json.Decoder(Parameters | None)
_STRING = msgspec.json.Decoder(str)
_ENCODER = msgspec.json.Encoder()


def read_message(text: bytes, kind: type[M], max_tensors: int) -> M:
    """The request or answer that *text* is, as *kind* says. Raises `CodecError` that says what is wrong."""
    said: dict[str, Any] = decoded(OBJECT, text)
    sections = _SECTIONS[kind]
    section, index = "", -1
    try:
        if kind is Request and "parameters" in said:
            value = said["parameters"]
            said["parameters"] = _PARAMETERS.decode(value)
        for section in sections:
            if section not in said:
                continue
            index, value = -1, said[section]
            said[section] = entries = _ENTRIES.decode(value)
            if entries and len(entries) > max_tensors:
                what = f"more than {max_tensors} entries in `{section}`"
                raise CodecError(f"{what}, which is the most that `limits.tensors` allows")
            for index, entry in enumerate(entries or ()):  # noqa: B007  an error shows it
                if "parameters" in entry:
                    value = entry["parameters"]
                    entry["parameters"] = _PARAMETERS.decode(value)
    except msgspec.DecodeError:
        what = "parameters must be an object"
        if index >= 0:
            what = f"{label_of_entry(entry, section[:-1], index)}: {what}"
        elif section:
            what = f"`{section}` must be an array of objects"
        raise CodecError(f"{what}, got {excerpt(bytes(value))}") from None
    if said.get(sections[0]) is None:
        raise CodecError(f"no `{sections[0]}`{_what_else(said)}")
    return said  # type: ignore[return-value]


def _what_else(said: dict[str, Any]) -> str:
    """What is *said* where a section is missing: the words of an error, or nothing (protocol 4.9, 1.6)."""
    words = words_of(restore_members({key: said[key] for key in WORD_MEMBERS if key in said}))
    return f", but an error: {shortened(words)}" if words else " array"


def printed(message: Mapping[str, Any], later: Sequence[Sequence[L]] = ()) -> list[bytes | L]:
    """*message* as JSON, in pieces: each `LATER` gives way to one of the values that come *later*, in one or more."""
    text = _ENCODER.encode(message)
    if STAND_IN in text:
        text = restore_literals(text)
    if not later:
        return [text]
    beginning, *texts_behind = text.split(LATER)
    pieces: list[bytes | L] = [beginning]
    for values, behind in zip(later, texts_behind, strict=True):
        pieces += values
        pieces.append(behind)
    return pieces


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
