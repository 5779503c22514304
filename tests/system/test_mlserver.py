"""Real tritonclient through the gateway to a real MLServer, which answers binary requests with an error.

The model is the identity runtime of `deploy/mlserver`. Without MLServer these tests skip; in CI they fail.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http.aio as triton_aio

from tests.conftest import Client, running, tensor
from tests.servers import serving
from tests.system.programs import MlServer
from tests.values import VALUES


@pytest.fixture(scope="module")
def mlserver() -> Iterator[str]:
    """The URL of a running MLServer."""
    with tempfile.TemporaryDirectory() as folder:
        with serving(MlServer(Path(folder))) as server:
            yield server.url


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


@pytest.mark.parametrize("content_type", ["str", "datetime", "pd"])
async def test_a_named_content_type_reaches_the_model_as_from_a_client_of_json(
    mlserver: str, content_type: str
) -> None:
    element = b"2026-11-23T08:00:00+00:00"
    blob = len(element).to_bytes(4, "little") + element
    tensor_in = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"content_type": content_type}}
    in_json = {**tensor_in, "data": [element.decode()]}
    in_binary = {**tensor_in, "parameters": {"content_type": content_type, "binary_data_size": len(blob)}}
    async with running(mlserver, backend="bytes: base64") as client:
        from_json = await client.infer(json.dumps({"inputs": [in_json]}).encode())
        from_binary = await client.infer_binary({"inputs": [in_binary]}, blob)
    assert from_json.status == from_binary.status == 200
    assert from_binary.json["outputs"] == from_json.json["outputs"]


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
