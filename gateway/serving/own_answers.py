"""Answers of the gateway itself, where a server has none: health, readiness and metadata (protocol 8).

Servers of other dialects than V2 have none of the protocol's paths; servers of V2 may lack some.
"""

import msgspec

from gateway.backend.attempt import Answer
from gateway.backend.upstream import Upstream
from gateway.codec import v2_metadata, v2_server_metadata
from gateway.errors import ErrorKind, GatewayError
from gateway.plan import BackendPlan
from gateway.policy.routing import Match, V2Path
from gateway.serving.call import Call
from gateway.serving.foreign import FRESH_S, Foreign
from gateway.serving.speech import configured_metadata

HEALTH_BYTES = 64 * 1024
"""How much of an answer about health is read."""

LACKING = frozenset({404, 405, 501})
"""Statuses by which a server says that it does not have a path, or not with this method."""

JSON = ("Content-Type", "application/json")

HEALTH = {"/health/live": b'{"live":true}', "/health/ready": b'{"ready":true}'}
"""The bodies of a healthy server's answers, by the path below `/v2`. KServe's client reads them; others the status."""


async def answer(foreign: Foreign) -> None:
    """Answer a request that is no inference for a backend of another dialect. Raises `GatewayError`."""
    request, path = foreign.call.request, foreign.path
    asked = path.asked if request.method in ("GET", "HEAD") else None
    if path.model is None and asked in ("", *HEALTH):
        await _require_live(foreign)
        text = HEALTH.get(asked) or v2_server_metadata(foreign.dialect.name)
    elif path.model is not None and asked in ("", "/ready"):
        text = await (_model_ready if asked else _model)(foreign)
    else:
        words = (
            f"{request.method} {request.path.partition('?')[0]}: servers of dialect {foreign.dialect.name!r} have "
            "nothing like it; for these the gateway answers health, readiness, metadata and inferences"
        )
        raise GatewayError(ErrorKind.BACKEND_ERROR, words, status=404)
    await foreign.call.reply.whole(200, [JSON], text)


async def _require_live(foreign: Foreign) -> None:
    """Raise `GatewayError` unless the server runs."""
    path = foreign.live_path

    async def read(answer: Answer) -> None:
        text = await answer.read_beginning(HEALTH_BYTES)
        if not foreign.dialect.is_live(answer.status, text):
            raise await foreign.error(answer, text, hint=foreign.live_hint)

    if path:
        await foreign.question(foreign.path.before + path, read)
    elif not foreign.is_usable:
        raise GatewayError(ErrorKind.UNREACHABLE, "no endpoint of the backend is known to run")


async def _model_ready(foreign: Foreign) -> bytes:
    model = foreign.call.match.model
    if not await foreign.is_ready():
        # 4xx is the protocol's way of saying no
        raise GatewayError(ErrorKind.BACKEND_ERROR, f"model {model!r} is not ready", status=400)
    return msgspec.json.encode({"name": model, "ready": True})


async def _model(foreign: Foreign) -> bytes:
    """A model's metadata, from its server and the configuration. Raises `GatewayError` if neither describes it."""
    dialect, (_, name, version, _) = foreign.dialect, foreign.path
    model = name or ""
    if not dialect.is_configured:
        foreign.path_of(dialect.description_path(model, version) or dialect.ready_path(model, version))
    described = await foreign.description(FRESH_S)
    if not (described.by_server or dialect.is_configured):
        await foreign.is_ready()  # a pattern of the configuration may match models that do not exist
    description = described.model
    if not (description.inputs or description.outputs):
        words = (
            f"nothing is known of model {model!r}: its server does not describe it, and neither does "
            f"`backends.{foreign.backend.name}.models` of the gateway's configuration"
        )
        raise GatewayError(ErrorKind.BACKEND_ERROR, words, status=404)
    return v2_metadata(foreign.call.match.model or "", description)


# For servers of V2


def instead(match: Match, backend: BackendPlan, method: str, status: int, *, is_usable: bool) -> bytes | None:
    """The gateway's answer if a server of V2 says with *status* that it lacks a path; None if the gateway has none.

    *is_usable*: whether the backend has an endpoint that is not known to be down.
    """
    # a 405 to HEAD says that the path exists; a path with a slash at its end is none of the protocol's
    if method not in ("GET", "HEAD") or (method == "HEAD" and status == 405) or match.path.endswith("/"):
        return None
    path = match.v2_path
    if path.model is None:
        return HEALTH.get(path.asked) if is_usable else None
    return None if path.asked else configured_metadata(backend, match)


async def ready_by_metadata(call: Call, upstream: Upstream, backend: BackendPlan) -> bytes | None:
    """The answer that a model is ready, if a server of V2 lacks this path but has the model's metadata; else None."""
    path = call.match.v2_path
    if path.model is None or path.asked != "/ready" or call.request.method not in ("GET", "HEAD"):
        return None

    async def read(answer: Answer) -> bool:
        return answer.status == 200

    try:
        if not await call.question(upstream, backend, call.match.path.removesuffix("/ready"), read):
            return None
    except GatewayError:
        return None
    return msgspec.json.encode({"name": call.match.model, "ready": True}) if upstream.is_usable else None


def hint(method: str, path: V2Path) -> str:
    """Words to add to the server's own if it does not have *path*; empty for paths that every server should have."""
    if path.asked in ("", "/ready", "/infer") or path.asked.startswith("/health/"):
        return ""
    whose = "/models/MODEL" if path.model else ""
    return f" ({method} /v2{whose}{path.asked} is an extension that this server does not have)"
