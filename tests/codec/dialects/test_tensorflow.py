"""TensorFlow Serving and KServe's V1: paths, metadata, status.

The metadata here are built after TensorFlow Serving's documentation and the files with which it tests its own; none of
them came from a running server.
"""

import json
from typing import Any

import numpy as np
import pytest

from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.paths import members_with_all
from gateway.codec.dialects.tensorflow import DTYPES, TensorFlow
from gateway.codec.tensors.datatypes import DATATYPES, Datatype
from gateway.errors import CodecError
from tests.codec.dialects.writing import written

TENSORFLOW = TensorFlow()
FP32 = DATATYPES["FP32"]


def info(dtype: str, *sizes: str, unknown_rank: bool = False) -> dict[str, Any]:
    """A tensor as the metadata describes it."""
    dimensions = [{"size": size, "name": ""} for size in sizes]
    return {"dtype": dtype, "tensor_shape": {"dim": dimensions, "unknown_rank": unknown_rank}, "name": "t:0"}


def metadata(signatures: dict[str, Any], version: str = "123") -> bytes:
    """The answer of TensorFlow Serving."""
    spec = {"name": "m", "signature_name": "", "version": version}
    return json.dumps(
        {"model_spec": spec, "metadata": {"signature_def": {"signature_def": signatures}}}, indent=1
    ).encode()


def signature(inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": inputs, "outputs": outputs, "method_name": "tensorflow/serving/predict", "defaults": {}}


HALF_PLUS_TWO = metadata(
    {
        "regress_x_to_y": signature(
            {"inputs": info("DT_STRING", unknown_rank=True)}, {"outputs": info("DT_FLOAT", "-1", "1")}
        ),
        "serving_default": signature({"x": info("DT_FLOAT", "-1", "1")}, {"y": info("DT_FLOAT", "-1", "1")}),
    }
)


def test_paths_have_the_verb_behind_a_colon() -> None:
    path = "/v1/models/half"
    assert TENSORFLOW.paths("half", None) == (f"{path}:predict", path, f"{path}/metadata")
    path = "/v1/models/a%20b/versions/2"
    assert TENSORFLOW.paths("a b", "2") == (f"{path}:predict", path, f"{path}/metadata")


def test_the_usual_signature_is_read_if_none_is_named() -> None:
    assert TENSORFLOW.read_description(HALF_PLUS_TWO, "") == ModelDescription(
        inputs={"x": TensorDescription(FP32, (-1, 1))},
        outputs={"y": TensorDescription(FP32, (-1, 1))},
        versions=("123",),
        platform="tensorflow_savedmodel",
        is_complete=True,
    )


def test_another_signature_is_read_by_its_name_and_is_not_repeated_to_the_server() -> None:
    described = TENSORFLOW.read_description(HALF_PLUS_TWO, "regress_x_to_y")
    assert described.inputs == {"inputs": TensorDescription(DATATYPES["BYTES"], None)}
    assert described.signature == ""  # only what the configuration says is


def test_a_signature_that_is_not_there_is_an_error_that_names_the_others() -> None:
    with pytest.raises(
        CodecError, match=r"no signature 'other'; set `signature` to one of these: 'regress_x_to_y', 'serving_default'"
    ):
        TENSORFLOW.read_description(HALF_PLUS_TWO, "other")
    with pytest.raises(CodecError, match=r"no signature 'serving_default'; .* these: none"):
        TENSORFLOW.read_description(metadata({}), "")


@pytest.mark.parametrize(("dtype", "datatype"), DTYPES.items())
def test_every_datatype_of_v2_has_its_name_in_tensorflow(dtype: str, datatype: Datatype) -> None:
    for name in (dtype, f"{dtype}_REF"):
        text = metadata({"serving_default": signature({"x": info(name)}, {})})
        assert TENSORFLOW.read_description(text, "").inputs == {"x": TensorDescription(datatype, ())}


def test_the_table_of_datatypes_is_complete() -> None:
    names = [
        "BOOL",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "HALF",
        "FLOAT",
        "DOUBLE",
        "BFLOAT16",
        "STRING",
    ]
    assert DTYPES.keys() == {f"DT_{name}" for name in names}
    assert {datatype.name for datatype in DTYPES.values()} == DATATYPES.keys()


@pytest.mark.parametrize("dtype", ["DT_QINT8", "DT_COMPLEX64", "DT_RESOURCE", "DT_INVALID", "float", ""])
def test_a_datatype_that_v2_lacks_is_not_known(dtype: str) -> None:
    text = metadata({"serving_default": signature({}, {"y": info(dtype, "2")})})
    assert TENSORFLOW.read_description(text, "").outputs == {"y": TensorDescription(None, (2,))}


@pytest.mark.parametrize(
    ("shape", "read"),
    [
        ({"dim": [], "unknown_rank": False}, ()),
        ({"dim": [], "unknown_rank": True}, None),
        ({"dim": [{"size": "-1"}, {"size": "9223372036854775807"}]}, (-1, 2**63 - 1)),
        ({"dim": [{"size": 3}, {}]}, (3, 0)),  # members with the value 0 may be left out in protobuf's JSON
        ({"dim": [{"size": "x"}]}, None),
        ({"dim": [{"size": "9" * 5000}]}, None),
        ({"dim": [{"size": "1"}] * 65}, None),
        ({}, ()),
    ],
)
def test_shapes_are_read_as_protobuf_writes_them(shape: dict[str, Any], read: tuple[int, ...] | None) -> None:
    text = metadata({"serving_default": signature({}, {"y": {"dtype": "DT_FLOAT", "tensor_shape": shape}})})
    assert TENSORFLOW.read_description(text, "").outputs == {"y": TensorDescription(FP32, read)}


def test_tensors_are_in_the_order_of_their_names_because_the_server_has_none() -> None:
    tensors = {name: info("DT_FLOAT") for name in ("b", "c", "a")}
    described = TENSORFLOW.read_description(metadata({"serving_default": signature(tensors, tensors)}), "")
    assert [*described.inputs, *described.outputs] == ["a", "b", "c"] * 2


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"metadata": {}}',
        b'{"metadata": {"signature_def": {"signature_def": []}}}',
        b'{"metadata": {"signature_def": {"signature_def": {"serving_default": 5}}}}',
        HALF_PLUS_TWO[:-20],
        b'{"metadata": {"signature_def": {"signature_def": {"serving_default": {"inputs": {"\xff": {}}}}}}}',
        b'{"a":' * 100_000,
    ],
)
def test_metadata_that_cannot_be_read_is_an_error_of_the_codec(text: bytes) -> None:
    with pytest.raises(CodecError, match="cannot be read"):
        TENSORFLOW.read_description(text, "")


@pytest.mark.parametrize(
    ("status", "is_ready"),
    [
        ({"model_version_status": [{"version": "1", "state": "AVAILABLE"}]}, True),
        ({"model_version_status": [{"state": "END"}, {"state": "AVAILABLE"}]}, True),
        ({"model_version_status": [{"state": "LOADING"}]}, False),
        ({"model_version_status": []}, False),
        ({"name": "m", "ready": True}, True),
        ({"name": "m", "ready": "True"}, True),  # KServe before 0.11
        ({"name": "m", "ready": False}, False),
        ({"name": "m"}, False),
        ([], False),
    ],
)
def test_a_model_is_ready_when_a_version_of_it_is(status: object, is_ready: bool) -> None:
    assert TENSORFLOW.is_ready(json.dumps(status).encode()) is is_ready


def test_a_server_lives_if_it_lists_its_models_or_asks_for_a_name() -> None:
    answers = [(200, b'{"models":[]}'), (400, b'{"error": "Missing model name in request."}')]
    assert all(TENSORFLOW.is_live(*answer) for answer in answers)
    assert not any(TENSORFLOW.is_live(*answer) for answer in [(400, b"<html>"), (404, b"{}"), (503, b'{"error": "x"}')])


def test_answers_have_the_form_of_the_request() -> None:
    assert TENSORFLOW.answer_form(ModelDescription()).tree == members_with_all("outputs", "predictions")
    assert TENSORFLOW.answer_form(ModelDescription(format="row")).tree == members_with_all("predictions")
    assert TENSORFLOW.answer_form(ModelDescription()).b64_objects
    assert TENSORFLOW.answer_form(ModelDescription(format="row")).b64_objects
    assert TENSORFLOW.answer_form(ModelDescription(format="row")).in_rows
    assert not TENSORFLOW.answer_form(ModelDescription()).in_rows


def test_requests_are_columnar_unless_the_configuration_says_row() -> None:
    x = '{"name":"x","shape":[2],"datatype":"FP32","data":[1,2.5]}'
    assert written(TENSORFLOW, ModelDescription(), x) == {"inputs": {"x": [1.0, 2.5]}}
    described = ModelDescription(format="row", signature="s")
    assert written(TENSORFLOW, described, x) == {"signature_name": "s", "instances": [1.0, 2.5]}


@pytest.mark.parametrize("form", ["columnar", "row"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_the_largest_number_is_written_so_that_the_server_does_not_find_it_too_large(form: str, sign: str) -> None:
    """TensorFlow Serving refuses for FP32 what is larger than this in FP64."""
    x = f'{{"name":"x","shape":[3,1],"datatype":"FP32","data":[{sign}3.4028235e38,0.1,{sign}3.4028233e38]}}'
    document = written(TENSORFLOW, ModelDescription(format=form), x)
    values = document["instances"] if form == "row" else document["inputs"]["x"]
    assert abs(values[0][0]) == 3.4028234e38
    assert (
        np.array(values, np.float32).ravel().tolist()
        == np.array([float(f"{sign}3.4028235e38"), 0.1, float(f"{sign}3.4028233e38")], np.float32).tolist()
    )


def test_the_largest_number_may_stand_beside_a_signalling_nan() -> None:
    """The policy lets it through; numpy would warn of it, which is an error here."""
    wide = TENSORFLOW.datatypes["FP32"].widen(np.frombuffer(bytes.fromhex("ffff7f7f 0100807f"), "<f4"))
    assert wide[0] == 3.4028234e38
    assert np.isnan(wide[1])
