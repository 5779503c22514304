"""Any other JSON server: requests and answers are as the configuration describes them, model by model.

Not here: the language in which requests are described (`body`), and that of answers (`paths`).
"""

from urllib.parse import quote

from gateway.codec.dialects.body import Body
from gateway.codec.dialects.description import UNKNOWN, ModelDescription
from gateway.codec.dialects.dialect import Dialect, document_of
from gateway.codec.dialects.paths import AnswerForm, find

MODEL, VERSION = "{model}", "{version}"
"""What stands for the client's in paths."""


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

    def body(self, description: ModelDescription, names: tuple[str, ...], *, has_parameters: bool) -> Body:
        """The configuration's."""
        assert description.template is not None, "only models that are configured are asked"
        return description.template.body

    def answer_form(self, description: ModelDescription) -> AnswerForm:
        """The outputs' paths."""
        assert description.template is not None, "only models that are configured are asked"
        return description.template.answer

    def error_words(self, text: bytes, description: ModelDescription = UNKNOWN) -> str | None:
        """What stands where the template says, if it is text."""
        template = description.template
        words = find(template.error, document_of(text)) if template is not None and template.error else None
        return words if isinstance(words, str) and words else None
