"""Real tritonclient through the gateway to a real MLServer, which answers binary requests with an error.

The model is the identity runtime of `deploy/mlserver`. MLServer lives in a virtual environment of its own:
`python -m venv .mlserver && .mlserver/bin/pip install mlserver==1.7.1`, then MLSERVER=.mlserver/bin/mlserver.
Without it these tests skip; in CI they fail.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http.aio as triton_aio

from tests.conftest import Client, require_tool, running, tensor
from tests.values import VALUES

RUNTIME = Path(__file__).parent.parent.parent / "deploy" / "mlserver"
START_S = 120


@pytest.fixture(scope="module")
def mlserver() -> Iterator[str]:
    """The URL of a running MLServer."""
    command = os.environ.get("MLSERVER") or require_tool(
        "mlserver", "install it into a virtual environment of its own, and set MLSERVER to its command"
    )
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "identity"
        shutil.copytree(RUNTIME, folder)
        settings = folder / "settings.json"
        ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "host": "127.0.0.1", **ports}))
        log = Path(parent) / "mlserver.log"
        with log.open("wb") as output:
            process = subprocess.Popen([command, "start", folder], stdout=output, stderr=output)
        url = f"http://127.0.0.1:{ports['http_port']}"
        try:
            deadline = time.monotonic() + START_S
            while not is_ready(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v2/models/identity/ready", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@pytest.fixture
async def client(mlserver: str) -> AsyncIterator[Client]:
    async with running(mlserver, backend="nonfinite: as_null") as running_client:
        yield running_client


async def infer(client: Client, array: npt.NDArray[Any], datatype: str) -> npt.NDArray[Any]:
    triton = triton_aio.InferenceServerClient(client.url.removeprefix("http://"))
    try:
        sent = triton_aio.InferInput("x", list(array.shape), datatype)
        sent.set_data_from_numpy(array)
        result = await triton.infer("identity", [sent], request_id="7")
        assert result.get_response()["id"] == "7"
        assert "data" not in result.get_output("x")
        got: npt.NDArray[Any] = result.as_numpy("x")
        return got
    finally:
        await triton.close()


async def test_mlserver_itself_refuses_the_binary_extension(mlserver: str, client: Client) -> None:
    array = np.ones(2, np.float32)
    client.url = mlserver
    reply = await client.infer_binary({"inputs": [tensor("x", array, "FP32")]}, array.tobytes())
    assert reply.status in (422, 500)


@pytest.mark.parametrize("datatype", [name for name in VALUES if name != "BYTES"])
async def test_every_datatype_crosses_exactly(client: Client, datatype: str) -> None:
    array = VALUES[datatype]
    got = await infer(client, array, datatype)
    assert got.dtype == array.dtype
    assert got.tobytes() == array.tobytes()


async def test_text_crosses_exactly(client: Client) -> None:
    got = await infer(client, VALUES["BYTES"], "BYTES")
    assert got.tolist() == VALUES["BYTES"].tolist()


async def test_bytes_that_are_no_text_cross_as_base64(mlserver: str) -> None:
    async with running(mlserver, backend="bytes: base64") as client:
        array = np.array([b"\xff\x00", b"", b"abc"], np.object_)
        got = await infer(client, array, "BYTES")
        assert got.tolist() == array.tolist()


async def test_an_image_crosses_exactly_many_times_at_once(client: Client) -> None:
    image = np.random.default_rng(0).standard_normal((1, 3, 224, 224), dtype=np.float32)
    results = await asyncio.gather(*(infer(client, image, "FP32") for _ in range(4)))
    assert all(result.tobytes() == image.tobytes() for result in results)
    metrics = await client.metrics()
    assert metrics['tensor_gateway_tensors_total{datatype="FP32",direction="response"}'] == 4


async def test_nan_goes_out_as_null_and_comes_back(client: Client) -> None:
    got = await infer(client, np.array([1.5, np.nan], np.float32), "FP32")
    assert got[0] == 1.5
    assert np.isnan(got[1])
    metrics = await client.metrics()
    assert metrics['tensor_gateway_nonfinite_values_total{direction="response"}'] == 1


async def test_mlservers_own_errors_come_in_the_shape_of_the_protocol(client: Client) -> None:
    array = np.ones(2, np.float32)
    header = {"inputs": [tensor("x", array, "FP32")]}
    missing = await client.infer_binary(header, array.tobytes(), model="nobody")
    assert (missing.status, "nobody" in missing.error) == (404, True)
    header["inputs"][0]["parameters"]["content_type"] = 5
    invalid = await client.infer_binary(header, array.tobytes())
    assert (invalid.status, "content_type" in invalid.json["error"]) == (422, True)
    assert invalid.json["detail"]  # a client of MLServer itself may read it (protocol 4.9)


async def test_metadata_and_health_are_mlservers(client: Client) -> None:
    metadata = await client.request("GET", "/v2")
    assert metadata.json["name"] == "mlserver"
    assert "binary_tensor_data" in metadata.json["extensions"]
    assert (await client.request("GET", "/v2/health/ready")).status == 200
    assert (await client.request("GET", "/v2/models/identity")).json["name"] == "identity"
