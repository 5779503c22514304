"""A container image and containers of it, on a machine without a registry and without a daemon.

buildah builds, crun runs. The base images that a Dockerfile names are made of Debian's packages by debootstrap, under
the same names: the tag `3.13.18-slim-trixie` says which Debian, and which Python must come out. That base is larger
than the real one and of another patch release; what the Dockerfile does with it is the same. Not here: what is expected
of the image, see test_image.py.
"""

import ast
import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.conftest import require_tool

ROOT = Path(__file__).parent.parent

BASE_PACKAGES = "python3-venv,python-is-python3"
"""What the base needs beside Debian's smallest system: `python` with `venv`, as the official image of Python has."""

PIP_OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "cert", "client-cert", "trusted-host", "proxy")
"""What the machine's own configuration of pip may say about where packages come from."""

PLAIN_CGROUPS = ("unshare", "--mount", "sh", "-c", 'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"', "sh")
"""Runs a command that sees nothing of version 1 of cgroups: crun refuses a machine where both versions are mounted."""

BUILD_S = 300
"""The longest that one step of making an image may take, in seconds."""


class NotPermittedError(Exception):
    """The kernel, or whatever confines this process, does not let it build or run containers."""


def run(*command: str | Path, timeout_s: float = BUILD_S) -> str:
    """Standard output of a command that has to succeed; what it said otherwise is in the AssertionError."""
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)
    said = (result.stdout + result.stderr)[-4000:]
    assert result.returncode == 0, f"{' '.join(map(str, command))}\nexit code {result.returncode}\n{said}"
    return result.stdout


def refusal(*command: str | Path) -> str | None:
    """Why a command that only needs permission fails; None if it succeeds."""
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return None if result.returncode == 0 else (result.stderr.strip() or f"{command[0]}: exit code {result.returncode}")


@dataclass(frozen=True)
class Image:
    """An image that was built, unpacked."""

    config: dict[str, Any]
    """What the Dockerfile's instructions left in the image: Entrypoint, Cmd, User, Env, Labels, Healthcheck."""
    root: Path
    """The image's files, to be read only."""

    @property
    def command(self) -> list[str]:
        """What a container of it runs unless told otherwise."""
        return [*self.config["Entrypoint"], *self.config["Cmd"]]


class Engine:
    """buildah and crun, with everything that they keep in one folder of this test run."""

    def __init__(self, folder: Path) -> None:
        """Raise NotPermittedError if containers cannot be built or run here, whatever is installed."""
        self._folder = folder
        self._buildah = require_tool("buildah", "on Debian: apt install buildah")
        self._crun = require_tool("crun", "on Debian: apt install crun")
        self._debootstrap = require_tool("debootstrap", "on Debian: apt install debootstrap debian-archive-keyring")
        self._driver = ""
        self._containers = 0
        self._probe()

    def _probe(self) -> None:
        """Try, with nothing of the project, each thing that needs a permission."""
        probe = self._folder / "probe"
        probe.mkdir()
        script = f"mknod {probe}/null c 1 3 && echo >{probe}/null && mount -t tmpfs tmpfs {probe} && chroot / true"
        namespaces = ("unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--fork")
        if why := refusal(*PLAIN_CGROUPS, *namespaces, "sh", "-c", script):
            raise NotPermittedError(why)
        for self._driver in ("overlay", "vfs"):  # overlay cannot lie on another overlay; vfs copies, which is slower
            why = refusal(*self._buildah_command("from", "--name", f"probe-{self._driver}", "scratch"))
            why = why or refusal(*self._buildah_command("mount", f"probe-{self._driver}"))
            if why is None:
                break
        else:
            raise NotPermittedError(why)
        self.buildah("rm", "--all")

    def _buildah_command(self, *arguments: str | Path) -> list[str]:
        store = ["--root", self._folder / "store", "--runroot", self._folder / "run", "--storage-driver", self._driver]
        return list(map(str, [self._buildah, *store, *arguments]))

    def buildah(self, *arguments: str | Path) -> str:
        """Standard output of a buildah command."""
        return run(*self._buildah_command(*arguments)).strip()

    def make_base(self, name: str) -> None:
        """Make an image with the name of one of Python's slim ones, such as `python:3.13.18-slim-trixie`."""
        match = re.fullmatch(r"python:(\d+\.\d+)\.\d+-slim-([a-z]+)", name)
        assert match, f"{name}: expected python:X.Y.Z-slim-SUITE"
        python, suite = match.groups()
        container = self.buildah("from", "scratch")
        root = Path(self.buildah("mount", container))
        run(self._debootstrap, "--variant=minbase", f"--include={BASE_PACKAGES}", suite, root, *debian_mirror())
        found = run("chroot", root, "python", "-V").split()[1]
        assert found.startswith(f"{python}."), f"{name} has Python {python}, and Debian {suite} has {found}"
        for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):  # slim has none either
            shutil.rmtree(root / path)
        self.buildah("commit", "--rm", container, f"docker.io/library/{name}")

    def build(self, command: list[str], tag: str) -> Image:
        """Build by a `buildah bud` command as a user types it in the top of the checkout, and unpack the image."""
        [name, verb, *arguments] = command
        assert name == "buildah"
        with contextlib.chdir(ROOT):
            self.buildah(verb, "--pull-never", *pip_volumes(self._folder), *arguments)
        config = json.loads(self.buildah("inspect", "--type", "image", tag))["Docker"]["config"]
        container = self.buildah("from", "--pull-never", tag)
        return Image(config, Path(self.buildah("mount", container)))

    def container(
        self, image: Image, arguments: list[str] | None = None, *, files: dict[str, Path] | None = None, host: bool
    ) -> "Container":
        """Start a container, confined as compose.yaml confines it.

        *arguments* replace the image's command after its entry point; *files* are mounted read-only; with *host* it
        has the machine's network, else one of its own in which there is nobody else.
        """
        self._containers += 1
        bundle = self._folder / f"container-{self._containers}"
        bundle.mkdir()
        command = image.command if arguments is None else [*image.config["Entrypoint"], *arguments]
        (bundle / "config.json").write_text(json.dumps(specification(image, command, files or {}, host=host)))
        crun = [*PLAIN_CGROUPS, self._crun, "--root", str(self._folder / "crun"), "--cgroup-manager=disabled"]
        return Container(crun, bundle)

    def close(self) -> None:
        """Remove all images and unmount them."""
        self.buildah("rm", "--all")
        self.buildah("rmi", "--all", "--force")
        shutil.rmtree(self._folder / "store", ignore_errors=True)


class Container:
    """One running container, from its start to the end of its first process."""

    def __init__(self, crun: list[str], bundle: Path) -> None:
        self._crun = crun
        self._name = bundle.name
        self._output = bundle / "output"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*crun, "run", "--bundle", str(bundle), self._name], stdout=output, stderr=output
            )

    @cached_property
    def pid(self) -> int:
        """The first process, as the machine numbers it."""
        return int(json.loads(run(*self._crun, "state", self._name))["pid"])

    @property
    def output(self) -> str:
        """What it has written so far, to both of its outputs."""
        return self._output.read_text()

    @property
    def is_running(self) -> bool:
        """Whether the first process lives; also while it is being started."""
        return self._process.poll() is None

    def execute(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run another command inside, with the user and the environment of the first."""
        inside = [*self._crun, "exec", self._name, *command]
        return subprocess.run(inside, check=False, capture_output=True, text=True, timeout=60)

    def signal(self, name: str) -> None:
        """Send a signal to the first process."""
        run(*self._crun, "kill", self._name, name)

    def wait(self, timeout_s: float) -> int:
        """The exit code of the first process."""
        return self._process.wait(timeout_s)

    def close(self) -> None:
        """End it at once if it still lives."""
        if self.is_running:
            subprocess.run([*self._crun, "delete", "--force", self._name], check=False, capture_output=True, timeout=60)
            self._process.kill()
            self._process.wait()


def specification(image: Image, command: list[str], files: dict[str, Path], *, host: bool) -> dict[str, Any]:
    """The configuration of a container for an OCI runtime: what compose.yaml says of the gateway, and `docker run`."""
    user, _, group = image.config["User"].partition(":")
    private = ["pid", "mount", "ipc", "uts", *([] if host else ["network"])]
    confined = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "hostname": "gateway",
        "root": {"path": str(image.root), "readonly": True},
        "process": {
            "args": command,
            "cwd": "/",
            "env": image.config["Env"],
            "user": {"uid": int(user), "gid": int(group)},
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [*confined, "size=16m"]},
            *(
                {"destination": at, "type": "bind", "source": str(path), "options": ["bind", "ro"]}
                for at, path in files.items()
            ),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in private]},
    }


def debian_mirror() -> list[str]:
    """The mirror that this machine's apt takes Debian's packages from; none: the one that debootstrap knows."""
    sites = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Created-By: Packages")
    return [site for site in sites.split() if "security" not in site][:1]


def pip_volumes(folder: Path) -> list[str]:
    """Options for a build that let pip inside it use what this machine's pip uses, without a trace in the image."""
    pip = require_tool("pip", "it comes with Python's venv")
    lines = run(pip, "config", "list").splitlines()
    found = {name: ast.literal_eval(value) for name, _, value in (line.partition("=") for line in lines)}
    settings, mounted = [], []
    for option in PIP_OPTIONS:
        values = [found[name] for section in (":env:", "install", "global") if (name := f"{section}.{option}") in found]
        if not values:
            continue
        value = values[0]  # the environment comes before files, and a command's section before that of all
        settings.append(f"{option} = " + "\n    ".join(str(value).split()))
        for word in str(value).split():
            # the pages of an index in a folder link to files beside that folder
            path = Path(urlsplit(word).path).parent if word.startswith("file:") else Path(word)
            if path.is_absolute() and path.exists():
                mounted.append(path)
    configuration = folder / "pip.conf"
    configuration.write_text("\n".join(["[global]", *settings, ""]))
    return [f"--volume={configuration}:/etc/pip.conf:ro", *(f"--volume={path}:{path}:ro" for path in set(mounted))]


@contextlib.contextmanager
def running(
    engine: Engine,
    image: Image,
    arguments: list[str] | None = None,
    *,
    files: dict[str, Path] | None = None,
    host: bool = False,
) -> Iterator[Container]:
    """A container inside `with`."""
    container = engine.container(image, arguments, files=files, host=host)
    try:
        yield container
    finally:
        container.close()
