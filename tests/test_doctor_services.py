"""The doctor before services that limit, redirect, repeat themselves, or know some values alone."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.doctor.offers import made_of
from gateway.doctor.tensors import tensor_of
from gateway.doctor.variation import changed
from tests.formats import FORMATS
from tests.formats.services import MOLECULES
from tests.test_doctor import Examined, answered_by, doctor
from tests.test_doctor_offers import openapi_of
from tests.test_doctor_templates import agrees, answer_of, declared, examined, legacy, model_of

ROWS = {"x": [[0.5, 1.5], [2.5, 1.0]]}


@asynccontextmanager
async def service(answer: Callable[[web.Request], Awaitable[web.Response]], path: str) -> AsyncIterator[str]:
    """The URL of a server that answers `POST` *path*."""
    application = web.Application()
    application.router.add_post(path, answer)
    async with answered_by(application) as url:
        yield url


async def examined_service(
    answer: Callable[[web.Request], Awaitable[web.Response]], folder: Path, path: str = "/predict", url_path: str = ""
) -> Examined:
    """What the doctor says of a server whose *answer* is a whole response."""
    (folder / "sample.json").write_text(json.dumps(ROWS))
    async with service(answer, path) as url:
        return await doctor(f"{url}{url_path or path}", "--sample", str(folder / "sample.json"))


async def sums(request: web.Request) -> dict[str, Any]:
    return {"y": [sum(row) for row in (await request.json())["x"]]}


# Servers that answer otherwise than expected


async def test_a_limit_of_requests_is_no_refusal_of_their_values(tmp_path: Path) -> None:
    numbers = count(1)

    async def limited(request: web.Request) -> web.Response:
        if next(numbers) > 5:
            return web.json_response({"detail": "5 per 1 day"}, status=429, headers={"Retry-After": "86400"})
        return web.json_response(await sums(request))

    found = await examined_service(limited, tmp_path)
    assert found.code == 2
    (problem,) = found.findings("problem")
    assert "tries the server refuses more requests (429: 5 per 1 day)" in problem
    assert next(numbers) == 7


async def test_a_limit_that_says_when_to_come_again_is_waited_for(tmp_path: Path) -> None:
    numbers = count(1)

    async def limited(request: web.Request) -> web.Response:
        if next(numbers) % 6 == 0:
            return web.json_response({"detail": "slow down"}, status=429, headers={"Retry-After": "0"})
        return web.json_response(await sums(request))

    found = await examined_service(limited, tmp_path)
    assert declared(found, "inputs") == {"x": "FP64 [n, -1]"}
    assert agrees(found), found.printed


async def test_a_sample_that_the_server_refuses_inside_of_a_200_is_named(tmp_path: Path) -> None:
    async def score(request: web.Request) -> web.Response:
        age = (await request.json())["age"]
        said = {"ok": False, "why": f"age {age} is negative"} if age < 0 else {"ok": True, "score": age / 2}
        return web.json_response(said)

    for age, is_named in ((-4, True), (4, False)):
        (tmp_path / "sample.json").write_text(json.dumps({"age": age}))
        async with service(score, "/score") as url:
            found = await doctor(url, "--path", "/score", "--sample", str(tmp_path / "sample.json"))
        named = [words for words in found.findings("problem") if "the answer to the sample has `ok: false`" in words]
        assert bool(named) is is_named


async def test_where_a_server_says_why_a_request_failed_is_found_out(tmp_path: Path) -> None:
    async def score(request: web.Request) -> web.Response:
        plan = (await request.json())["plan"]
        failed = {"ok": False, "result": None, "problem": {"why": f"unknown plan {plan}"}}
        said = {"ok": True, "result": {"score": 0.5}, "problem": None} if plan in ("gold", "free") else failed
        return web.json_response(said)

    (tmp_path / "sample.json").write_text(json.dumps({"plan": "gold"}))
    async with service(score, "/score") as url:
        found = await doctor(url, "--path", "/score", "--sample", str(tmp_path / "sample.json"))
    model = model_of(found)
    assert (model["success"], model["error"]) == ({"$.ok": True}, "$.problem.why")
    assert not any("If it says that a request succeeded" in words for words in found.findings("question"))
    assert any("no path was found that answers 200" in words for words in found.findings("note"))


async def test_a_redirect_names_the_path_to_give(tmp_path: Path) -> None:
    async def redirect(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/predict/"})

    found = await examined_service(redirect, tmp_path)
    assert found.findings("problem") == [
        "the sample was refused: 307, a redirect to /predict/: give that path with --path"
    ]


@pytest.mark.parametrize("path", ["/predict/", "/predict?api-version=2"])
async def test_the_end_of_a_path_is_kept_as_it_was_typed(tmp_path: Path, path: str) -> None:
    async def strict(request: web.Request) -> web.Response:
        return web.json_response(await sums(request), status=200 if request.path_qs == path else 404)

    found = await examined_service(strict, tmp_path, path.partition("?")[0], path)
    assert model_of(found)["request"]["path"] == path
    assert agrees(found), found.printed


async def test_a_path_without_its_last_slash_is_found_in_the_description() -> None:
    async with legacy(openapi_of("/predict/"), answer_of) as url:
        found = await doctor(f"{url}/predict")
    assert "POST /predict/" in found.printed


@pytest.mark.parametrize(
    ("text", "kind"), [("<html>works</html>", "text/html"), ('{"a": 1}\n{"a": 2}\n', "application/x-ndjson")]
)
async def test_an_answer_that_is_not_json_is_named_by_its_kind(tmp_path: Path, text: str, kind: str) -> None:
    async def other(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind)

    found = await examined_service(other, tmp_path)
    assert found.code == 2
    assert f"is not JSON ({kind}" in found.findings("problem")[0]


# What cannot be compared


async def test_values_that_are_never_the_same_are_not_called_the_same_as_straight(tmp_path: Path) -> None:
    numbers = count(1)
    found = await examined(lambda body: {"reply": f"number {next(numbers)}", "p": next(numbers) / 7}, tmp_path, ROWS)
    assert "the same values as straight" not in found.printed
    assert "whose values differ for the same request and could not be compared" in found.table["infer in binary"]
    assert not any("moves no output" in words for words in found.findings("note"))


async def test_an_output_that_is_never_the_same_is_named_beside_what_is(tmp_path: Path) -> None:
    numbers = count(1)
    found = await examined(lambda body: {"y": [sum(row) for row in body["x"]], "calls": next(numbers)}, tmp_path, ROWS)
    assert "the same values as straight (without calls, never the same)" in found.table["infer in binary"]


async def test_answers_that_nothing_moves_are_a_problem(tmp_path: Path) -> None:
    known: dict[str, Any] = {}

    def idempotent(body: Any) -> Any:
        return known.setdefault(body["request_id"], {"y": [sum(row) for row in body["x"]]})

    found = await examined(idempotent, tmp_path, {"request_id": "r1", **ROWS})
    assert any("every client would get the same answer" in words for words in found.findings("problem"))
    assert any("$.request_id" in words for words in found.findings("question"))


# Values that a server knows


async def of_format(name: str, folder: Path) -> Examined:
    form = FORMATS[name]

    async def answer(request: web.Request) -> web.Response:
        try:
            return web.json_response(form.answer(await request.json()))
        except Exception as error:
            return web.json_response({"error": str(error)}, status=400)

    (folder / "sample.json").write_text(json.dumps(form.samples[0]))
    async with service(answer, form.path) as url:
        return await doctor(url, "--path", form.path, "--sample", str(folder / "sample.json"), "--model", "model")


async def test_a_record_with_a_text_of_an_enum_is_sent_with_others(tmp_path: Path) -> None:
    found = await of_format("enum-records", tmp_path)
    assert declared(found, "inputs") == {"amount": "FP64 [n]", "plan": "BYTES [n]"}
    assert "rows" not in model_of(found)["request"]
    assert model_of(found)["order"] == "$.scores[*].row"


async def test_events_that_are_one_instance_are_not_taken_apart(tmp_path: Path) -> None:
    found = await of_format("event-sequence", tmp_path)
    assert "rows" not in model_of(found)["request"]
    assert declared(found, "outputs") == {"churn": "FP64 []"}


async def test_rows_that_are_all_the_same_do_not_prove_their_order(tmp_path: Path) -> None:
    found = await of_format("molecules", tmp_path)
    assert len(MOLECULES) > 1
    assert any("the order of rows was not found out: leave `batch` off" in words for words in found.findings("note"))
    assert not any("rows in reverse" in words for words in found.findings("ok"))


async def test_dates_are_varied_as_dates_and_tell_the_order(tmp_path: Path) -> None:
    found = await of_format("dated-records", tmp_path)
    assert "other values of `day` move scores" in found.findings("ok")
    assert any("rows in reverse are not answered in reverse" in words for words in found.findings("problem"))


@pytest.mark.parametrize(("name", "declarations"), [
    ("id-lookup", {"userId": "INT64 [n]", "itemId": "INT64 [n]"}),
    ("printed-numbers", {"codes": "INT64 [n]"}),
])  # fmt: skip
async def test_integers_that_are_keys_stay_integers(tmp_path: Path, name: str, declarations: dict[str, str]) -> None:
    found = await of_format(name, tmp_path)
    assert declared(found, "inputs") == declarations
    assert not any("differs for the same request" in words for words in found.findings("note"))


async def test_a_state_inside_of_an_object_is_seen_to_change(tmp_path: Path) -> None:
    found = await of_format("nested-state", tmp_path)
    assert model_of(found)["success"] == {"$.result.statusCode": 0}


async def test_a_new_member_with_errors_tells_a_failure_in_a_200(tmp_path: Path) -> None:
    found = await of_format("graphql", tmp_path)
    assert declared(found, "outputs") == {"score": "FP64 [n]"}
    assert agrees(found), found.printed


async def test_ids_of_what_was_found_are_outputs(tmp_path: Path) -> None:
    found = await of_format("vector-search", tmp_path)
    assert declared(found, "outputs") == {"id": "INT64 [n, -1]", "score": "FP64 [n, -1]"}


async def test_a_decision_is_no_state_of_the_request(tmp_path: Path) -> None:
    found = await of_format("loan-decision", tmp_path)
    assert "success" not in model_of(found)
    assert list(declared(found, "outputs")) == ["status", "approved", "limit"]


async def test_statistics_with_a_point_may_be_the_answer(tmp_path: Path) -> None:
    found = await of_format("summary", tmp_path)
    assert {"mean", "largest"} <= declared(found, "outputs").keys()


@pytest.mark.parametrize(("text", "other"), [
    ("2026-01-31", "2026-01-30"),
    ("2026-03-01", "2026-03-02"),
    ("2026-01-31T00:00:00Z", "2026-01-31T00:00:01Z"),
    ("plan 007", "plan 006"),
])  # fmt: skip
def test_a_text_is_varied_in_its_last_number(text: str, other: str) -> None:
    assert [other] in [each.values for each in changed(tensor_of("x", "BYTES", [text]))]


@pytest.mark.parametrize(("schema", "made"), [
    ({"type": "string", "format": "date"}, "2026-01-31"),
    ({"type": "string", "format": "date-time"}, "2026-01-31T12:00:00Z"),
    ({"type": "string", "minLength": 6}, "textxx"),
    ({"type": "string", "format": "unknown"}, "text"),
])  # fmt: skip
def test_a_text_of_a_schema_has_its_format_and_length(schema: dict[str, Any], made: str) -> None:
    assert made_of(schema, {}) == made


@pytest.mark.parametrize("sample", [
    {"data": {"u1": {"age": 30.5}, "u2": {"age": 40.5}}},
    {"data": {"101": 4.5, "202": 3.5}},
])  # fmt: skip
async def test_names_of_members_that_clients_may_decide_are_a_question(tmp_path: Path, sample: Any) -> None:
    found = await examined(lambda body: {"score": len(json.dumps(body)) / 7}, tmp_path, sample)
    names = json.dumps(list(sample["data"]))
    assert any(
        f"the members of $.data are called {names} in every request" in words for words in found.findings("question")
    )


async def test_a_sample_without_inputs_says_why(tmp_path: Path) -> None:
    found = await examined(lambda body: {"y": 0.5}, tmp_path, {"tokens": [[1, 2, 3], [4, 5]]})
    assert "$.tokens: its lists have different lengths; " in found.findings("problem")[0]
