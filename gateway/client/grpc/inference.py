"""A `ModelInfer` message as a request of the binary extension.

The message's tensors become the JSON header and the blobs that a client of HTTP would have sent, so that one codec
proves and converts both (docs/protocol.md, section 12). Raw contents are views of the message: protobuf never sees
them. Not here: the answer (`answers`), and how messages come and go.
"""

import math
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from gateway.client.grpc.frames import Buffer
from gateway.client.grpc.messages import CLASSES, Message
from gateway.codec import DATATYPES, MAX_RANK, Datatype, HeaderLimits, Kind, label_of
from gateway.errors import CodecError, TooLargeError

LONG_BYTES = 16 * 1024
"""Values are converted in slices of this size."""

APART_BYTES = 1024
"""An input's entry that is longer is taken apart; of a shorter one protobuf sees the values, too.

So much of numbers that are not packed, each with a tag of its own, is looked at in one step.
"""

STEP_FIELDS = 512
"""How many fields of a message, or elements of BYTES, are looked at in one step."""

STEP_INPUTS = 32
"""How many inputs are turned into JSON in one step."""

MAX_FIELDS = 1024
"""The most fields of a message without tensors."""

TYPED = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Where a message has the values of each datatype; FP16 and BF16 have no place there."""

_Request = CLASSES["ModelInferRequest"]
CONTENTS = CLASSES["InferTensorContents"]
NUMBERS = {field.name: field.number for field in CONTENTS.DESCRIPTOR.fields}
_FLOATS = (NUMBERS["fp32_contents"], NUMBERS["fp64_contents"])
_ARRAYS = {
    "bool_contents": np.dtype(bool),
    "int_contents": np.dtype("i8"),
    "int64_contents": np.dtype("i8"),
    "uint_contents": np.dtype("u8"),
    "uint64_contents": np.dtype("u8"),
    "fp32_contents": np.dtype("f4"),
    "fp64_contents": np.dtype("f8"),
}

_VARINT, _FIXED64, LENGTH, _FIXED32 = 0, 1, 2, 5
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
    rest, raw, long = yield from _taken_apart(message, limits)
    request = _parsed(_Request, rest)
    if not request.model_name:
        raise CodecError("the request has no `model_name`")
    blobs: list[memoryview] = []
    entries: list[dict[str, Any]] = []
    left = list(reversed(raw))
    is_typed = False
    for index, tensor in enumerate(request.inputs):
        parameters = _to_json(tensor, "input")
        entries.append(
            {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype, "parameters": parameters}
        )
        # MLServer's converter leaves `contents` without a value beside the raw ones
        if index in long or (tensor.HasField("contents") and (not raw or tensor.contents.ByteSize())):
            if raw:
                raise CodecError(
                    f"{label_of('input', tensor.name)}: has `contents`, but there are `raw_input_contents` too"
                )
            is_typed = True
            blob = yield from _typed_blob(tensor, long.get(index), reserve)
        elif "shared_memory_region" in parameters:
            continue
        elif raw:
            if not left:
                raise _wrong_count(request, raw)
            blob = left.pop()
        else:
            blob = _of_nothing(tensor)
        parameters["binary_data_size"] = len(blob)
        blobs.append(blob)
        if index % STEP_INPUTS == STEP_INPUTS - 1:
            yield
    if left:
        raise _wrong_count(request, raw)
    of_request = _to_json(request)
    header = _header(request, of_request, entries)
    if len(header) > limits.max_header_bytes:
        raise _too_large(len(header), limits)
    return InferMessage(request.id, infer_path(request), header, blobs, is_typed, bool(of_request.get("sequence_id")))


def infer_path(request: Message) -> str:
    """The path of the inference that *request* asks for."""
    version = f"/versions/{quote(request.model_version, safe='')}" if request.model_version else ""
    return f"/v2/models/{quote(request.model_name, safe='')}{version}/infer"


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
            of_output = _to_json(output, "output")
            outputs.append({"name": output.name, "parameters": of_output} if of_output else {"name": output.name})
    return msgspec.json.encode(header)


def _taken_apart(
    message: memoryview, limits: HeaderLimits
) -> Generator[None, None, tuple[bytearray, list[memoryview], dict[int, memoryview]]]:
    """*message* without its long values, the raw contents, and the `contents` of long inputs by their index.

    Nothing that is kept grows beyond *limits*: an entry of two bytes costs a hundred of memory.
    """
    kept = bytearray()
    raw: list[memoryview] = []
    long: dict[int, memoryview] = {}
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
                part = b""
            elif tag == _INPUTS and len(part) > APART_BYTES:
                entry, contents = _without_contents(message[value:end])
                part = b"".join((varint(tag), varint(len(entry)), entry))
                if contents is not None:
                    long[counts[_INPUTS] - 1] = contents
        n_bytes = len(kept) + len(part)
        if n_bytes > limits.max_header_bytes + counts[_INPUTS] * APART_BYTES:
            raise _too_large(n_bytes, limits)
        kept += part
        if count % STEP_FIELDS == 0:
            yield
    return kept, raw, long


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


def varint(number: int) -> bytes:
    """*number* as protobuf writes it."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _parsed(kind: Any, text: Buffer | bytearray) -> Message:
    try:
        return kind.FromString(bytes(text))
    except DecodeError as error:
        raise CodecError(f"malformed message: {error}") from None


def _too_large(n_bytes: int, limits: HeaderLimits) -> TooLargeError:
    return TooLargeError(
        f"the request has {n_bytes} bytes beside its tensors' data, limits.header is {limits.max_header_bytes}"
    )


def _wrong_count(request: Message, raw: list[memoryview]) -> CodecError:
    expected = sum("shared_memory_region" not in tensor.parameters for tensor in request.inputs)
    return CodecError(f"`raw_input_contents` has {len(raw)} entries, but {expected} inputs have their values there")


def _of_nothing(tensor: Message) -> memoryview:
    """The values of an input that brings none. Raises `CodecError` unless it has no elements."""
    if 0 not in tensor.shape:
        raise CodecError(
            f"{label_of('input', tensor.name)}: has no values, neither `contents` nor `raw_input_contents`"
        )
    return memoryview(b"")


def _to_json(said: Message, section: str = "") -> dict[str, Any]:
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
        found[name] = value
    return found


def _typed_blob(tensor: Message, long: memoryview | None, reserve: Reserve) -> Generator[None, None, memoryview]:
    """The values of *tensor* as raw bytes, from its `contents`, or from *long* of these. Raises `CodecError`."""
    datatype = DATATYPES.get(tensor.datatype)
    if datatype is None or len(tensor.shape) > MAX_RANK:
        return memoryview(b"")  # the codec says what is wrong
    label = f"{label_of('input', tensor.name)} ({tensor.datatype}, shape {list(tensor.shape)})"
    name = TYPED.get(datatype.name)
    if name is None:
        raise CodecError(f"{label}: `contents` has no field for {datatype.name}; send `raw_input_contents`")
    contents = memoryview(tensor.contents.SerializeToString()) if long is None else long
    runs = list(islice(_runs(contents), 2))
    if datatype.kind is Kind.FLOAT and len(runs) == 1 and runs[0][:2] == (NUMBERS[name], True):
        blob = runs[0][2]  # packed floats are the raw bytes
    else:
        blob = yield from _converted(contents, datatype, name, label, reserve)
    n_elements = math.prod(tensor.shape)
    n_given = len(blob) // datatype.item_bytes if datatype.item_bytes else None
    if n_given is not None and n_given != n_elements:
        raise CodecError(f"{label}: expected {n_elements} elements in `{name}`, got {n_given}")
    return blob


def _converted(
    contents: memoryview, datatype: Datatype, name: str, label: str, reserve: Reserve
) -> Generator[None, None, memoryview]:
    """The values in the field *name* of *contents* as raw bytes. Raises `CodecError`."""
    written = bytearray()
    for number, is_packed, values in _runs(contents):
        if number != NUMBERS[name]:
            got = next((field for field, known in NUMBERS.items() if known == number), f"field {number}")
            raise CodecError(f"{label}: expected its values in `{name}`, got `{got}`")
        for piece in _pieces(values, number, is_packed=is_packed):
            raw = _raw(piece, datatype, name, label)
            if len(contents) > LONG_BYTES:
                reserve(len(raw))
            written += raw
            yield
        yield
    return memoryview(written)


def _runs(contents: memoryview) -> Iterator[tuple[int, bool, memoryview]]:
    """Of *contents* the number of each field, whether it is packed, and its bytes; equal unpacked ones together."""
    begun = at = 0
    begun_number = 0
    for tag, start, value, end in _fields(contents):
        number = tag >> 3
        is_packed = tag & 7 == LENGTH and number != NUMBERS["bytes_contents"]
        if begun_number and (is_packed or number != begun_number or end - begun > APART_BYTES):
            yield begun_number, False, contents[begun:at]
            begun_number = 0
        if is_packed:
            yield number, True, contents[value:end]
        elif not begun_number:
            begun, begun_number = start, number
        at = end
    if begun_number:
        yield begun_number, False, contents[begun:at]


def _pieces(values: memoryview, number: int, *, is_packed: bool) -> Iterator[Buffer]:
    """*values* of the field *number* in pieces, each of which is a message that protobuf reads."""
    if not is_packed:
        yield values
        return
    at = 0
    while at < len(values):
        end = min(at + LONG_BYTES, len(values))
        while number not in _FLOATS and end < len(values) and values[end - 1] >= 0x80:  # inside of a number
            end += 1
        piece = values[at:end]
        yield b"".join((varint(number << 3 | LENGTH), varint(len(piece)), piece))
        at = end


def _raw(piece: Buffer, datatype: Datatype, name: str, label: str) -> bytes:
    """The values in *piece*, a message with nothing but the field *name*, as raw bytes. Raises `CodecError`."""
    given = getattr(_parsed(CONTENTS, piece), name)
    if datatype.kind is Kind.BYTES:
        return b"".join(part for element in given for part in (len(element).to_bytes(4, "little"), element))
    values = np.array(given[:], _ARRAYS[name])
    if name in ("int_contents", "uint_contents") and len(values):
        for extreme in (values.min(), values.max()):
            if not datatype.lowest <= extreme <= datatype.highest:
                raise CodecError(f"{label}: {extreme} does not fit into {datatype.name}")
    return values.astype(datatype.wire).tobytes()
