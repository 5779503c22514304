"""The methods of the two services: what each asks for over HTTP, and how its answer becomes a message.

One row a method.
"""

from collections.abc import Generator
from typing import Any, NamedTuple

import msgspec
from google.protobuf import json_format

from gateway.client.grpc.messages import CLASSES, Message, parameters_of, path_of
from gateway.errors import CodecError, ErrorKind, GatewayError

SERVICE = "inference.GRPCInferenceService"
MODEL_INFER = f"/{SERVICE}/ModelInfer"
MODEL_STREAM_INFER = f"/{SERVICE}/ModelStreamInfer"

MAX_PARAMETERS = 1024  # of a call without tensors; they become JSON in one step
_MEMBERS, _ENTRIES = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])
_NO_MESSAGE = (msgspec.DecodeError, json_format.ParseError, AttributeError, TypeError, ValueError, RecursionError)


class Method(NamedTuple):
    """One row: how a method is asked over HTTP, and answered."""

    name: str
    """Of the method, or of the service if the method is `Check`; its messages begin with it."""
    verb: str
    target: str
    """The path; `{model}` and `{repository}` are what the message names, `{models}` is a model or all of them."""
    flag: str = ""
    """The field that says whether something is ready: a refusal that says no is an answer then, too."""
    member: str = ""
    """The field that the JSON of an answer becomes; empty: that JSON is the whole message."""

    def path(self, asked: Message, max_bytes: float) -> str:
        """The path for the message *asked*, whose names have *max_bytes*. Raises `CodecError` and `GatewayError`."""
        if getattr(asked, "service", "") not in ("", SERVICE):
            # not NO_ROUTE, which would mean that it is not ready (`flag`)
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, f"there is no service {asked.service[:100]!r}", status=404)
        name = getattr(asked, "model_name", getattr(asked, "name", ""))
        others = getattr(asked, "version", ""), getattr(asked, "repository_name", "")
        return path_of(self.target, max_bytes, name, *others)

    def body(self, asked: Message) -> bytes:
        """The JSON that a POST sends for the message *asked*. Raises `CodecError`."""
        said: dict[str, Any] = {"ready": True} if getattr(asked, "ready", False) else {}
        if getattr(asked, "parameters", None):
            if len(asked.parameters) > MAX_PARAMETERS:
                raise CodecError(f"the message has more than {MAX_PARAMETERS} parameters")
            said["parameters"] = parameters_of(asked)
        return msgspec.json.encode(said)

    def answer(self, text: bytes) -> Generator[None, None, Message]:
        """The message of a good answer's body, made in steps; members that it lacks are left. Raises `CodecError`."""
        response = CLASSES[f"{self.name}Response"]()
        try:
            if self.flag:
                said = {bytes(each) for name, each in _MEMBERS.decode(text).items() if name in ("live", "ready")}
                return self.said(not said & {b"false", b'"false"', b'"False"'})
            if response.DESCRIPTOR.fields:
                yield from _fill(response, {self.member: msgspec.Raw(text)} if self.member else _MEMBERS.decode(text))
        except _NO_MESSAGE as error:
            if self.flag:  # a good status says yes, whatever stands behind it
                return self.said(True)
            raise CodecError(f"the answer cannot be made the message {self.name}Response: {error}") from None
        return response

    def said(self, is_so: bool) -> Message:
        """The message with the `flag`; the `status` of gRPC's health service is SERVING (1) or NOT_SERVING (2)."""
        value = 2 - is_so if self.flag == "status" else is_so
        return CLASSES[f"{self.name}Response"](**{self.flag: value})


def _fill(message: Message, members: dict[str, msgspec.Raw]) -> Generator[None, None, None]:
    """Write *members* of JSON into *message*. Each message inside of it, or entry of a map, is a step of its own.

    Protobuf's own reader takes 25 us for each model of an index, and cannot pause. Raises one of `_NO_MESSAGE`.
    """
    fields, rest = message.DESCRIPTOR.fields_by_name, {}
    for name, value in members.items():
        inside = getattr(message, name) if name in fields and fields[name].message_type is not None else None
        if inside is None or bytes(value) == b"null":
            rest[name] = msgspec.json.decode(value)
        elif hasattr(inside, "add"):
            for each in _ENTRIES.decode(value):
                yield from _fill(inside.add(), _MEMBERS.decode(each))
        elif hasattr(inside, "SetInParent"):
            inside.SetInParent()  # also where it has no members
            yield from _fill(inside, _MEMBERS.decode(value))
        else:
            for key, each in _MEMBERS.decode(value).items():
                said = {name: {key: msgspec.json.decode(each)}}
                message.MergeFrom(json_format.ParseDict(said, type(message)(), ignore_unknown_fields=True))
                yield
    json_format.ParseDict(rest, message, ignore_unknown_fields=True)
    yield


_ROWS = (
    Method("ServerLive", "GET", "/v2/health/live", flag="live"),
    Method("ServerReady", "GET", "/v2/health/ready", flag="ready"),
    Method("ModelReady", "GET", "/v2{model}/ready", flag="ready"),
    Method("ServerMetadata", "GET", "/v2"),
    Method("ModelMetadata", "GET", "/v2{model}"),
    Method("ModelConfig", "GET", "/v2{model}/config", member="config"),
    Method("ModelStatistics", "GET", "/v2{models}/stats"),
    Method("RepositoryIndex", "POST", "/v2/repository{repository}/index", member="models"),
    Method("RepositoryModelLoad", "POST", "/v2/repository{repository}{model}/load"),
    Method("RepositoryModelUnload", "POST", "/v2/repository{repository}{model}/unload"),
)
METHODS = {f"/{SERVICE}/{row.name}": row for row in _ROWS}
"""Every method but those with tensors, by its path."""

METHODS["/grpc.health.v1.Health/Check"] = Method("HealthCheck", "GET", "/v2/health/ready", flag="status")
