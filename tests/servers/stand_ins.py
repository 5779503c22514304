"""Strict stand-ins for servers that cannot be installed here, or that need a model which cannot be had.

Each answers in the form that the server publishes, and refuses whatever that form does not have: an unknown member, a
missing one, another type. Real servers ignore more. Their models are a few lines of arithmetic, `embed`, `relevance`
and `chances`, so that a test knows the right answers.

| name | form | made from |
|---|---|---|
| openai | POST /v1/embeddings; it answers in another order than asked, as `index` allows | OpenAI's API reference |
| tei | POST /embed, /rerank, /predict; 32 inputs at most in a request | docs/openapi.json of its version 1.7 |
| ollama | POST /api/embed, /api/generate | Ollama's docs/api.md |
| llama_cpp | POST /embedding, /completion, /v1/rerank | llama.cpp, tools/server/README.md |
| sagemaker | GET /ping, POST /invocations | the contract of containers, and the JSON of the built-in algorithms |
| vertex | POST /predict with `instances` and `parameters` | the requirements for Vertex AI's custom containers |
| h2o | POST /model/score: numbers are texts both ways | the OpenAPI file of H2O MLOps' scoring API |

`async with stand_in("openai") as url` runs one in the loop of the test.
"""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from aiohttp import web

Handler = Callable[[Any], Any]
TEI_BATCH = 32
"""How many inputs text-embeddings-inference takes in one request unless told otherwise."""


# The models


def embed(text: str) -> list[float]:
    """Three numbers of FP32 that depend on *text*; few of them are short decimals."""
    values = np.array([len(text) / 3, sum(text.encode()) / 7, len(text.encode()) * 0.1], np.float32)
    return [float(value) for value in values]


def relevance(query: str, text: str) -> float:
    """How well *text* answers *query*: different for texts of different bytes."""
    return float(np.float32(1 / (1 + abs(sum(query.encode()) - sum(text.encode())))))


def chances(text: str) -> list[tuple[str, float]]:
    """The labels of *text* with their scores, the best first, as classifiers give them."""
    good = sum(text.encode()) % 100 / 100
    return sorted([("good", good), ("bad", 1 - good)], key=lambda pair: -pair[1])


# Reading strictly


class Refused(Exception):  # noqa: N818  an answer, not an error of the program
    """The server answers *status* with *words*."""

    def __init__(self, status: int, words: str) -> None:
        """See the class."""
        super().__init__(words)
        self.status = status


def members(value: Any, required: Mapping[str, type], optional: Mapping[str, type] | None = None) -> dict[str, Any]:
    """*value*, an object with all of *required*, perhaps some of *optional*, and nothing else, each of its type."""
    if not isinstance(value, dict):
        raise Refused(422, f"expected an object, got {json.dumps(value)}")
    known = {**required, **(optional or {})}
    for name in required:
        if name not in value:
            raise Refused(422, f"missing field `{name}`")
    for name, item in value.items():
        if name not in known:
            raise Refused(422, f"unknown field `{name}`")
        wrong_bool = isinstance(item, bool) != (known[name] is bool)  # to isinstance a bool is an int, too
        if known[name] is not object and (wrong_bool or not isinstance(item, known[name])):
            raise Refused(422, f"`{name}`: expected {known[name].__name__}, got {json.dumps(item)}")
    return value


def texts(value: Any) -> list[str]:
    """*value*, a list of texts of which none is empty."""
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise Refused(422, f"expected a list of texts, got {json.dumps(value)}")
    return value


def rows(value: Any, columns: int) -> npt.NDArray[np.float64]:
    """*value*, a list of rows of *columns* numbers."""
    good = isinstance(value, list) and all(isinstance(row, list) and len(row) == columns for row in value)
    if not good or any(isinstance(item, (str, bool, list, dict)) for row in value for item in row):
        raise Refused(400, f"expected rows of {columns} numbers, got {json.dumps(value)}")
    return np.array(value, np.float64).reshape(-1, columns)


def application(
    health: str, posts: Mapping[str, Handler], error: Callable[[int, str], Any], healthy: object = None
) -> web.Application:
    """A server that answers *posts*, by paths, and GET *health*; *error* gives the JSON of a refusal."""
    app = web.Application(client_max_size=64 * 1024**2)

    def answering(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answer(request: web.Request) -> web.Response:
            try:
                if request.content_type != "application/json":
                    raise Refused(415, f"expected application/json, got {request.content_type}")
                return web.json_response(handler(json.loads(await request.read())))
            except Refused as refused:
                return web.json_response(error(refused.status, str(refused)), status=refused.status)

        return answer

    async def status(_: web.Request) -> web.Response:
        return web.Response() if healthy is None else web.json_response(healthy)

    app.router.add_get(health, status)
    for path, handler in posts.items():
        app.router.add_post(path, answering(handler))
    return app


# The servers


def openai() -> web.Application:
    """OpenAI's embeddings, as vLLM, Infinity, LocalAI and others have them."""

    def embeddings(body: Any) -> Any:
        body = members(body, {"model": str, "input": object}, {"encoding_format": str, "dimensions": int, "user": str})
        if body["model"] not in ("minilm", "minilm-base64"):
            raise Refused(404, f"The model `{body['model']}` does not exist")
        form = body.get("encoding_format", "float")
        if form not in ("float", "base64"):
            raise Refused(400, f"'{form}' is not one of ['float', 'base64'] - 'encoding_format'")
        inputs = [body["input"]] if isinstance(body["input"], str) else texts(body["input"])
        data = []
        for index, text in enumerate(inputs):
            values: Any = embed(text)
            if form == "base64":
                values = base64.b64encode(np.array(values, "<f4").tobytes()).decode()
            data.append({"object": "embedding", "index": index, "embedding": values})
        tokens = sum(len(text) for text in inputs)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data[::-1], "model": body["model"], "usage": usage}

    def error(status: int, words: str) -> Any:
        return {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": None}}

    models = [{"id": "minilm", "object": "model", "created": 1, "owned_by": "tests"}]
    return application("/v1/models", {"/v1/embeddings": embeddings}, error, {"object": "list", "data": models})


def tei() -> web.Application:
    """text-embeddings-inference. A real one has one kind of model, and answers two of the three paths with 424."""
    cutting = {"truncate": bool, "truncation_direction": str}

    def batch(inputs: list[Any]) -> list[Any]:
        if len(inputs) > TEI_BATCH:
            raise Refused(413, f"batch size {len(inputs)} > maximum allowed batch size {TEI_BATCH}")
        return inputs

    def embeddings(body: Any) -> Any:
        optional = {**cutting, "normalize": bool, "prompt_name": str, "dimensions": int}
        body = members(body, {"inputs": object}, optional)
        scale = 1.0 if body.get("normalize", True) else 2.0  # so that a test sees whether the member arrived
        return [[scale * value for value in embed(text)] for text in batch(texts(body["inputs"]))]

    def rerank(body: Any) -> Any:
        body = members(body, {"query": str, "texts": list}, {**cutting, "raw_scores": bool, "return_text": bool})
        ranks = [
            {"index": index, "score": relevance(body["query"], text)}
            for index, text in enumerate(batch(texts(body["texts"])))
        ]
        return sorted(ranks, key=lambda rank: -rank["score"])

    def predict(body: Any) -> Any:
        body = members(body, {"inputs": list}, {**cutting, "raw_scores": bool})
        # a list of two texts is a pair; a batch is a list of lists of one text, or of two
        if not all(isinstance(item, list) and len(item) == 1 for item in body["inputs"]):
            raise Refused(422, "expected a batch, `[[text], ...]`")
        return [
            [{"score": score, "label": label} for label, score in chances(text)]
            for text in batch([texts(item)[0] for item in body["inputs"]])
        ]

    posts = {"/embed": embeddings, "/rerank": rerank, "/predict": predict}
    return application("/health", posts, lambda _, words: {"error": words, "error_type": "Validation"})


def ollama() -> web.Application:
    """Ollama. It takes one prompt in a request, and streams the reply unless told not to."""
    times = {"total_duration": 14143917, "load_duration": 1019500, "prompt_eval_count": 8}

    def known(model: str, name: str) -> None:
        if model != name:
            raise Refused(404, f"model '{model}' not found")

    def embeddings(body: Any) -> Any:
        optional = {"truncate": bool, "options": dict, "keep_alive": str, "dimensions": int}
        body = members(body, {"model": str, "input": list}, optional)
        known(body["model"], "all-minilm")
        return {"model": body["model"], "embeddings": [embed(text) for text in texts(body["input"])], **times}

    def generate(body: Any) -> Any:
        optional = {"stream": bool, "options": dict, "system": str, "format": str, "suffix": str, "keep_alive": str}
        body = members(body, {"model": str, "prompt": str}, optional)
        known(body["model"], "llama3.2")
        if body.get("stream", True):
            raise Refused(400, "this stand-in does not stream")
        reply = body["prompt"].upper()[: body.get("options", {}).get("num_predict", 1000)]
        made = {"model": body["model"], "created_at": "2026-11-28T12:00:00Z", "response": reply}
        return {**made, "done": True, "done_reason": "stop", "context": [1, 2, 3], **times, "eval_count": 3}

    posts = {"/api/embed": embeddings, "/api/generate": generate}
    return application("/api/version", posts, lambda _, words: {"error": words}, {"version": "0.12.0"})


def llama_cpp() -> web.Application:
    """`llama-server` of llama.cpp. A real one needs `--embedding`, and `--reranking` for the last."""

    def embedding(body: Any) -> Any:
        body = members(body, {"content": list}, {"embd_normalize": int})
        return [{"index": index, "embedding": [embed(text)]} for index, text in enumerate(texts(body["content"]))]

    def completion(body: Any) -> Any:
        optional = {"n_predict": int, "temperature": object, "top_k": int, "seed": int, "stream": bool}
        body = members(body, {"prompt": str}, optional)
        content = body["prompt"].upper()[: body.get("n_predict", 1000)]
        made = {"index": 0, "content": content, "tokens": [], "id_slot": 0, "stop": True, "model": "m.gguf"}
        settings = {"n_predict": body.get("n_predict", -1), "temperature": body.get("temperature", 0.8), "stop": []}
        return {
            **made,
            "generation_settings": settings,
            "prompt": body["prompt"],
            "stop_type": "eos",
            "truncated": False,
        }

    def rerank(body: Any) -> Any:
        body = members(body, {"query": str, "documents": list}, {"model": str, "top_n": int})
        results = [
            {"index": index, "relevance_score": relevance(body["query"], text)}
            for index, text in enumerate(texts(body["documents"]))
        ]
        results.sort(key=lambda result: -result["relevance_score"])
        return {
            "model": "m.gguf",
            "object": "list",
            "usage": {"prompt_tokens": 9, "total_tokens": 9},
            "results": results,
        }

    def error(status: int, words: str) -> Any:
        return {"error": {"code": status, "message": words, "type": "invalid_request_error"}}

    posts = {"/embedding": embedding, "/completion": completion, "/v1/rerank": rerank}
    return application("/health", posts, error, {"status": "ok"})


def sagemaker() -> web.Application:
    """A container for SageMaker with the JSON of its linear learner."""

    def invoke(body: Any) -> Any:
        instances = members(body, {"instances": list})["instances"]
        x = rows([members(instance, {"features": list})["features"] for instance in instances], 4)
        return {"predictions": [{"score": float(row.mean()), "predicted_label": int(row.argmax())} for row in x]}

    return application("/ping", {"/invocations": invoke}, lambda _, words: {"message": words})


def vertex() -> web.Application:
    """A container for Vertex AI's endpoints."""

    def predict(body: Any) -> Any:
        body = members(body, {"instances": list}, {"parameters": dict})
        scale = members(body.get("parameters", {}), {}, {"scale": object}).get("scale", 1)
        return {"predictions": (scale * rows(body["instances"], 4)).tolist()}

    def error(status: int, words: str) -> Any:
        return {"error": {"code": status, "message": words, "status": "INVALID_ARGUMENT"}}

    return application("/health", {"/predict": predict}, error)


def h2o() -> web.Application:
    """A scorer of H2O MLOps: all values of rows and scores are texts, and errors are those of FastAPI."""

    def score(body: Any) -> Any:
        optional = {"noFieldNamesInOutput": bool, "includeFieldsInOutput": list, "idField": str}
        body = members(body, {"fields": list, "rows": list}, optional)
        if body["fields"] != ["age", "income"]:
            raise Refused(400, f"expected the fields age and income, got {body['fields']}")
        for row in body["rows"]:
            if len(texts(row)) != len(body["fields"]):
                raise Refused(400, f"expected rows of {len(body['fields'])} texts, got {row}")
        x = np.array(body["rows"], np.float64)
        scores = [[repr(float(value)) for value in row] for row in np.stack([x.mean(axis=1), x.sum(axis=1)], axis=1)]
        return {"id": "3cb3a5d2", "fields": ["churn.no", "churn.yes"], "score": scores}

    def error(status: int, words: str) -> Any:
        return {"detail": [{"loc": ["body"], "msg": words, "type": "value_error"}]}

    return application("/model/id", {"/model/score": score}, error)


STAND_INS: Mapping[str, Callable[[], web.Application]] = {
    app.__name__: app for app in (openai, tei, ollama, llama_cpp, sagemaker, vertex, h2o)
}
"""What makes each of them, by the names of their backends in `config/legacy.yaml`."""


@asynccontextmanager
async def stand_in(name: str) -> AsyncIterator[str]:
    """The URL of the stand-in *name* while it serves on a free port."""
    runner = web.AppRunner(STAND_INS[name](), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        addresses: Sequence[Any] = runner.addresses
        yield f"http://127.0.0.1:{addresses[0][1]}"
    finally:
        await runner.cleanup()
