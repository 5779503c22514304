"""Standard output that stalls or is gone stalls nothing, and decides nothing."""

import asyncio
import fcntl
import logging
import os
import re
import signal

import aiohttp
import pytest

from gateway.telemetry.log_writer import ACCESS, LOG_QUEUE_BYTES, LOG_QUEUE_LINES, LogWriter
from tests.conftest import Connection, answering, lying
from tests.test_cli import COMMAND, url_in_line
from tests.test_workers import children_of

LISTEN = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]


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
        assert re.search(rb"^\d\d log lines were dropped: nobody read them in time$", errors, re.MULTILINE)
        os.close(ours)


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


@pytest.mark.parametrize("workers", ["1", "2"])
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


@pytest.mark.parametrize(("line_bytes", "n_waiting"), [(50_000, LOG_QUEUE_BYTES // 50_001), (10, LOG_QUEUE_LINES)])
def test_lines_that_wait_for_a_reader_have_a_limit_in_number_and_in_bytes(line_bytes: int, n_waiting: int) -> None:
    """Ten thousand lines with the longest path would take 480 MB."""
    n_lines = 12_000
    writer = LogWriter("info")  # not started: nothing is taken from the queue
    record = logging.LogRecord(ACCESS, logging.INFO, "", 0, "x" * line_bytes, None, None)
    for _ in range(n_lines):
        writer.handle(record)
    assert writer.dropped == n_lines - n_waiting


def test_lines_that_were_written_make_room_for_others(capfd: pytest.CaptureFixture[str]) -> None:
    before = logging.getLogger().handlers, logging.getLogger().level
    writer = LogWriter("info")
    writer.start()
    try:
        record = logging.LogRecord(ACCESS, logging.INFO, "", 0, "x" * (LOG_QUEUE_BYTES - 1), None, None)
        for number in range(3):
            writer.handle(record)
            while writer._output._taken_bytes < writer._output._queued_bytes:
                os.sched_yield()
            assert writer.dropped == 0, number
    finally:
        writer.stop()
        logging.getLogger().handlers, logging.getLogger().level = before
    assert len(capfd.readouterr().out) == 3 * LOG_QUEUE_BYTES
