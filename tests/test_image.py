"""The image of `deploy/Dockerfile`, built and run: by buildah and crun, from the commands in `deploy/README.md`.

Debootstrap makes the base image first, so the first of these tests takes about a minute. All are skipped where
containers are not permitted; in CI too, but there the missing of a program is a failure.
"""

import asyncio
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from gateway import __version__
from gateway.demo import JsonServer
from tests.conftest import Connection, lying
from tests.container import ROOT, Container, Engine, Image, NotPermittedError, running

pytestmark = pytest.mark.slow

README = (ROOT / "deploy" / "README.md").read_text()
MAX_ADDED_BYTES = 110 * 1024**2
"""The most that the gateway and what it depends on may add to the base image."""

ENOUGH_S = 30
"""How long a container may take to start, or to stop."""


def readme_command(start: str) -> str:
    """The command that begins so in one of README.md's shell blocks, with what follows in its block."""
    blocks: list[str] = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    [block] = [block for block in blocks if re.search(f"^{re.escape(start)}", block, re.MULTILINE)]
    return start + block.partition(start)[2]


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    try:
        engine = Engine(tmp_path_factory.mktemp("containers"))
    except NotPermittedError as error:
        reason = f"containers are not permitted here; they need root, mounts and namespaces: {error}"
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n*** THE IMAGE IS NOT TESTED: {reason}")
        pytest.skip(reason)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def image(engine: Engine) -> Image:
    """The image as the command for buildah in README.md makes it."""
    bases = set(re.findall(r"^FROM (\S+)", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE))
    for base in bases:
        engine.make_base(base)
    return engine.build(shlex.split(readme_command("buildah bud").replace("\\\n", " ")), "tensor-gateway")


def configured(folder: Path, backend_url: str, workers: int = 1) -> dict[str, Path]:
    """The file to be mounted for a gateway on free ports in front of a backend."""
    file = folder / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nworkers: {workers}\n"
        f"backends: {{default: {{endpoints: ['{backend_url}']}}}}\n"
    )
    return {"/etc/tensor-gateway/gateway.yaml": file}


async def until_ready(container: Container) -> tuple[str, str]:
    """The addresses of the clients' listener and of the admin listener, once the gateway says that it is ready."""
    async with asyncio.timeout(ENOUGH_S), aiohttp.ClientSession() as session:
        while True:
            assert container.is_running, container.output
            if len(urls := re.findall(r" on (http://\S+)$", container.output, re.MULTILINE)) == 2:
                clients, admin = urls
                async with session.get(f"{admin}/-/ready") as response:
                    if response.status == 200:
                        return clients, admin
            await asyncio.sleep(0.1)


async def shell(script: str) -> str:
    """What a shell script prints to standard output."""
    process = await asyncio.create_subprocess_exec("bash", "-euc", script, stdout=-1, stderr=-1)
    async with asyncio.timeout(ENOUGH_S):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


# What is in it


def test_image_says_what_it_is(image: Image) -> None:
    assert image.command == ["tensor-gateway", "serve", "--config", "/etc/tensor-gateway/gateway.yaml"]
    assert image.config["User"] == "65532:65532"
    assert image.config["StopSignal"] == "SIGTERM"
    assert set(image.config["ExposedPorts"]) == {"8080/tcp", "9090/tcp"}
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in image.config["Labels"].items()}
    assert labels["title"] == "tensor-gateway"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["description"]


def test_image_has_nothing_of_its_build(image: Image) -> None:
    strays = ["src", "opt/build", "root/.cache", "opt/venv/bin/pip"]
    assert [stray for stray in strays if (image.root / stray).exists()] == []
    programs = {
        path.name
        for folder in image.config["Env"][0].split("=")[1].split(":")
        for path in (image.root / folder.lstrip("/")).glob("*")
    }
    assert {"tensor-gateway", "python"} <= programs
    assert not {"gcc", "cc", "c++", "clang", "ld", "make"} & programs
    venv = image.root / "opt" / "venv"
    assert [path for path in venv.rglob("*") if path.name == "tests"] == []
    configuration = image.root / "etc" / "pip.conf"
    assert not configuration.exists() or configuration.read_text() == ""


def test_image_is_small_and_its_user_owns_nothing(image: Image) -> None:
    files = [path.lstat() for path in (image.root / "opt" / "venv").rglob("*")]
    assert sum(file.st_size for file in files) < MAX_ADDED_BYTES
    assert {file.st_uid for file in files} == {0}
    assert not any(file.st_mode & stat.S_IWOTH for file in files if not stat.S_ISLNK(file.st_mode))


def test_command_and_packages_inside_are_whole(engine: Engine, image: Image) -> None:
    with running(engine, image, ["--version"]) as container:
        assert container.wait(ENOUGH_S) == 0, container.output
        assert container.output.split()[-1] == __version__
    [pip] = (image.root / "usr" / "share" / "python-wheels").glob("pip-*.whl")  # Debian's; the image itself has none
    checker = Image({**image.config, "Entrypoint": ["python"]}, image.root)
    with running(engine, checker, [f"/{pip.relative_to(image.root)}/pip", "check"]) as container:
        assert container.wait(ENOUGH_S) == 0, container.output
        assert "No broken requirements found" in container.output


# How it runs


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_request_that_the_readme_shows_is_answered_in_binary(
    engine: Engine, image: Image, server: JsonServer, tmp_path: Path, workers: int
) -> None:
    with running(engine, image, files=configured(tmp_path, server.url, workers), host=True) as container:
        clients, _ = await until_ready(container)
        script = readme_command("header=").replace("http://127.0.0.1:8080", clients)
        assert (await shell(script)).split() == ["1", "2"]
        assert server.inferences == 1
        container.signal("SIGTERM")
        assert await asyncio.to_thread(container.wait, ENOUGH_S) == 0, container.output


async def test_requests_in_flight_are_finished_before_it_exits(engine: Engine, image: Image, tmp_path: Path) -> None:
    may_answer, asked = asyncio.Event(), asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.read_request()
        if b" /v2/models/slow/ready " in connection.head:  # and not what the gateway itself asks
            asked.set()
            await may_answer.wait()
        await connection.answer(b'{"ready": true}')

    async with lying(slow) as backend:
        with running(engine, image, files=configured(tmp_path, backend.url), host=True) as container:
            clients, admin = await until_ready(container)
            async with asyncio.timeout(ENOUGH_S), aiohttp.ClientSession() as session:
                request = asyncio.create_task(session.get(f"{clients}/v2/models/slow/ready"))
                await asked.wait()
                container.signal("SIGTERM")
                while True:
                    async with session.get(f"{admin}/-/ready") as readiness:
                        if readiness.status == 503:
                            break
                    await asyncio.sleep(0.05)
                assert container.is_running
                may_answer.set()
                response = await request
                assert response.status == 200
                assert await response.json() == {"ready": True}
            assert await asyncio.to_thread(container.wait, ENOUGH_S) == 0, container.output


async def test_unchanged_it_starts_confined_and_its_health_check_says_so(engine: Engine, image: Image) -> None:
    """Nothing is mounted, and there is no network but the container's own: no backend can be reached."""
    kind, *check = image.config["Healthcheck"]["Test"]
    assert kind == "CMD"
    with running(engine, image) as container:
        async with asyncio.timeout(ENOUGH_S):
            while container.output.count(" on http://") < 2:
                assert container.is_running, container.output
                await asyncio.sleep(0.1)
        healthy = container.execute(*check)
        assert healthy.returncode == 0, healthy.stderr
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{container.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"65532"}
        assert {int(status[f"Cap{each}"], 16) for each in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
        assert status["NoNewPrivs"] == "1"
        assert status["NSpid"].split()[-1] == "1", "no init in front of it"
        write = "import sys; open(sys.argv[1], 'w')"
        assert container.execute("python", "-c", write, "/tmp/file").returncode == 0
        for path in ("/file", "/etc/tensor-gateway/gateway.yaml", "/opt/venv/file"):
            refused = container.execute("python", "-c", write, path)
            assert "Read-only file system" in refused.stderr or "Permission denied" in refused.stderr
        container.signal("SIGTERM")
        assert await asyncio.to_thread(container.wait, ENOUGH_S) == 0, container.output
