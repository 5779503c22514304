"""Inferences as messages of gRPC, and as the binary extension has them: JSON and blobs.

A request's tensors become the JSON header and the blobs that a client of HTTP would have sent, so that one codec
proves and converts both (docs/protocol.md, section 12); its reply becomes a `ModelInferResponse`. Raw contents are
views of the message: protobuf never sees them, nor long typed ones as a whole; the buffers of a reply are never joined.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from gateway.client.grpc.frames import Buffer, Buffers
from gateway.client.grpc.messages import CLASSES, LEN, NUMBER_BYTES, Message, fields_of, parameters_of, parsed, varint
from gateway.codec.inference import HeaderLimits, label_of
from gateway.codec.tensors.datatypes import DATATYPES, Datatype, Kind
from gateway.codec.v2.messages import MAX_RANK
from gateway.errors import CodecError, TooLargeError

LONG_BYTES, SHORT_BYTES = 16 * 1024, 1024
"""How much of packed numbers is converted in one step, and of values that each have a tag of their own."""

STEP_FIELDS, STEP_INPUTS, STEP_ELEMENTS = 512, 32, 512
"""How many fields, inputs, and elements of BYTES in a reply are worked on in one step."""

_Request, _Response = CLASSES["ModelInferRequest"], CLASSES["ModelInferResponse"]
_Contents = CLASSES["InferTensorContents"]
_NUMBERS = {field.name: field.number for field in _Contents.DESCRIPTOR.fields}
_TYPED = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{name: f"{name.lower()}_contents" for name in ("BOOL", "INT64", "UINT64", "FP32", "FP64", "BYTES")},
}
"""Which of these fields has the values of each datatype; FP16 and BF16 have no place there."""

_ARRAYS = {"d": np.dtype("f8"), "i": np.dtype("i8"), "u": np.dtype("u8")}  # by `Datatype.parsed`

_ID, _INPUTS, _OUTPUTS, _RAW_INPUTS, _CONTENTS = (n << 3 | LEN for n in (3, 5, 6, 7, 5))  # the last: of an input
_TENSORS = {
    tag: f"entries in `{name}`, which is the most that `limits.tensors` allows"
    for tag, name in ((_INPUTS, "inputs"), (_OUTPUTS, "outputs"), (_RAW_INPUTS, "raw_input_contents"))
}
_VALUES = {_CONTENTS: "`contents` in an input"}
_OUTPUT_TAG, _CONTENTS_TAG, _RAW_OUTPUT_TAG = b"\x2a", b"\x2a", b"\x32"  # fields of the answer, and of its outputs
_INT64, _UINT64 = range(-(2**63), 2**63), range(2**64)
_PARAMETERS = {bool: "bool_param", int: "int64_param", float: "double_param"}

Reserve = Callable[[int], None]
"""Asks for so many bytes of memory; may raise to refuse the request."""


class InferMessage(NamedTuple):
    """A `ModelInfer` request as the binary extension has it."""

    names: tuple[str, str, str]
    """Of the model, its version and no repository, as `path_of` takes them."""
    header: bytes
    """The JSON."""
    blobs: list[memoryview]
    """The values of each input that is not in shared memory."""
    is_typed: bool
    """Whether the values came in fields of their datatype, so that the answer's are to go there too."""
    is_of_sequence: bool
    """Whether the server keeps a state from one request to the next (`sequence_id`), so that their order counts."""


# Requests


def read_request(message: memoryview, limits: HeaderLimits, reserve: Reserve) -> Generator[None, None, InferMessage]:
    """What *message* asks for; yields after each step of work.

    *reserve* is asked for the memory of values that are converted. Raises `CodecError`, and of these `TooLargeError`
    for more beside the values than *limits* allow.
    """
    rest, found = yield from _split(message, _TENSORS, limits.max_tensors, limits)
    request = parsed(_Request, rest)
    n_bytes, n_raw, is_typed = len(rest), 0, False
    raw = found[_RAW_INPUTS]
    blobs: list[memoryview] = []
    inputs: list[dict[str, Any]] = []
    for index, entry in enumerate(found[_INPUTS], 1):
        rest, values = yield from _split(entry, _VALUES, 1, limits, n_bytes)
        n_bytes += len(rest)
        tensor = parsed(_Request.InferInputTensor, rest)
        parameters, shape = parameters_of(tensor, "input"), list(tensor.shape)
        inputs.append({"name": tensor.name, "shape": shape, "datatype": tensor.datatype, "parameters": parameters})
        contents = values[_CONTENTS][0] if values[_CONTENTS] else None
        # MLServer's converter leaves `contents` without a value beside the raw ones
        if contents is not None and (contents or not raw):
            if raw:
                words = "has `contents`, but there are `raw_input_contents` too"
                raise CodecError(f"{label_of('input', tensor.name)}: {words}")
            is_typed = True
            blob = yield from _typed_blob(tensor, contents, reserve)
        elif "shared_memory_region" in parameters:
            continue
        elif raw or 0 in shape:
            blob = raw[n_raw] if n_raw < len(raw) else memoryview(b"")
            n_raw += 1
        else:
            words = "has no values, neither `contents` nor `raw_input_contents`"
            raise CodecError(f"{label_of('input', tensor.name)}: {words}")
        parameters["binary_data_size"] = len(blob)
        blobs.append(blob)
        if index % STEP_INPUTS == 0:
            yield
    if raw and n_raw != len(raw):
        raise CodecError(f"`raw_input_contents` has {len(raw)} entries, but {n_raw} inputs have their values there")
    _check_size(n_bytes + sum(map(len, found[_OUTPUTS])), limits)
    parameters = parameters_of(request)
    is_of_sequence = bool(parameters.get("sequence_id"))
    outputs = [parsed(_Request.InferRequestedOutputTensor, entry) for entry in found[_OUTPUTS]]
    header = _header(request, parameters, inputs, outputs)
    _check_size(len(header), limits)
    return InferMessage((request.model_name, request.model_version, ""), header, blobs, is_typed, is_of_sequence)


def find_id(message: memoryview, limits: HeaderLimits) -> str:
    """The `id` in *message*, which may be wrong elsewhere; empty if there is none, or it cannot be read."""
    with suppress(CodecError, UnicodeDecodeError):
        for tag, _, value, end in islice(fields_of(message), STEP_FIELDS):
            if tag == _ID and end - value <= limits.max_header_bytes:
                return str(message[value:end], "utf-8")
    return ""


def _split(
    data: memoryview, tags: dict[int, str], most: int, limits: HeaderLimits, n_before: int = 0
) -> Generator[None, None, tuple[bytes, dict[int, list[memoryview]]]]:
    """*data* without the fields with *tags*, and the values of these: at most *most* of each.

    Nothing that is kept grows beyond *limits*, with the *n_before* bytes before it: an entry of two bytes costs a
    hundred of memory.
    """
    values: defaultdict[int, list[memoryview]] = defaultdict(list)
    kept: list[memoryview] = []
    begun = n_taken = 0  # where what is kept goes on, and how much is not kept
    for count, (tag, start, value, end) in enumerate(fields_of(data), 1):
        if tag in tags:
            if len(values[tag]) == most:
                raise CodecError(f"more than {most} {tags[tag]}")
            values[tag].append(data[value:end])
            kept.append(data[begun:start])
            n_taken += end - start
            begun = end
        if count % STEP_FIELDS == 0:
            _check_size(n_before + end - n_taken, limits)
            yield
    _check_size(n_before + len(data) - n_taken, limits)
    kept.append(data[begun:])
    return b"".join(kept), values


def _header(
    request: Message, parameters: dict[str, Any], inputs: list[dict[str, Any]], outputs: list[Message]
) -> bytes:
    """The JSON of *request*, with its *parameters*, *inputs* and *outputs*; it asks for all outputs in binary."""
    # asks this front for `triton_final_response`; over HTTP, Triton refuses names like this one
    parameters.pop("triton_enable_empty_final_response", None)
    parameters["binary_data_output"] = True
    header: dict[str, Any] = {"parameters": parameters, "inputs": inputs}
    if request.id:
        header["id"] = request.id
    if outputs:
        header["outputs"] = []
    for output in outputs:
        wanted = parameters_of(output, "output")
        if "shared_memory_region" not in wanted:  # else Triton, which reads binary itself, takes it for JSON
            wanted["binary_data"] = True
        header["outputs"].append({"name": output.name, "parameters": wanted})
    return msgspec.json.encode(header)


def _check_size(n_bytes: int, limits: HeaderLimits) -> None:
    if n_bytes > limits.max_header_bytes:
        words = f"{n_bytes} bytes beside its tensors' data, limits.header is {limits.max_header_bytes}"
        raise TooLargeError(f"the request has {words}")


# Typed values of requests


def _typed_blob(tensor: Message, contents: memoryview, reserve: Reserve) -> Generator[None, None, memoryview]:
    """The values of *tensor* as raw bytes, from its *contents*. Raises `CodecError`."""
    datatype = DATATYPES.get(tensor.datatype)
    if datatype is None or len(tensor.shape) > MAX_RANK:
        return memoryview(b"")  # the codec says what is wrong
    label = f"{label_of('input', tensor.name)} ({tensor.datatype}, shape {list(tensor.shape)})"
    name = _TYPED.get(datatype.name)
    if name is None:
        raise CodecError(f"{label}: `contents` has no field for {datatype.name}; send `raw_input_contents`")
    tag, _, value, end = next(fields_of(contents), (0, 0, 0, 0))
    if datatype.kind is Kind.FLOAT and end == len(contents) and tag == _NUMBERS[name] << 3 | LEN:
        blob = contents[value:]  # packed floats are the raw bytes
    else:
        written = bytearray()
        for piece in _pieces(contents):
            raw = _raw(piece, datatype, name, label)
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
    """*contents* in messages of their own: short fields together, and long packed ones in several fields."""
    begun = 0
    for tag, start, value, end in fields_of(contents):
        if end - begun <= SHORT_BYTES:
            continue
        yield contents[begun:start]
        begun = start
        if tag & 7 != LEN or tag >> 3 == _NUMBERS["bytes_contents"]:
            continue
        is_of_varints = tag >> 3 not in (_NUMBERS["fp32_contents"], _NUMBERS["fp64_contents"])
        at = value
        while at < end:
            stop = min(at + LONG_BYTES, end)
            latest = min(stop + NUMBER_BYTES, end)
            while is_of_varints and stop < latest and contents[stop - 1] >= 0x80:  # inside of a number
                stop += 1
            yield b"".join((varint(tag), varint(stop - at), contents[at:stop]))
            at = stop
        begun = end
    yield contents[begun:]


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


# Replies


class _Tensor(msgspec.Struct):
    name: str
    datatype: str = ""
    shape: list[Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]] = []
    parameters: dict[str, Any] | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Answer(msgspec.Struct):
    outputs: list[_Tensor]
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
    is_typed = is_typed and all(each.datatype in _TYPED or each.datatype not in DATATYPES for each in answer.outputs)
    name, version, id_ = _text(answer.model_name), _text(answer.model_version), _text(answer.id)
    response = _Response(model_name=name, model_version=version, id=id_)
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
    return [response.SerializeToString(), *parts]


def _field(tag: bytes, value: Sequence[Buffer]) -> list[Buffer]:
    """The field with *tag* and *value*, which has a length."""
    return [tag + varint(sum(map(len, value))), *value]


def _text(value: Any) -> str:
    """A member of an answer as text; servers have numbers there, too."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _add_parameters(target: Any, parameters: dict[str, Any] | None) -> None:
    """Write *parameters* of JSON into the map *target*; arrays and objects as their text, null not at all."""
    for name, value in (parameters or {}).items():
        kind = _PARAMETERS.get(type(value), "string_param")
        if kind == "int64_param" and value not in _INT64:
            kind = "uint64_param" if value in _UINT64 else "string_param"
        if value is not None:
            setattr(target[name], kind, _text(value) if kind == "string_param" else value)


def _contents(output: _Tensor, values: list[Buffer]) -> Generator[None, None, list[Buffer]]:
    """The raw *values* of *output* as the fields of `InferTensorContents`. Raises `CodecError`."""
    row, label = DATATYPES.get(output.datatype), f"output {output.name!r}"
    if row is None:
        raise CodecError(f"{label}: there is no datatype {output.datatype[:64]!r}")
    name = _TYPED[row.name]
    whole = memoryview(values[0] if len(values) == 1 else b"".join(values))
    if row.item_bytes and len(whole) % row.item_bytes:
        raise CodecError(f"{label}: {len(whole)} bytes are no whole number of elements of {row.name}")
    if row.kind is Kind.FLOAT:  # packed, they are the same bytes
        return _field(varint(_NUMBERS[name] << 3 | LEN), values) if values else []
    written: list[Buffer] = []
    for listed in _listed(whole, row, label):
        written.append(_Contents(**{name: listed}).SerializeToString())
        yield
    return written


def _listed(values: memoryview, row: Datatype, label: str) -> Generator[list[Any], None, None]:
    """The elements of *values* in lists, each for one step. Raises `CodecError`."""
    if row.kind is not Kind.BYTES:
        for start in range(0, len(values), LONG_BYTES):
            array = row.view(values[start : start + LONG_BYTES])
            yield (array != 0 if row.kind is Kind.BOOL else array).tolist()
        return
    elements: list[bytes] = []
    at = 0
    while at < len(values):  # each with its length before it
        start = at + 4
        at = start + int.from_bytes(values[at:start], "little")
        if at > len(values):
            raise CodecError(f"{label}: the last element is cut off")
        elements.append(bytes(values[start:at]))
        if len(elements) == STEP_ELEMENTS or at == len(values):
            yield elements
            elements = []
