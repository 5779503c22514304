"""Traces of a gateway, mostly in a process of its own, as a collector and a backend see them, with real clients."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import tritonclient.http as triton

from gateway.config import parse
from gateway.process.application import Application
from tests.collector import Collected, Collector, collecting
from tests.conftest import HEADER_LENGTH
from tests.system.gateway_process import GatewayProcess, gateway_process
from tests.system.programs import free_ports
from tests.system.scripted import CountingBackend, Seen, Wire, counting, echo, head_of, infer_header, wire

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
X = np.arange(16, dtype=np.float32)

METADATA = {"name": "m", "inputs": [{"name": "x", "datatype": "FP32", "shape": [16]}], "outputs": []}


def configuration(collector: Collector, *backends: str, tracing: str = "", extra: str = "", backend: str = "") -> str:
    urls = ", ".join(f"'{url}'" for url in backends)
    return (
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\n{extra}"
        f"tracing: {{endpoint: '{collector.url}'{tracing}}}\n"
        f"backends: {{b: {{endpoints: [{urls}]{backend}}}}}\n"
    )


def traceparent(number: int = 0, flags: str = "01") -> str:
    return f"00-{int(TRACE, 16) + number:032x}-{SPAN}-{flags}"


def message(array: np.ndarray = X, headers: dict[str, object] | None = None, model: str = "m") -> bytes:
    text = json.dumps(infer_header(array, "FP32")).encode()
    body = text + array.tobytes()
    fields = {HEADER_LENGTH: len(text), **(headers or {})}
    return head_of("POST", f"/v2/models/{model}/infer", len(body), fields) + body


async def asked(sender: Wire, text: bytes) -> int:
    await sender.send(text)
    return (await sender.reply()).status


@asynccontextmanager
async def tracing(
    folder: Path, *, options: str = "", extra: str = ""
) -> AsyncIterator[tuple[Collector, CountingBackend, GatewayProcess]]:
    async with collecting() as collector, counting() as backend:
        text = configuration(collector, backend.url, tracing=options, extra=extra)
        async with gateway_process(text, folder / "gateway.yaml") as gateway:
            yield collector, backend, gateway


@asynccontextmanager
async def served(configuration: str) -> AsyncIterator[str]:
    """The URL of a gateway in this process, for what does not depend on its log, its reload or its end."""
    application = await Application.start(parse(configuration))
    try:
        yield application.listen_url
    finally:
        await application.stop()


def assert_nested(parent: Collected, children: list[Collected]) -> None:
    for child in children:
        assert parent.start_ns <= child.start_ns <= child.end_ns <= parent.end_ns, (parent, child)


async def test_an_inference_of_tritonclient_is_one_trace_from_the_client_to_the_backend(tmp_path: Path) -> None:
    begun_ns = time.time_ns()
    options = ", service_name: models, headers: {X-Key: secret}"
    async with tracing(tmp_path, options=options) as (collector, backend, gateway):

        def infer() -> None:
            client = triton.InferenceServerClient(gateway.url.removeprefix("http://"))
            sent = triton.InferInput("x", [16], "FP32")
            sent.set_data_from_numpy(X)
            headers = {"traceparent": traceparent(), "tracestate": "a=1,b=2", "X-Request-Id": "mine"}
            result = client.infer("m", [sent], headers=headers, outputs=[triton.InferRequestedOutput("x")])
            assert result.as_numpy("x").tobytes() == X.tobytes()
            client.close()

        await asyncio.to_thread(infer)
        (server,) = await collector.requests(1)
        assert (server.trace_id, server.parent_id, server.state) == (TRACE, SPAN, "a=1,b=2")
        assert server.name == "POST b"
        assert begun_ns <= server.start_ns <= server.end_ns <= time.time_ns()
        assert server.resource["service.name"] == "models"
        assert not server.has_failed
        expected = {
            "http.request.method": "POST",
            "http.response.status_code": 200,
            "url.scheme": "http",
            "url.path": "/v2/models/m/infer",
            "client.address": "127.0.0.1",
            "tensor_gateway.request_id": "mine",
            "tensor_gateway.model": "m",
            "tensor_gateway.route": "b",
            "tensor_gateway.backend": "b",
        }
        assert expected.items() <= server.attributes.items()

        children = collector.children(server)
        assert_nested(server, children)
        assert [(child.kind, child.name) for child in children] == [
            ("INTERNAL", "codec request"),
            ("CLIENT", "POST"),
            ("INTERNAL", "codec response"),
        ]
        request, attempt, response = children
        assert request.end_ns <= attempt.end_ns
        assert attempt.start_ns <= response.start_ns <= attempt.end_ns
        assert all(0 < codec.attributes["tensor_gateway.codec_seconds"] < 1 for codec in (request, response))
        assert all(codec.attributes["tensor_gateway.tensors"] == 1 for codec in (request, response))
        assert attempt.attributes["url.full"] == f"{backend.url}/v2/models/m/infer"
        assert attempt.attributes["server.port"] == int(backend.url.rpartition(":")[2])
        assert attempt.attributes["http.response.status_code"] == 200
        assert attempt.attributes["tensor_gateway.connection"] == "new"
        assert "http.request.resend_count" not in attempt.attributes

        (seen,) = backend.seen
        assert seen.values("traceparent") == [f"00-{TRACE}-{attempt.span_id}-01"]
        assert seen.values("tracestate") == ["a=1,b=2"]
        assert seen.values("x-request-id") == ["mine"]
        assert {headers["x-key"] for headers in collector.headers} == {"secret"}
        async with aiohttp.ClientSession() as session, session.get(f"{gateway.admin}/-/config") as shown:
            assert "secret" not in await shown.text()


@pytest.mark.slow
@pytest.mark.parametrize("n_elements", [16, 300_000])
async def test_each_request_has_its_own_trace_where_heads_are_known_too(tmp_path: Path, n_elements: int) -> None:
    array = np.arange(n_elements, dtype=np.float32)
    async with tracing(tmp_path) as (collector, backend, gateway):
        async with wire(gateway.url) as sender:
            for number in range(8):
                assert await asked(sender, message(array, {"traceparent": traceparent(number)})) == 200
            assert await asked(sender, message(array)) == 200
        servers = await collector.requests(9)
        assert [server.trace_id for server in servers[:8]] == [f"{int(TRACE, 16) + each:032x}" for each in range(8)]
        assert servers[8].parent_id == ""
        for server, seen in zip(servers, backend.seen, strict=True):
            children = collector.children(server)
            assert_nested(server, children)
            (attempt,) = (child for child in children if child.kind == "CLIENT")
            assert seen.values("traceparent") == [f"00-{server.trace_id}-{attempt.span_id}-01"]
            assert sorted(child.name for child in children) == ["POST", "codec request", "codec response"]
        assert len({span.span_id for span in collector.spans}) == len(collector.spans)
        connections = [span.attributes["tensor_gateway.connection"] for span in collector.of_kind("CLIENT")]
        assert connections == ["new", *["reused"] * 8]


async def test_what_the_client_did_not_sample_is_not_sampled_and_passed_on_as_such() -> None:
    async with collecting() as collector, counting() as backend:
        text = configuration(collector, backend.url, tracing=", sample: 0")
        async with served(text) as url, wire(url) as sender:
            for _ in range(4):
                assert await asked(sender, message(headers={"traceparent": traceparent(flags="00")})) == 200
            for _ in range(4):
                assert await asked(sender, message()) == 200
            assert await asked(sender, message(headers={"traceparent": traceparent()})) == 200
            (server,) = await collector.requests(1)
        assert server.parent_id == SPAN
        parents = [seen.values("traceparent")[0] for seen in backend.seen]
        given = [re.fullmatch("00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])", parent) for parent in parents]
        found = [each.groups() for each in given if each is not None]
        assert [flags for _, _, flags in found] == ["00"] * 8 + ["01"]
        assert [trace_id == TRACE for trace_id, _, _ in found] == [True] * 4 + [False] * 4 + [True]
        assert len({span_id for _, span_id, _ in found}) == 9


async def test_each_attempt_is_a_span_and_so_is_a_question_for_metadata() -> None:
    async def behave(seen: Seen) -> bool:
        if seen.method == "GET":
            await seen.answer(json.dumps(METADATA).encode())
            return True
        return await echo(seen)

    (dead,) = free_ports(1)
    async with collecting() as collector, counting(behave) as backend:
        endpoints = (f"http://127.0.0.1:{dead}", backend.url)
        text = configuration(collector, *endpoints, backend=", balance: round_robin, retry: {attempts: 2, budget: 1}")
        async with served(text) as url, wire(url) as sender:
            raw = head_of("POST", "/v2/models/m/infer", X.nbytes, {HEADER_LENGTH: 0}) + X.tobytes()
            for _ in range(2):
                assert await asked(sender, raw) == 200
            servers = await collector.requests(2)
    questions: list[Collected] = []
    failed: list[Collected] = []
    answered: list[Collected] = []
    for server in servers:
        assert not server.has_failed
        children = collector.children(server)
        assert_nested(server, children)
        for attempt in (child for child in children if child.kind == "CLIENT"):
            kind = questions if attempt.attributes["http.request.method"] == "GET" else answered
            (failed if attempt.has_failed else kind).append(attempt)
    assert len(answered) == 2
    assert {attempt.attributes["error.type"] for attempt in failed} == {"unreachable"}
    assert {attempt.attributes["server.port"] for attempt in failed} == {dead}
    assert {attempt.attributes["url.full"] for attempt in questions} == {f"{backend.url}/v2/models/m"}
    # whichever call the dead endpoint is first for, another attempt of the same request follows
    seen_spans = {seen.values("traceparent")[0].split("-")[2] for seen in backend.seen}
    assert seen_spans == {attempt.span_id for attempt in (*questions, *answered)}
    assert len(seen_spans) == len(backend.seen) == 3
    retried = [attempt for attempt in answered if attempt.attributes.get("http.request.resend_count")]
    again = [attempt for attempt in failed if attempt.attributes["http.request.method"] == "POST"]
    assert len(retried) == len(again)


async def test_a_failure_of_the_backend_is_an_error_and_one_of_the_client_is_named() -> None:
    async def behave(seen: Seen) -> bool:
        await seen.answer(b'{"error": "out of memory"}', "500 Internal Server Error")
        return True

    async with collecting() as collector, counting(behave) as backend:
        async with served(configuration(collector, backend.url)) as url, wire(url) as sender:
            assert await asked(sender, message()) == 500
            assert await asked(sender, head_of("POST", "/v2/models/m/infer", 0)) == 400
            assert await asked(sender, head_of("GET", "/nowhere/at/all")) == 500
            backends, clients, other = await collector.requests(3)
        assert (backends.has_failed, backends.message) == (True, "out of memory")
        assert backends.attributes["tensor_gateway.reason"] == "backend_error"
        assert backends.attributes["tensor_gateway.blame"] == "backend"
        (attempt,) = (child for child in collector.children(backends) if child.kind == "CLIENT")
        assert (attempt.has_failed, attempt.attributes["error.type"]) == (True, "500")
        assert (clients.has_failed, clients.attributes["http.response.status_code"]) == (False, 400)
        assert clients.attributes["tensor_gateway.reason"] == "malformed_request"
        assert clients.attributes["tensor_gateway.blame"] == "client"
        assert [child.name for child in collector.children(clients)] == ["codec request"]
        assert other.name == "GET b", "no path is a name of a span"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_spans_that_wait_are_sent_at_the_end(tmp_path: Path, workers: int) -> None:
    n_requests = 20
    async with tracing(tmp_path, extra=f"workers: {workers}\n") as (collector, _, gateway):
        for _ in range(n_requests):
            async with wire(gateway.url) as sender:
                assert await asked(sender, message()) == 200
        assert await gateway.stop() == 0
        assert len(collector.of_kind("SERVER")) == n_requests
        assert len({span.resource["process.pid"] for span in collector.spans}) <= workers


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_a_reload_changes_where_spans_go_and_whether_there_are_any(tmp_path: Path, workers: int) -> None:
    extra = f"workers: {workers}\n"
    async with collecting() as second, tracing(tmp_path, extra=extra) as (first, backend, gateway):

        async def infer() -> Seen:
            async with wire(gateway.url) as sender:
                assert await asked(sender, message(headers={"traceparent": traceparent()})) == 200
            return backend.seen[-1]

        await infer()
        gateway.reload(configuration(second, backend.url, extra=extra))
        await gateway.saw("reloaded")
        await first.requests(1)  # what waited at the reload is sent
        await infer()
        await second.requests(1)
        without = configuration(second, backend.url, extra=extra).replace("tracing:", "#")
        gateway.reload(without)
        await gateway.saw("reloaded", count=2)
        assert (await infer()).values("traceparent") == [traceparent()]
        assert await gateway.stop() == 0
        assert [len(each.of_kind("SERVER")) for each in (first, second)] == [1, 1]


@pytest.mark.slow
async def test_a_collector_that_is_gone_costs_one_warning(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with counting() as backend:
        text = configuration(Collector(f"http://127.0.0.1:{port}"), backend.url)
        async with gateway_process(text, tmp_path / "gateway.yaml") as gateway, wire(gateway.url) as sender:
            for _ in range(50):
                assert await asked(sender, message()) == 200
            await gateway.saw("tracing: spans may be lost")
            assert await asked(sender, message()) == 200
            await gateway.stop()
        warnings = [text for _, text in gateway.lines if "spans may be lost" in text]
        assert len(warnings) == 1
        assert f"http://127.0.0.1:{port} does not take them" in warnings[0]
        assert "opentelemetry" not in gateway.log


async def test_what_a_client_writes_is_no_alarm(tmp_path: Path) -> None:
    many = ",".join(f"k{number}=v" for number in range(40))
    async with tracing(tmp_path) as (collector, backend, gateway), wire(gateway.url) as sender:
        for state in (many, "a=1,a=2", "Not One!"):
            assert await asked(sender, message(headers={"traceparent": traceparent(), "tracestate": state})) == 200
        servers = await collector.requests(3)
        assert {server.state for server in servers} == {""}
        assert [seen.values("tracestate") for seen in backend.seen] == [[]] * 3
        await gateway.stop()
    assert "WARNING" not in gateway.log


async def test_what_the_configuration_removes_is_not_passed_on() -> None:
    async with collecting() as collector, counting() as backend:
        text = configuration(collector, backend.url, backend=", headers: {remove: [tracestate]}")
        async with served(text) as url, wire(url) as sender:
            assert await asked(sender, message(headers={"traceparent": traceparent(), "tracestate": "a=1"})) == 200
            (server,) = await collector.requests(1)
            assert server.state == "a=1"
        (seen,) = backend.seen
        assert seen.values("traceparent")[0].split("-")[1] == TRACE
        assert seen.values("tracestate") == []


@pytest.mark.slow
async def test_a_collector_that_never_answers_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server, counting() as backend:
        text = configuration(Collector(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), backend.url)
        async with gateway_process(text, tmp_path / "gateway.yaml") as gateway, wire(gateway.url) as sender:
            assert await asked(sender, message()) == 200
            assert await gateway.stop() == 0
        assert "did not take them in time" in gateway.log


WITHOUT_THE_EXTRA = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from gateway.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("command", [pytest.param(["check"], marks=pytest.mark.slow), ["serve", "--config"]])
def test_without_the_extra_tracing_is_refused_with_what_to_install(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(configuration(Collector("http://127.0.0.1:4318"), "http://127.0.0.1:8000"))
    run = [sys.executable, "-c", WITHOUT_THE_EXTRA, *command, str(file)]
    result = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "tracing: needs OpenTelemetry" in result.stderr
    assert "pip install 'tensor-gateway[tracing]'" in result.stderr
    assert "Traceback" not in result.stderr


async def test_without_the_extra_a_reload_with_tracing_changes_nothing(tmp_path: Path) -> None:
    async with counting() as backend:
        file = tmp_path / "gateway.yaml"
        text = configuration(Collector("http://127.0.0.1:4318"), backend.url)
        file.write_text(text.replace("tracing:", "#"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WITHOUT_THE_EXTRA, "serve", "--no-first-look", "--config", str(file)),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            for _ in range(2):
                await asyncio.wait_for(process.stderr.readline(), 30)
            file.write_text(text)
            process.send_signal(signal.SIGHUP)
            line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
        finally:
            process.terminate()
            await process.wait()
        assert "not reloaded, the running configuration stays in use: tracing: needs OpenTelemetry" in line
