"""Clients that are too slow: with their head, their body, in reading their reply (docs/configuration.md, "Limits").

Real sockets and short limits. What a limit is meant to spare is proved by looks at the connections that find it still
open: each connection of `looked_at` is ended by such a look. Not here: what counts as too slow, see
tests/policy/test_slowness.py.
"""

import asyncio
import gzip
import resource
import socket
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np
import pytest

from gateway.client import server
from gateway.client.body import ClientBody
from gateway.client.connection import ClientConnection, State
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest
from gateway.client.server import LOOK_AT_ONCE
from gateway.config import Duration, Limits
from gateway.errors import ErrorKind
from tests.client.raw import RawConnection, Running, connect, echo, serving
from tests.conftest import HEADER_LENGTH, running
from tests.system.scripted import Seen, counting, head_of, infer_header, total, until, wire

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\n"
SHORT = Duration(0.1)
LONG = Duration(3600)
TRICKLE_S = 0.01
"""Between two bytes of a client that trickles."""

HEADS = Limits(header_timeout=SHORT, body_timeout=LONG, client_idle=LONG, client_keep_alive=LONG)
BODIES = Limits(header_timeout=LONG, body_timeout=SHORT, client_idle=LONG, client_keep_alive=LONG)
REPLIES = Limits(header_timeout=LONG, body_timeout=LONG, client_idle=SHORT, client_keep_alive=LONG)
IDLE = Limits(header_timeout=LONG, body_timeout=LONG, client_idle=LONG, client_keep_alive=SHORT)


async def looked_at(served: Running) -> None:
    """Return when every connection has been looked at for longer than `header_timeout`, which must be short."""
    for _ in range(3):
        async with connect(served.url) as silent:
            assert await silent.is_closed()


async def the_protocol(served: Running) -> ClientConnection:
    """Of the only connection."""
    while not served.server.connections:
        await asyncio.sleep(0)
    (protocol,) = served.server.connections
    assert isinstance(protocol, ClientConnection)
    return protocol


async def nothing_is_open(served: Running) -> None:
    """Wait until all connections have ended."""
    while served.server.open_connections:
        await asyncio.sleep(TRICKLE_S)


async def trickle(client: RawConnection, piece: bytes) -> None:
    """Send *piece* again and again, until the connection has ended."""
    while not client.reader.at_eof() and not client.writer.is_closing():
        client.writer.write(piece)
        await asyncio.sleep(TRICKLE_S)


# Heads


async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word() -> None:
    async with serving(echo, limits=HEADS) as served, connect(served.url) as silent:
        assert await silent.reader.read() == b""
        await nothing_is_open(served)
        assert served.server.slow_connections == {"header_timeout": 1, "body_timeout": 0, "client_idle": 0}
    assert served.exchanges == []


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(b"", id="first head"),
        pytest.param(b"\r\n", id="first head, after an empty line"),
        pytest.param(GET, id="next head"),
        pytest.param(GET + b"\r\n", id="next head, after an empty line"),
        pytest.param(POST + b"Content-Length: 3\r\n\r\nabc", id="next head, after a body"),
        pytest.param(GET + b"GE", id="next head, begun with the first"),
    ],
)
async def test_a_head_that_trickles_has_no_more_time_than_one_that_does_not_come(start: bytes) -> None:
    async with serving(echo, limits=HEADS) as served, connect(served.url) as client:
        client.writer.write(start)
        if b"HTTP" in start:
            assert (await client.read_reply()).status == 200
        client.writer.write(b"T /" if start.endswith(b"GE") else b"GET /")
        await trickle(client, b"x")
        assert await client.is_closed()
        assert served.server.slow_connections["header_timeout"] == 1
    assert len(served.requests) == (b"HTTP" in start)


@pytest.mark.parametrize("piece", [b"\r", b"\n", b"\r\n"])
async def test_empty_lines_are_the_beginning_of_a_head(piece: bytes) -> None:
    async with serving(echo, limits=HEADS) as served, connect(served.url) as client:
        assert (await client.exchange(GET)).status == 200
        await trickle(client, piece)
        assert served.server.open_connections == 0


async def test_pairs_of_empty_lines_do_not_keep_an_idle_connection() -> None:
    async with serving(echo, limits=IDLE) as served, connect(served.url) as client:
        assert (await client.exchange(GET)).status == 200
        await trickle(client, b"\r\n\r\n")
        await nothing_is_open(served)


async def test_an_idle_connection_is_not_under_header_timeout() -> None:
    async with serving(echo, limits=HEADS) as served, connect(served.url) as idle:
        assert (await idle.exchange(GET)).status == 200
        await looked_at(served)
        assert (await idle.exchange(GET)).status == 200


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(GET * 40 + POST + b"Content-Length: 3\r\n\r\nabc", id="behind more than are queued"),
        pytest.param(POST + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc", id="upgrade"),
        pytest.param(GET * 100 + POST + b"Content-Length: 3\r\n\r\nabc", id="behind more than are looked at"),
    ],
)
async def test_the_end_of_a_body_is_not_taken_for_the_beginning_of_a_head(sent: bytes) -> None:
    async with serving(echo, limits=HEADS) as served, connect(served.url) as idle:
        idle.writer.write(sent)
        for _ in range(sent.count(b"HTTP/")):
            assert (await idle.read_reply()).status == 200
        await looked_at(served)
        assert (await idle.exchange(GET)).status == 200


async def test_a_head_behind_a_request_that_is_served_has_time_until_that_is_served() -> None:
    may_reply = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await may_reply.wait()
        await echo(request, body, reply)

    async with serving(serve, limits=HEADS) as served, connect(served.url) as client, connect(served.url) as other:
        for connection in (client, other):
            connection.writer.write(GET + GET[:10])
        await looked_at(served)
        client.writer.write(GET[10:])
        may_reply.set()
        assert [(await client.read_reply()).status for _ in range(2)] == [200, 200]
        assert (await other.read_reply()).status == 200
        assert await other.is_closed()


async def test_a_connection_without_requests_is_closed_after_client_keep_alive() -> None:
    async with serving(echo, limits=IDLE) as served, connect(served.url) as client:
        assert (await client.exchange(GET)).status == 200
        assert await client.reader.read() == b""
        await nothing_is_open(served)
        assert not any(served.server.slow_connections.values())


@pytest.mark.parametrize("before", [b"", GET])
async def test_a_request_that_has_arrived_is_served_even_if_it_came_at_the_last_moment(before: bytes) -> None:
    async with serving(echo) as served, wire(served.url) as client:
        if before:
            await client.send(before)
            assert (await client.reply()).status == 200
        protocol = await the_protocol(served)
        loop = asyncio.get_running_loop()
        while protocol.serving is not None or protocol.transport is None:
            await asyncio.sleep(0)
        protocol.look(loop.time(), served.server.limits)
        client.writer.get_extra_info("socket")._sock.send(GET)  # the event loop does not get to read it before the look
        protocol.look(loop.time() + 1_000, served.server.limits)
        assert (await client.reply()).status == 200
        while protocol.serving is not None or protocol.transport is None:
            await asyncio.sleep(0)
        protocol.look(loop.time() + 1_000, served.server.limits)
        protocol.look(loop.time() + 2_000, served.server.limits)
        assert await client.reader.read() == b""


async def test_limits_that_are_replaced_hold_for_connections_that_are_open() -> None:
    async with serving(echo, limits=Limits(header_timeout=LONG)) as served, connect(served.url) as silent:
        await the_protocol(served)
        served.server.limits = HEADS
        assert await silent.is_closed()


# Bodies

HALF = b"Content-Length: 100\r\n\r\n" + b"x" * 50


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
GZIP = b"Content-Length: 100\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"x")[:-1]
SLOW_BODIES = {
    "silent": (HALF, b""),
    "silent from the beginning": (b"Content-Length: 100\r\n\r\n", b""),
    "silent after the invitation": (b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n", b""),
    "silent between chunks": (CHUNKED + b"5\r\nhello\r\n", b""),
    "trickling the head of a chunk": (CHUNKED + b"5\r\nhello\r\n5;", b"x"),
    "trickling a trailer": (CHUNKED + b"5\r\nhello\r\n0\r\n", b"x"),
    "trickling": (b"Content-Length: 900000\r\n\r\n", b"x"),
    "trickling chunks": (CHUNKED, b"1\r\nx\r\n"),
    "gzip": (GZIP, b""),
}
"""What is sent of a body at once, and again and again."""


async def test_a_body_that_comes_too_slowly_is_answered_with_408() -> None:
    async def reply_of(served: Running, case: str) -> None:
        rest, more = SLOW_BODIES[case]
        async with connect(served.url) as client:
            client.writer.write(POST + rest)
            if b"Expect" in rest:
                assert (await client.read_reply()).status == 100
            trickling = asyncio.create_task(trickle(client, more))
            reply = await client.read_reply()
            assert reply.status == 408, case
            assert reply.error.startswith("the client sent its body too slowly: "), case
            assert reply.error.endswith(" (limits.body_timeout)"), case
            assert reply.all("connection") == ["close"], case
            assert await client.is_closed(), case
            await trickling

    async with serving(echo, limits=BODIES) as served:
        await asyncio.gather(*(reply_of(served, case) for case in SLOW_BODIES))
        await nothing_is_open(served)
        ended = [(exchange.error, exchange.status) for exchange in served.exchanges]
        assert ended == [(ErrorKind.SLOW_CLIENT, 408)] * len(SLOW_BODIES)
        counted = {"header_timeout": 0, "body_timeout": len(SLOW_BODIES), "client_idle": 0}
        assert served.server.slow_connections == counted


class Held:
    """What has come of a body."""


async def test_nothing_is_kept_of_a_slow_body_while_its_rest_is_still_dropped() -> None:
    kept: list[weakref.ref[Held]] = []

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        held = Held()
        kept.append(weakref.ref(held))
        await body.read()

    async with serving(serve, limits=BODIES) as served, connect(served.url) as client:
        client.writer.write(POST + HALF)
        assert (await client.read_reply()).status == 408
        await served.exchange()
        assert (await the_protocol(served)).state is State.DROPPING
        assert kept[0]() is None


async def test_time_in_which_the_gateway_does_not_read_is_not_the_clients() -> None:
    may_read = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await may_read.wait()
        await echo(request, body, reply)

    limits = Limits(header_timeout=SHORT, body_timeout=SHORT)
    async with serving(serve, limits=limits) as served, connect(served.url) as client:
        client.writer.write(POST + HALF)
        await looked_at(served)
        client.writer.write(b"x" * 50)
        may_read.set()
        assert (await client.read_reply()).body == b"POST /a " + b"x" * 100


async def test_time_between_two_reads_of_the_gateway_is_not_the_clients() -> None:
    """The gateway is busy for longer than the limit, then it waits, and is looked at while it does."""
    waits = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        chunks = body.chunks()
        first = await anext(chunks)
        await looked_at(served)
        reading = asyncio.ensure_future(anext(chunks))
        assert protocol.serving is not None
        while not protocol.serving.upload.is_awaited:
            await asyncio.sleep(0)
        protocol.look(served.server.loop.time(), served.server.limits)
        waits.set()
        await reply.whole(200, [], (first + await reading,))

    limits = Limits(header_timeout=SHORT, body_timeout=SHORT)
    async with serving(serve, limits=limits) as served, connect(served.url) as client:
        protocol = await the_protocol(served)
        client.writer.write(POST + b"Content-Length: 2\r\n\r\na")
        await waits.wait()
        client.writer.write(b"b")
        assert (await client.read_reply()).body == b"ab"


def waits_for_a_body(connection: object) -> bool:
    """Whether more of a request's body is waited for on *connection*."""
    assert isinstance(connection, ClientConnection)
    return connection.serving is not None and connection.serving.upload.is_awaited


async def test_time_in_which_the_gateway_stands_still_is_not_the_clients() -> None:
    """As where its process is stopped, or gets no processor: what clients send meanwhile waits in the kernel."""
    limits = Limits(header_timeout=SHORT, body_timeout=SHORT)
    async with serving(echo, limits=limits) as served, connect(served.url) as body, connect(served.url) as head:
        body.writer.write(POST + HALF)
        head.writer.write(GET[:10])
        while served.server.n_unfinished_heads() != 1 or not any(map(waits_for_a_body, served.server.connections)):
            await asyncio.sleep(0)
        body.writer.write(b"x" * 20)
        head.writer.write(GET[10:20])
        time.sleep(SHORT * 5)  # noqa: ASYNC251  everything in this process stands still
        for _ in range(10):  # both are read and looked at
            await asyncio.sleep(0)
        body.writer.write(b"x" * 30)
        head.writer.write(GET[20:])
        assert (await body.read_reply()).body == b"POST /a " + b"x" * 100
        assert (await head.read_reply()).body == b"GET /a "


# Replies

HUGE = 64 * 2**20


async def reply_huge(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
    """Reply with more than all buffers on the way hold."""
    await reply.whole(200, [], (bytes(HUGE),))


async def reply_in_chunks(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
    """The same, in chunks."""
    await reply.begin(200, [], None)
    for _ in range(64):
        await reply.write(bytes(HUGE // 64))
    await reply.end()


@pytest.mark.parametrize("serve", [reply_huge, reply_in_chunks])
@pytest.mark.parametrize("half_closed", [False, True])
async def test_a_client_that_does_not_read_its_reply_is_cut_off(serve: object, half_closed: bool) -> None:
    handler = {reply_huge: reply_huge, reply_in_chunks: reply_in_chunks}[serve]  # type: ignore[index]
    async with serving(handler, limits=REPLIES) as served, wire(served.url, 4096) as client:
        await client.send(GET)
        await client.reader.readuntil(b"\r\n\r\n")
        if half_closed:
            protocol = await the_protocol(served)
            while not protocol.is_behind:
                await asyncio.sleep(0)
            client.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        exchange = await served.exchange()
        assert (exchange.error, exchange.status) == (ErrorKind.CLIENT_CLOSED, 499)
        assert exchange.detail.startswith("the client read its reply too slowly: nothing for 0.1 s")
        await nothing_is_open(served)
        assert served.server.slow_connections["client_idle"] == 1
        with pytest.raises(ConnectionResetError):
            while await client.reader.read(2**16):
                pass


async def test_a_client_that_reads_everything_is_not_cut_off_however_often_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "LOOK_S", 0.001)
    async with serving(reply_huge) as served, connect(served.url) as client:
        for _ in range(3):
            assert len((await client.exchange(GET)).body) == HUGE


async def test_a_client_that_never_reads_the_replies_to_its_pipeline_is_cut_off() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await reply.whole(200, [], (bytes(60_000),))

    async with serving(serve, limits=REPLIES) as served, wire(served.url, 4096) as client:
        client.writer.write(GET * 1_000)
        await nothing_is_open(served)
        assert served.server.slow_connections["client_idle"] == 1
        assert len(served.requests) < 1_000
        await served.exchange(len(served.requests))
        assert served.exchanges[-1].error is ErrorKind.CLIENT_CLOSED
        assert all(exchange.error is None for exchange in served.exchanges[:-1])


@pytest.mark.parametrize("closes", [False, True])
async def test_a_connection_whose_last_reply_is_never_read_ends(closes: bool) -> None:
    """The reply is as good as sent, and so a success; what waits to be sent must not keep the connection."""
    sent = POST + b"Content-Length: 0\r\n" + (b"Connection: close\r\n\r\n" if closes else b"\r\n")

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        transport = (await the_protocol(served)).transport
        assert transport is not None
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await reply.whole(200, [], (bytes(60_000),))

    async with serving(serve, limits=REPLIES) as served, wire(served.url, 4096) as client:
        await client.send(sent)
        exchange = await served.exchange()
        assert (exchange.error, exchange.status) == (None, 200)
        await nothing_is_open(served)
        assert served.server.slow_connections["client_idle"] == 1


# Through the whole gateway


async def test_a_relayed_upload_that_falls_silent_ends_with_408_and_its_backend_connection_is_cut() -> None:
    cut = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        while await read_or_nothing(reader):
            pass
        cut.set()
        writer.close()

    async with backend_that(serve) as url, running(url, "limits: {body_timeout: 200ms}\n") as client:
        async with wire(client.url) as sender:
            await sender.send(head_of("POST", "/any", 1_000_000) + bytes(200_000))
            await cut.wait()
            reply = await sender.reply()
        assert (reply.status, b"limits.body_timeout" in reply.body) == (408, True)
        await until(client, "upstream_connections", 0, state="busy")
        assert total(await client.metrics(), "errors_total", reason="slow_client") == 1


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(head_of("POST", "/any", 1_000_000) + b"x", id="length"),
        pytest.param(
            head_of("PUT", "/v2/models/m/any", None, {"Transfer-Encoding": "chunked"}) + b"5\r\nx", id="chunks"
        ),
        pytest.param(head_of("POST", "/any", 100, {"Content-Encoding": "gzip"}) + gzip.compress(b"x"), id="compressed"),
        pytest.param(head_of("POST", "/any", 100, {"Expect": "100-continue"}), id="invited"),
    ],
)
async def test_a_relayed_upload_that_falls_silent_in_its_beginning_never_reaches_the_backend(sent: bytes) -> None:
    async with counting() as backend, running(backend.url, "limits: {body_timeout: 200ms}\n") as client:
        async with wire(client.url) as sender:
            await sender.send(sent)
            reply = await sender.reply()
        assert (reply.status, b"limits.body_timeout" in reply.body) == (408, True)
        assert not backend.peers
        assert total(await until(client, "requests_in_flight", 0), "errors_total", reason="slow_client") == 1


async def test_a_relayed_upload_that_falls_silent_after_its_reply_has_begun_is_cut_off() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe")
        while await read_or_nothing(reader):
            pass
        writer.close()

    async with backend_that(serve) as url, running(url, "limits: {body_timeout: 200ms}\n") as client:
        async with wire(client.url) as sender:
            await sender.send(head_of("POST", "/any", 1_000_000) + bytes(200_000))
            with pytest.raises(ConnectionResetError):
                await sender.reply()
        assert total(await until(client, "requests_in_flight", 0), "errors_total", reason="slow_client") == 1


async def test_a_slow_backend_does_not_make_its_uploader_slow() -> None:
    """The backend does not read for longer than `body_timeout`, in which the client cannot send."""
    body = bytes(32 * 2**20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(3):
            async with connect(client.url) as silent:
                assert await silent.is_closed()
        await reader.readexactly(len(body))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    limits = "limits: {body_timeout: 200ms, header_timeout: 200ms}\n"
    async with backend_that(serve) as url, running(url, limits) as client:
        async with wire(client.url) as sender:
            await sender.send(head_of("POST", "/any", len(body)) + body)
            assert (await sender.reply()).body == b"ok"


async def test_a_body_that_trickles_into_an_inference_gives_back_what_it_has_reserved() -> None:
    text = infer_header(np.zeros(250_000, np.float32), "FP32")
    head = head_of("POST", "/v2/models/m/infer", 1_000_000, {HEADER_LENGTH: 100})
    async with counting() as backend, running(backend.url, "limits: {body_timeout: 300ms}\n") as client:
        async with connect(client.url) as sender:
            sender.writer.write(head + str(text).encode()[:50])
            await until(client, "in_flight_bytes", 1_000_000)
            trickling = asyncio.create_task(trickle(sender, b" "))
            reply = await sender.read_reply()
            assert (reply.status, "limits.body_timeout" in reply.error) == (408, True)
            await until(client, "in_flight_bytes", 0)
            assert not backend.seen
            await trickling


async def test_a_relayed_stream_whose_client_does_not_read_frees_its_backend_connection() -> None:
    ended = asyncio.Event()

    async def stream(seen: Seen) -> bool:
        try:
            await seen.peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            while True:
                await seen.peer.send(bytes(2**20))
        finally:
            ended.set()

    async with counting(stream) as backend, running(backend.url, "limits: {client_idle: 300ms}\n") as client:
        async with wire(client.url, 4096) as reader:
            await reader.send(GET)
            await reader.reader.readuntil(b"\r\n\r\n")
            await ended.wait()
            samples = await until(client, "requests_in_flight", 0)
            assert total(samples, "errors_total", reason="client_closed") == 1
            await until(client, "upstream_connections", 0, state="busy")
            await until(client, "client_connections_slow_total", 1, limit="client_idle")


@asynccontextmanager
async def backend_that(serve: object) -> AsyncIterator[str]:
    """The URL of a backend that serves each connection by *serve*."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)  # type: ignore[arg-type]
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def read_or_nothing(reader: asyncio.StreamReader) -> bytes:
    """What has come; nothing at the end or after a reset."""
    try:
        return await reader.read(2**16)
    except ConnectionError:
        return b""


# Many

SILENT = 2_000
SPARE_DESCRIPTORS = 200


async def test_two_thousand_silent_connections_have_no_timers_leave_others_served_and_are_closed() -> None:
    """Of them, aiohttp has a task for each; nobody has a timer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = SILENT if hard == resource.RLIM_INFINITY else min(SILENT, (hard - SPARE_DESCRIPTORS) // 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * most + SPARE_DESCRIPTORS), hard))
    limits = Limits(header_timeout=LONG)
    try:
        async with (
            serving(echo, max_connections=most + 1, limits=limits) as served,
            AsyncExitStack() as stack,
            connect(served.url) as other,
        ):
            assert (await other.exchange(GET)).status == 200
            tasks_before, timers_before = len(asyncio.all_tasks()), len(timers())
            silent = [await stack.enter_async_context(silent_socket(served.url)) for _ in range(most)]
            while served.server.open_connections < most + 1 or len(served.server.connections) < most + 1:
                await asyncio.sleep(0)
            assert len(timers()) <= timers_before + 1
            while len(asyncio.all_tasks()) > tasks_before + most:  # one of aiohttp's for each, and none of ours
                await asyncio.sleep(0)
            for _ in range(10):
                assert (await other.exchange(GET)).status == 200
            served.server.limits = HEADS
            loop = asyncio.get_running_loop()
            for connection in silent:
                assert await loop.sock_recv(connection, 1) == b""
            while served.server.open_connections > 1:
                await asyncio.sleep(0)
            assert served.server.slow_connections["header_timeout"] == most
            assert (await other.exchange(GET)).status == 200
            while len(asyncio.all_tasks()) > tasks_before:
                await asyncio.sleep(0)
            assert len(timers()) <= timers_before + 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def silent_socket(url: str) -> AsyncIterator[socket.socket]:
    """A connection without anything around it, which would make tasks and handles of its own."""
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
        yield connection


def timers() -> list[asyncio.TimerHandle]:
    """Those of the event loop that were not cancelled."""
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [handle for handle in scheduled if not handle.cancelled()]


async def test_no_more_connections_are_looked_at_at_once_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    turn = 0

    def look(self: ClientConnection, now_s: float, limits: Limits) -> None:
        looks.append(turn)

    monkeypatch.setattr(ClientConnection, "look", look)
    n_open = LOOK_AT_ONCE + 10
    async with serving(echo, max_connections=n_open, limits=HEADS) as served, AsyncExitStack() as stack:
        for _ in range(n_open):
            await stack.enter_async_context(silent_socket(served.url))
        while len(served.server.connections) < n_open:
            await asyncio.sleep(0)
        looks.clear()
        while len(looks) < 3 * n_open:
            await asyncio.sleep(0)
            turn += 1
    assert max(looks.count(each) for each in set(looks)) <= LOOK_AT_ONCE


async def test_a_look_that_fails_does_not_end_the_watch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def look(self: ClientConnection, now_s: float, limits: Limits) -> None:
        if not caplog.records:
            raise OSError("odd")
        look_as_ever(self, now_s, limits)

    look_as_ever = ClientConnection.look
    monkeypatch.setattr(ClientConnection, "look", look)
    async with serving(echo, limits=HEADS) as served, connect(served.url) as silent:
        assert await silent.is_closed()
    assert [record.getMessage() for record in caplog.records] == ["a connection could not be checked for a slow client"]
