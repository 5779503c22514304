"""Unmodified tritonclient, sync and aio, through a running gateway to a server that reads only JSON."""

import asyncio
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tritonclient.http as sync_http
import tritonclient.http.aio as aio_http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from gateway.demo import JsonServer
from tests.conftest import Client
from tests.values import VALUES

pytestmark = pytest.mark.rule("9")


def sync_infer(client: Client, model: str, inputs: list[Any], outputs: list[Any] | None, **options: Any) -> Any:
    triton = sync_http.InferenceServerClient(client.url.removeprefix("http://"))
    try:
        return triton.infer(model, inputs, outputs=outputs, **options)
    finally:
        triton.close()


CASES = [
    (datatype, binary_in, binary_out)
    for datatype in VALUES
    for binary_in in (True, False)
    for binary_out in (True, False)
    if binary_in or datatype != "FP16"  # tritonclient refuses FP16 as JSON
]


@pytest.mark.parametrize(("datatype", "binary_in", "binary_out"), CASES)
async def test_every_datatype_crosses_exactly(client: Client, datatype: str, binary_in: bool, binary_out: bool) -> None:
    array = VALUES[datatype]
    sent = sync_http.InferInput("x", list(array.shape), datatype)
    sent.set_data_from_numpy(array, binary_data=binary_in)
    outputs = [sync_http.InferRequestedOutput("x", binary_data=binary_out)]
    result = await asyncio.to_thread(sync_infer, client, "identity", [sent], outputs)
    got = result.as_numpy("x")
    assert result.get_output("x")["datatype"] == datatype
    if datatype == "BYTES":
        # tritonclient gives str for JSON and bytes for binary
        texts = [item.encode() if isinstance(item, str) else item for item in got.ravel()]
        assert texts == list(array.ravel())
        return
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert got.tobytes() == array.tobytes()


async def test_bfloat16_crosses_exactly(client: Client, server: JsonServer) -> None:
    array = np.array([[1.0, -0.0, 3.3895313892515355e38, 9.183549615799121e-41]], ml_dtypes.bfloat16)
    sent = sync_http.InferInput("x", list(array.shape), "BF16")
    sent._raw_data = array.tobytes()  # tritonclient rounds float32 itself; here the bits matter
    sent._parameters["binary_data_size"] = array.nbytes
    result = await asyncio.to_thread(sync_infer, client, "identity", [sent], None)
    assert result._buffer[: array.nbytes] == array.tobytes()
    assert server.last_request["inputs"][0]["data"][0] == 1.0


async def test_sum_and_difference_of_the_simple_model(client: Client) -> None:
    left = np.arange(16, dtype=np.int32).reshape(1, 16)
    right = np.full((1, 16), 3, np.int32)
    inputs = [sync_http.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    inputs[0].set_data_from_numpy(left)
    inputs[1].set_data_from_numpy(right, binary_data=False)
    result = await asyncio.to_thread(sync_infer, client, "simple", inputs, None, request_id="42", model_version="1")
    assert np.array_equal(result.as_numpy("OUTPUT0"), left + right)
    assert np.array_equal(result.as_numpy("OUTPUT1"), left - right)
    assert result.get_response()["id"] == "42"
    assert result.get_response()["model_name"] == "simple"


async def test_one_output_binary_and_one_json(client: Client) -> None:
    inputs = [sync_http.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for item in inputs:
        item.set_data_from_numpy(np.ones((1, 16), np.int32))
    outputs = [
        sync_http.InferRequestedOutput("OUTPUT1", binary_data=False),
        sync_http.InferRequestedOutput("OUTPUT0", binary_data=True),
    ]
    result = await asyncio.to_thread(sync_infer, client, "simple", inputs, outputs)
    assert result.get_output("OUTPUT1")["data"] == [0] * 16
    assert "data" not in result.get_output("OUTPUT0")
    assert result.as_numpy("OUTPUT0").tolist() == [[2] * 16]


async def test_aio_client_infers_and_reads_errors_metadata_and_health(client: Client) -> None:
    triton = aio_http.InferenceServerClient(client.url.removeprefix("http://"))
    try:
        image = np.random.default_rng(1).standard_normal((1, 3, 224, 224), dtype=np.float32)
        sent = aio_http.InferInput("x", list(image.shape), "FP32")
        sent.set_data_from_numpy(image)
        results = await asyncio.gather(*(triton.infer("identity", [sent]) for _ in range(4)))
        assert all(result.as_numpy("x").tobytes() == image.tobytes() for result in results)
        assert await triton.is_server_live()
        assert await triton.is_server_ready()
        assert await triton.is_model_ready("identity")
        assert "binary_tensor_data" in (await triton.get_server_metadata())["extensions"]
        assert (await triton.get_model_metadata("simple"))["name"] == "simple"
        with pytest.raises(InferenceServerException, match="unknown model 'nobody'"):
            await triton.infer("nobody", [sent])
        sent._parameters["binary_data_size"] = 5
        with pytest.raises(InferenceServerException, match="expected 602112, got 5"):
            await triton.infer("identity", [sent])
    finally:
        await triton.close()


async def test_sync_client_reads_errors_metadata_and_health(client: Client) -> None:
    def talk() -> None:
        triton = sync_http.InferenceServerClient(client.url.removeprefix("http://"))
        try:
            assert triton.is_server_live()
            assert triton.is_server_ready()
            assert "binary_tensor_data" in triton.get_server_metadata()["extensions"]
            assert triton.get_model_metadata("identity", "1")["name"] == "identity"
            sent = sync_http.InferInput("x", [1], np_to_triton_dtype(np.float32))
            sent.set_data_from_numpy(np.array([np.nan], np.float32))
            with pytest.raises(InferenceServerException, match="input 'x'.*element 0 is nan"):
                triton.infer("identity", [sent])
        finally:
            triton.close()

    await asyncio.to_thread(talk)
