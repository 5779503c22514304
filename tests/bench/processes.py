"""The processes that take part: started, read (processor time, peak memory) and ended.

Linux only. Every process is ended when its `Process` is closed, and by the kernel if this one dies.
"""

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
START_S = 30
READY_S = 120
STOP_S = 10
LIMITS = "request_body: 320MiB"

_LIBC = ctypes.CDLL(None)
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_URL = re.compile(r"http://[\w.]+:\d+")
_GRPC_ADDRESS = re.compile(r"(?<=gRPC on http://)[\w.]+:\d+")

GRPC = "grpc://"
"""What URLs of servers begin with that are asked by gRPC."""


class Process:
    """A server that prints its URL when it is ready."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        checkout: Path = ROOT,
        announced: re.Pattern[str] = _URL,
    ) -> None:
        """Start *command* and wait until it has printed a URL; its output goes to a file in *folder*.

        *checkout* is where modules come from. *announced* is what the URL looks like.
        """
        self.name = name
        self._announced = announced
        self._log = folder / f"{name}-{time.monotonic_ns()}.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=checkout,
                start_new_session=True,  # Ctrl-C is for the benchmark, which then ends them in order
                preexec_fn=_die_with_parent,  # noqa: PLW1509  no thread runs while a process is started
            )
        self.pid = self._process.pid
        try:
            self.url = self._wait_for_url()
        except BaseException:
            self.close()
            raise

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + START_S
        while (found := self._announced.search(self.output())) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{self.output()}")
            time.sleep(0.01)
        return found[0]

    def wait_until_ready(self, path: str) -> None:
        """Wait until *path* is answered with 200. Raises `RuntimeError`."""
        deadline = time.monotonic() + READY_S
        while not _is_ready(self.url + path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not ready:\n{self.output()}")
            time.sleep(0.1)

    def output(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """End it: politely, and after `STOP_S` not."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def processor_ns(self) -> int:
        """Processor time so far of all its threads, user and system, as exact as the scheduler's own books."""
        # the clock id of clock_getcpuclockid(3), which Python does not have: the inverted pid, and 2 for "scheduled"
        return time.clock_gettime_ns((~self.pid << 3) | 2)

    def user_and_system_s(self) -> tuple[float, float]:
        """Processor time so far, divided by the kernel's tick: exact to 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return int(fields[11]) / ticks, int(fields[12]) / ticks

    def peak_bytes(self) -> int:
        """The most memory that was resident at once."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


def gateway_checkout() -> Path:
    """Where the gateway comes from: this checkout, or another one that `GATEWAY_CHECKOUT` in the environment names."""
    return Path(os.environ.get("GATEWAY_CHECKOUT", ROOT)).resolve()


def python(module: str, *arguments: str | Path) -> list[str | Path]:
    """The command that runs *module* of this checkout."""
    return [sys.executable, "-m", module, *arguments]


def start_backend(cases: Path, folder: Path) -> Process:
    return Process("backend", python("tests.bench.backend", cases), folder)


@contextmanager
def start_backends(cases: Path, folder: Path) -> Iterator[list[str]]:
    """Two backends; their URLs."""
    with start_backend(cases, folder) as one, start_backend(cases, folder) as other:
        yield [one.url, other.url]


def start_relay(
    cases: Path, backend_url: str, folder: Path, *options: str, wrapper: Sequence[str | Path] = ()
) -> Process:
    command = [*wrapper, "tests.bench.relay"] if wrapper else python("tests.bench.relay")
    return Process("relay", [*command, cases, backend_url, *options], folder)


def start_grpc_relay(cases: Path, backend_url: str, folder: Path) -> Process:
    announced = re.compile(rf"{GRPC}[\w.]+:\d+")
    return Process("grpc relay", python("tests.bench.grpc_relay", cases, backend_url), folder, announced=announced)


def start_grpc_gateway(
    endpoints: Sequence[str], folder: Path, *, limits: str = LIMITS, wrapper: Sequence[str | Path] = ()
) -> Process:
    """A gateway that is asked by gRPC."""
    config = configure(endpoints, folder, limits=limits, extra="grpc: 127.0.0.1:0\n")
    command = [*wrapper, "gateway"] if wrapper else python("gateway")
    serve = [*command, "serve", "--config", config]
    process = Process("gateway", serve, folder, gateway_checkout(), _GRPC_ADDRESS)
    process.url = GRPC + process.url
    return process


def start_gateway(
    endpoints: Sequence[str],
    folder: Path,
    *,
    small_endpoints: Sequence[str] = (),
    access_log: str = "none",
    backend: str = "health: {}",
    extra: str = "",
    wrapper: Sequence[str | Path] = (),
) -> Process:
    """The gateway with health probes, retry and ejection. Its access log, if there is one, goes to a file.

    Models called `small*` go to *small_endpoints* if there are any. *backend* and *extra* are more YAML, of the backend
    and of the top level. *wrapper* takes the place of `python -m` in the command, for profilers.
    """
    config = configure(
        endpoints, folder, small_endpoints=small_endpoints, access_log=access_log, backend=backend, extra=extra
    )
    command = [*wrapper, "gateway"] if wrapper else python("gateway")
    return Process("gateway", [*command, "serve", "--config", config], folder, gateway_checkout())


def configure(
    endpoints: Sequence[str],
    folder: Path,
    *,
    small_endpoints: Sequence[str] = (),
    access_log: str = "none",
    backend: str = "health: {}",
    limits: str = LIMITS,
    extra: str = "",
) -> Path:
    """Write a configuration file. Retry and ejection are on by default. *limits* are those of the top level."""
    config = folder / f"gateway-{time.monotonic_ns()}.yaml"
    text = f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{level: warning, access: {access_log}}}\n"
    text += f"limits: {{{limits}}}\nbackends:\n  main: {{endpoints: {[*endpoints]}, {backend}}}\n"
    if small_endpoints:
        text += f"  small: {{endpoints: {[*small_endpoints]}, health: {{}}}}\nroutes:\n"
        text += "  - {name: small, models: ['small*'], backend: small}\n  - {name: main, backend: main}\n"
    config.write_text(text + extra)
    return config


def accepts(config: Path) -> bool:
    """Whether the gateway of this checkout knows all keys of a configuration."""
    done = subprocess.run(
        python("gateway", "check", config), cwd=gateway_checkout(), capture_output=True, timeout=START_S, check=False
    )
    return done.returncode == 0


def start_transformer(python_of_kserve: str, predictor_url: str, models: Sequence[str], folder: Path) -> Process:
    """A transformer of KServe before a server of JSON; its log says when it listens."""
    port = free_ports(1)[0]
    command = [python_of_kserve, "-m", "tests.bench.kserve_transformer", "--http_port", str(port)]
    command += ["--predictor_host", predictor_url.removeprefix("http://"), "--predictor_protocol", "v2"]
    return Process("transformer", [*command, "--models", *models], folder)


def start_mlserver(command: str, folder: Path) -> Process:
    """A real MLServer with the identity model of `deploy/mlserver`, which compresses nothing."""
    models = folder / f"mlserver-{time.monotonic_ns()}"
    shutil.copytree(ROOT / "deploy" / "mlserver", models)
    settings = models / "settings.json"
    ports = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
    own = {"host": "127.0.0.1", "gzip_enabled": False, **ports}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **own}))
    process = Process("mlserver", [command, "start", models], folder)
    try:
        process.url = f"http://127.0.0.1:{ports['http_port']}"
        process.wait_until_ready("/v2/models/identity/ready")
    except BaseException:
        process.close()
        raise
    return process


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, for servers that cannot choose their own."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _die_with_parent() -> None:
    _LIBC.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
