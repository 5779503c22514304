"""The data of the status page: sums over a minute, problems in words, and real gateways with one worker and two."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import quantiles
from typing import Any
from unittest.mock import ANY

import aiohttp
import msgspec
import numpy as np
import pytest

from gateway.config import parse
from gateway.demo import JsonServer
from gateway.errors import Blame, ErrorKind
from gateway.exchange import Attempt, Exchange
from gateway.pacing import Pacer
from gateway.process import supervisor as supervisor_module
from gateway.process.status import Problem, status_of
from gateway.process.supervisor import Supervisor
from gateway.telemetry.counting import Batch, Counting
from gateway.telemetry.metrics import Metrics, Reload
from gateway.telemetry.reading import Certificate, EndpointReading, Level, Reading
from gateway.telemetry.recent import KEPT, N_SLICES, SLICE_S, STEP_ROWS, Failures, Recent, failure_of, stats
from gateway.telemetry.sums import MINUTE, Cells, Row, Table
from tests.certificates import Authority
from tests.conftest import Client, Connection, lying, running, tensor
from tests.steps import run
from tests.system.gateway_process import GatewayProcess, gateway_process

X = np.linspace(0, 1, 256, dtype=np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}

DEADLINE_S = 60.0


def exchange(**fields: Any) -> Exchange:
    known = {"client": "127.0.0.1", "method": "POST", "path": "/v2/models/m/infer", "request_id": "id"}
    return Exchange(**{**known, "started_s": time.monotonic(), **fields})


# A minute


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def add(minute: Recent, group: list[Exchange]) -> None:
    """Add *group* as it is counted."""

    def deliver(batch: Batch) -> bool:
        minute.add(batch.rows)
        return True

    counting = Counting(deliver)
    for each in group:
        counting.record(each)
    counting.add_up()


def test_a_minute_forgets_exactly_what_is_older() -> None:
    clock = Clock()
    minute = Recent(clock)
    rng = random.Random(7)
    added: list[tuple[float, list[Exchange]]] = []
    for _ in range(200):  # for eight minutes
        clock.now_s += rng.choice([0.05, 0.5, 2.0, 7.0])
        error = rng.choice([None, None, ErrorKind.BACKEND_ERROR, ErrorKind.OVERLOADED])
        group = [
            exchange(
                route=rng.choice("ab"),
                backend="x",
                error=error,
                status=rng.choice([200, 404, 503]),
                is_transcoded=True,
                seconds=rng.random(),
                request_codec=Pacer(rng.random() / 10),
                client_request_bytes=rng.randrange(1000),
                attempts=[Attempt("http://e", 0.0, request_bytes=rng.randrange(9000), seconds=rng.random())],
            )
        ]
        add(minute, group)
        added.append((clock.now_s, group))
        oldest = int(clock.now_s // SLICE_S) - N_SLICES
        kept = [group for at_s, group in added if int(at_s // SLICE_S) > oldest]
        other = Recent(clock)
        for each in kept:
            add(other, each)
        assert run(minute.minute())._replace(sums=Table()) == run(other.minute())._replace(sums=Table(), seconds=ANY)
        assert {row: cells for row, cells in run(minute.minute()).sums.items() if any(cells)} == {
            row: pytest.approx(cells) for row, cells in run(other.minute()).sums.items() if any(cells)
        }
    clock.now_s += N_SLICES * SLICE_S
    assert run(minute.minute()).by_route == {}
    assert (N_SLICES - 1) * SLICE_S <= run(minute.minute()).seconds <= N_SLICES * SLICE_S


def test_the_minute_of_many_routes_is_added_up_in_steps() -> None:
    clock = Clock()
    minute = Recent(clock)
    n_rows = 0
    for _ in range(N_SLICES - 1):
        busy = product(range(20), range(60))
        rows = [((MINUTE, f"route {route}", "b", "http", "", "", step), [1.0]) for route, step in busy]
        minute.add(rows)
        n_rows += len(rows)
        clock.now_s += SLICE_S
    steps = minute.minute()
    assert sum(1 for _ in steps) >= n_rows / STEP_ROWS
    assert run(minute.minute()).all.total() == n_rows


def test_a_minute_that_has_just_begun_is_as_long_as_it_is() -> None:
    clock = Clock()
    minute = Recent(clock)
    clock.now_s += 12.5
    assert run(minute.minute()).seconds == 12.5


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 0.1, 1.0, 300.0])
def test_percentiles_are_within_a_step_of_the_exact_ones(scale: float) -> None:
    rng = random.Random(1)
    times = [rng.lognormvariate(0, 1) * scale for _ in range(5000)]
    minute = Recent()
    for start in range(0, 5000, 100):
        add(minute, [exchange(seconds=seconds) for seconds in times[start : start + 100]])
    found = stats(run(minute.minute()).all, 60.0)
    exact = quantiles(times, n=100, method="inclusive")
    assert found["p50_s"] == pytest.approx(exact[49], rel=0.05)
    assert found["p99_s"] == pytest.approx(exact[98], rel=0.05)
    assert stats(run(Recent().minute()).all, 60.0)["p50_s"] is None
    instant = Recent()
    add(instant, [exchange(seconds=0.0)])
    assert stats(run(instant.minute()).all, 60.0)["p99_s"] == 0.0


# Failures


def test_failures_are_kept_apart_by_blame_and_their_texts_are_short() -> None:
    kept = Failures()

    def add(**fields: Any) -> None:
        kept.add([failure_of(exchange(**fields))])

    add(error=ErrorKind.UNREACHABLE, status=503, detail="refused", request_id="backend's")
    for number in range(1000):
        add(error=ErrorKind.NO_ROUTE, status=404, detail="x" * 10_000, path="/" + "y" * 10_000)
        add(error=ErrorKind.BACKEND_ERROR, status=400 + number % 2, request_id=f"{number}")
    read = kept.latest()
    assert len(read) == KEPT + 1
    assert [each["request_id"] for each in read if each["blame"] == "backend"] == ["backend's"]
    text = msgspec.json.encode(read)
    assert len(text) < len(read) * 1500
    assert [each["at_s"] for each in read] == sorted((each["at_s"] for each in read), reverse=True)
    kept.add(reversed(read))  # as of another worker
    assert len(kept.latest()) == KEPT + 2
    assert abs(time.time() - read[0]["at_s"]) < DEADLINE_S


# Problems


Moment = list[tuple[Row, Cells]]


def reading(**fields: Any) -> Reading:
    base = Reading(
        pid=1,
        started_s=0.0,
        in_flight=1,
        requests=Level(1, 100),
        body_bytes=Level(0, 1000),
        connections=Level(2, 100),
        endpoints=[],
        certificates=[],
    )
    return msgspec.structs.replace(base, **fields)


def endpoint(number: int, *, is_up: bool = True, is_ejected: bool = False, since_s: float = 5.0) -> EndpointReading:
    return EndpointReading("vision", f"http://e{number}", is_up, is_ejected, 1, 2, "refused", since_s)


def moment(route: str, backend: str, n_requests: int, /, **n_failed: int) -> Moment:
    """What is counted of *n_requests*, of which so many have failed, by blame."""
    labels = MINUTE, route, backend, "http"
    failed: Moment = [((*labels, "a reason", blame, 1), [count]) for blame, count in n_failed.items()]
    return [((*labels, "", "", 1), [n_requests - sum(n_failed.values())]), *failed]


CONFIG = parse("backends: {vision: {endpoints: ['http://e1', 'http://e2'], health: {}}}")


def judged(
    *readings: Reading,
    minute: Moment | None = None,
    reload: Reload | None = None,
    **more: Any,
) -> dict[str, Any]:
    more.setdefault("not_ready", None)
    metrics = Metrics()
    metrics.add(Batch(minute or [], []))
    metrics.last_reload = reload
    return run(status_of(CONFIG, {"listen": "http://l", "admin": "http://a"}, readings, metrics, **more))


UP = [endpoint(1), endpoint(2)]
ONE_DOWN = [endpoint(1, is_up=False, since_s=7.0), endpoint(2)]


@pytest.mark.parametrize(
    ("status", "state", "headline", "first"),
    [
        (judged(reading(endpoints=UP)), "ok", "No backend is known to be down", None),
        (
            judged(reading(endpoints=ONE_DOWN)),
            "warning",
            "vision: endpoints down: 1 of 2",
            Problem("warning", "backend", "vision: endpoints down: 1 of 2", 7.0, "refused"),
        ),
        (  # one worker has not found out yet
            judged(reading(endpoints=UP), reading(endpoints=ONE_DOWN)),
            "warning",
            "vision: endpoints down: 1 of 2",
            Problem("warning", "backend", "vision: endpoints down: 1 of 2", 7.0, "refused"),
        ),
        (
            judged(reading(endpoints=[endpoint(1, is_up=False), endpoint(2, is_ejected=True, since_s=3.0)])),
            "critical",
            "vision: endpoints down or ejected: 2 of 2",
            Problem("critical", "backend", "vision: endpoints down or ejected: 2 of 2", 3.0, "refused"),
        ),
        (
            judged(reading(endpoints=[endpoint(1, is_up=False)])),
            "critical",
            "vision: endpoints down: 1 of 1",
            Problem("critical", "backend", "vision: endpoints down: 1 of 1", 5.0, "refused"),
        ),
        (
            judged(reading(endpoints=UP), minute=moment("vision", "vision", 1000, backend=9)),
            "ok",
            "No backend is known to be down",
            None,
        ),
        (
            judged(reading(endpoints=UP), minute=moment("vision", "vision", 1000, backend=10)),
            "warning",
            "vision failed 10 of 1,000 requests in the last minute",
            Problem("warning", "backend", "vision failed 10 of 1,000 requests in the last minute"),
        ),
        (
            judged(reading(endpoints=UP), minute=moment("vision", "vision", 1, backend=1)),
            "critical",
            "vision failed 1 of 1 requests in the last minute",
            Problem("critical", "backend", "vision failed 1 of 1 requests in the last minute"),
        ),
        (
            judged(reading(endpoints=UP), minute=moment("none", "none", 4, client=4)),
            "ok",
            "No backend is known to be down",
            None,
        ),
        (
            judged(reading(endpoints=UP), minute=moment("a", "vision", 50, gateway=2)),
            "warning",
            "The gateway failed or refused 2 of 50 requests in the last minute",
            Problem("warning", "gateway", "The gateway failed or refused 2 of 50 requests in the last minute"),
        ),
        (
            judged(reading(endpoints=UP), reload=Reload(12.0, False, "a.yaml:1: typo", 9.0)),
            "warning",
            "The last reload failed, and the configuration before it stays in use",
            Problem(
                "warning",
                "configuration",
                "The last reload failed, and the configuration before it stays in use",
                9.0,
                "a.yaml:1: typo",
            ),
        ),
        (
            judged(reading(endpoints=UP), reload=Reload(9.0, True, "listen: takes effect after a restart", 9.0)),
            "ok",
            "No backend is known to be down",
            None,
        ),
        (
            judged(reading(endpoints=UP, certificates=[Certificate("tls", time.time() + 3 * 86400 + 60)])),
            "warning",
            "The certificate of tls expires in 3.0 days",
            Problem("warning", "certificate", "The certificate of tls expires in 3.0 days"),
        ),
        (
            judged(reading(endpoints=UP, certificates=[Certificate("tls", 77.0)])),
            "critical",
            "The certificate of tls has expired",
            Problem("critical", "certificate", "The certificate of tls has expired", 77.0),
        ),
        (
            judged(reading(endpoints=UP), not_ready="draining"),
            "warning",
            "Not ready: draining",
            Problem("warning", "gateway", "Not ready: draining"),
        ),
        (  # said by the backend's line
            judged(reading(endpoints=ONE_DOWN[:1]), not_ready="no backend can be used: all endpoints of a are down"),
            "critical",
            "vision: endpoints down: 1 of 1",
            Problem("critical", "backend", "vision: endpoints down: 1 of 1", 7.0, "refused"),
        ),
        (
            judged(not_ready="0 of 2 workers accept"),
            "critical",
            "Not ready: 0 of 2 workers accept",
            Problem("critical", "gateway", "Not ready: 0 of 2 workers accept"),
        ),
    ],
)
def test_problems_are_told_in_words_the_worst_first(
    status: dict[str, Any], state: str, headline: str, first: Problem | None
) -> None:
    assert (status["state"], status["headline"]) == (state, headline)
    assert (status["problems"][0] if status["problems"] else None) == first


def test_limits_and_what_is_in_use_of_them_are_added_up_over_the_workers() -> None:
    status = judged(reading(requests=Level(90, 100)), reading(requests=Level(91, 100)))
    assert status["in_flight"]["requests"] == Level(181, 200)


def test_the_status_of_many_models_and_endpoints_is_whole() -> None:
    endpoints = ", ".join(f"'http://e{number}'" for number in range(50))
    routes = "".join(f"  - {{name: r{number}, models: [m{number}], backend: vision}}\n" for number in range(200))
    config = parse(f"backends: {{vision: {{endpoints: [{endpoints}]}}}}\nroutes:\n{routes}")
    rng = random.Random(3)
    metrics = Metrics()
    counting = Counting(metrics.add)
    for number in range(200):
        for _ in range(50):
            counting.record(exchange(route=f"r{number}", backend="vision", seconds=rng.lognormvariate(-5, 1)))
        for _ in range(9):
            counting.record(exchange(error=rng.choice(list(ErrorKind)), detail="why" * 200, status=500))
    counting.add_up()
    readings = [reading(endpoints=[endpoint(number) for number in range(50)])]
    made = run(status_of(config, {"listen": "http://l"}, readings, metrics, None))
    status = msgspec.json.decode(msgspec.json.encode(made))
    assert (len(status["routes"]), len(status["backends"][0]["endpoints"])) == (200, 50)
    assert status["last_minute"]["all"]["requests"] == 200 * 59


# Real gateways


@asynccontextmanager
async def gateway(folder: Path, text: str) -> AsyncIterator[tuple[GatewayProcess, Client]]:
    text = f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\n{text}"
    async with gateway_process(text, folder / "gateway.yaml") as process, aiohttp.ClientSession() as session:
        yield process, Client(session, None, process.url, process.admin)  # type: ignore[arg-type]


async def status_from(client: Client) -> Any:
    async with client.session.get(f"{client.admin}/-/status") as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert response.headers["Cache-Control"] == "no-store"
        return await response.json()


async def status_when(client: Client, is_so: Callable[[Any], bool]) -> Any:
    """The status, as soon as *is_so*."""
    status = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so(status := await status_from(client)):
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"it did not become so: {status}")
    return status


async def refuse_all(connection: Connection) -> None:
    while True:
        await connection.read_request()
        await connection.answer(b'{"error": "out of memory"}', "500 Internal Server Error")


async def answer_get_alone(connection: Connection) -> None:
    """Answer GET, and close at everything else."""
    await connection.read_request()
    while connection.head.startswith(b"GET "):
        await connection.answer(b"{}")
        await connection.read_request()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_gateway_tells_what_all_its_workers_do(tmp_path: Path, server: JsonServer, workers: int) -> None:
    started_s = time.time()
    async with lying(refuse_all) as liar, JsonServer.on_port(0) as gone:
        await gone.runner.cleanup()
        text = (
            f"workers: {workers}\nbackends:\n"
            f"  vision: {{endpoints: ['{server.url}', '{gone.url}'], "
            "health: {interval: 50ms, unhealthy_after: 1, path: /v2}}\n"
            f"  ranking: {{endpoints: ['{liar.url}']}}\n"
            "routes:\n  - {name: rank, models: [ranker], backend: ranking}\n  - {name: rest, backend: vision}\n"
        )
        async with gateway(tmp_path, text) as (process, client):
            await status_when(client, lambda status: status["backends"][0]["endpoints"][1]["found_by"] == workers)
            fresh = {"Connection": "close"}  # so that the kernel chooses a worker each time
            for _ in range(30):
                assert (await client.infer_binary(HEADER, X.tobytes(), headers=fresh)).status == 200
            named = {**fresh, "X-Request-Id": "the-one"}
            for _ in range(5):
                assert (await client.infer_binary(HEADER, X.tobytes(), model="ranker", headers=named)).status == 500
            assert (await client.infer(b"{", 1, headers=fresh)).status == 400
            status = await status_when(client, lambda status: status["last_minute"]["all"]["requests"] == 36)

            assert status["pid"] == process.pid
            assert (status["listen"], status["admin"]) == (process.url, process.admin)
            assert started_s - 1 <= status["started_s"] <= status["now_s"] <= time.time()
            pids = process.pids()
            assert sorted(each["pid"] for each in status["workers"]) == sorted(pids[1:] if workers > 1 else pids)
            assert status["n_workers"] == workers

            all_ = status["last_minute"]["all"]
            assert all_["blames"] == {"backend": 5, "client": 1}
            assert all_["reasons"] == {"backend_error": 5, "malformed_request": 1}
            assert 0 < all_["p50_s"] <= all_["p99_s"] < DEADLINE_S
            assert 0 < status["last_minute"]["codec_share"] < 1
            wire = status["last_minute"]["wire"]
            assert 30 * X.nbytes < wire["client_request_bytes"] < wire["upstream_request_bytes"]
            assert 30 * X.nbytes < wire["client_response_bytes"] < wire["upstream_response_bytes"]

            vision, ranking = status["backends"]
            up, down = vision["endpoints"]
            assert (up["url"], up["state"], up["reason"]) == (server.url, "up", "")
            assert (down["url"], down["state"], down["reason"]) == (gone.url, "down", "Connection refused")
            assert started_s <= down["since_s"] <= time.time()
            assert (vision["stats"]["requests"], ranking["stats"]["blames"]) == (31, {"backend": 5})
            routes = [(each["name"], each["stats"]["requests"]) for each in status["routes"]]
            assert routes == [("rank", 5), ("rest", 31)]
            assert status["in_flight"]["requests"] == {"used": 0, "limit": 512}
            assert status["in_flight"]["body_bytes"]["limit"] == 2 * 1024**3

            (clients,) = [each for each in status["failures"] if each["blame"] == "client"]
            assert (clients["reason"], clients["status"], clients["route"]) == ("malformed_request", 400, "rest")
            others = [each for each in status["failures"] if each is not clients]
            assert len(others) == 5
            assert {each["request_id"] for each in others} == {"the-one"}
            assert {each["detail"] for each in others} == {"out of memory"}
            assert {(each["model"], each["endpoint"]) for each in others} == {("ranker", liar.url)}

            assert status["state"] == "critical"
            assert status["headline"] == "ranking failed 5 of 5 requests in the last minute"
            assert status["problems"][0]["reason"] == "the last: backend_error: out of memory"
            assert status["problems"][1]["text"] == "vision: endpoints down: 1 of 2"

            assert status["reload"] is None
            process.reload("backends: {a: {endpoints: ['http://x'], typo: 1}}")
            status = await status_when(client, lambda status: status["reload"] is not None)
            assert not status["reload"]["is_successful"]
            assert "backends.a.typo: unknown key" in status["reload"]["words"]
            process.reload(f"listen: 127.0.0.1:1\nadmin: 127.0.0.1:0\nworkers: {workers}\n{text.partition(chr(10))[2]}")
            status = await status_when(client, lambda status: status["reload"]["is_successful"])
            assert "listen" in status["reload"]["words"]
            assert "takes effect after a restart" in status["reload"]["words"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_gateway_tells_what_its_backends_speak(tmp_path: Path, server: JsonServer, workers: int) -> None:
    text = (
        f"workers: {workers}\nbackends:\n"
        f"  asked: {{endpoints: ['{server.url}'], dialect: auto}}\n"
        f"  plain: {{endpoints: ['{server.url}']}}\n"
        f"  tf: {{endpoints: ['{server.url}'], dialect: tensorflow}}\n"
        f"  triton: {{endpoints: ['{server.url}'], binary: always}}\n"
        "routes: [{name: all, split: {asked: 1, plain: 0, tf: 0, triton: 0}}]\n"
    )
    others = ["V2 in JSON", "tensorflow", "V2 in binary"]
    async with gateway(tmp_path, text) as (_, client):
        status = await status_when(client, lambda status: all(each["endpoints"] for each in status["backends"]))
        assert [each["speaks"] for each in status["backends"]] == ["", *others]
        assert (await client.infer_binary(HEADER, X.tobytes())).status == 200  # one worker knows it then
        status = await status_when(client, lambda status: status["backends"][0]["speaks"])
        assert [each["speaks"] for each in status["backends"]] == ["V2 in JSON", *others]


async def test_an_ejected_endpoint_says_why_and_since_when(tmp_path: Path, server: JsonServer) -> None:
    async with JsonServer.on_port(0) as gone:
        await gone.runner.cleanup()
        eject = "eject: {failures: 1, for: 200ms}, retry: {attempts: 2, budget: 1}, balance: round_robin"
        text = f"backends: {{vision: {{endpoints: ['{server.url}', '{gone.url}'], {eject}}}}}\n"
        before_s = time.time()
        async with gateway(tmp_path, text) as (_, client):

            async def ask() -> Any:
                assert (await client.infer_binary(HEADER, X.tobytes())).status == 200
                return (await status_from(client))["backends"][0]["endpoints"][1]

            async with asyncio.timeout(DEADLINE_S):
                while (ejected := await ask())["state"] != "ejected":
                    pass
            assert "refused" in ejected["reason"]
            assert before_s <= ejected["since_s"] <= time.time()
            async with JsonServer.on_port(int(gone.url.rpartition(":")[2])), asyncio.timeout(DEADLINE_S):
                while (back := await ask())["state"] != "up":
                    await asyncio.sleep(0.05)
            assert back["reason"] == "a request to it has succeeded"
            assert back["since_s"] > ejected["since_s"]


async def test_an_endpoint_whose_ejection_is_over_is_on_trial_until_a_request_has_tried_it(
    tmp_path: Path, server: JsonServer
) -> None:
    async with JsonServer.on_port(0) as gone:
        await gone.runner.cleanup()
        eject = "eject: {failures: 1, for: 300ms}, retry: {attempts: 2, budget: 1}, balance: round_robin"
        text = f"backends: {{vision: {{endpoints: ['{server.url}', '{gone.url}'], {eject}}}}}\n"
        async with gateway(tmp_path, text) as (_, client):
            for _ in range(2):  # one of them goes to the endpoint that is gone first, and is sent again
                assert (await client.infer_binary(HEADER, X.tobytes())).status == 200

            def is_second(status: dict[str, Any], state: str) -> bool:
                return bool(status["backends"][0]["endpoints"][1]["state"] == state)

            status = await status_when(client, lambda status: is_second(status, "ejected"))
            assert (status["state"], status["headline"]) == ("warning", "vision: endpoints ejected: 1 of 2")
            status = await status_when(client, lambda status: is_second(status, "on trial"))
            assert status["state"] == "ok"
            assert "refused" in status["backends"][0]["endpoints"][1]["reason"]
            async with client.session.get(f"{client.admin}/metrics") as metrics:
                series = f'tensor_gateway_endpoint_ejected{{backend="vision",endpoint="{gone.url}"}} 0.0'
                assert series in await metrics.text()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_probe_ends_an_ejection_that_is_over_in_every_worker(tmp_path: Path, workers: int) -> None:
    """No request comes meanwhile; and until it is over, probes that succeed end nothing."""
    async with lying(answer_get_alone) as one, lying(answer_get_alone) as other:
        text = (
            f"workers: {workers}\nbackends: {{vision: {{endpoints: ['{one.url}', '{other.url}'], "
            "eject: {failures: 1, for: 2s}, health: {interval: 50ms, path: /v2}}}\n"
        )
        async with gateway(tmp_path, text) as (_, client):

            async def ejected() -> list[float]:
                samples = await client.metrics()
                return [value for name, value in samples.items() if name.startswith("tensor_gateway_endpoint_ejected{")]

            async with asyncio.timeout(DEADLINE_S):
                while (status := await status_from(client))["headline"] != "vision: endpoints ejected: 2 of 2":
                    await client.infer_binary(HEADER, X.tobytes())
            assert status["state"] == "critical"
            assert await ejected() == [1, 1]
            began_s = max(each["since_s"] for each in status["backends"][0]["endpoints"])
            reason = "a probe of it has succeeded"
            status = await status_when(
                client,
                lambda status: all(
                    (each["state"], each["reason"], each["found_by"]) == ("up", reason, workers)
                    for each in status["backends"][0]["endpoints"]
                ),
            )
            assert await ejected() == [0, 0]
            assert all(each["since_s"] >= began_s + 1.5 for each in status["backends"][0]["endpoints"])


async def test_certificates_say_when_they_expire(tmp_path: Path, server: JsonServer, authority: Authority) -> None:
    pair = authority.issue()
    async with running(server.url, f"tls: {{certificate: '{pair.certificate}', key: '{pair.key}'}}\n") as client:
        (certificate,) = (await status_from(client))["certificates"]
        assert certificate["where"] == "tls"
        assert datetime.fromtimestamp(certificate["expires_s"], UTC) > datetime.now(UTC)


@pytest.mark.slow
async def test_a_worker_that_hangs_or_dies_does_not_hide_the_others(
    server: JsonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.process.supervisor.SILENT_S", 1.0)
    text = f"backends: {{a: {{endpoints: ['{server.url}']}}}}\nlogging: {{access: none}}\n"
    supervisor = await Supervisor.start(parse(f"workers: 2\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{text}"))
    try:
        async with aiohttp.ClientSession() as session:
            client = Client(session, None, supervisor.listen_url, supervisor.admin_url)  # type: ignore[arg-type]
            status = await status_from(client)
            pid = status["workers"][0]["pid"]
            os.kill(pid, signal.SIGSTOP)
            silent = f"Not ready: nothing was heard of worker {pid} for 1 s"
            status = await status_when(client, lambda status: status["headline"] == silent)
            assert len(status["workers"]) == 2
            os.kill(pid, signal.SIGKILL)
            await status_when(client, lambda status: pid not in [each["pid"] for each in status["workers"]])
            await status_when(client, lambda status: status["state"] == "ok" and len(status["workers"]) == 2)
    finally:
        await supervisor.stop()


async def test_the_page_and_its_data_are_never_kept_and_the_policy_is_strict(client: Client) -> None:
    for path, content_type in (("/", "text/html; charset=utf-8"), ("/-/status", "application/json")):
        for method in ("GET", "HEAD"):
            async with client.session.request(method, client.admin + path) as response:
                assert response.status == 200
                assert response.headers["Content-Type"] == content_type
                assert response.headers["Cache-Control"] == "no-store"
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert bool(await response.read()) == (method == "GET")
        async with client.session.post(client.admin + path) as response:
            assert response.status == 405
    async with client.session.get(client.admin) as response:
        policy = dict(part.strip().split(" ", 1) for part in response.headers["Content-Security-Policy"].split(";"))
        page = await response.text()
    assert policy.pop("style-src").startswith("'sha256-")
    assert policy.pop("script-src").startswith("'sha256-")
    assert policy == {
        "default-src": "'none'",
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert "//" not in page.replace("http://www.w3.org/2000/svg", "").replace("*/", "").partition("<script>")[0]
    async with client.session.get(f"{client.admin}/nothing") as response:
        assert response.status == 404
        assert await response.text() == ("not found; known are /, /-/status, /metrics, /-/live, /-/ready, /-/config\n")


def test_each_blame_has_a_place_on_the_page() -> None:
    page = Path(supervisor_module.__file__).with_name("status.html").read_text()
    assert 'const BLAMES = ["all", "backend", "gateway", "client"];' in page
    assert {blame.value for blame in Blame} == {"backend", "gateway", "client"}
