"""The schema, beside that of tritonclient, which is generated from Triton's own."""

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway.client.grpc.messages import CLASSES

OF_GRPC = ("HealthCheckRequest", "HealthCheckResponse")  # not Triton's


def theirs(name: str) -> Descriptor:
    found: Any = getattr(service_pb2, name, None) or getattr(model_config_pb2, name)
    descriptor: Descriptor = found.DESCRIPTOR
    return descriptor


def shape_of(field: FieldDescriptor) -> tuple[object, ...]:
    of_message, of_enum, oneof = field.message_type, field.enum_type, field.containing_oneof
    return (
        field.number,
        field.type,
        field.is_repeated,
        oneof and oneof.name,
        of_message and of_message.full_name,
        of_enum and of_enum.full_name,
    )


def all_of(descriptor: Descriptor, found: dict[str, object]) -> dict[str, object]:
    """*found* and what stands in *descriptor* and in the messages and enums that it uses, by their names."""
    if descriptor.full_name not in found:
        found[descriptor.full_name] = {field.name: shape_of(field) for field in descriptor.fields}
        for field in descriptor.fields:
            if field.message_type is not None:
                all_of(field.message_type, found)
            if field.enum_type is not None:
                enum: EnumDescriptor = field.enum_type
                found[enum.full_name] = {value.name: value.number for value in enum.values}
    return found


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - set(OF_GRPC)))
def test_names_numbers_and_types_are_those_of_triton(name: str) -> None:
    assert all_of(CLASSES[name].DESCRIPTOR, {}) == all_of(theirs(name), {})
