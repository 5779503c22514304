"""What a reload means to requests: each keeps what it began with, and what is gone is let go."""

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gateway.backend.upstream import Upstream
from gateway.config import Config, parse
from gateway.config import Tracing as Settings
from gateway.errors import ConfigError
from gateway.plan import Plan
from gateway.process.application import Application
from gateway.telemetry.tracing import Tracing
from tests.conftest import Client, Connection, answering, lying, running, tensor
from tests.system.scripted import CountingBackend, Seen, counting
from tests.system.test_metadata import is_metadata_call, metadata, raw, shape_of

X = np.arange(4, dtype=np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}
ANSWER = b'{"model_name":"m","outputs":[{"name":"x","datatype":"FP32","shape":[4],"data":[0,1,2,3]}]}'


def configuration(extra: str = "", **urls: str) -> Config:
    """Backends by name; the first gets all requests."""
    backends = "".join(f"  {name}: {{endpoints: ['{url}']}}\n" for name, url in urls.items())
    return parse(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\n{extra}backends:\n{backends}"
        f"routes: [{{name: r, backend: {next(iter(urls))}}}]\n"
    )


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[Client]:
    async with running("http://127.0.0.1:1") as client:
        await client.gateway.replace(config)
        yield client


def tasks_of_the_gateway() -> list[asyncio.Task[object]]:
    """All but those of connections: of the backends in this process, and of the client."""
    of_connections = ("lying.", "RequestHandler.start", "ClientConnection._serve")
    return [task for task in asyncio.all_tasks() if not any(name in str(task.get_coro()) for name in of_connections)]


async def readiness(client: Client) -> tuple[int, str]:
    async with client.session.get(f"{client.admin}/-/ready") as response:
        return response.status, (await response.text()).strip()


@pytest.mark.parametrize("name", ["other", "main"], ids=["a backend that is gone", "a backend that moves"])
async def test_a_request_in_flight_ends_where_and_as_it_began(name: str) -> None:
    proceed = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.read_request()
        await proceed.wait()
        await connection.answer(ANSWER)
        await connection.reader.read()

    async with lying(slow) as a, lying(answering(b"b")) as b, serving(configuration(main=a.url)) as client:
        inferring = asyncio.create_task(client.infer_binary(HEADER, X.tobytes()))
        async with asyncio.timeout(10):
            while not a.connections:
                await asyncio.sleep(0.01)
            # by this limit its answer would be refused
            config = configuration("limits: {response_body: 1B, concurrent_requests: 1}\n", **{name: b.url})
            assert await client.gateway.replace(config) == []
            relayed = await client.request("GET", "/x")
            assert relayed.body == b"b"
            refused = await client.request("POST", "/x", data=b"x")
            assert refused.status == 503  # the new limit counts what began before
            proceed.set()
            reply = await inferring
            assert (reply.status, reply.binary) == (200, X.tobytes())
            await a.connections[0].ended.wait()
        assert (await client.request("POST", "/x", data=b"x")).status == 200
        assert "refuse" not in (await readiness(client))[1]


async def test_a_backend_that_stays_keeps_its_connections() -> None:
    async with lying(answering(b"a")) as a, lying(answering(b"b")) as b:
        async with serving(configuration(main=a.url)) as client:
            for extra in ("", "limits: {tensors: 7}\n", "limits: {concurrent_requests: 9}\n"):
                await client.gateway.replace(configuration(extra, main=a.url, more=b.url))
                assert (await client.request("GET", "/x")).body == b"a"
            assert len(a.connections) == 1


async def test_metadata_of_a_backend_that_has_changed_is_asked_for_again() -> None:
    def of_shape(shape: list[int]) -> AbstractAsyncContextManager[CountingBackend]:
        async def script(seen: Seen) -> bool:
            await seen.answer(metadata(shape) if is_metadata_call(seen) else seen.echo())
            return True

        return counting(script)

    async with of_shape([-1, 4]) as a, of_shape([-1, 2]) as b, serving(configuration(main=a.url)) as client:
        assert shape_of(await raw(client)) == [2, 4]
        await client.gateway.replace(configuration("limits: {tensors: 7}\n", main=a.url))
        assert shape_of(await raw(client)) == [2, 4]
        assert sum(is_metadata_call(seen) for seen in a.seen) == 1
        await client.gateway.replace(configuration(main=b.url))
        assert shape_of(await raw(client)) == [4, 2]


def test_a_backend_has_another_fingerprint_where_anything_of_it_differs() -> None:
    def fingerprint(backend: str) -> str:
        return Plan(parse(f"backends: {{a: {{{backend}}}}}"), "g").backends["a"].fingerprint

    first = fingerprint("endpoints: ['http://x:1']")
    assert fingerprint("endpoints: ['http://x:1'], keep_alive: 4s") == first  # the default
    assert fingerprint("endpoints: ['http://x:2']") != first
    assert fingerprint("endpoints: ['http://x:1'], headers: {set: {a: b}}") != first


async def test_what_cannot_be_prepared_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with lying(answering(b"a")) as a, lying(answering(b"b")) as b:
        async with serving(configuration(main=a.url)) as client:
            serving_before = client.gateway.gateway.serving
            made = Upstream.__init__

            def fail(upstream: Upstream, plan: object, before: Upstream | None = None) -> None:
                if before is not None:
                    raise OSError("no certificate")
                made(upstream, plan, before)  # type: ignore[arg-type]

            monkeypatch.setattr(Upstream, "__init__", fail)
            with pytest.raises(OSError, match="no certificate"):
                await client.gateway.replace(configuration("limits: {tensors: 7}\n", new=b.url, main=b.url))
            assert client.gateway.gateway.serving is serving_before
            assert client.gateway.data_plane.config.limits.tensors == 1024
            assert (await client.request("GET", "/x")).body == b"a"


async def test_requests_are_served_while_tracing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing OpenTelemetry alone takes a third of a second."""
    begun, goes_on = threading.Event(), threading.Event()

    class Slow(Tracing):
        def __init__(self, settings: Settings) -> None:
            begun.set()
            assert goes_on.wait(10), "no request was served meanwhile"
            super().__init__(settings)

    monkeypatch.setattr("gateway.app.Tracing", Slow)
    async with lying(answering(b"a")) as a, serving(configuration(main=a.url)) as client:
        traced = configuration("tracing: {endpoint: 'http://127.0.0.1:9'}\n", main=a.url)
        replacing = asyncio.create_task(client.gateway.replace(traced))
        assert await asyncio.to_thread(begun.wait, 10)
        assert (await client.request("GET", "/x")).body == b"a"
        goes_on.set()
        await replacing


async def test_what_a_file_holds_is_not_shown_where_its_path_was_meant(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("abracadabra")
    async with lying(answering(b"a")) as a, serving(configuration(main=a.url)) as client:
        for extra in (
            f"access: {{tokens_file: '${{file:{secret}}}'}}\n",
            f"backends: {{main: {{endpoints: ['https://x'], tls: {{ca: '${{file:{secret}}}'}}}}}}\n",
        ):
            config = parse(extra) if "backends" in extra else configuration(extra, main=a.url)
            with pytest.raises(ConfigError, match=r"\*\*\*") as caught:
                await client.gateway.replace(config)
            assert "abracadabra" not in str(caught.value)


async def test_fifty_reloads_leave_no_object_and_no_task_behind() -> None:
    async with lying(answering(b"a")) as a, lying(answering(b"b")) as b:
        async with serving(configuration(main=a.url)) as client:
            seen: weakref.WeakSet[Upstream] = weakref.WeakSet()
            n_tasks = len(tasks_of_the_gateway())
            for index in range(50):
                url = (a.url, b.url)[index % 2]
                names = {"main": url, f"b{index}": b.url}
                await client.gateway.replace(configuration(**names))
                seen.update(client.gateway.gateway.serving.upstreams.values())
                assert (await client.request("GET", "/x")).status == 200
            await client.gateway.replace(configuration(main=a.url))
            assert (await client.request("GET", "/x")).body == b"a"
            async with asyncio.timeout(20):
                while seen:  # idle connections of the last ones may have a moment
                    gc.collect()
                    await asyncio.sleep(0.05)
                while len(tasks_of_the_gateway()) > n_tasks:
                    await asyncio.sleep(0.05)


async def test_ready_needs_an_endpoint_that_is_not_known_to_be_down() -> None:
    async with lying(answering(b"a")) as a, serving(configuration(main=a.url, more="http://127.0.0.1:1")) as client:
        assert await readiness(client) == (200, "ready")
        states = [
            state for each in client.gateway.gateway.serving.upstreams.values() for state in each.endpoints.states
        ]
        states[0].is_up = False
        assert await readiness(client) == (200, "ready")
        states[1].is_up = False
        assert await readiness(client) == (503, "no backend can be used: all endpoints of main, more are down")
        metrics = await client.metrics()
        assert metrics[f'tensor_gateway_endpoint_up{{backend="main",endpoint="{a.url}"}}'] == 0
        assert metrics['tensor_gateway_endpoint_up{backend="more",endpoint="http://127.0.0.1:1"}'] == 0
        await client.gateway.replace(configuration(main=a.url))
        assert not [name for name in await client.metrics() if 'backend="more"' in name and "endpoint_" in name]


async def test_the_configuration_that_is_shown_is_that_of_now_and_masked() -> None:
    async with lying(answering(b"a")) as a, serving(configuration(main=a.url)) as client:
        config = configuration(main=a.url)
        secret = parse(f"backends: {{main: {{endpoints: ['{a.url}'], headers: {{set: {{Authorization: hush}}}}}}}}")
        await client.gateway.replace(msgspec.structs.replace(config, backends=secret.backends))
        async with client.session.get(f"{client.admin}/-/config") as response:
            text = await response.text()
        assert json.loads(text)["backends"]["main"]["headers"]["set"] == {"Authorization": "***"}
        assert "hush" not in text


async def test_an_application_says_that_what_it_cannot_change_waits() -> None:
    application = await Application.start(configuration(main="http://127.0.0.1:1"))
    try:
        moved = configuration("workers: 2\n", main="http://127.0.0.1:1")
        assert await application.replace(moved) == ["workers"]
        assert application.data_plane.config.workers == 1
    finally:
        await application.stop()
