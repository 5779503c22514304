"""An inference request as a value, for other dialects than V2.

What clients of V2 send is read: all inputs, those in JSON too, become tensors, and everything is proved right before
anything is sent.
"""

from collections.abc import Generator, Mapping

import msgspec

from gateway.codec.inference import OutputSelection, Tensor, TensorPolicy
from gateway.codec.json.members import Members, excerpt, restore_members
from gateway.codec.json.sinks import pour
from gateway.codec.tensors.base64_reading import from_base64
from gateway.codec.tensors.datatypes import BYTES, FLOAT, count_text, element_count
from gateway.codec.tensors.elements import check_elements, few_texts, joined_blobs
from gateway.codec.tensors.number_parsing import NATIVE_PIECE_BYTES
from gateway.codec.tensors.number_reading import NumberSink
from gateway.codec.tensors.string_reading import BytesSink
from gateway.codec.v2.messages import Request, declaration, label_of_entry, text_of
from gateway.codec.v2.request import check_finite
from gateway.codec.v2.request_reading import (
    CHECKED_TENSORS,
    RequestReading,
    Reserve,
    id_of,
    read_inputs,
    reserve_nothing,
    select,
)
from gateway.codec.values import SHORT_BYTES, shaped_blob
from gateway.errors import CodecError

_LACKING = ("shared_memory_region", "classification")

_PROTOCOLS_OWN = ("sequence_", "triton_")
_PROTOCOLS_OWN_WORDS = frozenset({"priority", "timeout"})
"""How parameters of V2 itself, and of Triton, begin or are called: they are no model's own, and no other dialect has
them. Those of the binary extension are gone already."""

_NO_SEQUENCE = (b"0", b'""', b"null")


class DialectRequest(msgspec.Struct, frozen=True):
    """A request that has been proved right."""

    inputs: list[Tensor]
    """All inputs, in the order in which the client gave them."""
    selection: OutputSelection
    id: bytes
    """The client's id as JSON text; empty if it sent none."""
    parameters: Members
    """The request's own parameters, without those of the binary extension."""
    header_recovered: bool
    nonfinite: int
    """How many NaN and infinities are let through by policy."""
    in_json: Mapping[str, bool]
    """Whether the strings of an input are in base64, for each input whose values came as JSON."""
    octets: Mapping[str, CodecError]
    """The BYTES inputs that are not all text, each with the error that names the element, and no way out."""
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
        _check_outputs(request)
        inputs: list[Tensor] = []
        in_json: dict[str, bool] = {}
        octets: dict[str, CodecError] = {}
        nonfinite = 0
        for index, (entry, source) in enumerate((yield from read_inputs(request, text.blobs))):
            if source is None:
                label = label_of_entry(entry, "input", index)
                raise CodecError(f"{label}: this backend cannot read shared memory; send its values")
            if isinstance(source, Tensor):
                tensor = source
            else:
                sent = Tensor(*declaration(entry, "input", index), source)
                is_base64 = text_of((entry.get("parameters") or {}).get("content_type")) == "base64"
                in_json[sent.name] = is_base64
                tensor = yield from _read(sent, reserve, is_base64=is_base64)
            inputs.append(tensor)
            if tensor.datatype.kind is FLOAT:
                nonfinite += yield from check_finite(tensor, policy.nonfinite)
            elif tensor.datatype.kind is BYTES:
                yield from _check_strings(tensor, octets)
            if index % CHECKED_TENSORS == CHECKED_TENSORS - 1:
                yield
        own = restore_members(request.get("parameters") or {})
        recovered = text.is_recovered
        return DialectRequest(inputs, selection, id_of(request), own, recovered, nonfinite, in_json, octets, policy)

    @property
    def datatypes(self) -> list[str]:
        """The datatype of each binary input."""
        return [tensor.datatype.name for tensor in self.inputs if tensor.name not in self.in_json]

    @property
    def views(self) -> list[memoryview]:
        """All of the client's bytes that it holds; once they are released, its body cannot be made again."""
        return [tensor.blob for tensor in self.inputs]


def own_parameters(parameters: Members) -> Members:
    """The *parameters* that are not those of V2 itself. Raises `CodecError` for a sequence."""
    sequence = parameters.get("sequence_id", b"0")
    if sequence not in _NO_SEQUENCE:
        raise CodecError(
            f"sequence_id is {excerpt(sequence)}, but this backend has no sequences: it would answer each request "
            "of one as if it stood alone; leave sequence_id out if that is meant"
        )
    return {name: text for name, text in parameters.items() if not _is_protocols_own(name)}


def _is_protocols_own(name: str) -> bool:
    return name.startswith(_PROTOCOLS_OWN) or name in _PROTOCOLS_OWN_WORDS


def _check_outputs(request: Request) -> None:
    """Raise `CodecError` for an output that only a server of V2 could give."""
    for index, entry in enumerate(request.get("outputs") or ()):
        parameters = entry.get("parameters") or {}
        for word in filter(parameters.__contains__, _LACKING):
            if bytes(parameters[word]) not in (b"null", b"0"):
                label = label_of_entry(entry, "output", index)
                words = "this backend has no classification and no shared memory; ask for its values"
                raise CodecError(f"{label}: {words}")


def _check_strings(tensor: Tensor, octets: dict[str, CodecError]) -> Generator[None, None, None]:
    """Check the elements of *tensor*, which is BYTES; if they are not all text, the error goes into *octets*.

    Raises `CodecError` for elements that it cannot have.
    """
    n_elements = element_count(tensor.shape)
    try:
        if few_texts(tensor.blob, n_elements) is None:
            yield from check_elements(tensor.blob, n_elements, tensor, utf8=True, hint="")
    except CodecError as error:
        yield from check_elements(tensor.blob, n_elements, tensor, utf8=False)
        octets[tensor.name] = error


def _read(tensor: Tensor, reserve: Reserve, *, is_base64: bool) -> Generator[None, None, Tensor]:
    """*tensor*, whose blob still is its data in JSON, nested or flat, with its values. Raises `CodecError`."""
    n_elements, data = element_count(tensor.shape), tensor.blob
    if n_elements * 2 - 1 > len(data):  # every element takes a digit and a comma, or two quotes and a comma
        raise CodecError(f"{tensor}: expected {count_text(n_elements)} elements, got {len(data)} bytes of JSON")
    is_short = len(data) <= SHORT_BYTES and not is_base64
    if is_short and (blob := shaped_blob(bytes(data), tensor.datatype, tensor.shape)) is not None:
        reserve(len(blob))
        return Tensor(tensor.name, tensor.datatype, tensor.shape, blob)
    sink: NumberSink | BytesSink
    if tensor.datatype.kind is BYTES:
        reserve(len(data) + 2 * n_elements)  # a length is two bytes longer than quotes
        sink = BytesSink(str(tensor), tensor.shape)
    else:
        reserve(n_elements * tensor.datatype.item_bytes)
        sink = NumberSink(str(tensor), tensor.datatype, tensor.shape)
    starts = range(0, len(data), NATIVE_PIECE_BYTES)
    yield from pour((data[start : start + NATIVE_PIECE_BYTES] for start in starts), sink)
    blobs = sink.blobs()
    del sink  # which holds them
    if is_base64 and tensor.datatype.kind is BYTES:
        blobs = yield from from_base64(blobs, str(tensor))
    return Tensor(tensor.name, tensor.datatype, tensor.shape, (yield from joined_blobs(blobs)))
