"""The messages of `inference.GRPCInferenceService` and of gRPC's health service, made from a table.

Classes are made for a pool of descriptors of their own. So no generated code has to fit the runtime of protobuf that is
installed, and nothing clashes with a client library in the same process. The names and numbers are those of Triton,
which the Open Inference Protocol shares; tests/grpc/test_messages.py compares them with tritonclient's. Not here: what
is done with messages.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Message = Any
"""An instance of one of the classes; protobuf's classes have no types that a checker knows."""

_SCHEMA = """
ServerLiveRequest
ServerLiveResponse
    bool live = 1
ServerReadyRequest
ServerReadyResponse
    bool ready = 1
ModelReadyRequest
    string name = 1
    string version = 2
ModelReadyResponse
    bool ready = 1
ServerMetadataRequest
ServerMetadataResponse
    string name = 1
    string version = 2
    repeated string extensions = 3
ModelMetadataRequest
    string name = 1
    string version = 2
TensorMetadata
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
ModelMetadataResponse
    string name = 1
    repeated string versions = 2
    string platform = 3
    repeated TensorMetadata inputs = 4
    repeated TensorMetadata outputs = 5
InferParameter
    choice bool bool_param = 1
    choice int64 int64_param = 2
    choice string string_param = 3
    choice double double_param = 4
    choice uint64 uint64_param = 5
InferTensorContents
    repeated bool bool_contents = 1
    repeated int32 int_contents = 2
    repeated int64 int64_contents = 3
    repeated uint32 uint_contents = 4
    repeated uint64 uint64_contents = 5
    repeated float fp32_contents = 6
    repeated double fp64_contents = 7
    repeated bytes bytes_contents = 8
InferInputTensor
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
    map InferParameter parameters = 4
    InferTensorContents contents = 5
InferRequestedOutputTensor
    string name = 1
    map InferParameter parameters = 2
ModelInferRequest
    string model_name = 1
    string model_version = 2
    string id = 3
    map InferParameter parameters = 4
    repeated InferInputTensor inputs = 5
    repeated InferRequestedOutputTensor outputs = 6
    repeated bytes raw_input_contents = 7
InferOutputTensor
    string name = 1
    string datatype = 2
    repeated int64 shape = 3
    map InferParameter parameters = 4
    InferTensorContents contents = 5
ModelInferResponse
    string model_name = 1
    string model_version = 2
    string id = 3
    map InferParameter parameters = 4
    repeated InferOutputTensor outputs = 5
    repeated bytes raw_output_contents = 6
ModelStreamInferResponse
    string error_message = 1
    ModelInferResponse infer_response = 2
ModelConfigRequest
    string name = 1
    string version = 2
ModelInput
    string name = 1
    DataType data_type = 2
    repeated int64 dims = 4
ModelOutput
    string name = 1
    DataType data_type = 2
    repeated int64 dims = 3
    string label_filename = 4
ModelParameter
    string string_value = 1
ModelConfig
    string name = 1
    string platform = 2
    string backend = 17
    int32 max_batch_size = 4
    repeated ModelInput input = 5
    repeated ModelOutput output = 6
    string default_model_filename = 8
    map ModelParameter parameters = 14
ModelConfigResponse
    ModelConfig config = 1
ModelStatisticsRequest
    string name = 1
    string version = 2
StatisticDuration
    uint64 count = 1
    uint64 ns = 2
InferStatistics
    StatisticDuration success = 1
    StatisticDuration fail = 2
    StatisticDuration queue = 3
    StatisticDuration compute_input = 4
    StatisticDuration compute_infer = 5
    StatisticDuration compute_output = 6
    StatisticDuration cache_hit = 7
    StatisticDuration cache_miss = 8
InferBatchStatistics
    uint64 batch_size = 1
    StatisticDuration compute_input = 2
    StatisticDuration compute_infer = 3
    StatisticDuration compute_output = 4
ModelStatistics
    string name = 1
    string version = 2
    uint64 last_inference = 3
    uint64 inference_count = 4
    uint64 execution_count = 5
    InferStatistics inference_stats = 6
    repeated InferBatchStatistics batch_stats = 7
ModelStatisticsResponse
    repeated ModelStatistics model_stats = 1
ModelRepositoryParameter
    choice bool bool_param = 1
    choice int64 int64_param = 2
    choice string string_param = 3
    choice bytes bytes_param = 4
RepositoryIndexRequest
    string repository_name = 1
    bool ready = 2
ModelIndex
    string name = 1
    string version = 2
    string state = 3
    string reason = 4
RepositoryIndexResponse
    repeated ModelIndex models = 1
RepositoryModelLoadRequest
    string repository_name = 1
    string model_name = 2
    map ModelRepositoryParameter parameters = 3
RepositoryModelLoadResponse
RepositoryModelUnloadRequest
    string repository_name = 1
    string model_name = 2
    map ModelRepositoryParameter parameters = 3
RepositoryModelUnloadResponse
HealthCheckRequest
    string service = 1
HealthCheckResponse
    int32 status = 1
"""
"""Messages, and below each its fields; a `map` is one from strings, a `choice` is a member of the message's oneof."""

_DATA_TYPES = (
    *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8"),
    *("TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
)
"""Of a model's configuration, in the order of their numbers."""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name: getattr(_Field, f"TYPE_{name.upper()}")
    for name in ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")
}
_PACKAGE = "inference"


def _file() -> descriptor_pb2.FileDescriptorProto:
    """The schema as protobuf knows it."""
    file = descriptor_pb2.FileDescriptorProto(name="inference.proto", package=_PACKAGE, syntax="proto3")
    data_types = file.enum_type.add(name="DataType")
    for number, name in enumerate(_DATA_TYPES):
        data_types.value.add(name=name, number=number)
    message = None
    for line in _SCHEMA.split("\n"):
        words = line.split()
        if not words:
            continue
        if message is None or line[0] != " ":
            message = file.message_type.add(name=words[0])
        else:
            _add_field(message, words)
    return file


def _add_field(message: descriptor_pb2.DescriptorProto, words: list[str]) -> None:
    """Add the field that *words* describe: what it is if it is no single value, type, name, `=`, number."""
    *(kind, *_), type_, name, _, number = ("", *words) if len(words) == 4 else words
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    _set_type(field, type_)
    if kind in ("repeated", "map"):
        field.label = _Field.LABEL_REPEATED
    if kind == "choice":
        if not message.oneof_decl:
            message.oneof_decl.add(name="choice")
        field.oneof_index = 0
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        key = entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL)
        _set_type(key, "string")
        _set_type(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), type_)
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"


def _set_type(field: descriptor_pb2.FieldDescriptorProto, type_: str) -> None:
    if type_ in _SCALARS:
        field.type = _SCALARS[type_]
    else:
        field.type = _Field.TYPE_ENUM if type_ == "DataType" else _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_}"


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    file = pool.AddSerializedFile(_file().SerializeToString())
    descriptors = (file or pool.FindFileByName("inference.proto")).message_types_by_name
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in descriptors.items()}


CLASSES = _classes()
"""Every message's class by its name."""
