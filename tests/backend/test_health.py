"""Health probes of real servers, which go down, come up, hang, and answer what nobody expects."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import pytest

from gateway import __version__
from gateway.backend.endpoints import Endpoint, EndpointState
from gateway.backend.health import HealthProbes
from gateway.backend.upstream import Upstream
from gateway.config import Health, parse
from gateway.errors import ErrorKind, GatewayError
from gateway.plan import BackendPlan, Plan
from gateway.policy import health as policy
from tests.backend.sockets import ask, busy_and_idle, whole
from tests.backend.waiting import lines, until
from tests.conftest import running

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
EMPTY = b"\r\nContent-Length: 0\r\n\r\n"


class Server:
    """Answers every request with `answer`; without one it never does. Counts its connections."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.answer: bytes | None = OK
        self.by_path: dict[str, bytes] = {}
        """What is answered whatever `answer` is."""
        self.is_endless = False
        self.heads: list[str] = []
        self.n_open = 0
        self.most_open = 0
        self._server: asyncio.Server | None = None
        self.port = 0
        with socket.create_server((host, 0)) as sock:
            self.port = sock.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def answers(self, n: int) -> None:
        """Wait until *n* more requests have come."""
        n_before = len(self.heads)
        await until(lambda: len(self.heads) >= n_before + n)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_open += 1
        self.most_open = max(self.most_open, self.n_open)
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            answer = self.by_path.get(self.heads[-1].split()[1], self.answer)
            if answer is not None:
                writer.write(answer)
            while self.is_endless:
                writer.write(bytes(65536))
                await writer.drain()
            if answer is None or b"Content-Length" in answer:
                await reader.read()  # until the other side has closed
        except (OSError, EOFError):
            pass
        finally:
            self.n_open -= 1
            writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    await server.open()
    try:
        yield server
    finally:
        await server.close()


def plan_of(url: str, settings: str) -> BackendPlan:
    config = parse(f"backends: {{main: {{endpoints: ['{url}'], {settings}}}}}")
    return Plan(config, "test").backends["main"]


@asynccontextmanager
async def probing(url: str, settings: str = "", **keys: str) -> AsyncIterator[tuple[Upstream, EndpointState]]:
    """A backend whose endpoint is probed; *keys* are those of `health`."""
    flow = ", ".join(f"{key}: {value}" for key, value in {"path": "/ready", "interval": "10ms", **keys}.items())
    upstream = Upstream(plan_of(url, f"{settings}{', ' if settings else ''}health: {{{flow}}}"))
    await upstream.start()
    try:
        yield upstream, upstream.endpoints.states[0]
    finally:
        await upstream.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 503 Service Unavailable" + EMPTY, "503 Service Unavailable"),
        (b"HTTP/1.1 500 " + EMPTY, "500"),
        (b"HTTP/1.1 302 Found\r\nLocation: /ready" + EMPTY, "302 Found"),
        (b"HTTP/1.1 404 Not Found" + EMPTY, "404 Not Found"),  # a probe has succeeded before
        (b"HTTP/1.1 401 Unauthorized" + EMPTY, "401 Unauthorized"),
        (b"HTTP/1.1 600 Odd" + EMPTY, "600 Odd"),
        (b"HTTP/1.1 099 Odd" + EMPTY, "099 Odd"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", "no answer within 0.2 s (health.timeout)"),
        (b"HTTP/1.1 200 OK\r\nContent-", "closed before the answer was complete"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "the answer is not HTTP: "),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the answer is not HTTP: "),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 40, "it sends more than 16 interim answers"),
        (b"", "the connection was closed before the answer was complete"),
        (None, "no answer within 0.2 s (health.timeout)"),
    ],
)
async def test_an_endpoint_that_answers_wrongly_goes_down_and_comes_up_again(
    answer: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    async with serving() as server, probing(server.url, timeout="200ms") as (_, state):
        await server.answers(3)
        assert state.is_up
        server.answer = answer
        await until(lambda: not state.is_up)
        server.answer = OK
        await until(lambda: state.is_up)
    down, up = lines(caplog)
    assert down.startswith(f"backend 'main': {server.url} is down: 3 probes of /ready failed, the last: ")
    assert reason in down
    assert up == f"backend 'main': {server.url} is up again: probes of /ready get 200 OK"


@pytest.mark.parametrize(
    ("dialect", "path", "alive"),
    [
        ("v2", "/v2/health/ready", OK),
        ("auto", "/v2/health/ready", OK),
        ("mlflow", "/ping", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n\n"),
        ("tensorflow", "/v1/models", OK),  # KServe
        # TensorFlow Serving: there is no path for the whole server
        (
            "tensorflow",
            "/v1/models",
            b'HTTP/1.1 400 Bad Request\r\nContent-Length: 26\r\n\r\n{"error": "Missing model"}',
        ),
    ],
)
async def test_without_a_path_the_endpoint_is_asked_what_tells_in_its_dialect_that_it_runs(
    dialect: str, path: str, alive: bytes
) -> None:
    async with serving() as server, probing(server.url, f"dialect: {dialect}", path="null") as (_, state):
        server.answer = alive
        await server.answers(4)
        assert state.is_up
        assert server.heads[-1].startswith(f"GET {path} HTTP/1.1\r\n")
        server.answer = b"HTTP/1.1 400 Bad Request" + EMPTY
        await until(lambda: not state.is_up)
        server.answer = alive
        await until(lambda: state.is_up)


async def test_a_path_of_the_configuration_is_judged_by_its_status_alone() -> None:
    async with serving() as server, probing(server.url, "dialect: tensorflow", path="/v1/models") as (_, state):
        server.answer = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 14\r\n\r\n{"error": "x"}'
        await until(lambda: not state.is_up)


async def test_an_endpoint_that_is_stopped_and_started_again_is_down_in_between(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    async with serving() as server, probing(server.url, unhealthy_after="1", healthy_after="1") as (upstream, state):
        await server.answers(1)
        await server.close()
        await until(lambda: not state.is_up)
        assert not upstream.is_usable
        await server.open()
        await until(lambda: state.is_up)
        assert upstream.is_usable
    down, up = lines(caplog)
    assert down == f"backend 'main': {server.url} is down: a probe of /ready failed, the last: Connection refused"
    assert "is up again" in up


async def test_a_name_that_cannot_be_resolved_is_down_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def look_up(host: str) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("gateway.backend.resolving.look_up", look_up)
    async with probing("http://models.example:8000") as (_, state):
        await until(lambda: not state.is_up)
    assert (
        "backend 'main': http://models.example:8000 is down: 3 probes of /ready failed, the last: "
        "the host name 'models.example' cannot be resolved: Name or service not known"
    ) in lines(caplog)


async def test_probes_follow_the_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = ["127.0.0.2", "127.0.0.3"]

    async def look_up(host: str) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (each, 0)) for each in addresses]

    monkeypatch.setattr("gateway.backend.resolving.look_up", look_up)
    second, third = Server("127.0.0.2"), Server("127.0.0.3")
    await second.open()
    third.port = second.port
    await third.open()
    third.answer = b"HTTP/1.1 503 Busy" + EMPTY
    try:
        async with probing(f"http://models.example:{second.port}", "dns_refresh: 5ms") as (upstream, _):
            up, down = upstream.endpoints.states
            await until(lambda: not down.is_up)
            assert up.is_up
            assert f"\r\nHost: models.example:{second.port}\r\n" in third.heads[0]
            addresses[:] = ["127.0.0.3", "127.0.0.4"]
            await until(lambda: up not in upstream.endpoints.states)
            kept, new = upstream.endpoints.states
            assert kept is down
            await until(lambda: not new.is_up)  # nobody listens there; a probe that was under way has ended
            assert not kept.is_up
            n_probes = len(second.heads)
            third.answer = OK
            await until(lambda: kept.is_up)
            assert len(second.heads) == n_probes
    finally:
        await second.close()
        await third.close()


async def test_new_endpoints_are_probed_first_and_those_that_left_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def probe(_: HealthProbes, state: EndpointState, __: Health) -> Awaitable[None]:
        asked.append(state.endpoint.port)
        return asyncio.sleep(0)

    monkeypatch.setattr(HealthProbes, "_probe", probe)
    async with probing("http://127.0.0.1:1", interval="40ms") as (upstream, _):

        def replace(*ports: int) -> None:
            upstream.endpoints.replace([Endpoint.parse(f"http://127.0.0.1:{port}", None) for port in ports])

        replace(1, 2, 3, 4)
        await until(lambda: len(asked) >= 6)
        n_before = len(asked)
        replace(1, 2, 5, 6)
        await until(lambda: asked.count(6) >= 2)
    after = asked[n_before:]
    assert after[:2] == [5, 6]
    assert sorted(after[2:4]) == [1, 2]
    assert not {3, 4} & set(after)


async def test_requests_go_where_probes_find_the_endpoint_up_and_anywhere_if_none_is() -> None:
    async with serving() as one, serving() as other:
        urls = f"{one.url}', '{other.url}"
        settings = "balance: round_robin, timeouts: {first_byte: 5s}, retry: {attempts: 1}"
        async with probing(urls, settings, interval="20ms") as (upstream, state):

            async def asked() -> dict[str, int]:
                """How many of ten requests each of the servers got."""
                n_before = [sum(" /x " in head for head in server.heads) for server in (one, other)]
                for _ in range(10):
                    await ask(upstream, "GET", whole(b""))
                n_after = [sum(" /x " in head for head in server.heads) for server in (one, other)]
                return {"one": n_after[0] - n_before[0], "other": n_after[1] - n_before[1]}

            one.by_path["/x"] = other.by_path["/x"] = OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
            assert await asked() == {"one": 5, "other": 5}
            one.answer = b"HTTP/1.1 503 Busy" + EMPTY
            await until(lambda: not state.is_up)
            assert await asked() == {"one": 0, "other": 10}
            other.answer = b"HTTP/1.1 503 Busy" + EMPTY
            await until(lambda: not upstream.is_usable)
            assert await asked() == {"one": 5, "other": 5}
            one.answer = OK
            await until(lambda: state.is_up)
            assert await asked() == {"one": 10, "other": 0}


TORCHSERVES_400 = b'{"type": "InvalidKeyException", "message": "Token Authorization failed"}'


@pytest.mark.parametrize(
    ("status", "body", "lacking"),
    [
        ("404 Not Found", b"", "that path"),
        ("401 Unauthorized", b"", "credentials that it accepts (headers.set), or a path that needs none,"),
        ("403 Forbidden", b"", "credentials that it accepts (headers.set), or a path that needs none,"),
        ("400 Bad Request", TORCHSERVES_400, "credentials that it accepts (headers.set), or a path that needs none,"),
    ],
)
async def test_a_server_that_probes_cannot_judge_is_said_once_and_not_taken_out(
    status: str, body: bytes, lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    async with serving() as server:
        server.answer = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        async with probing(server.url) as (upstream, state):
            await server.answers(8)
            assert state.is_up
            assert upstream.is_usable
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert lines(caplog) == [
        f"backend 'main': {server.url} answers {status} to probes of /ready (health.path): without {lacking} the "
        "probes say nothing about its health, and it counts as up"
    ]


@pytest.mark.parametrize("status", ["200 OK", "204 No Content", "299 Fine"])
async def test_every_status_of_success_brings_an_endpoint_back(status: str) -> None:
    async with serving() as server:
        server.answer = b"HTTP/1.1 503 Busy" + EMPTY
        async with probing(server.url, timeout="5s") as (_, state):
            await until(lambda: not state.is_up)
            ending = "\r\n\r\n" if status.startswith("204") else EMPTY.decode()
            server.answer = f"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 {status}{ending}".encode()
            await until(lambda: state.is_up)


async def test_a_probe_is_recognizable_and_carries_what_the_backend_needs() -> None:
    settings = "headers: {set: {Authorization: Bearer secret}}"
    async with serving() as server, probing(f"{server.url}/team/a", settings, path="'/ready?deep=1'"):
        await server.answers(1)
    request, *fields = server.heads[0].removesuffix("\r\n\r\n").split("\r\n")
    assert request == "GET /team/a/ready?deep=1 HTTP/1.1"
    assert sorted(fields) == [
        "Accept-Encoding: identity",
        "Authorization: Bearer secret",
        "Connection: close",
        f"Host: 127.0.0.1:{server.port}",
        f"User-Agent: tensor-gateway/{__version__} (health probe)",
    ]


@pytest.mark.parametrize(
    ("settings", "agents"),
    [("set: {user-agent: mine}", ["user-agent: mine"]), ("remove: [User-Agent]", [])],
)
async def test_the_configuration_decides_who_asks(settings: str, agents: list[str]) -> None:
    async with serving() as server, probing(server.url, f"headers: {{{settings}}}"):
        await server.answers(1)
    fields = server.heads[0].split("\r\n")
    assert [each for each in fields if each.lower().startswith("user-agent:")] == agents


async def test_probes_of_a_hanging_endpoint_never_pile_up() -> None:
    async with serving() as server:
        server.answer = None
        async with probing(server.url, interval="1ms", timeout="20ms") as (_, state):
            await server.answers(10)
            assert not state.is_up
            assert server.most_open <= 2  # the one that has just been closed may not be known to be
        await until(lambda: server.n_open == 0)


async def test_a_body_without_end_is_not_read_to_its_end() -> None:
    async with serving() as server:
        server.answer = b"HTTP/1.1 200 OK\r\n\r\n"
        server.is_endless = True
        async with probing(server.url, timeout="10s", unhealthy_after="1") as (_, state):
            await server.answers(3)
            assert state.is_up


async def test_probes_take_no_place_and_are_no_requests() -> None:
    settings = "max_connections: 1"
    async with serving() as server, probing(server.url, settings) as (upstream, state):
        connections = upstream.connections
        await connections.wait_for_slot()
        wire = await connections.take_new(state, "GET", b"")
        await server.answers(5)
        assert state.is_up
        assert state.in_flight == 0
        assert busy_and_idle(state) == (1, 0)
        assert not wire.transport.is_closing()  # type: ignore[union-attr]
        connections.drop(wire)


async def test_a_machine_at_its_limits_says_nothing_about_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server, probing(server.url, unhealthy_after="1") as (upstream, state):
        tried = 0

        async def connect(endpoint: object) -> None:
            nonlocal tried
            tried += 1
            raise GatewayError(ErrorKind.OVERLOADED, "Too many open files")

        monkeypatch.setattr(upstream.connections, "connect", connect)
        await until(lambda: tried >= 3)
        assert state.is_up
    assert f"backend 'main': {server.url} could not be probed: Too many open files" in lines(caplog)


async def test_a_defect_inside_the_gateway_does_not_end_the_probes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as server, probing(server.url) as (upstream, state):
        await server.answers(1)
        with monkeypatch.context() as patched:
            patched.setattr(upstream.connections, "connect", None)
            await until(lambda: any("failed inside the gateway" in line for line in lines(caplog)))
        await server.answers(1)
        assert state.is_up


async def test_nothing_is_probed_unless_the_configuration_says_so() -> None:
    async with serving() as server:
        upstream = Upstream(plan_of(server.url, ""))
        before = asyncio.all_tasks()
        await upstream.start()
        assert asyncio.all_tasks() == before
        await upstream.close()
    assert server.heads == []


@pytest.mark.parametrize("answer", [OK, None])
async def test_probes_end_with_the_plan(answer: bytes | None) -> None:
    before = asyncio.all_tasks()
    async with serving() as server:
        server.answer = answer
        async with probing(server.url) as (upstream, state):
            await server.answers(1)
            upstream.retire()
            await until(lambda: server.n_open == 0)
            n_probes = len(server.heads)
            await until(lambda: asyncio.all_tasks() <= before)
            assert len(server.heads) == n_probes
            assert state.is_up


async def test_probes_that_run_end_with_close() -> None:
    before = asyncio.all_tasks()
    async with serving() as server:
        server.answer = None
        async with probing(server.url) as (upstream, _):
            await server.answers(1)
            await upstream.close()
            assert not upstream.connections._open
        await until(lambda: asyncio.all_tasks() <= before)


async def test_a_reload_keeps_what_is_known_and_takes_new_settings(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway")
    async with serving() as server:
        server.answer = b"HTTP/1.1 503 Busy" + EMPTY
        async with probing(server.url, interval="10ms") as (first, state):
            await until(lambda: not state.is_up)
            second = Upstream(plan_of(server.url, "health: {path: /other, interval: 10ms, healthy_after: 1}"), first)
            await second.start()
            assert second.endpoints.states == (state,)
            assert not state.is_up
            n_before = len(server.heads)
            await server.answers(2)
            assert {head.split()[1] for head in server.heads[n_before + 1 :]} == {"/other"}
            assert not state.is_up
            server.answer = OK
            await until(lambda: state.is_up)
    assert len(lines(caplog)) == 2


async def test_another_path_that_is_not_there_does_not_take_the_endpoint_out() -> None:
    async with serving() as server, probing(server.url) as (first, state):
        await server.answers(2)
        server.answer = b"HTTP/1.1 404 Not Found" + EMPTY
        second = Upstream(plan_of(server.url, "health: {path: /other, interval: 1ms, unhealthy_after: 1}"), first)
        await second.start()
        await server.answers(5)
        assert state.is_up


async def test_without_health_all_endpoints_are_up_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "gateway")
    async with serving() as server:
        server.answer = b"HTTP/1.1 503 Busy" + EMPTY
        async with probing(server.url) as (first, state):
            await until(lambda: not state.is_up)
            second = Upstream(plan_of(server.url, ""), first)
            await second.start()
            assert state.is_up
            third = Upstream(plan_of(server.url, "health: {interval: 10ms, path: /third}"), second)
            await third.start()
            await until(lambda: not state.is_up)
    assert f"backend 'main': {server.url} counts as up, because `health` is not set" in lines(caplog)


async def test_workers_do_not_beat_together(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def next_round_s(interval_s: float, share: float) -> float:
        shares.append(share)
        return policy.next_round_s(interval_s, share)

    monkeypatch.setattr("gateway.backend.health.next_round_s", next_round_s)
    async with serving() as server, probing(server.url, interval="1ms"):
        await until(lambda: len(shares) >= 20)
    assert len(set(shares)) == len(shares)
    assert all(0 <= share <= 1 for share in shares)


async def test_probes_are_in_no_metric_and_in_no_log(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving() as server:
        before = len(server.heads)
        async with running(server.url, backend="health: {path: /ready, interval: 5ms}") as client:
            await server.answers(5)
            metrics = await client.metrics()
    assert len(server.heads) > before
    counted = {name: value for name, value in metrics.items() if "upstream" in name or "requests_total" in name}
    assert counted
    assert {name: value for name, value in counted.items() if value} == {}
    assert "/ready" not in capsys.readouterr().out
