"""Servers that take one instance, or a few, at a time: `request.rows` of `dialect: template`."""

import asyncio
import gc
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import pytest
import tritonclient.grpc.aio as triton_grpc
import yaml
from tritonclient.utils import InferenceServerException, deserialize_bytes_tensor

from gateway.codec.dialects.request import DialectRequest
from gateway.codec.dialects.rows import RowOutputs
from gateway.config.loading import inspect_bytes
from gateway.serving.row_requests import RowRequests
from tests.backend.endpoints import nobody
from tests.conftest import HEADER_LENGTH, access_lines, running
from tests.grpc.conftest import address_of
from tests.system.scripted import Seen, counting, total
from tests.system.test_dialect_servers import infer
from tests.system.test_templates import Legacy, Stage, error_of, numbers, strings

pytestmark = pytest.mark.rule("11.7")

SUM: Mapping[str, Any] = {
    "inputs": {"x": {"datatype": "FP32", "shape": [-1, 4]}},
    "outputs": {"sum": {"datatype": "FP32", "shape": [-1]}, "pair": {"datatype": "FP32", "shape": [-1, 2]}},
    "request": {"path": "/sum", "body": {"features": "$x", "number": "$row"}, "rows": 1},
    "answer": {"sum": "$.sum", "pair": "$.pair"},
}
SUMS: Mapping[str, Any] = {
    **SUM,
    "request": {"path": "/sums", "body": {"rows": {"$each": {"x": "$x", "number": "$row"}}}, "rows": 3},
    "answer": {"sum": "$.rows[*].sum", "pair": "$.rows[*].pair"},
}
GREET: Mapping[str, Any] = {
    "inputs": {"name": {"datatype": "BYTES", "shape": [-1]}, "mood": {"datatype": "BYTES", "shape": []}},
    "outputs": {"text": {"datatype": "BYTES", "shape": [-1]}},
    "request": {"path": "/greet", "body": {"name": "$name", "mood": "$mood"}, "rows": 1},
    "answer": {"text": "$.text"},
}
X = np.arange(40, dtype=np.float32).reshape(10, 4)

Hook = Callable[[Any], Awaitable[None]]


def answer_to(asked: Any) -> Any:
    """What the server makes of one body."""
    if "name" in asked:
        return {"text": f"{asked['mood']}, {asked['name']}!"}
    if "rows" in asked:
        return {"rows": [answer_to({"features": row["x"]}) for row in asked["rows"]]}
    return {"sum": sum(asked["features"]), "pair": asked["features"][:2]}


@dataclass
class Single(Legacy):
    """A server that takes one instance, or a few, in each request."""

    say: Callable[[Any], Any] = answer_to
    """The answer to a body, or a status line if it is a text."""
    wait: Hook | None = None
    """Awaited before the answer."""
    asked: list[Any] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0

    async def behave(self, seen: Seen) -> bool:
        """Answer."""
        if seen.method != "POST":
            return await super().behave(seen)
        body = json.loads(seen.body)
        self.asked.append(body)
        self.seen.append(seen)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.wait is not None:
                await self.wait(body)
        finally:
            self.under_way -= 1
        said = self.say(body)
        is_error = isinstance(said, str)
        text = b'{"detail": "too hot"}' if is_error else json.dumps(said).encode()
        await seen.answer(text, said if is_error else "200 OK", "Content-Type: application/json\r\nX-Took: 3\r\n")
        return True


@asynccontextmanager
async def before_rows(server: Single, backend: str = "", extra: str = "", **models: Any) -> AsyncIterator[Stage]:
    """A client of a gateway before *server*; *backend* is YAML of the backend."""
    settings = yaml.safe_dump(
        {"dialect": "template", "models": {"sum": SUM, "sums": SUMS, "greet": GREET, **models}}, sort_keys=False
    )
    async with counting(server.behave) as counted, running(counted.url, extra, settings + backend) as client:
        yield Stage(client, counted, server)


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


async def ended(seen: Seen) -> None:
    """Wait until the gateway has closed the connection of a request."""
    with suppress(ConnectionError):
        assert await seen.peer.reader.read() == b""


def with_request(model: Mapping[str, Any], **request: Any) -> dict[str, Any]:
    return {**model, "request": {**model["request"], **request}}


def sums_of(reply: Any) -> list[float]:
    assert reply.status == 200, reply.body
    entry = reply.json["outputs"][0]
    assert (entry["name"], entry["datatype"]) == ("sum", "FP32")
    size = entry["parameters"]["binary_data_size"]
    return list(np.frombuffer(reply.binary[:size], np.float32).tolist())


SUMS_OF_X = X.sum(1).tolist()


# What is sent, and how the answers are put together


async def test_each_row_is_a_request_and_answers_are_put_together_in_the_rows_order() -> None:
    last_came = asyncio.Event()

    async def first_is_last(body: Any) -> None:
        if body["number"] == 9:
            last_came.set()
        elif body["number"] == 0:
            await last_came.wait()

    server = Single(wait=first_is_last)
    async with before_rows(server) as stage:
        reply = await stage.infer("sum", numbers("x", X, "FP32"), id="7")
        assert sums_of(reply) == SUMS_OF_X
        first, second = reply.json["outputs"]
        assert (first["shape"], second["shape"], reply.json["id"]) == ([10], [10, 2], "7")
        assert reply.binary[40:] == X[:, :2].tobytes()
        assert reply.headers["X-Took"] == "3"
    by_number = sorted(server.asked, key=lambda body: int(body["number"]))
    assert by_number == [{"features": row, "number": n} for n, row in enumerate(X.tolist())]
    assert {seen.target for seen in server.seen} == {"/sum"}


async def test_several_rows_are_one_request_and_the_last_has_the_rest() -> None:
    server = Single()
    async with before_rows(server) as stage:
        assert sums_of(await stage.infer("sums", numbers("x", X, "FP32"))) == SUMS_OF_X
    numbers_of = sorted([row["number"] for row in body["rows"]] for body in server.asked)
    assert numbers_of == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


async def test_strings_and_an_input_that_is_the_same_in_each_request() -> None:
    server = Single()
    async with before_rows(server) as stage:
        names, mood = strings("name", b"Ada", "Zoë".encode(), b""), strings("mood", b"Hi")
        mood[0]["shape"] = []
        reply = await stage.infer("greet", names, mood)
        assert reply.json["outputs"][0]["shape"] == [3]
        assert deserialize_bytes_tensor(reply.binary).tolist() == [b"Hi, Ada!", "Hi, Zoë!".encode(), b"Hi, !"]


async def test_inputs_and_outputs_in_json() -> None:
    async with before_rows(Single()) as stage:
        x = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": [[1, 2, 3, 4], [5, 6, 7, 8]]}
        body = json.dumps({"inputs": [x]}).encode()
        reply = await stage.client.request("POST", "/v2/models/sum/infer", data=body)
        assert reply.status == 200, reply.body
        assert HEADER_LENGTH not in reply.headers
        assert [(each["name"], each["shape"], each["data"]) for each in reply.json["outputs"]] == [
            ("sum", [2], [10, 26]),
            ("pair", [2, 2], [1, 2, 5, 6]),
        ]


async def test_only_the_outputs_that_are_asked_for_come_each_in_its_form() -> None:
    async with before_rows(Single()) as stage:
        wanted = [{"name": "pair", "parameters": {"binary_data": False}}]
        reply = await stage.infer("sum", numbers("x", X[:2], "FP32"), outputs=wanted)
        (pair,) = reply.json["outputs"]
        assert (pair["shape"], pair["data"]) == ([2, 2], X[:2, :2].ravel().tolist())


@pytest.mark.parametrize("shape", [[], [1]])
@pytest.mark.parametrize("declared", [[-1], None])
async def test_a_scalar_is_one_row(shape: list[int], declared: list[int] | None) -> None:
    x: dict[str, Any] = {"datatype": "FP32"} | ({} if declared is None else {"shape": declared})
    half = {**SUM, "inputs": {"x": x}, "outputs": {"y": {"datatype": "FP32"}}, "answer": {"y": "$.y"}}
    server = Single(say=lambda asked: {"y": asked["features"] / 2})
    async with before_rows(server, half=half) as stage:
        reply = await stage.infer("half", numbers("x", np.full(shape, 3, np.float32), "FP32"))
        assert (reply.json["outputs"][0]["shape"], reply.binary) == ([1], np.float32(1.5).tobytes())
    assert server.asked == [{"features": 3, "number": 0}]


async def test_no_rows_are_no_request_and_outputs_that_are_empty() -> None:
    async with before_rows(Single()) as stage:
        reply = await stage.infer("sum", numbers("x", X[:0], "FP32"))
        assert reply.status == 200, reply.body
        assert [each["shape"] for each in reply.json["outputs"]] == [[0], [0, 2]]
        assert reply.binary == b""
        undeclared = {**SUM, "outputs": {"sum": {"datatype": "FP32"}}, "answer": {"sum": "$.sum"}}
    async with before_rows(Single(), sum=undeclared) as stage:
        words = error_of(await stage.infer("sum", numbers("x", X[:0], "FP32")), 400)
        assert "the shape of output 'sum' is not known" in words
        assert not stage.server.seen
        assert total(await stage.client.metrics(), "upstream_requests_total") == 0


async def test_null_is_nan_in_a_list_and_nothing_in_place_of_a_rows_value() -> None:
    server = Single(say=lambda asked: {"sum": None if asked["number"] == 3 else 1, "pair": [None, 2]})
    async with before_rows(server) as stage:
        reply = await stage.infer("sum", numbers("x", X[:3], "FP32"))
        assert sums_of(reply) == [1, 1, 1]
        assert np.isnan(np.frombuffer(reply.binary[12:], np.float32)).tolist() == [True, False] * 3
        words = error_of(await stage.infer("sum", numbers("x", X, "FP32")), 502)
        assert words.startswith("row 3: the backend's answer: output 'sum': nothing at $.sum; $.sum is null")


async def test_large_rows_are_streamed_both_ways_and_nothing_is_held_afterwards() -> None:
    echo = {
        "inputs": {"x": {"datatype": "FP32", "shape": [-1, -1]}, "t": {"datatype": "BYTES", "shape": [-1]}},
        "outputs": {"y": {"datatype": "FP32", "shape": [-1, -1]}, "u": {"datatype": "BYTES"}},
        "request": {"path": "/", "body": {"x": "$x", "t": "$t"}, "rows": 1, "parallel": 2},
        "answer": {"y": "$.x", "u": "$.t"},
    }
    x = np.arange(5 * 60_000, dtype=np.float32).reshape(5, -1)
    texts = [b"%d" % n * 100_000 for n in range(5)]
    for framing in ("chunked", "content-length"):
        server = Single(say=lambda asked: asked)
        async with before_rows(server, f"framing: {framing}\n", echo=echo) as stage:
            reply = await stage.infer("echo", numbers("x", x, "FP32"), strings("t", *texts))
            assert reply.status == 200, reply.body
            assert reply.binary[: x.nbytes] == x.tobytes()
            assert deserialize_bytes_tensor(reply.binary[x.nbytes :]).tolist() == texts
            assert total(await stage.client.metrics(), "in_flight_bytes") == 0
        assert len(server.seen) == 5


async def test_the_request_is_let_go_when_the_last_answer_has_begun_and_answers_are_counted() -> None:
    echo = {
        "inputs": {"x": {"datatype": "FP32", "shape": [-1, -1]}},
        "outputs": {"y": {"datatype": "FP32", "shape": [-1, -1]}},
        "request": {"path": "/", "body": "$x", "rows": 1, "parallel": 1},
        "answer": {"y": "$"},
    }
    may_end = asyncio.Event()
    x = np.arange(2_000_000, dtype=np.float32).reshape(2, -1)

    async def behave(seen: Seen) -> bool:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(seen.body)}\r\n\r\n".encode()
        await seen.peer.send(head + seen.body[:-100])
        if len(backend.seen) == 2:
            await may_end.wait()
        await seen.peer.send(seen.body[-100:])
        return True

    settings = yaml.safe_dump({"dialect": "template", "models": {"echo": echo}})
    async with counting(behave) as backend, running(backend.url, "", settings) as client, asyncio.timeout(30):
        stage = Stage(client, backend, Single())
        asking = asyncio.ensure_future(stage.infer("echo", numbers("x", x, "FP32")))
        held: list[float] = []
        while len(held) < 3 or held[-1] != held[-3]:  # all that has come of the second answer is read
            now = total(await client.metrics(), "in_flight_bytes")
            held = [*held, now] if len(backend.seen) == 2 else []
        may_end.set()
        assert (await asking).binary == x.tobytes()
    assert 0.9 * x.nbytes < held[-1] < 1.3 * x.nbytes


# What is refused


async def test_inputs_with_different_numbers_of_rows_are_refused_before_anything_is_sent() -> None:
    pairs = with_request(
        {**SUM, "inputs": {**SUM["inputs"], "k": {"datatype": "INT32"}}}, body={"features": "$x", "k": "$k"}
    )
    async with before_rows(Single(), pairs=pairs) as stage:
        words = error_of(
            await stage.infer("pairs", numbers("x", X, "FP32"), numbers("k", np.arange(3, dtype="i4"), "INT32")), 400
        )
        assert words.startswith("input 'k' (INT32, shape [3]): expected 10 rows, as input 'x' has")
        assert error_of(await stage.infer("pairs", numbers("x", X, "FP32")), 400).startswith("input 'k' is missing")
        assert not stage.server.seen


@pytest.mark.parametrize(
    ("say", "status", "words"),
    [
        (lambda asked: "503 Busy" if asked["number"] == 4 else answer_to(asked), 503, "row 4: too hot"),
        (lambda asked: "422 No" if asked["number"] == 9 else answer_to(asked), 422, "row 9: too hot"),
        (lambda asked: {"sum": 1} if asked["number"] == 7 else answer_to(asked), 502,
         "row 7: the backend's answer: output 'pair': nothing at $.pair; $ has the members 'sum'"),
        (lambda asked: {"sum": 1, "pair": [1, 2, 3]} if asked["number"] == 9 else answer_to(asked), 502,
         "row 9: the backend's answer: output 'pair' (FP32, at $.pair): the answer has the shape [3] for a row, and"),
    ],
)  # fmt: skip
async def test_a_row_that_fails_fails_the_inference_with_the_servers_words_and_its_number(
    say: Callable[[Any], Any], status: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with before_rows(Single(say=say), extra="logging: {access: json}\n") as stage:
        assert error_of(await stage.infer("sum", numbers("x", X, "FP32")), status).startswith(words)
        await stage.client.wait_until_idle(5)
    (line,) = [json.loads(each) for each in access_lines(caplog)]
    assert line["detail"].startswith(words)


async def test_rows_of_several_are_named_by_their_numbers() -> None:
    say: Callable[[Any], Any] = lambda asked: "500 Oops" if asked["rows"][0]["number"] == 3 else answer_to(asked)  # noqa: E731
    async with before_rows(Single(say=say)) as stage:
        assert error_of(await stage.infer("sums", numbers("x", X, "FP32")), 500) == "rows 3 to 5: too hot"


async def test_an_answer_that_says_that_it_failed_is_a_failure_of_its_row() -> None:
    model = {**SUM, "success": {"$.ok": True}, "error": "$.why"}
    say = lambda asked: {**answer_to(asked), "ok": asked["number"] != 2, "why": "cold"}  # noqa: E731
    async with before_rows(Single(say=say), sum=model) as stage:
        words = error_of(await stage.infer("sum", numbers("x", X, "FP32")), 502)
        assert words.startswith("row 2: the backend answered with a failure: cold")


async def test_answers_that_are_sorted_are_put_in_order_within_their_own_rows() -> None:
    def say(asked: Any) -> Any:
        rows = [{**answer_to({"features": row["x"]}), "index": index} for index, row in enumerate(asked["rows"])]
        return {"rows": rows[::-1]}

    async with before_rows(Single(say=say), sums={**SUMS, "order": "$.rows[*].index"}) as stage:
        assert sums_of(await stage.infer("sums", numbers("x", X, "FP32"))) == SUMS_OF_X


async def test_a_path_to_the_first_of_a_list_is_judged_by_the_rows_of_one_request() -> None:
    first = {"outputs": {"sum": SUM["outputs"]["sum"]}, "answer": {"sum": "$.rows[0].sum"}}
    say = lambda asked: {"rows": [{"sum": 1}, {"sum": 2}]}  # noqa: E731
    async with before_rows(Single(say=say), sum={**SUM, **first}, sums={**SUMS, **first}) as stage:
        assert sums_of(await stage.infer("sum", numbers("x", X, "FP32"))) == [1] * 10
        words = error_of(await stage.infer("sums", numbers("x", X[:3], "FP32")), 502)
        assert "the request has 3 rows and $.rows is a list of 2, of which the path takes only [0]" in words


async def test_answers_of_different_shapes_are_refused_with_the_output_and_the_rows() -> None:
    undeclared = {**SUM, "outputs": {"pair": {"datatype": "FP32"}}, "answer": {"pair": "$.pair"}}
    say = lambda asked: {"pair": [1] * (3 if asked["number"] == 2 else 2)}  # noqa: E731
    async with before_rows(Single(say=say), sum=with_request(undeclared, parallel=1)) as stage:
        words = error_of(await stage.infer("sum", numbers("x", X, "FP32")), 502)
        assert words == (
            "row 2: the backend's answer: output 'pair' (FP32, at $.pair): rows of different shapes: "
            "[2] in the answer to row 0, here [3]"
        )


async def test_the_answers_to_all_rows_are_bounded_together() -> None:
    async with before_rows(Single(), extra="limits: {response_body: 300B}\n") as stage:
        assert sums_of(await stage.infer("sum", numbers("x", X[:3], "FP32"))) == SUMS_OF_X[:3]
        words = error_of(await stage.infer("sum", numbers("x", X, "FP32")), 502)
        assert "the answers to all rows are larger than limits.response_body, 300 bytes" in words


async def test_more_requests_than_memory_can_hold_the_records_of_are_refused() -> None:
    any_rows = {**SUM, "inputs": {"x": {"datatype": "UINT8", "shape": [-1]}}}
    async with before_rows(
        Single(), extra="limits: {in_flight_bytes: 64MiB, request_body: 8MiB}\n", sum=any_rows
    ) as stage:
        words = error_of(await stage.infer("sum", numbers("x", np.zeros(10**6, np.uint8), "UINT8")), 503)
        assert "too busy" in words
        assert not stage.server.seen


# Side by side


async def test_the_end_of_the_gateway_ends_all_rows_also_those_that_wait_for_a_connection() -> None:
    never = asyncio.Event()

    async def wait(body: Any) -> None:
        await never.wait()

    server = Single(wait=wait)
    async with asyncio.timeout(10):
        async with before_rows(server, "max_connections: 2\n") as stage:
            asking = asyncio.ensure_future(stage.infer("sum", numbers("x", X, "FP32")))
            await until(lambda: server.under_way == 2)
            await stage.client.gateway.stop()
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await asking
            assert stage.client.gateway.gateway.in_flight == 0
            for seen in server.seen:
                await ended(seen)
        assert len(server.seen) == 2


@pytest.mark.parametrize(("parallel", "expected"), [(None, 4), (1, 1), (2, 2), (16, 10)])
async def test_at_most_parallel_requests_are_under_way_at_once(parallel: int | None, expected: int) -> None:
    are_there = asyncio.Event()

    async def all_there(body: Any) -> None:
        if server.under_way == expected:
            are_there.set()
        await are_there.wait()

    server = Single(wait=all_there)
    model = SUM if parallel is None else with_request(SUM, parallel=parallel)
    async with before_rows(server, sum=model) as stage, asyncio.timeout(10):
        assert sums_of(await stage.infer("sum", numbers("x", X, "FP32"))) == SUMS_OF_X
    assert server.most_under_way == expected


async def test_the_first_row_that_fails_cancels_the_others() -> None:
    never = asyncio.Event()

    async def third_alone(body: Any) -> None:
        if body["number"] != 2:
            await never.wait()

    server = Single(say=lambda asked: "500 Oops", wait=third_alone)
    async with before_rows(server) as stage, asyncio.timeout(10):
        assert error_of(await stage.infer("sum", numbers("x", X, "FP32")), 500) == "row 2: too hot"
        for seen in server.seen:
            if json.loads(seen.body)["number"] != 2:
                await ended(seen)
        assert sorted(body["number"] for body in server.asked) == [0, 1, 2, 3]
        samples = await stage.client.metrics()
        assert total(samples, "upstream_requests_total", code="500") == 1
        assert total(samples, "upstream_requests_total", code="none") == 3


@pytest.mark.parametrize("end", ["answered", "refused", "malformed", "late", "left"])
async def test_nothing_of_a_request_waits_for_the_garbage_collector(end: str) -> None:
    never = asyncio.Event()

    async def wait(body: Any) -> None:
        if end in ("late", "left") and body["number"] > 0:
            await never.wait()

    say: Callable[[Any], Any] = {"refused": lambda asked: "500 Oops", "malformed": lambda asked: {}}.get(end, answer_to)
    server = Single(say=say, wait=wait)
    async with before_rows(server, "timeouts: {total: 200ms}\n" if end == "late" else "") as stage:
        gc.collect()
        gc.disable()
        try:
            asking = asyncio.ensure_future(stage.infer("sum", numbers("x", X, "FP32")))
            if end == "left":
                await until(lambda: server.under_way == 4)
                asking.cancel()
            await asyncio.wait([asking])
            await stage.client.wait_until_idle(5)
            kinds = DialectRequest | RowRequests | RowOutputs
            assert not [each for each in gc.get_objects() if isinstance(each, kinds)]
        finally:
            gc.enable()


async def test_a_client_that_leaves_cancels_all_rows() -> None:
    never = asyncio.Event()

    async def wait(body: Any) -> None:
        await never.wait()

    server = Single(wait=wait)
    async with before_rows(server) as stage, asyncio.timeout(10):
        asking = asyncio.ensure_future(stage.infer("sum", numbers("x", X, "FP32")))
        await until(lambda: server.under_way == 4)
        asking.cancel()
        for seen in server.seen:
            await ended(seen)
        assert await stage.client.wait_until_idle(5) == 0
        assert len(server.seen) == 4


async def test_all_rows_together_have_timeouts_total() -> None:
    never = asyncio.Event()

    async def some(body: Any) -> None:
        if body["number"] == 5:
            await never.wait()

    async with before_rows(Single(wait=some), "timeouts: {total: 300ms}\n") as stage:
        words = error_of(await stage.infer("sum", numbers("x", X, "FP32")), 504)
        assert words == "row 5: backend 'main' took longer than 0.3 s (timeouts.total)"


@pytest.mark.parametrize("queue", ["", "queue: {length: 1}\n"])
async def test_rows_take_turns_where_connections_are_few(queue: str) -> None:
    server = Single()
    async with before_rows(server, f"max_connections: 1\n{queue}") as stage:
        assert sums_of(await stage.infer("sum", numbers("x", X, "FP32"))) == SUMS_OF_X
    assert server.most_under_way == 1


async def test_inferences_share_few_connections_and_none_is_refused_in_the_middle() -> None:
    is_first = asyncio.Event()

    async def wait(body: Any) -> None:
        await is_first.wait()

    server = Single(wait=wait)
    async with before_rows(server, "max_connections: 2, queue: {length: 3}\n".replace(", ", "\n")) as stage:
        asking = [asyncio.ensure_future(stage.infer("sum", numbers("x", X + n, "FP32"))) for n in range(4)]
        await until(lambda: server.under_way == 2)
        is_first.set()
        replies = await asyncio.gather(*asking)
        assert [sums_of(reply) for reply in replies] == [(X + n).sum(1).tolist() for n in range(4)]
    assert server.most_under_way == 2
    whose = [body["features"][0] - X[body["number"], 0] for body in server.asked]
    assert len(set(whose[:12])) > 1  # none waits until another inference has ended


async def test_a_row_is_asked_again_at_another_endpoint() -> None:
    server = Single()
    settings = yaml.safe_dump({"dialect": "template", "balance": "round_robin", "models": {"sum": SUM}})
    never_ejected = "eject: {failures: 0}\nretry: {attempts: 2, budget: 1}\n"
    with nobody() as dead:
        async with (
            counting(server.behave) as backend,
            running(f"{backend.url}', '{dead}", "", settings + never_ejected) as client,
        ):
            reply = await Stage(client, backend, server).infer("sum", numbers("x", X, "FP32"))
            assert sums_of(reply) == SUMS_OF_X
            samples = await client.metrics()
    retries = total(samples, "retries_total")
    assert retries >= 3
    assert total(samples, "upstream_requests_total", code="200") == 10
    assert total(samples, "upstream_requests_total", code="unreachable") == retries


async def test_an_endpoint_that_dies_in_the_middle_is_replaced() -> None:
    async def dying(seen: Seen) -> bool:
        if len(dead.seen) > 2:
            return False
        return await server.behave(seen)

    server = Single()
    settings = yaml.safe_dump({"dialect": "template", "balance": "round_robin", "models": {"sum": SUM}})
    resend = "retry: {resend_after_sent: true, budget: 1}\n"
    async with (
        counting(server.behave) as well,
        counting(dying) as dead,
        running(f"{well.url}', '{dead.url}", "", settings + resend) as client,
    ):
        assert sums_of(await Stage(client, well, server).infer("sum", numbers("x", X, "FP32"))) == SUMS_OF_X
        assert total(await client.metrics(), "retries_total") >= 1
    assert sorted(body["number"] for body in server.asked) == list(range(10))


# What is counted


async def test_one_request_of_a_client_is_counted_and_all_requests_to_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with before_rows(Single(), extra="logging: {access: json, server_timing: true}\n") as stage:
        reply = await stage.infer("sum", numbers("x", X, "FP32"))
        assert reply.status == 200
        times = {part.partition(";dur=")[0]: float(part.partition("=")[2]) for part in
                 reply.headers["Server-Timing"].split(", ")}  # fmt: skip
        assert 0 < times["upstream"] <= times["total"]
        samples = await stage.client.metrics()
    assert total(samples, "requests_total", model="sum", code="200") == 1
    assert total(samples, "upstream_requests_total", code="200") == 10
    assert total(samples, "upstream_seconds_count") == 10
    assert total(samples, "tensors_total", direction="request") == 1
    assert total(samples, "tensors_total", direction="response") == 2
    (line,) = [json.loads(each) for each in access_lines(caplog)]
    assert (line["attempts"], line["status"]) == (10, 200)
    assert 0 < line["upstream_seconds"] < line["seconds"]
    assert line["queue_seconds"] == 0
    assert line["upstream_request_bytes"] == sum(len(seen.body) for seen in stage.server.seen)


# With the rest of the gateway


async def test_requests_of_several_clients_go_together_and_each_gets_its_rows() -> None:
    may_go = asyncio.Event()

    async def wait(body: Any) -> None:
        await may_go.wait()

    server = Single(wait=wait)
    async with before_rows(server, "batch: {max_size: 8, max_delay: 10s}\n") as stage, asyncio.timeout(10):
        asking = [asyncio.ensure_future(stage.infer("sum", numbers("x", X[:2] + 100, "FP32")))]
        await until(lambda: server.under_way == 2)
        asking += [
            asyncio.ensure_future(stage.infer("sum", numbers("x", X[start : start + 4], "FP32"))) for start in (0, 4)
        ]
        await until(lambda: server.under_way == 6)
        may_go.set()
        replies = await asyncio.gather(*asking)
    assert [sums_of(reply) for reply in replies] == [[406, 422], SUMS_OF_X[:4], SUMS_OF_X[4:8]]
    assert sorted(body["number"] for body in server.asked) == [0, 0, 1, 1, 2, 3, 4, 5, 6, 7]


async def test_a_row_that_fails_in_a_batch_fails_its_own_client_alone_and_with_its_own_number() -> None:
    may_go = asyncio.Event()

    async def wait(body: Any) -> None:
        await may_go.wait()

    say = lambda asked: "400 No" if asked["features"][0] == 20 else answer_to(asked)  # noqa: E731
    server = Single(say=say, wait=wait)
    async with before_rows(server, "batch: {max_size: 8, max_delay: 10s}\n") as stage, asyncio.timeout(10):
        asking = [asyncio.ensure_future(stage.infer("sum", numbers("x", X[8:], "FP32")))]
        await until(lambda: server.under_way == 2)
        asking += [
            asyncio.ensure_future(stage.infer("sum", numbers("x", X[start : start + 4], "FP32"))) for start in (0, 4)
        ]
        await until(lambda: server.under_way == 6)
        may_go.set()
        first, second, third = await asyncio.gather(*asking)
    assert (sums_of(first), sums_of(second)) == (SUMS_OF_X[8:], SUMS_OF_X[:4])
    assert error_of(third, 400) == "row 1: too hot"


async def test_clients_of_a_batch_that_is_late_are_not_told_a_row_that_is_not_theirs() -> None:
    never = asyncio.Event()

    async def wait(body: Any) -> None:
        if body["features"][0] < 100:
            await never.wait()

    settings = "batch: {max_size: 8, max_delay: 50ms}\ntimeouts: {total: 500ms}\n"
    async with before_rows(Single(wait=wait), settings) as stage, asyncio.timeout(10):
        asking = [stage.infer("sum", numbers("x", X[start : start + 4], "FP32")) for start in (0, 4, 4)]
        first, *others = await asyncio.gather(*asking)
    assert re.match(r"row [0-3]: backend 'main' took longer", error_of(first, 504))
    assert [error_of(reply, 504) for reply in others] == ["backend 'main' took longer than 0.5 s (timeouts.total)"] * 2


async def test_a_real_client_of_triton() -> None:
    async with before_rows(Single()) as stage:
        for binary in (True, False):
            found = await infer(stage.client, "sum", {"x": X}, "sum", "pair", binary=binary)
            assert np.array_equal(found["sum"], X.sum(1))
            assert np.array_equal(found["pair"], X[:, :2])


async def test_a_real_client_of_triton_over_grpc() -> None:
    say = lambda asked: "503 Busy" if asked["features"][0] == 36 else answer_to(asked)  # noqa: E731
    async with before_rows(Single(say=say), extra="grpc: 127.0.0.1:0\n") as stage:
        async with triton_grpc.InferenceServerClient(address_of(stage.client)) as real:
            for n_rows in (9, 10):
                entry = triton_grpc.InferInput("x", [n_rows, 4], "FP32")
                entry.set_data_from_numpy(X[:n_rows])
                if n_rows == 10:
                    with pytest.raises(InferenceServerException, match="row 9: too hot"):
                        await real.infer("sum", [entry])
                    continue
                result = await real.infer("sum", [entry])
                assert np.array_equal(result.as_numpy("sum"), X[:9].sum(1))
                assert np.array_equal(result.as_numpy("pair"), X[:9, :2])


# The configuration


@pytest.mark.parametrize(
    ("change", "key", "words"),
    [
        ({"request": {"path": "/", "body": "$x", "rows": 0}}, "request.rows", "expected at least 1"),
        ({"request": {**SUM["request"], "parallel": 0}}, "request.parallel", "expected at least 1"),
        (
            {"inputs": {"x": {"datatype": "FP32", "shape": []}}},
            "request.rows",
            "expected an input with rows in `inputs`",
        ),
        (
            {"outputs": {**SUM["outputs"], "sum": {"datatype": "FP32", "shape": []}}},
            "outputs.sum.shape",
            "expected a first dimension for the rows, because of `request.rows`",
        ),
    ],
)
def test_mistakes_are_told(change: dict[str, Any], key: str, words: str) -> None:
    settings = {"endpoints": ["http://127.0.0.1:1"], "dialect": "template", "models": {"m": {**SUM, **change}}}
    errors = inspect_bytes(yaml.safe_dump({"backends": {"b": settings}}).encode(), "f").errors
    assert [(each.key, each.reason.startswith(words)) for each in errors] == [(f"backends.b.models.m.{key}", True)]
