"""A backend's answer: from its JSON, as it arrives, to the client's reply (protocol section 4).

Binary outputs become arrays while their text passes by; the text is gone at once. Only the text of
outputs that stay JSON is kept, because it is what the client gets, and that of an output whose `data`
comes before its `datatype` and `shape`, until these are known.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np
import orjson

from gateway.codec.json.members import (
    Members,
    excerpt,
    members_of,
    object_text,
    parse_object,
    parse_objects,
    protect_literals,
    restore_literals,
)
from gateway.codec.json.scanner import Scanner
from gateway.codec.json.sinks import Sink, TextSink
from gateway.codec.tensors.datatypes import DATATYPES, Datatype, Kind, element_count
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.string_reading import BytesSink, from_base64
from gateway.codec.v2.request import OutputSelection, parse_shape
from gateway.errors import CodecError

_STRING = msgspec.json.Decoder(str)

PLAIN_BYTES = 2048
"""The longest answer that is parsed as a whole; above it, looking for what is not plain costs more than walking."""

_PLAIN = frozenset(("name", "datatype", "shape", "data"))
_PLAIN_KEYS = tuple(b'"%b"' % key.encode() for key in _PLAIN)


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client gets: `header` and then `blobs`, none of them joined."""

    header: list[bytes]
    """The JSON, in pieces."""
    blobs: list[memoryview]
    """One per binary output, in the order of the outputs."""
    datatypes: list[str]
    """The datatype of each binary output."""
    nonfinite: int
    """How many NaN and infinities the backend wrote as null, literals or strings."""

    @property
    def is_binary(self) -> bool:
        """Whether the client gets octets behind the JSON, and so a header length."""
        return bool(self.blobs)

    @property
    def header_bytes(self) -> int:
        """The length of the JSON."""
        return sum(map(len, self.header))

    @property
    def n_bytes(self) -> int:
        """The length of the whole body."""
        return self.header_bytes + sum(map(len, self.blobs))


@dataclass(slots=True)
class _Value:
    """One `data` of the answer: where it went."""

    sink: Sink = field(init=False)
    datatype: Datatype | None = None
    shape: tuple[int, ...] = ()
    text: list[bytes] = field(default_factory=list)
    said: tuple[bytes | None, bytes | None] = (None, None)
    """Datatype and shape as the answer says them, before its `data`."""


class _Values:
    """Chooses a sink for each `data` of an answer, and keeps them.

    The scanner knows this and not the `InferAnswer`: in a circle, a tensor would wait for the garbage collector.
    """

    def __init__(self, selection: OutputSelection, declared: Mapping[str, str], max_bytes: int) -> None:
        self.opened: list[_Value] = []
        self._selection = selection
        self._declared = declared
        self._max_bytes = max_bytes

    def open_scanned(self, entry_text: Callable[[], bytes]) -> Sink:
        """The sink for an output's `data`, by what its entry has said so far."""
        return self.open(parse_object(protect_literals(entry_text())[0]))

    def open(self, entry: Members) -> Sink:
        """Choose the sink for an output's `data` by what its *entry* has said so far."""
        name = _text_of(entry, "name")
        self.restore_datatype(entry, name)
        value = _Value()
        is_wanted = name is None or self._selection.is_wanted(name)
        is_known = name is not None or not (self._selection.named or self._declared)
        if (
            is_wanted
            and is_known
            and self._selection.is_binary(name or "")
            and "datatype" in entry
            and "shape" in entry
        ):
            self.open_binary(value, entry, name or "")
        else:
            label = f"output {name!r}" if name is not None else f"output {len(self.opened)}"
            value.sink = TextSink(label, value.text if is_wanted else None)
        self.opened.append(value)
        return value.sink

    def restore_datatype(self, entry: Members, name: str | None) -> None:
        """Undo the promotion of an output's inputs, where the model declares a narrower datatype."""
        if name in self._declared and entry.get("datatype") == b'"FP32"':
            entry["datatype"] = b'"%b"' % self._declared[name or ""].encode()

    def open_binary(self, value: _Value, entry: Members, name: str) -> None:
        """Give *value* the sink that makes binary of it."""
        label, value.datatype, value.shape = self.tensor(entry, name)
        value.said = (entry.get("datatype"), entry.get("shape"))
        n_elements = element_count(value.shape)
        # every element takes a digit and a comma, or two quotes and a comma
        if n_elements * 2 - 1 > self._max_bytes:
            raise CodecError(
                f"{label}: {n_elements} elements cannot be in an answer of at most {self._max_bytes} bytes"
            )
        if value.datatype.kind is Kind.BYTES:
            value.sink = BytesSink(label, value.shape)
        else:
            value.sink = NumberSink(label, value.datatype, value.shape)

    def tensor(self, entry: Members, name: str) -> tuple[str, Datatype, tuple[int, ...]]:
        """How errors call an output, its datatype and its shape. Raises `CodecError` for wrong ones."""
        datatype = DATATYPES.get(_text_of(entry, "datatype") or "")
        if datatype is None:
            raise CodecError(f"output {name!r}: unknown datatype {_shown_member(entry, 'datatype')}")
        shape = parse_shape(entry["shape"]) if "shape" in entry else None
        if shape is None:
            raise CodecError(
                f"output {name!r}: shape must be a list of integers >= 0, got {_shown_member(entry, 'shape')}"
            )
        return f"output {name!r} ({datatype.name}, shape {list(shape)})", datatype, shape


class InferAnswer:
    """Reads one answer piece by piece: `feed` what arrives, then `finish`."""

    def __init__(
        self,
        selection: OutputSelection,
        *,
        model: str,
        request_id: bytes,
        max_bytes: int,
        declared: Mapping[str, str] | None = None,
    ) -> None:
        """*max_bytes* is the most JSON the caller will feed; no tensor can have more elements than that allows.

        *model* (the name in the path) and *request_id* (JSON text, or empty) are added where the backend
        leaves them out (protocol 4.6). *declared* are outputs by name whose inputs were promoted: where the
        backend says FP32, they get back the datatype that the model's metadata declares.
        """
        self._selection = selection
        self._model = model
        self._request_id = request_id
        self._values = _Values(selection, declared or {}, max_bytes)
        self._first: bytes | None = None
        self._scanner = Scanner("outputs", self._values.open_scanned)
        self._nonfinite = 0

    @property
    def held_bytes(self) -> int:
        """What the outputs take so far: arrays as a whole, elements and text as they have grown."""
        return sum(value.sink.held_bytes for value in self._values.opened)

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Take the next bytes of the JSON; yields after each step of work. Raises `CodecError`."""
        if self._first is None and len(chunk) <= PLAIN_BYTES:
            self._first = chunk  # it may be all
            return
        yield from self._scan(chunk)

    def finish(self) -> Generator[None, None, Reply]:
        """The reply. Raises `CodecError` if the answer is cut off or is not what it says."""
        plain = self._plain(self._first) if self._first else None
        if plain is not None:
            top, entries = plain
            marker = b""
            for entry in entries:
                yield from self._take(entry)
        else:
            top, entries, marker = yield from self._scanned()

        def restored(text: bytes) -> bytes:
            return restore_literals(text, marker)

        outputs: list[bytes] = []
        blobs: list[memoryview] = []
        datatypes: list[str] = []
        names = set()
        for index, entry in enumerate(entries):
            if index:
                yield
            name = _text_of(entry, "name")
            if name is None:
                raise CodecError(f"output {index}: name must be a string, got {_shown_member(entry, 'name')}")
            if not self._selection.is_wanted(name):
                continue
            names.add(name)
            if outputs:
                outputs.append(b",")
            self._values.restore_datatype(entry, name)
            members, keeps_data = _without_data(entry)
            if keeps_data and self._selection.is_binary(name):
                value = self._value(entry)
                blob = yield from self._blob(value, entry, name)
                blobs.append(blob)
                datatypes.append(value.datatype.name if value.datatype else "")
                parameters = members_of(members["parameters"], name) if "parameters" in members else {}
                parameters["binary_data_size"] = b"%d" % len(blob)
                members["parameters"] = object_text(parameters)
                outputs.append(restored(object_text(members)))
            elif keeps_data:
                value = self._value(entry)
                if not value.text:
                    raise CodecError(f"output {name!r}: its name came twice and differs")
                outputs.append(restored(object_text(members))[:-1] + b',"data":')
                outputs.extend(value.text)
                outputs.append(b"}")
            elif _has_shared_memory(members):
                outputs.append(restored(object_text(members)))
            else:
                raise CodecError(f"output {name!r} has no data")
        missing = [name for name in self._selection.named if name not in names]
        if missing:
            raise CodecError(f"output {missing[0]!r} was requested, but the answer does not have it")
        header = _compact(list(self._header({key: restored(text) for key, text in top.items()}, outputs)))
        return Reply(header, blobs, datatypes, self._nonfinite)

    def _plain(self, text: bytes) -> tuple[Members, list[Members]] | None:
        """The members and outputs of a small answer that came in one piece; half the work of walking through it.

        None unless each output has each member of `_PLAIN` once and these words stand nowhere else.
        """
        if b"\\" in text or b"NaN" in text or b"Infinity" in text:
            return None
        try:
            top = parse_object(text)
            entries = parse_objects(top["outputs"])
        except (CodecError, KeyError):
            return None
        for key in _PLAIN_KEYS:
            if text.count(key) != len(entries):
                return None
        for entry in entries:
            if not entry.keys() >= _PLAIN or entry["data"][:1] != b"[":
                return None
        return top, entries

    def _take(self, entry: Members) -> Generator[None, None, None]:
        """Take the `data` of *entry*, and put there the number of its value, as the scanner does."""
        text = entry["data"]
        entry["data"] = b"%d" % len(self._values.opened)
        sink = self._values.open(entry)
        if isinstance(sink, NumberSink) and sink.take_flat(text):
            yield
        else:
            yield from _pour([text], sink)

    def _scan(self, chunk: bytes) -> Generator[None, None, None]:
        """Walk through *chunk*, and before it through what came first, if nobody has."""
        first, self._first = self._first, b""
        if first:
            yield from self._scanner.feed(first)
        yield from self._scanner.feed(chunk)
        if self._scanner.done:
            self._refuse_trailing()

    def _scanned(self) -> Generator[None, None, tuple[Members, list[Members], bytes]]:
        """The members of the answer, its outputs, and the marker of the literals in them."""
        yield from self._scan(b"")
        yield from self._scanner.finish()
        self._refuse_trailing()
        skeleton, marker = protect_literals(self._scanner.skeleton)
        top = parse_object(skeleton)
        try:
            return top, parse_objects(top.get("outputs", b"null")), marker
        except CodecError:
            raise CodecError("the answer has no `outputs` array of objects") from None

    def _refuse_trailing(self) -> None:
        if self._scanner.trailing_bytes():
            raise CodecError(f"the JSON ends after {self._scanner.consumed} bytes, but more follows")

    def _value(self, entry: Members) -> _Value:
        return self._values.opened[int(entry["data"])]

    def _blob(self, value: _Value, entry: Members, name: str) -> Generator[None, None, memoryview]:
        """The bytes of a binary output."""
        if value.datatype is None:
            self._values.open_binary(value, entry, name)
            yield from _pour(value.text, value.sink)
        elif value.said != (entry.get("datatype"), entry.get("shape")):
            label, datatype, shape = self._values.tensor(entry, name)
            if (datatype, shape) != (value.datatype, value.shape):
                raise CodecError(f"{label}: datatype or shape came twice and differ")
        sink = value.sink
        if isinstance(sink, NumberSink):
            self._nonfinite += sink.nonfinite
            return sink.array.view(np.uint8).data
        assert isinstance(sink, BytesSink)
        parameters = members_of(entry["parameters"], name) if entry.get("parameters", b"")[:1] == b"{" else {}
        if parameters.get("content_type", b"") == b'"base64"':
            return memoryview((yield from from_base64(sink.elements, sink.label)))
        return memoryview(sink.elements)

    def _header(self, top: Members, outputs: list[bytes]) -> Iterator[bytes]:
        added = {"model_name": orjson.dumps(self._model), "id": self._request_id}
        separator = b"{"
        for key, value in top.items():
            if value == b"null" and key in (*added, "parameters"):
                continue
            added.pop(key, None)
            yield separator + orjson.dumps(key) + b":"
            separator = b","
            if key == "outputs":
                yield b"["
                yield from outputs
                yield b"]"
            else:
                yield value
        for key, text in added.items():
            if text:
                yield b',"%b":%b' % (key.encode(), text)
        yield b"}"


def _pour(text: list[bytes], sink: Sink) -> Iterator[None]:
    """Feed *text*, which waited, into *sink*, giving each piece back as soon as it is read."""
    buffer = bytearray()
    text.reverse()
    while text:
        buffer += text.pop()
        while buffer and not sink.done and (taken := sink.step(buffer)):
            del buffer[:taken]
            yield
    if not sink.done:
        raise CodecError(f"{sink.label}: data is cut off")


def _without_data(entry: Members) -> tuple[Members, bool]:
    """The members of an output but for `data`, and whether there was any; empty parameters are dropped."""
    members = {key: value for key, value in entry.items() if key != "data"}
    raw = members.get("parameters", b"null")
    parameters = members_of(members["parameters"], "parameters of an output") if raw != b"null" else {}
    parameters.pop("binary_data_size", None)
    if parameters:
        members["parameters"] = object_text(parameters)
    else:
        members.pop("parameters", None)
    return members, "data" in entry


def _has_shared_memory(members: Members) -> bool:
    return b'"shared_memory_region"' in members.get("parameters", b"")


def _text_of(entry: Members, key: str) -> str | None:
    raw = entry.get(key)
    return _STRING.decode(raw) if raw is not None and raw[:1] == b'"' else None


def _shown_member(entry: Members, key: str) -> str:
    return excerpt(entry[key]) if key in entry else "none"


def _compact(texts: list[bytes]) -> list[bytes]:
    """*texts* with runs of short ones joined, so that a reply is a few writes."""
    compact: list[bytes] = []
    run: list[bytes] = []
    for text in texts:
        if len(text) < 4096:
            run.append(text)
            continue
        if run:
            compact.append(b"".join(run))
            run = []
        compact.append(text)
    if run:
        compact.append(b"".join(run))
    return compact
