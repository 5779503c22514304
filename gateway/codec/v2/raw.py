"""Raw binary requests (protocol section 5): a body that is one tensor and nothing else.

Name, datatype and shape come from the model's metadata. Here: what they say of this body. Not here: asking for them.
"""

import math
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, label_of, shape_text
from gateway.codec.json.members import HELD_PER_BYTE, excerpt
from gateway.codec.tensors import elements
from gateway.codec.tensors.datatypes import DATATYPES, Kind, count_text
from gateway.codec.v2.declarations import MAX_DIMENSION, MAX_RANK
from gateway.codec.v2.framing import Cursor, copied
from gateway.codec.v2.request_reading import RequestReading, Reserve, read_request, reserve_nothing
from gateway.errors import CodecError

MAX_NAMED = 5
"""How many inputs of a model an error names."""


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: msgspec.Raw


class _Metadata(msgspec.Struct):
    inputs: msgspec.Raw = msgspec.Raw(b"null")
    outputs: msgspec.Raw = msgspec.Raw(b"null")


_DECODER = msgspec.json.Decoder(_Metadata)
_SHAPE = msgspec.json.Decoder(
    Annotated[tuple[Annotated[int, Meta(ge=-1, le=MAX_DIMENSION)], ...], Meta(max_length=MAX_RANK)]
)
_TENSORS = msgspec.json.Decoder(list[_Tensor])


def read_raw(
    body: memoryview, metadata: bytes, limits: HeaderLimits = DEFAULT_LIMITS, reserve: Reserve = reserve_nothing
) -> RequestReading:
    """The request that a raw *body* is, with the header that its client left out: *metadata* is the model's in V2.

    *reserve* is called as by `read_request`; a BYTES element is copied behind its length, and its copy counts too.
    Yields after each step of work. Raises `CodecError`.
    """
    header, is_bytes = raw_header(metadata, len(body), limits)
    blob = body
    if is_bytes:
        prefix = elements.prefix_of(len(body), "the body")
        reserve(len(body) + len(header) * HELD_PER_BYTE)
        reserve = reserve_nothing
        blob = yield from copied(body, behind=prefix)
    text = yield from read_request(memoryview(header), len(header), limits, reserve)
    assert text is not None  # it is judged
    return msgspec.structs.replace(text, blobs=Cursor(blob), n_bytes=text.n_bytes + len(blob))


def raw_header(metadata: bytes, body_bytes: int, limits: HeaderLimits = DEFAULT_LIMITS) -> tuple[bytes, bool]:
    """The header for a raw body of *body_bytes*, from the model's *metadata*; it asks for all outputs in binary.

    And whether the body is one BYTES element, before which the caller puts its length. Raises `CodecError` if the
    metadata does not say enough, says more than *limits* allow, or the body does not fit it.
    """
    inputs = _read(metadata, "inputs", limits)
    if not inputs:
        raise CodecError("a raw request needs the model's metadata, and it names no inputs")
    if len(inputs) != 1:
        names = ", ".join(label_of("input", tensor.name) for tensor in inputs[:MAX_NAMED])
        more = ", ..." if len(inputs) > MAX_NAMED else ""
        raise CodecError(
            f"a raw request can only go to a model with one input; this one has {len(inputs)}: {names}{more}"
        )
    tensor = inputs[0]
    shape = _solve(tensor, body_bytes)
    is_bytes = tensor.datatype == "BYTES"
    entry = {
        "name": tensor.name,
        "shape": shape,
        "datatype": tensor.datatype,
        "parameters": {"binary_data_size": body_bytes + (4 if is_bytes else 0)},
    }
    text = msgspec.json.encode({"inputs": [entry], "parameters": {"binary_data_output": True}})
    return text, is_bytes


def half_precision_outputs(metadata: bytes, limits: HeaderLimits = DEFAULT_LIMITS) -> dict[str, str]:
    """The outputs that the metadata declares as FP16 or BF16, by name; none if it cannot be read."""
    try:
        outputs = _read(metadata, "outputs", limits)
    except CodecError:
        return {}
    return {tensor.name: tensor.datatype for tensor in outputs if tensor.datatype in ("FP16", "BF16")}


def _read(metadata: bytes, section: str, limits: HeaderLimits) -> list[_Tensor]:
    """The tensors that *metadata* lists as *section*, `inputs` or `outputs`; none if it has no such list.

    What is not needed is skipped: a mebibyte takes one millisecond, and three at most.
    """
    try:
        described = _DECODER.decode(metadata)
        text = described.inputs if section == "inputs" else described.outputs
        if len(memoryview(text)) > limits.max_header_bytes:
            raise CodecError(
                f"`{section}` is longer than {limits.max_header_bytes} bytes, which is the most that `limits.header` "
                "allows"
            )
        tensors = [] if bytes(text) == b"null" else _TENSORS.decode(text)
        if len(tensors) > limits.max_tensors:
            raise CodecError(f"more than {limits.max_tensors} entries, which is the most that `limits.tensors` allows")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, CodecError) as error:
        raise CodecError(f"a raw request needs the model's metadata, and it cannot be read: {error}") from None
    return tensors


def _solve(tensor: _Tensor, body_bytes: int) -> list[int]:
    """The shape with its variable dimensions (-1) found from the size of the body."""
    name = label_of("input", tensor.name)
    datatype = DATATYPES.get(tensor.datatype)
    try:
        shape: list[int] = list(_SHAPE.decode(tensor.shape))
    except msgspec.DecodeError:
        shape, datatype = [], None
    if datatype is None:
        raise CodecError(
            f"{name}: the model's metadata has no datatype of the protocol, or no shape of at most {MAX_RANK} "
            f"integers >= -1: {tensor.datatype[:16]!r}, {excerpt(bytes(tensor.shape))}"
        )
    label = f"{name} ({datatype.name}, shape {shape_text(shape)})"
    variable = [index for index, size in enumerate(shape) if size == -1]
    n_fixed = abs(math.prod(shape))  # each variable dimension is -1, which changes the sign alone
    if datatype.kind is Kind.BYTES:
        if n_fixed != 1:
            raise CodecError(f"{label}: the body of a raw request is one element, the model wants more")
        return [1] * len(shape)
    if len(variable) > 1 and variable[0] == 0:
        shape[variable.pop(0)] = 1  # the batch dimension
    if len(variable) > 1:
        raise CodecError(
            f"{label}: more than one variable dimension besides the batch: send the shape in a JSON header"
        )
    fixed_bytes = n_fixed * datatype.item_bytes
    if not variable:
        if body_bytes != fixed_bytes:
            raise CodecError(f"{label}: expected {count_text(fixed_bytes)} bytes, got {body_bytes}")
        return shape
    if fixed_bytes == 0 or body_bytes % fixed_bytes:
        raise CodecError(f"{label}: expected a multiple of {count_text(fixed_bytes)} bytes, got {body_bytes}")
    shape[variable[0]] = body_bytes // fixed_bytes
    return shape
