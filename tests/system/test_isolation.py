"""A byte belongs to one request: backends that send too much, fail late or drop connections, and clients that leave.

Each request carries a value of its own that the answer must echo, and the backend counts what it executes
(docs/architecture.md, "Connections to backends").
"""

import array
import asyncio
import fcntl
import json
import re
import socket
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest

from tests.conftest import Client, running
from tests.system.scripted import (
    FORMS,
    RESET,
    Peer,
    RawReply,
    Seen,
    ask,
    counting,
    echo,
    head_of,
    infer_message,
    until,
    wire,
)

ANSWER_408 = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

# Bytes that no request asked for


def answer_text(seen: Seen) -> bytes:
    body = seen.echo()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("extra", ["second answer", "408"])
async def test_bytes_on_an_idle_connection_are_nobodys_answer(form: str, extra: str) -> None:
    arrived = asyncio.Event()

    async def send_later(seen: Seen) -> None:
        await asyncio.sleep(0.3)
        await seen.peer.send(answer_text(seen) if extra == "second answer" else ANSWER_408)
        arrived.set()

    async def behave(seen: Seen) -> bool:
        await echo(seen)
        if seen.id == "1":
            backend.later(send_later(seen))
        return True

    async with counting(behave) as backend, running(backend.url) as client:
        assert (await ask(client, form, 1)).is_own
        await arrived.wait()
        for number in range(2, 6):
            asked = await ask(client, form, number)
            assert asked.is_own, asked
        assert backend.executed == {str(number): 1 for number in range(1, 6)}
        assert backend.peers[0].served == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("extra", ["second answer", "408", "one byte", "first byte of a head", "part of a head"])
async def test_bytes_behind_an_answer_are_nobodys_answer(form: str, extra: str) -> None:
    async def behave(seen: Seen) -> bool:
        behind = {
            "second answer": answer_text(seen),
            "408": ANSWER_408,
            "one byte": b"x",
            "first byte of a head": b"H",
            "part of a head": ANSWER_408[:30],
        }[extra]
        await seen.answer(seen.echo(), behind=behind if int(seen.id) % 2 else b"")
        return True

    async with counting(behave) as backend, running(backend.url) as client:
        for number in range(1, 7):
            asked = await ask(client, form, number)
            # the answer itself is whole: it may be given to its own client, or refused, but to nobody else
            assert asked.is_own or (asked.status == 502 and number % 2), asked
        assert backend.executed == {str(number): 1 for number in range(1, 7)}
        # a line end alone is no beginning of an answer, and parsers pass over it (RFC 9112 section 2.2)
        assert extra == "line end" or all(peer.served <= 2 for peer in backend.peers)


# Connections that already serve someone else


@pytest.mark.parametrize("relayed", [3_200_000, 400_000, 100_000, 1_000_000, 5_000_000])
@pytest.mark.parametrize("form", ["binary", "json", "post"])
async def test_a_client_that_leaves_a_relay_harms_no_other_request(relayed: int, form: str) -> None:
    proceed = asyncio.Event()
    arrived = asyncio.Event()
    sent = asyncio.Event()

    async def behave(seen: Seen) -> bool:
        if seen.id == "large":
            seen.peer.writer.transport.set_write_buffer_limits(0)
            seen.peer.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % relayed + bytes(relayed))
            sent.set()
            await seen.peer.writer.drain()
            return True
        arrived.set()
        await proceed.wait()
        return await echo(seen)

    async with counting(behave) as backend, running(backend.url) as client:
        async with wire(client.url, receive_bytes=4096) as leaving:
            await leaving.send(head_of("POST", "/large?id=large", 2) + b"{}")
            await leaving.reader.readexactly(1000)
            await sent.wait()
            left, before = backend.peers[0].writer.transport.get_write_buffer_size(), -1
            while left != before:  # until the gateway holds all that it will take
                for _ in range(5):
                    await client.metrics()
                left, before = backend.peers[0].writer.transport.get_write_buffer_size(), left
            other = asyncio.create_task(ask(client, form, 1))
            await arrived.wait()
            leaving.reset()
            await until(client, "requests_in_flight", 1)
        proceed.set()
        assert (await other).is_own
        assert backend.executed == {"large": 1, "1": 1}


async def test_malformed_answers_at_concurrency_run_no_request_twice() -> None:
    numbers_text = b",".join(b"%d" % number for number in range(60_000))

    async def behave(seen: Seen) -> bool:
        if "/models/bad/" in seen.target:
            start = b'{"outputs":[{"name":"x","datatype":"INT64","shape":[60001],"data":['
            await seen.answer(start + numbers_text + b',"no"]}]}')
            return True
        return await echo(seen)

    async with counting(behave) as backend, running(backend.url) as client:
        numbers = iter(range(1, 601))

        async def worker() -> None:
            for number in numbers:
                model = "m" if number % 3 else "bad"
                asked = await ask(client, "binary", number, model)
                assert asked.status == 502 if model == "bad" else asked.is_own, (number, asked.status, asked.body[:300])

        await asyncio.gather(*(worker() for _ in range(6)))
        assert backend.executed == {str(number): 1 for number in range(1, 601)}


async def test_answers_that_are_too_large_run_no_request_twice() -> None:
    async def behave(seen: Seen) -> bool:
        if int(seen.id) % 2:
            body = seen.echo()
            await seen.answer(body + b" " * 60_000)
            return True
        return await echo(seen)

    async with counting(behave) as backend, running(backend.url, "limits: {response_body: 1KiB}\n") as client:
        numbers = iter(range(1, 301))

        async def worker() -> None:
            for number in numbers:
                asked = await ask(client, "binary", number)
                assert asked.status == 502 if number % 2 else asked.is_own, asked

        await asyncio.gather(*(worker() for _ in range(6)))
        assert set(backend.executed.values()) == {1}


# Executed once


@dataclass
class Dropping:
    """Answers the first request of each connection, and drops the connection after the second was read."""

    how: str
    delay_s: float

    async def __call__(self, seen: Seen) -> bool:
        if seen.peer.served == 1:
            return await echo(seen)
        await asyncio.sleep(self.delay_s)  # the work
        if self.how == "reset":
            seen.peer.reset()
        return False


@pytest.mark.parametrize("form", ["binary", "json", "post"])
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("delay_s", [0.0, 0.3])
async def test_a_request_that_was_read_and_dropped_is_executed_once(form: str, how: str, delay_s: float) -> None:
    async with counting(Dropping(how, delay_s)) as backend, running(backend.url) as client:
        assert (await ask(client, form, 1)).is_own
        asked = await ask(client, form, 2)
        assert asked.status == 502
        assert b"closed the connection" in asked.body
        assert backend.executed == {"1": 1, "2": 1}
        await until(client, "errors_total", 1, reason="upstream_closed")


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("delay_s", [0.0, 0.3])
async def test_a_get_that_may_have_been_read_is_sent_once_more(how: str, delay_s: float) -> None:
    async with counting(Dropping(how, delay_s)) as backend, running(backend.url) as client:
        assert (await ask(client, "get", 1)).is_own
        assert (await ask(client, "get", 2)).is_own
        assert backend.executed == {"1": 1, "2": 2}
        assert len(backend.peers) == 2


async def test_a_large_body_that_the_backend_cuts_in_the_middle_is_not_sent_again() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen = Seen(peer := Peer(reader, writer), await peer.read_head(), b"")
        heads.append(seen.head)
        seen.body = await peer.read_body(seen.head)
        await seen.answer(seen.echo())
        heads.append(await peer.read_head())
        await reader.readexactly(1_000_000)
        peer.reset()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, running(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        assert (await ask(client, "binary", 1)).is_own
        async with wire(client.url) as sender:
            await sender.send(infer_message("2", np.ones(2_000_000, np.float32), "FP32"))
            assert (await sender.reply()).status == 502
    assert len(heads) == 2


# Connections that had ended before the request came


@dataclass
class OneAnswerEach:
    """A backend in this event loop whose connections answer one request and are then not read again.

    `idle` are their sockets: the test closes one at a moment of its choice, and asks the kernel first whether bytes of
    a request have come already.
    """

    url: str = ""
    idle: list[socket.socket] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    ended: list[socket.socket] = field(default_factory=list)
    accepted: int = 0

    async def serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2**26)

        async def fill() -> None:
            while data := await loop.sock_recv(connection, 2**20):
                reader.feed_data(data)
            reader.feed_eof()

        filling = asyncio.create_task(fill())
        try:
            peer = Peer(reader, None)  # type: ignore[arg-type]
            head = await peer.read_head()
            seen = Seen(peer, head, await peer.read_body(head))
        except asyncio.IncompleteReadError:
            connection.close()
            return
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
        self.executed.append(seen.id)
        outputs = [{"name": "x", "datatype": "UINT8", "shape": [1], "data": [1]}]
        body = json.dumps({"id": seen.id, "outputs": outputs}).encode()
        await loop.sock_sendall(connection, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.idle.append(connection)


def unread_bytes(connection: socket.socket) -> int:
    """How many bytes have come that nobody has read."""
    count = array.array("i", [0])
    fcntl.ioctl(connection.fileno(), termios.FIONREAD, count)
    return count[0]


@asynccontextmanager
async def one_answer_each() -> AsyncIterator[OneAnswerEach]:
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    listener.setblocking(False)
    backend = OneAnswerEach(f"http://127.0.0.1:{listener.getsockname()[1]}")
    serving: set[asyncio.Task[None]] = set()

    async def accept() -> None:
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setblocking(False)
            backend.accepted += 1
            serving.add(asyncio.create_task(backend.serve(connection)))

    accepting = asyncio.create_task(accept())
    try:
        yield backend
    finally:
        accepting.cancel()
        for task in serving:
            task.cancel()
        await asyncio.gather(accepting, *serving, return_exceptions=True)
        listener.close()
        for connection in backend.idle + backend.ended:
            connection.close()


@lru_cache(maxsize=2)
def _template(form: str, n_bytes: int) -> bytes:
    if form == "binary":
        return infer_message("ID", np.zeros(n_bytes, np.uint8), "UINT8")
    if form == "json":
        return infer_message("ID", np.zeros(n_bytes // 3, np.uint8), "UINT8", binary=False)
    return head_of("POST", "/v2/models/m/any?id=ID", n_bytes) + bytes(n_bytes)


def message(form: str, id_: str, n_bytes: int) -> bytes:
    """A request whose body has about *n_bytes*."""
    return _template(form, n_bytes).replace(b"id=ID", b"id=" + id_.encode(), 1)


End = Callable[[socket.socket], None]


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


def answer_again(connection: socket.socket) -> None:
    body = b'{"id":"warm","outputs":[{"name":"x","datatype":"UINT8","shape":[1],"data":[1]}]}'
    connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def send_408(connection: socket.socket) -> None:
    connection.send(ANSWER_408)


async def send_and_end(
    client: Client, backend: OneAnswerEach, request: bytes, end: End, hops: int | None
) -> tuple[RawReply, int | None]:
    """Send *request* and do *end* to the idle connection *hops* turns of the event loop later.

    The reply, and the turn at which bytes of the request stood at the backend, None if they had not come when the
    connection was ended. *hops* of None ends nothing until bytes have come, there or on another connection: a gateway
    may well open one for a body that it cannot send again.
    """
    connection = backend.idle.pop()
    assert not backend.idle
    accepted = backend.accepted
    came: int | None = None
    async with wire(client.url) as sender:
        sender.writer.write(request)
        turn = 0
        while True:
            if unread_bytes(connection):
                came = turn
            if came is not None or turn == hops or (hops is None and backend.accepted > accepted):
                break
            await asyncio.sleep(0)
            turn += 1
        if came is not None:
            connection.close()  # it is too late for *end* to be certain
        else:
            end(connection)
            backend.ended.append(connection)
        return await sender.reply(), came


async def warm(client: Client, backend: OneAnswerEach) -> None:
    """Leave one idle connection between gateway and backend."""
    if not backend.idle:
        async with wire(client.url) as sender:
            await sender.send(head_of("GET", "/warm?id=warm"))
            assert (await sender.reply()).status == 200
            while not backend.idle:
                await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.parametrize("end", [close, reset, answer_again, send_408])
@pytest.mark.parametrize("form", ["binary", "json", "post"])
@pytest.mark.parametrize("n_bytes", [100, 20_000_000])
async def test_a_connection_that_was_over_before_the_request_costs_no_client_an_error(
    end: End, form: str, n_bytes: int
) -> None:
    """It ends, or unasked bytes come on it, at each turn of the event loop from the client's sending to the gateway's.

    Backend, gateway and client share one event loop: between the end and the gateway's sending nothing is in flight,
    and the kernel of this machine knows of it.
    """
    async with one_answer_each() as backend, running(backend.url) as client:
        await warm(client, backend)
        _, turns = await send_and_end(client, backend, message(form, "first", n_bytes), close, None)
        turns = 10 if turns is None else turns
        near = range(turns + 2) if n_bytes < 1000 else [0, *(max(0, turns - back) for back in (4, 3, 2, 1))]
        certain = 0
        for hops in near:
            await warm(client, backend)
            id_ = f"{hops}"
            backend.executed.clear()
            reply, came = await send_and_end(client, backend, message(form, id_, n_bytes), end, hops)
            assert backend.executed.count(id_) <= 1
            if came is None:
                assert (reply.status, backend.executed.count(id_)) == (200, 1), (hops, turns)
                assert re.search(rb'"id": ?"%b"' % id_.encode(), reply.body)
                certain += 1
            else:
                assert reply.status in (200, 502)
        assert certain > 0
