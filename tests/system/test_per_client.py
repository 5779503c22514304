"""Clients by the names of their tokens: who it was, and how much one of them may ask for."""

import asyncio
import json
import logging
from pathlib import Path

import aiohttp
import pytest

from gateway.config import parse
from gateway.demo import JsonServer
from gateway.process.supervisor import Supervisor
from tests.conftest import Client, Connection, access_lines, lying, running

SECRETS = {"ann": "s3cret-of-ann", "bob": "s3cret-of-bob"}


def tokens(folder: Path) -> str:
    (folder / "tokens.txt").write_text("".join(f"{name}: {token}\n" for name, token in SECRETS.items()))
    return f"access: {{tokens_file: {folder}/tokens.txt}}\n"


def by(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS[name]}"}


async def test_names_stand_in_log_metrics_and_status_and_tokens_nowhere(
    server: JsonServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(server.url, tokens(tmp_path) + "logging: {access: json}\n") as client:
        for _ in range(2):
            assert (await client.request("GET", "/v2", headers=by("ann"))).status == 200
        assert (await client.request("GET", "/v2/models/none", headers=by("bob"))).status == 404
        assert (await client.request("GET", "/v2")).status == 401
        metrics = await client.metrics()
        texts = []
        for path in ("/metrics", "/-/status", "/-/config", "/"):
            async with client.session.get(client.admin + path) as response:
                texts.append(await response.text())
        status = json.loads(texts[1])
        failures = status["failures"]
    assert metrics['tensor_gateway_client_requests_total{client="ann",code="200"}'] == 2
    assert metrics['tensor_gateway_client_requests_total{client="bob",code="200"}'] == 0  # there from the start
    assert metrics['tensor_gateway_client_requests_total{client="bob",code="404"}'] == 1
    assert [json.loads(line)["client_name"] for line in access_lines(caplog)] == ["ann", "ann", "bob", None]
    assert [failure["client"] for failure in failures] == ["127.0.0.1", "bob"]
    assert not [secret for secret in SECRETS.values() if secret in "".join((*texts, caplog.text))]


async def test_one_client_is_limited_and_the_other_is_not(server: JsonServer, tmp_path: Path) -> None:
    limits = "limits: {per_client: {rate: 0.5, burst: 3}}\n"
    async with running(server.url, tokens(tmp_path) + limits) as client:
        replies = [await client.request("GET", "/v2", headers=by("ann")) for _ in range(5)]
        assert [reply.status for reply in replies] == [200, 200, 200, 429, 429]
        assert replies[3].headers["Retry-After"] in ("1", "2")
        assert "'ann'" in replies[3].error
        assert "limits.per_client" in replies[3].error
        assert (await client.request("GET", "/v2", headers=by("bob"))).status == 200
        samples = await client.metrics()
        name = 'tensor_gateway_errors_total{blame="client",reason="rate_limited",route="main"}'
        assert samples[name] == 2


async def test_so_many_at_once_and_before_the_body_is_read(tmp_path: Path) -> None:
    proceed = asyncio.Event()

    async def slow(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await proceed.wait()
            await connection.answer(b"{}")

    async with lying(slow) as liar, running(liar.url, "limits: {per_client: {concurrent: 2}}\n") as client:
        waiting = [asyncio.ensure_future(client.request("GET", "/x")) for _ in range(2)]
        while client.gateway.gateway.in_flight < 2:
            await asyncio.sleep(0.01)
        refused = await client.infer(b"x" * 100_000)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        proceed.set()
        assert [reply.status for reply in await asyncio.gather(*waiting)] == [200, 200]
        assert (await client.request("GET", "/x")).status == 200


async def test_behind_a_proxy_a_client_is_the_address_that_it_names(server: JsonServer) -> None:
    extra = "trusted_proxies: ['127.0.0.1']\nlimits: {per_client: {rate: 0.1, burst: 1}}\n"
    async with running(server.url, extra) as client:
        for address, status in (("10.0.0.1", 200), ("10.0.0.1", 429), ("10.0.0.2", 200)):
            assert (await client.request("GET", "/v2", headers={"X-Forwarded-For": address})).status == status


async def test_what_is_refused_with_401_or_403_uses_nothing_up(server: JsonServer, tmp_path: Path) -> None:
    access = tokens(tmp_path).replace("{", "{deny: ['/v2/repository/*'], ", 1)
    async with running(server.url, access + "limits: {per_client: {rate: 0.01, burst: 1}}\n") as client:
        for _ in range(3):
            assert (await client.request("GET", "/v2")).status == 401
            assert (await client.request("POST", "/v2/repository/x", headers=by("ann"))).status == 403
        statuses = [(await client.request("GET", "/v2", headers=by("ann"))).status for _ in range(2)]
        assert statuses == [200, 429]
        assert (await client.request("POST", "/v2/repository/x", headers=by("ann"))).status == 403


async def test_a_reload_changes_the_limits_and_keeps_what_was_used_up(server: JsonServer) -> None:
    async with running(server.url, "limits: {per_client: {rate: 0.01, burst: 3}}\n") as client:
        for _ in range(2):
            assert (await client.request("GET", "/v2")).status == 200
        for burst, status in ((2, 429), (3, 200)):
            text = f"backends: {{main: {{endpoints: ['{server.url}']}}}}\nlogging: {{access: none}}\n"
            text += f"limits: {{per_client: {{rate: 0.01, burst: {burst}}}}}\n"
            await client.gateway.replace(parse("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n" + text))
            assert (await client.request("GET", "/v2")).status == status


@pytest.mark.slow
async def test_workers_share_the_limits_and_their_counts_are_added_up(server: JsonServer, tmp_path: Path) -> None:
    text = f"backends: {{a: {{endpoints: ['{server.url}']}}}}\nlogging: {{access: none}}\n" + tokens(tmp_path)
    text += "workers: 2\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlimits: {per_client: {rate: 0.01, burst: 4}}\n"
    supervisor = await Supervisor.start(parse(text))
    try:
        async with aiohttp.ClientSession(headers={"Connection": "close"}) as session:
            client = Client(session, None, supervisor.listen_url, supervisor.admin_url)  # type: ignore[arg-type]
            statuses = [(await client.request("GET", "/v2", headers=by("ann"))).status for _ in range(40)]
            assert set(statuses) == {200, 429}
            assert 2 <= statuses.count(200) <= 4  # a share is half; the kernel may give all to one worker
            name = 'tensor_gateway_client_requests_total{client="ann",code="%d"}'
            async with asyncio.timeout(20):
                while (metrics := await client.metrics()).get(name % 429, 0) < statuses.count(429):
                    await asyncio.sleep(0.05)
            assert metrics[name % 200] == statuses.count(200)
    finally:
        await supervisor.stop()
