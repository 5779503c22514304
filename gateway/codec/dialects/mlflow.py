"""MLflow's scoring server: one model, which has no name, no versions and no description.

Facts from the source of MLflow 3.17 (`mlflow.pyfunc.scoring_server`).
"""

import re
from typing import Any

from gateway.codec.dialects.body import Place, by_name, in_rows
from gateway.codec.dialects.description import UNKNOWN, ModelDescription
from gateway.codec.dialects.dialect import Dialect, Paths
from gateway.codec.dialects.paths import AnswerForm, document_of, find, members_with_all
from gateway.codec.dialects.request import DialectRequest
from gateway.errors import CodecError

_REASON = re.compile(r"(?<![A-Za-z])Error: ")
"""What MLflow puts before the reason, behind all the data of the request; not the end of `ValueError: `."""

_ANSWER = AnswerForm(members_with_all("predictions"))


class MLflow(Dialect):
    """The dialect `mlflow`."""

    name = "mlflow"
    is_configured = False
    live_path = "/ping"

    def paths(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> Paths:
        """The same paths for every model: a server has one model, which is ready when the server is."""
        return Paths("/invocations", self.live_path) if version is None else Paths()

    def body(self, request: DialectRequest, description: ModelDescription) -> Any:
        """`inputs` unless the configuration says otherwise."""
        inputs, form = request.inputs, description.format
        params = {"params": Place("", "$parameters")} if request.parameters else {}
        if form == "instances":
            return {**params, "instances": in_rows(inputs)}
        if form == "dataframe_split":
            columns, row = [tensor.name for tensor in inputs], [Place(tensor.name, "$column") for tensor in inputs]
            return {**params, "dataframe_split": {"columns": columns, "data": Place("", "$each", row)}}
        if "" not in description.inputs:
            return {**params, "inputs": by_name(inputs)}
        if len(inputs) != 1:
            raise CodecError(f"the model has one input, which has no name; the request has {len(inputs)}")
        return {**params, "inputs": Place(inputs[0].name)}

    def parameters(self, description: ModelDescription) -> None:
        """Any: they become `params`."""

    def answer_form(self, description: ModelDescription) -> AnswerForm:
        """What the model returns: nested data, several of them in a list, an object by name, or the rows of a table."""
        return _ANSWER

    def error_words(self, text: bytes, description: ModelDescription = UNKNOWN) -> str | None:
        """The last line of the stack trace, or of the message, which says there what the matter is."""
        error = document_of(text)
        said = (find((key,), error) for key in ("stack_trace", "message"))
        lines = next(filter(None, [words.strip() for words in said if isinstance(words, str)]), "").splitlines()
        return _REASON.split(lines[-1])[-1].strip() or None if lines else None
