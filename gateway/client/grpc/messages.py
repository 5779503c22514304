"""The messages of `inference.GRPCInferenceService` and of gRPC's health service, made from `inference.proto`.

Classes are made for a pool of descriptors of their own. So no generated code has to fit the runtime of protobuf that is
installed, and nothing clashes with a client library in the same process; tests/grpc/test_messages.py compares them with
tritonclient's. Not here: what is done with messages.
"""

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message = Any
"""An instance of one of the classes; protobuf's classes have no types that a checker knows."""

_SCHEMA = Path(__file__).with_name("inference.proto")
_WORD = re.compile(r"[\w.]+|[{}]")  # the other signs say nothing that the order does not
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    """The schema as protobuf knows it; each of its lines is one declaration."""
    file = descriptor_pb2.FileDescriptorProto(name=_SCHEMA.name, package="inference", syntax="proto3")
    inside: list[Any] = [file]  # the declarations that are not closed yet
    _, _, schema = _SCHEMA.read_text().partition(f"package {file.package};")
    for line in schema.splitlines():
        match _WORD.findall(line.partition("//")[0]):
            case ["message", name, "{", *end]:
                messages = file.message_type if inside[-1] is file else inside[-1].nested_type
                inside.append(messages.add(name=name))
                del inside[len(inside) - len(end) :]
            case ["enum", name, "{"]:
                inside.append(inside[-1].enum_type.add(name=name))
            case ["oneof", name, "{"]:
                inside.append(inside[-1].oneof_decl.add(name=name))
            case ["}"]:
                inside.pop()
            case ["map", key, value, name, number]:  # entries of a key and a value
                entry = inside[-1].nested_type.add(name=f"{name.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                _add_field(entry, key, "key", 1)
                _add_field(entry, value, "value", 2)
                _add_field(inside[-1], entry.name, name, number).label = _Field.LABEL_REPEATED
            case ["repeated", type_, name, number]:
                _add_field(inside[-1], type_, name, number).label = _Field.LABEL_REPEATED
            case [type_, name, number] if isinstance(inside[-1], descriptor_pb2.OneofDescriptorProto):
                _add_field(inside[-2], type_, name, number).oneof_index = len(inside[-2].oneof_decl) - 1
            case [type_, name, number]:
                _add_field(inside[-1], type_, name, number)
            case [name, number]:  # of an enum
                inside[-1].value.add(name=name, number=int(number))
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, type_: str, name: str, number: int | str) -> _Field:
    """Add a field to *message*."""
    field: _Field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        field.type_name = type_  # protobuf finds out whether it is a message or an enum
    return field


_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_file().SerializeToString())

CLASSES: dict[str, Any] = {
    name: message_factory.GetMessageClass(descriptor)
    for name, descriptor in _POOL.FindFileByName(_SCHEMA.name).message_types_by_name.items()
}
"""The class of every message that is inside no other, by its name."""

LENGTH = 2
"""The type of a field whose length stands before its value: a message, a text, packed numbers."""

NUMBERS = {field.name: field.number for field in CLASSES["InferTensorContents"].DESCRIPTOR.fields}
"""The fields that have the values of tensors."""

TYPED = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    **{name: f"{name.lower()}_contents" for name in ("BOOL", "INT64", "UINT64", "FP32", "FP64", "BYTES")},
}
"""Which of them has the values of each datatype; FP16 and BF16 have no place there."""


def varint(number: int) -> bytes:
    """*number* as protobuf writes it."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)
