"""Requests and answers of V2 as their JSON says them, beside the `data` of their tensors.

A message is small there (`limits.header`), so it is split in a few calls into members whose values are the texts that
came, in the order in which they came; what a member says is judged by whoever uses it. Members that the protocol does
not know stay among the others, and so do NaN and the infinities (protocol 2.7).
"""

from collections.abc import Generator
from typing import Any, TypedDict, TypeVar, cast

import msgspec
from msgspec import Raw

from gateway.codec.inference import label_of
from gateway.codec.json.members import (
    excerpt,
    protect_literals,
    restore_literals,
    split_object,
)
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.errors import CodecError

T = TypeVar("T")

Parameters = dict[str, Raw]

STEP_MEMBERS = 64
"""How many members, of a message with NaN in it, are looked at in one step."""


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


LATER = b"\0"
"""The `data` of an entry whose text is not known when the message is printed; no JSON has it."""

LIST_LATER = Raw(b"[%b]" % LATER)
"""The same where only the inside of the array comes later."""

_ENTRIES = msgspec.json.Decoder(list[Parameters] | None)
_PARAMETERS = msgspec.json.Decoder(Parameters | None)
_STRING = msgspec.json.Decoder(str)

printed = msgspec.json.Encoder().encode
"""A message as JSON, with `LATER` where that is the `data` of an entry."""


def read_request(text: bytes, max_tensors: int) -> Generator[None, None, Request]:
    """The request that *text* is. Yields after each step of work. Raises `CodecError` that says what is wrong."""
    return _read(text, ("inputs", "outputs"), max_tensors)


def read_answer(text: bytes, max_tensors: int) -> Generator[None, None, Answer]:
    """The answer that *text* is, as `read_request`."""
    return _read(text, ("outputs",), max_tensors)


def read_description(text: bytes) -> Entry:
    """Name, shape and datatype of the entry that *text* is the beginning of. Raises `CodecError` for no object."""
    text, marker = protect_literals(text)
    said = split_object(text)
    known = ((key, said[key]) for key in ("name", "shape", "datatype") if key in said)
    return cast(Entry, {key: Raw(restore_literals(bytes(text), marker)) for key, text in known})


def _read(text: bytes, sections: tuple[str, ...], max_tensors: int) -> Generator[None, None, Any]:
    """The message that *text* is, whose *sections* are arrays of entries; the first must be there."""
    try:
        return _split(text, sections, max_tensors, b"")
    except CodecError:
        protected, marker = protect_literals(text)
        if not marker:
            raise
    yield
    message = _split(protected, sections, max_tensors, marker)
    yield from _restore(message, marker)
    return message


def _split(text: bytes, sections: tuple[str, ...], max_tensors: int, marker: bytes) -> dict[str, Any]:
    """The members of *text*, of its *sections*, and of parameters; *marker* stands for literals."""
    said: dict[str, Any] = split_object(text)
    if "parameters" in said and "inputs" in sections:
        said["parameters"] = _part(_PARAMETERS, said["parameters"], marker, "parameters must be an object")
    for section in filter(said.__contains__, sections):
        entries = _part(_ENTRIES, said[section], marker, f"`{section}` must be an array of objects")
        if entries and len(entries) > max_tensors:
            words = f"more than {max_tensors} entries in `{section}`, which is the most that `limits.tensors` allows"
            raise CodecError(words)
        for index, entry in enumerate(entries or ()):
            if "parameters" in entry:
                place = entry, section[:-1], index
                entry["parameters"] = _part(
                    _PARAMETERS, entry["parameters"], marker, "parameters must be an object", *place
                )
        said[section] = entries
    if said.get(sections[0]) is None:
        words = words_of({key: restore_literals(bytes(said[key]), marker) for key in WORD_MEMBERS if key in said})
        what = f", but an error: {shortened(words)}" if words else " array"  # protocol 4.9, 1.6
        raise CodecError(f"no `{sections[0]}`{what}")
    return said


def _part(decoder: msgspec.json.Decoder[T], text: Raw, marker: bytes, expected: str, *place: Any) -> T:
    """What *decoder* makes of *text*, which is in the entry at *place*, if that is given.

    Raises `CodecError` for what is not *expected*.
    """
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:
        shown = excerpt(restore_literals(bytes(text), marker))
        where = f"{label_of_entry(*place)}: " if place else ""
        raise CodecError(restore_literals(f"{where}{expected}, got {shown}".encode(), marker).decode()) from None


def _restore(members: dict[str, Any], marker: bytes) -> Generator[None, None, None]:
    """Put literals into *members*, and into what they have in them, where *marker* stands for them."""
    items, word = list(members.items()), marker.decode()
    members.clear()
    for number, (key, value) in enumerate(items, 1):
        restored_key = restore_literals(key.encode(), marker).decode() if word in key else key
        members[restored_key] = Raw(restore_literals(bytes(value), marker)) if isinstance(value, Raw) else value
        inside = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
        for each in inside:
            yield from _restore(each, marker)
            yield
        if number % STEP_MEMBERS == 0:
            yield


# What a message says, judged


def text_of(value: Raw | None) -> str | None:
    """The string that *value* is; None if it is none."""
    try:
        return None if value is None else _STRING.decode(value)
    except msgspec.DecodeError:
        return None


def label_of_entry(entry: Entry, section: str, index: int) -> str:
    """How errors call *entry*, number *index* of its *section*, `input` or `output`."""
    name = text_of(entry.get("name"))
    return f"{section} {index}" if name is None else label_of(section, name)


def take_parameter(said: Entry | Request, key: str) -> bytes:
    """Take the parameter *key* out of what is *said*, as JSON text; null if it is absent. No parameters go."""
    parameters = said.get("parameters")
    if not parameters or key not in parameters:
        return b"null"
    text = bytes(parameters.pop(key))
    if not parameters:
        del said["parameters"]
    return text
