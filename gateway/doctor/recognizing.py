"""Which server it is, what it speaks, and which models it has.

Not here: whether it works (`trials`), and what `dialect: auto` concludes from the same answers (`backend.questions`).
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote

from gateway.backend.questions import MLFLOW, TENSORFLOW, V2, Answer, ask_dialect, lists_openai_models, read_metadata
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

_INDEX, _DESCRIBED = "/v2/repository/index", "/openapi.json"
_LISTS_OF_V2 = (_INDEX, "/v2/models", _DESCRIBED)
_IN_PATHS = re.compile(r"/v2/models/([^/{}]+)(?:/|$)")

_NAMES: Mapping[str, Callable[[Any], Any]] = {
    _INDEX: lambda index: [entry.get("name") for entry in index],  # of Triton and MLServer
    "/v2/models": lambda listed: listed["models"],
    "/v1/models": lambda listed: listed["models"],
    _DESCRIBED: lambda described: [match[1] for each in described["paths"] if (match := _IN_PATHS.match(each))],
}
"""What lists models, and where the names are in its JSON; FastAPI describes the paths of a server by itself."""


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
    server = server._replace(models=await _models(asker, server.dialect))
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
        return Server(V2, metadata.title, metadata.is_binary)
    if b"ResourceNotFoundException" in first.body:
        return Server(V2, TORCHSERVE)
    if first.status == 200:  # it may answer everything with 200
        return None
    for path in ("/v2/health/live", "/v2/health/ready"):
        health = await asker.get(path)
        if health.status == 200 and not health.is_html:
            return Server(V2, "")
    return Server(V2, "") if await _listed(asker, _DESCRIBED) else None


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
    raise UnusableServerError(
        f"it is no server that the gateway can stand in front of: {said.answers}{what}.{named} {_WHAT_CAN_BE_DONE}"
    )


_WHAT_CAN_BE_DONE = (
    "It speaks neither V2 nor the JSON of TensorFlow Serving or MLflow. With --path, where it takes inferences, and "
    "--sample, a file with what it takes there, this command writes a description of it for the gateway"
)


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
            answer = await asker.post(path, json.dumps(question).encode())
            if unauthorized := asker.why_unauthorized(answer):
                raise UnusableServerError(unauthorized)
            if answer.status not in (404, 405, 501) and isinstance(answer.json, dict):
                return dialect
    return ""


async def _models(asker: Asker, dialect: str) -> tuple[str, ...]:
    """The models that the server lists; none if it lists none."""
    for path in {V2: _LISTS_OF_V2, TENSORFLOW: ("/v1/models",)}.get(dialect, ()):
        if found := await _listed(asker, path):
            return tuple(found)
    return (THE_MODEL,) if dialect == MLFLOW else ()


async def _listed(asker: Asker, path: str) -> list[str]:
    """The models in the answer to *path*, one of `_NAMES`; none if it has none."""
    try:
        answer = await (asker.post(path, b"{}") if path == _INDEX else asker.get(path))
        names = _NAMES[path](answer.json)
    except (NoAnswerError, TypeError, KeyError, AttributeError):
        return []
    listed = names[:MAX_MODELS] if isinstance(names, list) else []
    return list(dict.fromkeys(name for name in listed if isinstance(name, str) and name))


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
