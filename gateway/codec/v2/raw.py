"""Raw binary requests (protocol section 5): a body that is one tensor and nothing else.

Name, datatype and shape come from the model's metadata. Here: what they say of this body. Not here: asking for them.
"""

import math

import msgspec

from gateway.codec.tensors.datatypes import DATATYPES, Kind
from gateway.errors import CodecError


class _Tensor(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]


class _Metadata(msgspec.Struct):
    inputs: list[_Tensor] | None = None
    outputs: list[_Tensor] | None = None


_DECODER = msgspec.json.Decoder(_Metadata)


def raw_header(metadata: bytes, body_bytes: int) -> bytes:
    """The JSON header that the client of a raw request with *body_bytes* left out.

    It asks for all outputs in binary. BYTES count with the length prefix that the caller puts before the element.
    Raises `CodecError` if the metadata does not say enough, or the body does not fit it.
    """
    described = _read(metadata)
    if not described.inputs:
        raise CodecError("a raw request needs the model's metadata, and it names no inputs")
    if len(described.inputs) != 1:
        names = ", ".join(tensor.name for tensor in described.inputs)
        raise CodecError(f"a raw request can only go to a model with one input; this one has {names}")
    tensor = described.inputs[0]
    shape = _solve(tensor, body_bytes)
    is_bytes = tensor.datatype == "BYTES"
    entry = {
        "name": tensor.name,
        "shape": shape,
        "datatype": tensor.datatype,
        "parameters": {"binary_data_size": body_bytes + (4 if is_bytes else 0)},
    }
    return msgspec.json.encode({"inputs": [entry], "parameters": {"binary_data_output": True}})


def is_bytes_model(metadata: bytes) -> bool:
    """Whether the model's only input is BYTES, so that a raw body is one element without its length."""
    inputs = _read(metadata).inputs
    return bool(inputs) and len(inputs or ()) == 1 and (inputs or [])[0].datatype == "BYTES"


def half_precision_outputs(metadata: bytes) -> dict[str, str]:
    """The outputs that the metadata declares as FP16 or BF16, by name; none if it cannot be read."""
    try:
        outputs = _read(metadata).outputs or []
    except CodecError:
        return {}
    return {tensor.name: tensor.datatype for tensor in outputs if tensor.datatype in ("FP16", "BF16")}


def _read(metadata: bytes) -> _Metadata:
    try:
        return _DECODER.decode(metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"a raw request needs the model's metadata, and it cannot be read: {error}") from None


def _solve(tensor: _Tensor, body_bytes: int) -> list[int]:
    """The shape with its variable dimensions (-1) found from the size of the body."""
    label = f"input {tensor.name!r} ({tensor.datatype}, shape {tensor.shape})"
    datatype = DATATYPES.get(tensor.datatype)
    if datatype is None or any(size < -1 for size in tensor.shape):
        raise CodecError(f"{label}: the model's metadata has no such datatype or shape")
    shape = list(tensor.shape)
    variable = [index for index, size in enumerate(shape) if size == -1]
    if datatype.kind is Kind.BYTES:
        if math.prod(size for size in shape if size != -1) != 1:
            raise CodecError(f"{label}: the body of a raw request is one element, the model wants more")
        return [1] * len(shape)
    if len(variable) > 1:
        if variable[0] != 0:
            raise CodecError(f"{label}: more than one variable dimension: send the shape in a JSON header")
        shape[variable.pop(0)] = 1  # the batch dimension
    if len(variable) > 1:
        raise CodecError(
            f"{label}: more than one variable dimension besides the batch: send the shape in a JSON header"
        )
    fixed_bytes = math.prod(size for size in shape if size != -1) * datatype.item_bytes
    if not variable:
        if body_bytes != fixed_bytes:
            raise CodecError(f"{label}: expected {fixed_bytes} bytes, got {body_bytes}")
        return shape
    if fixed_bytes == 0 or body_bytes % fixed_bytes:
        raise CodecError(f"{label}: expected a multiple of {fixed_bytes} bytes, got {body_bytes}")
    shape[variable[0]] = body_bytes // fixed_bytes
    return shape
