"""MLflow's scoring server: one model, which has no name, no versions and no description.

Facts from the source of MLflow 3.17 (`mlflow.pyfunc.scoring_server`).
"""

import re
from functools import partial

import msgspec

from gateway.codec.dialects.answer import AnswerForm
from gateway.codec.dialects.description import NO_ENCODINGS, Encodings, ModelDescription, encodings_of
from gateway.codec.dialects.request import DialectRequest, Writer
from gateway.codec.dialects.template import body_of, by_name, instances, names, only, parameters, table
from gateway.codec.inference import BytesPolicy, Tensor
from gateway.codec.tensors.nested_printing import StringForm
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
    live_path = "/ping"

    def is_live(self, status: int, text: bytes) -> bool:
        """An empty line with 200; 404 without a model."""
        return status // 100 == 2

    def infer_path(self, model: str, version: str | None) -> str | None:
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

    def error_words(self, text: bytes) -> str | None:
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
    strings = partial(_strings, encodings)
    return body_of({"params": parameters, "inputs": only(strings) if is_unnamed else by_name(strings)})


def mlflow_instances(encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"instances": [row, ...], "params": ...}`."""
    return body_of({"params": parameters, "instances": instances(partial(_strings, encodings))})


def mlflow_dataframe_split(encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"dataframe_split": {"columns": [NAME, ...], "data": [row, ...]}, "params": ...}`."""
    frame = body_of({"columns": names, "data": table(partial(_strings, encodings))})
    return body_of({"params": parameters, "dataframe_split": frame})


def _strings(encodings: Encodings, request: DialectRequest, tensor: Tensor) -> StringForm:
    encoding = encodings.get("", encodings.get(tensor.name))
    if encoding == "base64":
        return StringForm.BASE64
    if encoding is None and request.policy.bytes is BytesPolicy.BASE64:
        return StringForm.TEXT if tensor.name in request.in_json else StringForm.BASE64
    if tensor.name in request.octets:
        raise request.octets[tensor.name]
    return StringForm.TEXT
