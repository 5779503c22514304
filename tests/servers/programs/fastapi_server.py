"""A server of one file, as people write them with FastAPI: `python fastapi_server.py strict|plain PORT`.

`strict` refuses every member that it does not know; `plain` ignores them. One model, `double`, one input.
"""

import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

KIND, PORT = sys.argv[1:]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid" if KIND == "strict" else "ignore")


class Tensor(Part):
    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class Request(Part):
    inputs: list[Tensor]


app = FastAPI()


@app.get("/v2")
def server() -> dict[str, object]:
    return {"name": "double-server", "version": "1", "extensions": []}


@app.get("/v2/health/live")
@app.get("/v2/health/ready")
@app.get("/v2/models/double/ready")
def healthy() -> dict[str, bool]:
    return {"ready": True}


@app.get("/v2/models/double")
def metadata() -> dict[str, object]:
    tensor = {"datatype": "FP32", "shape": [-1, 4]}
    return {"name": "double", "inputs": [{"name": "x", **tensor}], "outputs": [{"name": "y", **tensor}]}


@app.post("/v2/models/double/infer")
def infer(request: Request) -> dict[str, object]:
    (x,) = request.inputs
    output = {"name": "y", "shape": x.shape, "datatype": "FP32", "data": [2 * value for value in x.data]}
    return {"model_name": "double", "outputs": [output]}


uvicorn.run(app, host="127.0.0.1", port=int(PORT), log_level="warning")
