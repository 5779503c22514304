"""An inference request: from the client's body to the backend's JSON (protocol sections 1 to 3).

`InferRequest.parse` proves the whole body right before anything is sent. `InferRequest.json_pieces`
makes the JSON as often as it is asked to: the body is held once, its JSON never.
"""

from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from msgspec import UNSET, Raw, UnsetType

from gateway.codec.inference import (
    DEFAULT_LIMITS,
    BytesPolicy,
    HalfPrecision,
    HeaderLimits,
    NonFinite,
    OutputSelection,
    Tensor,
    TensorPolicy,
    is_half_precision,
)
from gateway.codec.json.members import HELD_PER_BYTE, excerpt
from gateway.codec.json.pieced import SINGLE_PIECE_BYTES, Piece, PiecedJson
from gateway.codec.tensors import elements, number_printing, string_printing
from gateway.codec.tensors.datatypes import Kind, element_count
from gateway.codec.tensors.pieces import PIECE_BYTES
from gateway.codec.v2.framing import Cursor
from gateway.codec.v2.messages import LATER, Entry, Parameters, printed, text_of
from gateway.codec.v2.raw import raw_header
from gateway.codec.v2.request_reading import (
    RequestText,
    Reserve,
    announced,
    check_names,
    id_of,
    may_have_binary_parameters,
    read_request,
    reserve_nothing,
    select,
    source,
)
from gateway.errors import CodecError

_FINITE_ELEMENTS = 256 * 1024  # looking is sixteen times as fast as printing
_FEW_ELEMENTS = 256  # a loop over pieces takes as long as the work on them
_COPY_BYTES = 1024 * 1024
_LIST_LATER = Raw(b"[%b]" % bytes(LATER))
_BASE64 = Raw(b'"base64"')
_PROMOTED = Raw(b'"FP32"')

CHECKED_TENSORS = 64
"""How many small tensors one step checks."""


@dataclass(slots=True)
class InferRequest(PiecedJson):
    """A request that has been proved right, and the JSON it becomes."""

    inputs: list[Tensor]
    """The binary ones, in the order of their blobs."""
    selection: OutputSelection
    id: bytes
    """The client's id as JSON text; empty if it sent none."""
    sent_id: bytes
    """The id that the backend gets; empty if it gets none."""
    header_recovered: bool
    nonfinite: int
    """How many NaN and infinities are let through by policy."""
    _segments: list[bytes | memoryview | Tensor]
    _policy: TensorPolicy

    @staticmethod
    def parse(
        body: memoryview,
        header_length: int | None,
        policy: TensorPolicy,
        limits: HeaderLimits = DEFAULT_LIMITS,
        *,
        recover: bool,
        own_id: bytes = b"",
        reserve: Reserve = reserve_nothing,
    ) -> Generator[None, None, "InferRequest | None"]:
        """Parse and check a whole body; None if it is pure JSON, which nobody judges (protocol 3.6).

        JSON with members that *policy* leaves out is judged: it is written anew. So is all JSON with *own_id*, which is
        JSON text, and is sent as `id` where the client has none (protocol 4.10).

        *header_length* is the client's, None if it sent none; then *recover* allows protocol section 6. *reserve* is
        called once with the bytes of memory that the parsed header takes at most, before it is built, unless the body
        is not parsed at all; what it raises passes through. Yields after each step of work.

        Raises `CodecError`, and of these `TooLargeError` for more JSON beside the data than *limits* allow.
        """
        unjudged: Collection[str] | None = None
        if header_length is None:
            if not body:  # protocol 1.6
                raise CodecError("empty request body")
            if not own_id:
                if not policy.leave_out and not (yield from may_have_binary_parameters(body)):
                    return None
                unjudged = policy.leave_out
        text = yield from read_request(body, header_length, limits, reserve, recover=recover, unjudged=unjudged)
        return None if text is None else (yield from _written(text, text.blobs, policy, own_id))

    @staticmethod
    def parse_raw(
        body: memoryview,
        metadata: bytes,
        policy: TensorPolicy,
        limits: HeaderLimits = DEFAULT_LIMITS,
        *,
        own_id: bytes = b"",
        reserve: Reserve = reserve_nothing,
    ) -> Generator[None, None, "InferRequest"]:
        """Parse a raw binary request (protocol section 5): *metadata* is the model's, *body* its only input.

        *own_id* and *reserve* are those of `parse`; a BYTES element is copied behind its length, and its copy counts
        too. Yields after each step of work. Raises `CodecError`.
        """
        header, blob, reserve = yield from framed_raw(body, metadata, limits, reserve)
        text = yield from read_request(header, len(header), limits, reserve)
        assert text is not None  # it is judged
        return (yield from _written(text, blob, policy, own_id))

    @property
    def promotes(self) -> bool:
        """Whether FP16 or BF16 inputs go out as FP32."""
        return self._policy.half_precision is HalfPrecision.PROMOTE and any(
            is_half_precision(tensor.datatype) for tensor in self.inputs
        )

    @property
    def datatypes(self) -> list[str]:
        """The datatype of each binary input."""
        return [tensor.datatype.name for tensor in self.inputs]

    @property
    def is_small(self) -> bool:
        """Whether its JSON is small enough to be made and sent in one go."""
        return sum(len(s.blob) if isinstance(s, Tensor) else len(s) for s in self._segments) <= SINGLE_PIECE_BYTES

    def texts(self) -> Iterator[Piece]:
        """The backend's JSON in texts of bounded size; every call makes it anew."""
        return chain.from_iterable(map(self._text, self._segments))

    def _text(self, segment: bytes | memoryview | Tensor) -> Iterable[Piece]:
        if not isinstance(segment, Tensor):
            if len(segment) <= PIECE_BYTES:
                return (segment,)
            return (segment[start : start + PIECE_BYTES] for start in range(0, len(segment), PIECE_BYTES))
        if segment.datatype.kind is Kind.BYTES:
            if _becomes_base64(segment, self._policy):
                return string_printing.base64_pieces(segment.blob)
            return string_printing.text_pieces(segment.blob)
        values = segment.datatype.view(segment.blob)
        if self._policy.nonfinite is NonFinite.LITERAL and segment.datatype.kind is Kind.FLOAT:
            # protocol 3.4
            return number_printing.literal_pieces(values, segment.datatype)
        if 0 < len(values) <= _FEW_ELEMENTS:
            return (number_printing.array_text(values, segment.datatype)[1:-1],)
        return number_printing.text_pieces(values, segment.datatype)


def _written(
    text: RequestText, blobs: memoryview, policy: TensorPolicy, own_id: bytes
) -> Generator[None, None, InferRequest]:
    """The request in *text*, with *blobs* behind its JSON, as the backend gets it. Raises `CodecError`."""
    request = text.request
    selection = select(request)
    check_names(request.inputs)
    cursor = Cursor(blobs)
    inputs: list[Tensor] = []
    later: list[memoryview | Tensor] = []
    for index, entry in enumerate(request.inputs):
        values = source(entry, index, text.spans)
        if isinstance(values, int):
            tensor = announced(entry, index, values, cursor, _content_type(entry.parameters, request.parameters))
            _announce_text(entry, tensor, policy)
            inputs.append(tensor)
            later.append(tensor)
        elif values is not None and text.spans:
            entry.data = LATER
            later.append(values)
        if index % CHECKED_TENSORS == CHECKED_TENSORS - 1:
            yield
    cursor.finish()
    nonfinite = yield from _check_values(inputs, policy)

    request_id = id_of(request)
    sent_id = request_id or own_id
    if own_id and not request_id:  # protocol 4.10
        request.id = Raw(own_id)
    for key in policy.leave_out:
        setattr(request, key, UNSET)
    beginning, *texts_behind = printed(request)
    segments: list[bytes | memoryview | Tensor] = [beginning]
    for values_before, text_behind in zip(later, texts_behind, strict=True):
        segments += (values_before, text_behind)
    return InferRequest(
        inputs,
        selection,
        request_id,
        b"" if "id" in policy.leave_out else sent_id,
        text.is_recovered,
        nonfinite,
        segments,
        policy,
    )


def _content_type(*said: Parameters | UnsetType | None) -> bytes:
    """What the first of *said* names that names one, as JSON text; empty for base64, or if none does (protocol 3.5)."""
    for parameters in said:
        value = parameters.get("content_type", UNSET) if parameters else UNSET
        if value is not UNSET and bytes(value) not in (b"null", b'""'):
            return b"" if text_of(value) == "base64" else bytes(value)
    return b""


def _becomes_base64(tensor: Tensor, policy: TensorPolicy) -> bool:
    """Whether *tensor*, which is BYTES, goes out in base64 (protocol 3.5)."""
    return policy.bytes is BytesPolicy.BASE64 and not tensor.content_type


def _announce_text(entry: Entry, tensor: Tensor, policy: TensorPolicy) -> None:
    """Say in *entry* what the values of *tensor* will be in JSON."""
    entry.data = _LIST_LATER
    if tensor.datatype.kind is Kind.BYTES and _becomes_base64(tensor, policy):
        entry.parameters = {**(entry.parameters or {}), "content_type": _BASE64}
    elif policy.half_precision is HalfPrecision.PROMOTE and is_half_precision(tensor.datatype):
        entry.datatype = _PROMOTED


def _own_type_hint(tensor: Tensor) -> str:
    """What to do about an element that is not UTF-8 because the client's content type keeps it from base64."""
    return (
        f", and the content type that the client names, {excerpt(tensor.content_type)}, keeps it from base64: "
        "leave `content_type` out, or set it to `base64`"
    )


def _check_values(inputs: list[Tensor], policy: TensorPolicy) -> Generator[None, None, int]:
    """How many NaN and infinities the *inputs* have. Raises `CodecError` for values that no backend may get."""
    nonfinite = 0
    for index, tensor in enumerate(inputs, 1):
        if index % CHECKED_TENSORS == 0:
            yield
        if tensor.datatype.kind is Kind.BYTES:
            yield from elements.check_elements(
                tensor.blob,
                element_count(tensor.shape),
                tensor,
                utf8=not _becomes_base64(tensor, policy),
                hint=elements.BASE64_HINT if policy.bytes is BytesPolicy.UTF8 else _own_type_hint(tensor),
            )
        elif tensor.datatype.kind is Kind.FLOAT:
            nonfinite += yield from check_finite(tensor, policy.nonfinite)
    return nonfinite


def framed_raw(
    body: memoryview, metadata: bytes, limits: HeaderLimits, reserve: Reserve
) -> Generator[None, None, tuple[memoryview, memoryview, Reserve]]:
    """A raw *body* as if its client had sent a header: the header, the blob, and who is still asked for memory.

    See `InferRequest.parse_raw`.
    """
    header = raw_header(metadata, len(body), limits)
    text = memoryview(header.text)
    if not header.is_bytes:
        return text, body, reserve
    if len(body) > elements.MAX_ELEMENT_BYTES:
        raise CodecError(f"the body has {len(body)} bytes, more than a BYTES element can have")
    reserve(len(body) + len(header.text) * HELD_PER_BYTE)
    return text, (yield from _prefixed(body)), reserve_nothing


def _prefixed(element: memoryview) -> Generator[None, None, memoryview]:
    """A BYTES blob of one *element*: its length and a copy of it."""
    # np.empty leaves the pages alone until they are written; bytearray(n) would clear them all at once
    blob: memoryview = np.empty(4 + len(element), np.uint8).data
    blob[:4] = len(element).to_bytes(4, "little")
    for start in range(0, len(element), _COPY_BYTES):
        piece = element[start : start + _COPY_BYTES]
        blob[4 + start : 4 + start + len(piece)] = piece
        yield
    return blob


def check_finite(tensor: Tensor, policy: NonFinite) -> Generator[None, None, int]:
    """How many NaN and infinities are let through. Raises `CodecError` where *policy* refuses one (protocol 3.4)."""
    nonfinite = 0
    array = tensor.datatype.view(tensor.blob)
    if len(array) <= _FEW_ELEMENTS and b"\0" not in tensor.datatype.is_finite(array).tobytes():  # type: ignore[misc]
        return 0
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
