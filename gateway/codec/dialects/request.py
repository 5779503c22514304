"""An inference request as a value, for other dialects than V2.

What clients of V2 send is read: all inputs, those in JSON too, become tensors, and everything is proved right before
anything is sent. Not here: the bodies that are made of it (`body`).
"""

from collections.abc import Generator, Mapping, Sequence

import msgspec
from msgspec import Raw

from gateway.codec.inference import (
    OutputSelection,
    Tensor,
    TensorPolicy,
    count_text,
    label_of,
)
from gateway.codec.json.members import Members
from gateway.codec.json.sinks import pour
from gateway.codec.tensors.base64_reading import from_base64
from gateway.codec.tensors.datatypes import Kind, element_count
from gateway.codec.tensors.elements import check_elements, joined_blobs
from gateway.codec.tensors.number_parsing import NATIVE_PIECE_BYTES
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.string_reading import BytesSink
from gateway.codec.v2.declarations import name_of
from gateway.codec.v2.messages import Entry, label_of_entry, text_of
from gateway.codec.v2.request import CHECKED_TENSORS, check_finite
from gateway.codec.v2.request_reading import (
    RequestReading,
    Reserve,
    announced,
    check_names,
    declared,
    id_of,
    reserve_nothing,
    select,
    source,
)
from gateway.errors import CodecError

_NULL = Raw(b"null")


class DialectRequest(msgspec.Struct, frozen=True):
    """A request that has been proved right."""

    inputs: list[Tensor]
    """All of them, in the order in which the client gave them."""
    selection: OutputSelection
    id: bytes
    """The client's id as JSON text; empty if it sent none."""
    parameters: Members
    """The request's own, without those of the extension."""
    header_recovered: bool
    nonfinite: int
    """How many NaN and infinities are let through by policy."""
    datatypes: list[str]
    """The datatype of each binary input."""
    in_json: frozenset[str]
    """The inputs whose values came as JSON, strings as they are and not in base64."""
    octets: Mapping[str, CodecError]
    """The BYTES inputs that are not all text, each with the error that names the element."""
    policy: TensorPolicy

    @staticmethod
    def parse(
        reading: RequestReading, policy: TensorPolicy, reserve: Reserve = reserve_nothing
    ) -> Generator[None, None, "DialectRequest"]:
        """Check a request, also one that is pure JSON; *reading* finds it in its body.

        *reserve* is called for each input in JSON with the bytes of its tensor; what it raises passes through. Yields
        after each step of work. Raises `CodecError`.
        """
        text = yield from reading
        assert text is not None  # it is judged
        request = text.request
        selection = select(request)
        _refuse_extensions(request.get("outputs") or ())
        check_names(request["inputs"])
        inputs: list[Tensor] = []
        unread: dict[int, bool] = {}
        for index, entry in enumerate(request["inputs"]):
            values = source(entry, index, text.spans)
            if values is None:
                label = label_of_entry(entry, "input", index)
                raise CodecError(f"{label}: this backend cannot read shared memory; send its values")
            if isinstance(values, int):
                inputs.append(announced(entry, index, values, text.blobs))
            else:
                inputs.append(declared(entry, index, values))
                unread[index] = text_of((entry.get("parameters") or {}).get("content_type")) == "base64"
            if index % CHECKED_TENSORS == CHECKED_TENSORS - 1:
                yield
        text.blobs.finish()
        for index, is_base64 in unread.items():
            inputs[index] = yield from _read(inputs[index], reserve, is_base64=is_base64)
        nonfinite, octets = yield from _check_values(inputs, policy)
        request_id = id_of(request)
        return DialectRequest(
            inputs,
            selection,
            request_id,
            {key: bytes(value) for key, value in (request.get("parameters") or {}).items()},
            text.is_recovered,
            nonfinite,
            [tensor.datatype.name for index, tensor in enumerate(inputs) if index not in unread],
            frozenset(inputs[index].name for index, is_base64 in unread.items() if not is_base64),
            octets,
            policy,
        )

    @property
    def views(self) -> list[memoryview]:
        """All of the client's bytes that it holds; once they are released, its body cannot be made again."""
        return [tensor.blob for tensor in self.inputs]


def _check_values(
    inputs: list[Tensor], policy: TensorPolicy
) -> Generator[None, None, tuple[int, dict[str, CodecError]]]:
    """How many NaN and infinities the *inputs* have, and which of them are not all text, with the error for each."""
    nonfinite = 0
    octets = {}
    for index, tensor in enumerate(inputs, 1):
        if index % CHECKED_TENSORS == 0:
            yield
        if tensor.datatype.kind is Kind.FLOAT:
            nonfinite += yield from check_finite(tensor, policy.nonfinite)
        elif tensor.datatype.kind is Kind.BYTES:
            n_elements = element_count(tensor.shape)
            try:
                yield from check_elements(tensor.blob, n_elements, tensor, utf8=True)
            except CodecError as error:
                yield from check_elements(tensor.blob, n_elements, tensor, utf8=False)
                octets[tensor.name] = error
    return nonfinite, octets


def _refuse_extensions(requested: Sequence[Entry]) -> None:
    """Raise `CodecError` for *requested* outputs in a form that only a server of V2 could give them."""
    for index, entry in enumerate(requested):
        parameters = entry.get("parameters") or {}
        label = label_of("output", name_of(entry, "output", index)) if parameters else ""
        if bytes(parameters.get("shared_memory_region", _NULL)) != b"null":
            raise CodecError(f"{label}: this backend cannot write into shared memory; ask for its values")
        if bytes(parameters.get("classification", _NULL)) not in (b"null", b"0"):
            raise CodecError(f"{label}: this backend has no classification; ask for its values")


def _read(tensor: Tensor, reserve: Reserve, *, is_base64: bool) -> Generator[None, None, Tensor]:
    """*tensor*, whose blob still is its data in JSON, nested or flat, with its values. Raises `CodecError`."""
    n_elements, data = element_count(tensor.shape), tensor.blob
    if n_elements * 2 - 1 > len(data):  # every element takes a digit and a comma, or two quotes and a comma
        raise CodecError(f"{tensor}: expected {count_text(n_elements)} elements, got {len(data)} bytes of JSON")
    sink: NumberSink | BytesSink
    if tensor.datatype.kind is Kind.BYTES:
        reserve(len(data) + 2 * n_elements)  # a length is two bytes longer than quotes
        sink = BytesSink(str(tensor), tensor.shape)
    else:
        reserve(n_elements * tensor.datatype.item_bytes)
        sink = NumberSink(str(tensor), tensor.datatype, tensor.shape)
    starts = range(0, len(data), NATIVE_PIECE_BYTES)
    yield from pour((data[start : start + NATIVE_PIECE_BYTES] for start in starts), sink)
    blobs = sink.blobs()
    del sink  # which holds them
    if is_base64 and tensor.datatype.kind is Kind.BYTES:
        blobs = yield from from_base64(blobs, str(tensor))
    return Tensor(tensor.name, tensor.datatype, tensor.shape, (yield from joined_blobs(blobs)))
