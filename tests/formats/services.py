"""Services that know some values alone, fail in a 200, or look keys up: what other values show of them is little."""

import re
from typing import Any

from tests.formats.stand_in import (
    DETAIL,
    ERROR,
    Document,
    Draw,
    Format,
    anything,
    digest,
    integer,
    list_of,
    number,
    one_of,
    share,
    text,
    weighted,
)

PLANS = ("gold", "free", "trial")
MOLECULES = ("CCO", "CCN", "CCC", "CCCl", "c1ccccc1")
QUERY = "query P($x: [[Float!]!]!) { predict(x: $x) { score } }"


def day(value: Document) -> bool:
    """A date as ISO 8601 has it."""
    return isinstance(value, str) and re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-[0-3]\d", value) is not None


def enum_records(body: Document) -> Document:
    """Sorted rows, of a member that has one of three values, with the number of the record."""
    ERROR.members(body, {"records": list_of(anything)})
    rows = ERROR.rows(body["records"], {"amount": number, "plan": one_of(*PLANS)}, "records")
    found = sorted(((share(each["amount"], each["plan"]), row) for row, each in enumerate(rows)), reverse=True)
    return {"scores": [{"row": row, "score": score} for score, row in found]}


def dated_records(body: Document) -> Document:
    """Sorted rows, and nothing that says which is which."""
    ERROR.members(body, {"records": list_of(anything)})
    rows = ERROR.rows(body["records"], {"amount": number, "day": day}, "records")
    return {"scores": sorted(share(each["amount"], each["day"]) for each in rows)}


def molecules(body: Document) -> Document:
    """Sorted numbers, of texts of which only a few are valid."""
    DETAIL.members(body, {"smiles": list_of(one_of(*MOLECULES)), "solvent": text})
    return {"logp": sorted(share(each, body["solvent"]) for each in body["smiles"])}


def event_sequence(body: Document) -> Document:
    """Events that are one instance together, one member of which has few values."""
    ERROR.members(body, {"session": text, "events": list_of(anything)})
    kinds = {"ts": integer, "type": one_of("click", "view"), "value": number}
    rows = ERROR.rows(body["events"], kinds, "events")
    return {"churn": share(body["session"], [[each["ts"], each["type"], each["value"]] for each in rows])}


def id_lookup(body: Document) -> Document:
    """Ids that are printed to look something up: 5 and 5.0 are two keys."""
    ERROR.members(body, {"userId": number, "itemId": number})
    return {"rating": share(f"user-{body['userId']}", f"item-{body['itemId']}")}


def counts_as_texts(body: Document) -> Document:
    """Numbers that are printed to look something up, though their names say nothing of it."""
    ERROR.members(body, {"codes": list_of(number), "region": text})
    return {"scores": [share(f"{each}", body["region"]) for each in body["codes"]]}


def nested_state(body: Document) -> Document:
    """What says in a 200 that a request failed is inside of an object."""
    ERROR.members(body, {"puid": text, "x": list_of(number, 2)})
    if body["x"][0] < 0.48:
        return {"result": {"statusCode": 7, "score": None}, "puid": body["puid"]}
    return {"result": {"statusCode": 0, "score": weighted(body["x"])}, "puid": body["puid"]}


def graphql(body: Document) -> Document:
    """Errors are a member that good answers do not have."""
    ERROR.members(body, {"query": text, "variables": anything})
    if body["query"] != QUERY:
        return {"errors": [{"message": "Syntax Error", "locations": [{"line": 1, "column": 2}]}], "data": None}
    variables = ERROR.members(body["variables"], {"x": list_of(list_of(number, 2))})
    return {"data": {"predict": [{"score": weighted(row)} for row in variables["x"]]}}


def vector_search(body: Document) -> Document:
    """The nearest of what the server has: their ids are the result."""
    ERROR.members(body, {"vector": list_of(number, 3), "limit": integer})
    found = sorted(((share(item, body["vector"]), item) for item in range(20)), reverse=True)[: body["limit"]]
    points = [{"id": digest(item) % 1000, "version": 3, "score": score, "payload": None} for score, item in found]
    return {"result": points, "status": "ok", "time": 0.000123}


def loan(body: Document) -> Document:
    """A decision whose members say `status` and `approved`, and are no state of the request."""
    DETAIL.members(body, {"income": integer, "age": integer, "amount": integer})
    is_good = bool(digest(body["income"], body["age"], body["amount"]) % 2)
    return {
        "status": "approved" if is_good else "rejected",
        "approved": is_good,
        "limit": body["income"] // 10 if is_good else 0,
    }


def summary(body: Document) -> Document:
    """What is called statistics is the answer."""
    ERROR.members(body, {"values": list_of(number)})
    values = body["values"]
    return {"stats": {"mean": sum(values) / len(values), "largest": float(max(values))}, "n": len(values)}


def an_event(draw: Draw) -> list[Any]:
    return [draw.randrange(10**9), draw.choice(("click", "view")), draw.number()]


SERVICES = (
    Format(
        name="enum-records",
        path="/score",
        samples=({"records": [{"amount": 1.5, "plan": "gold"}]}, {"records": [{"amount": 2.5, "plan": "free"}]}),
        answer=enum_records,
        row=lambda draw: [draw.number(), draw.choice(PLANS)],
        body=lambda rows, options: {"records": [{"amount": row[0], "plan": row[1]} for row in rows]},
        values=("$.scores[*].row", "$.scores[*].score"),
        sorts="$.scores[*].row",
        by_hand="""
            inputs: {amount: {datatype: FP64, shape: [n]}, plan: {datatype: BYTES, shape: [n]}}
            outputs: {score: {datatype: FP64, shape: [n]}}
            request: {path: /score, body: {records: {$each: {amount: $amount, plan: $plan}}}}
            answer: {score: "$.scores[*].score"}
            order: "$.scores[*].row"
            """,
    ),
    Format(
        name="dated-records",
        path="/score",
        samples=({"records": [{"amount": 1.5, "day": "2026-01-31"}]},),
        answer=dated_records,
        row=lambda draw: [draw.number(), f"2026-0{draw.randrange(1, 10)}-1{draw.randrange(10)}"],
        body=lambda rows, options: {"records": [{"amount": row[0], "day": row[1]} for row in rows]},
        values=("$.scores",),
        rows_depend=True,
        by_hand="""
            inputs: {amount: {datatype: FP64, shape: [n]}, day: {datatype: BYTES, shape: [n]}}
            outputs: {scores: {datatype: FP64, shape: [n]}}
            request: {path: /score, body: {records: {$each: {amount: $amount, day: $day}}}}
            answer: {scores: $.scores}
            """,
    ),
    Format(
        name="molecules",
        path="/logp",
        samples=({"smiles": ["CCO"], "solvent": "water"},),
        answer=molecules,
        row=lambda draw: draw.choice(MOLECULES),
        options=lambda draw: draw.text(),
        body=lambda rows, options: {"smiles": rows, "solvent": options},
        values=("$.logp",),
        rows_depend=True,
        by_hand="""
            inputs: {smiles: {datatype: BYTES, shape: [n]}, solvent: {datatype: BYTES, shape: []}}
            outputs: {logp: {datatype: FP64, shape: [n]}}
            request: {path: /logp, body: {smiles: $smiles, solvent: $solvent}}
            answer: {logp: $.logp}
            """,
    ),
    Format(
        name="event-sequence",
        path="/churn",
        samples=(
            {
                "session": "s1",
                "events": [
                    {"ts": 1700000000, "type": "click", "value": 1.5},
                    {"ts": 1700000060, "type": "view", "value": 0.5},
                ],
            },
        ),
        answer=event_sequence,
        row=an_event,
        options=lambda draw: draw.text(),
        body=lambda rows, options: {
            "session": options,
            "events": [{"ts": row[0], "type": row[1], "value": row[2]} for row in rows],
        },
        values=("$.churn",),
        rows_depend=True,
        by_hand="""
            inputs:
              session: {datatype: BYTES, shape: []}
              ts: {datatype: INT64, shape: [n]}
              type: {datatype: BYTES, shape: [n]}
              value: {datatype: FP64, shape: [n]}
            outputs: {churn: {datatype: FP64, shape: []}}
            request:
              path: /churn
              body: {session: $session, events: {$each: {ts: $ts, type: $type, value: $value}}}
            answer: {churn: $.churn}
            """,
    ),
    Format(
        name="id-lookup",
        path="/rating",
        samples=({"userId": 12345, "itemId": 77},),
        answer=id_lookup,
        row=lambda draw: [draw.integer(), draw.integer()],
        body=lambda rows, options: {"userId": rows[0][0], "itemId": rows[0][1]},
        values=("$.rating",),
        many=False,
        by_hand="""
            inputs: {user: {datatype: INT64, shape: [n]}, item: {datatype: INT64, shape: [n]}}
            outputs: {rating: {datatype: FP64, shape: [n]}}
            request: {path: /rating, rows: 1, body: {userId: $user, itemId: $item}}
            answer: {rating: $.rating}
            """,
    ),
    Format(
        name="printed-numbers",
        path="/score",
        samples=({"codes": [12345, 99], "region": "eu"},),
        answer=counts_as_texts,
        row=lambda draw: draw.integer(),
        options=lambda draw: draw.text(),
        body=lambda rows, options: {"codes": rows, "region": options},
        values=("$.scores",),
        by_hand="""
            inputs: {codes: {datatype: INT64, shape: [n]}, region: {datatype: BYTES, shape: []}}
            outputs: {scores: {datatype: FP64, shape: [n]}}
            request: {path: /score, body: {codes: $codes, region: $region}}
            answer: {scores: $.scores}
            """,
    ),
    Format(
        name="nested-state",
        path="/predict",
        samples=({"puid": "p1", "x": [0.5, 1.5]},),
        answer=nested_state,
        row=lambda draw: [0.5 + abs(draw.number()), draw.number()],
        options=lambda draw: draw.text(),
        body=lambda rows, options: {"puid": options, "x": rows[0]},
        values=("$.result.score",),
        many=False,
        echoes=True,
        fails=({"puid": "p1", "x": [0.25, 1.0]},),
        flag="$.result.statusCode",
        by_hand="""
            inputs: {puid: {datatype: BYTES, shape: []}, x: {datatype: FP64, shape: [n, 2]}}
            outputs: {score: {datatype: FP64, shape: [n]}, puid: {datatype: BYTES, shape: [n]}}
            request: {path: /predict, rows: 1, body: {puid: $puid, x: $x}}
            answer: {score: $.result.score, puid: $.puid}
            success: {$.result.statusCode: 0}
            """,
    ),
    Format(
        name="graphql",
        path="/graphql",
        samples=({"query": QUERY, "variables": {"x": [[0.5, 1.5], [1.0, 2.0]]}},),
        answer=graphql,
        row=lambda draw: draw.of("number", 2),
        body=lambda rows, options: {"query": QUERY, "variables": {"x": rows}},
        values=("$.data.predict[*].score",),
        fails=({"query": "query {}", "variables": {"x": [[0.5, 1.5]]}},),
        flag="$.errors",
        by_hand=f"""
            inputs: {{x: {{datatype: FP64, shape: [n, 2]}}}}
            outputs: {{score: {{datatype: FP64, shape: [n]}}}}
            request: {{path: /graphql, body: {{query: "{QUERY}", variables: {{x: $x}}}}}}
            answer: {{score: "$.data.predict[*].score"}}
            """,
    ),
    Format(
        name="vector-search",
        path="/collections/a/points/search",
        samples=({"vector": [0.1, 0.2, 0.3], "limit": 3},),
        answer=vector_search,
        row=lambda draw: draw.of("number", 3),
        options=lambda draw: draw.randrange(1, 9),
        body=lambda rows, options: {"vector": rows[0], "limit": options},
        values=("$.result[*].id", "$.result[*].score"),
        many=False,
        by_hand="""
            inputs: {vector: {datatype: FP64, shape: [n, 3]}, limit: {datatype: INT64, shape: []}}
            outputs: {id: {datatype: INT64, shape: [n, k]}, score: {datatype: FP64, shape: [n, k]}}
            request: {path: /collections/a/points/search, rows: 1, body: {vector: $vector, limit: $limit}}
            answer: {id: "$.result[*].id", score: "$.result[*].score"}
            """,
    ),
    Format(
        name="loan-decision",
        path="/decide",
        samples=({"income": 50000, "age": 30, "amount": 1004},),
        answer=loan,
        row=lambda draw: [draw.randrange(10**6), draw.randrange(100), draw.randrange(10**5)],
        body=lambda rows, options: dict(zip(("income", "age", "amount"), rows[0], strict=True)),
        values=("$.status", "$.approved", "$.limit"),
        many=False,
        by_hand="""
            inputs:
              income: {datatype: INT64, shape: [n]}
              age: {datatype: INT64, shape: [n]}
              amount: {datatype: INT64, shape: [n]}
            outputs:
              status: {datatype: BYTES, shape: [n]}
              approved: {datatype: BOOL, shape: [n]}
              limit: {datatype: INT64, shape: [n]}
            request: {path: /decide, rows: 1, body: {income: $income, age: $age, amount: $amount}}
            answer: {status: $.status, approved: $.approved, limit: $.limit}
            """,
    ),
    Format(
        name="summary",
        path="/summary",
        samples=({"values": [1.0, 2.0, 3.5]},),
        answer=summary,
        row=lambda draw: draw.of("number", draw.randrange(2, 6)),
        body=lambda rows, options: {"values": rows[0]},
        values=("$.stats.mean", "$.stats.largest", "$.n"),
        many=False,
        by_hand="""
            inputs: {values: {datatype: FP64, shape: [-1]}}
            outputs:
              mean: {datatype: FP64, shape: []}
              largest: {datatype: FP64, shape: []}
              n: {datatype: INT64, shape: []}
            request: {path: /summary, body: {values: $values}}
            answer: {mean: $.stats.mean, largest: $.stats.largest, n: $.n}
            """,
    ),
)
