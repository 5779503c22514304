"""What a dialect is: everything by which a server that speaks it differs from a server of V2."""

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from gateway.codec.dialects.body import WrittenRequest
from gateway.codec.dialects.description import OCTETS_SUFFIX, UNKNOWN, ModelDescription
from gateway.codec.dialects.paths import AnswerForm, reason_at
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import BytesPolicy, Tensor
from gateway.codec.tensors.datatypes import Datatype
from gateway.codec.tensors.string_printing import StringForm
from gateway.errors import CodecError

quoted = lru_cache(256)(partial(quote, safe=""))
"""A model's name or version, percent-encoded."""


class Paths(NamedTuple):
    """The raw paths under which a server is asked for one model. An empty one: the server has no such path."""

    infer: str = ""
    ready: str = ""
    """The path whose answer tells whether the model is ready, see `is_ready`."""
    description: str = ""


class Dialect:
    """A value without state.

    What a dialect does not say itself is as here, in the dialect `template`: requests and answers are as the
    configuration describes them, model by model; servers describe no models, and a model is ready when its server is.
    """

    name = "template"
    """What the configuration's `dialect` calls it, and the answer to `GET /v2`, which says nothing else of servers."""
    live_path = ""
    """What a server answers as long as it runs, see `is_live`; empty: the configuration's `health.path`."""
    datatypes: ClassVar[Mapping[str, Datatype]] = {}
    """By the name of a tensor's datatype, another as which its numbers are printed; most are printed as they are."""
    b64_objects = False
    """Whether octets are written as `{"b64": "..."}`, which those of tensors with `OCTETS_SUFFIX` always are."""
    is_configured = True
    """Whether only models that the configuration describes can be asked."""

    def is_live(self, status: int, text: bytes) -> bool:
        """Whether an answer to `live_path` with *status* and the body *text* comes from a server that runs."""
        return status // 100 == 2

    def paths(self, model: str, version: str | None, description: ModelDescription = UNKNOWN) -> Paths:
        """The paths of a model; none if it has no versions, or if it has to be asked for with one.

        *description* is what the configuration says of the model.
        """
        template = description.template
        if template is None or ("{version}" in template.path) != (version is not None):
            return Paths()
        return Paths(template.path.replace("{model}", quoted(model)).replace("{version}", quoted(version or "")))

    def is_ready(self, text: bytes) -> bool:
        """Whether the body *text* of an answer with status 200 says that the model is ready."""
        return True

    def read_description(self, text: bytes, signature: str) -> ModelDescription:
        """What a server's description, *text*, says of *signature* (empty: the usual one). Raises `CodecError`."""
        raise CodecError(f"servers of dialect {self.name!r} do not describe their models")

    def body(self, request: DialectRequest, description: ModelDescription) -> Any:
        """What is sent for *request*: JSON with a `Place` wherever something of it stands.

        Raises `CodecError` for what the server cannot be asked.
        """
        assert description.template is not None, "only models that are configured are asked"
        return description.template.body.template

    def string_form(self, request: DialectRequest, description: ModelDescription, tensor: Tensor) -> StringForm:
        """How the elements of *tensor*, which is BYTES, become strings. Raises `CodecError` if they cannot."""
        name, described = tensor.name, description.input_called(tensor.name)
        encoding = said = described.encoding if described is not None else ""
        if not said:
            is_base64 = request.policy.bytes is BytesPolicy.BASE64 and request.in_json.get(name) is not False
            encoding = "base64" if is_base64 or (self.b64_objects and name.endswith(OCTETS_SUFFIX)) else "text"
        if self.b64_objects:
            return StringForm.B64_OBJECT if encoding == "base64" or name in request.octets else StringForm.TEXT
        if encoding == "text" and name in request.octets:
            key = "`encoding: base64` for this input in `models`" if said else "`bytes: base64` for this backend"
            raise CodecError(f"{request.octets[name]}, and JSON has only text; set {key} if it reads base64")
        return StringForm.BASE64 if encoding == "base64" else StringForm.TEXT

    def write(self, request: DialectRequest, description: ModelDescription) -> WrittenRequest:
        """The body of *request* to the model. Raises `CodecError` for what it cannot say."""
        strings = partial(self.string_form, request, description)
        return WrittenRequest(self.body(request, description), request, strings, self.datatypes)

    def answer_form(self, description: ModelDescription) -> AnswerForm:
        """How the model's answers are put together."""
        assert description.template is not None, "only models that are configured are asked"
        return description.template.answer

    def error_words(self, text: bytes, description: ModelDescription = UNKNOWN) -> str | None:
        """The reason in the body *text* of an error, where it is not found as in every server's; else None.

        *description* is what the configuration says of the model.
        """
        template = description.template
        return reason_at(template.error, text) if template is not None and template.error else None
