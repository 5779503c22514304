"""kserve's InferenceRESTClient, unmodified, through a running gateway to a server that reads only JSON.

It needs an environment of its own, whose interpreter KSERVE_PYTHON names. `pip install kserve` does, and takes
450 MB; without the cloud's tools this is enough to import it:

    pip install --no-deps kserve==0.21.0
    pip install "cloudevents<2" fastapi grpc-interceptor grpcio httpx kubernetes numpy orjson pandas prometheus-client \
        "protobuf<7" "psutil<6" pyyaml requests six tabulate timing-asgi uvicorn watchfiles
"""

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, Client, answering, lying, running
from tests.values import VALUES as ALL_VALUES

pytestmark = pytest.mark.rule("9")

PROGRAM = Path(__file__).parent / "programs" / "kserve_client.py"

VALUES = {name: array for name, array in ALL_VALUES.items() if name != "BYTES"}
TEXTS = [b"a", b"", "é".encode(), b"nul \x00 inside", b"x" * 70_000]
BINARY = {"binary_data": True}
JSON = {"binary_data": False}


class KServe:
    """A process with kserve's client in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def outcome(self, call: str, **said: Any) -> dict[str, Any]:
        """What came of a call: its `value`, or its `error` and the error's `type`."""
        return await asyncio.to_thread(self._ask, json.dumps({"call": call, **said}))

    async def value(self, call: str, **said: Any) -> Any:
        """What a call returned."""
        outcome = await self.outcome(call, **said)
        assert "value" in outcome, outcome
        return outcome["value"]

    async def error(self, call: str, **said: Any) -> str:
        """The text with which a call failed."""
        outcome = await self.outcome(call, **said)
        assert outcome.get("type") == "HTTPStatusError", outcome
        return str(outcome["error"])

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answered: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answered


@pytest.fixture(scope="module")
def kserve() -> Iterator[KServe]:
    """The client, which takes seconds to import, for all tests."""
    python = os.environ.get("KSERVE_PYTHON")
    if python is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"KSERVE_PYTHON is not set: see {Path(__file__).name}")
    with subprocess.Popen([python, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield KServe(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def packed(blob: bytes) -> str:
    return base64.b64encode(blob).decode()


def numeric(name: str, datatype: str, array: npt.NDArray[Any], **options: Any) -> dict[str, Any]:
    shape = list(array.shape)
    return {"name": name, "datatype": datatype, "shape": shape, "blob": packed(array.tobytes()), **options}


def textual(name: str, texts: list[bytes], **options: Any) -> dict[str, Any]:
    packed_texts = [packed(text) for text in texts]
    return {"name": name, "datatype": "BYTES", "shape": [len(texts)], "texts": packed_texts, **options}


def is_binary(output: dict[str, Any]) -> bool:
    """The client takes the size away when it has read a blob; an output in JSON never had parameters."""
    return bool(output["parameters"] == {})


CASES = [
    (datatype, binary_in, binary_out)
    for datatype in VALUES
    for binary_in in (True, False)
    for binary_out in (True, False)
    if binary_in or datatype != "FP16"  # the client itself refuses FP16 in JSON
]


@pytest.mark.parametrize(("datatype", "binary_in", "binary_out"), CASES)
async def test_every_datatype_crosses_exactly(
    kserve: KServe, client: Client, datatype: str, binary_in: bool, binary_out: bool
) -> None:
    array = VALUES[datatype]
    reply = await kserve.value(
        "infer",
        url=client.url,
        model="identity",
        inputs=[numeric("x", datatype, array, binary=binary_in)],
        outputs=[{"name": "x", "parameters": {"binary_data": binary_out}}],
    )
    (output,) = reply["outputs"]
    assert (output["datatype"], output["shape"], output["numpy"]) == (datatype, list(array.shape), str(array.dtype))
    assert base64.b64decode(output["blob"]) == array.tobytes()
    assert is_binary(output) == binary_out
    assert (HEADER_LENGTH.lower() in reply["headers"]) == binary_out


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
async def test_bytes_cross_exactly(kserve: KServe, client: Client, binary_in: bool, binary_out: bool) -> None:
    reply = await kserve.value(
        "infer",
        url=client.url,
        model="identity",
        inputs=[textual("x", TEXTS, binary=binary_in)],
        outputs=[{"name": "x", "parameters": {"binary_data": binary_out}}],
    )
    (output,) = reply["outputs"]
    assert [base64.b64decode(text) for text in output["texts"]] == TEXTS
    assert is_binary(output) == binary_out


async def test_bytes_that_are_no_text_go_out_in_base64(kserve: KServe, server: JsonServer) -> None:
    # back they come in JSON: in binary the client cannot read bytes that are no text, from any server
    texts = [b"\xff\xfe", b"", b"\x00\x80"]
    async with running(server.url, backend="bytes: base64") as client:
        inputs = [textual("x", texts)]
        reply = await kserve.value("infer", url=client.url, model="identity", inputs=inputs)
    (sent,) = server.last_request["inputs"]
    assert sent["parameters"] == {"content_type": "base64"}
    assert sent["data"] == [packed(text) for text in texts]
    assert reply["outputs"][0]["texts"] == [packed(packed(text).encode()) for text in texts]


async def test_binary_and_json_mix_in_one_request_and_reply(kserve: KServe, client: Client, server: JsonServer) -> None:
    half, plain = VALUES["FP16"], VALUES["INT64"]
    reply = await kserve.value(
        "infer",
        url=client.url,
        model="identity",
        inputs=[
            numeric("plain", "INT64", plain, binary=False),
            numeric("half", "FP16", half),
            textual("text", [b"one", b"two"]),
        ],
        outputs=[
            {"name": "plain", "parameters": BINARY},
            {"name": "half", "parameters": JSON},
            {"name": "text", "parameters": BINARY},
        ],
    )
    got = {output["name"]: output for output in reply["outputs"]}
    assert [is_binary(got[name]) for name in ("plain", "half", "text")] == [True, False, True]
    assert base64.b64decode(got["plain"]["blob"]) == plain.tobytes()
    assert base64.b64decode(got["half"]["blob"]) == half.tobytes()
    assert got["text"]["texts"] == [packed(b"one"), packed(b"two")]
    assert {key for one in server.last_request["inputs"] for key in one} == {"name", "shape", "datatype", "data"}


@pytest.mark.parametrize("flag", [True, False])
async def test_the_request_decides_for_outputs_that_say_nothing(kserve: KServe, client: Client, flag: bool) -> None:
    inputs = [numeric("a", "FP32", VALUES["FP32"]), numeric("b", "INT8", VALUES["INT8"], binary=False)]
    options = {"url": client.url, "model": "identity", "inputs": inputs, "parameters": {"binary_data_output": flag}}
    reply = await kserve.value("infer", **options)
    assert [is_binary(output) for output in reply["outputs"]] == [flag, flag]
    assert [base64.b64decode(output["blob"]) for output in reply["outputs"]] == [
        VALUES["FP32"].tobytes(),
        VALUES["INT8"].tobytes(),
    ]
    asked = [{"name": "a", "parameters": {"binary_data": not flag}}, {"name": "b"}]
    reply = await kserve.value("infer", **options, outputs=asked)
    assert [is_binary(output) for output in reply["outputs"]] == [not flag, flag]


async def test_empty_tensor_beside_a_full_one(kserve: KServe, client: Client, server: JsonServer) -> None:
    # the client writes "data": null and "binary_data_size": 0 for the empty one
    empty = np.empty((0, 4), np.float32)
    reply = await kserve.value(
        "infer",
        url=client.url,
        model="identity",
        inputs=[numeric("empty", "FP32", empty), numeric("full", "INT8", VALUES["INT8"]), textual("none", [])],
        parameters={"binary_data_output": True},
    )
    assert [output["shape"] for output in reply["outputs"]] == [[0, 4], [1, 3], [0]]
    assert [is_binary(output) for output in reply["outputs"]] == [True, True, True]
    assert [one["data"] for one in server.last_request["inputs"]] == [[], [-128, 0, 127], []]


@pytest.mark.parametrize("binary_out", [True, False])
async def test_empty_tensor_alone_makes_a_request_without_header_length(
    kserve: KServe, client: Client, server: JsonServer, binary_out: bool
) -> None:
    reply = await kserve.value(
        "infer",
        url=client.url,
        model="identity",
        inputs=[numeric("empty", "INT64", np.empty((2, 0), np.int64))],
        parameters={"binary_data_output": binary_out},
    )
    (output,) = reply["outputs"]
    assert (output["shape"], output["blob"], is_binary(output)) == ([2, 0], "", binary_out)
    assert server.last_request["inputs"] == [{"name": "empty", "shape": [2, 0], "datatype": "INT64", "data": []}]


async def test_id_model_name_parameters_and_headers_arrive(kserve: KServe, client: Client, server: JsonServer) -> None:
    reply = await kserve.value(
        "infer",
        url=client.url,
        model="identity",
        inputs=[numeric("x", "FP32", VALUES["FP32"])],
        parameters={"binary_data_output": True, "temperature": 7, "mode": "warm"},
        request_id="four-two",
        headers={"Authorization": "Bearer token", "X-Request-Id": "seen"},
    )
    assert (reply["id"], reply["model_name"]) == ("four-two", "identity")
    assert reply["headers"]["content-type"] == "application/octet-stream"
    asked = server.last_request
    assert asked["parameters"] == {"temperature": 7, "mode": "warm"}
    assert (asked["id"], asked["model_name"]) == ("four-two", "identity")
    headers = {name.lower(): value for name, value in server.headers}
    assert (headers["authorization"], headers["x-request-id"]) == ("Bearer token", "seen")
    assert headers["content-type"] == "application/json"
    assert HEADER_LENGTH.lower() not in headers


async def test_id_that_the_client_made_up_comes_back(kserve: KServe, client: Client, server: JsonServer) -> None:
    inputs = [numeric("x", "FP32", VALUES["FP32"])]
    reply = await kserve.value("infer", url=client.url, model="identity", inputs=inputs)
    assert reply["id"] == server.last_request["id"]
    assert len(reply["id"]) == 36


async def test_model_name_is_added_where_the_backend_leaves_it_out(kserve: KServe) -> None:
    # without one the client fails with KeyError
    output = {"name": "y", "datatype": "FP32", "shape": [1], "data": [1.5]}
    async with lying(answering(json.dumps({"outputs": [output]}).encode())) as backend:
        async with running(backend.url) as client:
            reply = await kserve.value(
                "infer", url=client.url, model="mine", inputs=[numeric("x", "FP32", VALUES["FP32"])]
            )
    assert reply["model_name"] == "mine"


async def test_request_as_a_dictionary(kserve: KServe, client: Client) -> None:
    data = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [0.1, -0.0]}],
        "parameters": {"binary_data_output": True},
    }
    reply = await kserve.value("infer_dict", url=client.url, model="identity", data=data)
    (output,) = reply["outputs"]
    assert base64.b64decode(output["blob"]) == np.array([0.1, -0.0], np.float32).tobytes()
    assert is_binary(output)


async def test_image_sized_tensor(kserve: KServe, client: Client) -> None:
    image = np.random.default_rng(3).standard_normal((1, 3, 224, 224), np.float32)
    reply = await kserve.value(
        "infer",
        url=client.url,
        model="identity",
        inputs=[numeric("x", "FP32", image)],
        parameters={"binary_data_output": True},
    )
    assert base64.b64decode(reply["outputs"][0]["blob"]) == image.tobytes()


async def test_refusal_of_the_gateway_is_read(kserve: KServe, client: Client) -> None:
    wrong = numeric("x", "FP32", VALUES["FP32"], claimed_shape=[1, 5])
    text = await kserve.error("infer", url=client.url, model="identity", inputs=[wrong])
    assert "expected 20, got 16" in text
    assert "400 Bad Request" in text


async def test_error_of_the_backend_is_read(kserve: KServe, client: Client) -> None:
    inputs = [numeric("x", "FP32", VALUES["FP32"])]
    text = await kserve.error("infer", url=client.url, model="nobody", inputs=inputs)
    assert text.startswith("unknown model 'nobody', '404 Not Found'")


@pytest.mark.parametrize("binary", [True, False])
async def test_detail_of_a_framework_is_read_as_an_error(kserve: KServe, binary: bool) -> None:
    script = answering(b'{"detail": [{"msg": "no such tensor"}]}', "422 Unprocessable Entity")
    async with lying(script) as backend, running(backend.url) as client:
        inputs = [numeric("x", "FP32", VALUES["FP32"], binary=binary)]
        text = await kserve.error("infer", url=client.url, model="identity", inputs=inputs)
    assert "no such tensor" in text
    assert "422" in text


async def test_backend_that_is_down_is_an_error_with_a_text(kserve: KServe) -> None:
    async with running("http://127.0.0.1:9") as client:
        inputs = [numeric("x", "FP32", VALUES["FP32"])]
        text = await kserve.error("infer", url=client.url, model="identity", inputs=inputs)
    assert "503" in text
    assert not text.startswith(",")


async def test_health_and_readiness_are_the_backends(kserve: KServe, client: Client) -> None:
    async with lying(answering(b'{"live": true, "ready": false}')) as backend, running(backend.url) as other:
        assert await kserve.value("live", url=other.url) is True
        assert await kserve.value("ready", url=other.url) is False
        assert await kserve.value("model_ready", url=other.url, model="m") is True
    paths = [connection.head.split()[1] for connection in backend.connections]
    assert paths[-1] == b"/v2/models/m/ready"
    assert await kserve.value("model_ready", url=client.url, model="identity") is True


async def test_model_and_server_that_are_not_ready(kserve: KServe) -> None:
    script = answering(b'{"error": "still loading"}', "503 Service Unavailable")
    async with lying(script) as backend, running(backend.url) as client:
        assert await kserve.value("model_ready", url=client.url, model="m") is False
        assert "still loading" in await kserve.error("ready", url=client.url)


async def test_reply_is_compressed_since_the_client_always_asks_for_it(kserve: KServe, server: JsonServer) -> None:
    array = np.zeros(100_000, np.float32)
    async with running(server.url, "compression: {responses: true, min_size: 1KiB}\n") as client:
        reply = await kserve.value(
            "infer",
            url=client.url,
            model="identity",
            inputs=[numeric("x", "FP32", array)],
            parameters={"binary_data_output": True},
        )
    assert reply["headers"]["content-encoding"] in ("gzip", "deflate")
    assert base64.b64decode(reply["outputs"][0]["blob"]) == array.tobytes()
