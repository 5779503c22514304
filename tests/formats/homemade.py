"""Servers that somebody wrote for one model, with Flask, Express, FastAPI or Spring: forms that are often seen."""

from typing import Any

import numpy as np

from tests.formats.stand_in import (
    DETAIL,
    ERROR,
    Adapter,
    Document,
    Draw,
    Format,
    anything,
    boolean,
    digest,
    integer,
    list_of,
    number,
    one_of,
    pick,
    share,
    text,
    weighted,
)
from tests.formats.tables import a_person, person


def flask(body: Document) -> Document:
    """A flag for success in every 200, and the score as a text."""
    if not isinstance(body, dict) or set(body) != {"features"} or not list_of(number, 3)(body["features"]):
        return {"success": False, "error": "expected 3 features"}
    if min(body["features"]) < -10000:
        return {"success": False, "error": "a feature is out of range", "prediction": None}
    return {"success": True, "error": None, "prediction": repr(weighted(body["features"]))}


def keyed(body: Document) -> Document:
    """Scores by the ids that the client sent: the names of the members are data."""
    ERROR.members(body, {"records": list_of(anything)})
    rows = ERROR.rows(body["records"], {"id": text, "amount": number}, "records")
    return {"scores": {row["id"]: share(row["amount"]) for row in rows}}


def ranking(body: Document) -> Document:
    """Sorted, with the number of the item in the request."""
    ERROR.members(body, {"user": text, "items": list_of(anything)})
    rows = ERROR.rows(body["items"], {"sku": text, "price": number}, "items")
    found = sorted(
        ((share(body["user"], row["sku"], row["price"]), index) for index, row in enumerate(rows)), reverse=True
    )
    ranked = [{"position": at + 1, "item_index": index, "score": score} for at, (score, index) in enumerate(found)]
    return {"user": body["user"], "ranking": ranked}


def fastapi_one(body: Document) -> Document:
    DETAIL.members(body, {"age": integer, "plan": text})
    probability = share(body["age"], body["plan"])
    return {"prediction": int(probability > 0.5), "probability": probability}


def fastapi_vector(body: Document) -> Document:
    """One instance whose features are a list."""
    DETAIL.members(body, {"features": list_of(number, 4)})
    return {"class": pick(["a", "b", "ü"], body["features"]), "score": weighted(body["features"])}


def pandas(body: Document) -> Document:
    """Columns in, and what `DataFrame.to_dict` makes of columns out: the numbers of the rows name the members."""
    DETAIL.members(body, {"age": list_of(integer), "plan": list_of(text)})
    if len(body["age"]) != len(body["plan"]):
        DETAIL.refuse("All arrays must be of the same length")
    rows = zip(body["age"], body["plan"], strict=True)
    return {"score": {str(index): share(*row) for index, row in enumerate(rows)}}


def split_frame(body: Document) -> Document:
    """Columns in, and a table out whose rows have values of several kinds."""
    DETAIL.members(body, {"age": list_of(integer), "plan": list_of(text)})
    if len(body["age"]) != len(body["plan"]):
        DETAIL.refuse("All arrays must be of the same length")
    rows = [*zip(body["age"], body["plan"], strict=True)]
    data = [[share(*row), pick(["no", "ja ü"], *row)] for row in rows]
    return {"columns": ["score", "label"], "index": list(range(len(rows))), "data": data}


def json_rpc(body: Document) -> Document:
    """Errors are in a 200, in place of the result."""
    error = {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "Invalid params"}}
    if not isinstance(body, dict) or set(body) != {"jsonrpc", "id", "method", "params"} or body["method"] != "predict":
        return error
    params = body["params"]
    if not isinstance(params, dict) or set(params) != {"x"} or not list_of(list_of(number, 2))(params["x"]):
        return error
    if any(row[0] < -10000 for row in params["x"]):
        return error
    return {"jsonrpc": "2.0", "id": body["id"], "result": {"y": [weighted(row) for row in params["x"]]}}


def grpc_gateway(body: Document) -> Document:
    """What grpc-gateway makes of protocol buffers: int64 are texts, and what is zero, false or empty is left out."""
    strict = ERROR
    strict.members(body, {"userIds": list_of(text), "topK?": integer})
    if not all(each.lstrip("-").isdigit() for each in body["userIds"]):
        strict.refuse("invalid value for int64 field userIds")
    scores = []
    for each in body["userIds"]:
        value = digest(int(each), body.get("topK")) % 4 / 4  # a quarter of all scores is 0
        scores.append(
            {"userId": each, **({"score": value} if value else {}), **({"isKnown": True} if value > 0.5 else {})}
        )
    return {"scores": scores}


def status_in_rows(body: Document) -> Document:
    """Each row has a status of its own, and one that failed has no score."""
    ERROR.members(body, {"rows": list_of(anything)})
    rows = ERROR.rows(body["rows"], {"x": number}, "rows")
    found: list[Document] = []
    for each in rows:
        if each["x"] == 1e300:
            found.append({"ok": False, "score": None, "reason": "out of range"})
        else:
            found.append({"ok": True, "score": share(each["x"]), "reason": None})
    return {"results": found}


def optional_features(body: Document) -> Document:
    """A member that may be missing changes the score."""
    DETAIL.members(body, {"x": list_of(list_of(number, 2)), "weights?": list_of(number, 2), "explain": boolean})
    weights = body.get("weights", [1, 1])
    return {"y": [[share(row, weights, body["explain"])] for row in body["x"]], "explained": body["explain"]}


def normalized(body: Document) -> Document:
    """A softmax over the rows: the answer for a row depends on the others."""
    ERROR.members(body, {"candidates": list_of(list_of(number, 2)), "context": text})
    raw = [share(body["context"], row) for row in body["candidates"]]
    return {"probabilities": [each / sum(raw) for each in raw]}


def padded_text(body: Document) -> Document:
    """As many numbers for each text as it has words: the rows of the answer are ragged."""
    ERROR.members(body, {"texts": list_of(text), "language": one_of("en", "de")})
    return {
        "weights": [
            [share(index, word, body["language"]) for index, word in enumerate(each.split())] for each in body["texts"]
        ]
    }


def image_pixels(body: Document) -> Document:
    """A small image as nested lists of integers, and a mask of it."""
    ERROR.members(body, {"image": list_of(list_of(integer, 3), 2), "threshold": integer})
    mask = [[value > body["threshold"] for value in row] for row in body["image"]]
    return {"mask": mask, "area": sum(map(sum, mask)), "sum": sum(map(sum, body["image"]))}


def time_series(body: Document) -> Document:
    """Timestamps and values in two lists, a forecast of another length."""
    ERROR.members(body, {"ds": list_of(text), "y": list_of(number), "periods": integer})
    if len(body["ds"]) != len(body["y"]):
        ERROR.refuse("ds and y differ in length")
    known = [body["ds"], body["y"]]
    forecast = [
        {"ds": f"2027-01-{day + 1:02}", "yhat": share("y", day, known), "yhat_upper": 1 + share("u", day, known)}
        for day in range(body["periods"])
    ]
    return {"forecast": forecast, "model": "prophet"}


def a_series(draw: Draw) -> list[Any]:
    return [f"2026-{draw.randrange(10, 13)}-{draw.randrange(10, 29)}", draw.number()]


HOMEMADE = (
    Format(
        name="flask-success-flag",
        path="/predict",
        health="/healthz",
        samples=({"features": [1.0, 2.0, 0.5]},),
        answer=flask,
        row=lambda draw: [abs(each) for each in draw.of("number", 3)],
        body=lambda rows, options: {"features": rows[0]},
        values=("$.prediction",),
        many=False,
        numbers_are_texts=True,
        fails=({"features": [-20000.5, 1.0, 2.0]},),
        flag="$.success",
        by_hand="""
            inputs: {features: {datatype: FP64, shape: [n, 3]}}
            outputs: {prediction: {datatype: FP64, shape: [n], encoding: text}}
            request: {path: /predict, rows: 1, body: {features: $features}}
            answer: {prediction: $.prediction}
            success: {$.success: true}
            error: $.error
            """,
    ),
    Format(
        name="express-keyed",
        path="/score",
        samples=({"records": [{"id": "a1", "amount": 1.5}, {"id": "b2", "amount": 2.5}]},),
        answer=keyed,
        row=lambda draw: [f"id{draw.randrange(10**9)}", draw.number()],
        body=lambda rows, options: {"records": [{"id": row[0], "amount": row[1]} for row in rows]},
        values=("$.scores",),
        adapter=Adapter(
            source="""
import numpy as np

def request(call):
    rows = zip(call.inputs["id"], call.inputs["amount"].tolist(), strict=True)
    return "/score", {"records": [{"id": key.decode(), "amount": amount} for key, amount in rows]}

def answer(call, status, body):
    return {"score": np.array([body["scores"][key.decode()] for key in call.inputs["id"]], np.float64)}
""",
            models="""
inputs: {id: {datatype: BYTES, shape: [-1]}, amount: {datatype: FP64, shape: [-1]}}
outputs: {score: {datatype: FP64, shape: [-1]}}
""",
            inputs=lambda bodies: {
                "id": [each["id"] for each in bodies[0]["records"]],
                "amount": [each["amount"] for each in bodies[0]["records"]],
            },
            outputs=lambda answers: {"score": list(answers[0]["scores"].values())},
        ),
    ),
    Format(
        name="express-ranking",
        path="/rank",
        samples=(
            {
                "user": "u1",
                "items": [{"sku": "a", "price": 1.5}, {"sku": "b", "price": 2.5}, {"sku": "c", "price": 0.5}],
            },
        ),
        answer=ranking,
        row=lambda draw: [draw.text(), draw.number()],
        options=lambda draw: draw.text(),
        body=lambda rows, options: {"user": options, "items": [{"sku": row[0], "price": row[1]} for row in rows]},
        values=("$.ranking[*].item_index", "$.ranking[*].score"),
        sorts="$.ranking[*].item_index",
        echoes=True,
        by_hand="""
            inputs:
              user: {datatype: BYTES, shape: []}
              sku: {datatype: BYTES, shape: [n]}
              price: {datatype: FP64, shape: [n]}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /rank, body: {user: $user, items: {$each: {sku: $sku, price: $price}}}}
            answer: {score: "$.ranking[*].score"}
            order: "$.ranking[*].item_index"
            """,
    ),
    Format(
        name="fastapi-one-record",
        path="/predict",
        health="/health",
        samples=({"age": 30, "plan": "gold"}, {"age": 40, "plan": "free"}),
        answer=fastapi_one,
        row=a_person,
        body=lambda rows, options: person(rows[0]),
        values=("$.prediction", "$.probability"),
        many=False,
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {prediction: {datatype: INT64, shape: [n]}, probability: {datatype: FP64, shape: [n]}}
            request: {path: /predict, rows: 1, body: {age: $age, plan: $plan}}
            answer: {prediction: $.prediction, probability: $.probability}
            """,
    ),
    Format(
        name="fastapi-one-vector",
        path="/predict",
        health="/health",
        samples=({"features": [5.0, 3.5, 1.0, 0.5]},),
        answer=fastapi_vector,
        row=lambda draw: draw.of("number", 4),
        body=lambda rows, options: {"features": rows[0]},
        values=("$.class", "$.score"),
        many=False,
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 4]}}
            outputs: {class: {datatype: BYTES, shape: [n]}, score: {datatype: FP64, shape: [n]}}
            request: {path: /predict, rows: 1, body: {features: $x}}
            answer: {class: $.class, score: $.score}
            """,
    ),
    Format(
        name="pandas-columns",
        path="/predict",
        samples=({"age": [30, 40], "plan": ["gold", "free"]},),
        answer=pandas,
        row=a_person,
        body=lambda rows, options: {"age": [row[0] for row in rows], "plan": [row[1] for row in rows]},
        values=("$.score",),
        adapter=Adapter(
            source="""
import numpy as np

def request(call):
    return "/predict", {"age": call.inputs["age"], "plan": [plan.decode() for plan in call.inputs["plan"]]}

def answer(call, status, body):
    scores = body["score"]
    return {"score": np.array([scores[str(index)] for index in range(len(scores))], np.float64)}
""",
            models="""
inputs: {age: {datatype: INT64, shape: [-1]}, plan: {datatype: BYTES, shape: [-1]}}
outputs: {score: {datatype: FP64, shape: [-1]}}
""",
            inputs=lambda bodies: bodies[0],
            outputs=lambda answers: {"score": list(answers[0]["score"].values())},
        ),
    ),
    Format(
        name="pandas-split-answer",
        path="/predict",
        samples=({"age": [30, 40], "plan": ["gold", "free"]},),
        answer=split_frame,
        row=a_person,
        body=lambda rows, options: {"age": [row[0] for row in rows], "plan": [row[1] for row in rows]},
        values=("$.data[*][0]", "$.data[*][1]"),
        by_hand="""
            inputs: {age: {datatype: INT64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}, label: {datatype: BYTES, shape: [n]}}
            request: {path: /predict, body: {age: $age, plan: $plan}}
            answer: {score: "$.data[*][0]", label: "$.data[*][1]"}
            """,
    ),
    Format(
        name="json-rpc",
        path="/rpc",
        samples=({"jsonrpc": "2.0", "id": 1, "method": "predict", "params": {"x": [[1.0, 2.0], [3.0, 4.0]]}},),
        answer=json_rpc,
        row=lambda draw: [abs(draw.number()), draw.number()],
        body=lambda rows, options: {"jsonrpc": "2.0", "id": 1, "method": "predict", "params": {"x": rows}},
        values=("$.result.y",),
        fails=({"jsonrpc": "2.0", "id": 1, "method": "predict", "params": {"x": [[-20000.5, 2.0]]}},),
        flag="$.error",
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 2]}}
            outputs: {y: {datatype: FP64, shape: [n]}}
            request: {path: /rpc, body: {jsonrpc: "2.0", id: 1, method: predict, params: {x: $x}}}
            answer: {y: $.result.y}
            error: $.error.message
            """,
    ),
    Format(
        name="grpc-gateway",
        path="/v1/score",
        samples=({"userIds": ["9007199254740993", "3"], "topK": 5},),
        answer=grpc_gateway,
        row=lambda draw: str(draw.integer()),
        options=lambda draw: draw.count(),
        body=lambda rows, options: {"userIds": rows, "topK": options},
        values=("$.scores[*].score", "$.scores[*].isKnown"),
        numbers_are_texts=True,
        adapter=Adapter(
            source="""
import numpy as np

def request(call):
    users = [str(user) for user in call.inputs["user"].tolist()]
    return "/v1/score", {"userIds": users, "topK": call.inputs["k"].item()}

def answer(call, status, body):
    rows = body["scores"]
    return {
        "score": np.array([row.get("score", 0) for row in rows], np.float64),
        "is_known": np.array([row.get("isKnown", False) for row in rows], bool),
    }
""",
            models="""
inputs: {user: {datatype: INT64, shape: [-1]}, k: {datatype: INT64, shape: []}}
outputs: {score: {datatype: FP64, shape: [-1]}, is_known: {datatype: BOOL, shape: [-1]}}
""",
            inputs=lambda bodies: {"user": list(map(int, bodies[0]["userIds"])), "k": bodies[0]["topK"]},
            outputs=lambda answers: {
                "score": [each.get("score", 0) for each in answers[0]["scores"]],
                "is_known": [each.get("isKnown", False) for each in answers[0]["scores"]],
            },
        ),
    ),
    Format(
        name="status-in-rows",
        path="/score",
        samples=({"rows": [{"x": 0.5}, {"x": 1.5}]},),
        answer=status_in_rows,
        row=lambda draw: draw.number(),
        body=lambda rows, options: {"rows": [{"x": each} for each in rows]},
        values=("$.results[*].ok", "$.results[*].score"),
        fails=({"rows": [{"x": 1e300}, {"x": 0.25}]},),
        flag="$.results[*].ok",
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n]}}
            outputs: {ok: {datatype: BOOL, shape: [n]}, score: {datatype: FP64, shape: [n]}}
            request: {path: /score, body: {rows: {$each: {x: $x}}}}
            answer: {ok: "$.results[*].ok", score: "$.results[*].score"}
            """,
    ),
    Format(
        name="optional-weights",
        path="/predict",
        samples=(
            {"x": [[1.0, 2.0], [3.0, 4.0]], "weights": [0.5, 1.5], "explain": False},
            {"x": [[1.0, 2.5]], "weights": [0.25, 1.5], "explain": True},
        ),
        answer=optional_features,
        row=lambda draw: draw.of("number", 2),
        options=lambda draw: [draw.of("number", 2), draw.random() < 0.5],
        body=lambda rows, options: {"x": rows, "weights": options[0], "explain": options[1]},
        values=("$.y", "$.explained"),
        by_hand="""
            inputs:
              x: {datatype: FP64, shape: [n, 2]}
              weights: {datatype: FP64, shape: [2], optional: true}
              explain: {datatype: BOOL, shape: []}
            outputs: {y: {datatype: FP64, shape: [n, 1]}, explained: {datatype: BOOL, shape: []}}
            request: {path: /predict, body: {x: $x, weights: $weights, explain: $explain}}
            answer: {y: $.y, explained: $.explained}
            """,
    ),
    Format(
        name="softmax-over-rows",
        path="/choose",
        samples=({"candidates": [[1.0, 2.0], [3.0, 4.0]], "context": "home"},),
        answer=normalized,
        row=lambda draw: draw.of("number", 2),
        options=lambda draw: draw.text(),
        body=lambda rows, options: {"candidates": rows, "context": options},
        values=("$.probabilities",),
        rows_depend=True,
        by_hand="""
            inputs: {x: {datatype: FP64, shape: [n, 2]}, context: {datatype: BYTES, shape: []}}
            outputs: {probability: {datatype: FP64, shape: [n]}}
            request: {path: /choose, body: {candidates: $x, context: $context}}
            answer: {probability: $.probabilities}
            """,
    ),
    Format(
        name="ragged-weights",
        path="/weights",
        samples=({"texts": ["one two", "three four"], "language": "en"},),
        answer=padded_text,
        row=lambda draw: " ".join(draw.of("text", draw.randrange(1, 4))),
        options=lambda draw: draw.choice(("en", "de")),
        body=lambda rows, options: {"texts": rows, "language": options},
        values=("$.weights",),
        adapter=Adapter(
            source="""
import numpy as np

def request(call):
    texts = [text.decode() for text in call.inputs["texts"]]
    return "/weights", {"texts": texts, "language": call.inputs["language"].item().decode()}

def answer(call, status, body):
    rows = body["weights"]
    padded = np.zeros((len(rows), max(map(len, rows))))
    for index, row in enumerate(rows):
        padded[index, :len(row)] = row
    return {"weights": padded}
""",
            models="""
inputs: {texts: {datatype: BYTES, shape: [-1]}, language: {datatype: BYTES, shape: []}}
outputs: {weights: {datatype: FP64, shape: [-1, -1]}}
""",
            inputs=lambda bodies: bodies[0],
            outputs=lambda answers: {"weights": square(answers[0]["weights"])},
        ),
    ),
    Format(
        name="image-mask",
        path="/segment",
        samples=({"image": [[0, 128, 255], [3, 4, 5]], "threshold": 100},),
        answer=image_pixels,
        row=lambda draw: [[draw.randrange(256) for _ in range(3)] for _ in range(2)],
        options=lambda draw: draw.randrange(256),
        body=lambda rows, options: {"image": rows[0], "threshold": options},
        values=("$.mask", "$.area", "$.sum"),
        many=False,
        by_hand="""
            inputs: {image: {datatype: UINT8, shape: [n, 2, 3]}, threshold: {datatype: UINT8, shape: []}}
            outputs:
              mask: {datatype: BOOL, shape: [n, 2, 3]}
              area: {datatype: INT64, shape: [n]}
              sum: {datatype: INT64, shape: [n]}
            request: {path: /segment, rows: 1, body: {image: $image, threshold: $threshold}}
            answer: {mask: $.mask, area: $.area, sum: $.sum}
            """,
    ),
    Format(
        name="forecast",
        path="/forecast",
        samples=({"ds": ["2026-10-01", "2026-10-02"], "y": [1.5, 2.5], "periods": 3},),
        answer=time_series,
        row=a_series,
        options=lambda draw: draw.randrange(1, 9),
        body=lambda rows, options: {"ds": [row[0] for row in rows], "y": [row[1] for row in rows], "periods": options},
        values=("$.forecast[*].ds", "$.forecast[*].yhat", "$.forecast[*].yhat_upper"),
        rows_depend=True,
        by_hand="""
            inputs:
              ds: {datatype: BYTES, shape: [n]}
              y: {datatype: FP64, shape: [n]}
              periods: {datatype: INT64, shape: []}
            outputs:
              day: {datatype: BYTES, shape: [m]}
              yhat: {datatype: FP64, shape: [m]}
              upper: {datatype: FP64, shape: [m]}
            request: {path: /forecast, body: {ds: $ds, y: $y, periods: $periods}}
            answer: {day: "$.forecast[*].ds", yhat: "$.forecast[*].yhat", upper: "$.forecast[*].yhat_upper"}
            """,
    ),
)


def square(rows: list[list[float]]) -> Any:
    """*rows* with zeros at the ends of the shorter ones."""
    width = max(map(len, rows))
    return [[*row, *np.zeros(width - len(row)).tolist()] for row in rows]
