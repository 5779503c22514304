"""A real nginx and a real HAProxy in front of the gateway, and between it and its backends."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.certificates import Authority, Pair
from tests.failures.endpoint import HEALTH_PATH, Fault, FragileEndpoint, fragile_endpoints
from tests.failures.load import Load, failures, sessions, steady_load
from tests.system.gateway_process import GatewayProcess, gateway_process
from tests.system.programs import free_ports, haproxy, nginx
from tests.system.scripted import total
from tests.test_docs import OPERATIONS, blocks_of

LARGE_ELEMENTS = 8 * 2**20
"""Of INT64: 64 MiB."""

KEEP_ALIVE = 'proxy_http_version 1.1; proxy_set_header Connection "";'

GATEWAY = """
listen: 127.0.0.1:{port}
admin: 127.0.0.1:{admin}
logging: {{access: none}}
shutdown: {{delay: 1s, grace: 20s}}
{extra}
backends: {{main: {{endpoints: [{endpoints}]}}}}
"""


def configuration(*endpoints: str, port: int = 0, admin: int = 0, extra: str = "") -> str:
    urls = ", ".join(f"'{url}'" for url in endpoints)
    return GATEWAY.format(port=port, admin=admin, extra=extra, endpoints=urls)


def nginx_server(port: int, gateway: str, extra: str = KEEP_ALIVE, tls: str = "") -> str:
    """An nginx that passes everything on to one *gateway*, and never asks twice."""
    scheme, _, address = gateway.partition("://")
    return (
        f"upstream gateway {{ server {address}; keepalive 16; }}\n"
        f"server {{ listen 127.0.0.1:{port} {'ssl' if tls else ''}; {tls}\n"
        f"location / {{ proxy_pass {scheme}://gateway; proxy_next_upstream off; {extra} }} }}"
    )


def haproxy_sections(port: int, *servers: str, tls: str = "", options: str = "") -> str:
    """An HAProxy in front of *servers*, each as it stands after the word `server`."""
    lines = "".join(f"    server s{number} {server}\n" for number, server in enumerate(servers))
    return f"listen front\n    bind 127.0.0.1:{port} {tls}\n    {options}\n{lines}"


@asynccontextmanager
async def nginx_before(folder: Path, gateway: GatewayProcess) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    async with nginx(folder, port, nginx_server(port, gateway.url)):
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def documented_nginx_before(folder: Path, gateway: GatewayProcess) -> AsyncIterator[str]:
    """As docs/operations.md shows it."""
    (block,) = (block.text for block in blocks_of(OPERATIONS) if block.language == "nginx")
    (port,) = free_ports(1)
    text = block.replace("listen 80;", f"listen 127.0.0.1:{port};")
    async with nginx(folder, port, text.replace("127.0.0.1:8080", gateway.url.removeprefix("http://"))):
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def haproxy_before(folder: Path, gateway: GatewayProcess) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    async with haproxy(folder, port, haproxy_sections(port, gateway.url.removeprefix("http://"))):
        yield f"http://127.0.0.1:{port}"


Front = Callable[[Path, GatewayProcess], AbstractAsyncContextManager[str]]
FRONTS: list[Front] = [nginx_before, documented_nginx_before, haproxy_before]


@asynccontextmanager
async def two_endpoints() -> AsyncIterator[tuple[FragileEndpoint, FragileEndpoint, Counter[str]]]:
    executed: Counter[str] = Counter()
    async with fragile_endpoints(2, executed) as (first, second):
        yield first, second, executed


def assert_all_went_well(load: Load, executed: Counter[str], at_least: int = 1) -> None:
    failed = [outcome for outcome in load.outcomes if outcome.what != "ok"]
    assert len(load.outcomes) >= at_least
    assert failed == [], f"{len(failed)} of {len(load.outcomes)}: {failures(failed)}"
    assert {number: count for number, count in executed.items() if count > 1} == {}


@pytest.mark.slow
@pytest.mark.parametrize("front", FRONTS)
async def test_a_proxy_keeps_its_connections_to_the_gateway(front: Front, tmp_path: Path) -> None:
    async with two_endpoints() as (first, second, executed), aiohttp.ClientSession() as session:
        async with gateway_process(configuration(first.url, second.url), tmp_path / "gateway.yaml") as gateway:
            async with front(tmp_path, gateway) as url:
                async with steady_load(url, 60.0) as load:
                    await asyncio.sleep(3)
                held = await gateway.held(session)
            assert_all_went_well(load, executed, 100)
            # all clients have left; what is open is what the proxy keeps for the next
            assert 1 <= held["client_connections"] <= len(load.outcomes) / 4
            assert held["requests_in_flight"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("front", FRONTS)
async def test_64_mib_cross_a_proxy_both_ways_exactly(front: Front, tmp_path: Path) -> None:
    async with two_endpoints() as (first, second, executed):
        async with gateway_process(configuration(first.url, second.url), tmp_path / "gateway.yaml") as gateway:
            async with front(tmp_path, gateway) as url, sessions() as (session, _):
                load = Load(url)
                load.begin(session, LARGE_ELEMENTS)
                load.begin(session)
                await load.finish()
                assert_all_went_well(load, executed, 2)


@dataclass(frozen=True)
class Identities:
    """Certificates of one authority: of the gateway, of the proxy towards clients, and of the proxy as a client."""

    authority: Authority
    gateway: Pair
    proxy: Pair
    client: Pair


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    authority = Authority(tmp_path)
    return Identities(authority, authority.issue(), authority.issue(), authority.issue("proxy.test"))


def gateway_tls(identities: Identities) -> str:
    pair = identities.gateway
    return f"tls: {{certificate: {pair.certificate}, key: {pair.key}, client_ca: {identities.authority.path}}}"


def in_one_file(pair: Pair) -> Path:
    """A certificate and its key as HAProxy wants them."""
    path = pair.certificate.with_suffix(".both")
    path.write_bytes(pair.certificate.read_bytes() + pair.key.read_bytes())
    return path


@asynccontextmanager
async def nginx_with_tls(
    folder: Path, gateway: GatewayProcess, files: Identities, shown: Pair | None
) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    own = f"ssl_certificate {files.proxy.certificate}; ssl_certificate_key {files.proxy.key};"
    verified = f"proxy_ssl_trusted_certificate {files.authority.path}; proxy_ssl_verify on; proxy_ssl_name localhost;"
    if shown is not None:
        verified += f"proxy_ssl_certificate {shown.certificate}; proxy_ssl_certificate_key {shown.key};"
    async with nginx(folder, port, nginx_server(port, gateway.url, f"{KEEP_ALIVE} {verified}", own)):
        yield f"https://127.0.0.1:{port}"


@asynccontextmanager
async def haproxy_with_tls(
    folder: Path, gateway: GatewayProcess, files: Identities, shown: Pair | None
) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    server = f"{gateway.url.removeprefix('https://')} ssl verify required ca-file {files.authority.path} alpn http/1.1"
    if shown is not None:
        server += f" crt {in_one_file(shown)}"
    async with haproxy(folder, port, haproxy_sections(port, server, tls=f"ssl crt {in_one_file(files.proxy)}")):
        yield f"https://127.0.0.1:{port}"


TlsFront = Callable[[Path, GatewayProcess, Identities, Pair | None], AbstractAsyncContextManager[str]]
TLS_FRONTS: list[TlsFront] = [nginx_with_tls, haproxy_with_tls]


@pytest.mark.slow
@pytest.mark.parametrize("front", TLS_FRONTS)
async def test_a_proxy_ends_tls_and_encrypts_again_with_a_certificate_of_its_own(
    front: TlsFront, identities: Identities, tmp_path: Path
) -> None:
    async with two_endpoints() as (first, second, executed):
        settings = configuration(first.url, second.url, extra=gateway_tls(identities))
        async with gateway_process(settings, tmp_path / "gateway.yaml") as gateway:
            assert gateway.url.startswith("https://")
            async with front(tmp_path, gateway, identities, identities.client) as url:
                async with steady_load(url, 40.0, trust=identities.authority.client_context()) as load:
                    await asyncio.sleep(2)
            assert_all_went_well(load, executed, 40)


@pytest.mark.slow
@pytest.mark.parametrize("front", TLS_FRONTS)
async def test_a_proxy_without_a_certificate_gets_nothing(
    front: TlsFront, identities: Identities, tmp_path: Path
) -> None:
    async with two_endpoints() as (first, second, executed):
        settings = configuration(first.url, second.url, extra=gateway_tls(identities))
        async with gateway_process(settings, tmp_path / "gateway.yaml") as gateway:
            async with front(tmp_path, gateway, identities, None) as url, sessions() as (session, _):
                load = Load(url, trust=identities.authority.client_context())
                load.begin(session)
                await load.finish()
    assert [outcome.what for outcome in load.outcomes] in (["502"], ["503"])
    assert not executed


async def until_it_serves(gateway: GatewayProcess, session: aiohttp.ClientSession) -> None:
    """Wait until *gateway* has finished some requests."""
    async with asyncio.timeout(20):
        while total(await gateway.samples(session), "requests_total") < 20:
            await asyncio.sleep(0.05)


@pytest.mark.alone
async def test_haproxy_takes_a_gateway_out_before_it_ends_and_nothing_is_lost(tmp_path: Path) -> None:
    front, *ports = free_ports(5)
    pairs = list(zip(ports[::2], ports[1::2], strict=True))
    servers = [f"127.0.0.1:{port} check port {admin} inter 100ms fall 1 rise 1" for port, admin in pairs]
    sections = haproxy_sections(front, *servers, options="option httpchk GET /-/ready")
    async with two_endpoints() as (first, second, executed), AsyncExitStack() as stack:
        settings = [configuration(first.url, second.url, port=port, admin=admin) for port, admin in pairs]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await stack.enter_async_context(gateway_process(settings[0], tmp_path / "steady.yaml"))
        log = await stack.enter_async_context(haproxy(tmp_path, front, sections))
        async with steady_load(f"http://127.0.0.1:{front}", 60.0) as load:
            for _ in range(2):
                async with gateway_process(settings[1], tmp_path / "restarted.yaml") as restarted:
                    await until_it_serves(restarted, session)
        printed = log.read_text()
    # both times because it said that it was not ready, not because it no longer listened
    taken_out = re.findall(r"^Server front/s1 is DOWN, reason: Layer7 wrong status, code: 503", printed, re.MULTILINE)
    assert len(taken_out) == 2, printed
    assert_all_went_well(load, executed, 100)


@pytest.mark.slow
async def test_gateways_behind_nginx_end_one_after_the_other_and_nothing_is_lost(tmp_path: Path) -> None:
    """The free nginx does not ask whether a gateway is ready: it learns it from a refused connection."""
    front, *ports = free_ports(3)
    servers = " ".join(f"server 127.0.0.1:{port} max_fails=1 fail_timeout=1s;" for port in ports)
    http = f"upstream gateways {{ {servers} keepalive 16; }}\nserver {{ listen 127.0.0.1:{front};\n"
    http += f"location / {{ proxy_pass http://gateways; {KEEP_ALIVE} }} }}"
    async with two_endpoints() as (first, second, executed), AsyncExitStack() as stack:
        settings = [configuration(first.url, second.url, port=port) for port in ports]
        session = await stack.enter_async_context(aiohttp.ClientSession())
        await stack.enter_async_context(gateway_process(settings[0], tmp_path / "steady.yaml"))
        await stack.enter_async_context(nginx(tmp_path, front, http))
        async with steady_load(f"http://127.0.0.1:{front}", 60.0) as load:
            for _ in range(2):
                async with gateway_process(settings[1], tmp_path / "restarted.yaml") as restarted:
                    await until_it_serves(restarted, session)
    assert_all_went_well(load, executed, 100)


async def until_printed(log: Path, words: str) -> None:
    """Wait until *words* stand in *log*."""
    async with asyncio.timeout(20):
        while words not in log.read_text():
            await asyncio.sleep(0.05)


@pytest.mark.alone
async def test_haproxy_takes_a_gateway_out_while_all_its_endpoints_are_down(tmp_path: Path) -> None:
    front, port, admin = free_ports(3)
    server = f"127.0.0.1:{port} check port {admin} inter 100ms fall 1 rise 1"
    health = f"{{path: {HEALTH_PATH}, interval: 100ms, timeout: 500ms, unhealthy_after: 2, healthy_after: 1}}"
    async with two_endpoints() as (first, second, executed), AsyncExitStack() as stack:
        settings = configuration(first.url, second.url, port=port, admin=admin, extra="workers: 2")
        settings = settings.replace("endpoints:", f"health: {health}, endpoints:")
        await stack.enter_async_context(gateway_process(settings, tmp_path / "gateway.yaml"))
        sections = haproxy_sections(front, server, options="option httpchk GET /-/ready")
        log = await stack.enter_async_context(haproxy(tmp_path, front, sections))
        session, _ = await stack.enter_async_context(sessions())
        await first.break_down(Fault.KILLED)
        await second.break_down(Fault.ERRS)
        await until_printed(log, "Server front/s0 is DOWN, reason: Layer7 wrong status, code: 503")
        load = Load(f"http://127.0.0.1:{front}")
        await load.begin(session)
        assert [outcome.what for outcome in load.outcomes] == ["503"]
        assert not executed
        await second.heal()
        await until_printed(log, "Server front/s0 is UP")
        await load.begin(session)
        assert [outcome.what for outcome in load.outcomes] == ["503", "ok"]


@pytest.mark.slow
@pytest.mark.parametrize("front", ["nginx", "haproxy"])
async def test_a_load_balancer_as_the_backend_loses_an_endpoint(front: str, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with two_endpoints() as (first, second, executed), AsyncExitStack() as stack:
        addresses = [endpoint.url.removeprefix("http://") for endpoint in (first, second)]
        if front == "nginx":
            servers = " ".join(f"server {address} max_fails=1 fail_timeout=30s;" for address in addresses)
            http = f"upstream servers {{ {servers} keepalive 8; }}\nserver {{ listen 127.0.0.1:{port};\n"
            http += f"location / {{ proxy_pass http://servers; {KEEP_ALIVE} }} }}"
            await stack.enter_async_context(nginx(tmp_path, port, http))
        else:
            checked = [f"{address} check inter 100ms fall 1 rise 1" for address in addresses]
            options = f"option httpchk GET {HEALTH_PATH}\n    option redispatch 1"
            await stack.enter_async_context(haproxy(tmp_path, port, haproxy_sections(port, *checked, options=options)))
        settings = configuration(f"http://127.0.0.1:{port}")
        gateway = await stack.enter_async_context(gateway_process(settings, tmp_path / "gateway.yaml"))
        async with steady_load(gateway.url, 60.0) as load:
            await asyncio.sleep(1)
            await first.break_down(Fault.KILLED)
            await asyncio.sleep(2)
    assert_all_went_well(load, executed, 100)
