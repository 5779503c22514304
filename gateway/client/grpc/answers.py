"""The reply to an inference as a `ModelInferResponse`, in buffers that are never joined.

Not here: the request (`inference`), and how the buffers go out (`reply`).
"""

from collections.abc import Generator, Sequence
from typing import Annotated, Any

import msgspec

from gateway.client.grpc.frames import Buffer
from gateway.client.grpc.inference import (
    CONTENTS,
    LENGTH,
    LONG_BYTES,
    NUMBERS,
    STEP_FIELDS,
    TYPED,
    varint,
)
from gateway.client.grpc.messages import CLASSES
from gateway.codec import DATATYPES, Kind
from gateway.errors import CodecError, TooLargeError

MAX_MESSAGE_BYTES = 2**31 - 1
"""The longest message that protobuf knows."""

_HAVE_NO_PLACE = ("FP16", "BF16")  # in typed contents
_OUTPUT_TAG, _CONTENTS_TAG, _RAW_OUTPUT_TAG = b"\x2a", b"\x2a", b"\x32"  # fields of the answer, and of its outputs
_INT64, _UINT64 = range(-(2**63), 2**63), range(2**64)

_Response = CLASSES["ModelInferResponse"]


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
    header: bytes, blobs: "Blobs", *, is_typed: bool, is_final: bool = False
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
    is_typed = is_typed and not any(output.datatype in _HAVE_NO_PLACE for output in answer.outputs)
    response = _Response(
        model_name=_text(answer.model_name), model_version=_text(answer.model_version), id=_text(answer.id)
    )
    _add_parameters(response.parameters, answer.parameters)
    if is_final:
        response.parameters["triton_final_response"].bool_param = True
    parts: list[Buffer] = []
    raw: list[Buffer] = []
    for output in answer.outputs:
        if output.data is not msgspec.UNSET:
            raise CodecError("the reply has outputs in JSON, which was not asked for")
        parameters = output.parameters or {}
        n_bytes = parameters.pop("binary_data_size", 0)
        if type(n_bytes) is not int or n_bytes < 0:
            raise CodecError(f"output {output.name!r}: `binary_data_size` must be an integer >= 0")
        values = blobs.take(n_bytes)
        tensor = response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        _add_parameters(tensor.parameters, parameters)
        if not is_typed:
            raw += (_RAW_OUTPUT_TAG, varint(n_bytes), *values)
            continue
        described = tensor.SerializeToString()
        del response.outputs[:]
        contents = yield from _contents(output, values)
        inside = [described, _CONTENTS_TAG, varint(_length(contents)), *contents]
        parts += (_OUTPUT_TAG, varint(_length(inside)), *inside)
    if blobs.n_bytes:
        raise CodecError(f"the reply has {blobs.n_bytes} bytes behind its outputs")
    message = [response.SerializeToString(), *parts, *raw]
    if _length(message) > MAX_MESSAGE_BYTES:
        raise TooLargeError(f"the reply has {_length(message)} bytes, a message of gRPC has at most 2^31 - 1")
    return message


class Blobs:
    """Takes the JSON of a reply, and the values of its outputs, off buffers; each may have several."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._left = [memoryview(buffer) for buffer in reversed(buffers)]

    @property
    def n_bytes(self) -> int:
        """How many bytes are blobs."""
        return _length(self._left)

    def take(self, n_bytes: int) -> list[Buffer]:
        """The next *n_bytes*. Raises `CodecError` if they are missing."""
        taken: list[Buffer] = []
        while n_bytes:
            if not self._left:
                raise CodecError(f"the reply ends {n_bytes} bytes short of its outputs")
            buffer = self._left.pop()
            if len(buffer) > n_bytes:
                self._left.append(buffer[n_bytes:])
                buffer = buffer[:n_bytes]
            taken.append(buffer)
            n_bytes -= len(buffer)
        return taken


def _length(buffers: Sequence[Buffer]) -> int:
    return sum(map(len, buffers))


def _text(value: Any) -> str:
    """A member of an answer as text; servers have numbers there, too."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _add_parameters(target: Any, parameters: dict[str, Any] | None) -> None:
    """Write *parameters* of JSON into the map *target*; arrays and objects as their text, null not at all."""
    for name, value in (parameters or {}).items():
        if value is None:
            continue
        parameter = target[name]
        if isinstance(value, bool):
            parameter.bool_param = value
        elif isinstance(value, int) and value in _INT64:
            parameter.int64_param = value
        elif isinstance(value, int) and value in _UINT64:
            parameter.uint64_param = value
        elif isinstance(value, float):
            parameter.double_param = value
        else:
            parameter.string_param = _text(value)


def _contents(output: _Output, values: list[Buffer]) -> Generator[None, None, list[Buffer]]:
    """The raw *values* of *output* as the fields of `InferTensorContents`. Raises `CodecError`."""
    row, label = DATATYPES.get(output.datatype), f"output {output.name!r}"
    if row is None:
        raise CodecError(f"{label}: there is no datatype {output.datatype[:64]!r}")
    name, n_bytes = TYPED[row.name], _length(values)
    if row.item_bytes and n_bytes % row.item_bytes:
        raise CodecError(f"{label}: {n_bytes} bytes are no whole number of elements of {row.name}")
    if row.kind is Kind.FLOAT:  # packed, they are the same bytes
        return [varint(NUMBERS[name] << 3 | LENGTH), varint(n_bytes), *values] if values else []
    written: list[Buffer] = []
    whole = memoryview(values[0] if len(values) == 1 else b"".join(values))
    if row.kind is Kind.BYTES:
        elements: list[bytes] = []
        at = 0
        while at < n_bytes:
            start = at + 4
            at = start + int.from_bytes(whole[at:start], "little")
            if at > n_bytes:
                raise CodecError(f"{label}: the last element is cut off")
            elements.append(bytes(whole[start:at]))
            if len(elements) == STEP_FIELDS or at == n_bytes:
                written.append(CONTENTS(bytes_contents=elements).SerializeToString())
                elements.clear()
                yield
        return written
    step = LONG_BYTES - LONG_BYTES % row.item_bytes
    for start in range(0, n_bytes, step):
        array = row.view(whole[start : start + step])
        listed = (array != 0).tolist() if row.kind is Kind.BOOL else array.tolist()
        written.append(CONTENTS(**{name: listed}).SerializeToString())
        yield
    return written
