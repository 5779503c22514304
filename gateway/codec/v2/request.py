"""An inference request: from the client's body to the backend's JSON (protocol sections 1 to 3).

`InferRequest.parse` proves the whole body right before anything is sent. `InferRequest.json_pieces`
makes the JSON as often as it is asked to: the body is held once, its JSON never.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

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
from gateway.codec.json.members import HELD_PER_BYTE
from gateway.codec.json.pieced import SINGLE_PIECE_BYTES, Piece, PiecedJson, joined
from gateway.codec.tensors import elements, number_printing, string_printing
from gateway.codec.tensors.datatypes import Kind, element_count
from gateway.codec.tensors.pieces import PIECE_BYTES
from gateway.codec.v2.framing import Cursor
from gateway.codec.v2.raw import raw_header
from gateway.codec.v2.request_header import HeaderParser, RequestHeader
from gateway.codec.v2.request_reading import Reserve, may_have_binary_parameters, reserve_nothing
from gateway.codec.v2.steps import ENTRY_COST, Steps
from gateway.errors import CodecError

_FINITE_ELEMENTS = 256 * 1024  # looking is sixteen times as fast as printing
_COPY_BYTES = 1024 * 1024


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
        if header_length is not None:
            header, blobs = yield from HeaderParser(body, header_length, policy, limits, reserve, own_id).parse()
            return (yield from _bound(header, blobs, policy))
        if not body:  # protocol 1.6
            raise CodecError("empty request body")
        is_rewritten = own_id or policy.leave_out
        if not is_rewritten and not (yield from may_have_binary_parameters(body)):
            return None
        parser = HeaderParser(body, None, policy, limits, reserve, own_id, recover=recover)
        parsed = (yield from parser.parse()) if own_id else (yield from parser.parse_if_binary())
        return (yield from _bound(*parsed, policy)) if parsed is not None else None

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
        parsed, _ = yield from HeaderParser(header, len(header), policy, limits, reserve, own_id).parse()
        return (yield from _bound(parsed, blob, policy))

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

    def json_pieces(self) -> Iterator[Piece]:
        """The backend's JSON in pieces of bounded size; every call makes it anew."""
        return joined(chain.from_iterable(map(self._text, self._segments)))

    def _text(self, segment: bytes | memoryview | Tensor) -> Iterator[Piece]:
        if not isinstance(segment, Tensor):
            if len(segment) <= PIECE_BYTES:
                return iter((segment,))
            return (segment[start : start + PIECE_BYTES] for start in range(0, len(segment), PIECE_BYTES))
        if segment.datatype.kind is Kind.BYTES:
            if self._policy.bytes is BytesPolicy.BASE64:  # protocol 3.5
                return string_printing.base64_pieces(segment.blob)
            return string_printing.text_pieces(segment.blob)
        values = segment.datatype.view(segment.blob)
        if self._policy.nonfinite is NonFinite.LITERAL and segment.datatype.kind is Kind.FLOAT:
            # protocol 3.4
            return number_printing.literal_pieces(values, segment.datatype)
        return number_printing.text_pieces(values, segment.datatype)


def _bound(header: RequestHeader, blobs: memoryview, policy: TensorPolicy) -> Generator[None, None, InferRequest]:
    """The request with this *header* and these *blobs*, whose values are checked. Raises `CodecError`."""
    cursor = Cursor(blobs)
    inputs = [
        Tensor(tensor.name, tensor.datatype, tensor.shape, cursor.take(n_bytes, tensor))
        for tensor, n_bytes in header.announced
    ]
    cursor.finish()
    nonfinite = 0
    steps = Steps()
    for tensor in inputs:
        if steps.is_full_with(ENTRY_COST):
            yield
        if tensor.datatype.kind is Kind.BYTES:
            as_text = policy.bytes is BytesPolicy.UTF8
            yield from elements.check_elements(tensor.blob, element_count(tensor.shape), tensor, utf8=as_text)
        elif tensor.datatype.kind is Kind.FLOAT:
            nonfinite += yield from check_finite(tensor, policy.nonfinite)
    segments = [inputs[segment] if isinstance(segment, int) else segment for segment in header.segments]
    return InferRequest(
        inputs, header.selection, header.id, header.sent_id, header.is_recovered, nonfinite, segments, policy
    )


def framed_raw(
    body: memoryview, metadata: bytes, limits: HeaderLimits, reserve: Reserve
) -> Generator[None, None, tuple[memoryview, memoryview, Reserve]]:
    """A raw *body* as if its client had sent a header: the header, the blob, and who is still asked for memory.

    See `InferRequest.parse_raw`.
    """
    header = yield from raw_header(metadata, len(body), limits)
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
