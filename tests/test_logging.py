"""Standard output that stalls or is gone stalls nothing, and decides nothing."""

import asyncio
import os
import signal

import aiohttp

from tests.conftest import Connection, answering, lying
from tests.test_cli import COMMAND, url_in_line

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
