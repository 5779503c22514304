"""A backend's answer: from its JSON, as it arrives, to the client's reply (protocol section 4).

Binary outputs become arrays while their text passes by; the text is gone at once. Only the text of
outputs that stay JSON is kept, because it is what the client gets, and that of an output whose `data`
comes before its `name`, `datatype` and `shape`, until the answer is whole.
"""

import json
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from itertools import filterfalse

import msgspec
import orjson
from msgspec import Raw

from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, OutputSelection, label_of, labelled
from gateway.codec.json.arriving import ArrivingText, Reading
from gateway.codec.json.members import HELD_PER_BYTE, OBJECT, decoded, excerpt, restore_literals
from gateway.codec.json.sinks import Sink, TextSink, pour, taken_out
from gateway.codec.tensors.base64_reading import from_base64
from gateway.codec.tensors.datatypes import BYTES, DATATYPES, count_text
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.string_reading import BytesSink
from gateway.codec.v2.messages import (
    ABSENT,
    LATER,
    RUN_BYTES,
    Answer,
    ArrivingMessage,
    Declaration,
    Entry,
    Parameters,
    declaration,
    name_of,
    printed,
    read_message,
    text_of,
)
from gateway.codec.v2.reply import Reply, ReplyOutput, long_pieces
from gateway.codec.values import shaped_blob
from gateway.errors import CodecError, ForeignAnswerError

_LATER = Raw(LATER)
_NULL = Raw(b"null")
_SAID_BEFORE_DATA = (b'"name"', b'"datatype"', b'"shape"')

WHOLE_BYTES = 64 * 1024
"""The longest answer that is read in one go if it comes in one chunk."""


class _Value(msgspec.Struct):
    """Where the `data` of one output goes as it arrives."""

    sink: Sink
    form: Declaration | None = None
    """The output's declaration, if it came before `data`: then `data` becomes binary as it arrives."""
    text: list[bytes] = []
    """The text of `data` that does not become binary as it arrives."""


def _take(
    opened: list[_Value],
    selection: OutputSelection,
    form_of: Callable[[Entry], Declaration],
    text: ArrivingText,
    entry: Entry,
) -> Reading[_Value]:
    """Read the `data` of an output by the members before it, which are in *entry*, into a value that joins *opened*.

    It becomes binary where that is wanted and *form_of* can say its declaration. See `TakeData`. The reading knows
    *opened* and not the `InferAnswer`: in a circle, a tensor would wait for the garbage collector.
    """
    name = text_of(entry.get("name"))
    earlier = entry.pop("data", None)
    if isinstance(earlier, _Value):  # the last counts (protocol 1.6)
        opened.remove(earlier)
    is_wanted = name is None or selection.is_wanted(name)
    is_described = name is not None and "datatype" in entry and "shape" in entry
    if is_wanted and is_described and selection.is_binary(name or ""):
        form = form_of(entry)
        value = _Value(_sink_for(form), form)
    else:
        label = label_of("output", name) if name is not None else f"output {len(opened)}"
        pieces: list[bytes] = []
        value = _Value(TextSink(label, pieces if is_wanted else None), None, pieces)
    opened.append(value)
    yield from text.pour(value.sink)
    return value


def _kept(value: _Value, name: str) -> list[bytes]:
    """The text of an output that stays JSON, whose data has arrived as *value*."""
    if not value.text:
        raise CodecError(f"{label_of('output', name)}: its name came twice and differs")
    return value.text


def _sink_for(form: Declaration) -> NumberSink | BytesSink:
    _, datatype, shape = form
    label = labelled("output", *form)
    return BytesSink(label, shape) if datatype.kind is BYTES else NumberSink(label, datatype, shape)


class InferAnswer(msgspec.Struct, eq=False):
    """Reads one answer: `feed` what arrives piece by piece, then `finish`.

    A small answer that `finish` gets as a whole is read in one go; every other answer is read while it arrives.
    """

    selection: OutputSelection
    model: str
    """The name in the path, added where the backend leaves it out (protocol 4.6)."""
    request_id: bytes
    """The client's id as JSON text, or empty; added where the backend leaves it out (protocol 4.6)."""
    max_bytes: int
    """The most JSON that will be fed; no tensor can have more elements than that allows."""
    is_renamed: bool = False
    """Whether the backend has a name of its own for it, in whose place the client gets *model* (protocol 8)."""
    sent_id: bytes = b""
    """The id that the backend got, which is the gateway's own where the client has none (protocol 4.10)."""
    limits: HeaderLimits = DEFAULT_LIMITS
    """Bounds of the JSON beside the data, and of the number of outputs."""
    declared: Mapping[str, str] = {}
    """Outputs by name whose inputs were promoted: where the backend says FP32, they get back this datatype."""
    opened: list[_Value] = []
    """The long data that has begun to arrive."""
    _arriving: ArrivingMessage | None = None
    _reading: Reading[None] = iter(())  # type: ignore[assignment]
    _nonfinite: int = 0
    _header_bytes: int = 0
    """What `held_bytes` counts beside the outputs once the answer is read."""

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far: what is filled of the outputs, and its header.

        The header, the JSON beside the outputs' data, counts from its first byte on as much as it takes at most when
        `finish` parses it, so that the caller knows before that happens; after `finish` it counts as the text it is.
        """
        if self._arriving is None:
            return self._header_bytes
        header_bytes = self._header_bytes or self._arriving.header_bytes * HELD_PER_BYTE
        return sum([value.sink.held_bytes for value in self.opened]) + self._arriving.data_bytes + header_bytes

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Take the next bytes of the JSON; yields after each step of work.

        Raises `CodecError`, and of these `TooLargeError` for more JSON beside the data than the limits allow.
        """
        if self._arriving is None:
            form_of = partial(_form_of, self.declared, self.max_bytes)
            self._arriving = ArrivingMessage(Answer, self.limits, partial(_take, self.opened, self.selection, form_of))
            self._reading = self._arriving.read()
        if self._arriving.text.add(chunk):
            yield from self._arriving.go_on(self._reading)

    def finish(self, last: bytes = b"") -> Generator[None, None, Reply]:
        """The reply, after the *last* bytes of the JSON; yields after each step of work.

        Raises `CodecError` if the answer is cut off or is not what it says, and as `feed` does.
        """
        answer = self._read_whole(last) if self._arriving is None else None
        if answer is None:
            yield from self.feed(last)
            arriving = self._arriving
            assert arriving is not None
            arriving.text.end()
            yield from arriving.go_on(self._reading)
            answer = arriving.message()
            self._header_bytes = arriving.header_bytes
        return (yield from self._reply(answer))

    def _read_whole(self, text: bytes) -> Answer | None:
        """The answer that *text* is as a whole; None for a longer one, or one that has to be looked at more closely.

        Of a member that comes twice the last counts, but not behind long data, which is read by what came before it.
        """
        if len(text) > min(WHOLE_BYTES, self.limits.max_header_bytes):
            return None
        try:
            answer = read_message(decoded(OBJECT, text), Answer, self.limits.max_tensors)
        except CodecError:
            return None
        if len(text) > RUN_BYTES:  # long data may stand in it
            n_outputs = len(answer["outputs"])
            strings = text[: text.rfind(b'"') + 1]  # no member's name stands behind the last quote
            if b"\\u00" in strings or any(strings.count(word) != n_outputs for word in _SAID_BEFORE_DATA):
                return None
        self._header_bytes = len(text)
        return answer

    def _reply(self, answer: Answer) -> Generator[None, None, Reply]:
        self._label(answer)
        wanted, by_default = self.selection.named, self.selection.binary_by_default
        kept: list[Entry] = []
        names: set[str] = set()
        binary: list[ReplyOutput] = []
        later: list[list[bytes]] = []
        for index, entry in enumerate(answer["outputs"]):
            name = name_of(entry, "output", index)
            if wanted and name not in wanted:  # protocol 4.5
                continue
            kept.append(entry)
            names.add(name)
            entry["parameters"] = parameters = entry.get("parameters") or {}
            parameters.pop("binary_data_size", None)
            if "data" not in entry:
                # some servers repeat the region that the request says (protocol 4.5)
                if name not in self.selection.in_shared_memory and "shared_memory_region" not in parameters:
                    raise CodecError(f"{label_of('output', name)} has no data")
            elif wanted.get(name, by_default):
                if binary:
                    yield
                binary.append((yield from self._binary(entry, index, parameters)))
            elif isinstance(entry["data"], _Value):
                later.append(_kept(entry["data"], name))
                entry["data"] = _LATER
            if not parameters:  # protocol 4.4
                del entry["parameters"]
        for name in filterfalse(names.__contains__, wanted):  # protocol 4.5
            raise CodecError(f"{label_of('output', name)} was requested, but the answer does not have it")
        answer["outputs"] = kept
        if self._arriving is not None:
            yield
        texts = printed(answer, later)
        return Reply(long_pieces(texts) if later else texts, binary, self._nonfinite)

    def _binary(self, entry: Entry, index: int, parameters: Parameters) -> Generator[None, None, ReplyOutput]:
        """A binary output; says its size in *parameters*, in place of the data of *entry*."""
        form = name, datatype, shape = _form_of(self.declared, self.max_bytes, entry, index)
        data = entry.pop("data")
        if isinstance(data, Raw):
            text = restore_literals(bytes(data))
            blob = shaped_blob(text, datatype, shape)
            blobs = [blob] if blob is not None else (yield from self._poured((text,), _sink_for(form)))
            self._header_bytes += sum(map(len, blobs))
        elif data.form is None:
            # its text was kept, because its datatype and shape were not known
            data.sink = _sink_for(form)
            blobs = yield from self._poured(taken_out(data.text), data.sink)
        elif data.form[1:] != form[1:]:
            raise CodecError(f"{labelled('output', *form)}: datatype or shape came twice and differ")
        else:
            blobs = yield from self._poured((), data.sink)
        if datatype.kind is BYTES and text_of(parameters.get("content_type")) == "base64":  # protocol 4.8
            blobs = yield from from_base64(blobs, labelled("output", *form))
        parameters["binary_data_size"] = Raw(b"%d" % sum(map(len, blobs)))
        return ReplyOutput(name, datatype, shape, blobs)

    def _poured(self, texts: Iterable[bytes], sink: Sink) -> Generator[None, None, list[memoryview]]:
        """The bytes of the output whose data *sink* has taken when it has got *texts* too."""
        yield from pour(texts, sink)
        assert isinstance(sink, NumberSink | BytesSink)
        if isinstance(sink, NumberSink):
            self._nonfinite += sink.nonfinite
        return sink.blobs()

    def _label(self, answer: Answer) -> None:
        """Put the client's id and name of the model into the answer, and take out the gateway's own id.

        Raises `ForeignAnswerError` for the id of another request.
        """
        if self.is_renamed or answer.get("model_name", _NULL) == _NULL:
            answer["model_name"] = Raw(orjson.dumps(self.model))  # protocol 4.6
        if answer.get("parameters") == _NULL:  # protocol 4.4
            del answer["parameters"]
        answered = bytes(answer.get("id", b""))
        if answered == self.request_id:
            return
        is_own = bool(self.sent_id) and not self.request_id
        if self.sent_id and answered != self.sent_id:
            check_id(restore_literals(answered), self.sent_id, is_own=is_own)  # protocol 4.10
        if is_own or answered == b"null":
            answer.pop("id", None)
        if self.request_id and answered in ABSENT:  # protocol 4.6
            answer["id"] = Raw(self.request_id)


def _form_of(declared: Mapping[str, str], max_bytes: int, entry: Entry, index: int = 0) -> Declaration:
    """What *entry* says of its output, after undoing the promotion of its inputs where its model has *declared* less.

    Raises `CodecError` for what is wrong, and for more elements than can be in *max_bytes*.
    """
    form = name, datatype, shape = declaration(entry, "output", index)
    if name in declared and datatype.name == "FP32":
        datatype = DATATYPES[declared[name]]
        entry["datatype"] = Raw(b'"%b"' % declared[name].encode())
        form = name, datatype, shape
    n_elements = math.prod(shape)
    # every element takes a digit and a comma, or two quotes and a comma
    if n_elements * 2 - 1 > max_bytes:
        raise CodecError(
            f"{labelled('output', *form)}: {count_text(n_elements)} elements cannot be in an answer of at most "
            f"{max_bytes:d} bytes (limits.response_body)"
        )
    return form


def check_id(answered: bytes, sent: bytes, *, is_own: bool) -> None:
    """Raise `ForeignAnswerError` if *answered*, the id of an answer, is another than the one that was *sent*.

    Both are JSON texts; a message without an id is fine. *is_own*: the gateway has made the id that was sent, since the
    client had none.
    """
    if answered in ABSENT or _plain(answered) == _plain(sent):
        return
    remedy = "ids: client" if is_own else "leave_out: [id]"
    raise ForeignAnswerError(
        f"its id is {excerpt(answered)}, and the request's is {excerpt(sent)}: it answers another request, or the "
        f"server makes ids of its own, which `{remedy}` allows"
    )


def _plain(text: bytes) -> str:
    """What an id says: a server may escape other characters, or write a number as a string."""
    return str(json.loads(text)) if text[:1] == b'"' else text.decode()
