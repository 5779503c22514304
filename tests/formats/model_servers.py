"""Servers that serve any model, each with a form of its own for tensors: Seldon, PMML, ONNX, Paddle, BentoML, Ray."""

import base64
import json
import struct

from tests.formats.stand_in import (
    DETAIL,
    ERROR,
    MESSAGE,
    Adapter,
    Document,
    Draw,
    Format,
    Strict,
    anything,
    digest,
    integer,
    list_of,
    number,
    one_of,
    pick,
    shares,
    text,
    vector,
    weighted,
)
from tests.formats.tables import a_vector

SELDON = Strict(
    400, lambda words: {"status": {"code": -1, "info": words, "reason": "MICROSERVICE_BAD_DATA", "status": 1}}
)


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
    return [int(digest(row) % 1000) for row in body["input_series"]]


def ray(body: Document) -> Document:
    ERROR.members(body, {"sepal length": number, "sepal width": number, "petal length": number})
    row = [body[name] for name in ("sepal length", "sepal width", "petal length")]
    return {"result": pick(["setosa", "versicolor", "virginica"], row), "score": weighted(row)}


def litserve(body: Document) -> Document:
    DETAIL.members(body, {"input": number})
    return {"output": body["input"] ** 2}


MODEL_SERVERS = (
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
        flag="$.err_no",
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
)
