"""Raw binary requests (protocol section 5): a body that is one tensor and nothing else.

Name, datatype and shape come from the model's metadata. Here: what they say of this body. Not here: asking for them.
"""

import math
from collections.abc import Generator
from typing import NamedTuple

import msgspec

from gateway.codec.inference import DEFAULT_LIMITS, HeaderLimits, count_text, label_of, shape_text
from gateway.codec.json.members import excerpt, sliced_objects
from gateway.codec.tensors.datatypes import DATATYPES, Kind
from gateway.codec.v2.declarations import MAX_RANK, parse_shape, text_of
from gateway.codec.v2.steps import SHORT_BYTES
from gateway.errors import CodecError

MAX_NAMED = 5
"""How many inputs of a model an error names."""


_MEMBERS = frozenset(("name", "datatype", "shape"))


class _Tensor(NamedTuple):
    name: str
    datatype: str
    shape: bytes


class _Metadata(msgspec.Struct):
    inputs: msgspec.Raw = msgspec.Raw(b"null")
    outputs: msgspec.Raw = msgspec.Raw(b"null")


_DECODER = msgspec.json.Decoder(_Metadata)


class RawHeader(NamedTuple):
    """The JSON header that the client of a raw request left out."""

    text: bytes
    is_bytes: bool
    """Whether the body is one BYTES element, before which the caller puts its length."""


def raw_header(
    metadata: bytes, body_bytes: int, limits: HeaderLimits = DEFAULT_LIMITS
) -> Generator[None, None, RawHeader]:
    """The header for a raw body of *body_bytes*, from the model's *metadata*; it asks for all outputs in binary.

    Yields after each step of work. Raises `CodecError` if the metadata does not say enough, says more than *limits*
    allow, or the body does not fit it.
    """
    inputs = yield from _read(metadata, "inputs", limits)
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
    return RawHeader(text, is_bytes)


def half_precision_outputs(
    metadata: bytes, limits: HeaderLimits = DEFAULT_LIMITS
) -> Generator[None, None, dict[str, str]]:
    """The outputs that the metadata declares as FP16 or BF16, by name; none if it cannot be read.

    Yields after each step of work.
    """
    try:
        outputs = yield from _read(metadata, "outputs", limits)
    except CodecError:
        return {}
    return {tensor.name: tensor.datatype for tensor in outputs if tensor.datatype in ("FP16", "BF16")}


def _read(metadata: bytes, section: str, limits: HeaderLimits) -> Generator[None, None, list[_Tensor]]:
    """The tensors that *metadata* lists as *section*, `inputs` or `outputs`; none if it has no such list.

    What is not needed is skipped in one step, which is a hundred times cheaper than in slices: a mebibyte takes one
    millisecond, and three at most.
    """
    try:
        described = _DECODER.decode(metadata)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CodecError(f"a raw request needs the model's metadata, and it cannot be read: {error}") from None
    text = bytes(described.inputs if section == "inputs" else described.outputs)
    if text == b"null":
        return []
    if len(text) > SHORT_BYTES:
        yield
    try:
        entries = yield from sliced_objects(text, limits.max_tensors, _MEMBERS)
        tensors = []
        for index, entry in enumerate(entries):
            name, datatype, shape = text_of(entry, "name"), text_of(entry, "datatype"), entry.get("shape")
            if name is None or datatype is None or shape is None:
                raise CodecError(f"entry {index} of `{section}` needs `name` and `datatype`, strings, and `shape`")
            tensors.append(_Tensor(name, datatype, shape))
    except CodecError as error:
        raise CodecError(f"a raw request needs the model's metadata, and it cannot be read: {error}") from None
    return tensors


def _solve(tensor: _Tensor, body_bytes: int) -> list[int]:
    """The shape with its variable dimensions (-1) found from the size of the body."""
    name = label_of("input", tensor.name)
    datatype = DATATYPES.get(tensor.datatype)
    declared = parse_shape(tensor.shape, lowest=-1)
    if datatype is None or declared is None:
        raise CodecError(
            f"{name}: the model's metadata has no datatype of the protocol, or no shape of at most {MAX_RANK} "
            f"integers >= -1: {tensor.datatype[:16]!r}, {excerpt(tensor.shape)}"
        )
    shape = list(declared)
    label = f"{name} ({datatype.name}, shape {shape_text(shape)})"
    variable = [index for index, size in enumerate(shape) if size == -1]
    n_fixed = math.prod(size for size in shape if size != -1)
    if datatype.kind is Kind.BYTES:
        if n_fixed != 1:
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
    fixed_bytes = n_fixed * datatype.item_bytes
    if not variable:
        if body_bytes != fixed_bytes:
            raise CodecError(f"{label}: expected {count_text(fixed_bytes)} bytes, got {body_bytes}")
        return shape
    if fixed_bytes == 0 or body_bytes % fixed_bytes:
        raise CodecError(f"{label}: expected a multiple of {count_text(fixed_bytes)} bytes, got {body_bytes}")
    shape[variable[0]] = body_bytes // fixed_bytes
    return shape
