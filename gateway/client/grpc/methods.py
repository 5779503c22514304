"""The methods of the two services: what each asks for over HTTP, and how its answer becomes a message.

One row a method. Not here: `ModelInfer` and `ModelStreamInfer`, whose messages hold tensors (`inference`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from google.protobuf import json_format

from gateway.client.grpc.inference import model_path, parameters_of
from gateway.client.grpc.messages import CLASSES, Message
from gateway.errors import CodecError

SERVICE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
MODEL_INFER = f"/{SERVICE}/ModelInfer"
MODEL_STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"

_SERVING, _NOT_SERVING = 1, 2  # the values of `status` in the answer of gRPC's health service


class Method(NamedTuple):
    """One row: how a method is asked over HTTP, and answered."""

    request: Any
    response: Any
    """The classes of its messages."""
    path: Callable[[Message], str]
    """Makes the path of a message. Raises `CodecError`."""
    body: Callable[[Message], dict[str, Any]] | None = None
    """Makes the JSON that a POST sends; None: it is a GET."""
    flag: str = ""
    """The field that says whether something is ready: a server's refusal is an answer then, too."""
    member: str = ""
    """The field that the JSON of an answer becomes; empty: that JSON is the whole message."""

    def answer(self, text: bytes) -> Message:
        """The message of the body of a good answer; members that it does not have are left. Raises `CodecError`."""
        if not self.response.DESCRIPTOR.fields:
            return self.response()
        try:
            said = msgspec.json.decode(text)
            if self.flag:
                return self.said(all(said.get(name) not in (False, "False", "false") for name in ("live", "ready")))
            said = {self.member: said} if self.member else said
            return json_format.ParseDict(said, self.response(), ignore_unknown_fields=True)
        except (msgspec.DecodeError, json_format.ParseError, *_NO_MESSAGE) as error:
            if self.flag:  # a good status says yes, whatever stands behind it
                return self.said(True)
            name = self.response.DESCRIPTOR.name
            raise CodecError(f"the answer cannot be made the message {name}: {error}") from None

    def said(self, is_so: bool) -> Message:
        """The message with the `flag`."""
        value = (_SERVING if is_so else _NOT_SERVING) if self.flag == "status" else is_so
        return self.response(**{self.flag: value})


_NO_MESSAGE = (AttributeError, TypeError, ValueError, RecursionError)


def _repository(message: Message) -> str:
    repository = message.repository_name
    return f"/v2/repository/{quote(repository, safe='')}" if repository else "/v2/repository"


def _statistics_path(message: Message) -> str:
    return model_path(message, suffix="/stats") if message.name else "/v2/models/stats"


def _changing(suffix: str) -> Callable[[Message], str]:
    """Where a model is loaded or unloaded."""
    return lambda message: _repository(message) + model_path(message, "model_", suffix).removeprefix("/v2")


def _change(message: Message) -> dict[str, Any]:
    parameters = parameters_of(message)
    return {"parameters": parameters} if parameters else {}


def _health_path(message: Message) -> str:
    if message.service not in ("", SERVICE):
        raise CodecError(f"there is no service {message.service[:100]!r}")
    return "/v2/health/ready"


def _row(name: str, path: Callable[[Message], str], **answer: Any) -> tuple[str, Method]:
    return f"/{SERVICE}/{name}", Method(CLASSES[f"{name}Request"], CLASSES[f"{name}Response"], path, **answer)


def _ready_alone(message: Message) -> dict[str, Any]:
    return {"ready": True} if message.ready else {}


METHODS = dict(
    (
        _row("ServerLive", lambda _: "/v2/health/live", flag="live"),
        _row("ServerReady", lambda _: "/v2/health/ready", flag="ready"),
        _row("ModelReady", lambda message: model_path(message, suffix="/ready"), flag="ready"),
        _row("ServerMetadata", lambda _: "/v2"),
        _row("ModelMetadata", model_path),
        _row("ModelConfig", lambda message: model_path(message, suffix="/config"), member="config"),
        _row("ModelStatistics", _statistics_path),
        _row("RepositoryIndex", lambda message: f"{_repository(message)}/index", body=_ready_alone, member="models"),
        _row("RepositoryModelLoad", _changing("/load"), body=_change),
        _row("RepositoryModelUnload", _changing("/unload"), body=_change),
    )
)
"""Every method but those with tensors, by its path."""

METHODS[f"/{HEALTH}/Check"] = Method(
    CLASSES["HealthCheckRequest"], CLASSES["HealthCheckResponse"], _health_path, flag="status"
)
