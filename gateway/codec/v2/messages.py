"""Requests and answers of V2 as their JSON says them, beside the `data` of their tensors.

A message is small there (`limits.header`), so it is read in one call, into structs whose members are the texts that
came; what a member says is judged by whoever uses it. The structs take what the protocol names and nothing else. Where
they refuse a text, `uncommon_request` and `uncommon_answer` read it again, with plain code that can word what is wrong
with it, and that lets pass what is only uncommon: members that the protocol does not know, NaN and the infinities.

Printed, the members of a message and of its tensors have the order of the structs, behind those that the protocol does
not know (protocol 3.2, 4.4).
"""

from typing import ClassVar, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gateway.codec.inference import label_of
from gateway.codec.json.members import Members, excerpt, members_of, object_text, parse_object, parse_objects
from gateway.codec.v2.error_bodies import shortened, words_of
from gateway.errors import CodecError

Text = Raw | UnsetType
"""A member's value as it came; UNSET if it is not there."""

Parameters = dict[str, Raw]


class Entry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a message says of one input or output."""

    others: ClassVar[bytes] = b""
    """The members that the protocol does not know, as the inside of an object."""

    name: Text = UNSET
    shape: Text = UNSET
    datatype: Text = UNSET
    parameters: Parameters | UnsetType | None = UNSET
    data: Text = UNSET


class Request(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """A request."""

    others: ClassVar[bytes] = b""

    id: Text = UNSET
    parameters: Parameters | UnsetType | None = UNSET
    inputs: list[Entry]
    outputs: list[Entry] | UnsetType | None = UNSET


class Answer(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """An answer."""

    others: ClassVar[bytes] = b""

    model_name: Text = UNSET
    model_version: Text = UNSET
    id: Text = UNSET
    parameters: Text = UNSET
    outputs: list[Entry]


Message = Request | Answer
M = TypeVar("M", Request, Answer)


class _UncommonEntry(Entry, gc=True, dict=True):
    """An entry that has `others` of its own."""


class _UncommonRequest(Request, gc=True, dict=True):
    """A request that has `others` of its own."""


class _UncommonAnswer(Answer, gc=True, dict=True):
    """An answer that has `others` of its own."""


_DECODERS = {kind: msgspec.json.Decoder(kind) for kind in (Request, Answer)}
_ENTRY = msgspec.json.Decoder(Entry)
_STRING = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode


def read(kind: type[M], text: bytes) -> M | None:
    """The message that *text* is; None if the structs refuse it."""
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into the strings of a Raw
        return _DECODERS[kind].decode(text)  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_entry(text: bytes, section: str, index: int) -> Entry:
    """What *text* says of the tensor with number *index* of its *section*, `input` or `output`. Raises `CodecError`."""
    try:
        text.decode()
        return _ENTRY.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _entry(parse_object(text), section, index)


def uncommon_request(top: Members, max_tensors: int) -> Request:
    """The request with the members *top*. Raises `CodecError` that says what is wrong with it."""
    known, others = _told_apart(top, Request)
    if known.get("inputs", b"null") == b"null":  # protocol 1.6
        raise CodecError("the request has no `inputs` array")
    request = _UncommonRequest(inputs=_entries(known["inputs"], "inputs", max_tensors))
    if known.get("outputs", b"null") != b"null":  # protocol 2.8
        request.outputs = _entries(known["outputs"], "outputs", max_tensors)
    if "id" in known:
        request.id = Raw(known["id"])
    if "parameters" in known:
        request.parameters = _parameters(known["parameters"], "")
    request.others = others  # type: ignore[misc]
    return request


def uncommon_answer(top: Members, max_tensors: int) -> Answer:
    """The answer with the members *top*. Raises `CodecError` that says what is wrong with it."""
    if "outputs" not in top and (words := words_of(top)):  # protocol 4.9
        raise CodecError(f"no `outputs`, but an error: {shortened(words)}")
    known, others = _told_apart(top, Answer)
    try:
        outputs = _entries(known.pop("outputs", b"null"), "outputs", max_tensors)
    except _NoArrayError:
        raise CodecError("no `outputs` array of objects") from None
    answer = _UncommonAnswer(outputs=outputs, **{key: Raw(text) for key, text in known.items()})
    answer.others = others  # type: ignore[misc]
    return answer


def check_count(entries: list[Entry] | list[Members] | UnsetType | None, key: str, max_tensors: int) -> None:
    """Raise `CodecError` for more *entries* in the array *key* than *max_tensors*."""
    if entries and len(entries) > max_tensors:
        raise CodecError(f"more than {max_tensors} entries in `{key}`, which is the most that `limits.tensors` allows")


def printed(message: Message) -> list[bytes]:
    """*message* as JSON, cut at each `data` that is `LATER`."""
    for entries in (message.outputs, getattr(message, "inputs", None)):
        for index, entry in enumerate(entries or ()):
            if entry.others:
                entries[index] = Raw(_with_others(entry))  # type: ignore[index, call-overload]
    text = _with_others(message) if message.others else _encode(message)
    return text.split(b"\0")  # which no JSON has


LATER = Raw(b"\0")
"""The `data` of an entry whose text is not known when the message is printed."""


class _NoArrayError(CodecError):
    """A section is no array of objects."""


def _told_apart(members: Members, kind: type[msgspec.Struct]) -> tuple[Members, bytes]:
    """The *members* that *kind* has, and the inside of an object with all others."""
    known = {name: members.pop(name) for name in kind.__struct_fields__ if name in members}
    return known, object_text(members)[1:-1]


def _entries(text: bytes, section: str, max_tensors: int) -> list[Entry]:
    try:
        entries = parse_objects(text)
    except CodecError:
        raise _NoArrayError(f"`{section}` must be an array of objects, got {excerpt(text)}") from None
    check_count(entries, section, max_tensors)
    return [_entry(members, section[:-1], index) for index, members in enumerate(entries)]


def _entry(members: Members, what: str, index: int) -> Entry:
    known, others = _told_apart(members, Entry)
    parameters = known.pop("parameters", None)
    entry = _UncommonEntry()
    for key, text in known.items():
        setattr(entry, key, Raw(text))
    if parameters is not None:
        name = text_of(entry.name)
        label = f"{what} {index}" if name is None else label_of(what, name)
        entry.parameters = _parameters(parameters, f"{label}: ")
    entry.others = others  # type: ignore[misc]
    return entry


def _parameters(text: bytes, where: str) -> Parameters | None:
    """Raises `CodecError` that begins with *where* if *text* is neither an object nor null (protocol 2.8)."""
    if text == b"null":
        return None
    return {key: Raw(value) for key, value in members_of(text, f"{where}parameters").items()}


def _with_others(struct: Entry | Message) -> bytes:
    """*struct* as JSON, with the members that the protocol does not know before all others."""
    members = _encode(struct)[1:-1]
    return b"{%b%b%b}" % (struct.others, b"," if struct.others and members else b"", members)


# What an entry says, judged


def text_of(value: Text) -> str | None:
    """The string that *value* is; None if it is none."""
    try:
        return _STRING.decode(value) if value is not UNSET else None
    except msgspec.DecodeError:
        return None
