"""A backend's answer: from its JSON, as it arrives, to the client's reply (protocol section 4).

Binary outputs become arrays while their text passes by; the text is gone at once. Only the text of
outputs that stay JSON is kept, because it is what the client gets, and that of an output whose `data`
comes before its `datatype` and `shape`, until these are known.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import orjson

from gateway.codec.inference import (
    DEFAULT_LIMITS,
    HeaderLimits,
    OutputSelection,
    count_text,
    label_of,
    labelled,
)
from gateway.codec.json.members import (
    HELD_PER_BYTE,
    Members,
    object_text,
    parse_object,
    protect_literals,
    put_last,
    restore_literals,
    sliced_object,
    sliced_objects,
    sliced_protect,
)
from gateway.codec.json.scanner import Scanner
from gateway.codec.json.sinks import Sink, TextSink, pour, taken_out
from gateway.codec.tensors.datatypes import Datatype, Kind, element_count
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.string_reading import BytesSink, from_base64
from gateway.codec.v2 import declarations
from gateway.codec.v2.declarations import datatype_of, name_of, shape_of, sliced_parameters, text_of
from gateway.codec.v2.error_bodies import shortened, words_of
from gateway.codec.v2.ids import check_id, is_absent
from gateway.codec.v2.steps import (
    ENTRY_COST,
    FEW_MEMBERS,
    ITEM_COST,
    SHORT_BYTES,
    Steps,
    sliced_restore,
    sliced_text,
)
from gateway.errors import CodecError

MEMBERS = ("model_name", "model_version", "id", "parameters", "outputs")
"""The order in which a reply's members are written, behind those that the protocol does not know (protocol 4.4)."""

WRITE_BYTES = 4096
"""Texts of the reply that are shorter are joined, so that a reply is a few writes."""


class Reply(msgspec.Struct, frozen=True):
    """What the client gets: `header` and then `blobs`, none of them joined."""

    header: list[bytes]
    """The JSON, in pieces."""
    blobs: list[memoryview]
    """Those of the binary outputs, in the order of the outputs; one output may have several."""
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
        self._done_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the outputs take so far. Only the last one still grows; the sum of the others is kept."""
        return self._done_bytes + (self.opened[-1].sink.held_bytes if self.opened else 0)

    def open(self, entry_text: Callable[[], bytes]) -> Sink:
        """Choose the sink for an output's `data`, by what its entry has said so far."""
        text, marker = protect_literals(entry_text())
        try:
            return self._open(parse_object(text))
        except CodecError as error:
            raise CodecError(restore_literals(str(error).encode(), marker).decode()) from None

    def _open(self, entry: Members) -> Sink:
        name = text_of(entry, "name")
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
            self._open_binary(value, entry, name or "")
        else:
            label = label_of("output", name) if name is not None else f"output {len(self.opened)}"
            value.sink = TextSink(label, value.text if is_wanted else None)
        if self.opened:
            self._done_bytes += self.opened[-1].sink.held_bytes
        self.opened.append(value)
        return value.sink

    def restore_datatype(self, entry: Members, name: str | None) -> None:
        """Undo the promotion of an output's inputs, where the model declares a narrower datatype."""
        if name in self._declared and text_of(entry, "datatype") == "FP32":
            entry["datatype"] = b'"%b"' % self._declared[name or ""].encode()

    def read_kept(self, value: _Value, entry: Members, name: str) -> Iterator[None]:
        """Make binary of a *value* whose text was kept because its datatype and shape were not known."""
        kept_bytes = value.sink.held_bytes
        self._open_binary(value, entry, name)
        yield from pour(taken_out(value.text), value.sink)
        if value is not self.opened[-1]:
            self._done_bytes += value.sink.held_bytes - kept_bytes

    def _open_binary(self, value: _Value, entry: Members, name: str) -> None:
        """Give *value* the sink that makes binary of it."""
        label, value.datatype, value.shape = declared_output(entry, name)
        value.said = (entry.get("datatype"), entry.get("shape"))
        n_elements = element_count(value.shape)
        # every element takes a digit and a comma, or two quotes and a comma
        if n_elements * 2 - 1 > self._max_bytes:
            raise CodecError(
                f"{label}: {count_text(n_elements)} elements cannot be in an answer of at most "
                f"{self._max_bytes:d} bytes (limits.response_body)"
            )
        if value.datatype.kind is Kind.BYTES:
            value.sink = BytesSink(label, value.shape)
        else:
            value.sink = NumberSink(label, value.datatype, value.shape)


class InferAnswer:
    """Reads one answer piece by piece: `feed` what arrives, then `finish`."""

    def __init__(
        self,
        selection: OutputSelection,
        *,
        model: str,
        request_id: bytes,
        sent_id: bytes = b"",
        max_bytes: int,
        is_renamed: bool = False,
        declared: Mapping[str, str] | None = None,
        limits: HeaderLimits = DEFAULT_LIMITS,
    ) -> None:
        """*max_bytes* is the most JSON the caller will feed; no tensor can have more elements than that allows.

        *model* (the name in the path) and *request_id* (JSON text, or empty) are added where the backend
        leaves them out (protocol 4.6). *sent_id* is the id that the backend got, which is the gateway's own where the
        client has none (protocol 4.10). *is_renamed*: the backend knows the model under a name of its own, in whose
        place the client gets *model* (protocol 8). *declared* are outputs by name whose inputs were promoted: where the
        backend says FP32, they get back the datatype that the model's metadata declares. *limits* bound the JSON
        beside the data and the number of outputs.
        """
        self._selection = selection
        self._model = model
        self._is_renamed = is_renamed
        self._request_id = request_id
        self._sent_id = sent_id
        self._limits = limits
        self._values = _Values(selection, declared or {}, max_bytes)
        self._scanner = Scanner(
            "outputs",
            self._values.open,
            max_skeleton_bytes=limits.max_header_bytes,
            max_entries=limits.max_tensors,
        )
        self._held_per_byte = HELD_PER_BYTE
        self._nonfinite = 0
        self._marker = b""
        self._steps = Steps()

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far: what is filled of the outputs, and its header.

        The header, the JSON beside the outputs' data, counts from its first byte on as much as it takes at most when
        `finish` parses it, so that the caller knows before that happens; after `finish` it counts as the text it is.
        """
        return self._values.held_bytes + self._scanner.skeleton_bytes * self._held_per_byte

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Take the next bytes of the JSON; yields after each step of work.

        Raises `CodecError`, and of these `TooLargeError` for more JSON beside the data than the limits allow.
        """
        yield from self._scanner.feed(chunk)
        if self._scanner.done:
            self._refuse_trailing()

    def finish(self) -> Generator[None, None, Reply]:
        """The reply; yields after each step of work.

        Raises `CodecError` if the answer is cut off or is not what it says, and as `feed` does.
        """
        top, entries = yield from self._scanned()
        try:
            reply = yield from self._reply(top, entries)
            self._held_per_byte = 1
            return reply
        except CodecError as error:
            raise type(error)(restore_literals(str(error).encode(), self._marker).decode()) from None

    def _reply(self, top: Members, entries: list[Members]) -> Generator[None, None, Reply]:
        self._take_id(top)
        outputs = ReplyText()
        blobs: list[memoryview] = []
        datatypes: list[str] = []
        names: set[str] = set()
        for index, entry in enumerate(entries):
            if self._steps.is_full_with(ENTRY_COST + ITEM_COST * len(entry) + len(entry.get("parameters", b""))):
                yield
            name = name_of(entry, f"output {index}")
            if not self._selection.is_wanted(name):  # protocol 4.5
                continue
            if names:
                outputs.add(b",")
            names.add(name)
            self._values.restore_datatype(entry, name)
            number = entry.pop("data", None)
            text = entry.pop("parameters", b"null")
            where = f"{label_of('output', name)}: "
            parameters = yield from sliced_parameters(text, where)
            parameters.pop("binary_data_size", None)
            if number is None:
                self._check_no_data(parameters, name)
                outputs.add((yield from self._entry(entry, parameters)))
            elif self._selection.is_binary(name):
                value = self._values.opened[int(number)]
                own = yield from self._blobs(value, entry, parameters, name)
                blobs += own
                datatypes.append(value.datatype.name if value.datatype else "")
                parameters["binary_data_size"] = b"%d" % sum(map(len, own))
                outputs.add((yield from self._entry(entry, parameters)))
            else:
                value = self._values.opened[int(number)]
                if not value.text:
                    raise CodecError(f"{label_of('output', name)}: its name came twice and differs")
                outputs.add((yield from self._entry(entry, parameters))[:-1])
                outputs.add(b',"data":')
                for text in value.text:
                    outputs.add(text)
                outputs.add(b"}")
        missing = [name for name in self._selection.named if name not in names]
        if missing:  # protocol 4.5
            raise CodecError(f"{label_of('output', missing[0])} was requested, but the answer does not have it")
        header = yield from self._header(top, outputs)
        return Reply(header, blobs, datatypes, self._nonfinite)

    def _scanned(self) -> Generator[None, None, tuple[Members, list[Members]]]:
        """The members of the answer, and its outputs."""
        yield from self._scanner.finish()
        self._refuse_trailing()
        skeleton, self._marker = yield from sliced_protect(self._scanner.skeleton)
        top = yield from sliced_object(skeleton)
        if "outputs" not in top and (words := words_of(top, self._marker)):  # protocol 4.9
            raise CodecError(f"no `outputs`, but an error: {shortened(words)}")
        try:
            return top, (yield from sliced_objects(top.get("outputs", b"null"), self._limits.max_tensors))
        except CodecError:
            raise CodecError("no `outputs` array of objects") from None

    def _take_id(self, top: Members) -> None:
        """Put the client's id into the answer, and take out the gateway's own. Raises `ForeignAnswerError`."""
        answered = top.get("id", b"")
        is_own = bool(self._sent_id) and not self._request_id
        check_id(answered, self._sent_id, is_own=is_own)  # protocol 4.10
        if is_own:
            top.pop("id", None)
        elif self._request_id and is_absent(answered):  # protocol 4.6
            top["id"] = self._request_id

    def _refuse_trailing(self) -> None:
        if self._scanner.trailing_bytes():
            raise CodecError(f"the JSON ends after {self._scanner.consumed} bytes, but more follows")

    def _check_no_data(self, parameters: Members, name: str) -> None:
        """Raise `CodecError` unless the output is in shared memory, and so needs no data (protocol 4.5).

        The request says so; some servers repeat the region in their answer.
        """
        if name not in self._selection.in_shared_memory and "shared_memory_region" not in parameters:
            raise CodecError(f"{label_of('output', name)} has no data")

    def _entry(self, entry: Members, parameters: Members) -> Generator[None, None, bytes]:
        """An output without its data, as the client gets it; empty parameters are left out (protocol 4.4)."""
        if parameters:
            entry["parameters"] = (
                object_text(parameters) if len(parameters) <= FEW_MEMBERS else (yield from sliced_text(parameters))
            )
        put_last(entry, declarations.MEMBERS)
        text = object_text(entry) if len(entry) <= FEW_MEMBERS else (yield from sliced_text(entry))
        if len(text) <= SHORT_BYTES:
            return restore_literals(text, self._marker)
        return (yield from sliced_restore(text, self._marker))

    def _blobs(
        self, value: _Value, entry: Members, parameters: Members, name: str
    ) -> Generator[None, None, list[memoryview]]:
        """The bytes of a binary output, in one or several pieces."""
        if value.datatype is None:
            yield from self._values.read_kept(value, entry, name)
        elif value.said != (entry.get("datatype"), entry.get("shape")):
            label, datatype, shape = declared_output(entry, name)
            if (datatype, shape) != (value.datatype, value.shape):
                raise CodecError(f"{label}: datatype or shape came twice and differ")
        sink = value.sink
        if isinstance(sink, NumberSink):
            self._nonfinite += sink.nonfinite
            return sink.blobs()
        assert isinstance(sink, BytesSink)
        if text_of(parameters, "content_type") == "base64":  # protocol 4.8
            return (yield from from_base64(sink.blobs(), sink.label))
        return sink.blobs()

    def _header(self, top: Members, outputs: "ReplyText") -> Generator[None, None, list[bytes]]:
        """The JSON of the reply, with the *outputs* in it."""
        text = ReplyText()
        if self._is_renamed:
            top.pop("model_name", None)
        if top.get("model_name", b"null") == b"null":
            top["model_name"] = orjson.dumps(self._model)  # protocol 4.6
        put_last(top, MEMBERS)
        separator = b"{"
        for key, value in top.items():
            if self._steps.is_full_with(ITEM_COST + len(value)):
                yield
            if value == b"null" and key in ("id", "parameters"):  # protocol 4.4, 4.6
                continue
            text.add(separator + orjson.dumps(key) + b":")
            separator = b","
            if key == "outputs":
                text.add(b"[")
                for piece in outputs.pieces():
                    text.add(piece)
                text.add(b"]")
            else:
                text.add(
                    restore_literals(value, self._marker)
                    if len(value) <= SHORT_BYTES
                    else (yield from sliced_restore(value, self._marker))
                )
        text.add(b"}")
        return text.pieces()


class ReplyText:
    """JSON that is put together from many texts; long ones are not copied."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._run = bytearray()

    def add(self, text: bytes) -> None:
        """Append *text*."""
        if len(text) < WRITE_BYTES:
            self._run += text
            return
        self._end_run()
        self._pieces.append(text)

    def pieces(self) -> list[bytes]:
        """All of it."""
        self._end_run()
        return self._pieces

    def _end_run(self) -> None:
        if self._run:
            self._pieces.append(bytes(self._run))
            self._run.clear()


def declared_output(entry: Members, name: str) -> tuple[str, Datatype, tuple[int, ...]]:
    """How errors call an output, its datatype and its shape. Raises `CodecError` for wrong ones."""
    label = label_of("output", name)
    datatype = datatype_of(entry, label)
    shape = shape_of(entry, label)
    return labelled("output", name, datatype, shape), datatype, shape
