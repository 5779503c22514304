"""An inference request: from the client's body to the backend's JSON (protocol sections 1 to 3).

`InferRequest.parse` proves the whole body right before anything is sent. `InferRequest.json_pieces`
makes the JSON as often as it is asked to: the body is held once, its JSON never.
"""

from collections.abc import Generator, Iterable, Iterator
from itertools import chain

import msgspec
import numpy as np
import orjson
from msgspec import Raw

from gateway.codec.inference import (
    BytesPolicy,
    HalfPrecision,
    NonFinite,
    OutputSelection,
    Tensor,
    TensorPolicy,
    is_half_precision,
)
from gateway.codec.json.members import excerpt, restore_literals
from gateway.codec.json.pieced import SINGLE_PIECE_BYTES, Piece, PiecedJson
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors import elements, number_printing
from gateway.codec.tensors.datatypes import BYTES, FLOAT, element_count
from gateway.codec.tensors.string_printing import StringForm, string_pieces
from gateway.codec.v2.messages import ABSENT, LATER, LIST_LATER, Entry, Parameters, Request, printed, text_of
from gateway.codec.v2.request_reading import CHECKED_TENSORS, RequestReading, id_of, read_inputs, select
from gateway.errors import CodecError

_FINITE_ELEMENTS = 256 * 1024  # looking is sixteen times as fast as printing
_FEW_BYTES = 1024  # numpy takes 20 us for few numbers in a running gateway, though 2 us where nothing else runs
_SURELY_FINITE = bytes(byte for byte in range(256) if byte & 0x7C != 0x7C)  # last bytes of floats, whatever the type
_LITERAL = NonFinite.LITERAL
_PROMOTE = HalfPrecision.PROMOTE
_LATER = Raw(LATER)


class InferRequest(PiecedJson, msgspec.Struct):
    """A request that has been proved right, and the JSON it becomes."""

    inputs: list[Tensor]
    """The binary inputs, in the order of their blobs."""
    selection: OutputSelection
    id: bytes
    """The client's id as JSON text; empty if it sent none."""
    sent_id: bytes
    """The id that the backend gets; empty if it gets none."""
    header_recovered: bool
    nonfinite: int
    """How many NaN and infinities are let through by policy."""
    small_json: bytes | None
    """The JSON, if it is small enough to be sent in one go."""
    _segments: list[bytes | memoryview | Tensor]
    _policy: TensorPolicy

    @staticmethod
    def parse(
        reading: RequestReading, policy: TensorPolicy, own_id: bytes = b""
    ) -> Generator[None, None, "InferRequest | None"]:
        """Check a request, which *reading* finds in its body; None if nobody judges it (protocol 3.6).

        *own_id*, which is JSON text, is sent as `id` where the client has none (protocol 4.10). The values of a small
        request are printed at once, those of others each time that they are sent. Yields after each step of work.
        Raises `CodecError`.
        """
        text = yield from reading
        if text is None:
            return None
        request = text.request
        selection = select(request)
        is_small = text.n_bytes <= SINGLE_PIECE_BYTES
        inputs: list[Tensor] = []
        later: list[tuple[memoryview | Tensor]] = []
        nonfinite = 0
        for index, (entry, source) in enumerate((yield from read_inputs(request, text.blobs)), 1):
            if isinstance(source, Tensor):
                inputs.append(source)
                nonfinite += yield from _fill_in(entry, source, request, policy, is_small=is_small)
                if not is_small:
                    later.append((source,))
            elif source is not None:
                entry["data"] = _LATER
                later.append((source,))
            if index % CHECKED_TENSORS == 0:
                yield
        request_id = id_of(request)
        sent_id = b"" if "id" in policy.leave_out else request_id or own_id
        if own_id and not request_id:  # protocol 4.10
            request["id"] = Raw(own_id)
        for key in policy.leave_out:
            request.pop(key, None)  # type: ignore[misc]
        if not is_small:
            yield
        segments = printed(request, later)
        small_json = b"".join(segments) if is_small else None  # type: ignore[arg-type]  # which has no tensors
        return InferRequest(
            inputs, selection, request_id, sent_id, text.is_recovered, nonfinite, small_json, segments, policy
        )

    @property
    def promotes(self) -> bool:
        """Whether FP16 or BF16 inputs go out as FP32."""
        return self._policy.half_precision is _PROMOTE and any(
            is_half_precision(tensor.datatype) for tensor in self.inputs
        )

    @property
    def datatypes(self) -> list[str]:
        """The datatype of each binary input."""
        return [tensor.datatype.name for tensor in self.inputs]

    @property
    def views(self) -> list[memoryview]:
        """All of the client's bytes that the request holds; once they are released, its JSON cannot be made again."""
        held = [segment for segment in self._segments if isinstance(segment, memoryview)]
        return held + [tensor.blob for tensor in self.inputs]

    def texts(self) -> Iterator[Piece]:
        """The backend's JSON in texts of bounded size; every call makes it anew."""
        return chain.from_iterable(map(self._text, self._segments))

    def _text(self, segment: bytes | memoryview | Tensor) -> Iterable[Piece]:
        if isinstance(segment, Tensor):
            return _value_pieces(segment, self._policy)
        return (segment[start : start + PIECE_BYTES] for start in range(0, len(segment), PIECE_BYTES))


# What becomes of values


def _fill_in(
    entry: Entry, tensor: Tensor, request: Request, policy: TensorPolicy, *, is_small: bool
) -> Generator[None, None, int]:
    """Check the values of *tensor*, and put those of a small *request* into *entry*, which is its input.

    Returns how many NaN and infinities it has. Raises `CodecError` for values that the backend may not get.
    """
    datatype, texts = tensor.datatype, None
    if datatype.kind is BYTES:
        hint = _choose_form(entry, tensor, request) if policy.bytes is BytesPolicy.BASE64 else elements.BASE64_HINT
        n_elements = element_count(tensor.shape)
        texts = elements.few_texts(tensor.blob, n_elements) if is_small and not tensor.is_base64 else None
        if texts is None:
            yield from elements.check_elements(tensor.blob, n_elements, tensor, utf8=not tensor.is_base64, hint=hint)
    elif policy.half_precision is _PROMOTE and is_half_precision(datatype):
        entry["datatype"] = Raw(b'"FP32"')
    is_checked = datatype.kind is FLOAT
    if not is_small:
        entry["data"] = LIST_LATER
    elif datatype.item_bytes:
        literals = policy.nonfinite is _LITERAL
        values = np.frombuffer(tensor.blob, datatype.wire)
        text = number_printing.array_text(values, datatype, literals=literals)
        entry["data"] = Raw(text)
        # NaN and infinities are printed as null if not as literals
        is_checked = is_checked and (literals or text.find(b"n") >= 0)
    elif texts is not None:
        entry["data"] = Raw(orjson.dumps(texts))
    else:
        entry["data"] = Raw(b"[%b]" % b"".join(_value_pieces(tensor, policy)))
    return (yield from check_finite(tensor, policy.nonfinite)) if is_checked else 0


def _choose_form(entry: Entry, tensor: Tensor, request: Request) -> str:
    """Have the strings of *tensor* go out in base64, and say so in its *entry*, unless the client names another form.

    Returns what to do about an element that is not UTF-8 (protocol 3.5).
    """
    parameters = entry.get("parameters") or {}
    content_type = _content_type(parameters) or _content_type(request.get("parameters") or {})
    tensor.is_base64 = not content_type or text_of(Raw(content_type)) == "base64"
    if tensor.is_base64:
        entry["parameters"] = {**parameters, "content_type": Raw(b'"base64"')}
    return (
        f", and the content type that the client names, {excerpt(content_type)}, keeps it from base64: "
        "leave `content_type` out, or set it to `base64`"
    )


def _content_type(parameters: Parameters) -> bytes:
    """The parameter `content_type`, as JSON text; empty if there is none."""
    value = restore_literals(bytes(parameters.get("content_type", b"")))
    return b"" if value in ABSENT else value


def _value_pieces(tensor: Tensor, policy: TensorPolicy) -> Iterator[Piece]:
    """The values of *tensor* as the inside of a JSON array."""
    if tensor.datatype.kind is BYTES:
        return string_pieces(tensor.blob, StringForm.BASE64 if tensor.is_base64 else StringForm.TEXT)
    values = tensor.datatype.view(tensor.blob)
    literals = policy.nonfinite is _LITERAL and tensor.datatype.kind is FLOAT  # protocol 3.4
    return number_printing.text_pieces(values, tensor.datatype, literals=literals)


def check_finite(tensor: Tensor, policy: NonFinite) -> Generator[None, None, int]:
    """How many NaN and infinities are let through. Raises `CodecError` where *policy* refuses one (protocol 3.4)."""
    size = tensor.datatype.item_bytes
    if len(tensor.blob) <= _FEW_BYTES and not bytes(tensor.blob[size - 1 :: size]).translate(None, _SURELY_FINITE):
        return 0
    nonfinite = 0
    array = tensor.datatype.view(tensor.blob)
    for start in range(0, len(array), _FINITE_ELEMENTS):
        if start:
            yield
        piece = array[start : start + _FINITE_ELEMENTS]
        finite = tensor.datatype.is_finite(piece)  # type: ignore[misc]
        n_finite = int(np.count_nonzero(finite))
        if n_finite == len(piece):
            continue
        nonfinite += len(piece) - n_finite
        values = tensor.datatype.widen(piece)
        refused = {NonFinite.REJECT: ~finite, NonFinite.AS_NULL: np.isinf(values)}.get(policy)
        if refused is not None and refused.any():
            index = int(np.argmax(refused))
            raise CodecError(
                f"{tensor}: element {start + index} is {float(values[index])}, which JSON cannot carry; "
                f"this backend's `nonfinite` is {policy.value}"
            )
    return nonfinite
