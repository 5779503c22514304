"""Who the client is, behind a real nginx that the gateway trusts or does not, in the log and for the backend."""

import json
import logging
from pathlib import Path

import aiohttp
import pytest

from tests.conftest import access_lines, running
from tests.system.programs import free_ports, nginx
from tests.system.scripted import counting

APPENDING = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto https;"


@pytest.mark.parametrize(
    ("trusted", "client", "chain", "scheme"),
    [
        # the client, which asks from 127.0.0.2, claims to be 1.1.1.1
        ("[127.0.0.1]", "127.0.0.2", "1.1.1.1, 127.0.0.2, 127.0.0.1", "https"),
        ("[127.0.0.0/8]", "1.1.1.1", "1.1.1.1, 127.0.0.2, 127.0.0.1", "https"),
        ("[10.0.0.0/8]", "127.0.0.1", "127.0.0.1", "http"),
        ("[]", "127.0.0.1", "127.0.0.1", "http"),
    ],
)
async def test_a_trusted_nginx_names_the_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, trusted: str, client: str, chain: str, scheme: str
) -> None:
    caplog.set_level(logging.INFO, "gateway.access")
    (port,) = free_ports(1)
    extra = f"logging: {{access: json}}\ntrusted_proxies: {trusted}\n"
    async with counting() as backend, running(backend.url, extra) as gateway:
        server = f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {gateway.url}; {APPENDING} }} }}"
        connector = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
        async with nginx(tmp_path, port, server), aiohttp.ClientSession(connector=connector) as session:
            for _ in range(3):
                async with session.get(f"http://127.0.0.1:{port}/x", headers={"X-Forwarded-For": "1.1.1.1"}) as reply:
                    assert reply.status == 200
    for seen in backend.seen:
        assert seen.values("X-Forwarded-For") == [chain]
        assert seen.values("X-Forwarded-Proto") == [scheme]
    assert [json.loads(line)["client"] for line in access_lines(caplog)] == [client] * 3
