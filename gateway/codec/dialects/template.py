"""Any other JSON server: requests and answers are as the configuration describes them, model by model.

Not here: the language in which requests are described (`body`), and that of answers (`paths`).
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from gateway.codec.dialects.body import Body, text_or_base64
from gateway.codec.dialects.description import (
    UNKNOWN,
    ModelDescription,
    Template,
    TensorDescription,
    encodings_of,
)
from gateway.codec.dialects.paths import AnswerForm, find, steps_of, tree_of
from gateway.codec.dialects.request import Writer
from gateway.errors import CodecError

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


class TemplateDialect:
    """The dialect `template`."""

    name = "template"
    server_name = "template"
    live_path = ""
    is_configured = True

    def is_live(self, status: int, text: bytes) -> bool:
        """What `health.path` asks for is there."""
        return status // 100 == 2

    def infer_path(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> str | None:
        """The template's; None if it has no place for a version, or if there is no version for its place."""
        template = description.template
        if template is None or (VERSION in template.path) != (version is not None):
            return None
        path = template.path.replace(MODEL, quote(model, safe=""))
        return path.replace(VERSION, quote(version or "", safe=""))

    def ready_path(self, model: str, version: str | None) -> str | None:
        """None of its own: a model is ready when the server is."""
        return None

    def is_ready(self, text: bytes) -> bool:
        """Always: the server has answered with 200."""
        return True

    def description_path(self, model: str, version: str | None) -> str | None:
        """Such servers describe no models."""
        return None

    def read_description(self, text: bytes, signature: str) -> ModelDescription:
        """Raises `CodecError`: there is no `description_path`."""
        raise CodecError("this server does not describe its models")

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
        if template is None or not template.error:
            return None
        try:
            words = find(template.error, msgspec.json.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return words if isinstance(words, str) and words else None
