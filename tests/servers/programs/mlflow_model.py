"""Saves one of these models for `mlflow models serve`: `MLFLOW_PYTHON mlflow_model.py NAME FOLDER`, with mlflow 3.17.

| name | what it does |
|---|---|
| identity | without a signature: arrays, arrays by name and data frames come back as they are; `fail` raises an error |
| signed | inputs `x` FP32 [-1, 4] and `n` INT64 [-1], parameter `scale`: `y` = x * scale, `m` = n |
| unnamed | one input without a name, FP32 [-1, 4], and one output without a name: twice the input |
| columns | a data frame with the columns `a`, double, and `b`, long: their sums |
| strings | a data frame with `b`, binary, `t`, string, `d`, datetime: the same, empty texts missing, and lengths `n` |
"""

import sys
from typing import Any

import mlflow
import numpy as np
from mlflow.models import ModelSignature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec


class Identity(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        if not isinstance(model_input, np.ndarray) and "fail" in model_input:
            raise ValueError("the weights are made of paper")
        return model_input


class Signed(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        scale = np.float32((params or {}).get("scale", 1.0))
        return {"y": model_input["x"] * scale, "m": model_input["n"]}


class Unnamed(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        return 2 * model_input


class Columns(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        return (model_input["a"] + model_input["b"]).to_numpy()


class Strings(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        missing = [text or None for text in model_input["t"]]
        return model_input.assign(t=missing, n=[len(octets) for octets in model_input["b"]])


FOUR = (-1, 4)
MODELS: dict[str, tuple[Any, ModelSignature | None]] = {
    "identity": (Identity(), None),
    "signed": (
        Signed(),
        ModelSignature(
            Schema([TensorSpec(np.dtype("float32"), FOUR, "x"), TensorSpec(np.dtype("int64"), (-1,), "n")]),
            Schema([TensorSpec(np.dtype("float32"), FOUR, "y"), TensorSpec(np.dtype("int64"), (-1,), "m")]),
            ParamSchema([ParamSpec("scale", "float", 1.0)]),
        ),
    ),
    "unnamed": (
        Unnamed(),
        ModelSignature(
            Schema([TensorSpec(np.dtype("float32"), FOUR)]), Schema([TensorSpec(np.dtype("float32"), FOUR)])
        ),
    ),
    "columns": (
        Columns(),
        ModelSignature(Schema([ColSpec("double", "a"), ColSpec("long", "b")]), Schema([ColSpec("double")])),
    ),
    "strings": (
        Strings(),
        ModelSignature(Schema([ColSpec("binary", "b"), ColSpec("string", "t"), ColSpec("datetime", "d")])),
    ),
}

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    model, signature = MODELS[name]
    mlflow.pyfunc.save_model(folder, python_model=model, signature=signature, pip_requirements=["mlflow"])
