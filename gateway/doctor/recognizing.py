"""Which server it is, what it speaks, and which models it has.

Not here: whether it works (`trials`), and what `dialect: auto` concludes from the same answers (`backend.questions`).
"""

import json
import re
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

from gateway.backend.questions import (
    MLFLOW,
    TENSORFLOW,
    V2,
    Answer,
    ask_dialect,
    lists_openai_models,
    read_metadata,
)
from gateway.config.values import nearest, shortened
from gateway.doctor.asking import Asker, NoAnswerError
from gateway.doctor.report import Report, UnusableServerError

MAX_MODELS = 1000
"""The most models of a server that are looked at."""

MAX_SHOWN = 10
"""The most models that a line names."""

TORCHSERVE = "TorchServe"
"""It says neither its version nor anything else below `/v2`."""

THE_MODEL = "model"
"""What the only model of a server is called that gives it no name."""

_IN_PATHS = re.compile(r"/v2/models/([^/{}]+)(?:/|$)")


class Server(NamedTuple):
    """What was found out about a server."""

    dialect: str
    title: str
    """Its name and version, as far as it says them."""
    says_binary: bool = False
    """Whether it lists the binary extension in `GET /v2`."""
    models: tuple[str, ...] = ()
    """Those that it lists; many servers list none."""


async def recognize(asker: Asker, first: Answer, model: str, report: Report) -> Server:
    """Which server answers; *first* is its answer to `GET /v2`. Raises `UnusableServerError` and `NoAnswerError`."""
    report.heading("The server")
    server = await _v2(asker, first) or await _other(asker, first, model)
    server = server._replace(models=await _models(asker, server))
    words = {
        V2: "it speaks the V2 (Open Inference) protocol",
        TENSORFLOW: "it speaks the REST API of TensorFlow Serving, which is KServe's V1 protocol",
        MLFLOW: "it is MLflow's scoring server",
    }[server.dialect]
    if server.title == TORCHSERVE:
        words = "with service_envelope=kservev2 in its config.properties it speaks the V2 (Open Inference) protocol"
    report.ok(f"{server.title}: {words}" if server.title else words)
    if server.says_binary:
        report.note(
            "it says that it reads binary tensors itself (binary_tensor_data): clients can use it without a gateway, "
            "and a gateway in front of it can pass binary through as it is"
        )
    if server.dialect != V2:
        report.set("dialect", server.dialect, "what the server speaks")
    return server


async def _v2(asker: Asker, first: Answer) -> Server | None:
    """What *first* or the health says of a V2 server; None if it is none."""
    metadata = read_metadata(first)
    if metadata is not None:
        return Server(V2, shortened(f"{metadata.name} {metadata.version}".strip()), metadata.is_binary)
    if b"ResourceNotFoundException" in first.body:
        return Server(V2, TORCHSERVE)
    if first.status == 200:  # it may answer everything with 200
        return None
    for path in ("/v2/health/live", "/v2/health/ready"):
        health = await asker.get(path)
        if health.status == 200 and not health.is_html:
            return Server(V2, "")
    return Server(V2, "") if await _paths_of_v2(asker) else None


async def _other(asker: Asker, first: Answer, model: str) -> Server:
    """What a server is that has nothing below `/v2`. Raises `UnusableServerError` if it is none that is known."""
    said = await ask_dialect(asker.get)
    if said.dialect == MLFLOW:
        version = (await asker.get("/version")).body.decode(errors="replace").strip()
        return Server(MLFLOW, f"MLflow {shortened(version)}")
    if said.dialect:
        return Server(said.dialect, "")
    if model:
        if (await asker.get(_path(model))).status == 200:
            return Server(V2, "")
        if dialect := await _takes_inferences(asker, model):
            return Server(dialect, "")
    what = ""
    if lists_openai_models(await asker.get("/v1/models")):
        what = "; it lists models in OpenAI's interface, as servers of language models do, which is another"
    elif not model:
        what = ". If it has nothing but inference, name the model with --model"
    named = f" Its answers name {shortened(first.headers['server'])}." if "server" in first.headers else ""
    raise UnusableServerError(f"it is no server that the gateway can stand in front of: {said.answers}{what}.{named}")


async def _takes_inferences(asker: Asker, model: str) -> str:
    """The dialect in which a server that answers nothing else reads inferences of *model*; empty if there is none.

    Raises `UnusableServerError` if it needs credentials.
    """
    rows = [[0.1, 0.2, 0.3, 0.4]]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": rows[0]}
    questions_by_dialect = {
        V2: (f"{_path(model)}/infer", {"inputs": [tensor]}),
        TENSORFLOW: (f"/v1/models/{quote(model, safe='')}:predict", {"instances": rows}),
        MLFLOW: ("/invocations", {"inputs": rows}),
    }
    for dialect, (path, question) in questions_by_dialect.items():
        with suppress(NoAnswerError):
            reply = await asker.post(path, json.dumps(question).encode())
            if unauthorized := asker.why_unauthorized(reply):
                raise UnusableServerError(unauthorized)
            if reply.status not in (404, 405, 501) and isinstance(reply.json, dict):
                return dialect
    return ""


async def _models(asker: Asker, server: Server) -> tuple[str, ...]:
    """The models that the server lists; none if it lists none."""
    if server.dialect == MLFLOW:
        return (THE_MODEL,)
    found: list[Any] = []
    if server.dialect == TENSORFLOW:
        found = _member((await asker.get("/v1/models")).json, "models")
    else:
        index = await _asked_for_index(asker)
        if isinstance(index, list):
            found = [entry.get("name") for entry in index if isinstance(entry, dict)]
        found = found or _member((await asker.get("/v2/models")).json, "models") or await _paths_of_v2(asker)
    names = dict.fromkeys(name for name in found[:MAX_MODELS] if isinstance(name, str) and name)
    return tuple(names)


async def _asked_for_index(asker: Asker) -> Any:
    """The answer to Triton's and MLServer's question for all models; None without one."""
    try:
        reply = await asker.post("/v2/repository/index", b"{}")
    except NoAnswerError:
        return None
    return reply.json if reply.status == 200 else None


async def _paths_of_v2(asker: Asker) -> list[str]:
    """The models in the paths that a FastAPI server documents of itself."""
    paths = (await asker.get("/openapi.json")).json
    described = paths.get("paths") if isinstance(paths, dict) else None
    if not isinstance(described, dict):
        return []
    return [match[1] for path in described if (match := _IN_PATHS.match(path))]


def _member(document: Any, name: str) -> list[Any]:
    """The list *name* of a JSON object; empty if there is none."""
    listed = document.get(name) if isinstance(document, dict) else None
    return listed if isinstance(listed, list) else []


def choose_model(server: Server, asked_for: str, report: Report) -> str:
    """The model to try: *asked_for*, or the only one; empty, after words about it, if there is no such one."""
    shown = ", ".join(shortened(name) for name in server.models[:MAX_SHOWN])
    more = f" and {len(server.models) - MAX_SHOWN} more" if len(server.models) > MAX_SHOWN else ""
    if not asked_for:
        if len(server.models) == 1:
            return server.models[0]
        if server.models:
            report.note(f"its models: {shown}{more}. To try one: --model {server.models[0]}")
        else:
            report.note("it does not list its models: to try one, name it with --model")
        return ""
    if server.dialect != MLFLOW and server.models and asked_for not in server.models:
        close = nearest(asked_for, list(server.models))
        report.problem(
            f"it has no model {shortened(asked_for)!r}{f', did you mean {close!r}?' if close else '.'} "
            f"Its models: {shown}{more}"
        )
        return ""
    return asked_for


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"
