"""The short way of a small request in its common form, for servers of other dialects: its tensors in a few calls.

The counterpart of `v2.short_request`, which reads the JSON for both. What is not the common form, right or wrong, is
None, and `DialectRequest.parse` judges it from its beginning. All else comes to the very value that it makes, so there
is one way to write it for a server (tests/codec/dialects/both_ways.py).

Not here: answers (`short_answer`), errors, and what large bodies need: steps.
"""

from msgspec import UNSET

from gateway.codec.dialects.outputs import short_value
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import HeaderLimits, OutputSelection, Tensor, TensorPolicy
from gateway.codec.json.members import Members
from gateway.codec.tensors.datatypes import DATATYPES, Datatype, Kind, element_count
from gateway.codec.tensors.elements import check_elements
from gateway.codec.v2 import short_request
from gateway.codec.v2.declarations import parse_shape
from gateway.codec.v2.short_request import FLAGS, UNLISTED, Input, read_header
from gateway.errors import CodecError

MAX_INPUTS = 32
"""The most inputs of a request that takes the short way: each costs up to ten microseconds to read and to print."""


def read_short_request(
    body: memoryview, header_length: int | None, policy: TensorPolicy, limits: HeaderLimits
) -> DialectRequest | None:
    """The request in *body*, if it is small and in the common form; None means that `DialectRequest.parse` judges."""
    header_bytes = len(body) if header_length is None else header_length
    if not 0 < header_bytes <= len(body) <= short_request.SHORT_BODY_BYTES:
        return None
    try:
        header = read_header(bytes(body[:header_bytes]), limits)
        if header is None or len(header.inputs) > MAX_INPUTS:
            return None
        inputs = _tensors(header.inputs, body, header_bytes)
        if inputs is None:
            return None
        parameters: Members = {}
        by_default = False
        if header.parameters is not UNSET:
            parameters = {name: bytes(value) for name, value in header.parameters.items()}
            if (flag := parameters.pop("binary_data_output", None)) is not None:
                by_default = FLAGS[flag]
        selection = UNLISTED[by_default]
        if header.outputs is not UNSET:
            named = {
                output.name: by_default if output.parameters is UNSET else output.parameters.binary_data
                for output in header.outputs
            }
            if len(named) != len(header.outputs):
                return None
            selection = OutputSelection(by_default, named)
    except (CodecError, KeyError, ValueError, RecursionError):
        return None
    request_id = b"" if header.id is UNSET else bytes(header.id)
    in_json = frozenset(entry.name for entry in header.inputs if entry.data is not UNSET)
    request = DialectRequest(
        inputs,
        selection,
        b"" if request_id in (b"null", b'""') else request_id,
        parameters,
        header_recovered=False,
        nonfinite=0,
        datatypes=[tensor.datatype.name for tensor in inputs if tensor.name not in in_json],
        in_json=in_json,
        octets={},
        policy=policy,
    )
    return request if request.is_small else None


def _tensors(entries: list[Input], body: memoryview, offset: int) -> list[Tensor] | None:
    """The inputs, whose blobs begin at *offset* and fill the body; None if one is not common."""
    tensors = []
    for entry in entries:
        datatype = DATATYPES[entry.datatype]
        shape = parse_shape(bytes(entry.shape))
        if shape is None:
            return None
        n_elements = element_count(shape)
        if entry.parameters is UNSET:
            value = None if entry.data is UNSET else short_value(bytes(entry.data), datatype)
            if value is None or value.shape not in (shape, (n_elements,)):
                return None
            blob = value.blobs[0]
        else:
            n_bytes = entry.parameters.binary_data_size
            # msgspec reads -0 as 0, which the long way refuses, so empty tensors are not common
            if entry.data is not UNSET or not 0 < n_bytes <= len(body) - offset:
                return None
            blob = body[offset : offset + n_bytes]
            offset += n_bytes
            if datatype.kind is Kind.BYTES:
                for _ in check_elements(blob, n_elements, "", utf8=True):
                    pass
            elif n_bytes != n_elements * datatype.item_bytes or not _is_finite(blob, datatype):
                return None
        tensors.append(Tensor(entry.name, datatype, shape, blob))
    if offset != len(body) or (len(tensors) > 1 and len({tensor.name for tensor in tensors}) != len(tensors)):
        return None
    return tensors


def _is_finite(blob: memoryview, datatype: Datatype) -> bool:
    """Whether all numbers in *blob* are finite."""
    # `all` takes twice as long for so few
    return datatype.is_finite is None or b"\0" not in datatype.is_finite(datatype.view(blob)).tobytes()
