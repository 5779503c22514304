"""Servers of models for rows of a table: numbers and texts by column, by record, or as plain vectors."""

from typing import Any

from tests.formats.stand_in import (
    ERROR,
    GOOGLE,
    MESSAGE,
    Document,
    Draw,
    Format,
    Strict,
    anything,
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
            {"Inputs": {"data": [person(row) for row in PEOPLE]}, "GlobalParameters": {"method": "predict_proba"}},
            {
                "Inputs": {"data": [person(row) for row in PEOPLE[::-1]]},
                "GlobalParameters": {"method": "predict_proba"},
            },
        ),
        answer=azure_records,
        row=a_person,
        body=lambda rows, options: {
            "Inputs": {"data": [person(row) for row in rows]},
            "GlobalParameters": {"method": "predict_proba"},
        },
        values=("$.Results",),
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {result: {datatype: FP64, shape: [n, 2]}}
            request:
              path: /score
              body: {Inputs: {data: {$each: {age: $age, plan: $plan}}}, GlobalParameters: {method: predict_proba}}
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
