"""Servers of models for rows of a table: numbers and texts by column, by record, or as plain vectors."""

import base64
import json
import math
import struct
from typing import Any

from tests.formats.stand_in import (
    DETAIL,
    ERROR,
    GOOGLE,
    MESSAGE,
    Adapter,
    Document,
    Draw,
    Format,
    Strict,
    anything,
    digest,
    either,
    integer,
    list_of,
    number,
    one_of,
    pick,
    share,
    shares,
    text,
    vector,
    weighted,
)
from tests.formats.vectors import DETAIL_TEXT

SELDON = Strict(
    400, lambda words: {"status": {"code": -1, "info": words, "reason": "MICROSERVICE_BAD_DATA", "status": 1}}
)
MLFLOW = Strict(400, lambda words: {"error_code": "BAD_REQUEST", "message": words})
SAGEMAKER = Strict(
    400, lambda words: {"ErrorCode": "CLIENT_ERROR_FROM_MODEL", "Message": words, "OriginalMessage": words}
)
AZURE = Strict(400, lambda words: {"message": f"An unexpected error occurred in scoring script: {words}"})


def a_vector(draw: Draw) -> list[float]:
    return draw.of("number", 4)


def a_person(draw: Draw) -> list[Any]:
    """An age and a plan."""
    return [draw.integer(), draw.text()]


def person(row: list[Any]) -> dict[str, Any]:
    return {"age": row[0], "plan": row[1]}


def mixed_rows(strict: Strict, rows: Document, at: str) -> list[list[Any]]:
    """*rows* of an integer and a text."""
    if not list_of(list_of(anything, 2))(rows) or not all(integer(row[0]) and text(row[1]) for row in rows):
        strict.refuse(f"{at}: expected rows of an age and a plan")
    return rows  # type: ignore[no-any-return]


def vertex(body: Document) -> Document:
    GOOGLE.members(body, {"instances": list_of(list_of(number, 4)), "parameters?": anything})
    GOOGLE.members(body.get("parameters", {}), {"scale?": number}, "parameters")
    scale = body.get("parameters", {}).get("scale", 1)
    return {
        "predictions": [scale * weighted(each) for each in body["instances"]],
        "deployedModelId": "3456",
        "model": "projects/1/locations/l/models/2",
        "modelDisplayName": "tabular",
        "modelVersionId": "1",
    }


def vertex_records(body: Document) -> Document:
    GOOGLE.members(body, {"instances": list_of(anything)})
    rows = GOOGLE.rows(body["instances"], {"age": text, "plan": text}, "instances")  # int64 is a text here
    if not all(each["age"].lstrip("-").isdigit() for each in rows):
        GOOGLE.refuse("instances: age: expected an integer in a string")
    found = [shares(("no", "yes"), int(each["age"]), each["plan"]) for each in rows]
    return {"predictions": [{"classes": ["no", "yes"], "scores": list(each.values())} for each in found]}


def linear_learner(body: Document) -> Document:
    """SageMaker's dense form of rows."""
    SAGEMAKER.members(body, {"instances": list_of(anything)})
    found = []
    for each in SAGEMAKER.rows(body["instances"], {"data": anything}, "instances"):
        features = SAGEMAKER.members(each["data"], {"features": anything}, "data")["features"]
        score = weighted(SAGEMAKER.members(features, {"values": list_of(number, 4)}, "features")["values"])
        found.append({"score": score, "predicted_label": int(score > 2)})
    return {"predictions": found}


def deepar(body: Document) -> Document:
    """Time series: members called by quantile."""
    SAGEMAKER.members(body, {"instances": list_of(anything), "configuration": anything})
    kinds = {"num_samples": integer, "output_types": list_of(one_of("mean", "quantiles")), "quantiles": list_of(text)}
    settings = SAGEMAKER.members(body["configuration"], kinds, "configuration")
    found = []
    for each in SAGEMAKER.rows(
        body["instances"], {"start": text, "target": list_of(number), "cat?": anything}, "instances"
    ):
        known = [each["start"], each["target"], settings["num_samples"]]
        quantiles = {name: vector(3, name, known) for name in settings["quantiles"]}
        found.append({"mean": vector(3, "mean", known), "quantiles": quantiles})
    return {"predictions": found}


def azure_columns(body: Document) -> Document:
    AZURE.members(body, {"input_data": anything, "params?": anything})
    kinds = {"columns": one_of(["age", "plan"]), "index": list_of(integer), "data": list_of(anything)}
    table = AZURE.members(body["input_data"], kinds, "input_data")
    rows = mixed_rows(AZURE, table["data"], "data")
    if len(rows) != len(table["index"]):
        AZURE.refuse("index and data differ in length")
    return [share(*row) for row in rows]


def azure_records(body: Document) -> Document:
    AZURE.members(body, {"Inputs": anything, "GlobalParameters": anything})
    AZURE.members(body["GlobalParameters"], {"method": one_of("predict", "predict_proba")})
    rows = AZURE.members(body["Inputs"], {"data": list_of(anything)}, "Inputs")["data"]
    rows = AZURE.rows(rows, {"age": integer, "plan": text}, "data")
    method = body["GlobalParameters"]["method"]
    if method == "predict":
        return {"Results": [pick(["no", "yes"], each["age"], each["plan"]) for each in rows]}
    return {"Results": [list(shares(("no", "yes"), each["age"], each["plan"]).values()) for each in rows]}


def dataframe_split(body: Document) -> Document:
    MLFLOW.members(body, {"dataframe_split": anything, "params?": anything})
    table = MLFLOW.members(
        body["dataframe_split"],
        {"columns": one_of(["age", "plan"]), "index?": list_of(integer), "data": list_of(anything)},
    )
    return {"predictions": [share(*row) for row in mixed_rows(MLFLOW, table["data"], "data")]}


def dataframe_records(body: Document) -> Document:
    MLFLOW.members(body, {"dataframe_records": list_of(anything)})
    rows = MLFLOW.rows(body["dataframe_records"], {"age": integer, "plan": text}, "dataframe_records")
    return {"predictions": [weighted([each["age"] / 8, len(each["plan"])]) for each in rows]}


def h2o(body: Document) -> Document:
    """Rows and scores are texts, whatever they mean."""
    DETAIL_TEXT.members(body, {"fields": one_of(["age", "income", "plan"]), "rows": list_of(list_of(text, 3))})
    found = []
    for age, income, plan in body["rows"]:
        try:
            scores = shares(("no", "yes"), int(age), float(income), plan).values()
        except ValueError:
            DETAIL_TEXT.refuse("rows: not a number")
        found.append([repr(each) for each in scores])
    return {"fields": ["bad.0", "bad.1"], "id": "e332aa4e-ecda-11ee", "score": found}


def datarobot(body: Document) -> Document:
    rows = MESSAGE.rows(body, {"age": integer, "plan": text}, "body")
    data = []
    for index, each in enumerate(rows):
        yes = share(each["age"], each["plan"])
        values = [{"value": yes, "label": "yes"}, {"value": 1 - yes, "label": "no"}]
        prediction = "yes" if yes > 0.5 else "no"
        data.append({"predictionValues": values, "predictionThreshold": 0.5, "prediction": prediction, "rowId": index})
    return {"data": data}


def seldon_ndarray(body: Document) -> Document:
    SELDON.members(body, {"data": anything, "meta?": anything})
    data = SELDON.members(body["data"], {"names": list_of(text, 4), "ndarray": list_of(list_of(number, 4))}, "data")
    found = [[weighted(row), max(row)] for row in data["ndarray"]]
    return {"data": {"names": ["t:0", "t:1"], "ndarray": found}, "meta": {"requestPath": {"m": "image:1"}}}


def seldon_tensor(body: Document) -> Document:
    SELDON.members(body, {"data": anything})
    data = SELDON.members(body["data"], {"tensor": anything, "names?": list_of(text)}, "data")
    tensor = SELDON.members(data["tensor"], {"shape": list_of(integer, 2), "values": list_of(number)}, "tensor")
    n_rows, width = tensor["shape"]
    if n_rows * width != len(tensor["values"]) or width != 2:
        SELDON.refuse(f"cannot reshape array of size {len(tensor['values'])} into shape {tensor['shape']}")
    values = [weighted(tensor["values"][row * width : (row + 1) * width]) for row in range(n_rows)]
    return {"data": {"names": ["t:0"], "tensor": {"shape": [n_rows, 1], "values": values}}, "meta": {}}


def openscoring(body: Document) -> Document:
    """A PMML model for one row of arguments."""
    MESSAGE.members(body, {"id": text, "arguments": anything})
    row = MESSAGE.members(body["arguments"], {"Sepal_Length": number, "Petal_Width": number}, "arguments")
    found = shares(("setosa", "virginica"), row["Sepal_Length"], row["Petal_Width"])
    probabilities = {f"Probability_{name}": value for name, value in found.items()}
    return {"id": body["id"], "results": {"Species": max(found, key=found.__getitem__), **probabilities}}


def openscoring_batch(body: Document) -> Document:
    MESSAGE.members(body, {"id": text, "requests": list_of(anything)})
    rows = MESSAGE.rows(body["requests"], {"id": text, "arguments": anything}, "requests")
    return {"id": body["id"], "responses": [openscoring(each) for each in rows]}


def onnxruntime(body: Document) -> Document:
    """The JSON form of protocol buffers: int64 are texts, bytes are base64."""
    strict = Strict(400, lambda words: {"error_code": 3, "error_message": words})
    strict.members(body, {"inputs": anything, "outputFilter": one_of(["scores"])})
    (tensor,) = strict.members(body["inputs"], {"x": anything}, "inputs").values()
    strict.members(tensor, {"dims": list_of(text, 2), "dataType": one_of(1), "floatData": list_of(number)}, "x")
    n_rows, width = map(int, tensor["dims"])
    if width != 3 or n_rows * width != len(tensor["floatData"]):
        strict.refuse("dims do not fit the data")
    found = [vector(2, tensor["floatData"][3 * row : 3 * row + 3]) for row in range(n_rows)]
    raw = b"".join(struct.pack("<2f", *row) for row in found)
    scores = {"dims": [str(n_rows), "2"], "dataType": 1, "rawData": base64.b64encode(raw).decode()}
    return {"outputs": {"scores": scores}}


def onnx_row(draw: Draw) -> list[float]:
    """Numbers that 32 bits hold, as the printed form has them."""
    return [struct.unpack("<f", struct.pack("<f", each))[0] for each in draw.of("number", 3)]


def paddle(body: Document) -> Document:
    """Tensors are JSON inside of texts."""
    failure = {"err_no": 5000, "err_msg": "key and value do not fit", "key": [], "value": [], "tensors": []}
    if (
        not isinstance(body, dict)
        or set(body) != {"key", "value"}
        or body["key"] != ["x"]
        or not list_of(text, 1)(body["value"])
    ):
        return failure
    try:
        rows = json.loads(body["value"][0])
    except ValueError:
        return failure
    if not list_of(list_of(number, 3))(rows):
        return failure
    return {
        "err_no": 0,
        "err_msg": "",
        "key": ["prob"],
        "value": [json.dumps([[weighted(row)] for row in rows])],
        "tensors": [],
    }


def explain(body: Document) -> Document:
    """KServe's `:explain` with an explainer that gives values for each feature."""
    ERROR.members(body, {"instances": list_of(list_of(number, 4))})
    values = [vector(4, row) for row in body["instances"]]
    raw = {"prediction": [weighted(row) for row in body["instances"]], "instances": body["instances"]}
    return {"explanations": {"shap_values": values, "expected_value": [0.25], "raw": raw}}


def bentoml(body: Document) -> Document:
    """Its errors are an object, and its answer is a bare list."""
    ERROR.members(body, {"input_series": list_of(list_of(number, 4))})
    return [int(digest(row) % 3) for row in body["input_series"]]


def ray(body: Document) -> Document:
    ERROR.members(body, {"sepal length": number, "sepal width": number, "petal length": number})
    row = [body[name] for name in ("sepal length", "sepal width", "petal length")]
    return {"result": pick(["setosa", "versicolor", "virginica"], row), "score": weighted(row)}


def litserve(body: Document) -> Document:
    DETAIL.members(body, {"input": number})
    return {"output": body["input"] ** 2}


def h2o_steam(body: Document) -> Document:
    """Numbers of a row as texts in an object."""
    ERROR.members(body, {"row": anything})
    row = ERROR.members(body["row"], {"age": text, "income": text}, "row")
    try:
        score = weighted([float(row["age"]), float(row["income"])])
    except ValueError:
        ERROR.refuse("row: not a number")
    return {
        "labelIndex": int(score > 2),
        "label": "1" if score > 2 else "0",
        "classProbabilities": [str(1 - score), str(score)],
    }


def bigquery(body: Document) -> Document:
    """A remote function of BigQuery: calls are lists of arguments of several kinds, replies are in their order."""
    strict = Strict(400, lambda words: {"errorMessage": words})
    strict.members(body, {"requestId": text, "caller": text, "sessionUser": text, "calls": list_of(anything)})
    return {"replies": [share(*row) for row in mixed_rows(strict, body["calls"], "calls")]}


def snowflake(body: Document) -> Document:
    """An external function of Snowflake: each row begins with its number, in and out."""
    ERROR.members(body, {"data": list_of(list_of(anything, 3))})
    if [row[0] for row in body["data"]] != list(range(len(body["data"]))):
        ERROR.refuse("rows must be numbered from 0")
    mixed_rows(ERROR, [row[1:] for row in body["data"]], "data")
    return {"data": [[row[0], share(*row[1:])] for row in body["data"]]}


def floats(values: list[float]) -> list[float]:
    return [math.fsum([each]) for each in values]


PEOPLE = [[30, "gold"], [40, "free"]]

TABLES = (
    Format(
        name="vertex-predict",
        path="/v1/endpoints/1:predict",
        samples=({"instances": [[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0]], "parameters": {"scale": 1.0}},),
        answer=vertex,
        row=a_vector,
        options=lambda draw: draw.number(),
        body=lambda rows, options: {"instances": rows, "parameters": {"scale": options}},
        values=("$.predictions",),
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 4]}}
            outputs: {y: {datatype: FP64, shape: [n]}}
            request: {path: "/v1/endpoints/1:predict", body: {instances: $x, parameters: {$parameters: {scale: 1}}}}
            answer: {y: $.predictions}
            """,
    ),
    Format(
        name="vertex-records",
        path="/v1/endpoints/2:predict",
        samples=({"instances": [{"age": "30", "plan": "gold"}, {"age": "40", "plan": "free"}]},),
        answer=vertex_records,
        row=a_person,
        body=lambda rows, options: {"instances": [{"age": str(row[0]), "plan": row[1]} for row in rows]},
        values=("$.predictions[*].classes", "$.predictions[*].scores"),
        numbers_are_texts=True,
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n], encoding: text}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {classes: {datatype: BYTES, shape: [n, 2]}, scores: {datatype: FP64, shape: [n, 2]}}
            request: {path: "/v1/endpoints/2:predict", body: {instances: {$each: {age: $age, plan: $plan}}}}
            answer: {classes: "$.predictions[*].classes", scores: "$.predictions[*].scores"}
            """,
    ),
    Format(
        name="sagemaker-dense",
        path="/invocations",
        health="/ping",
        samples=({"instances": [{"data": {"features": {"values": [1.0, 2.0, 0.0, 1.0]}}}]},),
        answer=linear_learner,
        row=a_vector,
        body=lambda rows, options: {"instances": [{"data": {"features": {"values": row}}} for row in rows]},
        values=("$.predictions[*].score", "$.predictions[*].predicted_label"),
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 4]}}
            outputs: {score: {datatype: FP64, shape: [n]}, label: {datatype: INT64, shape: [n]}}
            request: {path: /invocations, body: {instances: {$each: {data: {features: {values: $x}}}}}}
            answer: {score: "$.predictions[*].score", label: "$.predictions[*].predicted_label"}
            error: $.Message
            """,
    ),
    Format(
        name="sagemaker-deepar",
        path="/invocations",
        health="/ping",
        samples=(
            {
                "instances": [{"start": "2009-11-01 00:00:00", "target": [4.0, 10.0, 50.0]}],
                "configuration": {
                    "num_samples": 50,
                    "output_types": ["mean", "quantiles"],
                    "quantiles": ["0.5", "0.9"],
                },
            },
        ),
        answer=deepar,
        row=lambda draw: [f"2009-11-{draw.randrange(10, 30)} 00:00:00", draw.of("number", 3)],
        options=lambda draw: draw.count(),
        body=lambda rows, options: {
            "instances": [{"start": start, "target": target} for start, target in rows],
            "configuration": {
                "num_samples": options,
                "output_types": ["mean", "quantiles"],
                "quantiles": ["0.5", "0.9"],
            },
        },
        values=("$.predictions[*].mean", "$.predictions[*].quantiles"),
        by_hand="""
            inputs:
              start: {datatype: BYTES, shape: [n]}
              target: {datatype: FP64, shape: [n, -1]}
              num_samples: {datatype: INT64, shape: []}
            outputs:
              mean: {datatype: FP64, shape: [n, -1]}
              median: {datatype: FP64, shape: [n, -1]}
              high: {datatype: FP64, shape: [n, -1]}
            request:
              path: /invocations
              body:
                instances: {$each: {start: $start, target: $target}}
                configuration:
                  num_samples: $num_samples
                  output_types: [mean, quantiles]
                  quantiles: ["0.5", "0.9"]
            answer:
              mean: "$.predictions[*].mean"
              median: "$.predictions[*].quantiles['0.5']"
              high: "$.predictions[*].quantiles['0.9']"
            """,
    ),
    Format(
        name="azure-input-data",
        path="/score",
        health="/",
        samples=({"input_data": {"columns": ["age", "plan"], "index": [0, 1], "data": PEOPLE}},),
        answer=azure_columns,
        row=a_person,
        body=lambda rows, options: {
            "input_data": {"columns": ["age", "plan"], "index": list(range(len(rows))), "data": rows}
        },
        values=("$[*]",),
        by_hand="""
            inputs:
              index: {datatype: INT64, shape: [n]}
              age: {datatype: INT64, shape: [n]}
              plan: {datatype: BYTES, shape: [n]}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request:
              path: /score
              body: {input_data: {columns: [age, plan], index: $index, data: {$each: [$age, $plan]}}}
            answer: {score: $}
            """,
    ),
    Format(
        name="azure-inputs",
        path="/score",
        health="/",
        samples=(
            {"Inputs": {"data": [person(row) for row in PEOPLE]}, "GlobalParameters": {"method": "predict"}},
            {"Inputs": {"data": [person(row) for row in PEOPLE[::-1]]}, "GlobalParameters": {"method": "predict"}},
        ),
        answer=azure_records,
        row=a_person,
        body=lambda rows, options: {
            "Inputs": {"data": [person(row) for row in rows]},
            "GlobalParameters": {"method": "predict"},
        },
        values=("$.Results",),
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {result: {datatype: BYTES, shape: [n]}}
            request:
              path: /score
              body: {Inputs: {data: {$each: {age: $age, plan: $plan}}}, GlobalParameters: {method: predict}}
            answer: {result: $.Results}
            """,
    ),
    Format(
        name="databricks-split",
        path="/invocations",
        health="/ping",
        samples=({"dataframe_split": {"columns": ["age", "plan"], "data": PEOPLE}},),
        answer=dataframe_split,
        row=a_person,
        body=lambda rows, options: {"dataframe_split": {"columns": ["age", "plan"], "data": rows}},
        values=("$.predictions",),
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request:
              path: /invocations
              body: {dataframe_split: {columns: [age, plan], data: {$each: [$age, $plan]}}}
            answer: {score: $.predictions}
            """,
    ),
    Format(
        name="databricks-records",
        path="/invocations",
        health="/ping",
        samples=({"dataframe_records": [person(row) for row in PEOPLE]},),
        answer=dataframe_records,
        row=lambda draw: [draw.randrange(1000), draw.text()],
        body=lambda rows, options: {"dataframe_records": [person(row) for row in rows]},
        values=("$.predictions",),
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /invocations, body: {dataframe_records: {$each: {age: $age, plan: $plan}}}}
            answer: {score: $.predictions}
            """,
    ),
    Format(
        name="h2o-mlops",
        path="/model/score",
        samples=({"fields": ["age", "income", "plan"], "rows": [["30", "1.5", "gold"], ["40", "2.25", "free"]]},),
        answer=h2o,
        row=lambda draw: [draw.integer(), draw.number(), draw.text()],
        body=lambda rows, options: {
            "fields": ["age", "income", "plan"],
            "rows": [[str(age), repr(income), plan] for age, income, plan in rows],
        },
        values=("$.score",),
        numbers_are_texts=True,
        by_hand="""
            inputs:
              age: {datatype: INT64, shape: [n], encoding: text}
              income: {datatype: FP64, shape: [n], encoding: text}
              plan: {datatype: BYTES, shape: [n]}
            outputs: {score: {datatype: FP64, shape: [n, 2], encoding: text}}
            request: {path: /model/score, body: {fields: [age, income, plan], rows: {$each: [$age, $income, $plan]}}}
            answer: {score: $.score}
            """,
    ),
    Format(
        name="h2o-steam",
        path="/predict",
        samples=({"row": {"age": "2.5", "income": "0.25"}},),
        answer=h2o_steam,
        row=lambda draw: draw.of("number", 2),
        body=lambda rows, options: {"row": {"age": repr(rows[0][0]), "income": repr(rows[0][1])}},
        values=("$.labelIndex", "$.label", "$.classProbabilities"),
        many=False,
        numbers_are_texts=True,
        by_hand="""
            inputs:
              age: {datatype: FP64, shape: [n], encoding: text}
              income: {datatype: FP64, shape: [n], encoding: text}
            outputs:
              index: {datatype: INT64, shape: [n]}
              label: {datatype: BYTES, shape: [n]}
              probabilities: {datatype: FP64, shape: [n, 2], encoding: text}
            request: {path: /predict, rows: 1, body: {row: {age: $age, income: $income}}}
            answer: {index: $.labelIndex, label: $.label, probabilities: $.classProbabilities}
            """,
    ),
    Format(
        name="datarobot",
        path="/predApi/v1.0/deployments/1/predictions",
        samples=([person(row) for row in PEOPLE],),
        answer=datarobot,
        row=a_person,
        body=lambda rows, options: [person(row) for row in rows],
        values=("$.data[*].prediction", "$.data[*].predictionValues[*].value", "$.data[*].predictionValues[*].label"),
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs:
              prediction: {datatype: BYTES, shape: [n]}
              value: {datatype: FP64, shape: [n, 2]}
              label: {datatype: BYTES, shape: [n, 2]}
            request: {path: /predApi/v1.0/deployments/1/predictions, body: {$each: {age: $age, plan: $plan}}}
            answer:
              prediction: "$.data[*].prediction"
              value: "$.data[*].predictionValues[*].value"
              label: "$.data[*].predictionValues[*].label"
            order: "$.data[*].rowId"
            """,
    ),
    Format(
        name="seldon-ndarray",
        path="/api/v1.0/predictions",
        health="/health/status",
        samples=({"data": {"names": ["a", "b", "c", "d"], "ndarray": [[5.0, 3.5, 1.0, 0.5], [1.0, 2.0, 3.0, 4.0]]}},),
        answer=seldon_ndarray,
        row=a_vector,
        body=lambda rows, options: {"data": {"names": ["a", "b", "c", "d"], "ndarray": rows}},
        values=("$.data.ndarray",),
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 4]}}
            outputs: {y: {datatype: FP64, shape: [n, 2]}}
            request: {path: /api/v1.0/predictions, body: {data: {names: [a, b, c, d], ndarray: $x}}}
            answer: {y: $.data.ndarray}
            error: $.status.info
            """,
    ),
    Format(
        name="seldon-tensor",
        path="/api/v1.0/predictions",
        health="/health/status",
        samples=({"data": {"tensor": {"shape": [2, 2], "values": [1.0, 2.0, 3.0, 4.0]}}},),
        answer=seldon_tensor,
        row=lambda draw: draw.of("number", 2),
        body=lambda rows, options: {
            "data": {"tensor": {"shape": [len(rows), 2], "values": [each for row in rows for each in row]}}
        },
        values=("$.data.tensor.values", "$.data.tensor.shape"),
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 2]}}
            outputs: {y: {datatype: FP64, shape: [n]}, shape: {datatype: INT64, shape: [2]}}
            request: {path: /api/v1.0/predictions, body: {data: {tensor: {shape: {$shape: x}, values: {$flat: x}}}}}
            answer: {y: $.data.tensor.values, shape: $.data.tensor.shape}
            error: $.status.info
            """,
    ),
    Format(
        name="openscoring",
        path="/openscoring/model/Iris",
        samples=({"id": "r1", "arguments": {"Sepal_Length": 5.1, "Petal_Width": 0.2}},),
        answer=openscoring,
        row=lambda draw: draw.of("number", 2),
        body=lambda rows, options: {"id": "r1", "arguments": {"Sepal_Length": rows[0][0], "Petal_Width": rows[0][1]}},
        values=("$.results.Species", "$.results.Probability_setosa", "$.results.Probability_virginica"),
        many=False,
        by_hand="""
            inputs: {length: {datatype: FP64, shape: [n]}, width: {datatype: FP64, shape: [n]}}
            outputs:
              species: {datatype: BYTES, shape: [n]}
              setosa: {datatype: FP64, shape: [n]}
              virginica: {datatype: FP64, shape: [n]}
            request:
              path: /openscoring/model/Iris
              rows: 1
              body: {id: r1, arguments: {Sepal_Length: $length, Petal_Width: $width}}
            answer:
              species: $.results.Species
              setosa: $.results.Probability_setosa
              virginica: $.results.Probability_virginica
            """,
    ),
    Format(
        name="openscoring-batch",
        path="/openscoring/model/Iris/batch",
        samples=({"id": "b", "requests": [{"id": "r", "arguments": {"Sepal_Length": 5.1, "Petal_Width": 0.2}}]},),
        answer=openscoring_batch,
        row=lambda draw: draw.of("number", 2),
        body=lambda rows, options: {
            "id": "b",
            "requests": [{"id": "r", "arguments": {"Sepal_Length": row[0], "Petal_Width": row[1]}} for row in rows],
        },
        values=("$.responses[*].results.Species", "$.responses[*].results.Probability_setosa"),
        by_hand="""
            inputs: {length: {datatype: FP64, shape: [n]}, width: {datatype: FP64, shape: [n]}}
            outputs: {species: {datatype: BYTES, shape: [n]}, setosa: {datatype: FP64, shape: [n]}}
            request:
              path: /openscoring/model/Iris/batch
              body: {id: b, requests: {$each: {id: r, arguments: {Sepal_Length: $length, Petal_Width: $width}}}}
            answer:
              species: "$.responses[*].results.Species"
              setosa: "$.responses[*].results.Probability_setosa"
            """,
    ),
    Format(
        name="onnxruntime-server",
        path="/v1/models/m/versions/1:predict",
        samples=(
            {
                "inputs": {"x": {"dims": ["1", "3"], "dataType": 1, "floatData": [0.5, 1.5, 2.0]}},
                "outputFilter": ["scores"],
            },
        ),
        answer=onnxruntime,
        row=onnx_row,
        body=lambda rows, options: {
            "inputs": {
                "x": {"dims": [str(len(rows)), "3"], "dataType": 1, "floatData": [each for row in rows for each in row]}
            },
            "outputFilter": ["scores"],
        },
        values=("$.outputs.scores.rawData", "$.outputs.scores.dims"),
        numbers_are_texts=True,
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [-1]}, dims: {datatype: INT64, shape: [2], encoding: text}}
            outputs:
              scores: {datatype: FP32, shape: [-1], encoding: base64}
              dims: {datatype: INT64, shape: [2], encoding: text}
            request:
              path: /v1/models/m/versions/1:predict
              body: {inputs: {x: {dims: $dims, dataType: 1, floatData: $x}}, outputFilter: [scores]}
            answer: {scores: $.outputs.scores.rawData, dims: $.outputs.scores.dims}
            error: $.error_message
            """,
    ),
    Format(
        name="paddle-serving",
        path="/uci/prediction",
        samples=({"key": ["x"], "value": ["[[0.5, 1.0, 2.0]]"]},),
        answer=paddle,
        row=lambda draw: draw.of("number", 3),
        body=lambda rows, options: {"key": ["x"], "value": [json.dumps(rows)]},
        values=("$.value[*]",),
        fails=({"key": ["x"], "value": ["[[0.5, 1.0]]"]},),
        flag="err_no",
        adapter=Adapter(
            source="""
import json
import numpy as np

def request(call):
    return "/uci/prediction", {"key": ["x"], "value": [json.dumps(call.inputs["x"].tolist())]}

def answer(call, status, body):
    if body["err_no"]:
        raise ValueError(body["err_msg"])
    return {"prob": np.array(json.loads(body["value"][0]), np.float64)}
""",
            models="""
inputs: {x: {datatype: FP64, shape: [-1, 3]}}
outputs: {prob: {datatype: FP64, shape: [-1, 1]}}
""",
            inputs=lambda bodies: {"x": json.loads(bodies[0]["value"][0])},
            outputs=lambda answers: {"prob": json.loads(answers[0]["value"][0])},
        ),
    ),
    Format(
        name="kserve-explain",
        path="/v1/models/m:explain",
        samples=({"instances": [[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 1.0]]},),
        answer=explain,
        row=a_vector,
        body=lambda rows, options: {"instances": rows},
        values=("$.explanations.shap_values", "$.explanations.raw.prediction"),
        echoes=True,
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 4]}}
            outputs: {shap: {datatype: FP64, shape: [n, 4]}, prediction: {datatype: FP64, shape: [n]}}
            request: {path: "/v1/models/m:explain", body: {instances: $x}}
            answer: {shap: $.explanations.shap_values, prediction: $.explanations.raw.prediction}
            """,
    ),
    Format(
        name="bentoml-series",
        path="/classify",
        health="/livez",
        samples=({"input_series": [[5.1, 3.5, 1.4, 0.2], [1.0, 2.0, 3.0, 4.0]]},),
        answer=bentoml,
        row=a_vector,
        body=lambda rows, options: {"input_series": rows},
        values=("$[*]",),
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 4]}}
            outputs: {label: {datatype: INT64, shape: [n]}}
            request: {path: /classify, body: {input_series: $x}}
            answer: {label: $}
            """,
    ),
    Format(
        name="ray-serve-one",
        path="/classifier",
        health="/-/healthz",
        samples=({"sepal length": 1.0, "sepal width": 2.0, "petal length": 3.0},),
        answer=ray,
        row=lambda draw: draw.of("number", 3),
        body=lambda rows, options: dict(zip(("sepal length", "sepal width", "petal length"), rows[0], strict=True)),
        values=("$.result", "$.score"),
        many=False,
        by_hand="""
            inputs:
              sepal_length: {datatype: FP64, shape: [n]}
              sepal_width: {datatype: FP64, shape: [n]}
              petal_length: {datatype: FP64, shape: [n]}
            outputs: {result: {datatype: BYTES, shape: [n]}, score: {datatype: FP64, shape: [n]}}
            request:
              path: /classifier
              rows: 1
              body: {sepal length: $sepal_length, sepal width: $sepal_width, petal length: $petal_length}
            answer: {result: $.result, score: $.score}
            """,
    ),
    Format(
        name="litserve",
        path="/predict",
        health="/health",
        samples=({"input": 4.0}, {"input": 2.5}),
        answer=litserve,
        row=lambda draw: draw.number(),
        body=lambda rows, options: {"input": rows[0]},
        values=("$.output",),
        many=False,
        by_hand="""
            inputs: {input: {datatype: FP64, shape: [n]}}
            outputs: {output: {datatype: FP64, shape: [n]}}
            request: {path: /predict, rows: 1, body: {input: $input}}
            answer: {output: $.output}
            """,
    ),
    Format(
        name="bigquery-remote",
        path="/function",
        samples=({"requestId": "124ab1c", "caller": "//bigquery/jobs/x", "sessionUser": "a@b.c", "calls": PEOPLE},),
        answer=bigquery,
        row=a_person,
        body=lambda rows, options: {
            "requestId": "124ab1c",
            "caller": "//bigquery/jobs/x",
            "sessionUser": "a@b.c",
            "calls": rows,
        },
        values=("$.replies",),
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {reply: {datatype: FP64, shape: [n]}}
            request:
              path: /function
              body: {requestId: 124ab1c, caller: //bigquery/jobs/x, sessionUser: a@b.c, calls: {$each: [$age, $plan]}}
            answer: {reply: $.replies}
            error: $.errorMessage
            """,
    ),
    Format(
        name="snowflake-function",
        path="/external",
        samples=({"data": [[0, 30, "gold"], [1, 40, "free"]]},),
        answer=snowflake,
        row=a_person,
        body=lambda rows, options: {"data": [[index, *row] for index, row in enumerate(rows)]},
        values=("$.data[*][1]",),
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /external, body: {data: {$each: [$row, $age, $plan]}}}
            answer: {score: "$.data[*][1]"}
            order: "$.data[*][0]"
            """,
    ),
)

__all__ = ["TABLES", "either", "floats"]
