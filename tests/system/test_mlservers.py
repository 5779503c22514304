"""Several real MLServers behind one gateway, killed and started again under load."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.failures.load import Load, failures, share, steady_load
from tests.system.gateway_process import GatewayProcess, gateway_process
from tests.system.programs import MlServer
from tests.system.scripted import total

TOTAL_S = 10.0
SERVERS = 3
RATE = 25.0

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
workers: 2
logging: {{access: none}}
backends:
  mlservers:
    endpoints: [{endpoints}]
    timeouts: {{connect: 1s, first_byte: 5s, idle: 5s, total: 10s}}
    eject: {{failures: 3, window: 10s, for: 1s}}
    health: {{path: /v2/health/ready, interval: 500ms, timeout: 2s, unhealthy_after: 2, healthy_after: 2}}
"""


@asynccontextmanager
async def mlservers(parent: Path) -> AsyncIterator[list[MlServer]]:
    async with AsyncExitStack() as stack:
        servers = []
        for number in range(SERVERS):
            server = MlServer(parent / str(number))
            stack.callback(server.stop)
            server.start()
            servers.append(server)
        for server in servers:
            await asyncio.to_thread(server.wait_until_ready)
        yield servers


async def served_by(gateway: GatewayProcess, session: aiohttp.ClientSession, server: MlServer) -> float:
    """How many requests *server* has answered well."""
    return total(await gateway.samples(session), "upstream_requests_total", endpoint=server.url, code="200")


async def until_used(gateway: GatewayProcess, session: aiohttp.ClientSession, server: MlServer) -> None:
    """Wait until *server* has answered some more requests."""
    wanted = await served_by(gateway, session, server) + 10
    async with asyncio.timeout(30):
        while await served_by(gateway, session, server) < wanted:
            await asyncio.sleep(0.1)


def judge(load: Load, killed_s: list[float]) -> None:
    failed = [outcome for outcome in load.outcomes if outcome.what != "ok"]
    assert "wrong" not in failures(failed)
    assert max(outcome.seconds for outcome in load.outcomes) < TOTAL_S + 1
    # what a server had read when it was killed is lost; whatever began later goes elsewhere
    after = [outcome for outcome in load.outcomes if all(not 0 <= s - outcome.started_s < 0.5 for s in killed_s)]
    assert share(after) >= 0.99, failures(after)
    lost_per_kill = [[o for o in failed if o.started_s < s < o.ended_s] for s in killed_s]
    assert {outcome.what for lost in lost_per_kill for outcome in lost} <= {"502"}
    print(
        f"{len(load.outcomes)} requests, {dict(failures(failed))}; lost by each kill: {list(map(len, lost_per_kill))}"
    )


@pytest.mark.alone
async def test_mlservers_are_killed_and_restarted_under_load(tmp_path: Path) -> None:
    killed_s = []
    async with mlservers(tmp_path) as servers, aiohttp.ClientSession() as session:
        configuration = CONFIGURATION.format(endpoints=", ".join(f"'{server.url}'" for server in servers))
        async with gateway_process(configuration, tmp_path / "gateway.yaml") as gateway:
            async with steady_load(gateway.url, RATE, model="identity") as load:
                for server in servers[:2]:
                    await until_used(gateway, session, server)
                    killed_s.append(time.monotonic())
                    server.kill()
                    await asyncio.sleep(2)
                    server.start()
                    await asyncio.to_thread(server.wait_until_ready)
                    await until_used(gateway, session, server)
    judge(load, killed_s)
