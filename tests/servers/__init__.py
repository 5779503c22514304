"""Real inference servers, each as a process of its own on a free port of the loopback interface.

    with serving(KServe(tmp_path)) as server:
        ...  # server.url

| class | what runs | where it comes from |
|---|---|---|
| `KServe` | kserve's own server: one model for both protocols, one for V1 alone, one that fails | KSERVE_PYTHON |
| `Mlflow` | `mlflow models serve` with one of the models of `programs/mlflow_model.py` | MLFLOW_PYTHON |
| `Triton` | the Triton of nvidia-pytriton with `tests/clients/programs/triton_server.py`'s models | TRITON_PYTHON |
| `TorchServe` | TorchServe with the model of `programs/torchserve_handler.py` | TORCHSERVE_PYTHON |
| `Legacy` | servers that speak no protocol: `programs/legacy_server.py` | LEGACY_PYTHON |
| `Seldon` | a model in Seldon Core's Python server of the first protocol | SELDON_PYTHON |
| `FastApi` | the server of docs/servers.md, or its strict form | KSERVE_PYTHON, which has FastAPI |

Each variable names the interpreter of an environment of its own: `pip install kserve==0.21.0`, `mlflow==3.17.2`,
`nvidia-pytriton==0.7.0`; for the others, of which TorchServe needs Java, what `.ci/run` installs. Without it the tests
are skipped; in CI they fail. MLServer is in `tests.system.programs`, and `stand_ins` has what cannot be installed.
"""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import pytest

from tests.system.programs import free_ports

START_S = 180
STOP_S = 20

_HERE = Path(__file__).parent / "programs"
_TRITON = Path(__file__).parent.parent / "clients" / "programs" / "triton_server.py"


def interpreter(variable: str) -> str:
    """The Python that the environment variable *variable* names; skips without it, fails in CI."""
    python = os.environ.get(variable)
    if not python:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{variable} is not set: see {Path(__file__).parent}")
    return python


class Server:
    """A server as a process, with all that it starts itself."""

    ready_path = "/"
    """What answers 200 as soon as the models are served."""

    stopped_by: ClassVar[tuple[signal.Signals, ...]] = (signal.SIGTERM, signal.SIGKILL)
    """The signals that end it, one after the other."""

    def __init__(self, folder: Path) -> None:
        """Its files and its output are kept in *folder*, which may be missing."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment: dict[str, str] = {}
        """Variables that it gets besides those of the tests."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What a request must have to be answered."""
        return {}

    def command(self) -> list[str]:
        """What starts it."""
        raise NotImplementedError

    @property
    def log(self) -> str:
        """What it has printed."""
        return (self.folder / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start it; it takes seconds until it serves."""
        command = self.command()
        # what the server starts by name, such as uvicorn, is beside its interpreter
        path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, "PATH": path, **self.environment}
        environment.pop("PYTHONPATH", None)
        with (self.folder / "server.log").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Whether it serves its models."""
        try:
            request = urllib.request.Request(self.url + self.ready_path, headers=self.headers)
            with urllib.request.urlopen(request, timeout=1) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def wait_until_ready(self) -> None:
        """Wait until it serves its models."""
        deadline_s = time.monotonic() + START_S
        while not self.is_ready():
            assert self._process is not None and self._process.poll() is None, self.log
            assert time.monotonic() < deadline_s, self.log
            time.sleep(0.2)

    def stop(self) -> None:
        """End it and all that it has started."""
        if self._process is None:
            return
        for number in self.stopped_by:
            with suppress(ProcessLookupError):  # the group is gone with its last process
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
        self._process = None


class _Program(Protocol):
    """A server that can be started and stopped."""

    def start(self) -> None:
        """Start it; it takes a while until it serves."""

    def wait_until_ready(self) -> None:
        """Wait until it serves."""

    def stop(self) -> None:
        """End it."""


_Server = TypeVar("_Server", bound=_Program)


@contextmanager
def serving(server: _Server) -> Iterator[_Server]:
    """*server* while it serves its models."""
    try:
        server.start()
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


class KServe(Server):
    """kserve's own server.

    `identity` speaks V2 and V1 and returns what it gets, `v1` speaks V1 alone, `fails` raises an error.
    """

    ready_path = "/v1/models/v1"

    def command(self) -> list[str]:
        """See `Server`."""
        return [interpreter("KSERVE_PYTHON"), str(_HERE / "kserve_server.py"), "--http_port", str(self.port)]


class Mlflow(Server):
    """`mlflow models serve` with *model*, one of those in `programs/mlflow_model.py` or by another program."""

    ready_path = "/ping"

    def __init__(self, folder: Path, model: str = "identity", program: Path | None = None) -> None:
        """See `Server`. *program* saves the model of that name into the folder in which it runs."""
        super().__init__(folder)
        self._model = model
        self._save = [str(program)] if program is not None else [str(_HERE / "mlflow_model.py"), model, model]

    def command(self) -> list[str]:
        """See `Server`; the model is saved first."""
        python = interpreter("MLFLOW_PYTHON")
        saved = self.folder / self._model
        if not saved.exists():
            done = subprocess.run([python, *self._save], check=False, capture_output=True, text=True, cwd=self.folder)
            assert done.returncode == 0, done.stderr
        serve = [python, "-m", "mlflow", "models", "serve", "--model-uri", str(saved), "--env-manager", "local"]
        return [*serve, "--host", "127.0.0.1", "--port", str(self.port)]


class Triton(Server):
    """NVIDIA's Triton on the processor, with identity models: one of each datatype in lower case, and some others."""

    ready_path = "/v2/health/ready"

    def command(self) -> list[str]:
        """See `Server`."""
        return [interpreter("TRITON_PYTHON"), str(_TRITON), str(self.folder), str(self.port)]


class TorchServe(Server):
    """TorchServe with one model, `double`; *envelope* is its `service_envelope`, *has_tokens* that it asks for them."""

    ready_path = "/ping"

    def __init__(self, folder: Path, envelope: str = "kservev2", *, has_tokens: bool = False) -> None:
        """See `Server`."""
        super().__init__(folder)
        self._envelope = envelope
        self._has_tokens = has_tokens
        self.environment = {"TMPDIR": str(folder)}  # where it notes that it runs: another one must not see that

    @property
    def headers(self) -> dict[str, str]:
        """See `Server`."""
        if not self._has_tokens:
            return {}
        try:  # written into the folder in which it runs, while it starts
            keys = json.loads((self.folder / "key_file.json").read_text())
        except (OSError, ValueError):
            return {}
        return {"Authorization": f"Bearer {keys['inference']['key']}"}

    def command(self) -> list[str]:
        """See `Server`; the model is archived first."""
        python = interpreter("TORCHSERVE_PYTHON")
        archive = ["--model-name", "double", "--version", "1.0", "--handler", str(_HERE / "torchserve_handler.py")]
        archiver = [str(Path(python).with_name("torch-model-archiver")), *archive, "--export-path", str(self.folder)]
        done = subprocess.run([*archiver, "--force"], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        management, metrics, grpc, grpc_management, workers = free_ports(5)
        settings = {
            "inference_address": self.url,
            "management_address": f"http://127.0.0.1:{management}",
            "metrics_address": f"http://127.0.0.1:{metrics}",
            "grpc_inference_port": grpc,
            "grpc_management_port": grpc_management,
            "initial_worker_port": workers,  # in the names of sockets in /tmp
            "default_workers_per_model": 1,
            "disable_token_authorization": "false" if self._has_tokens else "true",
            "model_store": self.folder,
            "load_models": "double.mar",
        }
        if self._envelope:
            settings["service_envelope"] = self._envelope
        file = self.folder / "config.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return [str(Path(python).with_name("torchserve")), "--start", "--foreground", "--ts-config", str(file)]


class FastApi(Server):
    """A server of one file, as people write them: *kind* is `strict` or `plain`, see `programs/fastapi_server.py`."""

    ready_path = "/v2/health/ready"

    def __init__(self, folder: Path, kind: str = "strict") -> None:
        """See `Server`."""
        super().__init__(folder)
        self._kind = kind

    def command(self) -> list[str]:
        """See `Server`."""
        return [interpreter("KSERVE_PYTHON"), str(_HERE / "fastapi_server.py"), self._kind, str(self.port)]


class Legacy(Server):
    """A server that speaks no protocol: *kind* is one of `programs/legacy_server.py`."""

    _READY: ClassVar = {
        "predict": "/ping",
        "huggingface": "/health",
        "bentoml": "/readyz",
        "ray": "/-/healthz",
        "litserve": "/health",
        "gradio": "/config",
        "cog": "/health-check",
        "azure": "/",
    }

    def __init__(self, folder: Path, kind: str) -> None:
        """See `Server`."""
        super().__init__(folder)
        self._kind = kind
        self.ready_path = self._READY[kind]
        self.environment = {"GRADIO_ANALYTICS_ENABLED": "False", "DO_NOT_TRACK": "1", "BENTOML_DO_NOT_TRACK": "True"}

    def command(self) -> list[str]:
        """See `Server`."""
        return [interpreter("LEGACY_PYTHON"), str(_HERE / "legacy_server.py"), self._kind, str(self.port)]

    def is_ready(self) -> bool:
        """See `Server`. Cog answers while its predictor is still being loaded."""
        if self._kind != "cog" or not super().is_ready():
            return super().is_ready()
        with urllib.request.urlopen(self.url + self.ready_path, timeout=1) as response:
            return bool(json.load(response)["status"] == "READY")


class Seldon(Server):
    """A model of four columns in the Python server of Seldon Core 1: twice its input."""

    ready_path = "/health/status"
    stopped_by = (signal.SIGKILL,)  # its first process does not end by SIGTERM

    def command(self) -> list[str]:
        """See `Server`. The server finds the model by the name of its file and class."""
        python = interpreter("SELDON_PYTHON")
        (self.folder / "Doubling.py").write_text((_HERE / "seldon_model.py").read_text())
        grpc, metrics = free_ports(2)
        ports = ["--http-port", str(self.port), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
        return [python, "-m", "seldon_core.microservice", "Doubling", "--service-type", "MODEL", *ports]
