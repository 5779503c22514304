"""The JSON of a request as clients write it: found in the body and judged (protocol 1 and 2).

Whatever the backend speaks, a client's request is read here.
"""

import math
import re
from collections.abc import Callable, Collection, Generator, Sequence

import msgspec
from msgspec import Raw

from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, OutputSelection, Tensor, label_of, labelled
from gateway.codec.json.arriving import STEP, ArrivingText, Reading
from gateway.codec.json.members import HELD_PER_BYTE, OBJECT, decoded, excerpt, restore_literals
from gateway.codec.json.pieced import SINGLE_PIECE_BYTES
from gateway.codec.json.pieces import PIECE_BYTES, SPACE, check_utf8
from gateway.codec.json.sinks import SkipSink
from gateway.codec.tensors.datatypes import count_text
from gateway.codec.v2.framing import HEADER_LENGTH, Cursor
from gateway.codec.v2.messages import (
    ABSENT,
    ArrivingMessage,
    Entry,
    Request,
    declaration,
    label_of_entry,
    name_of,
    read_message,
    text_of,
)
from gateway.errors import CodecError, TooLargeError

_SEARCH_BYTES = 256 * 1024
_SEARCH_OVERLAP = 64  # no shorter than a word that is searched for
_PARAMETER, _ESCAPE = b'"binary_data', b"\\u00"
"""What the extension's three parameters begin with, and an escape that may hide one of them."""

CHECKED_TENSORS = 64
"""How many small tensors one step checks."""

_SIZE_DIGITS = 20
_INTEGER = re.compile(rb"-?[1-9][0-9]*")

_FLAGS = {b"true": True, b"false": False, b"null": None}
_NULL = b"null"

Reserve = Callable[[int], None]
"""Asks for so many bytes of memory; may raise to refuse the request."""


def reserve_nothing(_: int) -> None:
    """Reserve without a budget."""


Source = Tensor | memoryview | None
"""Where the values of an input are: among the blobs, in JSON, of which this is the text, or in shared memory."""


class RequestText(msgspec.Struct, frozen=True):
    """A body, cut into its JSON and the blobs behind it."""

    request: Request
    blobs: Cursor
    is_recovered: bool
    """Whether the header length had to be found (protocol section 6)."""
    n_bytes: int
    """The length of the whole body."""


RequestReading = Generator[None, None, RequestText | None]
"""Finds a request in a body; yields after each step of work. None is a request that nobody judges."""


def read_request(
    body: memoryview,
    header_length: int | None,
    limits: HeaderLimits = DEFAULT_LIMITS,
    reserve: Reserve = reserve_nothing,
    *,
    recover: bool = False,
    unjudged: Collection[str] | None = None,
    blobs: Sequence[memoryview] = (),
) -> RequestReading:
    """The request in *body*; yields where JSON data is passed by in pieces.

    *header_length* is the client's, None if it sent none; then *recover* allows protocol section 6. *reserve* is asked
    for the memory that the JSON takes when it is read. *blobs* are those that are not in
    *body*, but in buffers of their own.

    *unjudged*: None is returned for JSON without a header length that does not use the extension, right or wrong
    (protocol 1.6), unless it has one of these members. Raises `CodecError`, and of these `TooLargeError`.
    """
    if header_length is None:
        if not body:  # protocol 1.6
            raise CodecError("empty request body")
        if unjudged is not None and not unjudged and not (yield from contains(body, _PARAMETER, _ESCAPE)):
            return None
    elif header_length > len(body):  # protocol 1.2
        raise CodecError(
            f"{HEADER_LENGTH} is {header_length}, but the whole body has {len(body)} bytes; "
            "it counts the JSON header before compression"
        )
    try:
        request, n_bytes = yield from _request(body, header_length, limits, reserve)
    except CodecError as error:
        if header_length is None:
            # JSON that is not judged may be wrong, unless it was plainly meant to be binary
            if unjudged is None or (yield from contains(body, _PARAMETER)):
                raise
            return None
        if isinstance(error, TooLargeError):
            raise
        raise CodecError(f"{error} (in the {header_length} bytes that {HEADER_LENGTH} says are JSON)") from None
    behind, is_recovered = body[n_bytes:], False
    if header_length is None:
        if unjudged is not None and not _is_judged(request, unjudged):
            return None
        behind = _blobs_behind(request, behind, recover=recover)
        is_recovered = len(behind) > 0
    return RequestText(request, Cursor(behind, *blobs), is_recovered, len(body) + sum(map(len, blobs)))


def _request(
    body: memoryview, header_length: int | None, limits: HeaderLimits, reserve: Reserve
) -> Generator[None, None, tuple[Request, int]]:
    """The request, see `read_request`, and where its JSON ends in *body*."""
    n_bytes = len(body) if header_length is None else header_length
    text = bytes(body[:n_bytes]) if n_bytes <= limits.max_header_bytes else b""
    if text and (n_bytes <= SINGLE_PIECE_BYTES or b'"data"' not in text):
        reserve(n_bytes * HELD_PER_BYTE)
        try:
            request = read_message(decoded(OBJECT, text), Request, limits.max_tensors)
        except CodecError:
            reserve = reserve_nothing  # something may follow the JSON, or `data` be none
        else:  # blanks behind the JSON may be a blob
            return request, n_bytes if header_length is not None else len(text.rstrip(SPACE))
    arriving = yield from _read_in_pieces(body, header_length, limits, reserve)
    return arriving.message(), arriving.text.consumed if header_length is None else header_length


def _read_in_pieces(
    body: memoryview, header_length: int | None, limits: HeaderLimits, reserve: Reserve
) -> Generator[None, None, ArrivingMessage]:
    """The request at the front of *body*; behind a *header_length*, only blanks come. Raises `CodecError`."""

    def take_data(text: ArrivingText, entry: Entry) -> Reading[memoryview]:
        yield from text.first()
        start = text.consumed
        yield from text.pour(SkipSink("the JSON of an input"))
        data = body[start : text.consumed]
        for _ in check_utf8(data, "the request's JSON"):
            yield STEP
        return data

    arriving = ArrivingMessage(Request, limits, take_data, is_all=header_length is not None)
    reading = arriving.read()
    reserved = 0
    text = body[:header_length]
    for start in range(0, len(text) + PIECE_BYTES, PIECE_BYTES):
        piece = text[start : start + PIECE_BYTES]
        arriving.text.add(piece)
        if not piece:  # before its reading began, a short text would be parsed whole, with the blobs behind it
            arriving.text.end()
        for _ in arriving.go_on(reading):
            held = arriving.header_bytes * HELD_PER_BYTE + arriving.data_bytes
            reserve(held - reserved)
            reserved = held
            yield
        if arriving.done and header_length is None:
            break
    return arriving


def _is_judged(request: Request, unjudged: Collection[str]) -> bool:
    """Whether *request* is judged: it uses one of the extension's parameters, or has a member of *unjudged*."""
    return (
        "binary_data_output" in (request.get("parameters") or ())
        or any("binary_data_size" in (entry.get("parameters") or ()) for entry in request["inputs"])
        or any("binary_data" in (entry.get("parameters") or ()) for entry in (request.get("outputs") or ()))
        or any(member in request for member in unjudged)
    )


def _blobs_behind(request: Request, blobs: memoryview, *, recover: bool) -> memoryview:
    """The *blobs* behind JSON whose length the client did not say (protocol section 6). Raises `CodecError`."""
    sizes = [
        _binary_size((entry.get("parameters") or {}).get("binary_data_size", _NULL), entry, index)
        for index, entry in enumerate(request["inputs"])
    ]
    expected = sum(size or 0 for size in sizes)
    if expected == 0 and len(blobs) <= PIECE_BYTES and not bytes(blobs).strip(SPACE):
        return blobs[:0]
    if expected != len(blobs) or not recover:
        raise CodecError(
            f"the header {HEADER_LENGTH} is missing: {len(blobs)} bytes follow the JSON, and the binary_data_size of "
            f"all inputs add up to {expected}"
        )
    return blobs


def id_of(request: Request) -> bytes:
    """The client's id as JSON text; empty if it sent none."""
    text = restore_literals(bytes(request.get("id", b"")))
    return b"" if text in ABSENT else text


def select(request: Request) -> OutputSelection:
    """What the client wants back. Takes the words of the extension out of *request*; parameters that this empties go.

    Raises `CodecError` for what the client cannot mean.
    """
    by_default = bool(_flag(request, "binary_data_output")) if request.get("parameters") else False
    named: dict[str, bool] = {}
    in_shared_memory: frozenset[str] = frozenset()
    for index, entry in enumerate(request.get("outputs") or ()):
        name = name_of(entry, "output", index)
        if name in named:  # protocol 2.6
            raise CodecError(f"{label_of('output', name)} is requested more than once")
        parameters = entry.get("parameters") or {}
        flag = _flag(entry, "binary_data", name) if parameters else None
        named[name] = by_default if flag is None else flag  # protocol 4.1
        if bytes(parameters.get("shared_memory_region", _NULL)) != _NULL:  # protocol 4.5
            in_shared_memory |= {name}
            named[name] = False
    return OutputSelection(by_default, named, in_shared_memory)


def _flag(said: Request | Entry, key: str, output: str | None = None) -> bool | None:
    """Take the boolean at *key* out of the parameters, which are not empty, of the request or its *output*.

    None if it is absent or null. Raises `CodecError` for anything else (protocol 4.2).
    """
    parameters = said["parameters"] or {}
    value = bytes(parameters.pop(key, _NULL))
    if not parameters:
        del said["parameters"]
    if value not in _FLAGS:
        where = f"{label_of('output', output)}: " if output is not None else ""
        raise CodecError(f"{where}{key}: expected true or false, got {excerpt(value)}")
    return _FLAGS[value]


def read_inputs(request: Request, blobs: Cursor) -> Generator[None, None, list[tuple[Entry, Source]]]:
    """Each input of *request*, and where its values are; takes the binary ones off *blobs*, to their end.

    Takes `binary_data_size` out of the entries, and `data` that is null. The elements of BYTES are not counted yet.
    Yields after each step of work. Raises `CodecError` for an input that has not exactly one source (protocol 2.1),
    whose size does not fit what it says (protocol 2.2, 2.3), whose bytes are missing (protocol 1.5), or whose name
    another one has (protocol 2.6).
    """
    sources: list[tuple[Entry, Source]] = []
    names: set[str | None] = set()
    for index, entry in enumerate(request["inputs"]):
        source = _source(entry, index, blobs)
        name = source.name if isinstance(source, Tensor) else text_of(entry.get("name"))
        if name is not None and name in names:
            raise CodecError(f"{label_of('input', name)} is given more than once")
        names.add(name)
        sources.append((entry, source))
        if index % CHECKED_TENSORS == CHECKED_TENSORS - 1:
            yield
    blobs.finish()
    return sources


def _source(entry: Entry, index: int, blobs: Cursor) -> Source:
    """Where the values of input number *index* are, see `read_inputs`; a blob is taken off *blobs*."""
    parameters = entry.get("parameters") or {}
    size = data = None
    if "binary_data_size" in parameters:
        size = _binary_size(parameters.pop("binary_data_size"), entry, index)
        if not parameters:
            del entry["parameters"]
    if "data" in entry:
        data = entry["data"]
        if isinstance(data, Raw):
            data = memoryview(restore_literals(bytes(data)))
        if len(data) < 64 and bytes(data).strip(SPACE) == _NULL:
            data = None
            del entry["data"]
    given = (data is not None) + (size is not None) + ("shared_memory_region" in parameters)
    if given != 1:
        raise CodecError(
            f"{label_of_entry(entry, 'input', index)}: Input must set only one of the following fields: 'data', "
            f"'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'; got {given or 'none'} of them"
        )
    if size is None:
        return data
    name, datatype, shape = declaration(entry, "input", index)
    n_elements, item_bytes = math.prod(shape), datatype.item_bytes
    try:
        if item_bytes and size != n_elements * item_bytes:
            raise CodecError(
                f"binary_data_size: expected {count_text(n_elements * item_bytes)}, got {size} "
                f"({count_text(n_elements)} elements of {item_bytes} bytes)"
            )
        return Tensor(name, datatype, shape, blobs.take(size))
    except CodecError as error:
        raise CodecError(f"{labelled('input', name, datatype, shape)}: {error}") from None


def _binary_size(value: Raw | bytes, entry: Entry, index: int) -> int | None:
    """The `binary_data_size` *value* of the input *entry*; None if it is null (protocol 2.3). Raises `CodecError`."""
    text = bytes(value)
    if text.isdigit() and len(text) <= _SIZE_DIGITS:
        return int(text)
    if text == _NULL:
        return None
    label = label_of_entry(entry, "input", index)
    raise CodecError(f"{label}: binary_data_size must be an integer >= 0, got {excerpt(text)}")


def find_header_length(
    body: memoryview, limits: HeaderLimits = DEFAULT_LIMITS, *, reserve: Reserve = reserve_nothing
) -> Generator[None, None, int | None]:
    """How many bytes of *body* are its JSON, if blobs follow them; None if it is JSON, or nothing, to its end.

    *reserve* is called, and `CodecError` raised, as by `InferRequest.parse`. Yields after each step of work.
    """
    text = yield from read_request(body, None, limits, reserve, recover=True, unjudged=())
    return len(body) - len(text.blobs) if text is not None and len(text.blobs) else None


def find_sequence_id(
    body: memoryview,
    header_length: int | None,
    limits: HeaderLimits = DEFAULT_LIMITS,
    reserve: Reserve = reserve_nothing,
) -> Generator[None, None, str | None]:
    """The sequence id of the request in *body*; None if it has none. Yields after each step of work.

    *header_length* is the client's, None if it sent none: then the JSON ends where its first value ends. A number and
    a string of the same digits are the same id. 0, the empty string and null are none (as for Triton), and so are
    values that are neither a string nor an integer. Nothing is judged: what cannot be read has none. *reserve* is asked
    as by `read_request`.
    """
    if not (yield from contains(body if header_length is None else body[:header_length], b"sequence_id", _ESCAPE)):
        return None
    try:
        text = yield from read_request(body, header_length, limits, reserve, recover=True)
    except CodecError:
        return None
    assert text is not None  # it is judged
    value = restore_literals(bytes((text.request.get("parameters") or {}).get("sequence_id", b"")))
    return value.decode() if _INTEGER.fullmatch(value) else text_of(Raw(value)) or None


def contains(body: memoryview, *words: bytes) -> Generator[None, None, bool]:
    """Whether any of *words* is in *body*; yields between the pieces that are searched, which overlap."""
    for start in range(0, len(body), _SEARCH_BYTES):
        piece = bytes(body[start : start + _SEARCH_BYTES + _SEARCH_OVERLAP])
        if any(word in piece for word in words):
            return True
        yield
    return False
