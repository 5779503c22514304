"""What operators see of clients of gRPC: metrics, the access log, the status page and traces."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from gateway.demo import JsonServer
from tests.chromium import chromium
from tests.collector import collecting
from tests.conftest import access_lines
from tests.grpc.conftest import address_of, serving
from tests.grpc.test_clients import Both, given
from tests.system.gateway_process import gateway_process

X = np.arange(4, dtype="f4")
SERVICE = "inference.GRPCInferenceService"


@pytest.mark.slow
async def test_a_call_is_one_trace_whose_names_are_those_of_grpc(server: JsonServer) -> None:
    async with (
        collecting() as collector,
        serving(server.url, f"tracing: {{endpoint: '{collector.url}'}}\n") as (_, client),
    ):
        headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
        await client.infer("identity", [given("x", X)], headers=headers)
        (infer,) = await collector.requests(1)
        assert await client.is_server_live()
        with pytest.raises(InferenceServerException):
            await client.get_model_metadata("nobody")
        spans = {span.name: span for span in await collector.requests(3)}
    assert (infer.trace_id, infer.parent_id) == ("1" * 32, "2" * 16)
    expected = {"rpc.system.name": "grpc", "rpc.method": f"{SERVICE}/ModelInfer", "rpc.response.status_code": "OK"}
    assert expected.items() <= infer.attributes.items()
    assert "http.response.status_code" not in infer.attributes  # on the wire it is always 200
    assert [child.name for child in collector.children(infer)] == ["codec request", "POST", "codec response"]
    live, missing = spans[f"{SERVICE}/ServerLive"], spans[f"{SERVICE}/ModelMetadata"]
    assert [child.name for child in collector.children(live)] == ["GET"]  # as what is asked over HTTP
    assert live.attributes["rpc.response.status_code"] == "OK"
    assert missing.attributes["rpc.response.status_code"] == "NOT_FOUND"
    assert missing.attributes["error.type"] == "backend_error"


async def test_calls_that_the_gateway_does_not_have_are_counted(both: Both) -> None:
    client, triton_ = both
    with pytest.raises(InferenceServerException):
        await triton_.get_system_shared_memory_status()
    async with grpc.aio.insecure_channel(address_of(client)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary("/some.other.Service/Call")(b"")  # type: ignore[arg-type]
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    metrics = await client.metrics()
    assert metrics['tensor_gateway_requests_total{code="501",model="other",protocol="grpc",route="none"}'] == 2
    assert metrics['tensor_gateway_errors_total{blame="client",reason="no_route",route="none"}'] == 2


async def test_the_access_log_says_what_clients_speak(server: JsonServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.access")
    async with serving(server.url, "logging: {access: json}\n") as (client, triton_):
        await triton_.infer("identity", [given("x", X)], request_id="7")
        await client.request("GET", "/v2/health/live")
    call, request = [json.loads(line) for line in access_lines(caplog)]
    assert (call["protocol"], request["protocol"]) == ("grpc", "http")
    assert (call["method"], call["path"], call["model"]) == ("POST", f"/{SERVICE}/ModelInfer", "identity")
    assert (call["status"], request["status"]) == (200, 200)


async def test_without_a_token_nobody_learns_which_calls_there_are(server: JsonServer, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("them: secret-of-32-characters-at-least-x\n")
    async with serving(server.url, f"access: {{tokens_file: {tmp_path}/tokens}}\n") as (_, client):
        with pytest.raises(InferenceServerException) as refused:
            await client.get_system_shared_memory_status()
    assert refused.value.status() == "StatusCode.UNAUTHENTICATED"


async def test_a_client_that_asks_for_more_than_it_may_is_refused(server: JsonServer) -> None:
    async with serving(server.url, "limits: {per_client: {rate: 0.1, burst: 1}}\n") as (_, client):
        assert await client.is_server_live()
        with pytest.raises(InferenceServerException) as refused:
            await client.infer("identity", [given("x", X)])
    assert refused.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert "limits.per_client" in str(refused.value)


async def test_failed_calls_count_as_errors_though_http2_says_200(server: JsonServer) -> None:
    """Alerts divide `errors_total` by `client_request_bytes_count`: both must have calls of gRPC."""
    async with serving(server.url) as (client, triton_):
        await triton_.infer("identity", [given("x", X)])
        with pytest.raises(InferenceServerException):
            await triton_.infer("nobody", [given("x", X)])
        metrics = await client.metrics()
    assert metrics['tensor_gateway_errors_total{blame="client",reason="backend_error",route="main"}'] == 1
    counts = [
        value for name, value in metrics.items()
        if name.startswith("tensor_gateway_client_request_bytes_count") and 'route="main"' in name
    ]  # fmt: skip
    assert sum(counts) == 2


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_the_status_page_tells_the_protocols_apart(server: JsonServer, tmp_path: Path, workers: int) -> None:
    text = (
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ngrpc: 127.0.0.1:0\nlogging: {access: none}\n"
        f"workers: {workers}\nbackends: {{main: {{endpoints: ['{server.url}']}}}}\n"
    )
    async with (
        gateway_process(text, tmp_path / "gateway.yaml") as gateway,
        aiohttp.ClientSession() as session,
        chromium() as open_page,
    ):
        (address,) = (await status_of(session, gateway.admin))["grpc"]
        async with triton.InferenceServerClient(address.partition("://")[2]) as client:
            for _ in range(3):
                await client.infer("identity", [given("x", X)])
        async with session.get(f"{gateway.url}/v2") as response:
            assert response.status == 200
        async with asyncio.timeout(20):
            while (await status_of(session, gateway.admin))["last_minute"]["all"]["protocols"] != {
                "http": 1,
                "grpc": 3,
            }:
                await asyncio.sleep(0.1)
        page = await open_page()
        await page.open(gateway.admin)
        await page.until("document.getElementById('protocols').textContent === 'Over HTTP: 1, over gRPC: 3'")
        await page.until(f"document.getElementById('facts').textContent.includes('{address}')")


async def status_of(session: aiohttp.ClientSession, admin: str) -> Any:
    async with session.get(f"{admin}/-/status") as response:
        return await response.json()
