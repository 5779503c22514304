# ruff: noqa: PLC0415  each kind needs packages of its own
"""Servers that speak no protocol, as people write them: `legacy_server.py KIND PORT`.

| kind | what it is |
|---|---|
| predict | a FastAPI around a model of scikit-learn: POST /predict takes a table, /score/MODEL records, /one a row |
| huggingface | a pipeline of transformers behind FastAPI; its tiny model is made here, with weights by chance |
| bentoml | a service of BentoML |
| ray | a deployment of Ray Serve |
| litserve | a LitServe, one row a request |
| gradio | a function behind a Gradio page, by its API |
| cog | a predictor of Cog, as in the containers that it builds |
| azure | a scoring script of Azure Machine Learning in its inference server, azmlinfsrv |
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

LABELS = ["setosa", "versicolor", "virginica"]


def trained() -> Any:
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    x, y = load_iris(return_X_y=True)
    return LogisticRegression(max_iter=1000).fit(x, y)


def predict() -> Any:
    from fastapi import FastAPI, HTTPException
    from pydantic import BaseModel

    app, model = FastAPI(), trained()

    class Sample(BaseModel):
        features: list[list[float]]
        user: str
        threshold: float = 0

    class Person(BaseModel):
        age: int
        plan: str

    class Flower(BaseModel):
        sepal: list[float]
        petal: list[float]

    @app.get("/ping")
    def ping() -> str:
        return "pong"

    @app.post("/predict")
    def infer(sample: Sample) -> dict[str, Any]:
        if any(len(row) != 4 for row in sample.features):
            raise HTTPException(422, "four features are expected")
        probabilities = model.predict_proba(sample.features)
        best = probabilities.max(axis=1)
        labels = [LABELS[index] for index in probabilities.argmax(axis=1)]
        sure = [label if share > sample.threshold else "unsure" for label, share in zip(labels, best, strict=True)]
        return {"probabilities": probabilities.tolist(), "result": {"labels": sure}, "for": sample.user}

    @app.post("/score/{name}")
    def score(name: str, people: list[Person]) -> dict[str, Any]:
        parts = {"gold": 3, "free": 7}
        results = [{"plan": person.plan, "score": person.age / parts[person.plan]} for person in people]
        return {"model": name, "results": results}

    @app.post("/one")
    def one(flower: Flower) -> dict[str, Any]:
        if len(flower.sepal) != 2 or flower.sepal[0] < 0:
            raise HTTPException(422, "two lengths are expected")
        (probabilities,) = model.predict_proba([flower.sepal + flower.petal])
        return {"label": LABELS[probabilities.argmax()], "probabilities": probabilities.tolist()}

    return app


def huggingface() -> Any:
    from fastapi import FastAPI, Request, Response
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, pipeline

    folder = Path(tempfile.mkdtemp())
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "very", "é"]
    (folder / "vocab.txt").write_text("\n".join(words))
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"))
    classify = pipeline("text-classification", model=BertForSequenceClassification(config).eval(), tokenizer=tokenizer)
    app = FastAPI()

    @app.get("/health")
    def health() -> Response:
        return Response()

    @app.post("/")
    async def infer(request: Request) -> Any:
        body = await request.json()
        return classify(body["inputs"], **body.get("parameters", {}))

    return app


BENTO = """
import bentoml

from legacy_server import trained


@bentoml.service
class Iris:
    def __init__(self) -> None:
        self.model = trained()

    @bentoml.api
    def classify(self, features: list[list[float]]) -> list[int]:
        return self.model.predict(features).tolist()
"""


LITSERVE = """
import sys

import litserve


class Doubling(litserve.LitAPI):
    def setup(self, device):
        self.factor = 2

    def decode_request(self, request):
        return request["input"]

    def predict(self, x):
        return [self.factor * value for value in x]

    def encode_response(self, output):
        return {"output": output}


if __name__ == "__main__":
    server = litserve.LitServer(Doubling(), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
"""

COG = """
import asyncio

from cog import BasePredictor, Input


class Predictor(BasePredictor):
    async def run(self, prompt: str = Input(), times: int = Input(default=1)) -> str:
        if prompt == "forbidden":
            raise ValueError("not this prompt")
        await asyncio.sleep(0.01)  # a model takes longer than Cog takes to free its slot
        return times * prompt.upper()
"""

AZURE = """
import json


def init():
    pass


def run(data):
    rows = json.loads(data)["data"]
    return {"result": [sum(row) for row in rows]}
"""


def become(*command: str, **environment: str) -> None:
    """Run *command* in place of this program: who ends this ends it, and it its workers."""
    os.execve(sys.executable, [sys.executable, *command], {**os.environ, **environment})


def run_bentoml(port: int) -> None:
    here = Path(__file__).parent
    folder = Path(tempfile.mkdtemp())
    (folder / "service.py").write_text(BENTO)
    (folder / "legacy_server.py").write_text((here / "legacy_server.py").read_text())
    os.chdir(folder)
    become("-m", "bentoml", "serve", "service:Iris", "--port", str(port), "--host", "127.0.0.1")


def run_cog(port: int) -> None:
    os.chdir(tempfile.mkdtemp())
    Path("predict.py").write_text(COG)
    # what the containers of `cog build` have, with `concurrency: {max: 2}` in cog.yaml: one is not free again at once
    variables = {"PORT": str(port), "COG_PREDICT_TYPE_STUB": "predict.py:Predictor", "COG_MAX_CONCURRENCY": "2"}
    become("-m", "cog.server.http", "--host", "127.0.0.1", **variables)


def run_azure(port: int) -> None:
    os.chdir(tempfile.mkdtemp())
    Path("score.py").write_text(AZURE)
    command = Path(sys.executable).with_name("azmlinfsrv")
    become(str(command), "--entry_script", "score.py", "--port", str(port), "--health_port", str(port))


def run_litserve(port: int) -> None:
    os.chdir(tempfile.mkdtemp())
    Path("lit.py").write_text(LITSERVE)  # its workers import it
    become("lit.py", str(port))


def run_gradio(port: int) -> None:
    import gradio

    def score(text: str, scale: float) -> tuple[str, float]:
        if text == "forbidden":
            raise gradio.Error("not this text")
        return text.upper(), scale * len(text)

    page = gradio.Interface(score, ["text", "number"], ["text", "number"], api_name="score")
    page.launch(server_name="127.0.0.1", server_port=port, quiet=True, prevent_thread_lock=False)


def run_ray(port: int) -> None:
    import ray
    from ray import serve
    from starlette.requests import Request

    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})

    class Score:
        async def __call__(self, request: Request) -> dict[str, Any]:
            body = await request.json()
            scale = body["options"].get("scale", 1)
            return {"y": [scale * sum(row) for row in body["x"]]}

    serve.run(serve.deployment(Score).bind(), route_prefix="/score", blocking=True)


PROGRAMS = {
    "bentoml": run_bentoml,
    "ray": run_ray,
    "litserve": run_litserve,
    "gradio": run_gradio,
    "cog": run_cog,
    "azure": run_azure,
}


def main(kind: str, port: int) -> None:
    if kind in PROGRAMS:
        PROGRAMS[kind](port)
        return
    import uvicorn

    app = {"predict": predict, "huggingface": huggingface}[kind]()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="warning"))
    asyncio.run(server.serve())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
