"""The JSON of a request as clients write it: found in the body, split into members, judged (protocol 1 and 2).

Whatever the backend speaks, a client's request is read here. Not here: what it becomes (`request_header` for V2,
`codec.dialects.request` for the others), and the values in blobs and in JSON data.
"""

import re
from collections.abc import Callable, Generator
from types import MappingProxyType
from typing import TypeVar

from gateway.codec.inference import (
    HeaderLimits,
    OutputSelection,
    Tensor,
    count_text,
    label_of,
)
from gateway.codec.json.members import (
    HELD_PER_BYTE,
    Members,
    excerpt,
    parse_object,
    parse_objects,
    protect_literals,
    restore_literals,
    sliced_object,
    sliced_objects,
    sliced_protect,
)
from gateway.codec.json.scanner import Scanner
from gateway.codec.json.sinks import SkipSink
from gateway.codec.tensors.datatypes import Kind, element_count
from gateway.codec.tensors.pieces import NOT_SPACE, PIECE_BYTES, SPACE, check_utf8
from gateway.codec.v2.declarations import datatype_of, name_of, shape_of, sliced_parameters, text_of
from gateway.codec.v2.framing import HEADER_LENGTH
from gateway.codec.v2.steps import ENTRY_COST, ITEM_COST, SHORT_BYTES, Steps, sliced_text
from gateway.errors import CodecError, TooLargeError

T = TypeVar("T")

_PARAMETER_KEY = re.compile(rb'"binary_data(?:_size|_output)?"[ \t\r\n]{0,32}:')
_PARAMETER_KEY_OR_ESCAPE = re.compile(_PARAMETER_KEY.pattern + rb"|\\u00")
_SEARCH_BYTES = 256 * 1024
_SEARCH_OVERLAP = 64  # no shorter than a key with its blanks

_SIZE = re.compile(rb"[0-9]{1,20}")
_FLAGS = {b"true": True, b"false": False}

Reserve = Callable[[int], None]
"""Asks for so many bytes of memory; may raise to refuse the request."""


def reserve_nothing(_: int) -> None:
    """Reserve without a budget."""


class RequestReader:
    """Reads the JSON at the front of one body; lives no longer than that takes.

    Its methods are steps of one work, in this order: `read`, `inputs_of`, `frame`, `select`, `name_input` and `source`.
    """

    def __init__(
        self,
        body: memoryview,
        header_length: int | None,
        limits: HeaderLimits,
        reserve: Reserve,
        *,
        recover: bool = False,
    ) -> None:
        """*header_length* is the client's, None if it sent none; then *recover* allows protocol section 6.

        *reserve* is asked once, for the memory that the parsed header takes, before anything is built.
        """
        self.marker = b""
        """What stands for NaN and the infinities in all members (`members.protect_literals`); empty for nothing."""
        self.steps = Steps()
        """The work of all who use this reader."""
        self._body = body
        self._header_length = header_length
        self._limits = limits
        self._reserve = reserve
        self._recover = recover
        self._spans: list[tuple[int, int]] = []
        self._names: set[str] = set()

    def read(self) -> Generator[None, None, tuple[Members, int]]:
        """The members of the JSON, and where it ends in the body. Raises `CodecError`."""
        skeleton, header_bytes = yield from self._split()
        self._reserve(len(skeleton) * HELD_PER_BYTE)
        if len(skeleton) <= SHORT_BYTES:
            skeleton, self.marker = protect_literals(skeleton)
            return parse_object(skeleton), header_bytes
        skeleton, self.marker = yield from sliced_protect(skeleton)
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

    def entries(self, top: Members, key: str) -> Generator[None, None, list[Members] | None]:
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

    def inputs_of(self, top: Members) -> Generator[None, None, list[Members]]:
        """The objects in `inputs`. Raises `CodecError` for none and for too many."""
        inputs = yield from self.entries(top, "inputs")
        if inputs is None:  # protocol 1.6
            raise CodecError("the request has no `inputs` array")
        return inputs

    def is_binary(self, top: Members) -> Generator[None, None, bool]:
        """Whether the request uses one of the extension's parameters, right or wrong (protocol 1.6)."""
        if "binary_data_output" in (yield from _lenient_parameters(top)):
            return True
        for key, word in (("inputs", "binary_data_size"), ("outputs", "binary_data")):
            try:
                entries = yield from self.entries(top, key)
            except CodecError:
                continue  # of JSON that nobody judges
            for entry in entries or ():
                if word in (yield from _lenient_parameters(entry)):
                    return True
                if self.steps.is_full_with(cost_of(entry)):
                    yield
        return False

    def frame(self, inputs: list[Members], header_bytes: int) -> Generator[None, None, tuple[memoryview, bool]]:
        """The blobs, and whether the header length had to be found (protocol section 6). Raises `CodecError`."""
        blobs = self._body[header_bytes:]
        if self._header_length is not None:
            return blobs, False
        expected = 0
        announced = False
        for index, entry in enumerate(inputs):
            if self.steps.is_full_with(cost_of(entry)):
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

    def select(self, requested: list[Members] | None, parameters: Members) -> Generator[None, None, OutputSelection]:
        """What the client wants back: it *requested* these outputs, and has these *parameters* of the request.

        Takes the words of the extension out of both. Raises `CodecError` for what the client cannot mean.
        """
        by_default = bool(flag_of(parameters, "binary_data_output", ""))
        parameters.pop("binary_data_output", None)
        if requested is None:
            return OutputSelection(by_default)
        named: dict[str, bool] = {}
        in_shared_memory = set()
        for index, entry in enumerate(requested):
            if self.steps.is_full_with(cost_of(entry)):
                yield
            name = name_of(entry, f"output {index}")
            label = label_of("output", name)
            if name in named:  # protocol 2.6
                raise CodecError(f"{label} is requested more than once")
            where = f"{label}: "
            own = yield from sliced_parameters(entry.get("parameters", b"null"), where)
            flag = flag_of(own, "binary_data", where)
            named[name] = by_default if flag is None else flag  # protocol 4.1
            if own.get("shared_memory_region", b"null") != b"null":  # protocol 4.5
                in_shared_memory.add(name)
                named[name] = False
            if own.pop("binary_data", None) is not None:
                yield from replace_parameters(entry, own)
        return OutputSelection(by_default, MappingProxyType(named), frozenset(in_shared_memory))

    def name_input(self, entry: Members, index: int) -> str:
        """How errors call the input *entry*, number *index*. Raises `CodecError` for a name that was there before."""
        name = text_of(entry, "name")
        if name is None:
            return f"input {index}"
        label = label_of("input", name)
        if name in self._names:  # protocol 2.6
            raise CodecError(f"{label} is given more than once")
        self._names.add(name)
        return label

    def source(self, entry: Members, parameters: Members, index: int, label: str) -> memoryview | int | None:
        """Where the values of the input *entry* with these *parameters* are; takes `data` out of it.

        The text of its data, its bytes among the blobs, or None for shared memory. Raises `CodecError` for anything
        but one of them (protocol 2.1).
        """
        size = _binary_size(parameters, entry, index)
        data = self._data(entry)
        given = [data is not None, size is not None, "shared_memory_region" in parameters]
        if sum(given) != 1:
            raise CodecError(
                f"{label}: Input must set only one of the following fields: 'data', 'binary_data_size' in "
                f"'parameters', 'shared_memory_region' in 'parameters'; got {sum(given) or 'none'} of them"
            )
        entry.pop("data", None)
        parameters.pop("binary_data_size", None)
        return data if size is None else size

    def restoring(self, work: Generator[None, None, T]) -> Generator[None, None, T]:
        """*work* whose errors show NaN and the infinities as they came."""
        try:
            return (yield from work)
        except CodecError as error:
            raise type(error)(restore_literals(str(error).encode(), self.marker).decode()) from None

    def _data(self, entry: Members) -> memoryview | None:
        """The text of a JSON input's `data`; None if it is absent or null."""
        raw = entry.get("data")
        if raw is None:
            return None
        start, end = self._spans[int(raw)]
        first = NOT_SPACE.search(self._body, start, end)
        view = self._body[start if first is None else first.start() : end]
        return None if end - start < 64 and bytes(view).strip(SPACE) == b"null" else view


def announced(entry: Members, size: int, label: str) -> Tensor:
    """The binary input *entry* of *size* bytes, still without its blob.

    Raises `CodecError` if what it says does not fit (protocol 2.2, 2.3).
    """
    tensor = Tensor(name_of(entry, label), datatype_of(entry, label), shape_of(entry, label), memoryview(b""))
    n_elements = element_count(tensor.shape)
    if tensor.datatype.kind is Kind.BYTES:
        if n_elements * 4 > size:  # protocol 2.4: each has a length of four bytes
            raise CodecError(
                f"{tensor}: expected {count_text(n_elements)} elements, which take at least "
                f"{count_text(n_elements * 4)} bytes for their lengths, got {size} bytes"
            )
    elif size != n_elements * tensor.datatype.item_bytes:
        raise CodecError(
            f"{tensor}: binary_data_size: expected {count_text(n_elements * tensor.datatype.item_bytes)}, got {size} "
            f"({count_text(n_elements)} elements of {tensor.datatype.item_bytes} bytes)"
        )
    return tensor


def replace_parameters(entry: Members, parameters: Members) -> Generator[None, None, None]:
    """Put *parameters* into *entry*; the ones that are empty are left out (protocol 3.2)."""
    if parameters:
        entry["parameters"] = yield from sliced_text(parameters)
    else:
        entry.pop("parameters", None)


def may_have_binary_parameters(body: memoryview) -> Generator[None, None, bool]:
    """Whether *body* has to be parsed to know if it uses the extension: its words, or an escape that may hide them."""
    return (yield from _contains(body, _PARAMETER_KEY_OR_ESCAPE))


def was_meant_binary(body: memoryview) -> Generator[None, None, bool]:
    """Whether the words of the extension stand as keys anywhere in *body*, which may be no JSON."""
    return (yield from _contains(body, _PARAMETER_KEY))


def _contains(body: memoryview, pattern: re.Pattern[bytes]) -> Generator[None, None, bool]:
    """Whether *pattern* is anywhere in *body*; yields between pieces, which overlap."""
    for start in range(0, len(body), _SEARCH_BYTES):
        piece = bytes(body[start : start + _SEARCH_BYTES + _SEARCH_OVERLAP])
        if (b"binary_data" in piece or b"\\" in piece) and pattern.search(piece):
            return True
        yield
    return False


def _lenient_parameters(entry: Members) -> Generator[None, None, Members]:
    """The `parameters` of an object; none if they are absent or anything else."""
    text = entry.get("parameters", b"")
    if text[:1] != b"{":
        return {}
    return parse_object(text) if len(text) <= SHORT_BYTES else (yield from sliced_object(text))


def cost_of(entry: Members) -> int:
    """What it costs to check an input or output and to print it again."""
    return ENTRY_COST + ITEM_COST * len(entry) + len(entry.get("parameters", b""))


def flag_of(parameters: Members, key: str, where: str) -> bool | None:
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
