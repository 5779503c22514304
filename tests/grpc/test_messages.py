"""The schema, beside that of tritonclient, which is generated from Triton's own."""

from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway.client.grpc.messages import CLASSES

NESTED = {
    "TensorMetadata": service_pb2.ModelMetadataResponse.TensorMetadata,
    "InferInputTensor": service_pb2.ModelInferRequest.InferInputTensor,
    "InferRequestedOutputTensor": service_pb2.ModelInferRequest.InferRequestedOutputTensor,
    "InferOutputTensor": service_pb2.ModelInferResponse.InferOutputTensor,
    "ModelIndex": service_pb2.RepositoryIndexResponse.ModelIndex,
}
OF_GRPC = ("HealthCheckRequest", "HealthCheckResponse")  # not Triton's
PARTS = ("ModelConfig", "ModelInput", "ModelOutput", "ModelStatistics")
"""Of these the gateway knows what clients read most."""


def theirs(name: str) -> Descriptor:
    found: Any = NESTED.get(name) or getattr(service_pb2, name, None) or getattr(model_config_pb2, name)
    descriptor: Descriptor = found.DESCRIPTOR
    return descriptor


def shape_of(field: FieldDescriptor) -> tuple[object, ...]:
    return field.number, field.type, field.is_repeated, field.containing_oneof is not None


@pytest.mark.parametrize("name", sorted(CLASSES.keys() - set(OF_GRPC)))
def test_names_numbers_and_types_are_those_of_triton(name: str) -> None:
    own = {field.name: shape_of(field) for field in CLASSES[name].DESCRIPTOR.fields}
    known = {field.name: shape_of(field) for field in theirs(name).fields}
    assert own.items() <= known.items()
    if name not in PARTS:
        assert own == known
