"""Real programs beside the gateway: MLServer, nginx and HAProxy, each on ports of its own.

MLServer lives in a virtual environment of its own: `python -m venv .mlserver &&
.mlserver/bin/pip install mlserver==1.7.1`, then MLSERVER=.mlserver/bin/mlserver. The others come from the system:
`apt-get install nginx haproxy`. Without a program its tests skip; in CI they fail.
"""

import asyncio
import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conftest import require_tool

RUNTIME = Path(__file__).parent.parent.parent / "deploy" / "mlserver"
MLSERVER_START_S = 120
START_S = 20
STOP_S = 10


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that are free at this moment, all different."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class MlServer:
    """An MLServer with the identity model, which can be killed and started again on the same port."""

    def __init__(self, parent: Path, models: Path = RUNTIME, awaited: str = "identity") -> None:
        """Put its files into *parent*. *models* is a folder with others; it is ready when it serves *awaited*."""
        self._command = os.environ.get("MLSERVER") or require_tool(
            "mlserver", "install it into a virtual environment of its own, and set MLSERVER to its command"
        )
        self.python = Path(self._command).with_name("python")
        self._folder = parent / "models"
        self._awaited = awaited
        parent.mkdir(exist_ok=True)
        shutil.copytree(models, self._folder)
        settings = self._folder / "settings.json"
        ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "host": "127.0.0.1", **ports}))
        self._log = parent / "mlserver.log"
        self.url = f"http://127.0.0.1:{ports['http_port']}"
        self.grpc = f"127.0.0.1:{ports['grpc_port']}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it takes seconds until it serves."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen([self._command, "start", self._folder], stdout=output, stderr=output)

    def is_ready(self) -> bool:
        """Whether it serves the awaited model."""
        try:
            with urllib.request.urlopen(f"{self.url}/v2/models/{self._awaited}/ready", timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def wait_until_ready(self) -> None:
        """Wait until it serves the awaited model."""
        deadline = time.monotonic() + MLSERVER_START_S
        while not self.is_ready():
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.2)

    def kill(self) -> None:
        """End it without warning."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(30)


@asynccontextmanager
async def program(command: Sequence[str | Path], port: int, folder: Path) -> AsyncIterator[Path]:
    """*command* while it listens on *port*; the file with all that it prints."""
    log = folder / "output.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        deadline_s = time.monotonic() + START_S
        while not accepts(port):
            assert process.returncode is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            await asyncio.sleep(0.05)
        yield log
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def accepts(port: int) -> bool:
    """Whether something listens on *port*."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def nginx(folder: Path, port: int, http: str) -> AsyncIterator[Path]:
    """Nginx with *http* in its block of that name, which has to listen on *port*; its log."""
    temporary = "\n".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = folder / "nginx.conf"
    # `user` is for tests that run as root, whose workers could not write into the folder otherwise
    user = f"user {getpass.getuser()};" if os.getuid() == 0 else ""
    configuration.write_text(
        f"daemon off; {user} worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;\n"
        f"events {{ worker_connections 512; }}\n"
        f"http {{ access_log off; client_max_body_size 0; {temporary}\n{http}\n}}\n"
    )
    command: list[str | Path] = [
        require_tool("nginx", "apt-get install nginx"),
        "-e",
        "stderr",
        "-p",
        folder,
        "-c",
        configuration,
    ]
    async with program(command, port, folder) as log:
        yield log


@asynccontextmanager
async def haproxy(folder: Path, port: int, sections: str) -> AsyncIterator[Path]:
    """HAProxy with *sections*, one of which has to listen on *port*; its log."""
    configuration = folder / "haproxy.cfg"
    configuration.write_text(
        "global\n    maxconn 512\n    log stdout format raw local0 info\n"
        "defaults\n    mode http\n    log global\n"
        "    timeout connect 2s\n    timeout client 30s\n    timeout server 30s\n"
        f"{sections}\n"
    )
    command: list[str | Path] = [require_tool("haproxy", "apt-get install haproxy"), "-db", "-f", configuration]
    async with program(command, port, folder) as log:
        yield log
