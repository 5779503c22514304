"""MLflow's scoring server: one model, which has no name, no versions and no description.

Facts from the source of MLflow 3.17 (`mlflow.pyfunc.scoring_server`).
"""

import re
from collections.abc import Sequence
from typing import Any

from msgspec import structs

from gateway.codec.dialects.body import Body, Place, WrittenRequest, as_text, by_name, in_a_row, own_body
from gateway.codec.dialects.description import UNKNOWN, ModelDescription
from gateway.codec.dialects.dialect import Dialect, document_of
from gateway.codec.dialects.paths import AnswerForm, find, members_with_all
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import Tensor
from gateway.errors import CodecError

_REASON = re.compile(r"(?<![A-Za-z])Error: ")
"""What MLflow puts before the reason, behind all the data of the request; not the end of `ValueError: `."""


_ANSWER = AnswerForm(members_with_all("predictions"))


class MLflow(Dialect):
    """The dialect `mlflow`."""

    name = "mlflow"
    is_configured = False
    live_path = "/ping"

    def infer_path(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> str | None:
        """The same for every model: there is one."""
        return "/invocations" if version is None else None

    def ready_path(self, model: str, version: str | None) -> str | None:
        """The model is ready when the server is."""
        return self.live_path if version is None else None

    def body(self, description: ModelDescription, names: tuple[str, ...], *, has_parameters: bool) -> Body:
        """`inputs` unless the configuration says otherwise."""
        is_nameless = description.has_nameless_input and description.format in ("", "inputs")
        if is_nameless and len(names) != 1:
            raise CodecError(f"the model has one input, which has no name; the request has {len(names)}")
        return own_body(_template, names, "nameless" if is_nameless else description.format, has_parameters)

    def write(self, request: DialectRequest, description: ModelDescription) -> WrittenRequest:
        """Columns of a table are lists."""
        if description.format == "dataframe_split":
            request = structs.replace(request, inputs=list(map(_column, request.inputs)))
        return super().write(request, description)

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


def _template(names: Sequence[str], form: str, has_parameters: bool) -> Any:
    params = {"params": "$parameters"} if has_parameters else {}
    match form:
        case "nameless":
            return {**params, "inputs": Place(names[0])}
        case "instances":
            return {**params, "instances": {"$each": in_a_row(names)}}
        case "dataframe_split":
            rows = {"$each": [Place(name) for name in names]}
            return {**params, "dataframe_split": {"columns": [as_text(name) for name in names], "data": rows}}
        case _:
            return {**params, "inputs": by_name(names)}


def _column(tensor: Tensor) -> Tensor:
    """*tensor* as a column of a table. Raises `CodecError` if it is none."""
    if len(tensor.shape) not in (1, 2) or tensor.shape[1:] not in ((), (1,)):
        raise CodecError(f"{tensor}: a column of a table has the shape [n] or [n, 1]")
    return structs.replace(tensor, shape=tensor.shape[:1])
