"""What Triton's examples and its own tests do with `tritonclient.grpc`, before a server that reads only JSON."""

import asyncio
import itertools
import json
import queue
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as sync
import tritonclient.grpc.aio as triton
from aiohttp import web
from tritonclient.grpc.auth import BasicAuth
from tritonclient.utils import InferenceServerException

from tests.conftest import Client
from tests.grpc.conftest import address_of, serving
from tests.grpc.test_clients import given, serving_app

pytestmark = pytest.mark.rule("12")

WAIT_S = 20


class Models:
    """Models of a server, by their names, and what it was asked.

    `sum` adds up what the requests of a sequence bring; it reads every second of them 20 ms later. `slow` answers
    once `released` is set. Any other is an identity.
    """

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.released = asyncio.Event()
        self._sums: dict[object, int] = {}

    async def answer(self, request: web.Request) -> web.Response:
        """The answer to an inference."""
        asked = json.loads(await request.read())
        self.asked.append(asked)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        outputs = [{name: tensor[name] for name in ("name", "datatype", "shape", "data")} for tensor in asked["inputs"]]
        model = request.path.split("/")[3]
        if model == "sum":
            await asyncio.sleep(0.02 * (len(self.asked) % 2))
            outputs[0]["data"] = [self._add(asked["parameters"], outputs[0]["data"][0])]
        elif model == "slow":
            await asyncio.wait_for(self.released.wait(), WAIT_S)
        return web.json_response({"model_name": model, "id": asked.get("id", ""), "outputs": outputs})

    def _add(self, parameters: dict[str, Any], value: int) -> int:
        name = parameters["sequence_id"]
        self._sums[name] = value + (0 if parameters["sequence_start"] else self._sums[name])
        return self._sums[name]


Served = tuple[Client, triton.InferenceServerClient, Models]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A gateway in front of `Models`: its client of HTTP, and its client of gRPC."""
    models = Models()
    async with serving_app(models.answer) as url, serving(url) as (client, grpc_client):
        yield client, grpc_client, models


Results = queue.Queue[Any]
Use = Callable[[sync.InferenceServerClient, Results], Any]


async def run_sync(client: Client, use: Use, **options: Any) -> Any:
    """What *use* returns, which gets tritonclient's synchronous client and a queue for results, in a thread."""

    def run() -> Any:
        with sync.InferenceServerClient(address_of(client), **options) as grpc_client:
            return use(grpc_client, queue.Queue())

    return await asyncio.wait_for(asyncio.to_thread(run), WAIT_S)


async def until_idle(client: Client) -> None:
    """Wait until the gateway serves no request."""
    async with asyncio.timeout(WAIT_S):
        while client.gateway.gateway.in_flight:
            await asyncio.sleep(0.01)


ONE = np.ones((1, 1), "i4")


@pytest.mark.rule("12.4")
async def test_a_sequence_in_a_stream_reaches_the_server_in_its_order(served: Served) -> None:
    n = 30
    names: tuple[Any, ...] = (1001, "text")

    def use(client: sync.InferenceServerClient, results: Results) -> list[tuple[str, int]]:
        client.start_stream(lambda result, error: results.put((result, error)))
        for number in range(n):
            for name in names:
                tensor = given("INPUT", np.full((1, 1), number + 1, "i4"))
                ends = {"sequence_start": number == 0, "sequence_end": number == n - 1}
                client.async_stream_infer("sum", [tensor], request_id=str(name), sequence_id=name, **ends)
        got = [results.get(timeout=WAIT_S) for _ in range(n * len(names))]
        client.stop_stream()
        assert not any(error for _, error in got)
        return [(result.get_response().id, int(result.as_numpy("INPUT")[0, 0])) for result, _ in got]

    expected = list(itertools.accumulate(range(1, n + 1)))
    got = await run_sync(served[0], use)
    for name in map(str, names):
        assert [total for id_, total in got if id_ == name] == expected


@pytest.mark.rule("12.4")
async def test_requests_of_a_stream_without_a_sequence_are_under_way_at_once(served: Served) -> None:
    _, grpc_client, models = served

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(5):
            yield {"model_name": "slow", "inputs": [given("x", ONE)], "request_id": str(number)}
        async with asyncio.timeout(WAIT_S):
            while len(models.asked) < 5:
                await asyncio.sleep(0.01)
        models.released.set()

    answers = [result.get_response().id async for result, _ in grpc_client.stream_infer(requests())]
    assert answers == list("01234")


@pytest.mark.rule("12.4")
async def test_a_stream_says_which_response_is_final_and_does_not_ask_the_server(served: Served) -> None:
    client, _, models = served

    def use(grpc_client: sync.InferenceServerClient, results: Results) -> Any:
        grpc_client.start_stream(lambda result, error: results.put((result, error)))
        grpc_client.async_stream_infer("m", [given("x", ONE)], enable_empty_final_response=True, priority=3)
        result, _ = results.get(timeout=WAIT_S)
        grpc_client.stop_stream()
        assert results.empty()
        return result

    result = await run_sync(client, use)
    assert result.as_numpy("x").tolist() == [[1]]
    assert result.get_response().parameters["triton_final_response"].bool_param
    assert models.asked[0]["parameters"] == {"priority": 3}


async def test_parameters_that_have_arguments_of_their_own_reach_the_server(served: Served) -> None:
    client, _, models = served
    options = {"sequence_id": 7, "sequence_start": True, "sequence_end": False, "priority": 2**40, "timeout": 5_000_000}
    named = {"name": "ü", "count": 2, "ratio": 1.5, "flag": False}

    def use(grpc_client: sync.InferenceServerClient, results: Results) -> Any:
        return grpc_client.infer("m", [given("x", ONE)], parameters=named, **options).as_numpy("x")

    assert (await run_sync(client, use)).tolist() == [[1]]
    assert models.asked[0]["parameters"] == options | named


def cancel_a_call(client: sync.InferenceServerClient, results: Results) -> Any:
    call = client.async_infer("slow", [given("x", ONE)], lambda result, error: results.put((result, error)))
    client.infer("m", [given("x", ONE)])
    call.cancel()
    return results.get(timeout=WAIT_S)[1]


def cancel_a_stream(client: sync.InferenceServerClient, results: Results) -> Any:
    client.start_stream(lambda result, error: results.put((result, error)))
    client.async_stream_infer("slow", [given("x", ONE)])
    client.infer("m", [given("x", ONE)])
    client.stop_stream(cancel_requests=True)
    return results.get(timeout=WAIT_S)[1]


@pytest.mark.rule("12.5")
@pytest.mark.parametrize("cancel", [cancel_a_call, cancel_a_stream])
async def test_what_the_synchronous_client_cancels_ends(served: Served, cancel: Use) -> None:
    client = served[0]
    error = await run_sync(client, cancel)
    assert "Locally cancelled" in error.message()
    await until_idle(client)
    assert (await client.metrics())["tensor_gateway_in_flight_bytes"] == 0


@pytest.mark.rule("12.5")
async def test_a_stream_that_is_cancelled_ends(served: Served) -> None:
    client, grpc_client, models = served

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": "slow", "inputs": [given("x", ONE)]}

    answers = grpc_client.stream_infer(requests())

    async def read() -> None:
        async for _ in answers:
            pass

    reading = asyncio.ensure_future(read())
    async with asyncio.timeout(WAIT_S):
        while not models.asked:
            await asyncio.sleep(0.01)
    assert answers.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await until_idle(client)


def call_in_time(client: sync.InferenceServerClient, results: Results) -> Any:
    with pytest.raises(InferenceServerException) as late:
        client.infer("slow", [given("x", ONE)], client_timeout=0.2)
    return late.value


def call_later_in_time(client: sync.InferenceServerClient, results: Results) -> Any:
    client.async_infer(
        "slow", [given("x", ONE)], lambda result, error: results.put((result, error)), client_timeout=0.2
    )
    return results.get(timeout=WAIT_S)[1]


def stream_in_time(client: sync.InferenceServerClient, results: Results) -> Any:
    client.start_stream(lambda result, error: results.put((result, error)), stream_timeout=0.2)
    client.async_stream_infer("slow", [given("x", ONE)])
    return results.get(timeout=WAIT_S)[1]


@pytest.mark.rule("12.5")
@pytest.mark.parametrize("use", [call_in_time, call_later_in_time, stream_in_time])
async def test_programs_find_the_words_of_a_deadline_whoever_notices_it(served: Served, use: Use) -> None:
    error = await run_sync(served[0], use)
    assert "Deadline Exceeded" in error.message()
    await until_idle(served[0])


async def test_clients_with_options_of_their_channel_and_objects_used_again(served: Served) -> None:
    keepalive = sync.KeepAliveOptions(2**31 - 1, 20_000, keepalive_permit_without_calls=True)
    arguments = [("grpc.primary_user_agent", "mine"), ("grpc.lb_policy_name", "round_robin")]

    def use(client: sync.InferenceServerClient, results: Results) -> list[Any]:
        tensor, asked = given("x", ONE), sync.InferRequestedOutput("x")
        got = []
        for number in range(3):
            tensor.set_data_from_numpy(ONE * number)
            got.append(client.infer("m", [tensor], outputs=[asked]).as_numpy("x").item())
        return got

    for options in ({"keepalive_options": keepalive}, {"channel_args": arguments}):
        assert await run_sync(served[0], use, **options) == [0, 1, 2]


async def test_a_plugin_of_the_client_adds_its_metadata_until_it_is_taken_away(served: Served) -> None:
    class Tenant(sync.InferenceServerClientPlugin):  # type: ignore[misc]
        def __call__(self, request: Any) -> None:
            request.headers["my-key"] = "my-value"

    client, grpc_client, models = served
    grpc_client.register_plugin(Tenant())
    await grpc_client.infer("m", [given("x", ONE)])
    grpc_client.unregister_plugin()
    grpc_client.register_plugin(BasicAuth("ann", "secret"))
    await grpc_client.infer("m", [given("x", ONE)])
    first, second = models.headers
    assert (first["my-key"], first.get("authorization")) == ("my-value", None)
    assert (second.get("my-key"), second["authorization"]) == (None, "Basic YW5uOnNlY3JldA==")
    await until_idle(client)


@pytest.mark.rule("12.4")
@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
async def test_a_compressed_stream(served: Served, algorithm: str) -> None:
    async def requests() -> AsyncIterator[dict[str, Any]]:
        for number in range(3):
            yield {"model_name": "m", "inputs": [given("x", np.full(1000, number, "i4"))]}

    answers = served[1].stream_infer(requests(), compression_algorithm=algorithm)
    assert [result.as_numpy("x").tolist() async for result, _ in answers] == [[number] * 1000 for number in range(3)]
