"""What of aiohttp's server is private or undocumented and used by client/server.py.

Each test fails when a release of aiohttp has lost or changed what it names, before a client notices.
"""

import asyncio
import errno
import inspect
import ssl
from typing import Any

import aiohttp.web_protocol
import pytest
from aiohttp import web
from aiohttp.http import HttpRequestParser
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from gateway.client.body import ClientBody
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest
from gateway.client.server import ClientProtocol, Server
from gateway.errors import ErrorKind, GatewayError
from tests.client.raw import Running, connect, echo, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


async def protocol_of(running: Running) -> ClientProtocol:
    """The protocol of the only connection."""
    while not running.server.connections:
        await asyncio.sleep(0)
    (protocol,) = running.server.connections
    assert isinstance(protocol, ClientProtocol)
    return protocol


async def refuse_everything(request: ClientRequest) -> None:
    raise AssertionError


async def test_a_server_hands_its_loop_and_options_to_the_protocol_that_it_makes() -> None:
    server = Server(refuse_everything, lambda exchange: None)
    assert server._loop is asyncio.get_running_loop()
    assert server._kwargs["auto_decompress"] is False
    protocol = server()
    assert isinstance(protocol, RequestHandler)
    assert protocol.keepalive_timeout == 0
    assert protocol._lingering_time == 0


async def test_options_that_a_protocol_does_not_know_would_be_an_error() -> None:
    # web.Server.__call__ would drop all options with a warning; ours must not
    with pytest.raises(TypeError):
        ClientProtocol(
            Server(refuse_everything, lambda exchange: None), loop=asyncio.get_running_loop(), no_such_option=1
        )


async def test_an_error_of_the_parser_is_queued_as_an_err_info_with_its_message() -> None:
    async with serving(echo) as running, connect(running.url):
        protocol = await protocol_of(running)
        assert not protocol._messages
        protocol.data_received(b"\0\r\n\r\n")
        (error, payload) = protocol._messages[-1]
        assert isinstance(error, _ErrInfo)
        assert (error.status, payload.is_eof()) == (400, True)
        assert "Bad status line" in error.message or "Invalid" in error.message


async def test_heads_are_queued_with_their_payload_until_they_are_served() -> None:
    held = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await held.wait()
        await echo(request, body, reply)

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(GET)
        while not running.requests:
            await asyncio.sleep(0)
        protocol = await protocol_of(running)
        current: Any = protocol._current_request
        assert current is protocol.serving is running.requests[0].connection
        protocol.data_received(b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        ((message, payload),) = protocol._messages
        assert not isinstance(message, _ErrInfo)
        assert (message.path, payload.is_eof(), payload.at_eof()) == ("/b", False, False)
        protocol.data_received(b"abc")
        assert (payload.is_eof(), payload.at_eof()) == (True, False)
        held.set()
        assert (await client.read_reply()).body == b"GET /a "
        assert (await client.read_reply()).body == b"POST /b abc"
        assert payload.at_eof()


async def test_a_message_says_whether_it_asks_for_an_upgrade() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        protocol = await protocol_of(running)
        assert protocol.serving is not None
        upgrades.append(protocol.serving.upgrade is not None)
        assert protocol._upgraded is upgrades[-1]
        await echo(request, body, reply)

    upgrades: list[bool] = []
    async with serving(serve) as running, connect(running.url) as client:
        await client.exchange(GET)
        await client.exchange(GET.replace(b"Host", b"Connection: upgrade\r\nUpgrade: h2c\r\nHost"))
        assert upgrades == [False, True]


async def test_the_exception_of_a_payload_is_raised_to_its_reader() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        protocol = await protocol_of(running)
        current: Any = protocol._current_request
        asyncio.get_running_loop().call_soon(current.content.set_exception, web.RequestPayloadError("broken"))
        await echo(request, body, reply)

    async with serving(serve) as running, connect(running.url) as client:
        reply = await client.exchange(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        assert (reply.status, reply.error) == (400, "malformed HTTP body: broken")


async def test_the_exception_of_a_payload_ends_a_read_that_waits_for_its_client() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        protocol = await protocol_of(running)
        current: Any = protocol._current_request
        failing = GatewayError(ErrorKind.SLOW_CLIENT, "slow")
        asyncio.get_running_loop().call_later(0, current.content.set_exception, failing)
        await echo(request, body, reply)

    async with serving(serve) as running, connect(running.url) as client:
        reply = await client.exchange(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        assert (reply.status, reply.error, reply.all("connection")) == (408, "slow", ["close"])


async def test_aiohttp_waits_for_a_request_with_this_future_and_counts_requests_here() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        protocol = await protocol_of(running)
        waits.append(protocol._waiter is not None)
        counts.append(protocol._request_count)
        await echo(request, body, reply)

    waits: list[bool] = []
    counts: list[int] = []
    async with serving(serve) as running, connect(running.url) as client:
        protocol = await protocol_of(running)
        for _ in range(2):
            while protocol._waiter is None:
                await asyncio.sleep(0)
            assert not protocol._waiter.done()
            protocol.data_received(GET[:5])
            assert not protocol._waiter.done()
            protocol.data_received(GET[5:])
            assert protocol._waiter.done()
            assert (await client.read_reply()).status == 200
    assert (waits, counts) == ([False, False], [1, 2])


async def test_aiohttp_sets_no_timer_for_an_idle_connection_where_it_finds_a_handle() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        protocol = await protocol_of(running)
        for _ in range(2):
            assert protocol._keepalive_handle is running.server.no_timer
            assert running.server.no_timer.cancelled()
            assert (await client.exchange(GET)).status == 200
        while protocol._waiter is None:
            await asyncio.sleep(0)
        assert protocol._keepalive_handle is running.server.no_timer
        assert protocol._loop is asyncio.get_running_loop()
    assert await client.is_closed()


async def test_a_connection_that_the_reader_pauses_is_paused_and_resumed() -> None:
    body = bytes(2_000_000)

    async def serve(request: ClientRequest, reading: ClientBody, reply: Reply) -> None:
        protocol = await protocol_of(running)
        while not protocol._reading_paused:
            await asyncio.sleep(0)
        await echo(request, reading, reply)

    async with serving(serve, max_bytes=len(body)) as running, connect(running.url) as client:
        head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert (await client.exchange(head + body)).body == b"POST /a " + body


@pytest.mark.parametrize(
    "sent", [GET * 40, b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000)]
)
async def test_reading_is_paused_and_resumed_by_these_two_methods(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    paused = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await paused.wait()
        await echo(request, body, reply)

    def pause(protocol: RequestHandler) -> None:
        pause_reading(protocol)
        assert protocol.transport is not None
        assert not protocol.transport.is_reading()
        called.append("pause")
        paused.set()

    def resume(protocol: RequestHandler) -> None:
        assert protocol.transport is not None
        assert not protocol.transport.is_reading()
        resume_reading(protocol)
        assert protocol.transport.is_reading()
        called.append("resume")

    pause_reading = RequestHandler._pause_transport_reading
    resume_reading = RequestHandler._resume_transport_reading
    monkeypatch.setattr(RequestHandler, "_pause_transport_reading", pause)
    monkeypatch.setattr(RequestHandler, "_resume_transport_reading", resume)
    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(sent)
        for _ in range(sent.count(b"HTTP")):
            assert (await client.read_reply()).status == 200
    assert called[:2] == ["pause", "resume"]


async def test_the_parser_gives_messages_with_readers_whether_it_stopped_at_an_upgrade_and_what_is_left() -> None:
    async with serving(echo) as running, connect(running.url):
        parser = (await protocol_of(running))._parser
        assert parser is not None
        ((message, payload),), is_upgraded, tail = parser.feed_data(GET)
        assert (message.method, payload, is_upgraded, tail) == ("GET", EMPTY_PAYLOAD, False, b"")
        messages, is_upgraded, tail = parser.feed_data(GET[:9])
        assert (list(messages), is_upgraded, tail) == ([], False, b"")
        parser.feed_data(GET[9:])
        upgrade = GET.replace(b"Host", b"Connection: upgrade\r\nUpgrade: websocket\r\nHost")
        ((message, _),), is_upgraded, tail = parser.feed_data(upgrade + b"more")
        assert (message.upgrade, is_upgraded, tail) == (True, True, b"more")
        parser.set_upgraded(False)
        with pytest.raises(HttpProcessingError) as raised:
            parser.feed_data(b"\0\r\n\r\n")
        assert raised.value.message


@pytest.mark.parametrize("ends", ["connection_lost", "shutdown"])
async def test_aiohttp_asks_the_request_that_is_served_for_nothing_but_its_cancelling(ends: str) -> None:
    asked: list[str] = []
    cancelled = asyncio.Event()

    class Spy:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return lambda error: None

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        protocol = await protocol_of(running)
        spy: Any = Spy()
        protocol._current_request = spy
        asked.clear()
        if ends == "shutdown":
            running.server.pre_shutdown()
            closing.append(asyncio.create_task(running.server.shutdown(0.01)))
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    closing: list[asyncio.Task[None]] = []
    async with serving(serve) as running:
        async with connect(running.url) as client:
            client.writer.write(GET)
            while not running.requests:
                await asyncio.sleep(0)
            if ends == "shutdown":
                await cancelled.wait()
        await cancelled.wait()
        await asyncio.gather(*closing)
    assert set(asked) == {"_cancel"}


async def test_a_message_has_these_fields_and_the_reader_of_no_body_is_one_object() -> None:
    async with serving(echo) as running, connect(running.url):
        protocol = await protocol_of(running)
        protocol.data_received(b"GET /a?b HTTP/1.0\r\nHost: x\r\nX-A: 1\r\nX-a: 2\r\n\r\n")
        ((message, payload),) = protocol._messages
        assert not isinstance(message, _ErrInfo)
        assert payload is EMPTY_PAYLOAD
        assert (message.method, message.path, message.version) == ("GET", "/a?b", (1, 0))
        assert list(message.headers.items()) == [("Host", "x"), ("X-A", "1"), ("X-a", "2")]
        assert message.should_close
        assert not message.upgrade


async def test_a_body_that_has_arrived_is_taken_from_the_pieces_of_its_reader() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        current: Any = request.connection
        content = current.content
        if content is EMPTY_PAYLOAD:
            await echo(request, body, reply)
            return
        pieces.append(list(content._buffer))
        assert content._exception is None
        assert content._buffer_offset == 0
        await echo(request, body, reply)
        assert not content._buffer
        assert content.at_eof()

    pieces: list[list[bytes]] = []
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"
    async with serving(serve) as running, connect(running.url) as client:
        protocol = await protocol_of(running)
        for sent in ([head + b"abcdef"], [head + b"abc", b"def"]):
            for piece in sent:
                protocol.data_received(piece)
            assert (await client.read_reply()).body == b"POST /a abcdef"
        assert (await client.exchange(head.replace(b"6", b"0"))).body == b"POST /a "
    assert pieces == [[b"abcdef"], [b"abc", b"def"]]


def test_the_methods_that_are_overridden_exist_with_these_arguments() -> None:
    assert list(inspect.signature(RequestHandler.start).parameters) == ["self"]
    assert inspect.iscoroutinefunction(RequestHandler.start)
    for name in ("connection_made", "connection_lost", "data_received", "close", "force_close", "_drain_helper"):
        assert hasattr(RequestHandler, name)
    used = """_buffer_paused _close _current_request _drain_helper _force_close _handler_waiter _max_msg_queue_size
        _message_tail _messages _msg_queue_resume_size _parser _pause_reading_for_buffer _paused _reading_paused
        _request_count _request_in_progress _resume_reading_if_drained _task_handler _upgraded _waiter"""
    for name in used.split():
        assert hasattr(RequestHandler, name), name
    for name in ("message_consumed", "set_upgraded", "feed_data"):
        assert hasattr(HttpRequestParser, name)
    assert aiohttp.web_protocol.MAX_MSG_QUEUE_SIZE == 32
    for name in ("pre_shutdown", "shutdown", "connections"):
        assert hasattr(web.Server, name)


async def test_a_client_that_leaves_cancels_its_handler() -> None:
    cancelled = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(serve) as running:
        async with connect(running.url) as client:
            client.writer.write(GET)
            while not running.requests:
                await asyncio.sleep(0)
        await cancelled.wait()
        assert (await running.exchange()).status == 499


async def test_a_body_in_tiny_chunks_is_parsed_by_what_arrives_and_not_by_every_chunk_that_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """aiohttp's reader asks the protocol to go on after each chunk, and its protocol would parse each time."""
    calls = 0
    received = ClientProtocol.data_received

    def counting(protocol: ClientProtocol, data: bytes) -> None:
        nonlocal calls
        calls += 1
        received(protocol, data)

    monkeypatch.setattr(ClientProtocol, "data_received", counting)
    n_chunks = 50_000
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(echo) as running, connect(running.url) as connection:
        reply = await connection.exchange(head + b"1\r\nx\r\n" * n_chunks + b"0\r\n\r\n")
    assert reply.body == b"POST /a " + b"x" * n_chunks
    assert calls < n_chunks // 100


@pytest.mark.parametrize("error", [None, TimeoutError(errno.ETIMEDOUT, "timed out"), ssl.SSLError(1, "bad record")])
async def test_a_body_that_another_task_reads_ends_with_a_connection_error_whatever_ended_the_connection(
    error: OSError | None,
) -> None:
    readings: list[asyncio.Task[bytes]] = []

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        readings.append(asyncio.create_task(request.connection.read()))
        await asyncio.sleep(0)
        transport: Any = (await protocol_of(running)).transport
        transport._force_close(error)
        await asyncio.Event().wait()

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n")
        assert (await running.exchange()).status == 499
    with pytest.raises(ConnectionError):
        await readings[0]
