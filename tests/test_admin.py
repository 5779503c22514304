"""The admin listener among those who should not be there: what they cannot take from operators, probes and clients."""

import asyncio
import logging
import logging.config
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from gateway.config import parse
from gateway.process.admin import MAX_CONNECTIONS, AdminListener

N_SCRAPES = 10


def nothing() -> Any:
    raise ValueError("it is not there")


@asynccontextmanager
async def listener(metrics: Any = nothing) -> AsyncIterator[str]:
    config = parse("admin: 127.0.0.1:0\nbackends: {a: {endpoints: ['http://127.0.0.1:1']}}")
    application = SimpleNamespace(
        config=config, exposition=metrics, not_ready=lambda: None, stalled=lambda: None, status=nothing
    )
    admin = AdminListener(application)  # type: ignore[arg-type]
    try:
        yield await admin.start()
    finally:
        await admin.stop()


async def test_many_connections_close_the_oldest_and_keep_no_probe_away() -> None:
    async with listener() as url, aiohttp.ClientSession() as session:
        host, port = urlsplit(url).hostname, urlsplit(url).port
        silent = [await asyncio.open_connection(host, port) for _ in range(MAX_CONNECTIONS + 20)]
        try:
            async with asyncio.timeout(30), session.get(f"{url}/-/live") as response:
                assert response.status == 200
            async with asyncio.timeout(30):
                for reader, _ in silent[:21]:
                    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                        await reader.readexactly(1)
            reader, writer = silent[-1]
            writer.write(b"GET /-/live HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(30):
                assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        finally:
            for _, writer in silent:
                writer.close()


async def test_scrapes_at_the_same_time_are_made_one_after_the_other() -> None:
    running: set[int] = set()
    most = 0

    def pieces() -> Iterator[str]:
        nonlocal most
        own = object()
        running.add(id(own))
        for _ in range(5):
            most = max(most, len(running))
            yield "busy 1\n"
        running.discard(id(own))

    async with listener(pieces) as url, aiohttp.ClientSession() as session:

        async def scrape() -> int:
            async with session.get(f"{url}/metrics") as response:
                return response.status

        assert await asyncio.gather(*(scrape() for _ in range(N_SCRAPES))) == [200] * N_SCRAPES
    assert most == 1


async def test_bad_requests_leave_nothing_in_the_log_and_failures_do(caplog: pytest.LogCaptureFixture) -> None:
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False})  # as servers do, such as uvicorn
    async with listener() as url, aiohttp.ClientSession() as session:
        for bad in (
            b"GARBAGE\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
            b"\x16\x03\x01\x02\x00",
        ):
            reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
            writer.write(bad)
            async with asyncio.timeout(30):
                assert (await reader.readline()).startswith(b"HTTP/1.0 400 ")
            writer.close()
        assert [each for each in caplog.records if each.levelno > logging.INFO] == []
        async with session.get(f"{url}/metrics") as response:
            assert response.status == 500
            assert await response.text() == "internal error; the log has the details\n"
    (record,) = (each for each in caplog.records if each.levelno > logging.INFO)
    assert record.getMessage() == "/metrics of the admin listener could not be answered"
    assert record.exc_info is not None
