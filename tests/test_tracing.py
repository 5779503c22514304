"""The spans that are made of a finished exchange, and what tracing costs where it is off."""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from gateway import config
from gateway.config import Endpoint
from gateway.errors import ErrorKind
from gateway.exchange import Attempt, Exchange
from gateway.headers import Headers
from gateway.pacing import Pacer
from gateway.policy.trace_context import Trace
from gateway.telemetry import tracing
from gateway.telemetry.access_log import DETAIL_CHARACTERS
from gateway.telemetry.spans import PATH_CHARACTERS, spans_of
from gateway.telemetry.tracing import Tracing
from tests.collector import collecting

NOW_S = time.monotonic()


def exchange(path: str = "/v2/models/m/infer", **fields: object) -> Exchange:
    made = Exchange("c", "POST", path, "id", NOW_S - 1, route="r", status=200, scheme="http", seconds=0.5)
    made.trace = Trace("1" * 32, "2" * 16, True)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def made_of(finished: Exchange) -> list[ReadableSpan]:
    assert finished.trace is not None
    return spans_of(Resource.create({}), finished, finished.trace)


def test_a_request_is_called_by_its_method_and_its_route_without_what_clients_write() -> None:
    (span,) = made_of(exchange("/v2/models/m/infer?token=secret"))
    assert span.name == "POST r"
    assert span.attributes is not None
    assert span.attributes["url.path"] == "/v2/models/m/infer"
    assert "secret" not in str(span.to_json())


@pytest.mark.parametrize(
    ("path", "route", "name"),
    [
        ("/inference.GRPCInferenceService/ModelInfer", "r", "inference.GRPCInferenceService/ModelInfer"),
        ("/whatever.a.Client/Writes", "none", "_OTHER"),
    ],
)
def test_a_call_of_grpc_has_the_names_of_its_conventions(path: str, route: str, name: str) -> None:
    (span,) = made_of(exchange(path, route=route, protocol="grpc", rpc_status="NOT_FOUND", status=404))
    assert span.name == name
    assert span.attributes is not None
    own = {key: value for key, value in span.attributes.items() if key.startswith(("rpc.", "url.", "http.resp"))}
    assert own == {
        "rpc.system.name": "grpc",
        "rpc.system": "grpc",
        "rpc.method": name,
        "rpc.response.status_code": "NOT_FOUND",
        "http.response.body.size": 0,
    }


def test_where_no_route_matched_a_path_names_nothing() -> None:
    (span,) = made_of(exchange(route="none", status=404, error=ErrorKind.NO_ROUTE))
    assert span.name == "POST"


@pytest.mark.parametrize(
    ("kind", "status", "is_error"),
    [
        (None, 200, False),
        (ErrorKind.MALFORMED_REQUEST, 400, False),
        (ErrorKind.BACKEND_ERROR, 404, False),
        (ErrorKind.BACKEND_ERROR, 500, True),
        (ErrorKind.OVERLOADED, 503, True),
        (ErrorKind.TIMEOUT, 504, True),
        (ErrorKind.UPSTREAM_CLOSED, 200, True),  # in the middle of a reply that had begun
        (ErrorKind.CLIENT_CLOSED, 499, False),
        (ErrorKind.INTERNAL, 500, True),
    ],
)
def test_a_span_has_failed_where_its_client_is_not_to_blame(
    kind: ErrorKind | None, status: int, is_error: bool
) -> None:
    (span,) = made_of(exchange(status=status, error=kind, detail="x" * 10_000))
    assert span.status.status_code is (StatusCode.ERROR if is_error else StatusCode.UNSET)
    assert len(span.status.description or "") == (DETAIL_CHARACTERS if is_error else 0)


def test_no_child_reaches_outside_of_its_request() -> None:
    attempts = [
        # longer at both ends
        Attempt("http://e:1", NOW_S - 2, seconds=5.0, code="200", target="/v2?token=secret", repeated_for="timeout"),
        Attempt("https://[::1]/base", NOW_S + 1, code="timeout"),  # not over when the exchange was recorded
    ]
    finished = exchange(attempts=attempts, request_codec=Pacer(9.0, time.perf_counter() - 3))
    *children, server = made_of(finished)
    assert [child.kind for child in children] == [SpanKind.CLIENT, SpanKind.CLIENT, SpanKind.INTERNAL]
    assert server.start_time is not None
    assert server.end_time is not None
    for child in children:
        assert child.parent == server.context
        assert child.start_time is not None
        assert child.end_time is not None
        assert server.start_time <= child.start_time <= child.end_time <= server.end_time
    first, second = children[0].attributes, children[1].attributes
    assert first is not None
    assert first["url.full"] == "http://e:1/v2"
    assert second is not None
    assert (second["server.address"], second["server.port"]) == ("::1", 443)
    assert (second["http.request.resend_count"], second["error.type"]) == (1, "timeout")
    assert "http.response.status_code" not in second


def test_a_request_for_other_rows_is_no_repetition() -> None:
    attempts = [
        Attempt("http://e:1", NOW_S, code="200", repeated_for=why) for why in ("", "timeout", "timeout", "", "")
    ]
    spans = made_of(exchange(attempts=attempts))[:-1]
    assert [(each.attributes or {}).get("http.request.resend_count") for each in spans] == [None, None, 1, 2, None]


@pytest.fixture
def opentelemetry_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("opentelemetry")
    yield logger
    logger.propagate = True


async def test_the_error_behind_what_opentelemetry_logs_is_named(
    opentelemetry_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    traced = Tracing(config.Tracing(endpoint=Endpoint("http://127.0.0.1:9")))
    opentelemetry_logger.error("something", exc_info=OSError("no route"))
    await traced.close()
    assert caplog.messages[-1] == "tracing: spans may be lost, http://127.0.0.1:9 does not take them: no route"


async def test_what_opentelemetry_logs_is_one_line_a_minute(
    opentelemetry_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    traced = Tracing(config.Tracing(endpoint=Endpoint("http://127.0.0.1:9")))
    for _ in range(100):
        opentelemetry_logger.getChild("sdk").error("no\nroute %s", "x" * 1000)
    await traced.close()
    (line,) = caplog.messages
    assert line.startswith("tracing: spans may be lost, http://127.0.0.1:9 does not take them: no route xxx")
    assert len(line) < DETAIL_CHARACTERS + 200
    assert traced._complaints not in opentelemetry_logger.handlers, "what is closed hears nothing any more"


@pytest.mark.parametrize("path", ["", "/v1/traces"])
async def test_an_endpoint_without_a_path_is_that_of_a_collector(
    path: str, opentelemetry_logger: logging.Logger
) -> None:
    async with collecting() as collector:
        traced = Tracing(config.Tracing(endpoint=Endpoint(collector.url + path), sample=0))
        for sampled in (f"00-{'1' * 32}-{'2' * 16}-01", f"00-{'1' * 32}-{'2' * 16}-00"):
            traced.record(exchange(trace=traced.begin(Headers([("traceparent", sampled)]))))
        traced.record(exchange(trace=traced.begin(Headers())))
        await traced.close()
        (span,) = collector.spans
    assert (span.trace_id, span.parent_id) == ("1" * 32, "2" * 16)


def test_a_call_that_the_client_did_not_wait_for_is_no_failure_of_the_endpoint() -> None:
    left = exchange(attempts=[Attempt("http://e:1", NOW_S)], status=499, error=ErrorKind.CLIENT_CLOSED)
    attempt, _ = made_of(left)
    assert attempt.status.status_code is StatusCode.UNSET
    assert attempt.attributes is not None
    assert attempt.attributes["error.type"] == "client_closed"


def test_long_paths_are_cut() -> None:
    path = f"/{'x' * 8000}"
    attempt, server = made_of(exchange(path, attempts=[Attempt("http://e:1", NOW_S, code="200", target=path)]))
    assert attempt.attributes is not None
    assert server.attributes is not None
    assert attempt.attributes["url.full"] == f"http://e:1{path[:PATH_CHARACTERS]}"
    assert server.attributes["url.path"] == path[:PATH_CHARACTERS]


async def test_a_redirect_is_said_since_it_is_not_followed(
    opentelemetry_logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 308 Permanent Redirect\r\nLocation: https://c/\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(redirect, "127.0.0.1", 0) as server:
        traced = Tracing(config.Tracing(endpoint=Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")))
        traced.record(exchange())
        await traced.close()
    assert [message for message in caplog.messages if "redirects" in message]


@pytest.mark.slow
async def test_the_connection_to_a_collector_is_kept(opentelemetry_logger: logging.Logger) -> None:
    async with collecting() as collector:
        traced = Tracing(config.Tracing(endpoint=Endpoint(collector.url)))
        for number in range(2):
            traced.record(exchange())
            await collector.until(lambda: len(collector.of_kind("SERVER")) > number)  # noqa: B023  at once
        await traced.close()
    assert len(collector.peers) == 1


async def test_what_waits_at_the_end_is_given_up_in_time(
    opentelemetry_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_S", 0.1)
    is_over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        traced = Tracing(config.Tracing(endpoint=Endpoint(f"http://127.0.0.1:{port}")))
        traced.record(exchange())
        await traced.close()
        is_over.set()
    assert [message for message in caplog.messages if "did not take them in time" in message]


def test_opentelemetry_is_not_imported_where_tracing_is_not_configured() -> None:
    program = "import sys, gateway.cli, gateway.process.worker; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0
