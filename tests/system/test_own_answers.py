"""What the gateway answers in place of servers of V2 that do not have all of the protocol (protocol 8)."""

import asyncio
import json

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.conftest import HEADER_LENGTH, Client, running
from tests.system.scripted import Seen, counting, total

X = np.arange(8, dtype=np.float32).reshape(2, 4)
MODELS = """
models:
  "m*": {inputs: {x: {datatype: FP32, shape: [-1, 4]}}, outputs: {x: {datatype: FP32}}}
  "half": {format: null}
"""


async def only_inferences(seen: Seen) -> bool:
    """A server of one path, as people write them."""
    if seen.method == "POST" and seen.target.endswith("/infer"):
        await seen.answer(seen.echo())
    else:
        await seen.answer(b'{"detail":"Not Found"}', "404 Not Found")
    return True


def ask(client: Client, method: str, *arguments: object) -> object:
    """What *method* of a real tritonclient gives."""
    with triton.InferenceServerClient(client.url.removeprefix("http://")) as real:
        return getattr(real, method)(*arguments)


async def test_a_server_without_metadata_of_its_own_says_so_in_words_that_clients_read() -> None:
    async with counting(only_inferences) as backend, running(backend.url) as client:
        for path in ("/v2", "/v2/"):
            reply = await client.request("GET", path)
            assert (reply.status, reply.json) == (404, {"error": "Not Found", "detail": "Not Found"})
        with pytest.raises(InferenceServerException, match=r"^\[404\] Not Found$"):
            await asyncio.to_thread(ask, client, "get_server_metadata")


@pytest.mark.rule("11.6")
async def test_clients_find_a_server_without_health_alive_and_ready() -> None:
    async with counting(only_inferences) as backend, running(backend.url) as client:
        assert await asyncio.to_thread(ask, client, "is_server_live") is True
        assert await asyncio.to_thread(ask, client, "is_server_ready") is True
        live = await client.request("GET", "/v2/health/live")
        assert (live.status, live.json, live.headers["Content-Type"]) == (200, {"live": True}, "application/json")
        ready = await client.request("GET", "/v2/health/ready")
        assert (ready.status, ready.json) == (200, {"ready": True})
        assert (await client.request("HEAD", "/v2/health/ready")).body == b""
        # the server was asked each time, and it may grow such a path
        assert sum(seen.target.startswith("/v2/health/") for seen in backend.seen) == 5


@pytest.mark.rule("11.6")
@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable", "401 Unauthorized"])
async def test_a_server_that_says_it_is_not_ready_is_believed(status: str) -> None:
    async def failing(seen: Seen) -> bool:
        await seen.answer(b'{"error":"no"}', status)
        return True

    async with counting(failing) as backend, running(backend.url) as client:
        reply = await client.request("GET", "/v2/health/ready")
        assert (reply.status, reply.error) == (int(status[:3]), "no")


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/m"])
async def test_nothing_is_answered_for_a_server_that_has_the_path_but_not_in_this_form(path: str) -> None:
    async def only_get(seen: Seen) -> bool:
        if seen.method != "GET":
            await seen.answer(b"", "405 Method Not Allowed")
        elif seen.target == path:
            await seen.answer(b'{"error":"not ready"}', "400 Bad Request")
        else:
            await seen.answer(b'{"detail":"Not Found"}', "404 Not Found")
        return True

    async with counting(only_get) as backend, running(backend.url, backend=MODELS) as client:
        assert (await client.request("HEAD", path)).status == 405
        assert (await client.request("GET", f"{path}/")).status == 404
        assert (await client.request("GET", path)).error == "not ready"


async def test_a_server_that_is_not_there_is_not_alive() -> None:
    async with counting(only_inferences) as backend:
        url = backend.url
    async with running(url) as client:
        assert (await client.request("GET", "/v2/health/live")).status == 503


@pytest.mark.rule("11.6")
async def test_a_server_without_health_that_probes_find_down_is_not_ready() -> None:
    async def sick(seen: Seen) -> bool:
        if seen.target == "/ping":
            await seen.answer(b"", "500 Internal Server Error")
            return True
        return await only_inferences(seen)

    probes = "health: {path: /ping, interval: 10ms, unhealthy_after: 1}"
    async with counting(sick) as backend, running(backend.url, backend=probes) as client:
        async with asyncio.timeout(20):
            while total(await client.metrics(), "endpoint_up"):
                await asyncio.sleep(0.01)
        assert (await client.request("GET", "/v2/health/ready")).status == 404


async def test_what_a_server_says_in_the_protocols_own_shape_is_not_touched() -> None:
    body = b'{"error": "no model m", "more": 1}'

    async def refusing(seen: Seen) -> bool:
        await seen.answer(body, "404 Not Found")
        return True

    async with counting(refusing) as backend, running(backend.url) as client:
        assert (await client.request("GET", "/v2/models/m/config")).body == body


@pytest.mark.rule("11.6")
async def test_metadata_of_the_configuration_is_for_servers_that_have_none() -> None:
    async with counting(only_inferences) as backend, running(backend.url, backend=MODELS) as client:
        described = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}
        got = await asyncio.to_thread(ask, client, "get_model_metadata", "m")
        assert isinstance(got, dict)
        assert (got["name"], got["inputs"]) == ("m", [described])
        assert got["outputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]
        assert await asyncio.to_thread(ask, client, "get_model_metadata", "m", "1") == got
        for model in ("other", "half"):  # nothing is said of these
            assert (await client.request("GET", f"/v2/models/{model}")).status == 404
        # nobody knows whether the model is ready
        assert (await client.request("GET", "/v2/models/m/ready")).status == 404


@pytest.mark.rule("11.6")
async def test_metadata_of_a_server_wins_over_the_configuration() -> None:
    text = b'{"name":"m","inputs":[],"outputs":[]}'

    async def describing(seen: Seen) -> bool:
        await seen.answer(text)
        return True

    async with counting(describing) as backend, running(backend.url, backend=MODELS) as client:
        assert (await client.request("GET", "/v2/models/m")).body == text


async def test_a_raw_request_is_read_by_the_metadata_of_the_configuration() -> None:
    async with counting(only_inferences) as backend, running(backend.url, backend=MODELS) as client:
        for _ in range(2):
            reply = await client.request("POST", "/v2/models/m/infer", data=X.tobytes(), headers={HEADER_LENGTH: "0"})
            assert (reply.status, reply.json["outputs"][0]["shape"]) == (200, [2, 4])
            assert reply.binary == X.tobytes()
        reply = await client.request("POST", "/v2/models/other/infer", data=X.tobytes(), headers={HEADER_LENGTH: "0"})
        assert (reply.status, json.loads(reply.body)["detail"]) == (404, "Not Found")


async def test_a_renamed_model_is_described_under_the_clients_name() -> None:
    routes = "routes:\n  - {name: all, backend: main, rename: {mine: m}}\n"
    async with counting(only_inferences) as backend, running(backend.url, routes, MODELS) as client:
        reply = await client.request("GET", "/v2/models/mine")
        assert (reply.status, reply.json["name"]) == (200, "mine")


@pytest.mark.rule("11.6")
async def test_a_model_that_its_server_describes_is_ready_without_a_path_that_says_so() -> None:
    async def describing(seen: Seen) -> bool:
        if seen.target == "/v2/models/m":
            await seen.answer(b'{"name": "m", "inputs": [], "outputs": []}')
        else:
            await seen.answer(b"no", "404 Not Found")
        return True

    async with counting(describing) as backend, running(backend.url, backend="max_connections: 1") as client:
        assert await asyncio.to_thread(ask, client, "is_model_ready", "m") is True
        assert await asyncio.to_thread(ask, client, "is_model_ready", "nobody") is False
