"""MLflow's scoring server: one model, which has no name, no versions and no description.

Facts from the source of MLflow 3.17 (`mlflow.pyfunc.scoring_server`).
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

from msgspec import structs

from gateway.codec.dialects.body import MAX_WRITERS, ROW_FORM, TABLE, Body, Every, text_or_base64
from gateway.codec.dialects.description import NO_ENCODINGS, UNKNOWN, Encodings, ModelDescription, encodings_of
from gateway.codec.dialects.dialect import Dialect, document_of
from gateway.codec.dialects.paths import AnswerForm, find
from gateway.codec.dialects.request import DialectRequest, Writer
from gateway.codec.inference import Tensor
from gateway.codec.json.pieced import Piece
from gateway.errors import CodecError

_REASON = re.compile(r"(?<![A-Za-z])Error: ")
"""What MLflow puts before the reason, behind all the data of the request; not the end of `ValueError: `."""


_ANSWER = AnswerForm(("predictions",))


class MLflow(Dialect):
    """The dialect `mlflow`."""

    name = "mlflow"
    live_path = "/ping"

    def infer_path(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> str | None:
        """The same for every model: there is one."""
        return "/invocations" if version is None else None

    def ready_path(self, model: str, version: str | None) -> str | None:
        """The model is ready when the server is."""
        return self.live_path if version is None else None

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
        return _ANSWER

    def error_words(self, text: bytes, description: ModelDescription = UNKNOWN) -> str | None:
        """The last line of the stack trace, or of the message, which says there what the matter is."""
        error = document_of(text)
        said = (find((key,), error) for key in ("stack_trace", "message"))
        lines = next(filter(None, [words.strip() for words in said if isinstance(words, str)]), "").splitlines()
        return _REASON.split(lines[-1])[-1].strip() or None if lines else None


# What it gets


def mlflow_inputs(is_unnamed: bool, encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"inputs": {NAME: nested}, "params": ...}`; *is_unnamed*: the model's only input has no name."""
    write = _writer("nameless" if is_unnamed else "inputs", tuple(encodings.items()))
    return partial(_only, write) if is_unnamed else write


def mlflow_instances(encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"instances": [row, ...], "params": ...}`."""
    return _writer("instances", tuple(encodings.items()))


def mlflow_dataframe_split(encodings: Encodings = NO_ENCODINGS) -> Writer:
    """`{"dataframe_split": {"columns": [NAME, ...], "data": [row, ...]}, "params": ...}`."""
    write = _writer("dataframe_split", tuple(encodings.items()))
    return lambda request: write(structs.replace(request, inputs=list(map(_column, request.inputs))))


_TEMPLATES: Mapping[str, Any] = {
    "inputs": {"inputs": Every.BY_NAME},
    "nameless": {"inputs": Every.IN_A_ROW},
    "instances": {"instances": {"$each": Every.IN_A_ROW}},
    "dataframe_split": {"dataframe_split": {"columns": Every.NAMES, "data": {"$each": Every.VALUES}}},
}


@lru_cache(MAX_WRITERS)
def _writer(form: str, encodings: tuple[tuple[str, str], ...]) -> Writer:
    """The body has `params` only if the request has parameters."""
    strings, rows = text_or_base64(dict(encodings)), TABLE if form == "dataframe_split" else ROW_FORM
    plain = Body(_TEMPLATES[form], {}, strings, rows)
    with_params = Body({"params": "$parameters", **_TEMPLATES[form]}, {}, strings, rows)
    return lambda request: (with_params if request.parameters else plain).write(request)


def _only(write: Writer, request: DialectRequest) -> Callable[[], Iterator[Piece]]:
    """*write* for a request with one input. Raises `CodecError` for others."""
    if len(request.inputs) != 1:
        raise CodecError(f"the model has one input, which has no name; the request has {len(request.inputs)}")
    return write(request)


def _column(tensor: Tensor) -> Tensor:
    """*tensor* as a column of a table. Raises `CodecError` if it is none."""
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
        raise CodecError(f"{tensor}: a column of a table has the shape [n] or [n, 1]")
    return structs.replace(tensor, shape=tensor.shape[:1])
