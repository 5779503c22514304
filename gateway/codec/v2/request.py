"""An inference request: from the client's body to the backend's JSON (protocol sections 1 to 3).

`InferRequest.parse` proves the whole body right before anything is sent. `InferRequest.json_pieces`
makes the JSON as often as it is asked to: the body is held once, its JSON never.
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from enum import Enum

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
from gateway.codec.json.sinks import SkipSink
from gateway.codec.tensors import elements, number_printing, string_printing
from gateway.codec.tensors.datatypes import DATATYPES, Datatype, Kind, element_count
from gateway.codec.tensors.pieces import PIECE_BYTES, check_utf8
from gateway.codec.v2.framing import HEADER_LENGTH, Cursor
from gateway.codec.v2.raw import is_bytes_model, raw_header
from gateway.errors import CodecError

MAX_RANK = 64
"""The most dimensions a shape may have; frameworks stop at 32 or 64."""

MAX_DIMENSION = 2**63 - 1

_PARAMETER_KEY = re.compile(rb'"binary_data(?:_size|_output)?"[ \t\r\n]{0,32}:')
_PARAMETER_KEY_OR_ESCAPE = re.compile(_PARAMETER_KEY.pattern + rb"|\\u00")
_SEARCH_BYTES = 256 * 1024
_SEARCH_OVERLAP = 64
_FINITE_ELEMENTS = 256 * 1024  # looking is sixteen times as fast as printing

SMALL_BYTES = 16 * 1024
"""The most that is made to JSON as a whole; as text, one-byte types take up to six times as much."""

KNOWN_HEADERS = 256
KNOWN_HEADER_BYTES = 4096
"""How many headers of earlier requests are remembered, and how long one may be."""

_INTEGER = re.compile(rb"[0-9]{1,20}")

_STRING = msgspec.json.Decoder(str)
_INTEGERS = msgspec.json.Decoder(list[int])


class NonFinite(Enum):
    """What becomes of NaN and infinities in binary inputs (protocol 3.4)."""

    REJECT = "reject"
    AS_NULL = "as_null"
    LITERAL = "literal"


class BytesPolicy(Enum):
    """How BYTES elements become JSON strings (protocol 3.5)."""

    UTF8 = "utf8"
    BASE64 = "base64"


class HalfPrecision(Enum):
    """Whether FP16 and BF16 go out under their own names or as FP32."""

    NATIVE = "native"
    PROMOTE = "promote"


@dataclass(frozen=True, slots=True)
class TensorPolicy:
    """How one backend wants the tensors that JSON cannot carry as they are."""

    nonfinite: NonFinite = NonFinite.REJECT
    bytes: BytesPolicy = BytesPolicy.UTF8
    half_precision: HalfPrecision = HalfPrecision.NATIVE


class Tensor(msgspec.Struct, frozen=True):
    """A binary input: a view of the body, and what its header says of it."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]
    blob: memoryview

    def __str__(self) -> str:
        """How errors call it."""
        return f"input {self.name!r} ({self.datatype.name}, shape {list(self.shape)})"


@dataclass(slots=True)
class OutputSelection:
    """Which outputs the client wants, and which of them in binary (protocol 4.1, 4.5)."""

    binary_by_default: bool = False
    named: dict[str, bool] = field(default_factory=dict)
    """Every output the request lists, and whether it is to be binary."""

    def is_wanted(self, name: str) -> bool:
        """Whether the client gets the output at all."""
        return not self.named or name in self.named

    def is_binary(self, name: str) -> bool:
        """Whether the client gets the output as a blob."""
        return self.named.get(name, self.binary_by_default)


Segment = bytes | memoryview | Tensor

Piece = bytes | bytearray | memoryview
"""Some JSON text."""


@dataclass(slots=True)
class InferRequest:
    """A request that has been proved right, and the JSON it becomes."""

    inputs: list[Tensor]
    """The binary ones, in the order of their blobs."""
    selection: OutputSelection
    id: bytes
    """The client's id as JSON text; empty if it sent none."""
    header_recovered: bool
    nonfinite: int
    """How many NaN and infinities are let through by policy."""
    _segments: list[Segment]
    _policy: TensorPolicy

    @staticmethod
    def parse(
        body: memoryview,
        header_length: int | None,
        policy: TensorPolicy,
        *,
        recover: bool,
        known: "KnownHeaders | None" = None,
    ) -> Generator[None, None, "InferRequest | None"]:
        """Parse and check a whole body; None if it is pure JSON, which nobody judges (protocol 3.6).

        *header_length* is the client's, None if it sent none; then *recover* allows protocol section 6.
        *known* are headers of earlier requests under the same policy.
        Yields after each step of work. Raises `CodecError`.
        """
        if header_length is not None:
            if known is None or header_length > min(KNOWN_HEADER_BYTES, len(body)):
                header, blobs = yield from _Parser(body, header_length, policy).parse()
                return (yield from header.bind(blobs, policy))
            text = bytes(body[:header_length])
            found = known.get(text)
            if found is None:
                found, _ = yield from _Parser(body, header_length, policy).parse()
                known.add(text, found)
            return (yield from found.bind(body[header_length:], policy))
        if not body:
            raise CodecError("empty request body")
        if not (yield from _may_have_binary_parameters(body)):
            return None
        parsed = yield from _Parser(body, None, policy, recover=recover).parse_if_binary()
        return (yield from parsed[0].bind(parsed[1], policy)) if parsed is not None else None

    @staticmethod
    def parse_raw(body: memoryview, metadata: bytes, policy: TensorPolicy) -> Generator[None, None, "InferRequest"]:
        """Parse a raw binary request (protocol section 5): *metadata* is the model's, *body* its only input.

        Yields after each step of work. Raises `CodecError`.
        """
        header = raw_header(metadata, len(body))
        if is_bytes_model(metadata):
            if len(body) > elements.MAX_ELEMENT_BYTES:
                raise CodecError(f"the body has {len(body)} bytes, more than a BYTES element can have")
            body = memoryview(b"".join((len(body).to_bytes(4, "little"), body)))
        parsed, blobs = yield from _Parser(memoryview(header), len(header), policy, blobs=body).parse()
        return (yield from parsed.bind(blobs, policy))

    @property
    def promotes(self) -> bool:
        """Whether FP16 or BF16 inputs go out as FP32."""
        return self._policy.half_precision is HalfPrecision.PROMOTE and any(
            tensor.datatype.kind is Kind.FLOAT and tensor.datatype.item_bytes == 2 for tensor in self.inputs
        )

    @property
    def is_small(self) -> bool:
        """Whether its JSON is small enough to be made and sent in one go."""
        return sum(len(s.blob) if isinstance(s, Tensor) else len(s) for s in self._segments) <= SMALL_BYTES

    def json_pieces(self) -> Iterator[Piece]:
        """The backend's JSON in pieces of bounded size; every call makes it anew."""
        pending: list[Piece] = []
        pending_bytes = 0
        for segment in self._segments:
            for piece in self._text(segment):
                if len(piece) >= PIECE_BYTES:
                    if pending:
                        yield b"".join(pending)
                        pending, pending_bytes = [], 0
                    yield piece
                    continue
                pending.append(piece)
                pending_bytes += len(piece)
                if pending_bytes >= PIECE_BYTES:
                    yield b"".join(pending)
                    pending, pending_bytes = [], 0
        if pending:
            yield b"".join(pending)

    def _text(self, segment: Segment) -> Iterator[Piece]:
        if isinstance(segment, bytes):
            return iter((segment,))
        if isinstance(segment, memoryview):
            return (segment[start : start + PIECE_BYTES] for start in range(0, len(segment), PIECE_BYTES))
        if segment.datatype.kind is Kind.BYTES:
            if self._policy.bytes is BytesPolicy.BASE64:
                return string_printing.base64_pieces(segment.blob)
            return string_printing.text_pieces(segment.blob)
        values = segment.datatype.view(segment.blob)
        if self._policy.nonfinite is NonFinite.LITERAL and segment.datatype.kind is Kind.FLOAT:
            return number_printing.literal_pieces(values, segment.datatype)
        return number_printing.text_pieces(values, segment.datatype)


@dataclass(frozen=True, slots=True)
class _Header:
    """The JSON of a request, proved right; all that is left to prove are the values in its blobs."""

    announced: list[tuple[Tensor, int]]
    """The binary inputs, still without their blobs, and how many bytes each has."""
    selection: OutputSelection
    id: bytes
    is_recovered: bool
    segments: list[bytes | memoryview | int]
    """The backend's JSON: text as it is, and the numbers of the binary inputs that stand between."""

    def bind(self, blobs: memoryview, policy: TensorPolicy) -> Generator[None, None, InferRequest]:
        """The request that has these *blobs*. Raises `CodecError`."""
        cursor = Cursor(blobs)
        inputs = [
            Tensor(tensor.name, tensor.datatype, tensor.shape, cursor.take(n_bytes, tensor))
            for tensor, n_bytes in self.announced
        ]
        cursor.finish()
        nonfinite = 0
        for tensor in inputs:
            if tensor.datatype.kind is Kind.BYTES:
                as_text = policy.bytes is BytesPolicy.UTF8
                yield from elements.check_elements(tensor.blob, element_count(tensor.shape), tensor, utf8=as_text)
            elif tensor.datatype.kind is Kind.FLOAT:
                nonfinite += yield from _check_finite(tensor, policy.nonfinite)
        segments = [inputs[segment] if isinstance(segment, int) else segment for segment in self.segments]
        return InferRequest(inputs, self.selection, self.id, self.is_recovered, nonfinite, segments, policy)


class KnownHeaders:
    """Headers of earlier requests, all under one policy: clients send the same ones again and again.

    Only those whose inputs are all binary and that have no id. What was not used for longest is forgotten first.
    """

    def __init__(self) -> None:
        self._headers: dict[bytes, _Header] = {}

    def get(self, text: bytes) -> _Header | None:
        """What *text* says, if it is known."""
        header = self._headers.pop(text, None)
        if header is not None:
            self._headers[text] = header
        return header

    def add(self, text: bytes, header: _Header) -> None:
        """Remember what *text* says."""
        if header.id or any(isinstance(segment, memoryview) for segment in header.segments):
            return  # it will not come again, or has a part of its body
        if len(self._headers) >= KNOWN_HEADERS:
            del self._headers[next(iter(self._headers))]
        self._headers[text] = header


class _Parser:
    """The state of one `InferRequest.parse`; lives no longer than the call."""

    def __init__(
        self,
        body: memoryview,
        header_length: int | None,
        policy: TensorPolicy,
        *,
        recover: bool = False,
        blobs: memoryview | None = None,
    ) -> None:
        """*blobs*: what follows the header, where that is not in *body*."""
        self._body = body
        self._blobs = blobs
        self._header_length = header_length
        self._policy = policy
        self._recover = recover
        self._spans: list[tuple[int, int]] = []
        self._marker = b""
        self._announced: list[tuple[Tensor, int]] = []
        self._segments: list[bytes | memoryview | int] = []
        self._texts: list[bytes] = []

    def parse(self) -> Generator[None, None, tuple[_Header, memoryview]]:
        """Header and blobs of a client that said where its header ends."""
        top, header_bytes = yield from self._read()
        return self._build(top, header_bytes)

    def parse_if_binary(self) -> Generator[None, None, tuple[_Header, memoryview] | None]:
        """The same if the request uses any of the three parameters of the extension; None if it does not."""
        try:
            top, header_bytes = yield from self._read()
        except CodecError:
            # what cannot be read is judged only if it was plainly meant to be binary
            if (yield from _contains(self._body, _PARAMETER_KEY)):
                raise
            return None
        if not _has_binary_parameters(top):
            return None
        return self._build(top, header_bytes)

    def _read(self) -> Generator[None, None, tuple[Members, int]]:
        """The members of the JSON, and where it ends in the body."""
        skeleton, header_bytes = yield from self._split()
        skeleton, self._marker = protect_literals(skeleton)
        return parse_object(skeleton), header_bytes

    def _build(self, top: Members, header_bytes: int) -> tuple[_Header, memoryview]:
        try:
            return self._check_and_build(top, header_bytes)
        except CodecError as error:
            raise CodecError(restore_literals(str(error).encode(), self._marker).decode()) from None

    def _check_and_build(self, top: Members, header_bytes: int) -> tuple[_Header, memoryview]:
        inputs = self._entries(top, "inputs")
        if inputs is None:
            raise CodecError("the request has no `inputs` array")
        blobs, is_recovered = self._frame(inputs, header_bytes)
        selection, outputs = self._select(top)

        separator = b"{"
        for key, value in top.items():
            if key == "inputs":
                self._emit(separator + b'"inputs":[')
                self._inputs(inputs)
                self._emit(b"]")
            elif key == "outputs" and outputs is not None:
                self._emit(separator + b'"outputs":' + outputs)
            elif key == "parameters" and value != b"null":
                parameters = members_of(value, "parameters")
                if parameters.pop("binary_data_output", None) is not None and not parameters:
                    continue
                self._emit(separator + b'"parameters":' + object_text(parameters))
            else:
                self._emit(separator + orjson.dumps(key) + b":" + value)
            separator = b","
        self._emit(b"}")
        request_id = restore_literals(_request_id(top), self._marker)
        segments = [*self._segments, b"".join(self._texts)]
        return _Header(self._announced, selection, request_id, is_recovered, segments), blobs

    def _split(self) -> Generator[None, None, tuple[bytes, int]]:
        """The skeleton of the JSON, and where the JSON ends in the body."""
        n_bytes = self._header_length
        if n_bytes is not None and n_bytes > len(self._body):
            raise CodecError(
                f"{HEADER_LENGTH} is {n_bytes}, but the whole body has {len(self._body)} bytes; "
                "it counts the JSON header before compression"
            )
        text = self._body[:n_bytes]
        if n_bytes is not None and n_bytes <= PIECE_BYTES:
            header = bytes(text)
            if b'"data"' not in header and b"\\u" not in header:
                return header, n_bytes
        scanner = Scanner("inputs", lambda entry: SkipSink("the JSON of an input"))
        for start in range(0, len(text), PIECE_BYTES):
            yield from scanner.feed(text[start : start + PIECE_BYTES])
            if scanner.done and n_bytes is None:
                break
        try:
            yield from scanner.finish()
        except CodecError as error:
            if n_bytes is None:
                raise
            raise CodecError(
                f"{error}; {HEADER_LENGTH} says that the JSON has {n_bytes} bytes: is it too small?"
            ) from None
        if n_bytes is not None and scanner.trailing_bytes():
            raise CodecError(
                f"the JSON ends after {scanner.consumed} bytes, but {HEADER_LENGTH} is {n_bytes}: is it too large?"
            )
        self._spans = scanner.spans
        for start, end in self._spans:
            yield from check_utf8(self._body[start:end], "the request's JSON")
        return scanner.skeleton, scanner.consumed if n_bytes is None else n_bytes

    def _frame(self, inputs: list[Members], header_bytes: int) -> tuple[memoryview, bool]:
        """The blobs, and whether the header length had to be found (protocol section 6)."""
        blobs = self._body[header_bytes:] if self._blobs is None else self._blobs
        if self._header_length is not None:
            return blobs, False
        sizes = [_binary_size(_parameters(entry), entry, index) for index, entry in enumerate(inputs)]
        expected = sum(size for size in sizes if size is not None)
        announced = any(size is not None for size in sizes)
        is_blank = len(blobs) <= PIECE_BYTES and not bytes(blobs).strip(b" \t\r\n")
        if expected == 0 and is_blank:
            return blobs[:0], False
        if announced and expected == len(blobs):
            if expected and not self._recover:
                raise CodecError(f"binary data follows the JSON, but the header {HEADER_LENGTH} is missing")
            return blobs, expected > 0
        raise CodecError(
            f"the header {HEADER_LENGTH} is missing, and the body does not make up for it: {len(blobs)} bytes follow "
            f"the JSON, but the binary_data_size of all inputs add up to {expected}"
        )

    def _entries(self, top: Members, key: str) -> list[Members] | None:
        value = top.get(key)
        if value is None or value == b"null":
            return None
        try:
            return parse_objects(value)
        except CodecError:
            raise CodecError(f"`{key}` must be an array of objects, got {excerpt(value)}") from None

    def _select(self, top: Members) -> tuple[OutputSelection, bytes | None]:
        """What the client wants back, and `outputs` without the words of the extension; None if absent."""
        selection = OutputSelection()
        parameters = top.get("parameters")
        if parameters is not None and parameters != b"null":
            selection.binary_by_default = bool(
                self._flag(members_of(parameters, "parameters"), "binary_data_output", "")
            )
        outputs = self._entries(top, "outputs")
        if outputs is None:
            return selection, None
        texts = []
        for index, entry in enumerate(outputs):
            name = _name(entry, f"output {index}")
            if name in selection.named:
                raise CodecError(f"output {name!r} is requested more than once")
            members = _given_parameters(entry, f"output {name!r}")
            flag = self._flag(members, "binary_data", f"output {name!r}: ")
            if members.pop("binary_data", None) is not None:
                _replace_parameters(entry, members)
            selection.named[name] = selection.binary_by_default if flag is None else flag
            texts.append(object_text(entry))
        return selection, b"[" + b",".join(texts) + b"]"

    def _flag(self, members: Members, key: str, where: str) -> bool | None:
        value = members.get(key)
        if value is None:
            return None
        flag = {b"true": True, b"false": False, b"null": None}.get(value, "")
        if flag == "":
            raise CodecError(f"{where}{key}: expected true or false, got {excerpt(value)}")
        return flag  # type: ignore[return-value]

    def _inputs(self, inputs: list[Members]) -> None:
        names = set()
        for index, entry in enumerate(inputs):
            if index:
                self._emit(b",")
            raw_name = entry.get("name")
            label = f"input {index}"
            if raw_name is not None and raw_name[:1] == b'"':
                name = _STRING.decode(raw_name)
                label = f"input {name!r}"
                if name in names:
                    raise CodecError(f"{label} is given more than once")
                names.add(name)
            self._input(entry, index, label)

    def _input(self, entry: Members, index: int, label: str) -> None:
        members = _given_parameters(entry, label)
        size = _binary_size(members, entry, index)
        data = self._data(entry)
        given = [data is not None, size is not None, "shared_memory_region" in members]
        if sum(given) != 1:
            raise CodecError(
                f"{label}: Input must set only one of the following fields: 'data', 'binary_data_size' in "
                f"'parameters', 'shared_memory_region' in 'parameters'; got {sum(given) or 'none'} of them"
            )
        if members.pop("binary_data_size", None) is not None:
            _replace_parameters(entry, members)
        entry.pop("data", None)
        if size is not None:
            self._binary_input(entry, size, label)
            return
        text = object_text(entry)
        if data is None:
            self._emit(text)
            return
        self._emit(text[:-1] + (b',"data":' if len(text) > 2 else b'"data":'))
        self._emit_data(data)
        self._emit(b"}")

    def _binary_input(self, entry: Members, size: int, label: str) -> None:
        name = _name(entry, label)
        datatype = _datatype(entry, label)
        shape = _shape(entry, label)
        tensor = Tensor(name, datatype, shape, memoryview(b""))
        n_elements = element_count(shape)
        expected = n_elements * datatype.item_bytes
        if datatype.kind is Kind.BYTES:
            if self._policy.bytes is BytesPolicy.BASE64:
                members = _given_parameters(entry, label)
                members["content_type"] = b'"base64"'
                _replace_parameters(entry, members)
        elif size != expected:
            raise CodecError(
                f"{tensor}: binary_data_size: expected {expected}, got {size} "
                f"({n_elements} elements of {datatype.item_bytes} bytes)"
            )
        elif (
            datatype.kind is Kind.FLOAT
            and datatype.item_bytes == 2
            and self._policy.half_precision is HalfPrecision.PROMOTE
        ):
            entry["datatype"] = b'"FP32"'
        text = object_text(entry)
        self._emit(text[:-1] + b',"data":[')
        self._emit_data(len(self._announced))
        self._announced.append((tensor, size))
        self._emit(b"]}")

    def _data(self, entry: Members) -> memoryview | None:
        """The text of a JSON input's `data`; None if it is absent or null."""
        raw = entry.get("data")
        if raw is None:
            return None
        start, end = self._spans[int(raw)]
        view = self._body[start:end]
        return None if end - start < 64 and bytes(view).strip(b" \t\r\n") == b"null" else view

    def _emit(self, text: bytes) -> None:
        self._texts.append(restore_literals(text, self._marker))

    def _emit_data(self, data: memoryview | int) -> None:
        self._segments += (b"".join(self._texts), data)
        self._texts.clear()


def _check_finite(tensor: Tensor, policy: NonFinite) -> Generator[None, None, int]:
    """How many NaN and infinities are let through. Raises `CodecError` where *policy* refuses one (protocol 3.4)."""
    nonfinite = 0
    array = tensor.datatype.view(tensor.blob)
    for start in range(0, len(array), _FINITE_ELEMENTS):
        if start:
            yield
        piece = array[start : start + _FINITE_ELEMENTS]
        finite = tensor.datatype.is_finite(piece)  # type: ignore[misc]
        n_finite = np.count_nonzero(finite)
        if n_finite == len(piece):
            continue
        values = tensor.datatype.widen(piece)
        if policy is not NonFinite.LITERAL:
            refused = np.isinf(values) if policy is NonFinite.AS_NULL else ~finite
            if refused.any():
                index = int(np.argmax(refused))
                raise CodecError(
                    f"{tensor}: element {start + index} is {float(values[index])}, which JSON cannot carry; "
                    f"this backend's `nonfinite` is {policy.value}"
                )
        nonfinite += len(piece) - int(n_finite)
    return nonfinite


def _may_have_binary_parameters(body: memoryview) -> Generator[None, None, bool]:
    """Whether *body* has to be parsed to know if it uses the extension: its words, or an escape that may hide them."""
    return (yield from _contains(body, _PARAMETER_KEY_OR_ESCAPE))


def _contains(body: memoryview, pattern: re.Pattern[bytes]) -> Generator[None, None, bool]:
    """Whether *pattern* is anywhere in *body*; yields between pieces, which overlap."""
    for start in range(0, len(body), _SEARCH_BYTES):
        piece = bytes(body[start : start + _SEARCH_BYTES + _SEARCH_OVERLAP])
        if (b"binary_data" in piece or b"\\" in piece) and pattern.search(piece):
            return True
        yield
    return False


def _has_binary_parameters(top: Members) -> bool:
    """Whether the request uses one of the extension's parameters, right or wrong (protocol 1.6)."""
    if "binary_data_output" in _parameters(top):
        return True
    return any(
        word in _parameters(entry)
        for key, word in (("inputs", "binary_data_size"), ("outputs", "binary_data"))
        for entry in _objects(top.get(key, b"null"))
    )


def _given_parameters(entry: Members, label: str) -> Members:
    """The `parameters` of an input or output; none if they are absent or null. Raises `CodecError` if not an object."""
    raw = entry.get("parameters")
    return members_of(raw, f"{label}: parameters") if raw is not None and raw != b"null" else {}


def _replace_parameters(entry: Members, parameters: Members) -> None:
    if parameters:
        entry["parameters"] = object_text(parameters)
    else:
        entry.pop("parameters", None)


def _parameters(members: Members) -> Members:
    """The `parameters` of an object; none if they are absent or anything else."""
    raw = members.get("parameters", b"")
    return parse_object(raw) if raw[:1] == b"{" else {}


def _objects(raw: bytes) -> list[Members]:
    try:
        return parse_objects(raw)
    except CodecError:
        return []


def _name(entry: Members, label: str) -> str:
    raw = entry.get("name")
    if raw is None or raw[:1] != b'"':
        raise CodecError(f"{label}: name must be a string, got {excerpt(raw) if raw is not None else 'none'}")
    return _STRING.decode(raw)


def _datatype(entry: Members, label: str) -> Datatype:
    raw = entry.get("datatype")
    text = excerpt(raw) if raw is not None else "none"
    name = _STRING.decode(raw) if raw is not None and raw[:1] == b'"' else ""
    datatype = DATATYPES.get(name)
    if datatype is None:
        hint = f'; datatypes are in upper case, "{name.upper()}"' if name.upper() in DATATYPES else ""
        raise CodecError(f"{label}: datatype must be one of {' '.join(DATATYPES)}, got {text}{hint}")
    return datatype


def parse_shape(raw: bytes) -> tuple[int, ...] | None:
    """The shape that *raw* (JSON) says; None unless it is an array of at most `MAX_RANK` integers >= 0."""
    try:
        shape = _INTEGERS.decode(raw)
    except msgspec.DecodeError:
        return None
    # with a minus sign even 0 is refused
    if b"-" in raw or len(shape) > MAX_RANK or max(shape, default=0) > MAX_DIMENSION:
        return None
    return tuple(shape)


def _shape(entry: Members, label: str) -> tuple[int, ...]:
    raw = entry.get("shape")
    shape = parse_shape(raw) if raw is not None else None
    if shape is None:
        got = excerpt(raw) if raw is not None else "none"
        raise CodecError(f"{label}: shape must be a list of at most {MAX_RANK} integers >= 0, got {got}")
    return shape


def _binary_size(parameters: Members, entry: Members, index: int) -> int | None:
    """`binary_data_size` among the *parameters* of the input *entry*; None if it has none."""
    value = parameters.get("binary_data_size")
    if value is None or value == b"null":
        return None
    if not _INTEGER.fullmatch(value):
        label = f"input {_STRING.decode(entry['name'])!r}" if entry.get("name", b"")[:1] == b'"' else f"input {index}"
        raise CodecError(f"{label}: binary_data_size must be an integer >= 0, got {excerpt(value)}")
    return int(value)


def _request_id(top: Members) -> bytes:
    raw = top.get("id", b"")
    return b"" if raw in (b"null", b'""') else raw
