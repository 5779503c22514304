"""What an operator sees: metrics, the access log, the admin listener."""

import json
import logging
import random
import select
import subprocess
from typing import Literal

import msgspec
import numpy as np
import pytest
from multidict import CIMultiDict
from prometheus_client.parser import text_string_to_metric_families

from gateway.demo import JsonServer
from gateway.errors import ErrorKind
from gateway.exchange import Attempt, Exchange, upstream_times
from gateway.telemetry.access_log import BATCH_BYTES, FAILURES_PER_S, AccessLog, FailureLog
from gateway.telemetry.log_writer import PIPE_BYTES, LogWriter
from gateway.telemetry.reading import EndpointReading
from tests.conftest import Client, access_lines, answering, lying, require_tool, running, tensor
from tests.counted import Metrics

X = np.arange(1000, dtype=np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}


async def test_sizes_on_both_sides_of_the_transcoding(client: Client, server: JsonServer) -> None:
    reply = await client.infer_binary(HEADER, X.tobytes())
    metrics = await client.metrics()
    sent = len(json.dumps(HEADER)) + X.nbytes
    sides = {
        "client_request": ("binary", sent),
        "upstream_request": ("json", server.request_bytes),
        "upstream_response": ("json", server.answer_bytes),
        "client_response": ("binary", len(reply.body)),
    }
    for side, (format_, n_bytes) in sides.items():
        labels = f'{{format="{format_}",route="main"}}'
        assert metrics[f"tensor_gateway_{side}_bytes_sum{labels}"] == n_bytes
        assert metrics[f"tensor_gateway_{side}_bytes_count{labels}"] == 1
    assert metrics['tensor_gateway_json_bytes_avoided_total{direction="request"}'] == server.request_bytes - sent
    avoided = server.answer_bytes - len(reply.body)
    assert metrics['tensor_gateway_json_bytes_avoided_total{direction="response"}'] == avoided


async def test_a_request_is_counted_once_everywhere(client: Client, server: JsonServer) -> None:
    await client.infer_binary(HEADER, X.tobytes())
    metrics = await client.metrics()
    assert metrics['tensor_gateway_requests_total{code="200",model="identity",protocol="http",route="main"}'] == 1
    assert metrics['tensor_gateway_request_seconds_count{model="identity",route="main"}'] == 1
    assert metrics['tensor_gateway_tensors_total{datatype="FP32",direction="request"}'] == 1
    assert metrics['tensor_gateway_tensors_total{datatype="FP32",direction="response"}'] == 1
    assert metrics['tensor_gateway_transcode_seconds_count{direction="request"}'] == 1
    assert metrics['tensor_gateway_transcode_seconds_count{direction="response"}'] == 1
    assert metrics['tensor_gateway_upstream_seconds_count{backend="main"}'] == 1
    assert metrics['tensor_gateway_upstream_first_byte_seconds_count{backend="main"}'] == 1
    sample = f'tensor_gateway_upstream_requests_total{{backend="main",code="200",endpoint="{server.url}"}}'
    assert metrics[sample] == 1
    assert metrics["tensor_gateway_requests_in_flight"] == 0


async def test_a_request_that_ends_after_the_gateway_is_counted_and_logged_at_once(
    server: JsonServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is cut off may end after its connection was closed, when nothing adds up or writes any more."""
    caplog.set_level(logging.INFO, "gateway.access")
    async with running(server.url, "logging: {access: json}\n") as client:
        data_plane = client.gateway.data_plane
    data_plane._record(Exchange("c", "GET", "/late", "id", 0.0, status=200))
    labels = {"route": "none", "model": "other", "code": "200", "protocol": "http"}
    text = "".join(client.gateway.metrics.exposition([]))
    (family,) = (each for each in text_string_to_metric_families(text) if each.name == "tensor_gateway_requests")
    assert [each.value for each in family.samples if each.labels == labels] == [1]
    assert [json.loads(line)["path"] for line in access_lines(caplog)] == ["/late"]


async def test_there_are_no_series_of_when_a_metric_was_created(client: Client) -> None:
    """They would nearly double the series of every label set."""
    await client.infer_binary(HEADER, X.tobytes())
    metrics = await client.metrics()
    assert [name for name in metrics if name.partition("{")[0].endswith("_created")] == []


async def test_clients_cannot_make_model_labels(client: Client) -> None:
    for number in range(5):
        await client.infer_binary(HEADER, X.tobytes(), model=f"invented{number}")
    metrics = await client.metrics()
    assert metrics['tensor_gateway_requests_total{code="404",model="other",protocol="http",route="main"}'] == 5
    assert not any("invented" in name for name in metrics)


async def test_only_a_successful_inference_makes_a_model_label() -> None:
    async with lying(answering(b"{}")) as liar, running(liar.url) as client:
        for method, path in (("OPTIONS", "/infer"), ("GET", ""), ("GET", "/ready"), ("POST", "/generate")):
            assert (await client.request(method, f"/v2/models/junk{path}")).status == 200
        assert not any("junk" in name for name in await client.metrics())
        assert (await client.infer(b'{"inputs":[]}', model="good")).status == 200
        await client.request("GET", "/v2/models/good/ready")
        metrics = await client.metrics()
    assert metrics['tensor_gateway_requests_total{code="200",model="other",protocol="http",route="main"}'] == 4
    assert metrics['tensor_gateway_requests_total{code="200",model="good",protocol="http",route="main"}'] == 2


async def test_connections_and_waiting_for_them_are_measured(client: Client) -> None:
    await client.infer_binary(HEADER, X.tobytes())
    metrics = await client.metrics()
    assert metrics['tensor_gateway_upstream_queue_seconds_count{backend="main"}'] == 1
    measured = Metrics(lambda: [EndpointReading("b", "http://x:1", True, False, busy=2, idle=1)])
    measured.note_connections(3, {"header_timeout": 0, "client_idle": 1})
    measured.note_connections(4, {"header_timeout": 0, "client_idle": 3})
    measured.add_up()
    value = measured.registry.get_sample_value
    assert value("tensor_gateway_client_connections_refused_total") == 4
    assert value("tensor_gateway_client_connections_slow_total", {"limit": "client_idle"}) == 3
    assert value("tensor_gateway_client_connections_slow_total", {"limit": "header_timeout"}) == 0
    labels = {"backend": "b", "endpoint": "http://x:1"}
    assert value("tensor_gateway_upstream_connections", {**labels, "state": "busy"}) == 2
    assert value("tensor_gateway_upstream_connections", {**labels, "state": "idle"}) == 1


def test_an_attempt_that_never_waited_for_a_connection_is_no_sample_of_waiting() -> None:
    metrics = Metrics()
    exchange = Exchange("c", "GET", "/", "id", 0.0, backend="b", status=503)
    exchange.attempts = [Attempt("e", 0.0, queue_s=None), Attempt("e", 0.0, queue_s=1.5)]
    metrics.record(exchange)
    metrics.add_up()
    value = metrics.registry.get_sample_value
    assert value("tensor_gateway_upstream_queue_seconds_count", {"backend": "b"}) == 1
    assert value("tensor_gateway_upstream_queue_seconds_sum", {"backend": "b"}) == 1.5


@pytest.mark.parametrize("style", ["json", "text"])
def test_the_detail_of_a_long_error_keeps_its_beginning_and_its_end(
    style: Literal["json", "text"], caplog: pytest.LogCaptureFixture
) -> None:
    exchange = Exchange("c", "GET", "/", "id", 0.0, error=ErrorKind.BACKEND_ERROR)
    exchange.detail = f"first{'x' * 100_000}last"
    with caplog.at_level(logging.INFO, "gateway.access"):
        AccessLog(style).record(exchange)
    (line,) = caplog.messages
    assert "first" in line
    assert "last" in line
    assert len(line) < 1500
    exchange.detail = "x" * 512
    with caplog.at_level(logging.INFO, "gateway.access"):
        AccessLog(style).record(exchange)
    assert "x" * 512 in caplog.messages[-1]


@pytest.mark.parametrize("character", ["a", '"', "\x01", "\u20ac", "\U0001f600"])
@pytest.mark.parametrize("style", ["json", "text"])
def test_a_line_is_never_longer_than_a_pipe_takes_in_one_step(
    style: Literal["json", "text"], character: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway.access")
    access_log = AccessLog(style)
    access_log.finish()  # no line waits for others
    long_ = f"/begin{character * 48_000}end"
    for n_long in range(6):
        texts = [*[long_] * n_long, *["short"] * (5 - n_long)]
        exchange = Exchange("127.0.0.1", texts[1], texts[0], texts[2], 0.0)
        exchange.model, exchange.detail, exchange.status = texts[3], texts[4], 404
        access_log.record(exchange)
        line = caplog.messages[-1]
        assert len(f"{line}\n".encode(errors="replace")) <= select.PIPE_BUF
        assert "\n" not in line
        if style == "json":
            fields = json.loads(line)
            assert fields["status"] == 404
            assert (fields["path"][:6], fields["path"][-3:]) == (("/begin", "end") if n_long else ("short", "ort"))


async def test_no_metric_tells_when_its_series_was_made(client: Client) -> None:
    # the library adds one `_created` for each series, which nobody reads
    await client.request("GET", "/v2")
    assert [name for name in await client.metrics() if "_created" in name.partition("{")[0]] == []


async def test_refusals_are_counted_by_reason(client: Client) -> None:
    await client.infer(b"")
    metrics = await client.metrics()
    assert metrics['tensor_gateway_errors_total{blame="client",reason="malformed_request",route="main"}'] == 1
    assert metrics['tensor_gateway_requests_total{code="400",model="other",protocol="http",route="main"}'] == 1


async def test_promtool_finds_nothing_to_say(client: Client) -> None:
    promtool = require_tool("promtool", "install Debian's package `prometheus`")
    await client.infer_binary(HEADER, X.tobytes())
    async with client.session.get(f"{client.admin}/metrics") as response:
        text = await response.read()
    result = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


async def test_access_log_as_json_has_every_field(server: JsonServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gateway.access"):
        async with running(server.url, "logging: {access: json}\n") as client:
            await client.infer_binary(HEADER, X.tobytes(), headers={"X-Request-Id": "abc"})
            await client.infer(b"", model="q")
    good, bad = map(json.loads, access_lines(caplog))
    assert list(good) == [
        "time",
        "client",
        "client_name",
        "protocol",
        "method",
        "path",
        "model",
        "route",
        "backend",
        "endpoint",
        "upstream_connection",
        "attempts",
        "status",
        "reason",
        "blame",
        "detail",
        "client_request_bytes",
        "upstream_request_bytes",
        "upstream_response_bytes",
        "client_response_bytes",
        "seconds",
        "upstream_seconds",
        "codec_seconds",
        "queue_seconds",
        "request_id",
    ]
    assert (good["status"], good["reason"], good["request_id"], good["model"]) == (200, None, "abc", "identity")
    assert good["blame"] is None
    assert (good["endpoint"], good["attempts"], good["upstream_connection"]) == (server.url, 1, "new")
    assert good["upstream_request_bytes"] == server.request_bytes
    assert 0 < good["codec_seconds"] < good["seconds"]
    assert 0 < good["upstream_seconds"] < good["seconds"]
    assert (bad["status"], bad["reason"], bad["blame"], bad["model"]) == (400, "malformed_request", "client", "q")
    assert (bad["endpoint"], bad["attempts"], bad["upstream_connection"]) == (None, 0, None)
    assert bad["detail"] == "empty request body"
    assert bad["request_id"]


def test_the_line_names_the_endpoint_that_was_asked_last_and_counts_what_was_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exchange = Exchange("c", "POST", "/", "id", 0.0)
    exchange.attempts = [Attempt("a", 0.0, is_metadata=True), Attempt("a", 0.0), Attempt("b", 0.0)]
    access_log = AccessLog("json")
    access_log.finish()  # no line waits for others
    with caplog.at_level(logging.INFO, "gateway.access"):
        access_log.record(exchange)
    line = json.loads(caplog.messages[0])
    assert (line["endpoint"], line["attempts"]) == ("b", 2)


def test_time_in_which_requests_run_side_by_side_counts_once() -> None:
    """They are sent for the rows of one inference."""
    attempts = [
        Attempt("a", 10.0, seconds=2.0, queue_s=1.0),  # waits from 9
        Attempt("a", 11.0, seconds=2.0, queue_s=2.0),  # waits from 9, and beside the first from 10 on
        Attempt("a", 14.0, seconds=1.0, queue_s=0.5),
        Attempt("a", 14.25),  # still goes on
    ]
    assert upstream_times(attempts[:3]) == (4.0, 1.5)
    assert upstream_times(attempts, now_s=16.0) == (5.0, 1.5)
    for one in attempts[:3]:
        assert upstream_times([one]) == (one.seconds, one.queue_s)
    assert upstream_times(attempts[3:], now_s=16.0) == (1.75, 0.0)
    assert upstream_times([]) == (0.0, 0.0)


def test_lines_of_what_went_well_are_written_together(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    access_log = AccessLog("json")
    for number in range(10):
        access_log.record(Exchange("c", "GET", f"/{number}", "id", 0.0, status=200))
    assert access_lines(caplog) == []
    access_log.flush()
    access_log.flush()
    assert [json.loads(line)["path"] for line in access_lines(caplog)] == [f"/{number}" for number in range(10)]
    assert len(caplog.records) == 1


async def test_the_line_of_an_error_is_written_at_once_after_those_that_wait(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    access_log = AccessLog("json")
    for path in ("/a", "/b"):
        access_log.record(Exchange("c", "GET", path, "id", 0.0, status=200))
    access_log.record(Exchange("c", "GET", "/bad", "id", 0.0, status=404, error=ErrorKind.NO_ROUTE))
    assert [json.loads(line)["path"] for line in access_lines(caplog)] == ["/a", "/b", "/bad"]
    access_log.record(Exchange("c", "GET", "/c", "id", 0.0, status=200))
    assert len(access_lines(caplog)) == 3
    access_log.finish()
    access_log.record(Exchange("c", "GET", "/d", "id", 0.0, status=200))  # after the end no line waits
    assert [json.loads(line)["path"] for line in access_lines(caplog)] == ["/a", "/b", "/bad", "/c", "/d"]


async def test_lines_that_wait_for_others_have_a_limit_in_bytes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    access_log = AccessLog("text")
    for _ in range(100):
        access_log.record(Exchange("c", "GET", f"/{'x' * 2000}", "id", 0.0, status=200))
    assert len(caplog.records) == 3
    assert all(BATCH_BYTES < len(record.message) < BATCH_BYTES + PIPE_BYTES for record in caplog.records)
    access_log.finish()
    assert len(access_lines(caplog)) == 100


def test_times_are_rounded_to_microseconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    access_log = AccessLog("json")
    access_log.finish()
    rng = random.Random(1)
    for _ in range(1000):
        seconds = rng.choice([0.0, 1e-7, rng.expovariate(2000), rng.uniform(0, 600)])
        access_log.record(Exchange("c", "GET", "/", "id", 0.0, seconds=seconds))
        assert json.loads(access_lines(caplog)[-1])["seconds"] == round(seconds, 6)
        caplog.clear()


async def test_a_reload_writes_what_waits_before_lines_of_the_new_style(
    server: JsonServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    async with running(server.url, "logging: {access: json}\n") as client:
        await client.request("GET", "/v2")
        before = client.gateway.data_plane.config
        logging_ = msgspec.structs.replace(before.logging, access="text")
        await client.gateway.replace(msgspec.structs.replace(before, logging=logging_))
        assert len(access_lines(caplog)) == 1
        await client.request("GET", "/v2")
    first, second = access_lines(caplog)
    assert json.loads(first)["path"] == "/v2"
    assert " path=/v2 " in second


async def test_without_an_access_log_failures_of_backends_still_show(caplog: pytest.LogCaptureFixture) -> None:
    async with running("http://127.0.0.1:9", "logging: {access: none}\n") as client:
        await client.infer_binary(HEADER, X.tobytes(), headers={"X-Request-Id": "abc"})
        await client.infer(b"")
    assert not access_lines(caplog)
    (line,) = (record.getMessage() for record in caplog.records if record.getMessage().startswith("failed: "))
    assert " status=503 reason=unreachable " in line
    assert line.endswith(" request_id=abc")


@pytest.mark.parametrize(
    ("kind", "status", "is_told"),
    [
        (None, 200, False),
        (ErrorKind.BACKEND_ERROR, 500, True),
        (ErrorKind.BACKEND_ERROR, 404, False),
        (ErrorKind.TIMEOUT, 504, True),
        (ErrorKind.UPSTREAM_CLOSED, 502, True),
        (ErrorKind.MALFORMED_RESPONSE, 502, True),
        (ErrorKind.OVERLOADED, 503, True),
        (ErrorKind.INTERNAL, 500, False),  # it has a line of its own
        (ErrorKind.DENIED, 401, False),
        (ErrorKind.CLIENT_CLOSED, 499, False),
    ],
)
def test_what_is_told_without_an_access_log(
    kind: ErrorKind | None, status: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    exchange = Exchange("c", "GET", "/a\n", "id", 0.0, status=status, error=kind)
    FailureLog().record(exchange)
    assert [message.count("\n") for message in caplog.messages] == [0] * is_told


@pytest.mark.parametrize("character", ["x", "ü", "\x01"])
def test_the_line_of_a_failure_is_written_in_one_step_too(
    character: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.5
    monkeypatch.setattr("gateway.telemetry.access_log.time.monotonic", lambda: now)
    text = character * 8000
    exchange = Exchange(text, text, text, "the-id", 0.0, model=text, status=504, error=ErrorKind.TIMEOUT, detail=text)
    failures = FailureLog()
    for _ in range(FAILURES_PER_S + 1000):
        failures.record(exchange)
    now += 1
    failures.record(exchange)
    writer = LogWriter("info", "worker 4194304")
    lines = [writer.format(record).encode() + b"\n" for record in caplog.records]
    assert len(lines) == FAILURES_PER_S + 1
    assert max(map(len, lines)) <= PIPE_BYTES
    assert all(line.endswith(b" request_id=the-id\n") for line in lines)


def test_without_an_access_log_ten_failures_a_second_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.5
    monkeypatch.setattr("gateway.telemetry.access_log.time.monotonic", lambda: now)
    exchange = Exchange("c", "GET", "/", "id", 0.0, status=504, error=ErrorKind.TIMEOUT)
    one, worker = FailureLog(), FailureLog(n_processes=4)
    for _ in range(FAILURES_PER_S + 5):
        one.record(exchange)
    assert len(caplog.messages) == FAILURES_PER_S
    now += 1
    one.record(exchange)
    assert len(caplog.messages) == FAILURES_PER_S + 1
    assert caplog.messages[-1].startswith("failed: ")
    caplog.clear()
    for _ in range(FAILURES_PER_S):
        worker.record(exchange)
    assert len(caplog.messages) == FAILURES_PER_S // 4


async def test_access_log_as_text_cannot_be_forged(server: JsonServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gateway.access"):
        async with running(server.url, "logging: {access: text}\n") as client:
            await client.infer(b"", headers={"X-Request-Id": 'a" status=200 b'})
            await client.infer_binary(HEADER, X.tobytes())
    line, good = access_lines(caplog)
    assert "status=400 reason=malformed_request blame=client" in line
    assert " status=200 client_request_bytes=" in good  # without what has no value
    assert r'request_id="a\" status=200 b"' in line


async def test_request_id_reaches_the_backend(client: Client, server: JsonServer) -> None:
    await client.infer_binary(HEADER, X.tobytes(), headers={"X-Request-Id": "mine"})
    assert CIMultiDict(server.headers).getall("X-Request-Id") == ["mine"]
    await client.infer_binary(HEADER, X.tobytes())
    assert len(CIMultiDict(server.headers)["X-Request-Id"]) == 32


async def test_admin_listener_is_not_on_the_clients_side(client: Client) -> None:
    for path in ("/-/live", "/-/ready", "/-/config", "/metrics"):
        async with client.session.get(client.admin + path) as response:
            assert response.status == 200
        assert (await client.request("GET", path)).status == 404  # the backend's word


async def test_effective_configuration_hides_secrets(server: JsonServer) -> None:
    async with running(server.url, backend="headers: {set: {Authorization: Bearer hidden}}") as client:
        async with client.session.get(f"{client.admin}/-/config") as response:
            text = await response.text()
    assert "hidden" not in text
    shown = json.loads(text)
    assert shown["backends"]["main"]["headers"]["set"] == {"Authorization": "***"}
    assert shown["limits"]["request_body"] == "256MiB"
    assert shown["backends"]["main"]["timeouts"]["connect"] == "2s"


async def test_ready_fails_while_draining_and_live_does_not(client: Client) -> None:
    client.gateway.gateway.is_draining = True
    async with client.session.get(f"{client.admin}/-/ready") as response:
        assert (response.status, await response.text()) == (503, "draining\n")
    async with client.session.get(f"{client.admin}/-/live") as response:
        assert response.status == 200
