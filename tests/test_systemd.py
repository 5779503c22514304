"""systemd: what a service manager is told by real gateways, and the unit that starts them.

A socket of the test takes systemd's place, and the gateway is started as the unit would, with `NOTIFY_SOCKET`. Where
the machine allows it, a real systemd starts the unit itself.
"""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from gateway.config import load
from gateway.demo import JsonServer
from gateway.process import supervisor, systemd
from gateway.process.descriptors import connections_that_fit
from gateway.process.systemd import Notifier
from tests.certificates import Authority
from tests.conftest import HEADER_LENGTH, require_tool, tensor
from tests.sandbox import LOG, PROGRAMS, UNITS, Sandbox, booted
from tests.test_workers import children_of

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy/systemd"
UNIT = DEPLOY / "tensor-gateway.service"

WITHIN_S = 30.0
"""How long a test waits for what must come."""


class ServiceManager:
    """Receives what a service tells, as systemd does."""

    def __init__(self, address: str) -> None:
        """*address* as in `NOTIFY_SOCKET`: a path, or `@` and a name."""
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    async def receive(self) -> dict[str, str]:
        """The next message."""
        async with asyncio.timeout(WITHIN_S):
            text = await asyncio.get_running_loop().sock_recv(self._socket, 8192)
        return dict(line.split("=", 1) for line in text.decode().splitlines())

    async def told(self) -> dict[str, str]:
        """The next message that does not come from the watchdog."""
        while (message := await self.receive()) == {"WATCHDOG": "1"}:
            pass
        return message

    def count(self) -> int:
        """How many messages have come and were not read; they are now."""
        n_messages = 0
        while True:
            try:
                self._socket.recv(8192)
            except BlockingIOError:
                return n_messages
            n_messages += 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    receiving = ServiceManager(str(tmp_path / "notify"))
    yield receiving
    receiving.close()


def configuration(file: Path, server: JsonServer, workers: int = 1, more: str = "") -> None:
    file.write_text(
        f"workers: {workers}\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\n{more}"
        f"backends: {{a: {{endpoints: ['{server.url}']}}}}\n"
    )


@asynccontextmanager
async def service(file: Path, **environment: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A gateway as a service manager starts it."""
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "serve", "--config", str(file)),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


def urls(status: str) -> tuple[str, str]:
    """The listeners that a status names: of clients, and for administration."""
    found = re.fullmatch(r"clients on (\S+), status page and metrics on (\S+)", status)
    assert found is not None, status
    return found[1], found[2]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_the_life_of_a_service_is_told(
    tmp_path: Path, server: JsonServer, manager: ServiceManager, workers: int
) -> None:
    file = tmp_path / "gateway.yaml"
    configuration(file, server, workers)
    async with service(file, NOTIFY_SOCKET=manager.address) as gateway, aiohttp.ClientSession() as session:
        ready = await manager.told()
        assert ready["READY"] == "1"
        clients, admin = urls(ready["STATUS"])
        for url in (f"{clients}/v2/health/ready", f"{admin}/-/ready"):
            async with session.get(url) as response:
                assert response.status == 200, "it is ready when it says so"

        before_us = time.monotonic_ns() // 1000
        gateway.send_signal(signal.SIGHUP)
        reloading = await manager.told()
        assert (reloading["RELOADING"], reloading["STATUS"]) == ("1", "reloading")
        assert before_us <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        assert await manager.told() == {"READY": "1", "STATUS": "reloaded"}

        configuration(file, server, workers, "limits: {tensors: none}\n")
        gateway.send_signal(signal.SIGHUP)
        assert (await manager.told())["RELOADING"] == "1"
        refused = await manager.told()
        assert refused["READY"] == "1"
        assert refused["STATUS"].startswith(f"the last reload was refused: {file}:5: limits.tensors")

        configuration(file, server, workers)
        gateway.send_signal(signal.SIGHUP)
        assert (await manager.told())["RELOADING"] == "1"
        assert await manager.told() == {"READY": "1", "STATUS": "reloaded"}, "nothing is left of the refusal"

        gateway.terminate()
        assert (await manager.told())["STOPPING"] == "1"
        assert await asyncio.wait_for(gateway.wait(), WITHIN_S) == 0
        assert manager.count() == 0, "without WATCHDOG_USEC nothing more is told"


async def test_stopping_is_told_while_requests_are_finished(
    tmp_path: Path, server: JsonServer, manager: ServiceManager
) -> None:
    file = tmp_path / "gateway.yaml"
    configuration(file, server)
    async with service(file, NOTIFY_SOCKET=manager.address) as gateway, aiohttp.ClientSession() as session:
        clients, admin = urls((await manager.told())["STATUS"])
        rest = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            text = b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT8","data":[1]}]}'
            yield text[:10]
            await rest.wait()
            yield text[10:]

        uploading = asyncio.create_task(session.post(f"{clients}/v2/models/identity/infer", data=body()))
        async with asyncio.timeout(WITHIN_S):
            while "tensor_gateway_requests_in_flight 1.0" not in await text_of(session, f"{admin}/metrics"):
                await asyncio.sleep(0.05)
        gateway.terminate()
        assert await manager.told() == {"STOPPING": "1", "STATUS": "draining: requests in flight are finished"}
        assert gateway.returncode is None
        rest.set()
        async with await uploading as response:
            assert response.status == 200
        assert await asyncio.wait_for(gateway.wait(), WITHIN_S) == 0


async def text_of(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        return await response.text()


async def test_a_service_that_cannot_start_is_never_ready(tmp_path: Path, manager: ServiceManager) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file = tmp_path / "gateway.yaml"
        file.write_text(
            f"listen: 127.0.0.1:{taken.getsockname()[1]}\nadmin: 127.0.0.1:0\n"
            "backends: {a: {endpoints: ['http://127.0.0.1:9']}}\n"
        )
        async with service(file, NOTIFY_SOCKET=manager.address) as gateway:
            assert await asyncio.wait_for(gateway.wait(), WITHIN_S) == 1
    assert manager.count() == 0


async def test_an_abstract_socket_is_told_and_workers_inherit_nothing(tmp_path: Path, server: JsonServer) -> None:
    manager = ServiceManager(f"@tensor-gateway-test-{os.getpid()}")
    try:
        file = tmp_path / "gateway.yaml"
        configuration(file, server, workers=2)
        async with service(file, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="60000000") as gateway:
            assert (await manager.told())["READY"] == "1"
            for worker in children_of(gateway.pid):
                inherited = Path(f"/proc/{worker}/environ").read_bytes().split(b"\0")
                names = {each.partition(b"=")[0] for each in inherited}
                assert not names & {b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"WATCHDOG_PID"}
    finally:
        manager.close()


async def test_the_watchdog_is_fed_by_one_process(tmp_path: Path, server: JsonServer, manager: ServiceManager) -> None:
    file = tmp_path / "gateway.yaml"
    configuration(file, server)
    async with service(file, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="400000") as gateway:
        await manager.told()
        for _ in range(10):
            assert await manager.receive() == {"WATCHDOG": "1"}
        gateway.terminate()
        assert (await manager.told())["STOPPING"] == "1"


async def test_a_watchdog_for_another_process_is_not_fed(
    tmp_path: Path, server: JsonServer, manager: ServiceManager
) -> None:
    file = tmp_path / "gateway.yaml"
    configuration(file, server)
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}
    async with service(file, **environment) as gateway:
        assert "READY" in await manager.receive()
        gateway.send_signal(signal.SIGHUP)
        assert "RELOADING" in await manager.receive()
        assert "READY" in await manager.receive()


@pytest.mark.slow
async def test_the_watchdog_is_not_fed_while_a_worker_hangs(
    tmp_path: Path, server: JsonServer, manager: ServiceManager
) -> None:
    file = tmp_path / "gateway.yaml"
    configuration(file, server, workers=2)
    async with service(file, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="2000000") as gateway:
        await manager.told()
        assert await manager.receive() == {"WATCHDOG": "1"}
        hanging = children_of(gateway.pid)[0]
        os.kill(hanging, signal.SIGSTOP)
        try:
            assert gateway.stderr is not None
            expected = f"nothing was heard of worker {hanging} for 3 s"
            async with asyncio.timeout(WITHIN_S):
                while expected not in (await gateway.stderr.readline()).decode():
                    pass
            manager.count()
            await asyncio.sleep(2.5)  # more than systemd waits for the next one
            assert manager.count() == 0
        finally:
            os.kill(hanging, signal.SIGCONT)
        assert await manager.receive() == {"WATCHDOG": "1"}, "it is fed again once the worker has come back"


@pytest.mark.slow
async def test_the_watchdog_is_fed_while_a_dead_worker_is_replaced(
    tmp_path: Path, server: JsonServer, manager: ServiceManager
) -> None:
    file = tmp_path / "gateway.yaml"
    configuration(file, server, workers=2)
    async with service(file, NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="2000000") as gateway:
        await manager.told()
        before = set(children_of(gateway.pid))
        os.kill(min(before), signal.SIGKILL)
        async with asyncio.timeout(WITHIN_S):
            while len(now := set(children_of(gateway.pid))) < 2 or now == before:
                assert await manager.receive() == {"WATCHDOG": "1"}


async def test_a_manager_that_is_gone_or_does_not_read_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier(str(tmp_path / "gone"))
    notifier.tell("READY=1", "here")
    notifier.tell("STOPPING=1", "")
    assert len(caplog.records) == 1
    assert "systemd cannot be told `READY=1`" in caplog.text
    full = ServiceManager(str(tmp_path / "full"))
    try:
        notifier = Notifier(full.address)
        started_s = time.monotonic()
        while len(caplog.records) < 2:  # until the socket takes no more
            notifier.tell("READY=1", "")
            assert time.monotonic() - started_s < WITHIN_S
        full.count()
        notifier.tell("READY=1", "x" * 10_000)
        assert len((await full.told())["STATUS"]) == systemd.STATUS_CHARACTERS
    finally:
        full.close()


def test_without_a_manager_nothing_is_sent_and_nothing_is_left_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "nonsense")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notifier = Notifier.from_environment()
    notifier.tell("READY=1", "here")
    notifier.start_watchdog(lambda: None)  # there is no event loop: it would fail
    assert caplog.records == []
    assert not {"WATCHDOG_USEC", "WATCHDOG_PID"} & os.environ.keys()


# The unit


def unit() -> dict[str, list[str]]:
    """The values of every key of the unit."""
    values: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if line and line[0] not in "#[":
            key, _, value = line.partition("=")
            values.setdefault(key, []).append(value)
    return values


def test_the_unit_fits_the_configuration_and_the_readme() -> None:
    values = unit()
    example = load(DEPLOY / "gateway.yaml")
    shutdown = example.shutdown
    assert float(values["TimeoutStopSec"][0]) > shutdown.delay + 2 * shutdown.grace + supervisor.HANG_S
    assert float(values["TimeoutStartSec"][0]) > supervisor.START_S
    assert float(values["WatchdogSec"][0]) > supervisor.SILENT_S
    memory = int(values["MemoryMax"][0].removesuffix("G")) * 1024**3
    limits = example.limits
    needed_mebibytes = 4 * limits.concurrent_requests + 128 * example.workers  # docs/operations.md, Memory
    assert memory >= 2 * example.in_flight_bytes + needed_mebibytes * 1024**2
    descriptors = int(values["LimitNOFILE"][0])
    assert connections_that_fit(example, descriptors) == example.limits.connections
    start = values["ExecStart"][0].split()
    readme = (DEPLOY / "README.md").read_text()
    for installed in (Path(start[0]).parent.parent, start[-1], f"/etc/systemd/system/{UNIT.name}"):
        assert f" {installed}\n" in readme


def test_what_the_readme_and_the_example_say_about_credentials_is_a_valid_configuration(
    tmp_path: Path, authority: Authority
) -> None:
    pair = authority.issue("gateway.test")
    environment = {**os.environ, "CREDENTIALS_DIRECTORY": str(tmp_path)}
    for name, source in (("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (tmp_path / name).write_bytes(source.read_bytes())
    (tmp_path / "tokens").write_text("team: 0123456789abcdef0123456789abcdef\n")
    example = (DEPLOY / "gateway.yaml").read_text()
    secrets = re.sub(r"^# ?", "", example[example.index("# access:") :], flags=re.MULTILINE)
    [quoted] = re.findall(r"```yaml\n#[^\n]*\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    assert quoted == secrets
    file = tmp_path / "gateway.yaml"
    file.write_text(example + secrets)
    command = [sys.executable, "-m", "gateway", "check", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = require_tool("systemd-analyze", "Debian's package `systemd`")
    program = tmp_path / "tensor-gateway"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    there = tmp_path / UNIT.name
    there.write_text(UNIT.read_text().replace("/opt/tensor-gateway/bin/tensor-gateway", str(program)))
    done = subprocess.run([analyze, "verify", str(there)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_exposes_little() -> None:
    analyze = require_tool("systemd-analyze", "Debian's package `systemd`")
    # in tenths, as the option counts; without a bus and a running systemd
    command = [analyze, "security", "--offline=true", "--no-pager", "--threshold=15", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


# A real systemd, where the machine lets a test have one

CONFIGURATION = Path("/etc/tensor-gateway/gateway.yaml")
SOCKET = Path("/run/tensor-gateway/http.sock")
X = np.arange(3 * 224 * 224, dtype=np.float32)


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A systemd with the unit, in front of the demo's JSON-only server."""
    with booted(tmp_path, ROOT) as running:
        running.write(UNITS / UNIT.name, UNIT.read_text())
        drop_in(running, "log", f"StandardOutput=append:{LOG}\nStandardError=append:{LOG}\n")
        with subprocess.Popen(running.command(PROGRAMS / "tensor-gateway", "demo"), stdout=subprocess.PIPE) as demo:
            assert demo.stdout is not None
            assert any(b"Stop it with Ctrl-C." in line for line in demo.stdout)
            yield running
            demo.terminate()


def drop_in(sandbox: Sandbox, name: str, lines: str) -> None:
    sandbox.write(UNITS / f"{UNIT.name}.d/{name}.conf", f"[Service]\n{lines}")


def configure(sandbox: Sandbox, more: str = "") -> None:
    """The demo has the ports of the example."""
    text = (DEPLOY / "gateway.yaml").read_text()
    text = re.sub("^listen: .*", f"listen: unix:{SOCKET}", text, flags=re.MULTILINE)
    text = re.sub("^admin: .*", "admin: 127.0.0.1:9091", text, flags=re.MULTILINE)
    sandbox.write(CONFIGURATION, text + more)


async def infer(pid: int, body: AsyncIterator[bytes] | None = None, **headers: str) -> tuple[int, bytes]:
    """The status and the tensor that the gateway of process *pid* gives for `X`."""
    header = json.dumps({"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}).encode()
    connector = aiohttp.UnixConnector(f"/proc/{pid}/root{SOCKET}")
    headers[HEADER_LENGTH] = str(len(header))

    async def whole() -> AsyncIterator[bytes]:
        yield header
        async for piece in body or pieces():
            yield piece

    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post("http://gateway/v2/models/identity/infer", data=whole(), headers=headers) as response,
    ):
        text = await response.read()
        return response.status, text[int(response.headers.get(HEADER_LENGTH, 0)) :]


async def pieces(rest: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """The tensor, its second half after *rest*."""
    yield X.tobytes()[: X.nbytes // 2]
    if rest is not None:
        await rest.wait()
    yield X.tobytes()[X.nbytes // 2 :]


async def status_becomes(sandbox: Sandbox, text: str) -> None:
    async with asyncio.timeout(WITHIN_S):
        while text not in (status := await asyncio.to_thread(sandbox.show, "StatusText", UNIT.name)):
            assert status
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_real_systemd_starts_reloads_and_drains_the_unit_within_its_restrictions(sandbox: Sandbox) -> None:
    configure(sandbox)
    sandbox.systemctl("start", UNIT.name)
    assert f"clients on unix:{SOCKET}" in sandbox.show("StatusText", UNIT.name)
    pid = sandbox.main_pid(UNIT.name)
    restrictions = dict(
        line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "\t" in line
    )
    assert restrictions["Uid"].split("\t")[0] != "0"
    assert (int(restrictions["CapEff"], 16), restrictions["NoNewPrivs"], restrictions["Seccomp"]) == (0, "1", "2")
    assert await infer(pid) == (200, X.tobytes())

    configure(sandbox, "nonsense: 1\n")
    sandbox.systemctl("reload", UNIT.name)
    await status_becomes(sandbox, "the last reload was refused: /etc/tensor-gateway/gateway.yaml")
    assert await infer(pid) == (200, X.tobytes())
    configure(sandbox)
    sandbox.systemctl("reload", UNIT.name)
    async with asyncio.timeout(WITHIN_S):
        while "refused" in await asyncio.to_thread(sandbox.show, "StatusText", UNIT.name):
            await asyncio.sleep(0.05)
    assert sandbox.show("ActiveState", UNIT.name) == "active"

    rest = asyncio.Event()
    uploading = asyncio.create_task(infer(pid, pieces(rest)))
    scrape = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9091/metrics').read().decode())"
    async with asyncio.timeout(WITHIN_S):
        while (
            "_requests_in_flight 1.0"
            not in (await asyncio.to_thread(sandbox.run, PROGRAMS / "python", "-c", scrape)).stdout
        ):
            pass
    stopping = asyncio.create_task(asyncio.to_thread(sandbox.systemctl, "stop", UNIT.name))
    await status_becomes(sandbox, "draining")
    rest.set()
    assert await uploading == (200, X.tobytes())
    await stopping
    assert (sandbox.show("Result", UNIT.name), sandbox.show("ExecMainStatus", UNIT.name)) == ("success", "0")


@pytest.mark.slow
async def test_a_real_systemd_hands_over_credentials_and_restarts_workers_that_hang(sandbox: Sandbox) -> None:
    token = "0123456789abcdef0123456789abcdef"
    sandbox.write("/etc/tensor-gateway/tokens.txt", f"team: {token}\n", mode="600")
    drop_in(sandbox, "local", "LoadCredential=tokens:/etc/tensor-gateway/tokens.txt\nWatchdogSec=2\n")
    configure(sandbox, "workers: 2\naccess: {tokens_file: '${CREDENTIALS_DIRECTORY}/tokens'}\n")
    sandbox.systemctl("start", UNIT.name)
    pid = sandbox.main_pid(UNIT.name)
    assert (await infer(pid))[0] == 401
    assert await infer(pid, Authorization=f"Bearer {token}") == (200, X.tobytes())

    os.kill(children_of(pid)[0], signal.SIGSTOP)
    async with asyncio.timeout(2 * WITHIN_S):
        while sandbox.show("NRestarts", UNIT.name) == "0" or sandbox.show("ActiveState", UNIT.name) != "active":
            await asyncio.sleep(0.1)
    again = sandbox.main_pid(UNIT.name)
    assert again != pid
    assert len(children_of(again)) == 2
    assert await infer(again, Authorization=f"Bearer {token}") == (200, X.tobytes())
    log = Path(f"/proc/{again}/root{LOG}").read_text()
    assert "nothing was heard of worker" in log
    assert "most recent call first" in log, "what every thread was doing"


@pytest.mark.slow
async def test_a_real_systemd_does_not_try_a_wrong_configuration_again(sandbox: Sandbox) -> None:
    configure(sandbox, "nonsense: 1\n")
    assert sandbox.run("systemctl", "start", UNIT.name).returncode == 1
    assert sandbox.show("ExecMainStatus", UNIT.name) == "2"
    assert sandbox.show("ActiveState", UNIT.name) == "failed", "it does not wait to be started again"
