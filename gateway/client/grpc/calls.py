"""The calls of the two services: what each asks for over HTTP, and how its answer becomes a message.

One row a call. Not here: `ModelInfer` and `ModelStreamInfer`, whose messages hold tensors (`inference`).
"""

import base64
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from google.protobuf import json_format

from gateway.client.grpc.messages import CLASSES, Message
from gateway.errors import CodecError

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

_SERVING, _NOT_SERVING = 1, 2  # of gRPC's health service


class Ask(NamedTuple):
    """What a call asks for over HTTP."""

    method: str
    target: str
    """The path."""
    body: bytes | None = None
    """JSON; None: there is no body."""


class Call(NamedTuple):
    """One row: how a call is asked over HTTP, and answered."""

    request: Any
    """The class of its message."""
    ask: Callable[[Message], Ask]
    answer: Callable[[bytes], Message]
    """Makes the message of the body of a good answer. Raises `CodecError`."""
    refused: Callable[[], Message] | None = None
    """Makes the message where a server's refusal is an answer: that it, or a model, is not ready. Else None."""


def _of_model(message: Message, suffix: str = "") -> str:
    """The path of the model, and of its version, that *message* names. Raises `CodecError`."""
    if not message.name:
        raise CodecError("the request has no `name` of a model")
    version = f"/versions/{quote(message.version, safe='')}" if message.version else ""
    return f"/v2/models/{quote(message.name, safe='')}{version}{suffix}"


def _statistics_path(message: Message) -> str:
    return _of_model(message, "/stats") if message.name else "/v2/models/stats"


def _repository(message: Message) -> str:
    repository = message.repository_name
    return f"/v2/repository/{quote(repository, safe='')}" if repository else "/v2/repository"


def _change(action: str) -> Callable[[Message], Ask]:
    """How a model is loaded or unloaded."""

    def ask(message: Message) -> Ask:
        if not message.model_name:
            raise CodecError("the request has no `model_name`")
        parameters: dict[str, Any] = {}
        for name in message.parameters:
            parameter = message.parameters[name]
            kind = parameter.WhichOneof("parameter_choice")
            if kind is None:
                raise CodecError(f"parameter {name!r} has no value")
            value = getattr(parameter, kind)
            parameters[name] = base64.b64encode(value).decode() if kind == "bytes_param" else value
        path = f"{_repository(message)}/models/{quote(message.model_name, safe='')}/{action}"
        return Ask("POST", path, msgspec.json.encode({"parameters": parameters} if parameters else {}))

    return ask


def _ask_index(message: Message) -> Ask:
    return Ask("POST", f"{_repository(message)}/index", msgspec.json.encode({"ready": True} if message.ready else {}))


def _ask_health(message: Message) -> Ask:
    if message.service not in ("", SERVICE):
        raise CodecError(f"there is no service {message.service[:100]!r}")
    return Ask("GET", "/v2/health/ready")


def _get(path: Callable[[Message], str]) -> Callable[[Message], Ask]:
    def ask(message: Message) -> Ask:
        return Ask("GET", path(message))

    return ask


def _decoded(text: bytes) -> Any:
    """The JSON *text*. Raises `CodecError`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(str(error)) from None


def _flag(name: str, field: str) -> tuple[Callable[[bytes], Message], Callable[[], Message]]:
    """The answers of a call about health: what a good status means, and what a refusal means."""
    class_ = CLASSES[name]

    def answer(text: bytes) -> Message:
        try:
            said = _decoded(text)
        except CodecError:
            said = {}
        is_so = not isinstance(said, dict) or said.get(field) not in (False, "False", "false")
        return class_(**{field: is_so})

    return answer, lambda: class_(**{field: False})


def _serving(text: bytes) -> Message:
    return CLASSES["HealthCheckResponse"](status=_SERVING if _READY[0](text).ready else _NOT_SERVING)


def _not_serving() -> Message:
    return CLASSES["HealthCheckResponse"](status=_NOT_SERVING)


def _json(name: str, member: str = "") -> Callable[[bytes], Message]:
    """How a JSON answer becomes the message *name*, or its field *member*; members that it does not have are left."""
    class_ = CLASSES[name]

    def answer(text: bytes) -> Message:
        try:
            said = _decoded(text)
            return json_format.ParseDict({member: said} if member else said, class_(), ignore_unknown_fields=True)
        except (CodecError, json_format.ParseError, AttributeError, TypeError, ValueError) as error:
            raise CodecError(f"the answer cannot be made the message {name}: {error}") from None

    return answer


def _nothing(name: str) -> Callable[[bytes], Message]:
    return lambda _: CLASSES[name]()


_LIVE = _flag("ServerLiveResponse", "live")
_READY = _flag("ServerReadyResponse", "ready")
_MODEL_READY = _flag("ModelReadyResponse", "ready")

CALLS = {
    f"/{SERVICE}/{name}": Call(CLASSES[f"{name}Request"], ask, *answer)
    for name, ask, *answer in (
        ("ServerLive", _get(lambda _: "/v2/health/live"), *_LIVE),
        ("ServerReady", _get(lambda _: "/v2/health/ready"), *_READY),
        ("ModelReady", _get(lambda message: _of_model(message, "/ready")), *_MODEL_READY),
        ("ServerMetadata", _get(lambda _: "/v2"), _json("ServerMetadataResponse")),
        ("ModelMetadata", _get(_of_model), _json("ModelMetadataResponse")),
        ("ModelConfig", _get(lambda message: _of_model(message, "/config")), _json("ModelConfigResponse", "config")),
        ("ModelStatistics", _get(_statistics_path), _json("ModelStatisticsResponse")),
        ("RepositoryIndex", _ask_index, _json("RepositoryIndexResponse", "models")),
        ("RepositoryModelLoad", _change("load"), _nothing("RepositoryModelLoadResponse")),
        ("RepositoryModelUnload", _change("unload"), _nothing("RepositoryModelUnloadResponse")),
    )
}
"""Every call but those with tensors, by its path."""

CALLS[f"/{HEALTH}/Check"] = Call(CLASSES["HealthCheckRequest"], _ask_health, _serving, _not_serving)

MODEL_INFER = f"/{SERVICE}/ModelInfer"
MODEL_STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"
