"""Clients that upload slowly, with whatever they announce: others are served all the same.

See docs/configuration.md, "Slow uploads give way".

Real sockets, and a gateway with small limits, so that a few connections do what thousands would; then the full size.
How long others wait can be judged where nothing else takes the processor, so most of these tests run alone.
Not here: who is ended for whom, see tests/policy/test_admission.py.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, Client, access_lines, running, tensor
from tests.system.scripted import counting, head_of, many_connections, total, wire

KIB, MIB = 1024, 1024 * 1024
INFER = "/v2/models/identity/infer"
RELAYED = "/v2/repository/models/identity/load"
TICK_S = 0.1
DEADLINE_S = 5.0
"""How long a request of others may take."""
LARGEST_SHARE_FAILED = 0.02

LIMITS = "limits: {request_body: 64MiB, in_flight_bytes: 64MiB, concurrent_requests: 48}\n"


@dataclass
class Attack:
    """Clients that announce a body and send it slowly; each reconnects as soon as it is ended if *is_endless*."""

    url: str
    path: str
    announced_bytes: int
    bytes_per_s: int
    is_endless: bool
    at_once_bytes: int = 0
    """Sent at the beginning."""
    ended: Counter[str] = field(default_factory=Counter)
    """How often the gateway ended one of them, by the status line."""
    words: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """One client."""
        while True:
            await self._upload()
            if not self.is_endless:
                return

    async def _upload(self) -> None:
        host, port = self.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        replied = asyncio.create_task(reader.read(1000))
        try:
            head = f"POST {self.path} HTTP/1.1\r\nHost: x\r\n{HEADER_LENGTH}: 100\r\n"
            writer.write(f"{head}Content-Length: {self.announced_bytes}\r\n\r\n".encode())
            writer.write(bytes(self.at_once_bytes))
            left = self.announced_bytes - self.at_once_bytes
            while not replied.done():
                piece = min(left, int(self.bytes_per_s * TICK_S))
                writer.write(bytes(piece))
                left -= piece
                await asyncio.wait([replied], timeout=TICK_S)
            reply = await replied
            self.ended[reply[:12].decode()] += 1
            self.words.add(reply.partition(b"\r\n\r\n")[2].decode())
        except ConnectionError:
            self.ended["reset"] += 1
        finally:
            replied.cancel()
            writer.close()


@asynccontextmanager
async def attacked(n_clients: int, attack: Attack) -> AsyncIterator[None]:
    """Inside, *n_clients* run *attack*."""
    clients = [asyncio.create_task(attack.run()) for _ in range(n_clients)]
    await asyncio.sleep(0.3)  # they have begun
    try:
        yield
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def message(n_bytes: int) -> tuple[bytes, dict[str, str]]:
    """A binary inference whose tensor has *n_bytes*."""
    array = np.zeros(n_bytes, np.uint8)
    text = json.dumps({"inputs": [tensor("x", array, "UINT8")]}).encode()
    return text + array.tobytes(), {HEADER_LENGTH: str(len(text))}


async def others(client: Client, for_s: float) -> list[tuple[int, int, float]]:
    """Small and large requests of others, for so long: the bytes, the status and the seconds of each."""
    results = []

    async def ask(n_bytes: int) -> None:
        body, headers = message(n_bytes)
        started = time.monotonic()
        try:
            async with asyncio.timeout(2 * DEADLINE_S):
                status = (await client.infer(body, headers=headers)).status
        except (TimeoutError, OSError):
            status = 0
        results.append((n_bytes, status, time.monotonic() - started))

    until = time.monotonic() + for_s
    async with asyncio.TaskGroup() as tasks:
        while time.monotonic() < until:
            for n_bytes in (64, 200 * KIB):
                tasks.create_task(ask(n_bytes))
            await asyncio.sleep(TICK_S)
    return results


async def steady(client: Client, seconds: float, chunked: bool = False) -> int:
    """The status of a request that is sent with 100 KiB/s, for so long; again if this machine did not keep it up."""
    for _ in range(3):
        status, slowest_bytes_per_s = await steady_once(client, seconds, chunked)
        if status != 408 or slowest_bytes_per_s > 80 * KIB:
            break
    return status


async def steady_once(client: Client, seconds: float, chunked: bool) -> tuple[int, float]:
    """The status, and the lowest bytes per second on average that were sent until any moment after the first second."""
    body, headers = message(int(100 * KIB * seconds))
    slowest_bytes_per_s = 100.0 * KIB

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal slowest_bytes_per_s
        n_bytes = int(100 * KIB * TICK_S)
        started = time.monotonic()
        for number, start in enumerate(range(0, len(body), n_bytes)):
            await asyncio.sleep(started + number * TICK_S - time.monotonic())
            if (elapsed_s := time.monotonic() - started) > 1:
                slowest_bytes_per_s = min(slowest_bytes_per_s, start / elapsed_s)
            yield body[start : start + n_bytes]

    length = {} if chunked else {"Content-Length": str(len(body))}
    reply = await client.request("POST", INFER, data=pieces(), headers=headers | length)
    return reply.status, slowest_bytes_per_s


def assert_served(results: list[tuple[int, int, float]]) -> None:
    failed = [each for each in results if each[1] != 200 or each[2] > DEADLINE_S]
    assert len(failed) <= LARGEST_SHARE_FAILED * len(results), (len(results), failed[:20])


FORMS = [
    pytest.param(8, INFER, 60 * MIB // 8, 9 * KIB, id="eight fill the memory"),
    pytest.param(8, INFER, 64 * MIB, 9 * KIB, id="eight announce all of the memory"),
    pytest.param(64, INFER, 60_000, KIB, id="many small ones"),
    pytest.param(64, RELAYED, 60_000, KIB, id="many small ones, relayed"),
]


@pytest.mark.alone
@pytest.mark.parametrize("is_endless", [False, True], ids=["once", "again and again"])
@pytest.mark.parametrize(("n_clients", "path", "announced_bytes", "bytes_per_s"), FORMS)
async def test_slow_uploads_do_not_shut_others_out(
    server: JsonServer, n_clients: int, path: str, announced_bytes: int, bytes_per_s: int, is_endless: bool
) -> None:
    async with running(server.url, LIMITS) as client:
        attack = Attack(client.url, path, announced_bytes, bytes_per_s, is_endless)
        async with attacked(n_clients, attack):
            begun_in_attack = [asyncio.create_task(steady(client, 4, chunked)) for chunked in (False, True)]
            assert_served(await others(client, 4))
            assert [await each for each in begun_in_attack] == [200, 200]
        if announced_bytes > MIB:
            assert attack.ended["HTTP/1.1 408"] >= 1, attack.ended
        else:
            assert attack.ended == Counter()  # they hold little memory and no slot, so they are in nobody's way
        admission = client.gateway.gateway.admission
        await client.wait_until_idle(5)
        assert (admission.held_bytes, admission.requests) == (0, 0)


@pytest.mark.alone
@pytest.mark.parametrize("is_endless", [False, True], ids=["once", "again and again"])
async def test_slow_uploads_that_go_on_to_a_backend_give_their_slots_back(is_endless: bool) -> None:
    """And neither do they shut others out in their first second, when they are fast on average."""
    async with counting() as backend, running(backend.url, LIMITS) as gateway, many_connections(gateway) as client:
        attack = Attack(client.url, RELAYED, 200_000, KIB, is_endless, at_once_bytes=70_000)
        async with attacked(64, attack):
            assert client.gateway.gateway.admission.requests == 48
            assert_served(await others(client, 4))
        assert any("its place was needed for other requests (limits.concurrent_requests)" in w for w in attack.words)


@pytest.mark.alone
@pytest.mark.parametrize("backend", ["", "max_connections: 48"], ids=["by default", "as many as slots"])
async def test_many_requests_at_once_find_connections_that_slow_uploads_gave_back(backend: str) -> None:
    async with (
        counting() as server,
        running(server.url, LIMITS, backend) as gateway,
        many_connections(gateway) as client,
    ):
        attack = Attack(client.url, RELAYED, 200_000, KIB, is_endless=False, at_once_bytes=70_000)
        async with attacked(48, attack):
            await asyncio.sleep(2.5)  # by then they are slow
            body, headers = message(64)
            replies = await asyncio.gather(*(client.infer(body, headers=headers) for _ in range(44)))
            assert Counter(reply.status for reply in replies) == {200: 44}


@pytest.mark.alone
@pytest.mark.parametrize("at_once_bytes", [0, 100_000])
async def test_slow_uploads_that_send_a_little_at_once_do_not_shut_others_out(
    server: JsonServer, at_once_bytes: int
) -> None:
    """They reconnect as soon as they are ended, and seem fast at first."""
    async with running(server.url, LIMITS) as gateway, many_connections(gateway) as client:
        attack = Attack(client.url, INFER, 60 * MIB // 8, 9 * KIB, True, at_once_bytes)
        async with attacked(12, attack):
            assert_served(await others(client, 5))


@pytest.mark.slow
async def test_an_upload_that_is_ended_reads_why_and_is_counted(
    server: JsonServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.access")
    async with running(server.url, "logging: {access: json}\n" + LIMITS) as client:
        attack = Attack(client.url, INFER, 64 * MIB, 9 * KIB, is_endless=False)
        async with attacked(1, attack):
            body, headers = message(200 * KIB)
            started = time.monotonic()
            assert (await client.infer(body, headers=headers)).status == 200
            waited_s = time.monotonic() - started
            async with asyncio.timeout(DEADLINE_S):
                while not attack.ended:
                    await asyncio.sleep(0.01)
        metrics = await client.metrics()
    (words,) = attack.words
    assert "the client sent its body too slowly: " in words
    assert "bytes a second" in words
    assert "memory was needed for other requests (limits.in_flight_bytes)" in words
    assert total(metrics, "errors_total", reason="slow_client") == 1
    assert metrics["tensor_gateway_admission_wait_seconds_count"] == 1
    assert 1 < metrics["tensor_gateway_admission_wait_seconds_sum"] < waited_s
    lines = [json.loads(line) for line in access_lines(caplog)]
    (queued,) = [line["queue_seconds"] for line in lines if line["status"] == 200]
    assert 1 < queued < waited_s


async def test_where_no_upload_is_slow_nothing_waits(server: JsonServer) -> None:
    """The memory is held by an upload of 10 MiB/s: a request that does not fit is refused at once, as ever."""
    async with running(server.url, LIMITS) as client:
        fast = Attack(client.url, INFER, 64 * MIB, 10 * MIB, is_endless=False)
        async with attacked(1, fast):
            async with asyncio.timeout(DEADLINE_S):
                while not client.gateway.gateway.admission.held_bytes:
                    await asyncio.sleep(0.01)
            body, headers = message(200 * KIB)
            assert (await client.infer(body, headers=headers)).status == 503
            metrics = await client.metrics()
        assert metrics["tensor_gateway_admission_wait_seconds_count"] == 0
        assert fast.ended == Counter()


async def test_an_upload_is_not_slow_because_the_gateway_stood_still_before_it_began(server: JsonServer) -> None:
    """By whatever clock: the time of an upload and that of the look at it are the same."""
    async with running(server.url, LIMITS) as client, wire(client.url) as uploading:
        time.sleep(3)  # noqa: ASYNC251  everything in this process stands still
        await asyncio.sleep(1.5)  # a look at the clients notices
        body, headers = message(MIB)
        await uploading.send(head_of("POST", INFER, len(body), headers) + body[: 100 * KIB])
        admission = client.gateway.gateway.admission
        async with asyncio.timeout(DEADLINE_S):
            while not any(each.upload is not None and each.upload.received_bytes for each in admission.uploads):
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not any(each.is_slow(asyncio.get_running_loop().time()) for each in admission.uploads)
        await uploading.send(body[100 * KIB :])
        assert (await uploading.reply()).status == 200


@pytest.mark.alone
async def test_an_upload_is_not_slow_because_the_gateway_stood_still(server: JsonServer) -> None:
    """As where its process is stopped, or gets no processor: what clients sent meanwhile is read first."""
    async with running(server.url, LIMITS) as client, wire(client.url) as uploading:
        body, headers = message(48 * MIB)
        await uploading.send(head_of("POST", INFER, len(body), headers) + body[: 150 * KIB])
        admission = client.gateway.gateway.admission
        async with asyncio.timeout(DEADLINE_S):
            while admission.held_bytes < len(body):
                await asyncio.sleep(0.01)
        other, headers = message(15 * MIB)
        waiting = asyncio.create_task(client.infer(other, headers=headers))
        async with asyncio.timeout(DEADLINE_S):
            while not admission.waiting:
                await asyncio.sleep(0.01)
        uploading.writer.write(body[150 * KIB : 200 * KIB])
        time.sleep(2.5)  # noqa: ASYNC251  everything in this process stands still
        await uploading.send(body[200 * KIB :])
        assert (await uploading.reply()).status == 200
        await asyncio.gather(waiting, return_exceptions=True)  # its time may have passed meanwhile


@pytest.mark.alone
@pytest.mark.parametrize("is_endless", [False, True], ids=["once", "again and again"])
@pytest.mark.parametrize(
    ("n_clients", "announced_bytes", "bytes_per_s"),
    [
        pytest.param(8, 2048 * MIB, 9 * KIB, id="eight announce 2 GiB"),
        pytest.param(8, 240 * MIB, 9 * KIB, id="eight announce 240 MiB"),
        pytest.param(512, 60_000, KIB, id="512 small ones"),
    ],
)
async def test_slow_uploads_in_full_size_do_not_shut_others_out(
    server: JsonServer, n_clients: int, announced_bytes: int, bytes_per_s: int, is_endless: bool
) -> None:
    async with running(server.url, "limits: {request_body: 2GiB}\n") as gateway, many_connections(gateway) as client:
        attack = Attack(client.url, INFER, announced_bytes, bytes_per_s, is_endless)
        async with attacked(n_clients, attack):
            whole = asyncio.create_task(steady(client, 15))
            assert_served(await others(client, 15))
            assert await whole == 200


@pytest.mark.alone
@pytest.mark.parametrize(("n_clients", "announced_bytes"), [(340, 60_000), (200, 150_000), (120, 300_000)])
async def test_small_slow_uploads_that_fill_the_memory_do_not_shut_others_out(
    server: JsonServer, n_clients: int, announced_bytes: int
) -> None:
    limits = "limits: {request_body: 16MiB, in_flight_bytes: 16MiB, concurrent_requests: 48}\n"
    async with running(server.url, limits) as gateway, many_connections(gateway) as client:
        async with attacked(n_clients, Attack(client.url, INFER, announced_bytes, KIB, is_endless=True)):
            await asyncio.sleep(2)
            assert_served(await others(client, 4))
