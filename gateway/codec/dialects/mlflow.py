"""MLflow's scoring server: one model, which has no name, no versions and no description.

Facts from the source of MLflow 3.17 (`mlflow.pyfunc.scoring_server`).
"""

import re
from typing import Any

import msgspec

from gateway.codec.dialects.body import body_of
from gateway.codec.dialects.description import NO_ENCODINGS, UNKNOWN, Encodings, ModelDescription, encodings_of
from gateway.codec.dialects.paths import AnswerForm
from gateway.codec.dialects.request import Writer
from gateway.codec.dialects.writing import by_name, instances, names, only, table, text_or_base64
from gateway.errors import CodecError


class _Error(msgspec.Struct):
    message: str = ""
    stack_trace: str = ""


_ERROR = msgspec.json.Decoder(_Error)
_REASON = re.compile(r"(?<![A-Za-z])Error: ")
"""What MLflow puts before the reason, behind all the data of the request; not the end of `ValueError: `."""


class MLflow:
    """The dialect `mlflow`."""

    name = "mlflow"
    server_name = "mlflow"
    is_configured = False
    live_path = "/ping"

    def is_live(self, status: int, text: bytes) -> bool:
        """An empty line with 200; 404 without a model."""
        return status // 100 == 2

    def infer_path(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> str | None:
        """The same for every model: there is one."""
        return "/invocations" if version is None else None

    def ready_path(self, model: str, version: str | None) -> str | None:
        """The model is ready when the server is."""
        return self.live_path if version is None else None

    def is_ready(self, text: bytes) -> bool:
        """Always: the server has answered with 200."""
        return True

    def description_path(self, model: str, version: str | None) -> str | None:
        """The model's signature is not served."""
        return None

    def read_description(self, text: bytes, signature: str) -> ModelDescription:
        """Raises `CodecError`: there is no `description_path`."""
        raise CodecError("MLflow's scoring server does not describe its model")

    def writer(self, description: ModelDescription) -> Writer:
        """`inputs` unless the configuration says otherwise."""
        encodings = encodings_of(description)
        match description.format:
            case "instances":
                return mlflow_instances(encodings)
            case "dataframe_split":
                return mlflow_dataframe_split(encodings)
            case _:
                return mlflow_inputs(description.has_nameless_input, encodings)

    def answer_form(self, description: ModelDescription) -> AnswerForm:
        """What the model returns: nested data, several of them in a list, an object by name, or the rows of a table."""
        return AnswerForm(("predictions",))

    def error_words(self, text: bytes, description: ModelDescription = UNKNOWN) -> str | None:
        """The last line of the stack trace, or of the message, which says there what the matter is."""
        try:
            error = _ERROR.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        lines = (error.stack_trace.strip() or error.message.strip()).splitlines()
        return _REASON.split(lines[-1])[-1].strip() or None if lines else None


# What it gets


def mlflow_inputs(is_unnamed: bool, encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"inputs": {NAME: nested}, "params": ...}`; *is_unnamed*: the model's only input has no name."""
    strings = text_or_base64(encodings)
    return _writer({"inputs": only(strings) if is_unnamed else by_name(strings)})


def mlflow_instances(encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"instances": [row, ...], "params": ...}`."""
    return _writer({"instances": instances(text_or_base64(encodings))})


def mlflow_dataframe_split(encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"dataframe_split": {"columns": [NAME, ...], "data": [row, ...]}, "params": ...}`."""
    return _writer({"dataframe_split": {"columns": names, "data": table(text_or_base64(encodings))}})


def _writer(data: dict[str, Any]) -> Writer:
    """The body has `params` only if the request has parameters."""
    alone, beside_params = body_of(data), body_of({"params": "$parameters", **data})
    return lambda request: (beside_params if request.parameters else alone)(request)
