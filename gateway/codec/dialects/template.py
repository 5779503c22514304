"""Any other JSON server: requests and answers are as the configuration describes them, model by model.

Not here: the language in which requests are described (`body`), and that of answers (`paths`).
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from gateway.codec.dialects.body import Body, text_or_base64
from gateway.codec.dialects.description import UNKNOWN, ModelDescription, Template, TensorDescription, encodings_of
from gateway.codec.dialects.dialect import Dialect, document_of
from gateway.codec.dialects.paths import AnswerForm, find, steps_of, tree_of
from gateway.codec.dialects.request import Writer

MODEL, VERSION = "{model}", "{version}"
"""What stands for the client's in paths."""


def read_body(value: Any, inputs: tuple[TensorDescription, ...]) -> Body:
    """The body of requests to a model with these *inputs*, from a *value* of YAML; see `Body.faults`."""
    known = {tensor.name: (tensor.datatype, tensor.shape) for tensor in inputs}
    return Body(value, known, text_or_base64(encodings_of(ModelDescription(inputs))))


def template_of(path: str, body: Body, answer: Mapping[str, str], error: str | None) -> Template:
    """What a configuration says of one model. Raises `CodecError` for a path of outputs that is none."""
    error_steps = tuple(steps_of(error)) if error is not None else ()
    return Template(path, body.write, AnswerForm(paths=tree_of(answer)), error_steps)


class TemplateDialect(Dialect):
    """The dialect `template`. A model is ready when the server is."""

    name = "template"
    is_configured = True

    def infer_path(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> str | None:
        """The template's; None if it has no place for a version, or if there is no version for its place."""
        template = description.template
        if template is None or (VERSION in template.path) != (version is not None):
            return None
        path = template.path
        if "{" in path:
            path = path.replace(MODEL, quote(model, safe="")).replace(VERSION, quote(version or "", safe=""))
        return path

    def writer(self, description: ModelDescription) -> Writer:
        """The template's."""
        assert description.template is not None, "only models that are configured are asked"
        return description.template.writer

    def answer_form(self, description: ModelDescription) -> AnswerForm:
        """The template's."""
        assert description.template is not None, "only models that are configured are asked"
        return description.template.answer

    def error_words(self, text: bytes, description: ModelDescription = UNKNOWN) -> str | None:
        """What stands where the template says, if it is text."""
        template = description.template
        words = find(template.error, document_of(text)) if template is not None and template.error else None
        return words if isinstance(words, str) and words else None
