"""Answers of the gateway itself, where no server has one: health, readiness, metadata and the index of models.

Servers of other dialects than V2 have none of the protocol's paths, and servers of V2 may lack some. For paths of no
model that no route leads to a backend, such as `/v2`, the gateway answers for all backends together (protocol 8.7): so
clients that first ask whether a server is there find one server, whatever backends are behind it.
"""

import asyncio
import math
from typing import Any

import msgspec

from gateway import __version__
from gateway.backend.asking import Body
from gateway.backend.attempt import Answer
from gateway.backend.metadata import MAX_BYTES
from gateway.backend.upstream import Upstream
from gateway.client.request import ClientRequest
from gateway.codec.dialects.description import v2_metadata
from gateway.errors import ErrorKind, GatewayError
from gateway.serving.call import ERROR_BYTES, Call
from gateway.serving.foreign import FRESH_S, LACKING, Foreign
from gateway.serving.speech import configured_metadata

MAX_ASKED_BYTES = 4096
"""The longest question for the index of models that is passed on."""

JSON = ("Content-Type", "application/json")

HEALTH = {"/health/live": b'{"live":true}', "/health/ready": b'{"ready":true}'}
"""The bodies of a healthy server's answers, by the path below `/v2`. KServe's client reads them; others the status."""

INDEX = "/v2/repository/index"
NAME = "tensor-gateway"

_READ = ("/v2", *(f"/v2{path}" for path in HEALTH))
"""The paths of no model that are asked for with GET and HEAD."""


# For one server of another dialect


async def answer(foreign: Foreign) -> None:
    """Answer a request that is no inference for a backend of another dialect. Raises `GatewayError`."""
    request, path = foreign.call.request, foreign.path
    asked = path.asked if request.method in ("GET", "HEAD") else None
    if path.model is None and asked in ("", *HEALTH):
        await _require_live(foreign)
        text = HEALTH.get(asked) or _server(foreign.dialect.name)
    elif path.model is not None and asked == "":
        text = await _model(foreign)
    elif path.model is not None and asked == "/ready":
        if not await foreign.is_ready():
            # 4xx is the protocol's way of saying no
            raise _refused(f"model {foreign.name!r} is not ready", 400)
        text = _ready(foreign.call)
    else:
        raise _refused(
            f"{request.method} {request.path.partition('?')[0]}: servers of dialect {foreign.dialect.name!r} have "
            "nothing like it; for these the gateway answers health, readiness, metadata and inferences"
        )
    await foreign.call.reply.whole(200, [JSON], (text,))


async def _require_live(foreign: Foreign) -> None:
    """Raise `GatewayError` unless the server runs."""
    path = foreign.live_path

    async def read(answer: Answer) -> None:
        text = await answer.read_beginning(ERROR_BYTES)
        if not foreign.dialect.is_live(answer.status, text):
            raise await foreign.call.backend_error(answer, text, hint=f" (GET {path})")

    if path:
        await foreign.call.question(foreign.path.before + path, read)
    elif not foreign.call.upstream.is_usable:
        raise GatewayError(ErrorKind.UNREACHABLE, "no endpoint of the backend is known to run")


async def _model(foreign: Foreign) -> bytes:
    """A model's metadata, from its server and the configuration. Raises `GatewayError` if neither describes it."""
    if not foreign.dialect.is_configured:
        foreign.path_of(foreign.paths.description or foreign.paths.ready)
    described = await foreign.description(FRESH_S)
    if not described.is_complete:
        await foreign.is_ready()  # a pattern of the configuration may match models that do not exist
    if not (described.inputs or described.outputs):
        raise _refused(
            f"nothing is known of model {foreign.name!r}: its server does not describe it, and neither does "
            f"`backends.{foreign.call.backend.name}.models` of the gateway's configuration"
        )
    return v2_metadata(foreign.name, described)


def _refused(words: str, status: int = 404) -> GatewayError:
    return GatewayError(ErrorKind.BACKEND_ERROR, words, status=status)


def _server(name: str, version: str = "") -> bytes:
    return msgspec.json.encode({"name": name, "version": version, "extensions": ["binary_tensor_data"]})


def _ready(call: Call) -> bytes:
    return msgspec.json.encode({"name": call.match.model, "ready": True})


# For one server of V2


async def instead(call: Call, status: int) -> bytes | None:
    """What the gateway answers where a V2 server says with *status* that it lacks the path; None if it has none."""
    method, match, path = call.request.method, call.match, call.match.v2_path
    # a 405 to HEAD says that the path exists; a path with a slash at its end is none of the protocol's
    is_lacking = status in LACKING and method in ("GET", "HEAD") and (method, status) != ("HEAD", 405)
    if not is_lacking or match.path.endswith("/"):
        return None
    if path.model is None:
        return HEALTH.get(path.asked) if call.upstream.is_usable else None
    if path.asked == "/ready":
        return _ready(call) if await _is_described(call) and call.upstream.is_usable else None
    return None if path.asked else configured_metadata(call)


async def _is_described(call: Call) -> bool:
    """Whether the server has the metadata of the model that it is asked to be ready with."""

    async def read(answer: Answer) -> bool:
        return answer.status == 200

    try:
        return await call.question(call.match.path.removesuffix("/ready"), read)
    except GatewayError:
        return False


# For all servers together


def is_for_all(request: ClientRequest) -> bool:
    """Whether the gateway answers *request* for all backends, if no route matches it."""
    path = _path_of(request)
    return request.method == "POST" if path == INDEX else path in _READ and request.method in ("GET", "HEAD")


async def answer_for_all(call: Call) -> None:
    """Answer for all backends, on a path for which `is_for_all` holds. Raises `GatewayError`."""
    path = _path_of(call.request)
    if path == INDEX:
        text = await _index(call)
    elif path == "/v2":
        text = _server(NAME, __version__)
    else:
        text = HEALTH[path.removeprefix("/v2")]
        down = [name for name, upstream in call.serving.upstreams.items() if not upstream.is_usable]
        if down and path.endswith("/ready"):
            words = f"not ready: all endpoints of {', '.join(down)} are down"
            raise GatewayError(ErrorKind.UNREACHABLE, words, sent=False)
    await call.reply.whole(200, [JSON], (text,))


def _path_of(request: ClientRequest) -> str:
    return request.path.partition("?")[0].rstrip("/")


async def _index(call: Call) -> bytes:
    """The index of the models of all backends that list theirs, in JSON, under the clients' names."""
    body = await call.body.read() if call.request.has_body else memoryview(b"")
    if len(body) > MAX_ASKED_BYTES:
        words = f"more than {MAX_ASKED_BYTES} bytes ask for the index of models"
        raise GatewayError(ErrorKind.MALFORMED_REQUEST, words)
    usable = [each for each in call.serving.upstreams.values() if each.is_usable]
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(_listed(call, each, bytes(body))) for each in usable]
    lists = [listed for each in asking if (listed := each.result()) is not None]
    if not lists:
        raise _refused("no backend lists its models")
    return msgspec.json.encode([model for listed in lists for model in listed])


async def _listed(call: Call, upstream: Upstream, body: bytes) -> list[Any] | None:
    """One backend's models under the clients' names; None if the backend has no index, or cannot be asked."""
    call.backend = upstream.plan  # that of the backend asked next as soon as this awaits

    async def read(answer: Answer) -> Any:
        text = await answer.read_whole(MAX_BYTES, "the index of models")
        return msgspec.json.decode(text) if answer.status == 200 else None

    fields = [*call.backend.headers.metadata(call.request), JSON]
    asked = call.asked(fields, Body(whole=body or b"{}"), INDEX, is_metadata=True, is_read_whole=True)
    try:
        call.plan.check_path(INDEX, upstream.plan)
        total_at = asyncio.get_running_loop().time() + upstream.plan.settings.timeouts.total
        total_at = min(total_at, call.request.deadline_s or math.inf)
        models = await upstream.call(asked, call.exchange.attempts, read, total_at=total_at)
    except (GatewayError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    names = call.plan.router.names_for_clients(upstream.name)
    return [_renamed(model, names) for model in models] if isinstance(models, list) else None


def _renamed(model: Any, names: dict[str, str]) -> Any:
    name = model.get("name") if isinstance(model, dict) else None
    return {**model, "name": names[name]} if isinstance(name, str) and name in names else model
