"""The reply to an inference as a `ModelInferResponse`, in buffers that are never joined.

Not here: the request (`inference`), and how the buffers go out (`call`).
"""

from collections.abc import Generator, Sequence
from typing import Annotated, Any

import msgspec

from gateway.client.grpc.frames import Buffer, Buffers
from gateway.client.grpc.messages import CLASSES, LENGTH, NUMBERS, TYPED, varint
from gateway.codec import DATATYPES, Datatype, Kind
from gateway.errors import CodecError, TooLargeError

MAX_MESSAGE_BYTES = 2**31 - 1
"""The longest message that protobuf knows."""

STEP_BYTES, STEP_ELEMENTS = 16 * 1024, 512
"""How much of numbers, and how many elements of BYTES, are converted in one step."""

_OUTPUT_TAG, _CONTENTS_TAG, _RAW_OUTPUT_TAG = b"\x2a", b"\x2a", b"\x32"  # fields of the answer, and of its outputs
_INT64, _UINT64 = range(-(2**63), 2**63), range(2**64)

_Response, _Contents = CLASSES["ModelInferResponse"], CLASSES["InferTensorContents"]


class _Output(msgspec.Struct):
    name: str
    datatype: str = ""
    shape: list[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]] = []
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Answer(msgspec.Struct):
    outputs: list[_Output]
    model_name: Any = None
    model_version: Any = None
    id: Any = None
    parameters: dict[str, Any] | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


def write_response(
    header: bytes, blobs: Buffers, *, is_typed: bool, is_final: bool = False
) -> Generator[None, None, list[Buffer]]:
    """The message with the JSON *header* of a reply and its *blobs*, in buffers; yields after each step of work.

    *is_typed*: values go into fields of their datatype, if all datatypes have one. *is_final*: the parameter
    `triton_final_response` says that no other answer follows. Raises `CodecError` for a reply that
    is none of the binary extension, or no message can hold.
    """
    try:
        answer = _ANSWER.decode(header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CodecError(f"the reply cannot be made a message: {error}") from None
    # half precision has no field
    is_typed = is_typed and all(each.datatype in TYPED or each.datatype not in DATATYPES for each in answer.outputs)
    names = (_text(answer.model_name), _text(answer.model_version), _text(answer.id))
    response = _Response(**dict(zip(("model_name", "model_version", "id"), names, strict=True)))
    _add_parameters(response.parameters, answer.parameters)
    if is_final:
        response.parameters["triton_final_response"].bool_param = True
    parts: list[Buffer] = []
    for output in answer.outputs:
        if output.data is not msgspec.UNSET:
            words = "its values came as JSON, though they were asked for in binary: set `binary: never`"
            raise CodecError(f"output {output.name!r}: {words}")
        parameters = output.parameters or {}
        n_bytes = parameters.pop("binary_data_size", 0)
        if type(n_bytes) is not int or n_bytes < 0:
            raise CodecError(f"output {output.name!r}: `binary_data_size` must be an integer >= 0")
        if n_bytes > blobs.n_bytes:
            raise CodecError(f"the reply ends {n_bytes - blobs.n_bytes} bytes short of its outputs")
        values = blobs.take(n_bytes)
        tensor = response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        _add_parameters(tensor.parameters, parameters)
        if is_typed:
            described = tensor.SerializeToString()
            del response.outputs[:]
            contents = yield from _contents(output, values)
            parts += _field(_OUTPUT_TAG, [described, *_field(_CONTENTS_TAG, contents)])
        else:
            parts += _field(_RAW_OUTPUT_TAG, values)
    if blobs.n_bytes:
        raise CodecError(f"the reply has {blobs.n_bytes} bytes behind its outputs")
    message = [response.SerializeToString(), *parts]
    if (n_bytes := sum(map(len, message))) > MAX_MESSAGE_BYTES:
        raise TooLargeError(f"the reply has {n_bytes} bytes, a message of gRPC has at most 2^31 - 1")
    return message


def _field(tag: bytes, value: Sequence[Buffer]) -> list[Buffer]:
    """The field with *tag* and *value*, which has a length."""
    return [tag, varint(sum(map(len, value))), *value]


def _text(value: Any) -> str:
    """A member of an answer as text; servers have numbers there, too."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _add_parameters(target: Any, parameters: dict[str, Any] | None) -> None:
    """Write *parameters* of JSON into the map *target*; arrays and objects as their text, null not at all."""
    for name, value in (parameters or {}).items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int) and value in _INT64:
            target[name].int64_param = value
        elif isinstance(value, int) and value in _UINT64:
            target[name].uint64_param = value
        elif isinstance(value, float):
            target[name].double_param = value
        elif value is not None:
            target[name].string_param = _text(value)


def _contents(output: _Output, values: list[Buffer]) -> Generator[None, None, list[Buffer]]:
    """The raw *values* of *output* as the fields of `InferTensorContents`. Raises `CodecError`."""
    row, label = DATATYPES.get(output.datatype), f"output {output.name!r}"
    if row is None:
        raise CodecError(f"{label}: there is no datatype {output.datatype[:64]!r}")
    whole = memoryview(values[0] if len(values) == 1 else b"".join(values))
    if row.item_bytes and len(whole) % row.item_bytes:
        raise CodecError(f"{label}: {len(whole)} bytes are no whole number of elements of {row.name}")
    name = TYPED[row.name]
    if row.kind is Kind.FLOAT:  # packed, they are the same bytes
        return _field(varint(NUMBERS[name] << 3 | LENGTH), values) if values else []
    written: list[Buffer] = []
    for listed in _elements(whole, label) if row.kind is Kind.BYTES else _numbers(whole, row):
        written.append(_Contents(**{name: listed}).SerializeToString())
        yield
    return written


def _numbers(values: memoryview, row: Datatype) -> Generator[list[Any], None, None]:
    """The *values* of a datatype in lists."""
    for start in range(0, len(values), STEP_BYTES):
        array = row.view(values[start : start + STEP_BYTES])
        yield (array != 0).tolist() if row.kind is Kind.BOOL else array.tolist()


def _elements(values: memoryview, label: str) -> Generator[list[bytes], None, None]:
    """The elements of BYTES, each with its length before it, in lists. Raises `CodecError`."""
    elements: list[bytes] = []
    at = 0
    while at < len(values):
        start = at + 4
        at = start + int.from_bytes(values[at:start], "little")
        if at > len(values):
            raise CodecError(f"{label}: the last element is cut off")
        elements.append(bytes(values[start:at]))
        if len(elements) == STEP_ELEMENTS or at == len(values):
            yield elements
            elements = []
