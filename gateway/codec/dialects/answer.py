"""A backend's answer in another dialect than V2: from its JSON, as it arrives, to the client's reply in V2.

One member of the answer has the outputs, in one of these forms:

    nested data or a scalar      {"predictions": [[0.1, 0.2], [0.3, 0.4]]}     the only output that the model has
    an object by name            {"outputs": {"y": [0.1, 0.2], "n": [1, 2]}}
    rows: objects by name        {"predictions": [{"y": 0.1, "n": 1}, {"y": 0.2, "n": 2}]}
    a list in order              {"predictions": [[0.1, 0.2], [1, 2]]}         of several outputs, without their names
    rows: lists in order         {"predictions": [[0.1, 1], [0.2, 2]]}         the same, where the dialect has rows
    no rows                      {"predictions": []}                           of every output

Values become bytes of their datatypes while their text passes by, also those of outputs that the client wants in JSON:
so they are proved, and get the shape of their nesting. These are printed again, flat, at the end. The other members of
the answer are passed over.

Not here: how a value is read (`outputs`), and what answers a request gets that is not sent.
"""

from collections.abc import Container, Generator, Iterator, Mapping
from dataclasses import dataclass

import orjson

from gateway.codec.dialects.description import OCTETS_SUFFIX, ModelDescription
from gateway.codec.dialects.output import Output
from gateway.codec.dialects.outputs import Outputs
from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, OutputSelection, label_of
from gateway.codec.json.arriving import ArrivingText, Reading, read_members
from gateway.codec.json.brackets import ARRAY, MAX_TEXT_DEPTH, OBJECT, QUOTE
from gateway.codec.json.members import Members, excerpt, parse_object
from gateway.codec.json.scanner import is_key
from gateway.codec.json.sinks import TextSink
from gateway.codec.tensors import number_printing, string_printing
from gateway.codec.tensors.datatypes import Kind
from gateway.codec.tensors.pieces import SPACE
from gateway.codec.v2.error_bodies import WORD_MEMBERS, shortened, words_of
from gateway.codec.v2.reply import Reply, ReplyOutput, ReplyText
from gateway.codec.values import SHORT_BYTES
from gateway.errors import CodecError, TooLargeError


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Where the answers of a dialect have their outputs, and how they write BYTES.

    The value of the member is nested data or a scalar (of the only output that the model has), an object with a value
    for each output by name, rows: an array of such objects, or a list as `in_rows` says.
    """

    members: tuple[str, ...]
    """The members of an answer that may hold the outputs: `outputs`, `predictions`. One of them has to be there."""
    b64_objects: bool = False
    """Whether an element of BYTES may be written as `{"b64": "..."}`."""
    in_rows: bool = False
    """Whether several outputs without names are an array of rows, each a list with a value for every output; otherwise
    they are one such list."""


class DialectAnswer:
    """Reads one answer piece by piece: `feed` what arrives, then `finish`."""

    def __init__(
        self,
        form: AnswerForm,
        description: ModelDescription,
        selection: OutputSelection,
        *,
        model: str,
        request_id: bytes,
        version: str | None = None,
        limits: HeaderLimits = DEFAULT_LIMITS,
        lists_all: bool = True,
    ) -> None:
        """*description* has the datatypes of the outputs, and the names of those that the answer does not name.

        *model* and *version* are those of the client's path, *request_id* is JSON text or empty: they go into the
        reply. *limits* bound the JSON beside the outputs and their number. *lists_all*: whether an output that is not
        in the description is a `CodecError`; otherwise it is left out.
        """
        self._form = form
        self._description = description
        self._model = model
        self._version = version
        self._request_id = request_id
        self._selection = selection
        self._text = ArrivingText()
        self._outputs = Outputs(
            description,
            selection,
            b64_objects=form.b64_objects,
            in_rows=form.in_rows,
            limits=limits,
            lists_all=lists_all,
        )
        self._beside = _Beside(limits.max_header_bytes)
        # in a generator's frame, which nothing of what it refers to knows: no tensor waits for the garbage collector
        self._reading = _read_document(self._text, form, self._outputs, self._beside)
        self._is_read = False
        self._reply_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What the answer takes so far: what is filled of the outputs, text that waits, and its other members."""
        return self._outputs.held_bytes + self._beside.n_bytes + self._reply_bytes

    def feed(self, chunk: bytes) -> Generator[None, None, None]:
        """Take the next bytes of the JSON; yields after each step of work.

        Raises `CodecError`, and of these `TooLargeError` for more JSON beside the outputs than the limits allow.
        """
        if self._text.add(chunk):
            yield from self._read_on()

    def finish(self, last: bytes = b"") -> Generator[None, None, Reply]:
        """The reply, after the *last* bytes of the JSON; yields after each step of work.

        Raises `CodecError` if the answer is cut off or is not what it says, and as `feed` does.
        """
        if last:
            yield from self.feed(last)
        self._text.end()
        yield from self._read_on()
        outputs = self._outputs.wanted
        missing = missing_output({output.name for output in outputs}, self._selection, self._description)
        if missing is not None:
            raise CodecError(missing)
        return (yield from self._reply(outputs))

    def _read_on(self) -> Iterator[None]:
        """Read as far as the text goes."""
        if not self._is_read:
            for is_step in self._reading:
                if not is_step:
                    return
                yield
            self._is_read = True
        if self._text.buffer.strip(SPACE):
            raise CodecError(f"the JSON ends after {self._text.consumed} bytes, but more follows")
        self._text.buffer.clear()

    def _reply(self, outputs: list[Output]) -> Generator[None, None, Reply]:
        """The outputs as the client wants each of them, in V2's words and order (protocol 4.1, 4.4, 4.6)."""
        text = ReplyText()
        text.add(reply_beginning(self._model, self._version, self._request_id))
        binary: list[ReplyOutput] = []
        for index, output in enumerate(outputs):
            if index:
                text.add(b",")
            if self._selection.is_binary(output.name):
                text.add(entry_text(output, {"binary_data_size": output.n_bytes}))
                binary.append(ReplyOutput(output.name, output.datatype, output.shape, {}, output.blobs()))
                yield
            else:
                yield from self._print(output, text)
        text.add(b"]}")
        return Reply(text.pieces(), binary, sum(output.nonfinite for output in outputs))

    def _print(self, output: Output, text: ReplyText) -> Generator[None, None, None]:
        """Add an output that the client wants in JSON to *text*; its values go as they are printed."""
        for piece in json_pieces(output, self._outputs.released(output), self._form):
            text.add(piece)
            self._reply_bytes += len(piece)
            yield


def _read_document(text: ArrivingText, form: AnswerForm, outputs: Outputs, beside: "_Beside") -> Reading[None]:
    """Read an answer. Raises `CodecError` if it does not have the outputs."""
    if (yield from text.first()) != OBJECT:
        raise CodecError(f"expected a JSON object, got {excerpt(bytes(text.buffer[:256]))}")
    found = False

    def read_run(members: Members) -> "Reading[None]":
        nonlocal found
        for name, value in members.items():
            if name in form.members:
                found = value != b"null"  # which is the same as none
                outputs.start_again()
                if found:
                    yield from _read_outputs(ArrivingText.of_value(bytearray(value)), form, outputs)
            else:
                beside.add(name, value)

    def read_long(name: str) -> "Reading[None]":
        nonlocal found
        if name in form.members:
            found = True
            outputs.start_again()
            yield from _read_outputs(text, form, outputs)
        else:
            yield from beside.read(name, text)

    members = _members_if_whole(text)
    yield from read_run(members) if members is not None else read_members(text, read_run, read_long)
    if not found:
        wanted = " or ".join(f"`{name}`" for name in form.members)
        words = words_of(beside.words)
        raise CodecError(f"no {wanted}, but an error: {shortened(words)}" if words else f"no {wanted}")


def _members_if_whole(text: ArrivingText) -> Members | None:
    """Take the whole answer, if it is there and short; None if it is not, or is to be looked at more closely."""
    if len(text.buffer) > SHORT_BYTES or not text.buffer.endswith(b"}"):
        return None
    if text.buffer.count(b"[") + text.buffer.count(b"{") > MAX_TEXT_DEPTH:  # how deep msgspec reads depends on Python
        return None
    try:
        members = parse_object(bytes(text.buffer))
    except CodecError:
        return None
    text.drop(len(text.buffer))
    return members


def _read_outputs(text: ArrivingText, form: AnswerForm, outputs: Outputs) -> Reading[None]:
    """Read the member that has the outputs."""
    code = yield from text.first()
    if code == OBJECT and not (yield from _is_b64_object(text, 0, form, outputs)):
        yield from outputs.read_by_name(text)
    elif (
        code == ARRAY
        and (yield from text.first(1)) == OBJECT
        and not (yield from _is_b64_object(text, 1, form, outputs))
    ):
        yield from outputs.read_rows(text)
    else:
        yield from outputs.read_unnamed(text)


def _is_b64_object(text: ArrivingText, at: int, form: AnswerForm, outputs: Outputs) -> Reading[bool]:
    """Whether the object that begins at *at* is an element of BYTES, and not values by name."""
    if not form.b64_objects or outputs.is_known("b64") or (yield from text.first(at + 1)) != QUOTE:
        return False
    return is_key((yield from text.string(at + 1)), b'"b64"')


class _Beside:
    """The members of an answer beside its outputs: those that say an error are kept, the others are only counted."""

    def __init__(self, max_bytes: int) -> None:
        self.n_bytes = 0
        self.words: Members = {}
        self._max_bytes = max_bytes

    def add(self, name: str, value: bytes) -> None:
        """Pass over a short member. Raises `TooLargeError`, as `read` does."""
        self._count(len(name) + len(value))
        if name in WORD_MEMBERS:
            self.words[name] = value

    def read(self, name: str, text: ArrivingText) -> Reading[None]:
        """Pass over a long member, whose value begins *text*."""
        value: list[bytes] = []
        start = text.consumed - len(name)
        for state in text.pour(TextSink(excerpt(name.encode()), value if name in WORD_MEMBERS else None)):
            self._count(text.consumed - start)
            start = text.consumed
            yield state
        if name in WORD_MEMBERS:
            self.words[name] = b"".join(value)

    def _count(self, n_bytes: int) -> None:
        self.n_bytes += n_bytes
        if self.n_bytes > self._max_bytes:
            raise TooLargeError(
                f"the JSON beside the outputs is longer than {self._max_bytes} bytes, "
                "which is the most that `limits.header` allows"
            )


def missing_output(found: Container[str], selection: OutputSelection, description: ModelDescription) -> str | None:
    """Why outputs with the names *found* are not all that the client is to get; None if they are.

    It gets what it has selected (protocol 4.5), or else all that the model is said to have.
    """
    for name in selection.named:
        if name not in found:
            return f"{label_of('output', name)} was requested, but the answer does not have it"
    for tensor in () if selection.named else description.outputs:
        if tensor.name not in found:
            return f"{label_of('output', tensor.name)}: the answer does not have it, but the model's description does"
    return None


def reply_beginning(model: str, version: str | None, request_id: bytes) -> bytes:
    """A reply up to its first output, as `DialectAnswer` gets what is in it (protocol 4.6)."""
    said = b"" if version is None else b',"model_version":' + orjson.dumps(version)
    identity = b',"id":' + request_id if request_id else b""
    return b'{"model_name":%b%b%b,"outputs":[' % (orjson.dumps(model), said, identity)


def entry_text(output: Output, parameters: Mapping[str, object]) -> bytes:
    """An output without its data, as the client gets it (protocol 4.4)."""
    entry = {"name": output.name, "shape": output.whole_shape, "datatype": output.datatype.name}
    return orjson.dumps({**entry, "parameters": parameters} if parameters else entry)


def json_pieces(output: Output, blobs: list[memoryview], form: AnswerForm) -> Iterator[bytes]:
    """An output that the client wants in JSON, with its values in *blobs*, from which each is taken when it is printed.

    Raises `CodecError` for BYTES that are no text.
    """
    is_base64 = output.is_base64 or (
        form.b64_objects and output.datatype.kind is Kind.BYTES and output.name.endswith(OCTETS_SUFFIX)
    )
    yield entry_text(output, {"content_type": "base64"} if is_base64 else {})[:-1] + b',"data":['
    separator = b""
    while blobs:
        for piece in _pieces(output, blobs.pop(0), is_base64=is_base64):
            yield separator + piece
            separator = b""
        separator = b","
    yield b"]}"


def _pieces(output: Output, blob: memoryview, *, is_base64: bool) -> Iterator[bytes | bytearray]:
    """The values in *blob* as the inside of a JSON array. Raises `CodecError` for BYTES that are no text."""
    if output.datatype.kind is not Kind.BYTES:
        yield from number_printing.literal_pieces(output.datatype.view(blob), output.datatype)
    elif is_base64:
        yield from string_printing.base64_pieces(blob)
    else:
        try:
            for piece in string_printing.text_pieces(blob):
                if not piece.isascii():
                    piece.decode()
                yield piece
        except UnicodeDecodeError:
            raise CodecError(f"{output.label}: an element is not UTF-8; only a binary output can have it") from None
