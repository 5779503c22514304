"""The commands as a user types them; those that serve run in processes of their own."""

import asyncio
import contextlib
import datetime
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.cli import main
from gateway.demo import EXAMPLE, PORTS
from tests.certificates import Authority
from tests.conftest import Connection, lying, require_tool

LINE_OF_TOKENS = "expected `name: token`, each without blanks, the token of printable ASCII characters other than `#`"
COMMAND = [sys.executable, "-m", "gateway"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def run_inside(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As `run`, in this process: for commands that end by themselves. A process takes most of a second, for imports."""
    printed, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complained):
        try:
            code = main(list(arguments))
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            code = ended.code
    return subprocess.CompletedProcess(arguments, code, printed.getvalue(), complained.getvalue())


@pytest.fixture
def run_here() -> Callable[..., tuple[int, str, str]]:
    """As `run_inside`: its exit code, standard output and standard error."""

    def run_main(*arguments: str) -> tuple[int, str, str]:
        done = run_inside(*arguments)
        return done.returncode, done.stdout, done.stderr

    return run_main


def test_help_names_the_commands_and_their_options(run_here: Callable[..., tuple[int, str, str]]) -> None:
    for arguments, words in [
        (["--help"], ("serve", "check", "schema", "doctor", "demo")),
        (["doctor", "--help"], ("--model", "--yaml")),
        (["serve", "--help"], ("--config", "--backend", "--listen", "--admin")),
        (["demo", "--help"], ("--once",)),
    ]:
        code, printed, _ = run_here(*arguments)
        assert code == 0
        assert all(word in printed for word in words)


def test_a_misspelt_command_is_guessed(run_here: Callable[..., tuple[int, str, str]]) -> None:
    code, _, complaint = run_here("chek", "x.yaml")
    assert code == 2
    assert complaint.endswith("; did you mean check?\n")
    assert "did you mean" not in run_here("zzz")[2]


def test_check_takes_several_files(tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]) -> None:
    good, bad, other = (tmp_path / name for name in ("good.yaml", "bad.yaml", "other.yaml"))
    good.write_text("backends: {a: {endpoints: ['http://x:1']}}\n")
    bad.write_text("backends: []\n")
    other.write_text("backends: {b: {endpoints: ['http://x:1']}}\n")
    code, printed, complaint = run_here("check", str(good), str(bad), str(other))
    assert code == 2
    assert printed == f"{good}: valid; backends: a\n{other}: valid; backends: b\n"
    assert complaint.startswith(f"{bad}:1: backends: ")
    assert run_here("check", str(good), str(other))[0] == 0


def test_the_installed_command_is_the_same() -> None:
    command = Path(sys.executable).with_name("tensor-gateway")
    assert subprocess.check_output([command, "--version"], text=True) == run_inside("--version").stdout


def test_an_interrupt_while_modules_are_imported_ends_quietly() -> None:
    start = """
import sys

class Interrupted:
    def find_spec(self, name, *rest):
        if name == "gateway.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
from gateway.__main__ import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", start, "demo"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_check_says_good_or_what_is_wrong(tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]) -> None:
    good = tmp_path / "good.yaml"
    good.write_text("backends: {a: {endpoints: ['http://x:1']}}")
    assert run_here("check", str(good)) == (0, f"{good}: valid; backends: a\n", "")
    bad = tmp_path / "bad.yaml"
    bad.write_text("backends: {a: {endpoints: ['http://x:1'], nonfinit: reject}}")
    code, _, complaint = run_here("check", str(bad))
    assert code == 2
    assert complaint == f"{bad}:1: backends.a.nonfinit: unknown key, did you mean `nonfinite`?\n"
    missing = tmp_path / "none.yaml"
    assert run_here("check", str(missing)) == (2, "", f"{missing}: cannot be read: No such file or directory\n")


def test_check_tells_all_errors_and_warnings_in_one_run(
    tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("admin: 0.0.0.0:9090\nworkers: 0\nbackends:\n  a:\n    endpoints: x\n")
    code, printed, complaints = run_here("check", str(bad))
    assert (code, printed) == (2, "")
    assert [line.partition(" open")[0] for line in complaints.splitlines()] == [
        f"{bad}:1: warning: admin:",
        f"{bad}:2: workers: expected at least 1",
        f"{bad}:5: backends.a.endpoints: expected a list, got 'x'",
    ]
    code, printed, complaint = run_here("serve", "--config", str(bad))
    assert (code, printed) == (2, "")
    assert len(complaint.splitlines()) == 2, "serve tells the errors alone"


def test_warnings_leave_a_file_valid(tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("backends: {a: {endpoints: ['http://x:1']}}\nadmin: 0.0.0.0:9090\n")
    code, printed, complaint = run_here("check", str(path))
    assert (code, printed) == (0, f"{path}: valid; backends: a\n")
    assert complaint.startswith(f"{path}:2: warning: admin: open to other machines")


def test_check_reads_standard_input(
    run_here: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, expected in [
        (b"backends: {a: {endpoints: ['http://x:1']}}", (0, "-: valid; backends: a\n", "")),
        (b"\nbackends: {}", (2, "", "-:2: backends: expected at least one\n")),
    ]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        assert run_here("check", "-") == expected


def test_check_shows_nothing_that_came_from_outside(
    tmp_path: Path, run_here: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "abracadabra")
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "listen: ${SECRET}\nlogging: {access: '${SECRET}'}\naccess: {tokens_file: '${SECRET}'}\n"
        "backends: {a: {endpoints: ['http://${SECRET}/${SECRET}'], headers: {set: {A: '${SECRET}'}}}}\n"
    )
    code, printed, complaints = run_here("check", str(path))
    assert (code, len(complaints.splitlines())) == (2, 4)
    assert "abracadabra" not in printed + complaints


@pytest.mark.parametrize("content", ["abracadabra\n", "-----BEGIN PRIVATE KEY-----\nabracadabra\n-----END"])
@pytest.mark.parametrize(
    "keys",
    [
        "access: {tokens_file: VALUE}",
        "tls: {certificate: VALUE, key: k}",
        "tls: {certificate: VALUE, key: VALUE}",
        "tls: {certificate: CERTIFICATE, key: VALUE}",
        "tls: {certificate: CERTIFICATE, key: KEY, client_ca: VALUE}",
        "backends: {a: {endpoints: ['https://x'], tls: {ca: VALUE}}}",
        "backends: {a: {endpoints: ['https://x'], tls: {certificate: VALUE, key: VALUE}}}",
    ],
)
def test_what_a_file_holds_is_never_shown_where_its_path_was_meant(
    tmp_path: Path, run_here: Callable[..., tuple[int, str, str]], keys: str, content: str
) -> None:
    (tmp_path / "secret").write_text(content)
    pair = Authority(tmp_path).issue()
    path = tmp_path / "gateway.yaml"
    backends = "" if "backends" in keys else "backends: {a: {endpoints: ['http://x:1']}}\n"
    for word, value in (("VALUE", "'${file:secret}'"), ("CERTIFICATE", pair.certificate), ("KEY", pair.key)):
        keys = keys.replace(word, str(value))
    path.write_text(f"{keys}\n{backends}listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n")
    for command in (["check", str(path)], ["serve", "--config", str(path)]):
        code, printed, complaints = run_here(*command)
        assert code == 2
        assert complaints
        assert "abracadabra" not in printed + complaints


def test_check_proves_the_files_that_keys_name(tmp_path: Path, run_here: Callable[..., tuple[int, str, str]]) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# clients\na: secret\nb secret\n")
    path = tmp_path / "gateway.yaml"
    path.write_text("backends: {a: {endpoints: ['http://x:1']}}\naccess:\n  tokens_file: tokens\n")
    with path.open("a") as file:
        file.write("tls: {certificate: c, key: tokens}\n")
    complaint = f"{path}:3: access.tokens_file: {tokens}:3: {LINE_OF_TOKENS}\n"
    complaint += f"{path}:4: tls.certificate: no such file: {tmp_path}/c\n"
    assert run_here("check", str(path)) == (2, "", complaint)


def test_check_warns_of_a_certificate_that_has_expired(
    tmp_path: Path, authority: Authority, run_here: Callable[..., tuple[int, str, str]]
) -> None:
    pair = authority.issue(not_after=datetime.datetime(2024, 2, 1))
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"tls:\n  certificate: {pair.certificate}\n  key: {pair.key}\nbackends: {{a: {{endpoints: ['http://x:1']}}}}\n"
    )
    code, _, complained = run_here("check", str(file))
    assert (code, complained) == (0, f"{file}:2: warning: tls.certificate: the certificate has expired\n")


@pytest.mark.parametrize("workers", [1, 2])
async def test_serve_warns_once_of_a_certificate_that_has_expired(
    tmp_path: Path, authority: Authority, workers: int
) -> None:
    pair = authority.issue(not_after=datetime.datetime(2024, 2, 1))
    file = tmp_path / "gateway.yaml"
    tls = f"workers: {workers}\ntls: {{certificate: {pair.certificate}, key: {pair.key}}}\n"
    file.write_text(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{tls}backends: {{a: {{endpoints: ['http://127.0.0.1:1']}}}}\n"
    )
    async with process("serve", "--no-first-look", "--config", str(file)) as serve:
        assert serve.stderr is not None
        lines = [(await serve.stderr.readline()).decode() for _ in range(3)]
    assert [line.partition(" WARNING ")[2] for line in lines] == [
        "gateway: tls.certificate: the certificate has expired\n",
        "",
        "",
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_serve_with_tokens_that_cannot_be_used_ends_with_2_and_one_line(
    tmp_path: Path, run_here: Callable[..., tuple[int, str, str]], workers: int
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a secret\n")
    path = tmp_path / "gateway.yaml"
    path.write_text(
        f"backends: {{a: {{endpoints: ['http://x:1']}}}}\naccess: {{tokens_file: tokens}}\nworkers: {workers}\n"
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n"
    )
    complaint = f"tensor-gateway: access.tokens_file: {tokens}:1: {LINE_OF_TOKENS}\n"
    assert run_here("serve", "--config", str(path)) == (2, "", complaint)


def test_schema_prints_a_json_schema(run_here: Callable[..., tuple[int, str, str]]) -> None:
    code, printed, complaint = run_here("schema")
    assert (code, complaint) == (0, "")
    assert json.loads(printed)["properties"]["listen"]["default"] == "127.0.0.1:8080"


@pytest.mark.parametrize("arguments", [[], ["serve"], ["serve", "--config", "a", "--backend", "b"], ["what"]])
def test_wrong_commands_are_refused(arguments: list[str], run_here: Callable[..., tuple[int, str, str]]) -> None:
    code, _, complaint = run_here(*arguments)
    assert code == 2
    assert "usage:" in complaint


def test_serve_with_a_bad_file_or_backend_exits_with_2() -> None:
    assert run("serve", "--config", "/does/not/exist.yaml").returncode == 2
    result = run_inside("serve", "--backend", "localhost:8000")
    assert result.returncode == 2
    assert "expected a URL" in result.stderr
    result = run_inside("serve", "--backend", "http://user:secret@127.0.0.1:8000")
    assert result.returncode == 2
    assert "without user" in result.stderr
    assert "secret" not in result.stderr


def test_a_backend_that_is_the_gateway_itself_is_refused_with_words(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("listen: 0.0.0.0:8000\nbackends: {a: {endpoints: ['http://localhost:8000']}}")
    for arguments in (
        ("serve", "--backend", "http://localhost:8000", "--listen", "127.0.0.1:8000"),
        ("serve", "--backend", "http://127.0.0.1:8080"),
        ("serve", "--config", str(path)),
        ("check", str(path)),
    ):
        result = run_inside(*arguments)
        assert result.returncode == 2
        assert "is the gateway's own listener" in result.stderr
        assert result.stdout == ""


_WITH_PORTS = """
import sys
from gateway import demo
demo.PORTS = tuple(map(int, sys.argv[1:5]))
sys.argv[1:] = ["demo", *sys.argv[5:]]
from gateway.__main__ import main
sys.exit(main())
"""
"""The demonstration on other ports than a user's: servers of others come to them and go while tests run."""


def demo_on(ports: Sequence[int], *options: str) -> list[str]:
    """The command of a demonstration that wants *ports*."""
    assert len(ports) == len(PORTS)
    return [sys.executable, "-c", _WITH_PORTS, *map(str, ports), *options]


def free_ports() -> list[int]:
    """Ports that are free, as many as the demonstration wants."""
    with contextlib.ExitStack() as taken:
        listeners = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        return [listener.getsockname()[1] for listener in listeners]


def test_demo_once_is_bit_exact_and_ends() -> None:
    result = subprocess.run(demo_on(free_ports(), "--once"), capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert "bit-exact: yes" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80, "a terminal as narrow as most begin"
    # first how long it takes without the gateway, in the text and in time
    straight, through = (
        re.search(rf"^  {way} +([0-9.]+) ms", result.stdout, re.MULTILINE)
        for way in ("JSON, straight to the server", "binary, through the gateway")
    )
    assert straight is not None
    assert through is not None
    assert straight.start() < through.start()
    assert float(straight[1]) > float(through[1])
    assert len(re.findall(r"^  [1-4]\. ", result.stdout, re.MULTILINE)) == 4


def test_output_that_nobody_reads_to_its_end_is_no_error() -> None:
    schema = subprocess.Popen([*COMMAND, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert schema.stdout is not None
    schema.stdout.close()
    _, errors = schema.communicate(timeout=60)
    assert errors == b""


@asynccontextmanager
async def process(
    *arguments: str, first_look: bool = False, command: Sequence[str] = COMMAND
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that goes on; without *first_look*, `serve` sends backends nothing and logs nothing by itself."""
    if arguments[:1] == ("serve",) and not first_look:
        arguments += ("--no-first-look",)
    running = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.communicate()


async def url_in_line(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    line = (await stream.readline()).decode()
    match = re.search(r"http://\S+", line)
    assert match is not None, line
    return match[0]


async def demonstration(demo: asyncio.subprocess.Process) -> str:
    """What the demonstration prints until it only serves."""
    assert demo.stdout is not None
    text = b""
    while b"Stop it with Ctrl-C." not in text:
        text += await asyncio.wait_for(demo.stdout.readline(), 60)
        assert not demo.stdout.at_eof(), text
    return text.decode()


def pasted(text: str, beginning: str) -> str:
    """The lines of *text* from the one with *beginning* to the empty one before a sentence, as a user copies them."""
    found = re.search(rf"^{re.escape(beginning)}.*?(?=\n\n[A-Z])", text, re.MULTILINE | re.DOTALL)
    assert found is not None, text
    return found[0]


@pytest.mark.slow
async def test_demo_keeps_serving_and_what_it_suggests_works(tmp_path: Path) -> None:
    curl = require_tool("curl", "apt-get install curl")
    async with process(command=demo_on(free_ports())) as demo:
        text = await demonstration(demo)
        code = pasted(text, "import numpy")
        printed = await asyncio.to_thread(subprocess.check_output, [sys.executable, "-c", code], text=True)
        assert printed == "(1, 3, 224, 224)\n"
        command = pasted(text, "curl -s").replace("curl", curl, 1)
        printed = await asyncio.to_thread(subprocess.check_output, command, shell=True, cwd=tmp_path, text=True)
        length = re.search(r"^Inference-Header-Content-Length: ([0-9]+)\s*$", printed, re.MULTILINE)
        assert length is not None, printed
        assert "outputs" not in printed, "no body on the terminal"
        assert (tmp_path / "answer.bin").read_bytes()[int(length[1]) :] == struct.pack("<3f", 1, 2, 3)
        assert re.search(r"^  its status page +http://127\.0\.0\.1:[0-9]+/$", text, re.MULTILINE)
        demo.send_signal(signal.SIGINT)
        output, errors = await asyncio.wait_for(demo.communicate(), 60)
        assert (demo.returncode, errors) == (0, b"")
        assert b"Traceback" not in output


def test_the_demos_program_is_the_readmes() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    program = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert program is not None
    assert program[1] == EXAMPLE


async def test_demo_takes_free_ports_where_its_own_are_taken_and_says_which() -> None:
    with contextlib.ExitStack() as taken:
        listeners = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in PORTS]
        own = [listener.getsockname()[1] for listener in listeners]
        async with process(command=demo_on(own)) as demo:
            text = await demonstration(demo)
            ports = set(map(int, re.findall(r"127\.0\.0\.1:(\d+)", text.partition("Stop it")[0])))
            assert len(ports) == len(PORTS)
            assert not ports & {*own}
            (metrics,) = re.findall(r"http://\S+/metrics", text)
            async with aiohttp.ClientSession() as session, session.get(metrics) as response:
                assert response.status == 200


async def test_serve_drains_on_sigterm_and_standard_output_is_the_access_log_alone() -> None:
    proceed = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.read_request()
        await proceed.wait()
        await connection.answer(b'{"done":true}')

    listen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    async with lying(slow) as liar, process("serve", "--backend", liar.url, *listen) as serve:
        clients, admin = await url_in_line(serve.stderr), await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:

            async def ask() -> Any:
                async with session.post(f"{clients}/v2/models/m/infer", json={"inputs": []}) as response:
                    return response.status, await response.json(), response.headers.get("Connection")

            asked = asyncio.create_task(ask())
            while not liar.connections:
                await asyncio.sleep(0.01)
            async with session.get(f"{admin}/-/ready") as response:
                assert response.status == 200
            serve.send_signal(signal.SIGTERM)
            assert serve.stderr is not None
            assert b" INFO gateway.announce: draining" in await serve.stderr.readline()
            async with session.get(f"{admin}/-/ready") as response:
                assert response.status == 503
            await asyncio.sleep(0)
            proceed.set()
            assert await asked == (200, {"done": True}, "close")
        assert await asyncio.wait_for(serve.wait(), 10) == 0
        assert serve.stdout is not None
        (line,) = [json.loads(line) for line in (await serve.stdout.read()).splitlines()]
        assert (line["path"], line["status"]) == ("/v2/models/m/infer", 200)


@asynccontextmanager
async def in_foreground(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`serve` as a shell starts it: Ctrl-C on the terminal goes to all its processes."""
    serve = await asyncio.create_subprocess_exec(
        *COMMAND, "serve", *arguments, "--no-first-look", stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        yield serve
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(serve.pid, signal.SIGKILL)
        await serve.communicate()


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
async def test_a_second_ctrl_c_does_not_wait_for_requests_in_flight(workers: str) -> None:
    async def never(connection: Connection) -> None:
        await connection.read_request()
        await connection.reader.read()

    listen = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", workers]
    async with lying(never) as liar, in_foreground("--backend", liar.url, *listen) as serve:
        assert serve.stderr is not None
        clients = await url_in_line(serve.stderr)
        await serve.stderr.readline()
        async with aiohttp.ClientSession() as session:
            asked = asyncio.create_task(session.get(f"{clients}/x"))
            while not liar.connections:
                await asyncio.sleep(0.01)
            os.killpg(serve.pid, signal.SIGINT)
            assert b" INFO gateway.announce: draining" in await asyncio.wait_for(serve.stderr.readline(), 30)
            assert serve.returncode is None
            os.killpg(serve.pid, signal.SIGINT)
            with pytest.raises(aiohttp.ClientError):
                await asyncio.wait_for(asked, 20)
        _, errors = await asyncio.wait_for(serve.communicate(), 20)
        assert serve.returncode == 130
        assert errors.endswith(b" INFO gateway.announce: interrupted: what was in flight is cut off\n")
        assert errors.count(b"\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_all_processes_while_workers_start_is_no_failure(sent: signal.Signals) -> None:
    async with in_foreground(
        "--backend", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--workers", "2"
    ) as serve:
        children = Path(f"/proc/{serve.pid}/task/{serve.pid}/children")
        while not children.read_text():
            await asyncio.sleep(0.01)
        os.killpg(serve.pid, sent)
        _, errors = await asyncio.wait_for(serve.communicate(), 60)
        assert serve.returncode == 0
        assert b"Traceback" not in errors
        assert b"did not start" not in errors


async def test_grace_ends_and_says_what_was_cut_off(tmp_path: Path) -> None:
    async def never(connection: Connection) -> None:
        await connection.read_request()
        await connection.reader.read()

    async with lying(never) as liar:
        config = tmp_path / "gateway.yaml"
        config.write_text(
            "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nshutdown: {grace: 200ms}\n"
            f"backends: {{a: {{endpoints: ['{liar.url}']}}}}\n"
        )
        async with process("serve", "--config", str(config)) as serve:
            clients = await url_in_line(serve.stderr)
            async with aiohttp.ClientSession() as session:
                asked = asyncio.create_task(session.get(f"{clients}/x"))
                while not liar.connections:
                    await asyncio.sleep(0.01)
                serve.send_signal(signal.SIGTERM)
                async with await asked as reply:
                    assert reply.status == 503
                    assert "within shutdown.grace" in (await reply.json())["error"]
            printed, errors = await asyncio.wait_for(serve.communicate(), 10)
            assert serve.returncode == 0
            line = json.loads(printed)
            assert (line["status"], line["reason"], line["blame"]) == (503, "overloaded", "gateway")
            assert b"1 requests in flight are cut off" in errors
            assert b"Traceback" not in errors
