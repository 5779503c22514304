"""TensorFlow Serving's REST API, and the V1 protocol of KServe, which is its row form without versions and metadata.

Facts from TensorFlow Serving's documentation and source (`api_rest.md`, `http_rest_api_util.cc`, `json_tensor.cc`),
and from KServe 0.21.
"""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from gateway.codec.dialects.body import by_name, in_rows
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import UNKNOWN, ModelDescription, listed
from gateway.codec.dialects.dialect import Dialect, Paths, quoted
from gateway.codec.dialects.paths import AnswerForm, document_of, find, members_with_all, reason_at
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import label_of
from gateway.codec.tensors.datatypes import DATATYPES, Array
from gateway.codec.v2.messages import MAX_RANK
from gateway.errors import CodecError

_OTHER_NAMES = {"FP16": "HALF", "FP32": "FLOAT", "FP64": "DOUBLE", "BF16": "BFLOAT16", "BYTES": "STRING"}
DTYPES = {f"DT_{_OTHER_NAMES.get(name, name)}": datatype for name, datatype in DATATYPES.items()}
"""TensorFlow's datatypes by the names in its metadata. TensorFlow Serving itself reads and writes no JSON of DT_UINT16,
DT_HALF and DT_BFLOAT16: it answers 501 and 400."""

_FP32 = DATATYPES["FP32"]


def _widen_largest(array: Array) -> Array:
    """FP64 where *array*, FP32, holds the largest number or its negative: then it can be written in another way.

    TensorFlow Serving compares with the largest number in FP64. So it refuses its shortest text, 3.4028235e38, which is
    larger, and even the exact one, which its parser does not read exactly. 3.4028234e38 is rounded to it, too. It is
    no rare value: attention masks are made of it.
    """
    if array.tobytes().find(b"\xff\xff\x7f") < 0:  # as nearly always: the last bytes of the largest number
        return array
    is_largest = np.abs(array) == _FP32.highest
    with np.errstate(invalid="ignore"):  # numpy warns of a signalling NaN
        wide = array.astype("<f8")
    wide[is_largest] = np.copysign(3.4028234e38, wide[is_largest])
    return wide


_COLUMNS = AnswerForm(members_with_all("outputs", "predictions"), b64_objects=True)
_ROWS = AnswerForm(members_with_all("predictions"), b64_objects=True, in_rows=True)


class TensorFlow(Dialect):
    """The dialect `tensorflow`."""

    name = "tensorflow"
    is_configured = False
    live_path = "/v1/models"
    b64_objects = True
    datatypes: ClassVar = {"FP32": replace(_FP32, widen=_widen_largest)}

    def is_live(self, status: int, text: bytes) -> bool:
        """KServe answers with its models; TensorFlow Serving with 400 and an error, because it wants a model's name."""
        if status != 400:
            return super().is_live(status, text)
        return reason_at(("error",), text) is not None

    def paths(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> Paths:
        """The paths of the model, or of a version of it. KServe has no path for the description."""
        path = f"/v1/models/{quoted(model)}"
        if version is not None:
            path += f"/versions/{quoted(version)}"
        return Paths(f"{path}:predict", path, f"{path}/metadata")

    def is_ready(self, text: bytes) -> bool:
        """TensorFlow Serving: a version is available. KServe: `ready`, which older ones write as a string."""
        status = document_of(text)
        versions = find(("model_version_status",), status)
        states = [find(("state",), version) for version in versions] if isinstance(versions, list) else []
        return "AVAILABLE" in states or str(find(("ready",), status)).lower() == "true"

    def read_description(self, text: bytes, signature: str) -> ModelDescription:
        """The inputs and outputs of *signature*, in the order of their names: the server gives them in any order."""
        metadata = document_of(text)
        signatures = find(("metadata", "signature_def", "signature_def"), metadata)
        name = signature or "serving_default"  # which a request means that names none
        if isinstance(signatures, dict) and name not in signatures:
            names = listed(sorted(signatures))
            raise CodecError(f"it has no {label_of('signature', name)}; set `signature` to one of these: {names}")
        described = find((name,), signatures)
        if not isinstance(described, dict):
            raise CodecError("what the server says of the model cannot be read: it has no signatures where they belong")
        version = find(("model_spec", "version"), metadata)
        return ModelDescription(
            _tensors(described.get("inputs")),
            _tensors(described.get("outputs")),
            versions=(version,) if isinstance(version, str) and version else (),
            platform="tensorflow_savedmodel",
            is_complete=True,
        )

    def body(self, request: DialectRequest, description: ModelDescription) -> Any:
        """Columnar unless the configuration says `row`."""
        named = {"signature_name": description.signature} if description.signature else {}
        if description.format == "row":
            return {**named, "instances": in_rows(request.inputs)}
        return {**named, "inputs": by_name(request.inputs)}

    def answer_form(self, description: ModelDescription) -> AnswerForm:
        """As the request; but KServe answers `predictions` also where its model takes `inputs`."""
        return _ROWS if description.format == "row" else _COLUMNS


# What it says


def _tensors(described: Any) -> dict[str, TensorDescription]:
    tensors = {}
    for name, tensor in sorted(described.items()) if isinstance(described, dict) else ():
        datatype = DTYPES.get(str(find(("dtype",), tensor)).removesuffix("_REF"))
        tensors[name] = TensorDescription(datatype, _shape(find(("tensor_shape",), tensor)))
    return tensors


def _shape(shape: Any) -> tuple[int, ...] | None:
    """None if it is not known, or none that a tensor can have."""
    dimensions = find(("dim",), shape) or []
    if find(("unknown_rank",), shape) or not isinstance(dimensions, list) or len(dimensions) > MAX_RANK:
        return None
    try:  # protobuf writes integers of 64 bits as strings
        return tuple(max(int(find(("size",), dimension) or 0), -1) for dimension in dimensions)
    except (TypeError, ValueError):
        return None
