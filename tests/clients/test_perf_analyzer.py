"""Triton's perf_analyzer, which drives the C++ client, unmodified against a running gateway.

PERF_ANALYZER names the program. It is inside an old wheel, and needs a library of Debian's and one of
CUDA's, but no GPU; 50 MB in all:

    apt-get install libb64-0d
    pip install --no-deps tritonclient==2.40.0 nvidia-cuda-runtime-cu12    # in an environment of its own
    export PERF_ANALYZER=ENVIRONMENT/bin/perf_analyzer
"""

import json
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.demo import JsonServer
from tests.clients.processes import output_of
from tests.conftest import Client, require_tool, running

LEFT = list(range(16))
RIGHT = [3] * 16


def described(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "data_type": "TYPE_INT32", "dims": [1, 16]} for name in names]


CONFIG = {
    "name": "simple",
    "platform": "embedded",
    "max_batch_size": 0,
    "input": described("INPUT0", "INPUT1"),
    "output": described("OUTPUT0", "OUTPUT1"),
}


@pytest.fixture
async def configured(server: JsonServer) -> AsyncIterator[Client]:
    """A gateway in front of the embedded server, which here tells a model's configuration: the program insists."""

    async def tell(request: web.Request) -> web.Response:
        return web.json_response(CONFIG)

    async def hand_on(request: web.Request) -> web.Response:
        headers = {"Content-Type": request.headers.get("Content-Type", "")}
        body = await request.read()
        async with session.request(request.method, server.url + request.path, data=body, headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    application = web.Application()
    application.router.add_get("/v2/models/simple/config", tell)
    application.router.add_route("*", "/{path:.*}", hand_on)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with aiohttp.ClientSession() as session:
            async with running(f"http://127.0.0.1:{runner.addresses[0][1]}", "grpc: 127.0.0.1:0\n") as client:
                yield client
    finally:
        await runner.cleanup()


HTTP = [("binary", "binary"), ("binary", "json"), ("json", "binary")]
WAYS = {
    f"{form_in}-{form_out}": ("http", ["--input-tensor-format", form_in, "--output-tensor-format", form_out])
    for form_in, form_out in HTTP
} | {"grpc": ("grpc", []), "grpc-streaming": ("grpc", ["--streaming"])}


@pytest.mark.parametrize("way", WAYS)
async def test_perf_analyzer_measures_and_finds_every_output_right(
    configured: Client, server: JsonServer, tmp_path: Path, way: str
) -> None:
    program = os.environ.get("PERF_ANALYZER") or require_tool("perf_analyzer", f"{Path(__file__).name} says how")
    libraries = next(Path(program).parents[1].glob("lib/python3.*/site-packages/nvidia/cuda_runtime/lib"), "")
    protocol, options = WAYS[way]
    url = configured.gateway.grpc_urls[0] if protocol == "grpc" else configured.url
    right = {
        "data": [{"INPUT0": LEFT, "INPUT1": RIGHT}],
        "validation_data": [
            {
                "OUTPUT0": [left + right for left, right in zip(LEFT, RIGHT, strict=True)],
                "OUTPUT1": [left - right for left, right in zip(LEFT, RIGHT, strict=True)],
            }
        ],
    }
    (tmp_path / "data.json").write_text(json.dumps(right))
    printed = await output_of(
        program,
        *("-m", "simple", "-i", protocol, "-u", url.partition("://")[2], *options),
        *("--input-data", tmp_path / "data.json", "--concurrency-range", "2", "-a"),
        *("--measurement-mode", "count_windows", "--measurement-request-count", "100", "-s", "999", "-r", "3"),
        variables={"LD_LIBRARY_PATH": str(libraries)},
    )
    counted = re.search(rb"Request count: (\d+)", printed)
    assert counted is not None
    assert int(counted[1]) >= 100
    assert server.inferences >= int(counted[1])
    assert server.last_request["inputs"][0]["data"] == LEFT
    samples = await configured.metrics()
    refused = {k: v for k, v in samples.items() if "_requests_total" in k and 'code="200"' not in k and v}
    assert not refused
