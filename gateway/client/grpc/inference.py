"""A `ModelInfer` message as a request of the binary extension.

The message's tensors become the JSON header and the blobs that a client of HTTP would have sent, so that one codec
proves and converts both (docs/protocol.md, section 12). Raw contents are views of the message: protobuf never sees
them, nor long typed ones as a whole. Not here: the answer (`answers`), and how messages come and go.
"""

import math
from base64 import b64encode
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from gateway.client.grpc.frames import Buffer
from gateway.client.grpc.messages import CLASSES, LENGTH, NUMBERS, TYPED, Message, varint
from gateway.codec import DATATYPES, MAX_RANK, Datatype, HeaderLimits, Kind, label_of
from gateway.errors import CodecError, TooLargeError

LONG_BYTES = 16 * 1024
"""Packed values are converted in slices of this size."""

SHORT_BYTES = 1024
"""So much of values that are not packed, each with a tag of its own, is converted in one step."""

STEP_FIELDS = 512
"""How many fields of a message are looked at in one step."""

STEP_INPUTS = 32
"""How many inputs are turned into JSON in one step."""

MAX_FIELDS = 1024
"""The most fields of a message without tensors."""

_Request, _Contents = CLASSES["ModelInferRequest"], CLASSES["InferTensorContents"]
_ARRAYS = {"d": np.dtype("f8"), "i": np.dtype("i8"), "u": np.dtype("u8")}  # by `Datatype.parsed`

_VARINT, _FIXED64, _FIXED32 = 0, 1, 5  # other types of fields than LENGTH
_INPUTS, _OUTPUTS, _RAW_INPUTS, _CONTENTS = (number << 3 | LENGTH for number in (5, 6, 7, 5))  # the last: of an input
_TENSORS = {_INPUTS: "inputs", _OUTPUTS: "outputs", _RAW_INPUTS: "raw_input_contents"}

_TAG_BYTES, _NUMBER_BYTES = 5, 10  # the longest that protobuf reads

_ASKS_FOR_FINAL = "triton_enable_empty_final_response"
"""A parameter that asks this front for `triton_final_response`; over HTTP, Triton refuses names like this one."""

Reserve = Callable[[int], None]
"""Asks for so many bytes of memory; may raise to refuse the request."""


class InferMessage(NamedTuple):
    """A `ModelInfer` request as the binary extension has it."""

    id: str
    """The client's; empty if it has none."""
    target: str
    """The path of the inference."""
    header: bytes
    """The JSON."""
    blobs: list[memoryview]
    """The values of each input that is not in shared memory."""
    is_typed: bool
    """Whether the values came in fields of their datatype, so that the answer's are to go there too."""
    is_of_sequence: bool
    """Whether the server keeps a state from one request to the next (`sequence_id`), so that their order counts."""


def read_request(message: memoryview, limits: HeaderLimits, reserve: Reserve) -> Generator[None, None, InferMessage]:
    """What *message* asks for; yields after each step of work.

    *reserve* is asked for the memory of values that are converted. Raises `CodecError`, and of these `TooLargeError`
    for more beside the values than *limits* allow.
    """
    rest, raw, typed = yield from _taken_apart(message, limits)
    request = parsed(_Request, rest)
    target = model_path(request, "model_", "/infer")
    blobs: list[memoryview] = []
    inputs: list[dict[str, Any]] = []
    expected = sum("shared_memory_region" not in tensor.parameters for tensor in request.inputs) if raw else 0
    if len(raw) != expected:
        words = f"`raw_input_contents` has {len(raw)} entries, but {expected} inputs have their values there"
        raise CodecError(words)
    left = iter(raw)
    is_typed = False
    for index, (tensor, contents) in enumerate(zip(request.inputs, typed, strict=True), 1):
        parameters = parameters_of(tensor, "input")
        inputs.append(
            {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype, "parameters": parameters}
        )
        # MLServer's converter leaves `contents` without a value beside the raw ones
        if contents is not None and (contents or not raw):
            if raw:
                words = "has `contents`, but there are `raw_input_contents` too"
                raise CodecError(f"{label_of('input', tensor.name)}: {words}")
            is_typed = True
            blob = yield from _typed_blob(tensor, contents, reserve)
        elif "shared_memory_region" in parameters:
            continue
        elif raw:
            blob = next(left)
        elif 0 in tensor.shape:
            blob = memoryview(b"")
        else:
            words = "has no values, neither `contents` nor `raw_input_contents`"
            raise CodecError(f"{label_of('input', tensor.name)}: {words}")
        parameters["binary_data_size"] = len(blob)
        blobs.append(blob)
        if index % STEP_INPUTS == 0:
            yield
    parameters = parameters_of(request)
    is_of_sequence = bool(parameters.get("sequence_id"))
    header = _header(request, parameters, inputs)
    _check_size(len(header), limits)
    return InferMessage(request.id, target, header, blobs, is_typed, is_of_sequence)


def model_path(message: Message, prefix: str = "", suffix: str = "") -> str:
    """The path of the model, and of its version, that *message* names in fields with *prefix*. Raises `CodecError`."""
    name, version = getattr(message, f"{prefix}name"), getattr(message, f"{prefix}version", "")
    if not name:
        raise CodecError(f"the request has no `{prefix}name`")
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}{suffix}" if version else path + suffix


def parameters_of(said: Message, section: str = "") -> dict[str, Any]:
    """The parameters of *said*, an entry of *section* or the request itself, as members of JSON.

    Raises `CodecError` for what JSON cannot carry.
    """
    found: dict[str, Any] = {}
    for name, parameter in said.parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        value = None if kind is None else getattr(parameter, kind)
        if value is None or (kind == "double_param" and not math.isfinite(value)):
            whose = label_of(section, said.name) if section else "the request"
            wrong = "has no value" if value is None else f"is {value}, which JSON cannot carry"
            raise CodecError(f"{whose}: parameter {name!r} {wrong}")
        found[name] = b64encode(value).decode() if kind == "bytes_param" else value
    return found


def _header(request: Message, parameters: dict[str, Any], inputs: list[dict[str, Any]]) -> bytes:
    """The JSON of *request*, with its *parameters* and these entries of *inputs*; it asks for all outputs in binary."""
    parameters.pop(_ASKS_FOR_FINAL, None)
    parameters["binary_data_output"] = True
    header: dict[str, Any] = {"parameters": parameters, "inputs": inputs}
    if request.id:
        header["id"] = request.id
    if request.outputs:
        header["outputs"] = outputs = []
        for output in request.outputs:
            wanted = parameters_of(output, "output")
            if "shared_memory_region" not in wanted:  # else Triton, which reads binary itself, takes it for JSON
                wanted["binary_data"] = True
            outputs.append({"name": output.name, "parameters": wanted})
    return msgspec.json.encode(header)


def _check_size(n_bytes: int, limits: HeaderLimits) -> None:
    if n_bytes > limits.max_header_bytes:
        words = f"{n_bytes} bytes beside its tensors' data, limits.header is {limits.max_header_bytes}"
        raise TooLargeError(f"the request has {words}")


# The fields of a message


def _taken_apart(
    message: memoryview, limits: HeaderLimits
) -> Generator[None, None, tuple[bytearray, list[memoryview], list[memoryview | None]]]:
    """*message* without values, the raw contents, and the `contents` of each input.

    Nothing that is kept grows beyond *limits*: an entry of two bytes costs a hundred of memory.
    """
    kept = bytearray()
    raw: list[memoryview] = []
    typed: list[memoryview | None] = []
    counts = dict.fromkeys(_TENSORS, 0)
    for count, (tag, start, value, end) in enumerate(_fields(message), 1):
        part: Buffer = message[start:end]
        if tag in counts:
            counts[tag] += 1
            if counts[tag] > limits.max_tensors:
                words = f"more than {limits.max_tensors} entries in `{_TENSORS[tag]}`"
                raise CodecError(f"{words}, which is the most that `limits.tensors` allows")
        if tag == _RAW_INPUTS:
            raw.append(message[value:end])
            continue
        if tag == _INPUTS:
            entry, contents = _without_contents(message[value:end])
            typed.append(contents)
            if contents is not None:
                part = b"".join((varint(tag), varint(len(entry)), entry))
        _check_size(len(kept) + len(part), limits)
        kept += part
        if count % STEP_FIELDS == 0 or len(part) > SHORT_BYTES:
            yield
    return kept, raw, typed


def _without_contents(entry: memoryview) -> tuple[Buffer, memoryview | None]:
    """An input without its values, and these if it has any. Raises `CodecError` if it has them twice."""
    kept: list[Buffer] = []
    contents: list[memoryview] = []
    for tag, start, value, end in _fields(entry):
        if tag == _CONTENTS:
            contents.append(entry[value:end])
        else:
            kept.append(entry[start:end])
        if len(contents) > 1 or len(kept) > STEP_FIELDS:
            raise CodecError(f"an input has its `contents` more than once, or more than {STEP_FIELDS} other fields")
    return (b"".join(kept), contents[0]) if contents else (entry, None)


def _fields(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Tag, start, start of the value, and end of each field of *data*. Raises `CodecError`."""
    at, size = 0, len(data)
    while at < size:
        start = at
        tag, at = _read_varint(data, at, _TAG_BYTES)
        wire_type = tag & 7
        value = at
        if wire_type == LENGTH:
            length, value = _read_varint(data, at, _TAG_BYTES)
            at = value + length
        elif wire_type == _VARINT:
            _, at = _read_varint(data, at, _NUMBER_BYTES)
        elif wire_type in (_FIXED32, _FIXED64):
            at += 4 if wire_type == _FIXED32 else 8
        else:
            raise CodecError("malformed message: a field has no type of protobuf")
        if at > size or tag < 8:
            raise CodecError("malformed message: a field is cut off")
        yield tag, start, value, at


def check_fields(message: memoryview) -> None:
    """Raise `CodecError` for a *message* with more than `MAX_FIELDS`, before protobuf makes an object of each."""
    for count, _ in enumerate(_fields(message), 1):
        if count > MAX_FIELDS:
            raise CodecError(f"the message has more than {MAX_FIELDS} fields")


def _read_varint(data: memoryview, at: int, max_bytes: int) -> tuple[int, int]:
    """The number at *at*, of at most *max_bytes*, and where it ends. Raises `CodecError`."""
    if at < len(data) and (number := data[at]) < 0x80:
        return number, at + 1
    number = shift = 0
    for byte in data[at : at + max_bytes]:
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise CodecError("malformed message: a number is cut off")


def parsed(kind: Any, text: Buffer) -> Message:
    """The message of *kind* that *text* is. Raises `CodecError`."""
    try:
        return kind.FromString(bytes(text))
    except DecodeError as error:
        raise CodecError(f"malformed message: {error}") from None


# Typed values


def _typed_blob(tensor: Message, contents: memoryview, reserve: Reserve) -> Generator[None, None, memoryview]:
    """The values of *tensor* as raw bytes, from its *contents*. Raises `CodecError`."""
    datatype = DATATYPES.get(tensor.datatype)
    if datatype is None or len(tensor.shape) > MAX_RANK:
        return memoryview(b"")  # the codec says what is wrong
    label = f"{label_of('input', tensor.name)} ({tensor.datatype}, shape {list(tensor.shape)})"
    name = TYPED.get(datatype.name)
    if name is None:
        raise CodecError(f"{label}: `contents` has no field for {datatype.name}; send `raw_input_contents`")
    tag, _, value, end = next(_fields(contents), (0, 0, 0, 0))
    if datatype.kind is Kind.FLOAT and end == len(contents) and tag == NUMBERS[name] << 3 | LENGTH:
        blob = contents[value:]  # packed floats are the raw bytes
    else:
        written = bytearray()
        for piece in _pieces(contents):
            raw = _raw(piece, datatype, name, label)
            if len(contents) > LONG_BYTES:
                reserve(len(raw))
            written += raw
            yield
        blob = memoryview(written)
    n_elements = math.prod(tensor.shape)
    n_given = len(blob) // datatype.item_bytes if datatype.item_bytes else n_elements
    if n_given != n_elements:
        raise CodecError(f"{label}: expected {n_elements} elements in `{name}`, got {n_given}")
    return blob


def _pieces(contents: memoryview) -> Iterator[Buffer]:
    """*contents* in messages of their own: short fields together, and long packed ones in slices."""
    begun = 0
    for tag, start, value, end in _fields(contents):
        if end - begun <= SHORT_BYTES:
            continue
        yield contents[begun:start]
        begun = start
        if tag & 7 == LENGTH and tag >> 3 != NUMBERS["bytes_contents"]:
            yield from _slices(contents[value:end], tag)
            begun = end
    yield contents[begun:]


def _slices(values: memoryview, tag: int) -> Iterator[Buffer]:
    """The packed *values* of the field with *tag* in several such fields."""
    at, is_of_varints = 0, tag >> 3 not in (NUMBERS["fp32_contents"], NUMBERS["fp64_contents"])
    while at < len(values):
        end = min(at + LONG_BYTES, len(values))
        while is_of_varints and end < len(values) and values[end - 1] >= 0x80:  # inside of a number
            end += 1
        yield b"".join((varint(tag), varint(end - at), values[at:end]))
        at = end


def _raw(piece: Buffer, datatype: Datatype, name: str, label: str) -> bytes:
    """The values in *piece*, a message with nothing but the field *name*, as raw bytes. Raises `CodecError`."""
    contents = parsed(_Contents, piece)
    for field, _ in contents.ListFields():
        if field.name != name:
            raise CodecError(f"{label}: expected its values in `{name}`, got `{field.name}`")
    given = getattr(contents, name)
    if datatype.kind is Kind.BYTES:
        return b"".join(part for element in given for part in (len(element).to_bytes(4, "little"), element))
    values = np.array(given[:], _ARRAYS[datatype.parsed])
    if datatype.kind is Kind.INTEGER and len(values):
        for extreme in (values.min(), values.max()):
            if not datatype.lowest <= extreme <= datatype.highest:
                raise CodecError(f"{label}: {extreme} does not fit into {datatype.name}")
    return values.astype(datatype.wire).tobytes()
