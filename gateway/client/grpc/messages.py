"""The messages of `inference.GRPCInferenceService` and of gRPC's health service, made from `inference.proto`.

Classes are made for a pool of descriptors of their own. So no generated code has to fit the runtime of protobuf that is
installed, and nothing clashes with a client library in the same process; tests/grpc/test_messages.py compares them with
tritonclient's. Not here: what is done with messages.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message = Any
"""An instance of one of the classes; protobuf's classes have no types that a checker knows."""

_SCHEMA = Path(__file__).with_name("inference.proto")
_TOKEN = re.compile(r"//.*|([\w.]+|[{}<>])")  # the other signs say nothing that the order does not
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    """The schema as protobuf knows it."""
    file = descriptor_pb2.FileDescriptorProto(name=_SCHEMA.name, package="inference", syntax="proto3")
    _, _, schema = _SCHEMA.read_text().partition(f"package {file.package};")
    tokens = iter([token for token in _TOKEN.findall(schema) if token])
    for kind in tokens:
        if kind == "enum":
            _fill_enum(file.enum_type.add(name=next(tokens)), tokens)
        else:
            _fill(file.message_type.add(name=next(tokens)), tokens)
    return file


def _fill_enum(enum: descriptor_pb2.EnumDescriptorProto, tokens: Iterator[str]) -> None:
    next(tokens)  # {
    while (name := next(tokens)) != "}":
        enum.value.add(name=name, number=int(next(tokens)))


def _fill(message: descriptor_pb2.DescriptorProto, tokens: Iterator[str]) -> None:
    """Add to *message* what stands between its braces."""
    next(tokens)  # {
    while (kind := next(tokens)) != "}":
        if kind == "message":
            _fill(message.nested_type.add(name=next(tokens)), tokens)
        elif kind == "enum":
            _fill_enum(message.enum_type.add(name=next(tokens)), tokens)
        elif kind == "oneof":
            message.oneof_decl.add(name=next(tokens))
            next(tokens)  # {
            while (type_ := next(tokens)) != "}":
                _add_field(message, type_, tokens).oneof_index = len(message.oneof_decl) - 1
        elif kind == "map":
            _add_map(message, tokens)
        elif kind == "repeated":
            _add_field(message, next(tokens), tokens).label = _Field.LABEL_REPEATED
        else:
            _add_field(message, kind, tokens)


def _add_field(message: descriptor_pb2.DescriptorProto, type_: str, tokens: Iterator[str]) -> _Field:
    """Add the field of *type_* whose name and number come next."""
    field: _Field = message.field.add(name=next(tokens), number=int(next(tokens)), label=_Field.LABEL_OPTIONAL)
    if type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        field.type_name = type_  # protobuf finds out whether it is a message or an enum
    return field


def _add_map(message: descriptor_pb2.DescriptorProto, tokens: Iterator[str]) -> None:
    """Add the map whose types, name and number come next: entries of a key and a value."""
    next(tokens)  # <
    key, value = next(tokens), next(tokens)
    next(tokens)  # >
    entry = message.nested_type.add()
    entry.options.map_entry = True
    _add_field(entry, key, iter(("key", "1")))
    _add_field(entry, value, iter(("value", "2")))
    field = _add_field(message, "", tokens)
    entry.name = field.type_name = f"{field.name.title().replace('_', '')}Entry"
    field.label = _Field.LABEL_REPEATED


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    file = pool.AddSerializedFile(_file().SerializeToString())
    descriptors = (file or pool.FindFileByName(_SCHEMA.name)).message_types_by_name
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in descriptors.items()}


CLASSES = _classes()
"""The class of every message that is inside no other, by its name."""
