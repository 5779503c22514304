"""MLflow's scoring server: one model, which has no name, no versions and no description.

Facts from the source of MLflow 3.17 (`mlflow.pyfunc.scoring_server`).
"""

import re
from collections.abc import Iterator
from functools import partial
from itertools import chain

import msgspec
import orjson

from gateway.codec.dialects.answer import AnswerForm
from gateway.codec.dialects.description import NO_ENCODINGS, Encodings, ModelDescription, encodings_of
from gateway.codec.dialects.request import (
    DialectRequest,
    Writer,
    by_name,
    column,
    document,
    instances,
    nested,
    same_rows,
)
from gateway.codec.inference import BytesPolicy, Tensor
from gateway.codec.json.members import Members
from gateway.codec.json.pieced import Piece
from gateway.codec.tensors.nested_printing import StringForm
from gateway.codec.tensors.row_printing import row_pieces
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
    form = partial(_mlflow_form, encodings)

    def write(request: DialectRequest) -> Iterator[Piece]:
        if not is_unnamed:
            return document(_params(request), b'"inputs":', by_name(request, form))
        if len(request.inputs) != 1:
            raise CodecError(f"the model has one input, which has no name; the request has {len(request.inputs)}")
        return document(_params(request), b'"inputs":', nested(request, request.inputs[0], form))

    return write


def mlflow_instances(encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"instances": [row, ...], "params": ...}`."""
    form = partial(_mlflow_form, encodings)

    def write(request: DialectRequest) -> Iterator[Piece]:
        return document(_params(request), b'"instances":', instances(request, form))

    return write


def mlflow_dataframe_split(encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"dataframe_split": {"columns": [NAME, ...], "data": [row, ...]}, "params": ...}`."""
    form = partial(_mlflow_form, encodings)

    def write(request: DialectRequest) -> Iterator[Piece]:
        inputs = request.inputs
        for tensor in inputs:
            if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
                raise CodecError(f"{tensor}: a column of a table has the shape [n] or [n, 1]")
        n_rows = same_rows(request, "table")
        columns = [column(request, tensor, (), form) for tensor in inputs]
        before = [b"," if index else b"[" for index in range(len(columns))]
        names = orjson.dumps([tensor.name for tensor in inputs])
        rows = row_pieces(columns, before, b"]", n_rows)
        table = chain((b'{"columns":%b,"data":[' % names,), rows, (b"]}",))
        return document(_params(request), b'"dataframe_split":', table)

    return write


def _params(request: DialectRequest) -> Members:
    if not request.parameters:
        return {}
    members = b",".join([orjson.dumps(key) + b":" + value for key, value in request.parameters.items()])
    return {"params": b"{%b}" % members}


def _mlflow_form(encodings: Encodings, request: DialectRequest, tensor: Tensor) -> StringForm:
    encoding = encodings.get("", encodings.get(tensor.name))
    if encoding == "base64":
        return StringForm.BASE64
    if encoding is None and request.policy.bytes is BytesPolicy.BASE64:
        return StringForm.TEXT if tensor.name in request.in_json else StringForm.BASE64
    if tensor.name in request.octets:
        raise request.octets[tensor.name]
    return StringForm.TEXT
