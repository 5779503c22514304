"""A real Prometheus scrapes a real gateway with two workers, under traffic in which everything goes wrong."""

import asyncio
import datetime
import json
import math
import os
import re
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import yaml

from gateway.demo import JsonServer
from tests.certificates import Authority
from tests.conftest import Connection, answering, lying, require_tool, tensor
from tests.system.gateway_process import GatewayProcess, gateway_process
from tests.system.programs import free_ports, program
from tests.test_monitoring import ALERTS, DASHBOARD, PANELS, PROMETHEUS

WAIT_S = 180.0
"""How long a query may take to have data: many scrapes, on a slow machine."""

SLOW_S = 3.0
"""How long the slow backend takes: longer than what the alert about waiting takes for long."""

N_IDLE = 60
"""More connections of clients than are allowed."""

PROVOKED = {
    "TensorGatewayWorkersDie",
    "TensorGatewayReloadFailed",
    "TensorGatewayCertificateExpiresSoon",
    "TensorGatewayCertificateExpires",
    "TensorGatewayBackendErrors",
    "TensorGatewayClientErrors",
    "TensorGatewayOverloaded",
    "TensorGatewayConnectionsRefused",
    "TensorGatewayNoEndpointLeft",
    "TensorGatewayEndpointDown",
    "TensorGatewayRetriesHigh",
    "TensorGatewayQueueWaits",
}
"""Alerts whose condition the test brings about; of the others, what they compare has data."""

X = np.arange(1000, dtype=np.float32)


@dataclass
class Prometheus:
    """The programming interface of a running Prometheus."""

    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str, **parameters: str) -> Any:
        """What it answers, which has to be a success."""
        async with self.session.get(f"{self.url}/api/v1/{path}", params=parameters) as response:
            answer = await response.json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]

    async def until_ready(self) -> None:
        """Wait until it answers queries."""
        async with asyncio.timeout(WAIT_S):
            while True:
                async with self.session.get(f"{self.url}/-/ready") as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(0.1)

    async def has_data(self, query: str) -> bool:
        """Whether *query* gives a number."""
        found = await self.get("query", query=query)
        return any(not math.isnan(float(sample["value"][1])) for sample in found["result"])

    async def until_data(self, queries: dict[str, str]) -> None:
        """Wait until all *queries*, by what they are for, have data."""
        deadline_s = time.monotonic() + WAIT_S
        missing = queries
        while missing:
            missing = {name: query for name, query in missing.items() if not await self.has_data(query)}
            assert time.monotonic() < deadline_s, missing
            await asyncio.sleep(0.5)

    async def until_alerts(self, names: set[str]) -> list[dict[str, Any]]:
        """Wait until all alerts of these *names* are pending or firing; what is known of them and of others."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            alerts: list[dict[str, Any]] = (await self.get("alerts"))["alerts"]
            missing = names - {alert["labels"]["alertname"] for alert in alerts}
            if not missing:
                return alerts
            assert time.monotonic() < deadline_s, missing
            await asyncio.sleep(0.5)


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """A Prometheus with our alerts that scrapes *target* every second."""
    command = require_tool("prometheus", "on Debian: apt install prometheus")
    (port,) = free_ports(1)
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        yaml.safe_dump(
            {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(PROMETHEUS / "alerts.yml")],
                "scrape_configs": [{"job_name": "tensor-gateway", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    options = [f"--config.file={configuration}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
    async with (
        program([command, *options, f"--web.listen-address=127.0.0.1:{port}"], port, folder),
        aiohttp.ClientSession() as session,
    ):
        watching = Prometheus(session, f"http://127.0.0.1:{port}")
        await watching.until_ready()
        yield watching


@pytest.fixture
def dead() -> Iterator[str]:
    """A URL at which connections are refused: the port is taken, and nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def configuration(server: str, failing: str, refusing: str, slow: str, dead: str, authority: Authority) -> str:
    """A gateway with every trouble: who calls which path gets it."""
    soon = authority.issue(not_after=datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1))
    own = authority.issue()
    backends = {
        "good": {
            "endpoints": [server, dead],
            "balance": "round_robin",
            "retry": {"budget": 1.0},
            "batch": {"max_size": 2000},
        },
        "down": {"endpoints": [dead], "health": {"interval": "100ms", "timeout": "1s", "unhealthy_after": 1}},
        "failing": {"endpoints": [failing, dead], "eject": {"failures": 1, "for": "5m"}},
        "refusing": {"endpoints": [refusing]},
        "slow": {"endpoints": [slow], "max_connections": 2, "queue": {"length": 2, "timeout": "10s"}},
        "secure": {
            "endpoints": ["https://127.0.0.1:1"],
            "tls": {"certificate": str(own.certificate), "key": str(own.key), "ca": str(authority.path)},
        },
    }
    return yaml.safe_dump(
        {
            "listen": "127.0.0.1:0",
            "admin": "127.0.0.1:0",
            "workers": 2,
            "limits": {"connections": N_IDLE // 2},
            "logging": {"access": "none"},
            "tls": {"certificate": str(soon.certificate), "key": str(soon.key)},
            "backends": backends,
            "routes": [
                {"name": name, "path_prefix": f"/{name}", "strip_prefix": True, "backend": name} for name in backends
            ],
        }
    )


async def answer_slowly(connection: Connection) -> None:
    while True:
        await connection.read_request()
        await asyncio.sleep(SLOW_S)
        await connection.answer(b"{}")


async def make_trouble(session: aiohttp.ClientSession, url: str) -> None:
    """Requests of every kind, again and again, until this is cancelled."""
    header = json.dumps({"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}).encode()
    lengths = {"Inference-Header-Content-Length": str(len(header))}

    async def ask(path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> int:
        method = "GET" if body is None else "POST"
        try:
            async with session.request(method, url + path, data=body, headers=headers) as response:
                await response.read()
                return response.status
        except aiohttp.ClientError:  # beyond the connections that are allowed
            return 0

    while True:
        slow = [asyncio.create_task(ask("/slow/v2")) for _ in range(8)]
        for _ in range(4):
            await ask("/good/v2/models/identity/infer", header + X.tobytes(), lengths)
            await ask("/good/v2/models/identity/infer", b"no tensors")
            for path in ("/failing/x", "/refusing/x", "/down/x", "/nowhere"):
                await ask(path)
            await asyncio.sleep(0.05)
        await asyncio.gather(*slow)


async def open_too_many(url: str, context: ssl.SSLContext) -> None:
    """Open more connections than are allowed, and close them."""
    host, port = url.removeprefix("https://").split(":")
    writers = []
    for _ in range(N_IDLE):
        try:
            _, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writers.append(writer)
        except (OSError, ssl.SSLError):
            break
    for writer in writers:
        writer.transport.abort()
    assert len(writers) < N_IDLE


@dataclass
class Watched:
    """What a test looks at."""

    gateway: GatewayProcess
    prometheus: Prometheus


@pytest.fixture
async def watched(tmp_path: Path, authority: Authority, server: JsonServer, dead: str) -> AsyncIterator[Watched]:
    """A gateway in trouble, and its Prometheus."""
    require_tool("prometheus", "on Debian: apt install prometheus")
    context = authority.client_context()
    async with (
        lying(answering(b"broken", "500 Broken")) as failing,
        lying(answering(b"no", "404 Nothing")) as refusing,
        lying(answer_slowly) as slow,
        gateway_process(
            configuration(server.url, failing.url, refusing.url, slow.url, dead, authority), tmp_path / "gateway.yaml"
        ) as gateway,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, limit=0)) as session,
        prometheus(tmp_path, gateway.admin.removeprefix("http://")) as watching,
    ):
        await watching.until_data({"the first scrape": "up == 1"})
        os.kill(gateway.pids()[-1], signal.SIGKILL)  # a worker
        await gateway.saw("it is replaced")
        gateway.reload("listen: 127.0.0.1:0\nwrong: true\n")
        await gateway.saw("not reloaded")
        await open_too_many(gateway.url, context)
        trouble = asyncio.create_task(make_trouble(session, gateway.url))
        try:
            yield Watched(gateway, watching)
        finally:
            trouble.cancel()


def without_threshold(expression: str) -> str:
    """What *expression* compares, without the number that it is compared with."""
    bare = re.sub(r"\babsent\((.*)\)", r"\1", expression)
    return re.sub(r"\s(?:[<>]|==)\s*[\d.]+(?:\s*\*\s*\d+)?(?=$|\s+and\b)", "", bare)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a / b > 0.05", "a / b"),
        ("a - time() < 14 * 86400", "a - time()"),
        ('absent(up{a=~"b"})', 'up{a=~"b"}'),
        ("a / b > 0.8 and on (c) d", "a / b and on (c) d"),
    ],
)
def test_thresholds_are_taken_off(expression: str, expected: str) -> None:
    assert without_threshold(expression) == expected


@pytest.mark.slow
async def test_every_query_of_the_dashboard_and_of_the_alerts_has_data(watched: Watched) -> None:
    chosen = {"$instance": ".*", "$route": ".*", "$backend": ".*", "$__rate_interval": "1m"}
    queries = {
        "an ejection": "tensor_gateway_endpoint_ejected == 1",
        "connections in use": 'tensor_gateway_upstream_connections{backend="slow", state="busy"} > 0',
    }
    for panel in PANELS:
        for target in panel["targets"]:
            expression = re.sub(r"\$\w+", lambda found: chosen[found[0]], target["expr"])
            queries[f"{panel['title']} {target['refId']}"] = expression
    for alert in ALERTS:
        expression = alert["expr"]
        queries[alert["alert"]] = expression if alert["alert"] in PROVOKED else without_threshold(expression)
    assert len(queries) > 50
    await watched.prometheus.until_data(queries)
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]["query"].replace("$instance", ".*")
            selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
            found = await watched.prometheus.get(f"label/{label}/values", **{"match[]": selector})
            assert found, variable["name"]
    alerts = await watched.prometheus.until_alerts(PROVOKED)
    texts = [text for alert in alerts for text in alert["annotations"].values()]
    assert [text for text in texts if "error" in text.lower() and "template" in text] == []
    blamed = await watched.prometheus.get("query", query="sum by (blame) (tensor_gateway_errors_total) > 0")
    assert {sample["metric"]["blame"] for sample in blamed["result"]} == {"client", "backend", "gateway"}
    down = next(alert["expr"] for alert in ALERTS if alert["alert"] == "TensorGatewayDown")
    assert not await watched.prometheus.has_data(down)
    watched.gateway.terminate()
    await watched.prometheus.until_data({"TensorGatewayDown": down})
