# ruff: noqa: PLC0415  each kind needs packages of its own
"""Servers that speak no protocol, as people write them: `legacy_server.py KIND PORT`.

| kind | what it is |
|---|---|
| predict | a FastAPI with POST /predict, around a model of scikit-learn |
| sagemaker | the contract of SageMaker's containers, /ping and /invocations, around the same model |
| seldon | Seldon Core's first protocol, a stand-in after its documentation: ndarray and tensor |
| huggingface | a pipeline of transformers behind FastAPI; its tiny model is made here, with weights by chance |
| bentoml | a service of BentoML |
| ray | a deployment of Ray Serve |
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

    @app.get("/ping")
    def ping() -> str:
        return "pong"

    @app.post("/predict")
    def infer(sample: Sample) -> dict[str, Any]:
        if any(len(row) != 4 for row in sample.features):
            raise HTTPException(422, "four features are expected")
        probabilities = model.predict_proba(sample.features)
        labels = [LABELS[index] for index in probabilities.argmax(axis=1)]
        return {"probabilities": probabilities.tolist(), "result": {"labels": labels}, "for": sample.user}

    return app


def sagemaker() -> Any:
    from fastapi import FastAPI, Request, Response

    app, model = FastAPI(), trained()

    @app.get("/ping")
    def ping() -> Response:
        return Response()

    @app.post("/invocations")
    async def invoke(request: Request) -> dict[str, Any]:
        rows = [instance["features"] for instance in (await request.json())["instances"]]
        probabilities = model.predict_proba(rows)
        return {
            "predictions": [{"score": float(row.max()), "predicted_label": int(row.argmax())} for row in probabilities]
        }

    return app


def seldon() -> Any:
    import numpy as np
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import JSONResponse

    app = FastAPI()

    @app.get("/health/status")
    def status() -> Response:
        return Response()

    @app.post("/api/v1.0/predictions")
    async def predictions(request: Request) -> Any:
        data = (await request.json())["data"]
        if "tensor" in data:
            x = np.array(data["tensor"]["values"]).reshape(data["tensor"]["shape"])
            answer: dict[str, Any] = {"tensor": {"shape": list(x.shape), "values": (2 * x).ravel().tolist()}}
        else:
            x = np.array(data["ndarray"])
            if x.shape[1] != 4:
                fault = {"status": {"code": 400, "info": "four columns are expected", "status": "FAILURE"}}
                return JSONResponse(fault, 400)
            answer = {"ndarray": (2 * x).tolist()}
        return {"data": {"names": ["t:0"], **answer}, "meta": {"tags": {}}}

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
        return classify((await request.json())["inputs"])

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


def run_bentoml(port: int) -> None:
    here = Path(__file__).parent
    folder = Path(tempfile.mkdtemp())
    (folder / "service.py").write_text(BENTO)
    (folder / "legacy_server.py").write_text((here / "legacy_server.py").read_text())
    command = ["bentoml", "serve", "service:Iris", "--port", str(port), "--host", "127.0.0.1"]
    os.chdir(folder)
    os.execv(sys.executable, [sys.executable, "-m", *command])  # who ends this ends it, and it its workers


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


def main(kind: str, port: int) -> None:
    if kind in ("bentoml", "ray"):
        {"bentoml": run_bentoml, "ray": run_ray}[kind](port)
        return
    import uvicorn

    app = {"predict": predict, "sagemaker": sagemaker, "seldon": seldon, "huggingface": huggingface}[kind]()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="warning"))
    asyncio.run(server.serve())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
