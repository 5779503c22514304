"""Which server it is, what it speaks, and which models it has.

Not here: whether inferences work (`trials`), and the conclusions of `dialect: auto` (`backend.questions`).
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Said
from gateway.backend.questions import (
    MLFLOW,
    TENSORFLOW,
    V2,
    Answer,
    lists_openai_models,
    said_after,
    said_of_v2,
)
from gateway.config.values import first_of, nearest, shortened
from gateway.doctor.asking import Asker
from gateway.doctor.report import Report, UnusableServerError
from gateway.doctor.trials import Model

MAX_MODELS = 1000
"""How many models of a server are looked at."""

MAX_SHOWN = 10
"""How many models a line names."""

TORCHSERVE = "TorchServe"
"""It says neither its version nor anything else below `/v2`."""

THE_MODEL = "model"
"""What the only model of a server is called that gives it no name."""

_INDEX, _DESCRIBED = "/v2/repository/index", "/openapi.json"
_LISTS = {V2: (_INDEX, "/v2/models", _DESCRIBED), TENSORFLOW: ("/v1/models",)}
_IN_PATHS = re.compile(r"/v2/models/([^/{}]+)(?:/|$)")

_NAMES: Mapping[str, Callable[[Any], Any]] = {
    _INDEX: lambda index: [entry.get("name") for entry in index],  # of Triton and MLServer
    "/v2/models": lambda listed: listed["models"],
    "/v1/models": lambda listed: listed["models"],
    _DESCRIBED: lambda described: [match[1] for each in described["paths"] if (match := _IN_PATHS.match(each))],
}
"""What lists models, and where the names are in its JSON; FastAPI describes the paths of a server by itself."""


_SPEAKS = {
    V2: "it speaks the V2 (Open Inference) protocol",
    TENSORFLOW: "it speaks the REST API of TensorFlow Serving, which is KServe's V1 protocol",
    MLFLOW: "it is MLflow's scoring server",
}


async def recognize(asker: Asker, first: Answer, model: str, report: Report) -> Said:
    """Which server answers; *first* is its answer to `GET /v2`. Raises `UnusableServerError` and `NoAnswerError`."""
    report.heading("The server")
    said = await _v2(asker, first) or await _other(asker, first, model)
    words = _SPEAKS[said.dialect]
    if said.title == TORCHSERVE:
        words = f"with service_envelope=kservev2 in its config.properties {words}"
    report.ok(f"{said.title}: {words}" if said.title else words)
    if said.is_binary:
        report.note(
            "it says that it reads binary tensors itself (binary_tensor_data): clients can use it without a gateway, "
            "and a gateway in front of it can pass binary through as it is"
        )
    if said.dialect != V2:
        report.set("dialect", said.dialect, "what the server speaks")
    return said


async def _v2(asker: Asker, first: Answer) -> Said | None:
    """The V2 server, recognized by *first* or by its health path; None if it is no V2 server."""
    said = said_of_v2(first)
    if said.dialect:
        return said
    if first.is_of_torchserve:
        return Said(V2, title=TORCHSERVE)
    if first.status == 200:  # some servers answer every path with 200
        return None
    for path in ("/v2/health/live", "/v2/health/ready"):
        health = await asker.get(path)
        if health.status == 200 and not health.is_html:
            return Said(V2)
    return Said(V2) if await _listed(asker, _DESCRIBED) else None


async def _other(asker: Asker, first: Answer, model: str) -> Said:
    """The kind of a server without paths below `/v2`. Raises `UnusableServerError` if no known kind fits."""
    said = await said_after(first, asker.get)
    if said.dialect:
        return said
    if model:
        if (await asker.get(Model(model).path)).status == 200:
            return Said(V2)
        if dialect := await _takes_inferences(asker, model):
            return Said(dialect)
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
    """The dialect in which the server takes inferences of *model*, if it answers nothing else; empty for none.

    Raises `UnusableServerError` if it needs credentials.
    """
    rows = [[0.1, 0.2, 0.3, 0.4]]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": rows[0]}
    questions_by_dialect = {
        V2: (f"{Model(model).path}/infer", {"inputs": [tensor]}),
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


async def choose_model(asker: Asker, dialect: str, asked_for: str, report: Report) -> str:
    """The model to try: *asked_for*, or the server's only one; else empty, and the report says why."""
    if dialect == MLFLOW:
        return asked_for or THE_MODEL
    models: list[str] = []
    for path in _LISTS[dialect]:
        models = models or await _listed(asker, path)
    shown = first_of([*map(shortened, models)], MAX_SHOWN)
    if asked_for:
        if not models or asked_for in models:
            return asked_for
        close = nearest(asked_for, models)
        meant = f", did you mean {close!r}?" if close else "."
        report.problem(f"it has no model {shortened(asked_for)!r}{meant} Its models: {shown}")
    elif len(models) == 1:
        return models[0]
    elif models:
        report.note(f"its models: {shown}. To try one: --model {models[0]}")
    else:
        report.note("it does not list its models: to try one, name it with --model")
    return ""


async def _listed(asker: Asker, path: str) -> list[str]:
    """The models in the answer to *path*, one of `_NAMES`; empty if the answer lists none."""
    try:
        answer = await (asker.post(path, b"{}") if path == _INDEX else asker.get(path))
        names = _NAMES[path](answer.json)
    except (NoAnswerError, TypeError, KeyError, AttributeError):
        return []
    listed = names[:MAX_MODELS] if isinstance(names, list) else []
    return list(dict.fromkeys(name for name in listed if isinstance(name, str) and name))
