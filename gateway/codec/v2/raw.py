"""Raw binary requests (protocol section 5): a body that is one tensor and nothing else.

Name, datatype and shape come from the model's metadata. Here: what they say of this body. Not here: asking for them.
"""

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw
from msgspec.json import Decoder

from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, labelled
from gateway.codec.json.members import excerpt
from gateway.codec.tensors import elements
from gateway.codec.tensors.datatypes import DATATYPES, Kind, count_text
from gateway.codec.v2.framing import copied
from gateway.codec.v2.messages import MAX_DIMENSION, MAX_RANK
from gateway.codec.v2.request_reading import RequestReading, Reserve, read_request, reserve_nothing
from gateway.errors import CodecError

_Shape = Annotated[tuple[Annotated[int, Meta(ge=-1, le=MAX_DIMENSION)], ...], Meta(max_length=MAX_RANK)]


class _Input(msgspec.Struct):
    """An input in a model's metadata; -1 is a variable dimension."""

    name: str
    datatype: Literal[tuple(DATATYPES)]  # type: ignore[valid-type]
    shape: _Shape


class _Output(msgspec.Struct):
    """What is read of an output."""

    name: str
    datatype: str


class _Metadata(msgspec.Struct):
    inputs: Raw = Raw(b"null")
    outputs: Raw = Raw(b"null")


_METADATA = Decoder(_Metadata)
_INPUTS = Decoder(list[_Input] | None)
_OUTPUTS = Decoder(list[_Output] | None)


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
        reserve(len(prefix) + len(body))
        blob = yield from copied(body, behind=prefix)
    return (yield from read_request(memoryview(header), len(header), limits, reserve, blobs=(blob,)))


def raw_header(metadata: bytes, body_bytes: int, limits: HeaderLimits = DEFAULT_LIMITS) -> tuple[bytes, bool]:
    """The header for a raw body of *body_bytes*, from the model's *metadata*; it asks for all outputs in binary.

    And whether the body is one BYTES element, before which the caller puts its length. Raises `CodecError` if the
    metadata does not say enough, says more than *limits* allow, or the body does not fit it.
    """
    inputs = _read(metadata, "inputs", _INPUTS, limits)
    if len(inputs) != 1:
        names = f"{len(inputs)} inputs; a raw request has only one" if inputs else "no inputs"
        raise CodecError(f"a raw request needs the model's metadata, and it names {names}")
    tensor = inputs[0]
    shape = _solve(tensor, body_bytes)
    is_bytes = tensor.datatype == "BYTES"
    entry = {
        "name": tensor.name,
        "shape": shape,
        "datatype": tensor.datatype,
        "parameters": {"binary_data_size": body_bytes + (4 if is_bytes else 0)},
    }
    return msgspec.json.encode({"inputs": [entry], "parameters": {"binary_data_output": True}}), is_bytes


def half_precision_outputs(metadata: bytes, limits: HeaderLimits = DEFAULT_LIMITS) -> dict[str, str]:
    """The outputs that the metadata declares as FP16 or BF16, by name; none if it cannot be read."""
    try:
        outputs = _read(metadata, "outputs", _OUTPUTS, limits)
    except CodecError:
        return {}
    return {tensor.name: tensor.datatype for tensor in outputs if tensor.datatype in ("FP16", "BF16")}


def _read(metadata: bytes, section: str, decoder: Decoder[Any], limits: HeaderLimits) -> list[Any]:
    """The tensors that *metadata* lists as *section*, `inputs` or `outputs`; none if it has no such list.

    What is not needed is skipped: a mebibyte takes one millisecond, and three at most.
    """
    try:
        text: Raw = getattr(_METADATA.decode(metadata), section)
        n_bytes = len(memoryview(text))
        tensors = decoder.decode(text) or [] if n_bytes <= limits.max_header_bytes else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        words = excerpt(str(error).encode())
        raise CodecError(f"a raw request needs the model's metadata, and it cannot be read: {words}") from None
    if n_bytes > limits.max_header_bytes or len(tensors) > limits.max_tensors:
        raise CodecError(
            f"the model's metadata has more `{section}` than {limits.max_header_bytes} bytes (`limits.header`) or "
            f"{limits.max_tensors} entries (`limits.tensors`)"
        )
    return tensors


def _solve(tensor: _Input, body_bytes: int) -> list[int]:
    """The shape with its variable dimensions (-1) found from the size of the body."""
    datatype, shape = DATATYPES[tensor.datatype], list(tensor.shape)
    label = labelled("input", tensor.name, datatype, tensor.shape)
    variable = [index for index, size in enumerate(shape) if size == -1]
    n_fixed = abs(math.prod(shape))  # each variable dimension is -1, which changes the sign alone
    if datatype.kind is Kind.BYTES:
        if n_fixed != 1:
            raise CodecError(f"{label}: the body of a raw request is one element, the model wants more")
        return [1] * len(shape)
    if len(variable) > 1 and variable[0] == 0:
        shape[variable.pop(0)] = 1  # the batch dimension
    if len(variable) > 1:
        raise CodecError(f"{label}: more than one variable dimension besides the batch: send a JSON header")
    fixed_bytes = n_fixed * datatype.item_bytes
    if not variable:
        if body_bytes != fixed_bytes:
            raise CodecError(f"{label}: expected {count_text(fixed_bytes)} bytes, got {body_bytes}")
        return shape
    if fixed_bytes == 0 or body_bytes % fixed_bytes:
        raise CodecError(f"{label}: expected a multiple of {count_text(fixed_bytes)} bytes, got {body_bytes}")
    shape[variable[0]] = body_bytes // fixed_bytes
    return shape
