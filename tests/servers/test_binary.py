"""Servers that speak the binary extension themselves: through the gateway, clients get what they get without it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import HEADER_LENGTH, Client, running, tensor
from tests.servers import KServe, Triton, serving

http = pytest.importorskip("tritonclient.http")
utils = pytest.importorskip("tritonclient.utils")
aio = pytest.importorskip("tritonclient.http.aio")

# each starts a server of its own, some of which take a quarter of a minute
pytestmark = pytest.mark.slow

IMAGE = np.random.default_rng(0).random((3 * 224, 224), np.float32)
ARRAYS: dict[str, npt.NDArray[Any]] = {
    "BOOL": np.array([[True, False]]),
    "UINT8": np.array([[0, 255]], np.uint8),
    "INT64": np.array([[2**63 - 1, -(2**63)]], np.int64),
    "UINT64": np.array([[2**64 - 1]], np.uint64),
    "FP16": np.array([[0.1, np.nan, np.inf]], np.float16),
    "FP32": IMAGE,
    "FP64": np.array([[0.1, -0.0, np.nan]]),
    "BYTES": np.array([[b"", b"\xff\x00", "é".encode()]], object),
}
KINDS = ("upstream_request", "upstream_response")


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Triton."""
    with serving(Triton(tmp_path_factory.mktemp("triton"))) as server:
        yield server.url


@pytest.fixture(scope="module")
def kserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a KServe."""
    with serving(KServe(tmp_path_factory.mktemp("kserve"))) as server:
        yield server.url


def infer(url: str, model: str, array: npt.NDArray[Any], datatype: str, **options: Any) -> Any:
    """What tritonclient gets back for *array*; `is_input_binary` and `is_output_binary` are options too."""
    with http.InferenceServerClient(url.removeprefix("http://"), network_timeout=60) as client:
        sent = http.InferInput("x", list(array.shape), datatype)
        sent.set_data_from_numpy(array, binary_data=options.pop("is_input_binary", True))
        is_output_binary = options.pop("is_output_binary", True)
        wanted = [http.InferRequestedOutput("x", binary_data=is_output_binary)]
        return client.infer(model, [sent], outputs=wanted, **options).as_numpy("x")


async def passed(client: Client) -> float:
    """How many binary requests have passed through."""
    return (await client.metrics())['tensor_gateway_upstream_request_bytes_count{format="binary",route="main"}']


@pytest.mark.parametrize("datatype", ARRAYS)
async def test_triton_gets_and_gives_every_datatype(triton: str, datatype: str) -> None:
    array = ARRAYS[datatype]
    async with running(triton, "", "binary: auto") as client:
        got = await asyncio.to_thread(infer, client.url, datatype.lower(), array, datatype)
        assert await passed(client) == 1
    assert got.tolist() == array.tolist() if datatype == "BYTES" else got.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"is_output_binary": False},
        {"is_input_binary": False},
        {"is_input_binary": False, "is_output_binary": False},
        {"request_compression_algorithm": "gzip"},
        {"request_compression_algorithm": "deflate", "response_compression_algorithm": "gzip"},
        {"response_compression_algorithm": "deflate"},
        {"model_version": "1", "request_id": "a", "headers": {"X-A": "b"}, "query_params": {"a": "b"}},
    ],
)
async def test_tritonclients_options_before_triton(triton: str, options: dict[str, Any]) -> None:
    array = np.arange(2_000, dtype=np.float32).reshape(2, 1_000)
    async with running(triton, "", "binary: auto") as client:
        got = await asyncio.to_thread(infer, client.url, "fp32", array, "FP32", **options)
    assert got.tobytes() == array.tobytes()


async def test_the_asyncio_client_before_triton(triton: str) -> None:
    async with running(triton, "", "binary: auto") as client:
        async with aio.InferenceServerClient(client.url.removeprefix("http://")) as triton_client:
            sent = aio.InferInput("x", list(IMAGE.shape), "FP32").set_data_from_numpy(IMAGE)
            results = await asyncio.gather(*(triton_client.infer("fp32", [sent]) for _ in range(8)))
        assert await passed(client) == 8
    assert all(result.as_numpy("x").tobytes() == IMAGE.tobytes() for result in results)


async def test_tritons_own_words_for_what_it_refuses(triton: str) -> None:
    def refused(url: str) -> str:
        with pytest.raises(utils.InferenceServerException) as raised:
            infer(url, "row", np.zeros((3,), np.int32), "INT32")
        return str(raised.value)

    async with running(triton, "", "binary: auto") as client:
        through = await asyncio.to_thread(refused, client.url)
    assert "expects [4]" in through or "shape" in through
    assert through == await asyncio.to_thread(refused, triton)


async def test_raw_requests_and_missing_header_lengths_before_triton(triton: str) -> None:
    array = np.array([1, 2, 3, 4], np.int32)
    header = json.dumps({"inputs": [tensor("x", array, "INT32")], "parameters": {"binary_data_output": True}}).encode()
    body = header + array.tobytes()
    plain = {"Accept-Encoding": "identity"}  # Triton compresses for whoever takes it
    async with running(triton, "", "binary: auto") as client:
        raw = await client.infer(array.tobytes(), 0, model="row", headers=plain)
        without = await client.infer(body, model="row", headers={"Content-Type": "application/json", **plain})
        vendor = f"application/vnd.sagemaker-triton.binary+json;json-header-size={len(header)}"
        sagemaker = await client.infer(body, model="row", headers={"Content-Type": vendor, **plain})
        lengths = {HEADER_LENGTH: str(len(header))}
        chunked = await client.request(
            "POST", "/v2/models/row/infer", data=_in_chunks(body), headers={**lengths, **plain}
        )
        assert await passed(client) == 4
    for reply in (raw, without, sagemaker, chunked):
        assert (reply.status, reply.binary) == (200, array.tobytes()), reply.body
    assert sagemaker.headers["Content-Type"].startswith("application/vnd.sagemaker-triton.binary+json")


async def _in_chunks(body: bytes) -> Any:
    for start in range(0, len(body), 7):
        yield body[start : start + 7]


async def test_a_renamed_model_of_triton(triton: str) -> None:
    async with running(triton, "routes: [{name: r, backend: main, rename: {mine: fp16}}]\n", "binary: auto") as client:
        got = await asyncio.to_thread(infer, client.url, "mine", ARRAYS["FP16"], "FP16")
    assert got.tobytes() == ARRAYS["FP16"].tobytes()


async def test_with_dialect_auto_triton_is_found(triton: str) -> None:
    async with running(triton, "", "dialect: auto\nbinary: auto") as client:
        got = await asyncio.to_thread(infer, client.url, "fp16", ARRAYS["FP16"], "FP16")
    assert got.tobytes() == ARRAYS["FP16"].tobytes()


@pytest.mark.parametrize("binary", ["auto", "always"])
async def test_kserve_does_not_say_that_it_takes_binary_bodies_and_does(kserve: str, binary: str) -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    async with running(kserve, "", f"binary: {binary}") as client:
        for options in ({}, {"is_output_binary": False}, {"request_compression_algorithm": "gzip"}):
            got = await asyncio.to_thread(infer, client.url, "identity", array, "FP32", **options)
            assert got.tobytes() == array.tobytes(), options
        assert await passed(client) == (3 if binary == "always" else 0)


async def test_a_missing_header_length_before_kserve(kserve: str) -> None:
    array = np.arange(4, dtype=np.float32).reshape(1, 4)
    header = json.dumps({"inputs": [tensor("x", array, "FP32")]}).encode()
    async with running(kserve, "", "binary: always") as client:
        reply = await client.infer(header + array.tobytes(), headers={"Content-Type": "application/json"})
    assert reply.status == 200, reply.body
    assert reply.json["outputs"][0]["data"] == [0, 1, 2, 3], reply.body


async def test_a_kserve_of_v1_says_that_it_is_v2(kserve: str) -> None:
    """Why `dialect: tensorflow` has to be set before it."""
    async with running(kserve, "", "dialect: auto") as client:
        assert (await client.request("GET", "/v2")).json["name"] == "kserve"
