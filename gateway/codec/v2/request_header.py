"""What V2 backends get of a request: its JSON, judged, without the words of the extension (protocol section 3).

It is kept as segments: text as it goes out, views of the body where a JSON input's data stands, and the numbers of
the binary inputs whose data is printed in between, later and as often as it is sent. Not here: what clients may write
(`request_reading`), and the values in the blobs (`request`).
"""

from collections.abc import Generator
from dataclasses import dataclass

import orjson

from gateway.codec.inference import (
    BytesPolicy,
    HalfPrecision,
    HeaderLimits,
    OutputSelection,
    Tensor,
    TensorPolicy,
    is_half_precision,
)
from gateway.codec.json.members import Members, object_text, put_last, restore_literals
from gateway.codec.tensors.datatypes import Kind
from gateway.codec.v2 import declarations
from gateway.codec.v2.declarations import sliced_parameters
from gateway.codec.v2.ids import is_absent
from gateway.codec.v2.request_reading import (
    RequestReader,
    Reserve,
    announced,
    cost_of,
    replace_parameters,
    was_meant_binary,
)
from gateway.codec.v2.steps import FEW_MEMBERS, ITEM_COST, SHORT_BYTES, sliced_restore, sliced_text
from gateway.errors import CodecError

MEMBERS = ("id", "parameters", "inputs", "outputs")
"""The order in which a request's members are written, behind those that the protocol does not know (protocol 3.2)."""

Segment = bytes | memoryview | int
"""A part of the backend's JSON: text, a part of the body, or the number of the binary input whose data stands here."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The JSON of a request, proved right; all that is left to prove are the values in its blobs."""

    announced: list[tuple[Tensor, int]]
    """The binary inputs, still without their blobs, and how many bytes each has."""
    selection: OutputSelection
    id: bytes
    """The client's, as JSON text; empty if it sent none."""
    sent_id: bytes
    """The one in `segments`; empty if there is none."""
    is_recovered: bool
    segments: list[Segment]
    """The backend's JSON."""


class HeaderParser:
    """Makes the backend's JSON of that at the front of one body; lives no longer than that takes."""

    def __init__(
        self,
        body: memoryview,
        header_length: int | None,
        policy: TensorPolicy,
        limits: HeaderLimits,
        reserve: Reserve,
        own_id: bytes = b"",
        *,
        recover: bool = False,
    ) -> None:
        """*own_id* is that of `InferRequest.parse`; for the others see `RequestReader`."""
        self._reader = RequestReader(body, header_length, limits, reserve, recover=recover)
        self._body = body
        self._policy = policy
        self._own_id = own_id
        self._announced: list[tuple[Tensor, int]] = []
        self._segments: list[Segment] = []
        self._text = bytearray()

    def parse(self) -> Generator[None, None, tuple[RequestHeader, memoryview]]:
        """The header of a client that said where it ends, and the blobs behind it. Raises `CodecError`."""
        top, header_bytes = yield from self._reader.read()
        return (yield from self._reader.restoring(self._build(top, header_bytes)))

    def parse_if_binary(self) -> Generator[None, None, tuple[RequestHeader, memoryview] | None]:
        """The same if the request uses any parameter of the extension, right or wrong (protocol 1.6); else None.

        Also if it has a member that the backend does not get.
        """
        try:
            top, header_bytes = yield from self._reader.read()
        except CodecError:
            # what cannot be read is judged only if it was plainly meant to be binary
            if (yield from was_meant_binary(self._body)):
                raise
            return None
        if self._policy.leave_out.isdisjoint(top) and not (yield from self._reader.is_binary(top)):
            return None
        return (yield from self._reader.restoring(self._build(top, header_bytes)))

    def _build(self, top: Members, header_bytes: int) -> Generator[None, None, tuple[RequestHeader, memoryview]]:
        reader = self._reader
        inputs = yield from reader.inputs_of(top)
        blobs, is_recovered = yield from reader.frame(inputs, header_bytes)
        parameters = yield from sliced_parameters(top.get("parameters", b"null"), "")
        had_parameters = bool(parameters)
        requested = yield from reader.entries(top, "outputs")
        selection = yield from reader.select(requested, parameters)

        request_id = top.get("id", b"")
        request_id = b"" if is_absent(request_id) else restore_literals(request_id, reader.marker)
        if self._own_id and not request_id:  # protocol 4.10
            top["id"] = self._own_id
        sent_id = b"" if "id" in self._policy.leave_out else request_id or self._own_id
        put_last(top, MEMBERS)
        separator = b"{"
        for key in self._policy.leave_out:
            top.pop(key, None)
        for key, value in top.items():
            if reader.steps.is_full_with(ITEM_COST + len(value)):
                yield
            if key == "inputs":
                self._text += separator + b'"inputs":['
                yield from self._inputs(inputs)
                self._text += b"]"
            elif key == "outputs" and requested is not None:
                self._text += separator + b'"outputs":['
                yield from self._outputs(requested)
                self._text += b"]"
            elif key == "parameters" and value != b"null":
                if had_parameters and not parameters:
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
        header = RequestHeader(self._announced, selection, request_id, sent_id, is_recovered, self._segments)
        return header, blobs

    def _outputs(self, requested: list[Members]) -> Generator[None, None, None]:
        for index, entry in enumerate(requested):
            if self._reader.steps.is_full_with(cost_of(entry)):
                yield
            if index:
                self._text += b","
            put_last(entry, declarations.MEMBERS)
            self._text += object_text(entry) if len(entry) <= FEW_MEMBERS else (yield from sliced_text(entry))

    def _inputs(self, inputs: list[Members]) -> Generator[None, None, None]:
        for index, entry in enumerate(inputs):
            if self._reader.steps.is_full_with(cost_of(entry)):
                yield
            if index:
                self._text += b","
            label = self._reader.name_input(entry, index)
            parameters = yield from sliced_parameters(entry.get("parameters", b"null"), f"{label}: ")
            has_size = "binary_data_size" in parameters
            data = self._reader.source(entry, parameters, index, label)
            if isinstance(data, int):
                data = self._announce(entry, parameters, data, label)
            if has_size:
                if parameters and len(parameters) <= FEW_MEMBERS:
                    entry["parameters"] = object_text(parameters)
                else:
                    yield from replace_parameters(entry, parameters)
            put_last(entry, declarations.MEMBERS)
            self._text += object_text(entry) if len(entry) <= FEW_MEMBERS else (yield from sliced_text(entry))
            if data is not None:
                self._emit_data(data, is_first=not entry)

    def _announce(self, entry: Members, parameters: Members, size: int, label: str) -> int:
        """Note a binary input of *size* bytes, and say in it what its values will be. Returns its number."""
        tensor = announced(entry, size, label)
        self._announced.append((tensor, size))
        if tensor.datatype.kind is Kind.BYTES and self._policy.bytes is BytesPolicy.BASE64:  # protocol 3.5
            parameters["content_type"] = b'"base64"'
        elif is_half_precision(tensor.datatype) and self._policy.half_precision is HalfPrecision.PROMOTE:
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

    def _restore_segments(self) -> Generator[None, None, None]:
        """Put the literals back into the text."""
        if not self._reader.marker:
            return
        for index, segment in enumerate(self._segments):
            if isinstance(segment, bytes):
                if self._reader.steps.is_full_with(ITEM_COST):
                    yield
                self._segments[index] = (
                    restore_literals(segment, self._reader.marker)
                    if len(segment) <= SHORT_BYTES
                    else (yield from sliced_restore(segment, self._reader.marker))
                )
