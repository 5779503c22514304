"""Readiness, the admin listener's manners, and how many connections fit into the descriptors."""

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Iterator

import aiohttp
import pytest

from gateway.config import Config, parse
from gateway.demo import JsonServer
from gateway.process import descriptors
from gateway.process.application import Application
from gateway.process.descriptors import connections_that_fit, descriptors_needed, fit
from gateway.process.supervisor import Supervisor, _WorkerProcess
from tests.conftest import Client, answering, lying, running

LISTEN = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {access: none}\n"


async def readiness(admin_url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{admin_url}/-/ready") as response:
        return response.status, (await response.text()).strip()


async def test_one_process_is_not_ready_before_it_listens(server: JsonServer) -> None:
    application = Application(parse(f"{LISTEN}backends: {{a: {{endpoints: ['{server.url}']}}}}"))
    try:
        admin_url = await application._admin.start()
        assert await readiness(admin_url) == (503, "starting")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{admin_url}/metrics") as response:
                assert "\ntensor_gateway_requests_in_flight 0.0\n" in await response.text()
            async with session.get(f"{admin_url}/-/status") as response:
                assert (await response.json())["headline"] == "Not ready: starting"
    finally:
        await application.stop()


@pytest.mark.slow
async def test_workers_are_ready_when_each_of_them_accepts(server: JsonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, str]] = []
    one_at_a_time = asyncio.Lock()
    admin_urls: list[str] = []
    serve, spawn = Supervisor._serve, Supervisor._spawn

    async def serve_and_tell(supervisor: Supervisor) -> list[str]:
        admin_urls.append(supervisor.admin_url)
        return await serve(supervisor)

    async def spawn_slowly(supervisor: Supervisor) -> _WorkerProcess:
        async with one_at_a_time:
            seen.append(await readiness(admin_urls[0]))
            return await spawn(supervisor)

    monkeypatch.setattr(Supervisor, "_serve", serve_and_tell)
    monkeypatch.setattr(Supervisor, "_spawn", spawn_slowly)
    config = parse(f"workers: 2\n{LISTEN}backends: {{a: {{endpoints: ['{server.url}']}}}}")
    supervisor = await Supervisor.start(config)
    try:
        assert seen == [(503, "0 of 2 workers accept"), (503, "1 of 2 workers accept")]
        assert await readiness(supervisor.admin_url) == (200, "ready")
        os.kill(next(iter(supervisor._workers)), signal.SIGKILL)
        while (now := await readiness(supervisor.admin_url))[0] == 200:
            pass
        assert now == (503, "1 of 2 workers accept")
        while (await readiness(supervisor.admin_url))[0] == 503:
            await asyncio.sleep(0.05)
        assert len(supervisor._workers) == 2
    finally:
        await supervisor.stop()


@pytest.mark.parametrize("path", ["/metrics", "/-/live", "/-/ready", "/-/config", "/nothing", "/\udcff", "/%ff"])
@pytest.mark.parametrize(
    "header",
    [
        b"Accept: application/openmetrics-text; version=\xff",
        b"Accept: application/openmetrics-text; version=\xc3\xa9.9; escaping=\xff",
        b"Accept: application/openmetrics-text; version=99999999999999999999.1",
        b"Accept: text/plain; version=1.x; escaping=;;,,;=",
        b"Accept: \xff\xfe",
        b"Expect: \xff",
        b"Expect: something",
        b"Range: bytes=\xff",
        b"If-Modified-Since: \xff",
        b"Accept-Encoding: \xff, gzip",
        b"Content-Type: \xff; charset=\xff",
        b"Cookie: \xff=\xff",
        b"X-\xff: 1",
        b"Host: \xff",
    ],
)
async def test_odd_bytes_in_headers_are_no_internal_error(client: Client, path: str, header: bytes) -> None:
    host, _, port = client.admin.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    target = path.encode(errors="surrogateescape")
    writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n" + header + b"\r\nConnection: close\r\n\r\n")
    status = int((await reader.read()).split(b" ", 2)[1])
    writer.close()
    assert status in ((200, 400) if path.startswith(("/-/", "/metrics")) else (400, 404))


async def test_other_methods_and_paths_are_refused(client: Client) -> None:
    async with client.session.post(f"{client.admin}/metrics", data=b"x" * 1_000_000) as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
    async with client.session.head(f"{client.admin}/-/ready") as response:
        assert (response.status, await response.read()) == (200, b"")
    async with client.session.get(f"{client.admin}/-/nothing") as response:
        assert response.status == 404


def configuration(**limits: int) -> Config:
    text = "".join(f"  {key}: {value}\n" for key, value in limits.items())
    return parse(f"limits:\n{text}" + "backends: {a: {endpoints: ['http://x:1'], max_connections: 100}}\n")


@pytest.mark.parametrize(
    ("available", "connections", "fitting"),
    [
        (10_000, 4096, 4096),
        (4096 + 100 + 96, 4096, 4096),
        (4096 + 100 + 95, 4096, 4095),
        (1024, 4096, 1024 - 100 - 96),
        (296, 4096, 100),  # as many to the backend as of clients
        (196, 4096, 50),
        (100, 4096, 16),
        (100, 5, 5),
    ],
)
def test_client_connections_get_what_backends_and_the_admin_listener_leave(
    available: int, connections: int, fitting: int
) -> None:
    config = configuration(connections=connections)
    assert connections_that_fit(config, available) == fitting
    assert descriptors_needed(config, fitting) <= available or fitting <= 16


def test_each_endpoint_that_is_probed_may_need_a_descriptor() -> None:
    backends = "backends: {{a: {{endpoints: [{}], max_connections: 100{}}}}}\n"
    urls = ", ".join(f"'http://x:{port}'" for port in range(1, 11))
    probed, other = parse(backends.format(urls, ", health: {}")), parse(backends.format(urls, ""))
    assert descriptors_needed(probed, 50) == descriptors_needed(other, 50) + 10
    assert connections_that_fit(probed, 296) == connections_that_fit(other, 286)


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process whose soft limit is 256 and whose hard limit is 300."""
    limit = [256, 300]

    def set_limit(_: int, both: tuple[int, int]) -> None:
        limit[:] = both

    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    yield
    assert limit == [300, 300]


@pytest.mark.usefixtures("few_descriptors")
def test_connections_are_lowered_aloud_to_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    fitted = fit(configuration(connections=4096))
    assert fitted.limits.connections == 104
    assert fit(configuration(connections=4096, tensors=7), fitted).limits.connections == 104  # a reload: not said again
    (message,) = caplog.messages
    assert message.startswith("limits.connections: 4096 client connections of each process do not fit into 300 ")
    assert "lowered: limits.connections to 104. Raise the hard limit to 4292 (ulimit -Hn" in message


@pytest.mark.usefixtures("few_descriptors")
def test_each_worker_has_descriptors_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    config = parse(
        "workers: 2\nlimits: {connections: 200, concurrent_requests: 100}\nbackends: {a: {endpoints: ['http://x:1']}}\n"
    )
    assert fit(config) == config
    assert caplog.messages == []
    config = parse("workers: 2\nbackends: {a: {endpoints: ['http://x:1']}}\n")
    fitted = fit(config)
    assert (fitted.limits.connections, fitted.share().limits.connections) == (204, 102)
    (message,) = caplog.messages
    assert "2048 client connections of each process do not fit into 300 file descriptors, " in message


@pytest.mark.parametrize(
    ("available", "limits", "backends", "connections", "to_each"),
    [
        (10_000, "", 1, 4096, [None]),
        (4096 + 528 + 96, "", 1, 4096, [None]),
        (1024, "", 1, 464, [464]),
        (1024, "", 2, 309, [309, 309]),
        (256, "", 1, 80, [80]),
        (1024, "connections: 300", 1, 300, [None]),
        (1024, "connections: 10", 2, 10, [459, 459]),  # ten clients of gRPC may ask for everything
        (1024, "connections: 10, concurrent_requests: 400", 2, 10, [None, None]),
        (100, "", 1, 16, [1]),
    ],
)
def test_where_grpc_is_on_a_few_clients_may_need_all_connections_to_the_backends(
    available: int,
    limits: str,
    backends: int,
    connections: int,
    to_each: list[int | None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(descriptors, "_raise_soft_limit", lambda: available)
    several = "".join(f"  b{number}: {{endpoints: ['http://x:1']}}\n" for number in range(backends))
    routes = "routes: [{name: r, split: {b0: 1, b1: 1}}]\n" if backends > 1 else ""
    config = parse(f"grpc: 127.0.0.1:8001\nlimits: {{{limits}}}\nbackends:\n{several}{routes}")
    fitted = fit(config)
    assert fitted.limits.connections == connections
    assert [each.max_connections for each in fitted.backends.values()] == to_each
    assert descriptors_needed(fitted, connections) <= max(available, 16 + 1 + 96)
    assert fit(config, fitted) == fitted  # a reload
    if to_each[0] is None and connections == config.limits.connections:
        assert caplog.messages == []
        return
    (message,) = caplog.messages
    lowered = f"limits.connections to {connections} and " if connections < config.limits.connections else ""
    words = (
        f"; lowered: {lowered}max_connections of each backend to {to_each[0]}, since a client of gRPC may need many. "
    )
    assert words in message


def test_a_reload_that_lowers_connections_to_backends_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "_raise_soft_limit", lambda: 1024)
    few, many = (
        parse(
            "grpc: 127.0.0.1:8001\nlimits: {connections: 50}\n"
            f"backends: {{a: {{endpoints: ['http://x:1'], max_connections: {most}}}}}\n"
        )
        for most in (100, 2000)
    )
    assert fit(few) == few
    assert caplog.messages == []
    assert fit(many, few).backends["a"].max_connections == 878
    (message,) = caplog.messages
    assert "; lowered: max_connections of each backend to 878, " in message


@pytest.mark.usefixtures("few_descriptors")
def test_each_worker_has_its_share_of_the_connections_to_backends_that_fit_with_grpc() -> None:
    backends = "backends: {a: {endpoints: ['http://x:1'], max_connections: 30}, b: {endpoints: ['http://x:1']}}\n"
    config = parse(f"grpc: 127.0.0.1:8001\nworkers: 2\n{backends}routes: [{{name: r, split: {{a: 1, b: 1}}}}]\n")
    share = fit(config).share()
    assert (share.limits.connections, share.max_connections("a"), share.max_connections("b")) == (68, 15, 68)


def test_the_soft_limit_is_raised_in_a_real_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        fit(configuration(connections=1))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_one_process_uses_and_shows_the_lowered_number(
    server: JsonServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(descriptors, "_raise_soft_limit", lambda: 300)
    application = await Application.start(parse(f"{LISTEN}backends: {{a: {{endpoints: ['{server.url}']}}}}"))
    try:
        assert application.data_plane.config.limits.connections == 102
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{application.admin_url}/-/config") as response,
        ):
            assert (await response.json())["limits"]["connections"] == 102
    finally:
        await application.stop()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("sent", [b"", b"GET /x HT", b"GET /x HTTP/1.1\r\nHost: x\r\n"])
async def test_a_request_on_a_connection_that_was_accepted_in_time_is_still_served(sent: bytes) -> None:
    async with lying(answering(b"served")) as liar, running(liar.url, "shutdown: {grace: 20s}\n") as client:
        host, _, port = client.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        idle = await client.request("GET", "/x")  # its connection is kept, and is not waited for
        writer.write(sent)
        await asyncio.sleep(0)
        draining = asyncio.create_task(client.gateway.drain())
        while not client.gateway.gateway.is_draining:
            await asyncio.sleep(0)
        assert await readiness(client.admin) == (503, "draining")
        await asyncio.sleep(0.4)  # longer than a request has that is on its way
        assert not draining.done()
        writer.write(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n".removeprefix(sent))
        reply = await reader.read()
        assert reply.startswith(b"HTTP/1.1 200 ")
        assert reply.endswith(b"served")
        assert idle.body == b"served"
        writer.close()
        await asyncio.wait_for(draining, 10)


async def test_a_silent_connection_does_not_hold_up_the_end(server: JsonServer) -> None:
    async with running(server.url, "shutdown: {grace: 60s}\n") as client:
        host, _, port = client.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        await asyncio.wait_for(client.gateway.drain(), 20)
        writer.close()
