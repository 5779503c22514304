"""Standard output that stalls or is gone stalls nothing, and decides nothing."""

import asyncio
import fcntl
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from gateway.telemetry.log_writer import ACCESS, PIPE_BYTES, QUEUE_BYTES, LogWriter
from tests.conftest import Connection, answering, lying
from tests.test_cli import COMMAND, url_in_line
from tests.test_workers import children_of

LISTEN = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--no-first-look"]


async def test_a_reader_of_standard_output_that_is_gone_does_not_end_requests() -> None:
    proceed = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.read_request()
        await proceed.wait()
        await connection.answer(b"done")

    async with lying(slow) as liar:
        ours, theirs = os.pipe()
        serve = await asyncio.create_subprocess_exec(
            *COMMAND, "serve", "--backend", liar.url, *LISTEN, stdout=theirs, stderr=asyncio.subprocess.PIPE
        )
        os.close(theirs)
        url = await url_in_line(serve.stderr)
        os.close(ours)
        async with aiohttp.ClientSession() as session:

            async def ask() -> bytes:
                async with session.get(f"{url}/x") as response:
                    return await response.read()

            asked = asyncio.create_task(ask())
            while not liar.connections:
                await asyncio.sleep(0.01)
            serve.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            proceed.set()
            assert await asked == b"done"
        _, errors = await serve.communicate()
        assert serve.returncode == 0
        assert b"log lines were dropped" in errors
        assert b"Traceback" not in errors


@pytest.mark.slow
async def test_a_reader_of_standard_output_that_stalls_stops_neither_requests_nor_the_end() -> None:
    async with lying(answering(b"ok")) as liar:
        ours, theirs = os.pipe()
        serve = await asyncio.create_subprocess_exec(
            *COMMAND, "serve", "--backend", liar.url, *LISTEN, stdout=theirs, stderr=asyncio.subprocess.PIPE
        )
        os.close(theirs)
        url = await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:

            async def ask(count: int) -> None:
                for _ in range(count):
                    async with session.get(f"{url}/{'x' * 1000}") as response:
                        assert await response.read() == b"ok"

            await asyncio.gather(*(ask(50) for _ in range(8)))
        serve.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(serve.wait(), 20) == 0
        os.close(ours)


@pytest.mark.slow
async def test_a_reader_of_standard_output_that_stalls_does_not_silence_standard_error() -> None:
    async with lying(answering(b"ok")) as liar:
        ours, theirs = os.pipe()
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 4096)
        serve = await asyncio.create_subprocess_exec(
            *COMMAND, "serve", "--backend", liar.url, *LISTEN, stdout=theirs, stderr=asyncio.subprocess.PIPE
        )
        os.close(theirs)
        assert serve.stderr is not None
        url = await url_in_line(serve.stderr)
        await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:
            for _ in range(20):
                async with session.get(f"{url}/{'x' * 1000}") as response:
                    assert await response.read() == b"ok"
            serve.send_signal(signal.SIGHUP)
            assert b"SIGHUP ignored" in await asyncio.wait_for(serve.stderr.readline(), 20)
        serve.send_signal(signal.SIGTERM)
        _, errors = await serve.communicate()
        assert serve.returncode == 0
        assert re.search(rb" ERROR gateway: \d\d log lines were dropped$", errors, re.MULTILINE)
        os.close(ours)


@pytest.mark.slow
async def test_log_lines_that_nobody_reads_do_not_hold_up_the_end() -> None:
    async with lying(answering(b"ok")) as liar:
        ours, theirs = os.pipe()
        serve = await asyncio.create_subprocess_exec(
            *COMMAND, "serve", "--backend", liar.url, *LISTEN, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        with os.fdopen(ours, "rb", 0) as lines:
            fcntl.fcntl(lines, fcntl.F_SETPIPE_SZ, 4096)
            url = (await asyncio.to_thread(lines.readline)).split()[-1].decode()
            async with aiohttp.ClientSession() as session:
                for _ in range(20):
                    async with session.get(f"{url}/{'x' * 1000}") as response:
                        assert await response.read() == b"ok"
            serve.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(serve.wait(), 20) == 0


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
async def test_no_socket_takes_the_number_of_a_standard_stream_that_was_closed(workers: str) -> None:
    async with lying(answering(b"ok")) as liar:
        command = [*COMMAND, "serve", "--backend", liar.url, *LISTEN, "--workers", workers, "--log", "json"]
        serve = await asyncio.create_subprocess_exec(
            *("sh", "-c", 'exec "$@" <&- >&-', "sh", *command), stderr=asyncio.subprocess.PIPE
        )
        url = await url_in_line(serve.stderr)
        streams = [(serve.pid, 0), *((pid, 1) for pid in (serve.pid, *children_of(serve.pid)))]
        assert {os.readlink(f"/proc/{pid}/fd/{descriptor}") for pid, descriptor in streams} == {os.devnull}
        async with aiohttp.ClientSession() as session, session.get(f"{url}/x") as response:
            assert await response.read() == b"ok"
        serve.send_signal(signal.SIGTERM)
        _, errors = await serve.communicate()
        assert serve.returncode == 0
        assert b"dropped" not in errors


@pytest.mark.parametrize("line_bytes", [50_000, 1000])
def test_lines_that_wait_for_a_reader_have_a_limit_in_bytes(line_bytes: int) -> None:
    n_lines = 12_000
    writer = LogWriter("info")  # not started: nothing is taken from the queue
    record = logging.LogRecord(ACCESS, logging.INFO, "", 0, "x" * line_bytes, None, None)
    for _ in range(n_lines):
        writer.handle(record)
    assert writer.dropped == n_lines - QUEUE_BYTES // (line_bytes + 1)


def test_lines_that_were_written_make_room_for_others(capfd: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers, logging.getLogger().level
    writer = LogWriter("info")
    writer.start()
    try:
        record = logging.LogRecord(ACCESS, logging.INFO, "", 0, "x" * (QUEUE_BYTES - 1), None, None)
        for number in range(3):
            writer.handle(record)
            while writer._output._waiting:
                os.sched_yield()
            assert writer.dropped == 0, number
    finally:
        writer.stop()
        logging.getLogger().handlers, logging.getLogger().level = before
    assert len(capfd.readouterr().out) == 3 * QUEUE_BYTES


def test_lines_that_come_together_count_each_and_are_dropped_together() -> None:
    writer = LogWriter("info")  # not started: nothing is taken from the queue
    thousand = logging.LogRecord(ACCESS, logging.INFO, "", 0, "\n".join(["x" * 1023] * 1000), None, None)
    for _ in range(QUEUE_BYTES // (1000 * 1024)):
        writer.handle(thousand)
    assert writer.dropped == 0
    writer.handle(thousand)
    assert writer.dropped == 1000


def test_pieces_are_whole_lines_that_a_pipe_takes_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "\n".join("x" * length for length in (4095, 10, 4085, 4084, 5000, 1, 2))
    pieces: list[bytes] = []

    def write(descriptor: int, piece: bytes) -> int:
        pieces.append(piece)
        return len(piece)

    monkeypatch.setattr("gateway.telemetry.log_writer.os.write", write)
    writer = LogWriter("info")
    writer.handle(logging.LogRecord(ACCESS, logging.INFO, "", 0, lines, None, None))
    writer._output.start()
    writer._output.stop()
    assert b"".join(pieces).decode() == f"{lines}\n"
    assert [len(piece) for piece in pieces] == [4096, 11, 4086, 4085, 5001, 5]


WRITING = """
import logging, random, sys
from gateway.telemetry.log_writer import ACCESS, LogWriter
writer = LogWriter("info")
writer.start()
name, rng = sys.argv[1], random.Random(sys.argv[1])
for first in range(0, 4000, 40):
    lengths = [rng.randrange(1, 700) for _ in range(40)]
    lines = [f"{name} {first + index} {length} {'x' * length}" for index, length in enumerate(lengths)]
    logging.getLogger(ACCESS).info("\\n".join(lines))
output = writer._output
while output._waiting:
    output._thread.join(0.01)
writer.stop()
"""


async def written_by_three(descriptor: int) -> None:
    """Three processes that write 4000 lines each to the same *descriptor*."""
    writers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", WRITING, name), stdout=descriptor, stderr=asyncio.subprocess.PIPE
        )
        for name in "abc"
    ]
    for writer in writers:
        _, errors = await writer.communicate()
        assert (writer.returncode, errors) == (0, b"")


def assert_whole_and_in_order(text: str) -> None:
    seen = {"a": 0, "b": 0, "c": 0}
    for line in text.splitlines():
        match = re.fullmatch(r"([abc]) (\d+) (\d+) (x+)", line)
        assert match is not None, line
        assert int(match[2]) == seen[match[1]]
        assert len(match[4]) == int(match[3])
        seen[match[1]] += 1
    assert set(seen.values()) == {4000}


@pytest.mark.parametrize("waits", [True, False])
async def test_lines_of_several_processes_are_not_mixed_in_a_pipe_that_is_full(waits: bool) -> None:
    """*waits*: a terminal's other programs, and some that start others, leave pipes that do not."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, waits)
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 2 * PIPE_BYTES)

    def read() -> str:
        with os.fdopen(ours, "rb", 0) as pipe:
            return b"".join(iter(lambda: pipe.read(1000), b"")).decode()

    reading = asyncio.create_task(asyncio.to_thread(read))
    try:
        await written_by_three(theirs)
    finally:
        os.close(theirs)
        text = await reading
    assert_whole_and_in_order(text)


@pytest.mark.parametrize("flags", [os.O_APPEND, 0])
async def test_lines_of_several_processes_are_not_mixed_in_a_file(tmp_path: Path, flags: int) -> None:
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | flags)
    try:
        await written_by_three(file)
    finally:
        os.close(file)
    assert_whole_and_in_order((tmp_path / "log").read_text())


FILLING = """
import logging, os, resource
from gateway.telemetry.log_writer import ACCESS, LogWriter
writer = LogWriter("info")
writer.start()
log, output = logging.getLogger(ACCESS), writer._output
for limit in (1000, 2000):  # each as a disk that is full after so many bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    log.info("\\n".join("x" * 69 for _ in range(20)))
    while os.fstat(1).st_size < limit:
        output._thread.join(0.01)
    output._thread.join(0.1)  # the rest of the line is tried meanwhile
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.info("y")
writer.stop()
"""


def test_lines_are_whole_and_all_there_on_a_disk_that_was_full_for_a_while(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as output:
        run = subprocess.run([sys.executable, "-c", FILLING], stdout=output, stderr=subprocess.PIPE, check=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == ["x" * 69] * 40 + ["y"]
    (said,) = run.stderr.decode().splitlines()
    assert "ERROR gateway: lines of standard output cannot be written: File too large" in said


async def test_standard_error_says_that_standard_output_cannot_be_written() -> None:
    async with lying(answering(b"ok")) as liar:
        full = os.open("/dev/full", os.O_WRONLY)
        serve = await asyncio.create_subprocess_exec(
            *COMMAND, "serve", "--backend", liar.url, *LISTEN, stdout=full, stderr=asyncio.subprocess.PIPE
        )
        os.close(full)
        url = await url_in_line(serve.stderr)
        await url_in_line(serve.stderr)
        assert serve.stderr is not None
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                async with session.get(f"{url}/x") as response:
                    assert await response.read() == b"ok"
            line = await asyncio.wait_for(serve.stderr.readline(), 20)
        assert b"lines of standard output cannot be written: No space left on device" in line
        serve.send_signal(signal.SIGTERM)
        _, errors = await serve.communicate()
        assert serve.returncode == 0
        assert b"3 log lines were dropped" in errors


@asynccontextmanager
async def logging_to_a_file(folder: Path, url: str, *options: str) -> AsyncIterator[tuple[str, Path]]:
    """A gateway in front of *url* that writes its access log to a file, and ends by SIGTERM in the end."""
    file = folder / "access.log"
    with file.open("wb") as output:
        serve = await asyncio.create_subprocess_exec(
            *(*COMMAND, "serve", "--backend", url, *LISTEN, "--log", "json", *options),
            stdout=output,
            stderr=asyncio.subprocess.PIPE,
        )
    try:
        yield await url_in_line(serve.stderr), file
    finally:
        serve.send_signal(signal.SIGTERM)
        _, errors = await serve.communicate()
    assert serve.returncode == 0
    assert b"dropped" not in errors


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
async def test_no_line_is_lost_when_the_gateway_ends(tmp_path: Path, workers: str) -> None:
    async with lying(answering(b"ok")) as liar:
        async with logging_to_a_file(tmp_path, liar.url, "--workers", workers) as (url, file):
            async with aiohttp.ClientSession() as session:
                for number in range(50):
                    headers = {"Connection": "close"} if number % 10 == 9 else {}
                    async with session.get(f"{url}/{number}", headers=headers) as response:
                        assert await response.read() == b"ok"
        paths = re.findall(r'"path":"/(\d+)"', file.read_text())
    assert sorted(map(int, paths)) == list(range(50))


async def test_lines_are_written_soon_without_others(tmp_path: Path) -> None:
    async with lying(answering(b"ok")) as liar, logging_to_a_file(tmp_path, liar.url) as (url, file):
        async with aiohttp.ClientSession() as session:
            for number in range(3):
                async with session.get(f"{url}/{number}") as response:
                    assert await response.read() == b"ok"
                async with asyncio.timeout(20):
                    while file.read_bytes().count(b"\n") < number + 1:
                        await asyncio.sleep(0.01)


FULL = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
workers: {workers}
logging: {logging}
shutdown: {{grace: 5s}}
backends: {{good: {{endpoints: ['{good}']}}, gone: {{endpoints: ['http://127.0.0.1:9']}}}}
routes: [{{name: gone, path_prefix: /gone, backend: gone}}, {{name: all, backend: good}}]
"""

TROUBLE = """
import sys, warnings, logging, threading
from gateway.serving import relaying

async def broken(*_):
    warnings.warn("a library warns")
    logging.getLogger("some.library").error("a library logs")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()  # what Python prints of it would stand in the middle of a line
    raise RuntimeError("a bug")

relaying._advertise = broken
from gateway.__main__ import main
sys.exit(main())
"""
"""A gateway in which everything that libraries and bugs do goes wrong with `GET /v2`."""


async def serving_url(stream: asyncio.StreamReader | None) -> str:
    """The clients' URL; other lines may come before the one that announces it."""
    assert stream is not None
    while (found := re.search(r"serves clients on (http://\S+)", (await stream.readline()).decode())) is None:
        assert not stream.at_eof()
    return found[1]


async def everything_asked(url: str) -> Counter[int]:
    """Requests of every outcome; how often each status came."""
    statuses: Counter[int] = Counter()
    async with aiohttp.ClientSession() as session:
        for path in ("/x", "/y?a=%22%0A", "/gone", "/v2", "/../x"):
            async with session.get(URL(url + path, encoded=True), headers={"X-Request-Id": f"id {path}"}) as response:
                statuses[response.status] += 1
        async with session.post(f"{url}/v2/models/m/infer", data=b"\xff") as response:
            statuses[response.status] += 1
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x16\x03\x01 no HTTP \r\n\r\n")
    statuses[int((await reader.readline()).split()[1])] += 1
    writer.close()
    return statuses


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_standard_output_is_one_json_object_a_line_whatever_goes_wrong(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "gateway.yaml"
    script = [sys.executable, "-W", "always", "-c", TROUBLE]
    async with lying(answering(b"{}")) as liar:
        file.write_text(FULL.format(workers=workers, logging="{level: debug, access: json}", good=liar.url))
        serve = await asyncio.create_subprocess_exec(
            *script, "serve", "--config", str(file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        url = await serving_url(serve.stderr)
        statuses = await everything_asked(url)
        file.write_text("nonsense")
        serve.send_signal(signal.SIGHUP)
        serve.send_signal(signal.SIGTERM)
        output, errors = await serve.communicate()
    assert serve.returncode == 0, errors
    lines = [json.loads(line) for line in output.splitlines()]
    assert Counter(line["status"] for line in lines) == statuses
    assert {"/x", "/y?a=%22%0A", "/gone"} <= {line["path"] for line in lines}
    blames = {line["path"]: (line["reason"], line["blame"], line["request_id"]) for line in lines}
    assert blames["/gone"] == ("unreachable", "backend", "id /gone")
    assert blames["/../x"][:2] == ("malformed_request", "client")
    assert blames["/x"] == (None, None, "id /x")
    if workers == 1:  # workers are processes of their own, without the trouble
        assert blames["/v2"][:2] == ("internal", "gateway")
        for text in (b"a library warns", b"a library logs", b"ZeroDivisionError", b"RuntimeError: a bug"):
            assert text in errors


async def test_without_an_access_log_standard_output_is_empty_and_failures_are_on_standard_error(
    tmp_path: Path,
) -> None:
    file = tmp_path / "gateway.yaml"
    async with lying(answering(b"{}")) as liar:
        file.write_text(FULL.format(workers=1, logging="{access: none, sample: 0}", good=liar.url))
        serve = await asyncio.create_subprocess_exec(
            *(*COMMAND, "serve", "--config", str(file)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        url = await url_in_line(serve.stderr)
        await everything_asked(url)
        serve.send_signal(signal.SIGTERM)
        output, errors = await serve.communicate()
    assert (serve.returncode, output) == (0, b"")
    (line,) = (line for line in errors.decode().splitlines() if "failed" in line)
    assert " path=/gone " in line
    assert " reason=unreachable blame=backend " in line
    assert line.endswith('request_id="id /gone"')


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_share_of_good_requests_is_logged_and_every_error(tmp_path: Path, workers: int) -> None:
    n_requests = 2000
    file = tmp_path / "gateway.yaml"
    async with lying(answering(b"{}")) as liar:
        file.write_text(FULL.format(workers=workers, logging="{sample: 0.05}", good=liar.url))
        serve = await asyncio.create_subprocess_exec(
            *(*COMMAND, "serve", "--config", str(file)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        url = await url_in_line(serve.stderr)
        async with aiohttp.ClientSession() as session:

            async def ask(path: str, count: int) -> None:
                for _ in range(count):
                    async with session.get(url + path) as response:
                        await response.read()

            await asyncio.gather(*(ask("/x", n_requests // 8) for _ in range(8)), ask("/gone", 30))
        serve.send_signal(signal.SIGTERM)
        output, _ = await serve.communicate()
    paths = Counter(json.loads(line)["path"] for line in output.splitlines())
    assert paths["/gone"] == 30
    # of 2000 with 5 % each, less than 30 or more than 180 come once in a million runs
    assert 30 <= paths["/x"] <= 180


async def said_on_a_terminal(access: str) -> list[str]:
    """The lines of three requests on a terminal, the last of which has failed."""
    async with lying(answering(b'{"answer": 1}')) as liar:
        ours, theirs = pty.openpty()
        options = [*LISTEN, "--log", access] if access else LISTEN
        serve = await asyncio.create_subprocess_exec(
            *COMMAND,
            *("serve", "--backend", liar.url, *options),
            stdout=theirs,
            stderr=asyncio.subprocess.PIPE,
        )
        os.close(theirs)
        url = await url_in_line(serve.stderr)
        long = "x" * 200
        async with aiohttp.ClientSession() as session:
            for path in ("/v2/models/resnet/ready", f"/v2/models/{long}%1B%5B2J/ready"):
                async with session.get(URL(f"{url}{path}", encoded=True)) as response:
                    await response.read()
            binary = {"Inference-Header-Content-Length": "7"}
            async with session.post(f"{url}/v2/models/resnet/infer", data=b"no json", headers=binary) as response:
                assert response.status == 400
        serve.send_signal(signal.SIGTERM)
        await serve.communicate()
        printed = await asyncio.to_thread(os.read, ours, 65536)
        os.close(ours)
    return printed.decode().splitlines()


async def test_on_a_terminal_a_request_is_one_short_line_and_json_stays_json() -> None:
    ready, long, failed = await said_on_a_terminal("")
    start, end = r"time=\S+Z status=", r" seconds=0\.\d+"
    assert re.fullmatch(f"{start}200 method=GET path=/v2/models/resnet/ready model=resnet{end}", ready)
    assert "\x1b" not in long
    refused = "400 method=POST path=/v2/models/resnet/infer model=resnet"
    assert re.fullmatch(f'{start}{refused}{end} reason=malformed_request detail=".*JSON.*"', failed)
    lines = await said_on_a_terminal("json")
    assert [json.loads(line)["status"] for line in lines] == [200, 200, 400]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
async def test_standard_error_is_one_json_object_a_line_if_asked_for(tmp_path: Path, workers: int) -> None:
    file = tmp_path / "gateway.yaml"
    async with lying(answering(b"{}")) as liar:
        file.write_text(FULL.format(workers=workers, logging="{access: none, format: json}", good=liar.url))
        serve = await asyncio.create_subprocess_exec(
            *(*COMMAND, "serve", "--config", str(file)), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        assert serve.stderr is not None
        said = [json.loads(await serve.stderr.readline()) for _ in range(2)]
        url = re.findall(r"http://[^\s]+", said[0]["message"])[0]
        async with aiohttp.ClientSession() as session, session.get(f"{url}/gone") as response:
            assert response.status == 503
        file.write_text(file.read_text().replace("listen:", "lisden:"))
        serve.send_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            while not said[-1]["message"].startswith("not reloaded"):
                said.append(json.loads(await serve.stderr.readline()))
        serve.send_signal(signal.SIGTERM)
        _, errors = await serve.communicate()
    said += [json.loads(line) for line in errors.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each["time"]) for each in said)
    levels = [(each["level"], each["logger"], each["message"].split()[0]) for each in said]
    assert levels[0] == ("info", "gateway.announce", "tensor-gateway")
    assert ("warning", "gateway", "failed:") in levels
    assert ("error", "gateway", "not") in levels
    assert levels[-1] == ("info", "gateway.announce", "draining:")
    (failed,) = (each for each in said if each["message"].startswith("failed:"))
    assert re.fullmatch(r"worker \d+", failed.get("process", "")) if workers > 1 else "process" not in failed


async def test_the_format_of_standard_error_changes_with_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    async with lying(answering(b"{}")) as liar:
        file.write_text(FULL.format(workers=1, logging="{access: none}", good=liar.url))
        serve = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "always", "-c", TROUBLE, "serve", "--config", str(file)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert serve.stderr is not None
        url = await serving_url(serve.stderr)
        assert b" INFO gateway.announce: status page" in await serve.stderr.readline()
        file.write_text(FULL.format(workers=1, logging="{access: none, format: json}", good=liar.url))
        serve.send_signal(signal.SIGHUP)
        async with asyncio.timeout(30):
            while b'"message":"reloaded' not in await serve.stderr.readline():
                pass
        await everything_asked(url)
        serve.send_signal(signal.SIGTERM)
        _, errors = await serve.communicate()
    # what Python itself prints of a thread's end may stand before a line
    said = [json.loads(line[at:]) for line in errors.splitlines() if (at := line.find(b'{"time"')) >= 0]
    assert any(each["logger"] == "py.warnings" and "a library warns" in each["message"] for each in said)
    assert any("RuntimeError: a bug" in each["message"] + each.get("exception", "") for each in said)


PRINTING = """
import logging
from gateway.telemetry.log_writer import ACCESS, LogWriter
writer = LogWriter("info")
writer.start()
print("printed")
logging.getLogger(ACCESS).info("line")
writer.stop()
print("after")
"""


async def test_what_an_adapter_prints_stands_in_no_access_log() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PRINTING), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert await process.communicate() == (b"line\nafter\n", b"printed\n")
