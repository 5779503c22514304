"""A backend's answer: from its JSON, as it arrives, to the client's reply (protocol section 4).

Binary outputs become arrays while their text passes by; the text is gone at once. Only the text of
outputs that stay JSON is kept, because it is what the client gets, and that of an output whose `data`
comes before its `datatype` and `shape`, until these are known.
"""

from collections.abc import Callable, Generator, Mapping

import orjson
from msgspec import Raw

from gateway.codec.inference import (
    DEFAULT_LIMITS,
    HeaderLimits,
    OutputSelection,
    count_text,
    label_of,
    labelled,
)
from gateway.codec.json.members import HELD_PER_BYTE
from gateway.codec.json.pieces import SPACE
from gateway.codec.json.scanner import Scanner
from gateway.codec.json.sinks import Sink, TextSink, pour, taken_out
from gateway.codec.tensors.base64_reading import from_base64
from gateway.codec.tensors.datatypes import BYTES, Datatype, element_count
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.string_reading import BytesSink
from gateway.codec.v2 import messages
from gateway.codec.v2.declarations import datatype_of, name_of, shape_of
from gateway.codec.v2.ids import check_id, is_absent
from gateway.codec.v2.messages import LATER, Answer, Entry, Parameters, printed, read_description, text_of
from gateway.codec.v2.reply import Reply, ReplyOutput, reply_header
from gateway.codec.values import shaped_value
from gateway.errors import CodecError

_LATER = Raw(LATER)
_NULL = b"null"

WHOLE_BYTES = 64 * 1024
"""The longest answer that is read in one go if it comes in one chunk."""

Form = tuple[Datatype, tuple[int, ...]]
"""Datatype and shape of an output."""


class _Value:
    """Where the `data` of one output goes as it arrives."""

    __slots__ = ("form", "sink", "text")

    sink: Sink

    def __init__(self) -> None:
        self.form: Form | None = None
        """Datatype and shape, if the answer says them before `data`, which then becomes binary as it arrives."""
        self.text: list[bytes] = []
        """The text of `data` that does not become binary as it arrives."""


class _Values:
    """Makes blobs of the outputs that the client wants in binary, and keeps the text of the other outputs.

    The scanner knows this and not the `InferAnswer`: in a circle, a tensor would wait for the garbage collector.
    """

    def __init__(self, selection: OutputSelection, declared: Mapping[str, str], max_bytes: int) -> None:
        self.opened: list[_Value] = []
        self.nonfinite = 0
        self.declared = declared
        self._selection = selection
        self._max_bytes = max_bytes

    @property
    def held_bytes(self) -> int:
        """What the outputs take so far."""
        return sum([value.sink.held_bytes for value in self.opened])

    def open(self, entry_text: Callable[[], bytes]) -> Sink:
        """The sink for the `data` of an output, by what *entry_text* has said of the output so far."""
        entry = read_description(entry_text())
        name = text_of(entry.get("name"))
        value = _Value()
        is_wanted = name is None or self._selection.is_wanted(name)
        is_known = name is not None or not (self._selection.named or self.declared)
        is_described = "datatype" in entry and "shape" in entry
        if is_wanted and is_known and is_described and self._selection.is_binary(name or ""):
            value.form = self.form_of(entry, name or "")
            value.sink = _sink_for(name or "", value.form)
        else:
            label = label_of("output", name) if name is not None else f"output {len(self.opened)}"
            value.sink = TextSink(label, value.text if is_wanted else None)
        self.opened.append(value)
        return value.sink

    def form_of(self, entry: Entry, name: str) -> Form:
        """Datatype and shape of an output, after undoing the promotion of its inputs where its model declares less.

        Raises `CodecError` for wrong ones, and for more elements than can be there.
        """
        if name in self.declared and text_of(entry.get("datatype")) == "FP32":
            entry["datatype"] = Raw(b'"%b"' % self.declared[name].encode())
        datatype, shape = datatype_of(entry, "output", name), shape_of(entry, "output", name)
        n_elements = element_count(shape)
        # every element takes a digit and a comma, or two quotes and a comma
        if n_elements * 2 - 1 > self._max_bytes:
            raise CodecError(
                f"{labelled('output', name, datatype, shape)}: {count_text(n_elements)} elements cannot be in an "
                f"answer of at most {self._max_bytes:d} bytes (limits.response_body)"
            )
        return datatype, shape

    def arrived(self, name: str, form: Form, number: int) -> Generator[None, None, list[memoryview]]:
        """The bytes of an output of this *form*, whose data was the value *number* that arrived."""
        value = self.opened[number]
        if value.form is None:
            # its text was kept, because its datatype and shape were not known
            value.form, value.sink = form, _sink_for(name, form)
            yield from pour(taken_out(value.text), value.sink)
        elif value.form != form:
            raise CodecError(f"{labelled('output', name, *form)}: datatype or shape came twice and differ")
        assert isinstance(value.sink, NumberSink | BytesSink)
        return self._taken(value.sink)

    def whole(self, name: str, form: Form, text: bytes) -> Generator[None, None, list[memoryview]]:
        """The bytes of an output of this *form*, whose data is *text*."""
        value = shaped_value(text, *form)
        if value is not None:
            return value.blobs
        sink = _sink_for(name, form)
        yield from pour((text,), sink)
        return self._taken(sink)

    def _taken(self, sink: NumberSink | BytesSink) -> list[memoryview]:
        if isinstance(sink, NumberSink):
            self.nonfinite += sink.nonfinite
        return sink.blobs()


def _sink_for(name: str, form: Form) -> NumberSink | BytesSink:
    datatype, shape = form
    label = labelled("output", name, datatype, shape)
    return BytesSink(label, shape) if datatype.kind is BYTES else NumberSink(label, datatype, shape)


class InferAnswer:
    """Reads one answer piece by piece: `feed` what arrives, then `finish`.

    A small answer comes in one chunk. If the structs of `messages` take it, it is read in one go; every other answer
    goes through the scanner.
    """

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
        self._whole: Answer | None = None
        self._whole_bytes = 0
        self._scanner: Scanner | None = None
        self._held_per_byte = HELD_PER_BYTE

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far: what is filled of the outputs, and its header.

        The header, the JSON beside the outputs' data, counts from its first byte on as much as it takes at most when
        `finish` parses it, so that the caller knows before that happens; after `finish` it counts as the text it is.
        """
        header_bytes = self._whole_bytes if self._scanner is None else self._scanner.skeleton_bytes
        return self._values.held_bytes + header_bytes * self._held_per_byte

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Take the next bytes of the JSON; yields after each step of work.

        Raises `CodecError`, and of these `TooLargeError` for more JSON beside the data than the limits allow.
        """
        if self._scanner is None:
            if self._whole_bytes:
                _refuse_trailing(len(chunk.strip(SPACE)), self._whole_bytes)
                return
            self._whole = yield from self._read_whole(chunk)
            if self._whole is not None:
                self._whole_bytes = len(chunk)
                return
            limits = self._limits
            self._scanner = Scanner(
                "outputs",
                self._values.open,
                max_skeleton_bytes=limits.max_header_bytes,
                max_entries=limits.max_tensors,
            )
        yield from self._scanner.feed(chunk)
        if self._scanner.done:
            _refuse_trailing(self._scanner.trailing_bytes(), self._scanner.consumed)

    def finish(self, last: bytes = b"") -> Generator[None, None, Reply]:
        """The reply, after the *last* bytes of the JSON; yields after each step of work.

        Raises `CodecError` if the answer is cut off or is not what it says, and as `feed` does.
        """
        if last:
            yield from self.feed(last)
        answer, self._whole = self._whole, None
        if answer is None:
            answer = yield from self._scanned()
        reply = yield from self._reply(answer)
        self._held_per_byte = 1
        return reply

    def _read_whole(self, text: bytes) -> Generator[None, None, Answer | None]:
        """The answer that *text* is as a whole; None for a longer one, or one that has to be looked at more closely.

        Of a member that comes twice the last counts, but the scanner looks at both. So the words are counted: each
        output has one of each, and no escape of a letter may hide another.
        """
        if len(text) > min(WHOLE_BYTES, self._limits.max_header_bytes) or b"\\u00" in text:
            return None
        try:
            answer = yield from messages.read_answer(text, self._limits.max_tensors)
        except CodecError:
            return None
        n_outputs = len(answer["outputs"])
        is_said_once = (
            text.count(b'"data') == 2 * n_outputs  # of which half are datatypes
            and text.count(b'"name"') == n_outputs
            and text.count(b'"shape"') == n_outputs
        )
        return answer if is_said_once else None

    def _scanned(self) -> Generator[None, None, Answer]:
        """The answer, whose values have gone to sinks."""
        scanner = self._scanner
        if scanner is None:
            raise CodecError("JSON is cut off after 0 bytes")
        yield from scanner.finish()
        _refuse_trailing(scanner.trailing_bytes(), scanner.consumed)
        return (yield from messages.read_answer(scanner.skeleton, self._limits.max_tensors))

    def _reply(self, answer: Answer) -> Generator[None, None, Reply]:
        self._label(answer)
        kept: list[Entry] = []
        names: list[str] = []
        binary: list[ReplyOutput] = []
        later: list[list[bytes]] = []
        for index, entry in enumerate(answer["outputs"]):
            name = name_of(entry, "output", index)
            if not self._selection.is_wanted(name):  # protocol 4.5
                continue
            kept.append(entry)
            names.append(name)
            parameters = entry.get("parameters") or {}
            parameters.pop("binary_data_size", None)
            if "data" not in entry:
                self._check_no_data(parameters, name)
            elif self._selection.is_binary(name):
                if binary:
                    yield
                binary.append((yield from self._binary(entry, name, parameters)))
            elif self._scanner is not None:
                text = self._values.opened[int(bytes(entry["data"]))].text
                if not text:
                    raise CodecError(f"{label_of('output', name)}: its name came twice and differs")
                entry["data"] = _LATER
                later.append(text)
            if parameters:
                entry["parameters"] = parameters
            else:  # protocol 4.4
                entry.pop("parameters", None)
        for name in self._selection.named:
            if name not in names:  # protocol 4.5
                raise CodecError(f"{label_of('output', name)} was requested, but the answer does not have it")
        answer["outputs"] = kept
        return Reply(reply_header(printed(answer), later), binary, self._values.nonfinite)

    def _binary(self, entry: Entry, name: str, parameters: Parameters) -> Generator[None, None, ReplyOutput]:
        """A binary output; says its size in *parameters*, in place of the data of *entry*."""
        datatype, shape = form = self._values.form_of(entry, name)
        data = bytes(entry.pop("data"))
        if self._scanner is None:
            blobs = yield from self._values.whole(name, form, data)
        else:
            blobs = yield from self._values.arrived(name, form, int(data))
        if datatype.kind is BYTES and text_of(parameters.get("content_type")) == "base64":  # protocol 4.8
            blobs = yield from from_base64(blobs, labelled("output", name, datatype, shape))
        n_bytes = sum(map(len, blobs))
        if self._scanner is None:
            self._whole_bytes += n_bytes
        parameters["binary_data_size"] = Raw(b"%d" % n_bytes)
        return ReplyOutput(name, datatype, shape, blobs)

    def _label(self, answer: Answer) -> None:
        """Put the client's id and name of the model into the answer, and take out the gateway's own id.

        Raises `ForeignAnswerError` for the id of another request.
        """
        if self._is_renamed or bytes(answer.get("model_name", _NULL)) == _NULL:
            answer["model_name"] = Raw(orjson.dumps(self._model))  # protocol 4.6
        if bytes(answer.get("parameters", b"")) == _NULL:  # protocol 4.4
            del answer["parameters"]
        answered = bytes(answer.get("id", b""))
        is_own = bool(self._sent_id) and not self._request_id
        if answered != self._sent_id:
            check_id(answered, self._sent_id, is_own=is_own)  # protocol 4.10
        if is_own or answered == _NULL:
            answer.pop("id", None)
        if self._request_id and is_absent(answered):  # protocol 4.6
            answer["id"] = Raw(self._request_id)

    def _check_no_data(self, parameters: Parameters, name: str) -> None:
        """Raise `CodecError` unless the output is in shared memory, and so needs no data (protocol 4.5).

        The request says so; some servers repeat the region in their answer.
        """
        if name not in self._selection.in_shared_memory and "shared_memory_region" not in parameters:
            raise CodecError(f"{label_of('output', name)} has no data")


def _refuse_trailing(n_bytes: int, end: int) -> None:
    """Raise `CodecError` if *n_bytes* follow the JSON, which ends at *end*."""
    if n_bytes:
        raise CodecError(f"the JSON ends after {end} bytes, but more follows")
