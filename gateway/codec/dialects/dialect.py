"""What a dialect is: everything by which a server that speaks it differs from a server of V2."""

from collections.abc import Collection, Mapping
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

from msgspec import structs

from gateway.codec.dialects.body import NO_NAMES, ModelNames, WrittenRequest
from gateway.codec.dialects.declared import declared_text, fits, missing_input
from gateway.codec.dialects.description import OCTETS_SUFFIX, UNKNOWN, ModelDescription, listed
from gateway.codec.dialects.paths import AnswerForm, reason_at
from gateway.codec.dialects.request import DialectRequest, own_parameters
from gateway.codec.inference import MAX_NAME, BytesPolicy, Tensor, shape_text
from gateway.codec.json.members import Members
from gateway.codec.tensors.datatypes import BYTES, Datatype
from gateway.codec.tensors.string_printing import StringForm
from gateway.errors import CodecError

_NUMBER_FORMS = {"": None, "text": StringForm.TEXT, "base64": StringForm.BASE64}

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
        if template is None:
            return Paths()
        is_in_path = "{version}" in template.path
        if (is_in_path and version is None) or (version and not is_in_path and not template.body.uses_version):
            return Paths()
        return Paths(template.path.replace("{model}", quoted(model)).replace("{version}", quoted(version or "")))

    def is_ready(self, text: bytes) -> bool:
        """Whether the body *text* of an answer with status 200 says that the model is ready."""
        return True

    def read_description(self, text: bytes, signature: str) -> ModelDescription:
        """What a server's description, *text*, says of *signature* (empty: the usual one). Raises `CodecError`."""
        raise CodecError(f"servers of dialect {self.name!r} do not describe their models")

    def parameters(self, description: ModelDescription) -> Collection[str] | None:
        """The parameters of their own that requests may have; None: any."""
        return description.template.body.parameters if description.template is not None else ()

    def fitted(
        self, request: DialectRequest, description: ModelDescription, model: str
    ) -> tuple[DialectRequest, dict[str, int]]:
        """*request* with the shapes that *description* declares, and the sizes that names in these have.

        A scalar and a tensor of shape [1] are one, where that is the only difference. *model* is the client's name of
        it. Raises `CodecError` for a parameter that the server would not get, and, where the configuration alone knows
        the model, for another shape, or an input that is missing and not optional.
        """
        parameters = own_parameters(request.parameters) if request.parameters else request.parameters
        self._check_parameters(parameters, description, model)
        inputs, sizes = request.inputs, dict[str, int]()
        if self.is_configured:
            if len(inputs) < len(description.inputs):  # all of these are known, and no two are one
                _check_complete(request, description)
            inputs = [_fitted(tensor, description, sizes, model) for tensor in inputs]
        if inputs != request.inputs or parameters != request.parameters:
            request = structs.replace(request, inputs=inputs, parameters=parameters)
        return request, sizes

    def _check_parameters(self, parameters: Members, description: ModelDescription, model: str) -> None:
        known = self.parameters(description)
        for name in parameters if known is not None else ():
            if name not in (known or ()):
                hint = "; `$parameters` in the configuration's body sends parameters on"
                if known:
                    hint = f"; it has one for {listed(sorted(known))}"
                raise CodecError(
                    f"parameter {name[:MAX_NAME]!r}: the body for model {model!r} has no place for it{hint}"
                )

    def body(self, request: DialectRequest, description: ModelDescription) -> Any:
        """What is sent for *request*: JSON with a `Place` wherever something of it stands.

        Raises `CodecError` for what the server cannot be asked.
        """
        assert description.template is not None, "only models that are configured are asked"
        return description.template.body.template

    def string_form(self, request: DialectRequest, description: ModelDescription, tensor: Tensor) -> StringForm | None:
        """How the elements of *tensor* become strings; None: as numbers. Raises `CodecError` if they cannot."""
        name, described = tensor.name, description.input_called(tensor.name)
        encoding = said = described.encoding if described is not None else ""
        if tensor.datatype.kind is not BYTES:
            return _NUMBER_FORMS[encoding]
        if not said:
            is_base64 = request.policy.bytes is BytesPolicy.BASE64 and request.in_json.get(name) is not False
            encoding = "base64" if is_base64 or (self.b64_objects and name.endswith(OCTETS_SUFFIX)) else "text"
        if self.b64_objects:
            return StringForm.B64_OBJECT if encoding == "base64" or name in request.octets else StringForm.TEXT
        if encoding == "text" and name in request.octets:
            key = "`encoding: base64` for this input in `models`" if said else "`bytes: base64` for this backend"
            raise CodecError(f"{request.octets[name]}, and JSON has only text; set {key} if it reads base64")
        return StringForm.BASE64 if encoding == "base64" else StringForm.TEXT

    def write(
        self, request: DialectRequest, description: ModelDescription, names: ModelNames = NO_NAMES
    ) -> WrittenRequest:
        """The body of *request* to the model that the backend knows by *names*.

        Raises `CodecError` for what it cannot say.
        """
        strings, template = partial(self.string_form, request, description), description.template
        body = self.body(request, description)
        of_template = template.body if template is not None else None
        return WrittenRequest(body, request, strings, self.datatypes, names, of_template)

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


def _check_complete(request: DialectRequest, description: ModelDescription) -> None:
    """Raise `CodecError` for an input of the model that *request* lacks, and that is not optional."""
    there = {tensor.name for tensor in request.inputs}
    for name, described in description.inputs.items():
        if name not in there and not described.optional:
            raise missing_input(name)


def _fitted(tensor: Tensor, description: ModelDescription, sizes: dict[str, int], model: str) -> Tensor:
    """*tensor* with the shape that *description* declares; see `Dialect.fitted`."""
    described = description.input_called(tensor.name)
    declared = described.shape if described is not None else None
    if declared is None or fits(declared, tensor.shape, sizes):
        return tensor
    other = {(): (1,), (1,): ()}.get(tensor.shape)
    if other is None or not fits(declared, other, sizes):
        said, got = declared_text(declared, sizes), shape_text(tensor.shape)
        raise CodecError(f"{tensor}: model {model!r} takes the shape {said}, got {got}")
    return structs.replace(tensor, shape=other)
