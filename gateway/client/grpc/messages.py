"""The messages of `inference.GRPCInferenceService` and of gRPC's health service, made from `inference.proto`.

Classes are made for a pool of descriptors of their own. So no generated code has to fit the runtime of protobuf that is
installed, and nothing clashes with a client library in the same process; tests/grpc/test_messages.py compares them with
tritonclient's. Here, too: fields as bytes, and what messages have in common in the terms of HTTP.
"""

import math
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from gateway.client.grpc.frames import Buffer
from gateway.codec.inference import label_of
from gateway.errors import CodecError, ErrorKind, GatewayError

Message = Any
"""An instance of one of the classes; protobuf's classes have no types that a checker knows."""

_VARINT, _I64, LEN, _I32 = 0, 1, 2, 5
"""The types of fields. Before the value of a LEN stands its length: a message, a text, packed numbers."""

TAG_BYTES, NUMBER_BYTES = 5, 10
"""The longest tag and the longest number that protobuf reads."""

_UNQUOTED = bytes(number for number in range(128) if len(quote(chr(number), safe="")) == 1)

_SCHEMA = Path(__file__).with_name("inference.proto")
_WORD = re.compile(r"[\w.]+|[{}]")  # the other signs say nothing that the order does not
_DECLARED = {"message": "nested_type", "enum": "enum_type", "oneof": "oneof_decl"}
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    """The schema as protobuf knows it; each of its lines is one declaration."""
    outer = descriptor_pb2.DescriptorProto()
    inside: list[Any] = [outer]  # the declarations that are not closed yet
    _, _, schema = _SCHEMA.read_text().partition("package inference;")
    for line in schema.splitlines():
        match _WORD.findall(line.partition("//")[0]):
            case ["message" | "enum" | "oneof" as kind, name, "{", *end]:
                inside.append(getattr(inside[-1], _DECLARED[kind]).add(name=name))
                del inside[len(inside) - len(end) :]
            case ["}"]:
                inside.pop()
            case ["map", key, value, name, number]:  # entries of a key and a value
                entry = inside[-1].nested_type.add(name=f"{name.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                _add_field([entry], key, "key", "1")
                _add_field([entry], value, "value", "2")
                _add_field(inside, entry.name, name, number, is_repeated=True)
            case [*label, type_, name, number]:
                _add_field(inside, type_, name, number, is_repeated=label == ["repeated"])
            case [name, number]:  # of an enum
                inside[-1].value.add(name=name, number=int(number))
    file = descriptor_pb2.FileDescriptorProto(name=_SCHEMA.name, package="inference", syntax="proto3")
    file.message_type.extend(outer.nested_type)
    file.enum_type.extend(outer.enum_type)
    return file


def _add_field(inside: list[Any], type_: str, name: str, number: str, *, is_repeated: bool = False) -> None:
    """Add a field to the innermost declaration *inside*, or to the message that has this if it is a oneof."""
    message = inside[-1]
    field = _Field(name=name, number=int(number), label=_Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL)
    if isinstance(message, descriptor_pb2.OneofDescriptorProto):
        message = inside[-2]
        field.oneof_index = len(message.oneof_decl) - 1
    if type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        field.type_name = type_  # protobuf finds out whether it is a message or an enum
    message.field.append(field)


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())

CLASSES: dict[str, Any] = {
    name: message_factory.GetMessageClass(descriptor)
    for name, descriptor in _POOL.FindFileByName(_SCHEMA.name).message_types_by_name.items()
}
"""The class of every message that is inside no other, by its name."""


def varint(number: int) -> bytes:
    """*number* as protobuf writes it, and HPACK what does not fit into the first byte of a length."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def fields_of(data: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Tag, start, start of the value, and end of each field of *data*. Raises `CodecError`."""
    at, size = 0, len(data)
    try:
        while at < size:
            start, tag = at, data[at]
            at += 1
            if tag >= 0x80:
                tag, at = _read_varint(data, start, TAG_BYTES)
            value, wire_type = at, tag & 7
            if wire_type == LEN:
                length = data[at]
                value += 1
                if length >= 0x80:
                    length, value = _read_varint(data, at, TAG_BYTES)
                at = value + length
            elif wire_type == _VARINT:
                _, at = _read_varint(data, at, NUMBER_BYTES)
            elif wire_type in (_I32, _I64):
                at += 4 if wire_type == _I32 else 8
            else:
                raise CodecError("malformed message: a field has no type of protobuf")
            if at > size or tag < 8:
                raise CodecError("malformed message: a field is cut off")
            yield tag, start, value, at
    except IndexError:
        raise CodecError("malformed message: a number is cut off") from None


def _read_varint(data: memoryview, at: int, max_bytes: int) -> tuple[int, int]:
    """The number at *at*, of at most *max_bytes*, and where it ends. Raises `CodecError`; `IndexError` at the end."""
    number = 0
    for shift in range(0, 7 * max_bytes, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise CodecError("malformed message: a number is cut off")


def parsed(kind: Any, text: Buffer) -> Message:
    """The message of *kind* that *text* is. Raises `CodecError`."""
    try:
        return kind.FromString(bytes(text))
    except DecodeError as error:
        raise CodecError(f"malformed message: {error}") from None


def path_of(target: str, max_bytes: float, *names: str) -> str:
    """*target* with *names*, of a model, its version and a repository. Raises `CodecError` where `{model}` has no name.

    Raises `GatewayError` for more than *max_bytes* (`limits.head`), counted before each byte is quoted in Python.
    """
    data = "".join(names).encode()
    n_bytes = len(data) + 2 * len(data.translate(None, _UNQUOTED))
    if n_bytes > max_bytes:
        words = f"the names in the request take {n_bytes} bytes of a path, limits.head is {max_bytes:d}"
        raise GatewayError(ErrorKind.MALFORMED_REQUEST, words, status=431)
    name, version, repository = [name and f"/{quote(name, safe='')}" for name in names]
    if not name and "{model}" in target:
        raise CodecError("the request has no `model_name` (or `name`)")
    model = f"/models{name}" + (f"/versions{version}" if name and version else "")
    return target.format(model=model, models=model, repository=repository)


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
