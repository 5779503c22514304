"""Paths that belong to no model where no route gives them a backend: the gateway answers for all backends together.

So clients that first ask whether the server is there find one server, whatever backends are behind it (protocol 8.7).
Not here: paths that a route leads to a backend, and what the gateway answers in the place of one
backend (`own_answers`).
"""

from collections.abc import Awaitable, Callable, Mapping
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
from gateway.serving.own_answers import JSON, LIVE, READY

MAX_ASKED_BYTES = 4096
"""The longest question for the index of models that is passed on."""

INDEX = "/v2/repository/index"
NAME = "tensor-gateway"


def is_asked(request: ClientRequest) -> bool:
    """Whether *request* asks for what the gateway answers for all backends."""
    return (request.method, _path_of(request)) in _ANSWERS


async def answer(call: Call) -> None:
    """Answer for all backends. Raises `GatewayError`."""
    request = call.request
    await call.reply.whole(200, [JSON], await _ANSWERS[request.method, _path_of(request)](call))


def _path_of(request: ClientRequest) -> str:
    return request.path.partition("?")[0].rstrip("/")


async def _live(_: Call) -> bytes:
    return LIVE


async def _ready(call: Call) -> bytes:
    down = [name for name, upstream in call.upstreams.items() if not upstream.is_usable]
    if down:
        words = f"not ready: all endpoints of {', '.join(down)} are down"
        raise GatewayError(ErrorKind.UNREACHABLE, words, sent=False)
    return READY


async def _server(_: Call) -> bytes:
    return msgspec.json.encode({"name": NAME, "version": __version__, "extensions": ["binary_tensor_data"]})


async def _index(call: Call) -> bytes:
    """The models of all backends that list them, under their names for clients."""
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
    """What one backend says of its models; None if it has no such list, or cannot be asked."""
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
    """*models* of *backend*, under the names that clients have for them."""
    names = plan.router.names_for_clients(backend)
    return [
        {**model, "name": names.get(model["name"], model["name"])}
        if isinstance(model, dict) and isinstance(model.get("name"), str)
        else model
        for model in models
    ]


_ANSWERS: Mapping[tuple[str, str], Callable[[Call], Awaitable[bytes]]] = {
    **{(method, "/v2/health/live"): _live for method in ("GET", "HEAD")},
    **{(method, "/v2/health/ready"): _ready for method in ("GET", "HEAD")},
    **{(method, "/v2"): _server for method in ("GET", "HEAD")},
    ("POST", INDEX): _index,
}
