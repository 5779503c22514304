"""Paths of no model, such as `/v2`, that no route leads to a backend: the gateway answers for all backends together.

So clients that first ask whether a server is there find one server, whatever backends are behind it (protocol 8.7).
Not here: the gateway's answers in place of one backend (`own_answers`).
"""

from typing import Any

import msgspec

from gateway import __version__
from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer
from gateway.backend.metadata import MAX_BYTES
from gateway.backend.upstream import Upstream
from gateway.client.request import ClientRequest
from gateway.errors import ErrorKind, GatewayError
from gateway.plan import Plan
from gateway.serving.call import Call
from gateway.serving.own_answers import HEALTH, JSON

MAX_ASKED_BYTES = 4096
"""The longest question for the index of models that is passed on."""

INDEX = "/v2/repository/index"
NAME = "tensor-gateway"

_READ = ("/v2", *(f"/v2{path}" for path in HEALTH))
"""The paths that are asked for with GET and HEAD."""


def is_asked(request: ClientRequest) -> bool:
    """Whether the gateway answers *request* for all backends, if no route matches it."""
    path = _path_of(request)
    return request.method == "POST" if path == INDEX else path in _READ and request.method in ("GET", "HEAD")


async def answer(call: Call) -> None:
    """Answer for all backends, on a path for which `is_asked` holds. Raises `GatewayError`."""
    path = _path_of(call.request)
    if path == INDEX:
        text = await _index(call)
    elif path == "/v2":
        text = msgspec.json.encode({"name": NAME, "version": __version__, "extensions": ["binary_tensor_data"]})
    else:
        text = HEALTH[path.removeprefix("/v2")]
        down = [name for name, upstream in call.upstreams.items() if not upstream.is_usable]
        if down and path.endswith("/ready"):
            words = f"not ready: all endpoints of {', '.join(down)} are down"
            raise GatewayError(ErrorKind.UNREACHABLE, words, sent=False)
    await call.reply.whole(200, [JSON], text)


def _path_of(request: ClientRequest) -> str:
    return request.path.partition("?")[0].rstrip("/")


async def _index(call: Call) -> bytes:
    """The index of the models of all backends that list theirs, in JSON, under the clients' names."""
    body = await call.body.read() if call.request.has_body else memoryview(b"")
    if len(body) > MAX_ASKED_BYTES:
        raise GatewayError(
            ErrorKind.MALFORMED_REQUEST, f"more than {MAX_ASKED_BYTES} bytes ask for the index of models"
        )
    joined: list[Any] = []
    has_any = False
    for name, upstream in call.upstreams.items():
        listed = await _listed(call, name, upstream, bytes(body))
        has_any = has_any or listed is not None
        joined += _renamed(call.plan, name, listed or [])
    if not has_any:
        raise GatewayError(ErrorKind.BACKEND_ERROR, "no backend lists its models", status=404)
    return msgspec.json.encode(joined)


async def _listed(call: Call, name: str, upstream: Upstream, body: bytes) -> list[Any] | None:
    """One backend's index of its models; None if the backend has none, or cannot be asked."""
    backend = call.plan.backends[name]

    async def read(answer: Answer) -> list[Any] | None:
        if answer.status != 200:
            return None
        try:
            said = msgspec.json.decode(await answer.read_whole(MAX_BYTES, "the index of models"))
        except msgspec.DecodeError:
            return None
        return said if isinstance(said, list) else None

    fields = [*backend.headers.metadata(call.request), ("Content-Type", "application/json")]
    asked = BackendRequest(
        "POST", INDEX, call.with_own(fields), Body(whole=body or b"{}"), is_metadata=True, is_read_whole=True
    )
    try:
        call.plan.check_path(INDEX, backend)
        return await upstream.call(asked, call.exchange.attempts, read, total_at=call.begin_total(backend))
    except GatewayError:
        return None


def _renamed(plan: Plan, backend: str, models: list[Any]) -> list[Any]:
    """*models* of *backend*, with the clients' names in place of the backend's."""
    names = plan.router.names_for_clients(backend)
    return [
        {**model, "name": names.get(model["name"], model["name"])}
        if isinstance(model, dict) and isinstance(model.get("name"), str)
        else model
        for model in models
    ]
