"""The JSON of an inference request: judged, and made into the JSON that the backend gets (protocol sections 1 to 3).

The backend's JSON is kept as segments: text as it goes out, views of the body where a JSON input's data stands, and
the numbers of the binary inputs whose data is printed in between, later and as often as it is sent. Not here: the
values in the blobs (`request`).
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import MappingProxyType

import orjson

from gateway.codec.inference import (
    BytesPolicy,
    HalfPrecision,
    HeaderLimits,
    OutputSelection,
    Tensor,
    TensorPolicy,
    count_text,
    is_half_precision,
    label_of,
)
from gateway.codec.json.members import (
    HELD_PER_BYTE,
    Members,
    excerpt,
    object_text,
    parse_object,
    parse_objects,
    protect_literals,
    put_last,
    restore_literals,
    sliced_object,
    sliced_objects,
    sliced_protect,
)
from gateway.codec.json.scanner import Scanner
from gateway.codec.json.sinks import SkipSink
from gateway.codec.tensors.datatypes import Datatype, Kind, element_count
from gateway.codec.tensors.pieces import NOT_SPACE, PIECE_BYTES, SPACE, check_utf8
from gateway.codec.v2 import declarations
from gateway.codec.v2.declarations import datatype_of, name_of, shape_of, sliced_parameters, text_of
from gateway.codec.v2.framing import HEADER_LENGTH
from gateway.codec.v2.steps import (
    ENTRY_COST,
    FEW_MEMBERS,
    ITEM_COST,
    SHORT_BYTES,
    Steps,
    sliced_restore,
    sliced_text,
)
from gateway.errors import CodecError, TooLargeError

_PARAMETER_KEY = re.compile(rb'"binary_data(?:_size|_output)?"[ \t\r\n]{0,32}:')
_PARAMETER_KEY_OR_ESCAPE = re.compile(_PARAMETER_KEY.pattern + rb"|\\u00")
_SEARCH_BYTES = 256 * 1024
_SEARCH_OVERLAP = 64  # no shorter than a key with its blanks

MEMBERS = ("id", "parameters", "inputs", "outputs")
"""The order in which a request's members are written, behind those that the protocol does not know (protocol 3.2)."""

_SIZE = re.compile(rb"[0-9]{1,20}")
_FLAGS = {b"true": True, b"false": False}

Segment = bytes | memoryview | int
"""A part of the backend's JSON: text, a part of the body, or the number of the binary input whose data stands here."""

Reserve = Callable[[int], None]
"""Asks for so many bytes of memory; may raise to refuse the request."""


def reserve_nothing(_: int) -> None:
    """Reserve without a budget."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The JSON of a request, proved right; all that is left to prove are the values in its blobs."""

    announced: list[tuple[Tensor, int]]
    """The binary inputs, still without their blobs, and how many bytes each has."""
    selection: OutputSelection
    id: bytes
    is_recovered: bool
    segments: list[Segment]
    """The backend's JSON."""


class HeaderParser:
    """Reads the JSON at the front of one body; lives no longer than that takes."""

    def __init__(
        self,
        body: memoryview,
        header_length: int | None,
        policy: TensorPolicy,
        limits: HeaderLimits,
        reserve: Reserve,
        *,
        recover: bool = False,
    ) -> None:
        """*header_length* is the client's, None if it sent none; then *recover* allows protocol section 6.

        *reserve* is asked once, for the memory that the parsed header takes, before anything is built.
        """
        self._body = body
        self._header_length = header_length
        self._policy = policy
        self._limits = limits
        self._reserve = reserve
        self._recover = recover
        self._spans: list[tuple[int, int]] = []
        self._marker = b""
        self._announced: list[tuple[Tensor, int]] = []
        self._segments: list[Segment] = []
        self._text = bytearray()
        self._steps = Steps()

    def parse(self) -> Generator[None, None, tuple[RequestHeader, memoryview]]:
        """The header of a client that said where it ends, and the blobs behind it. Raises `CodecError`."""
        top, header_bytes = yield from self._read()
        return (yield from self._build(top, header_bytes))

    def parse_if_binary(self) -> Generator[None, None, tuple[RequestHeader, memoryview] | None]:
        """The same if the request uses any parameter of the extension, right or wrong; else None (protocol 1.6)."""
        try:
            top, header_bytes = yield from self._read()
        except CodecError:
            # what cannot be read is judged only if it was plainly meant to be binary
            if (yield from _contains(self._body, _PARAMETER_KEY)):
                raise
            return None
        if not (yield from self._is_binary(top)):
            return None
        return (yield from self._build(top, header_bytes))

    # From the body to the members of the JSON

    def _read(self) -> Generator[None, None, tuple[Members, int]]:
        """The members of the JSON, and where it ends in the body."""
        skeleton, header_bytes = yield from self._split()
        self._reserve(len(skeleton) * HELD_PER_BYTE)
        if len(skeleton) <= SHORT_BYTES:
            skeleton, self._marker = protect_literals(skeleton)
            return parse_object(skeleton), header_bytes
        skeleton, self._marker = yield from sliced_protect(skeleton)
        return (yield from sliced_object(skeleton)), header_bytes

    def _split(self) -> Generator[None, None, tuple[bytes, int]]:
        """The JSON with numbers in place of each input's `data`, and where it ends in the body."""
        n_bytes = self._header_length
        if n_bytes is not None and n_bytes > len(self._body):  # protocol 1.2
            raise CodecError(
                f"{HEADER_LENGTH} is {n_bytes}, but the whole body has {len(self._body)} bytes; "
                "it counts the JSON header before compression"
            )
        text = self._body[:n_bytes]
        if n_bytes is not None and n_bytes <= min(PIECE_BYTES, self._limits.max_header_bytes):
            header = bytes(text)
            if b'"data"' not in header and b"\\u" not in header:
                return header, n_bytes
        scanner = Scanner(
            "inputs",
            lambda entry: SkipSink("the JSON of an input"),
            max_skeleton_bytes=self._limits.max_header_bytes,
            max_entries=self._limits.max_tensors,
        )
        for start in range(0, len(text), PIECE_BYTES):
            yield from scanner.feed(text[start : start + PIECE_BYTES])
            if scanner.done and n_bytes is None:
                break
        try:
            yield from scanner.finish()
        except TooLargeError:
            raise
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

    def _entries(self, top: Members, key: str) -> Generator[None, None, list[Members] | None]:
        """The objects in the array at *key*; None if it is absent or null. Raises `CodecError` for too many."""
        text = top.get(key, b"null")
        if text == b"null":  # protocol 2.8
            return None
        limit = self._limits.max_tensors
        try:
            entries = parse_objects(text) if len(text) <= SHORT_BYTES else (yield from sliced_objects(text, limit))
            n_entries = len(entries)
        except CodecError as error:
            if "limits.tensors" not in str(error):
                raise CodecError(f"`{key}` must be an array of objects, got {excerpt(text)}") from None
            n_entries = limit + 1
        if n_entries > limit:
            raise CodecError(f"more than {limit} entries in `{key}`, which is the most that `limits.tensors` allows")
        return entries

    def _is_binary(self, top: Members) -> Generator[None, None, bool]:
        """Whether the request uses one of the extension's parameters, right or wrong (protocol 1.6)."""
        if "binary_data_output" in (yield from _lenient_parameters(top)):
            return True
        for key, word in (("inputs", "binary_data_size"), ("outputs", "binary_data")):
            try:
                entries = yield from self._entries(top, key)
            except CodecError:
                continue  # of JSON that nobody judges
            for entry in entries or ():
                if word in (yield from _lenient_parameters(entry)):
                    return True
                if self._steps.is_full_with(_cost(entry)):
                    yield
        return False

    # From the members to the backend's JSON

    def _build(self, top: Members, header_bytes: int) -> Generator[None, None, tuple[RequestHeader, memoryview]]:
        try:
            return (yield from self._check_and_build(top, header_bytes))
        except CodecError as error:
            raise CodecError(restore_literals(str(error).encode(), self._marker).decode()) from None

    def _check_and_build(
        self, top: Members, header_bytes: int
    ) -> Generator[None, None, tuple[RequestHeader, memoryview]]:
        inputs = yield from self._entries(top, "inputs")
        if inputs is None:  # protocol 1.6
            raise CodecError("the request has no `inputs` array")
        blobs, is_recovered = yield from self._frame(inputs, header_bytes)
        text = top.get("parameters", b"null")
        parameters = yield from sliced_parameters(text, "")
        by_default = bool(_flag(parameters, "binary_data_output", ""))
        selection, outputs = OutputSelection(by_default), None
        requested = yield from self._entries(top, "outputs")
        if requested is not None:
            selection, outputs = yield from self._select(requested, by_default)

        put_last(top, MEMBERS)
        separator = b"{"
        for key, value in top.items():
            if self._steps.is_full_with(ITEM_COST + len(value)):
                yield
            if key == "inputs":
                self._text += separator + b'"inputs":['
                yield from self._inputs(inputs)
                self._text += b"]"
            elif key == "outputs" and outputs is not None:
                self._text += separator + b'"outputs":' + outputs
            elif key == "parameters" and value != b"null":
                if parameters.pop("binary_data_output", None) is not None and not parameters:
                    continue  # protocol 3.2
                self._text += separator + b'"parameters":'
                self._text += (
                    object_text(parameters) if len(parameters) <= FEW_MEMBERS else (yield from sliced_text(parameters))
                )
            else:
                self._text += separator + orjson.dumps(key) + b":" + value
            separator = b","
        self._text += b"}"
        self._segments.append(bytes(self._text))
        yield from self._restore_segments()
        request_id = top.get("id", b"")
        request_id = b"" if request_id in (b"null", b'""') else restore_literals(request_id, self._marker)
        return RequestHeader(self._announced, selection, request_id, is_recovered, self._segments), blobs

    def _frame(self, inputs: list[Members], header_bytes: int) -> Generator[None, None, tuple[memoryview, bool]]:
        """The blobs, and whether the header length had to be found (protocol section 6)."""
        blobs = self._body[header_bytes:]
        if self._header_length is not None:
            return blobs, False
        expected = 0
        announced = False
        for index, entry in enumerate(inputs):
            if self._steps.is_full_with(_cost(entry)):
                yield
            size = _binary_size((yield from _lenient_parameters(entry)), entry, index)
            announced = announced or size is not None
            expected += size or 0
        if expected == 0 and len(blobs) <= PIECE_BYTES and not bytes(blobs).strip(SPACE):
            return blobs[:0], False
        if announced and expected == len(blobs):
            if expected and not self._recover:
                raise CodecError(f"binary data follows the JSON, but the header {HEADER_LENGTH} is missing")
            return blobs, expected > 0
        raise CodecError(
            f"the header {HEADER_LENGTH} is missing, and the body does not make up for it: {len(blobs)} bytes follow "
            f"the JSON, but the binary_data_size of all inputs add up to {expected}"
        )

    def _select(
        self, requested: list[Members], by_default: bool
    ) -> Generator[None, None, tuple[OutputSelection, bytearray]]:
        """What the client wants back, and `outputs` without the words of the extension."""
        named: dict[str, bool] = {}
        in_shared_memory = set()
        texts = bytearray(b"[")
        for index, entry in enumerate(requested):
            if self._steps.is_full_with(_cost(entry)):
                yield
            name = name_of(entry, f"output {index}")
            label = label_of("output", name)
            if name in named:  # protocol 2.6
                raise CodecError(f"{label} is requested more than once")
            text = entry.get("parameters", b"null")
            where = f"{label}: "
            parameters = yield from sliced_parameters(text, where)
            flag = _flag(parameters, "binary_data", where)
            named[name] = by_default if flag is None else flag  # protocol 4.1
            if parameters.get("shared_memory_region", b"null") != b"null":  # protocol 4.5
                in_shared_memory.add(name)
                named[name] = False
            if index:
                texts += b","
            if parameters.pop("binary_data", None) is not None:
                yield from _replace_parameters(entry, parameters)
            put_last(entry, declarations.MEMBERS)
            texts += object_text(entry) if len(entry) <= FEW_MEMBERS else (yield from sliced_text(entry))
        texts += b"]"
        return OutputSelection(by_default, MappingProxyType(named), frozenset(in_shared_memory)), texts

    def _inputs(self, inputs: list[Members]) -> Generator[None, None, None]:
        names = set()
        for index, entry in enumerate(inputs):
            if self._steps.is_full_with(_cost(entry)):
                yield
            if index:
                self._text += b","
            name = text_of(entry, "name")
            label = f"input {index}" if name is None else label_of("input", name)
            if name is not None:
                if name in names:  # protocol 2.6
                    raise CodecError(f"{label} is given more than once")
                names.add(name)
            text = entry.get("parameters", b"null")
            where = f"{label}: "
            parameters = yield from sliced_parameters(text, where)
            data = self._check_input(entry, parameters, index, label)
            if parameters.pop("binary_data_size", None) is not None:
                if parameters and len(parameters) <= FEW_MEMBERS:
                    entry["parameters"] = object_text(parameters)
                else:
                    yield from _replace_parameters(entry, parameters)
            put_last(entry, declarations.MEMBERS)
            self._text += object_text(entry) if len(entry) <= FEW_MEMBERS else (yield from sliced_text(entry))
            if data is not None:
                self._emit_data(data, is_first=not entry)

    def _check_input(self, entry: Members, parameters: Members, index: int, label: str) -> memoryview | int | None:
        """Check an input, and take its `data` out of *entry*.

        Returns what stands there in the backend's JSON: the text of a JSON input, the number of a binary one, nothing
        for one in shared memory.
        """
        size = _binary_size(parameters, entry, index)
        data = self._data(entry)
        given = [data is not None, size is not None, "shared_memory_region" in parameters]
        if sum(given) != 1:  # protocol 2.1
            raise CodecError(
                f"{label}: Input must set only one of the following fields: 'data', 'binary_data_size' in "
                f"'parameters', 'shared_memory_region' in 'parameters'; got {sum(given) or 'none'} of them"
            )
        entry.pop("data", None)
        if size is None:
            return data
        datatype = self._announce(entry, size, label)
        if datatype.kind is Kind.BYTES and self._policy.bytes is BytesPolicy.BASE64:  # protocol 3.5
            parameters["content_type"] = b'"base64"'
        elif is_half_precision(datatype) and self._policy.half_precision is HalfPrecision.PROMOTE:
            entry["datatype"] = b'"FP32"'
        return len(self._announced) - 1

    def _emit_data(self, data: memoryview | int, *, is_first: bool) -> None:
        """Put *data* into the object at the end of the text, whose first member it may be."""
        self._text[-1:] = b'"data":' if is_first else b',"data":'
        is_binary = isinstance(data, int)
        if is_binary:
            self._text += b"["
        self._segments += (bytes(self._text), data)
        self._text[:] = b"]}" if is_binary else b"}"

    def _announce(self, entry: Members, size: int, label: str) -> Datatype:
        """Note a binary input of *size* bytes. Raises `CodecError` if what it says does not fit (protocol 2.2, 2.3)."""
        name = name_of(entry, label)
        datatype = datatype_of(entry, label)
        shape = shape_of(entry, label)
        tensor = Tensor(name, datatype, shape, memoryview(b""))
        n_elements = element_count(shape)
        if datatype.kind is Kind.BYTES:
            if n_elements * 4 > size:  # protocol 2.4: each has a length of four bytes
                raise CodecError(
                    f"{tensor}: expected {count_text(n_elements)} elements, which take at least "
                    f"{count_text(n_elements * 4)} bytes for their lengths, got {size} bytes"
                )
        elif size != n_elements * datatype.item_bytes:
            raise CodecError(
                f"{tensor}: binary_data_size: expected {count_text(n_elements * datatype.item_bytes)}, got {size} "
                f"({count_text(n_elements)} elements of {datatype.item_bytes} bytes)"
            )
        self._announced.append((tensor, size))
        return datatype

    def _data(self, entry: Members) -> memoryview | None:
        """The text of a JSON input's `data`; None if it is absent or null."""
        raw = entry.get("data")
        if raw is None:
            return None
        start, end = self._spans[int(raw)]
        first = NOT_SPACE.search(self._body, start, end)
        view = self._body[start if first is None else first.start() : end]
        return None if end - start < 64 and bytes(view).strip(SPACE) == b"null" else view

    def _restore_segments(self) -> Generator[None, None, None]:
        """Put the literals back into the text."""
        if not self._marker:
            return
        for index, segment in enumerate(self._segments):
            if isinstance(segment, bytes):
                if self._steps.is_full_with(ITEM_COST):
                    yield
                self._segments[index] = (
                    restore_literals(segment, self._marker)
                    if len(segment) <= SHORT_BYTES
                    else (yield from sliced_restore(segment, self._marker))
                )


def may_have_binary_parameters(body: memoryview) -> Generator[None, None, bool]:
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


def _replace_parameters(entry: Members, parameters: Members) -> Generator[None, None, None]:
    """Put *parameters* into *entry*; the ones that are empty are left out (protocol 3.2)."""
    if parameters:
        entry["parameters"] = yield from sliced_text(parameters)
    else:
        entry.pop("parameters", None)


def _lenient_parameters(entry: Members) -> Generator[None, None, Members]:
    """The `parameters` of an object; none if they are absent or anything else."""
    text = entry.get("parameters", b"")
    if text[:1] != b"{":
        return {}
    return parse_object(text) if len(text) <= SHORT_BYTES else (yield from sliced_object(text))


def _cost(entry: Members) -> int:
    """What it costs to check an input or output and to print it again."""
    return ENTRY_COST + ITEM_COST * len(entry) + len(entry.get("parameters", b""))


def _flag(parameters: Members, key: str, where: str) -> bool | None:
    """The boolean at *key*; None if it is absent or null. Raises `CodecError` for anything else (protocol 4.2)."""
    value = parameters.get(key, b"null")
    if value == b"null":
        return None
    if value not in _FLAGS:
        raise CodecError(f"{where}{key}: expected true or false, got {excerpt(value)}")
    return _FLAGS[value]


def _binary_size(parameters: Members, entry: Members, index: int) -> int | None:
    """`binary_data_size` among the *parameters* of the input *entry*; None if it has none (protocol 2.3)."""
    value = parameters.get("binary_data_size", b"null")
    if value == b"null":
        return None
    if not _SIZE.fullmatch(value):
        name = text_of(entry, "name")
        label = f"input {index}" if name is None else label_of("input", name)
        raise CodecError(f"{label}: binary_data_size must be an integer >= 0, got {excerpt(value)}")
    return int(value)
