"""Requests and answers of V2 as their JSON says them, beside the `data` of their tensors.

A message is small there (`limits.header`), so it is read in one call, into structs whose members are the texts that
came; what a member says is judged by whoever uses it. The structs take what the protocol names and nothing else. Where
they refuse a text, `uncommon_request` and `uncommon_answer` read it again, with plain code that can word what is wrong
with it, and that lets pass what is only uncommon: members that the protocol does not know, NaN and the infinities.

Printed, the members of a message and of its tensors have the order of the structs, behind those that the protocol does
not know (protocol 3.2, 4.4).
"""

from collections.abc import Generator, Sized
from itertools import islice
from typing import ClassVar, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gateway.codec.inference import label_of
from gateway.codec.json.members import (
    RawMembers,
    decoded,
    excerpt,
    protect_literals,
    restore_literals,
    restore_members,
    split_object,
    split_objects,
)
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.errors import CodecError

Text = Raw | UnsetType
"""A member's value as it came; UNSET if it is not there."""

Parameters = dict[str, Raw]

STEP_ENTRIES = 64
"""How many entries, and how many parameters of one, are looked at in one step where the structs refuse a message."""


class Description(msgspec.Struct, gc=False):
    """What a tensor is."""

    name: Text = UNSET
    shape: Text = UNSET
    datatype: Text = UNSET


class Entry(Description, forbid_unknown_fields=True, gc=False):
    """What a message says of one input or output."""

    others: ClassVar[bytes] = b""
    """The members that the protocol does not know, as the inside of an object."""

    parameters: Parameters | UnsetType | None = UNSET
    data: Text = UNSET


class Request(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """A request."""

    others: ClassVar[bytes | None] = None
    """The members that the protocol does not know, as the inside of an object; None: no entry has any either."""

    id: Text = UNSET
    parameters: Parameters | UnsetType | None = UNSET
    inputs: list[Entry]
    outputs: list[Entry] | UnsetType | None = UNSET


class Answer(msgspec.Struct, forbid_unknown_fields=True, gc=False, kw_only=True):
    """An answer."""

    others: ClassVar[bytes | None] = None

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
_DESCRIPTION = msgspec.json.Decoder(Description)
_PARAMETERS = msgspec.json.Decoder(Parameters)
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


def read_description(text: bytes) -> Description:
    """What the tensor is of which *text* is the entry. Raises `CodecError` if that is no object."""
    text, marker = protect_literals(text)
    said = decoded(_DESCRIPTION, text)
    return Description(*[_restored(value, marker) for value in (said.name, said.shape, said.datatype)])


def uncommon_request(text: bytes, max_tensors: int) -> Generator[None, None, Request]:
    """The request that *text* is.

    Yields after each step of work. Raises `CodecError` that says what is wrong with it.
    """
    text, marker = protect_literals(text)
    top = split_object(text)
    yield
    inputs, outputs, parameters = (top.pop(key, _NULL) for key in ("inputs", "outputs", "parameters"))
    known, others = _told_apart(top, marker, Request)
    if bytes(inputs) == b"null":  # protocol 1.6
        raise CodecError("the request has no `inputs` array")
    entries = yield from _entries(inputs, marker, "inputs", max_tensors)
    request = _UncommonRequest(inputs=entries, **known)  # type: ignore[arg-type]
    if bytes(outputs) != b"null":  # protocol 2.8
        request.outputs = yield from _entries(outputs, marker, "outputs", max_tensors)
    if parameters is not _NULL:
        request.parameters = yield from _parameters(parameters, marker, "")
    request.others = others  # type: ignore[misc]
    return request


def uncommon_answer(text: bytes, max_tensors: int) -> Generator[None, None, Answer]:
    """The answer that *text* is, as `uncommon_request`."""
    text, marker = protect_literals(text)
    top = split_object(text)
    if "outputs" not in top:
        words = words_of({key: restore_literals(bytes(top[key]), marker) for key in WORD_MEMBERS if key in top})
        raise CodecError(
            f"no `outputs`, but an error: {shortened(words)}" if words else "no `outputs` array"
        )  # protocol 4.9
    outputs = top.pop("outputs")
    known, others = _told_apart(top, marker, Answer)
    entries = yield from _entries(outputs, marker, "outputs", max_tensors)
    answer = _UncommonAnswer(outputs=entries, **known)
    answer.others = others  # type: ignore[misc]
    return answer


def check_count(entries: Sized | UnsetType | None, key: str, max_tensors: int) -> None:
    """Raise `CodecError` for more *entries* in the array *key* than *max_tensors*."""
    if entries and len(entries) > max_tensors:
        raise CodecError(f"more than {max_tensors} entries in `{key}`, which is the most that `limits.tensors` allows")


def printed(message: Message) -> bytes:
    """*message* as JSON, with `LATER` where that is the `data` of an entry."""
    if message.others is None:
        return _encode(message)
    for entries in (message.outputs, getattr(message, "inputs", None)):
        for index, entry in enumerate(entries or ()):
            entries[index] = Raw(_with_others(entry))  # type: ignore[index, call-overload]
    return _with_others(message)


_NULL = Raw(b"null")

LATER = b"\0"
"""The `data` of an entry whose text is not known when the message is printed; no JSON has it."""

LIST_LATER = Raw(b"[%b]" % LATER)
"""The same where only the inside of the array comes later."""


def _restored(value: Text, marker: bytes) -> Text:
    return value if value is UNSET or not marker else Raw(restore_literals(bytes(value), marker))


def _told_apart(members: RawMembers, marker: bytes, kind: type[msgspec.Struct]) -> tuple[RawMembers, bytes]:
    """The *members* that *kind* has, and the inside of an object with all others; *marker* stands for literals."""
    known = {name: members.pop(name) for name in kind.__struct_fields__ if name in members}
    if marker:
        known = {name: Raw(restore_literals(bytes(value), marker)) for name, value in known.items()}
    return known, restore_literals(_encode(members)[1:-1], marker) if members else b""


def _entries(text: Raw, marker: bytes, section: str, max_tensors: int) -> Generator[None, None, list[Entry]]:
    try:
        found = split_objects(bytes(text))
    except CodecError:
        shown = excerpt(restore_literals(bytes(text), marker))
        raise CodecError(f"`{section}` must be an array of objects, got {shown}") from None
    check_count(found, section, max_tensors)
    yield
    entries: list[Entry] = []
    for members in found:
        entries.append((yield from _entry(members, marker, section[:-1], len(entries))))
        if len(entries) % STEP_ENTRIES == 0:
            yield
    return entries


def _entry(members: RawMembers, marker: bytes, what: str, index: int) -> Generator[None, None, Entry]:
    parameters = members.pop("parameters", None)
    known, others = _told_apart(members, marker, Entry)
    entry = _UncommonEntry(**known)  # type: ignore[arg-type]
    if parameters is not None:
        name = text_of(entry.name)
        where = f"{what} {index}: " if name is None else f"{label_of(what, name)}: "
        entry.parameters = yield from _parameters(parameters, marker, where)
    entry.others = others  # type: ignore[misc]
    return entry


def _parameters(text: Raw, marker: bytes, where: str) -> Generator[None, None, Parameters | None]:
    """Raises `CodecError` if *text* is neither an object nor null (protocol 2.8)."""
    if bytes(text) == b"null":
        return None
    try:
        parameters = _PARAMETERS.decode(text)
    except (msgspec.DecodeError, RecursionError):
        shown = excerpt(restore_literals(bytes(text), marker))
        raise CodecError(f"{where}parameters must be an object, got {shown}") from None
    if not marker:
        return parameters
    restored: Parameters = {}
    items = iter(parameters.items())
    while some := restore_members(dict(islice(items, STEP_ENTRIES)), marker):
        restored.update((key, Raw(value)) for key, value in some.items())
        if len(some) == STEP_ENTRIES:
            yield
    return restored


def _with_others(struct: Entry | Message) -> bytes:
    """*struct* as JSON, with the members that the protocol does not know before all others."""
    others = struct.others or b""
    members = _encode(struct)[1:-1]
    return b"{%b%b%b}" % (others, b"," if others and members else b"", members)


# What an entry says, judged


def text_of(value: Text) -> str | None:
    """The string that *value* is; None if it is none."""
    try:
        return _STRING.decode(value) if value is not UNSET else None
    except msgspec.DecodeError:
        return None
