"""MLflow's scoring server: paths, health, and the reason in its errors, whose texts are those of MLflow 3.17."""

import json

import pytest

from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.mlflow import MLflow
from gateway.codec.dialects.paths import AnswerForm, members_with_all
from gateway.errors import CodecError
from tests.codec.dialects.writing import written

MLFLOW = MLflow()


def test_there_is_one_model_and_no_version() -> None:
    assert MLFLOW.paths("any", None) == ("/invocations", "/ping", "")
    assert MLFLOW.paths("any", "1") == ("", "", "")
    with pytest.raises(CodecError):
        MLFLOW.read_description(b"{}", "")


def test_the_status_of_ping_says_all() -> None:
    assert [MLFLOW.is_live(status, b"\n") for status in (200, 404, 500)] == [True, False, False]
    assert MLFLOW.is_ready(b"\n")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {
                "error_code": "BAD_REQUEST",
                "message": "Encountered an unexpected error while evaluating the model. Verify that the serialized "
                "input Dataframe is compatible with the model for inference.",
                "stack_trace": 'Traceback (most recent call last):\n  File "m.py", line 6, in predict\n    raise\n'
                "ValueError: boom: bad shape\n",
            },
            "ValueError: boom: bad shape",
        ),
        (
            {
                "error_code": "INVALID_PARAMETER_VALUE",
                "message": "Failed to predict data '{'x': array([[1., 2.],\n       [3., 4.]], dtype=float32)}'. \n"
                "Error: Failed to enforce schema of data '{'x': array([[1., 2.],\n       [3., 4.]], dtype=float32)}' "
                "with schema '['x': Tensor('float32', (-1, 2))]'. Error: Model is missing inputs ['y'].",
            },
            "Model is missing inputs ['y'].",
        ),
        (
            {"error_code": "BAD_REQUEST", "message": "Invalid input. Ensure that input is a valid JSON string."},
            "Invalid input. Ensure that input is a valid JSON string.",
        ),
        ({"error_code": "X", "message": " \n ", "stack_trace": "\n"}, None),
        ({"error_code": "X", "message": 5}, None),
        ({"detail": "Not Found"}, None),
    ],
)
def test_the_reason_is_at_the_end(body: dict[str, object], words: str | None) -> None:
    assert MLFLOW.error_words(json.dumps(body).encode()) == words


@pytest.mark.parametrize(
    ("described", "body"),
    [
        (ModelDescription(), {"inputs": {"x": [1.0, 2.5]}}),
        (ModelDescription(inputs={"x": TensorDescription()}, format="inputs"), {"inputs": {"x": [1.0, 2.5]}}),
        (ModelDescription(inputs={"": TensorDescription()}), {"inputs": [1.0, 2.5]}),
        (ModelDescription(format="dataframe_split"), {"dataframe_split": {"columns": ["x"], "data": [[1.0], [2.5]]}}),
    ],
)
def test_requests_have_the_form_that_the_configuration_says(described: ModelDescription, body: object) -> None:
    assert written(MLFLOW, described, '{"name":"x","shape":[2],"datatype":"FP32","data":[1,2.5]}') == body


def test_instances_are_rows() -> None:
    x = '{"name":"x","shape":[2],"datatype":"FP32","data":[1,2.5]}'
    y = '{"name":"y","shape":[2,1],"datatype":"INT64","data":[3,4]}'
    body = written(MLFLOW, ModelDescription(format="instances"), f"{x},{y}")
    assert body == {"instances": [{"x": 1.0, "y": [3]}, {"x": 2.5, "y": [4]}]}


def test_answers_are_predictions() -> None:
    for form in ("", "instances", "dataframe_split"):
        assert MLFLOW.answer_form(ModelDescription(format=form)) == AnswerForm(members_with_all("predictions"))
