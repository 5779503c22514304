"""What a newcomer meets: commands that were meant otherwise, ports that are taken, backends that are not there."""

import asyncio
import errno
import os
import re
import shutil
import signal
from pathlib import Path

import aiohttp
import pytest

from gateway.cli import main
from gateway.config import parse
from gateway.demo import JsonServer
from gateway.process import ports
from tests.test_cli import process, run, run_inside, url_in_line

FREE = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]


def test_the_command_alone_prints_the_help_with_examples() -> None:
    result = run_inside()
    assert (result.returncode, result.stdout) == (2, "")
    for line in (
        "usage: tensor-gateway",
        "tensor-gateway demo",
        "tensor-gateway serve --backend http://127.0.0.1:8000",
    ):
        assert line in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve"], "say what to serve, by `--config FILE` or `--backend URL`"),
        (["serve", "gateway.yaml"], "say what to serve, by `--config FILE` or `--backend URL`"),
        (["serve", "--config", "a.yaml", "--backend", "http://x"], "--backend: not allowed with argument --config"),
        (["serve", "--backend", "http://x", "--watch"], "--watch goes with --config"),
        (["serve", "--config", "a.yaml", "--listen", "127.0.0.1:1"], "with --config set them in the file"),
        (["serve", "--config", "none"], "tensor-gateway: none: cannot be read: No such file or directory"),
        (["serve", "--config", "."], "tensor-gateway: .: cannot be read: Is a directory"),
        (["serve", "--config", "http://x"], "tensor-gateway: http:/x: cannot be read: No such file or directory"),
        (["serve", "--backend", "a.yaml"], "--backend: expected a URL of scheme, host and port, such as http://127"),
        (["serve", "--backend", "8000"], "--backend: expected a URL of scheme, host and port"),
        (["serve", "--backend", "http:127.0.0.1:8000"], "--backend: expected a URL of scheme, host and port"),
        (["serve", "--backend", ""], "--backend: expected a URL of scheme, host and port"),
        (
            ["serve", "--config", "tabs"],
            "tensor-gateway: tabs:2: not YAML: while scanning for the next token, found character '\\t' "
            "that cannot start any token (column 1)",
        ),
        (["serve", "--config", "there"], "tensor-gateway: there:1: expected keys and values"),
        (["serve", "--config", "broken"], "tensor-gateway: broken:3: not YAML: "),
        (["serve", "--backend", "localhost:8000"], "did you mean `http://localhost:8000`?"),
        (["serve", "--backend", "[::1]:8000"], "did you mean `http://[::1]:8000`?"),
        (["serve", "--backend", "http://x/v2"], "leave out /v2, with which the path of every request begins anyway"),
        (["serve", "--backend", "http://x:8000/a/v2/models/m/infer"], "leave out /v2"),
        (["serve", "--backend", "grpc://x:8001"], "expected the URL of the server's HTTP port"),
        (["serve", "--backend", "http://x", "--listen", "here"], "--listen: expected host:port"),
        # MLServer has the same port
        (["serve", "--backend", "http://127.0.0.1:8080"], "this is the gateway's own listener"),
        (["serve", "--backend", "http://127.0.0.1:9090"], "this is the gateway's own `admin`, which is never for"),
        (["check"], "the following arguments are required: FILE"),
        (["check", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["check", "."], ".: cannot be read: Is a directory"),
        (["check", "http://x"], "cannot be read: No such file or directory"),
    ],
)
def test_what_was_meant_otherwise_is_said_in_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "there").write_text("not keys")
    (tmp_path / "tabs").write_text("backends:\n\ta: {}\n")
    (tmp_path / "broken").write_text("a: b\nc: [\n")
    monkeypatch.chdir(tmp_path)
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(str(ended.code))
    printed = capfd.readouterr()
    assert (code, printed.out) == (2, "")
    lines = printed.err.splitlines()
    if "usage:" in printed.err:
        lines = [line for line in lines if line.startswith("tensor-gateway ")]
    (line,) = lines
    assert words in line


def test_a_file_that_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("backends: {a: {endpoints: ['http://x']}}")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    for command in (["serve", "--config"], ["check"]):
        result = run_inside(*command, str(path))
        assert result.returncode == 2
        assert result.stderr.removeprefix("tensor-gateway: ") == f"{path}: cannot be read: Permission denied\n"


@pytest.mark.parametrize(
    ("endpoint", "key", "reason"),
    [
        ("http://x/v2", "endpoints[0]", "leave out /v2"),
        ("x:8000", "endpoints[0]", "did you mean `http://x:8000`?"),
        ("grpc://x:8001", "endpoints[0]", "not of its gRPC port"),
        ("http//x:8000", "endpoints[0]", "got 'http//x:8000'\n"),  # and no guess, which would be worse
        ("unix:/run/x.sock", "endpoints[0]", "got 'unix:/run/x.sock'\n"),
    ],
)
def test_check_names_the_line_of_an_odd_url(tmp_path: Path, endpoint: str, key: str, reason: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(f"backends:\n  a:\n    endpoints:\n      - {endpoint}\n")
    result = run_inside("check", str(path))
    assert result.stderr.startswith(f"{path}:4: ")
    assert f"backends.a.{key}: " in result.stderr
    assert reason in result.stderr


async def test_serve_takes_a_url_and_a_port_alone_is_one_of_this_machine(server: JsonServer) -> None:
    arguments = ("--backend", server.url, "--listen", "0", "--admin", "0")
    async with process("serve", *arguments, first_look=True) as serve:
        urls = [await url_in_line(serve.stderr), await url_in_line(serve.stderr)]
        assert serve.stderr is not None
        line = (await asyncio.wait_for(serve.stderr.readline(), 30)).decode()
    assert all(url.startswith("http://127.0.0.1:") for url in urls)
    assert re.search(rf" INFO gateway: backend '\w+': {server.url}: embedded 1 answers$", line)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
async def test_a_backend_that_is_not_there_is_said_once_and_the_gateway_serves(
    workers: str, unused_tcp_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with process("serve", "--backend", url, *FREE, "--workers", workers, first_look=True) as serve:
        clients = await url_in_line(serve.stderr)
        await url_in_line(serve.stderr)
        assert serve.stderr is not None
        line = (await asyncio.wait_for(serve.stderr.readline(), 30)).decode()
        assert f"WARNING gateway: backend 'default': {url}: nothing listens on port {unused_tcp_port} there" in line
        async with aiohttp.ClientSession() as session, session.get(f"{clients}/v2") as response:
            assert response.status == 503
        serve.send_signal(signal.SIGTERM)
        _, errors = await serve.communicate()
        assert serve.returncode == 0
        assert b"nothing listens" not in errors


# Ports that are taken


def _by(pid: object) -> str:
    """A pattern of the words that name a process of Python; empty where this machine has no `ss`."""
    return rf" by python[\d.]* \(pid {pid}\)" if shutil.which("ss") else ""


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
async def test_each_taken_port_is_told_with_its_process_and_the_option(workers: str, server: JsonServer) -> None:
    async with process("serve", "--backend", server.url, *FREE) as first:
        clients, admin = [(await url_in_line(first.stderr)).removeprefix("http://") for _ in range(2)]
        # as somebody does who has the first still running: both addresses are taken, and both are told
        result = await asyncio.to_thread(
            run, "serve", "--backend", server.url, "--listen", clients, "--admin", admin, "--workers", workers
        )
        assert result.returncode == 1
        taken = re.compile(
            r"tensor-gateway: cannot listen on (\S+): address already in use"
            rf"{_by(first.pid)}; to listen elsewhere: --(listen|admin) ADDRESS, or `(listen|admin)` in the file"
        )
        found = [taken.fullmatch(line) for line in result.stderr.splitlines()]
        assert [(each[1], each[2]) for each in found if each] == [(admin, "admin"), (clients, "listen")]


@pytest.mark.slow
async def test_a_port_that_workers_have_is_told_too_and_the_key_of_the_file(tmp_path: Path, server: JsonServer) -> None:
    async with process("serve", "--backend", server.url, *FREE, "--workers", "2") as first:
        clients = (await url_in_line(first.stderr)).removeprefix("http://")
        file = tmp_path / "gateway.yaml"
        file.write_text(f"listen: {clients}\nadmin: 127.0.0.1:0\nbackends: {{a: {{endpoints: ['{server.url}']}}}}\n")
        result = await asyncio.to_thread(run, "serve", "--config", str(file))
        assert result.returncode == 1
        assert re.fullmatch(
            rf"tensor-gateway: cannot listen on {clients}: address already in use{_by('[0-9]+')}; "
            r"to listen elsewhere: --listen ADDRESS, or `listen` in the file\n",
            result.stderr,
        )


def test_an_address_that_this_machine_does_not_have() -> None:
    result = run("serve", "--backend", "http://127.0.0.1:1", "--listen", "192.0.2.1:8080", "--admin", "127.0.0.1:0")
    assert result.returncode == 1
    assert result.stderr == "tensor-gateway: cannot listen on 192.0.2.1:8080: cannot assign requested address\n"


def test_an_error_that_is_not_about_an_address_stays_as_it_is() -> None:
    config = parse("backends: {a: {endpoints: ['http://x']}}")
    error = OSError(errno.ENOSPC, "no temporary folder can be made")
    assert ports.explained(error, config) is error
