"""What a client may send, and what becomes of it before anything is routed."""

import asyncio
import gc
import logging
import time

import pytest

from gateway.client.body import ClientBody
from gateway.client.connection import ClientConnection
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest, Served
from gateway.errors import ErrorKind
from tests.client.raw import Running, connect, echo, read_body, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_request_is_a_value_with_the_headers_as_they_came() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        head = b"POST /a%2Fb?c=%20 HTTP/1.1\r\nHost: h:1\r\nX-A: 1\r\nx-a:  \xc3\xa9 \r\nContent-Length: 3\r\n\r\nabc"
        reply = await client.exchange(head)
        assert (reply.status, reply.body) == (200, b"POST /a%2Fb?c=%20 abc")
        (request,) = running.requests
        assert request.headers.pairs == (("Host", "h:1"), ("X-A", "1"), ("x-a", "é"), ("Content-Length", "3"))
        assert (request.host, request.peer, request.scheme, request.version) == ("h:1", "127.0.0.1", "http", (1, 1))
        assert (request.content_length, request.has_body) == (3, True)


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"http://a:1/x?y", "/x?y", "a:1"),
        (b"HTTP://a", "/", "a"),
        (b"http://a?y", "/?y", "a"),
        (b"http://user:secret@a/x", "/x", "a"),
        (b"http://[::1]:80/x", "/x", "[::1]:80"),
        (b"//a/x", "//a/x", "h"),
    ],
)
async def test_the_authority_of_an_absolute_target_replaces_the_host(target: bytes, path: str, host: str) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        assert (await client.exchange(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % target)).status == 200
        assert (running.requests[0].path, running.requests[0].host) == (path, host)


FRAMING = [
    (b"Transfer-Encoding: gzip, chunked", 501),
    (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", 400),
    (b"Transfer-Encoding: chunked, chunked", 400),
    (b"Transfer-Encoding: gzip", 400),
    (b"Transfer-Encoding: identity", 400),
    (b"Transfer-Encoding: xchunked", 400),
    (b"Transfer-Encoding: chunked;q=1", 400),
    (b"Transfer-Encoding: \x0bchunked", 400),
    (b"Transfer-Encoding:\r\n chunked", 400),
    (b"Transfer-Encoding : chunked", 400),
    (b"Content-Length: 3\r\nTransfer-Encoding: chunked", 400),
    (b"Transfer-Encoding: chunked\r\nContent-Length: 3", 400),
    (b"Content-Length: 3\r\nContent-Length: 3", 400),
    (b"Content-Length: 3\r\nContent-Length: 4", 400),
    (b"Content-Length: 3, 3", 400),
    (b"Content-Length: +3", 400),
    (b"Content-Length: -3", 400),
    (b"Content-Length: 0x3", 400),
    (b"Content-Length: 3 3", 400),
    (b"Content-Length:", 400),
    (b"Content-Length: 99999999999999999999999", 400),
]


@pytest.mark.parametrize(("lines", "status"), FRAMING)
async def test_a_framing_on_which_others_may_not_agree_is_refused_and_the_connection_closed(
    lines: bytes, status: int
) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        client.writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n3\r\nabc\r\n0\r\n\r\n" % lines + GET)
        reply = await client.read_reply()
        assert (reply.status, bool(reply.error), reply.all("connection")) == (status, True, ["close"])
        assert await client.is_closed()
        assert (await running.exchange()).error is ErrorKind.MALFORMED_REQUEST
        assert len(running.exchanges) == 1


HEADS = [
    b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: a\r\n b\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: a\rb\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: a\nX-B: b\r\n\r\n",
    b"GET /a HTTP/1.1\nHost: x\n\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: a\0b\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: \x01\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nX-A : a\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\n X-A: a\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\n: a\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    b"GET /a HTTP/1.1\r\n\r\n",
    b"GET /\x00a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http:///a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET http://[/a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET ftp://x/a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"CONNECT /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"BREW /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"get /a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: adm\xffin\r\n\r\n",
    b"GET /a\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\n" + b"X-A: a\r\n" * 200 + b"\r\n",
    b"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("head", HEADS)
async def test_a_head_that_is_not_sound_is_refused_in_the_error_shape_and_recorded(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(echo) as running, connect(running.url) as client:
        reply = await client.exchange(head)
        status = 431 if len(head) > 1000 else 400
        assert (reply.status, bool(reply.error)) == (status, True)
        exchange = await running.exchange()
        assert (exchange.status, exchange.error) == (status, ErrorKind.MALFORMED_REQUEST)
        assert exchange.detail.isprintable()
        assert exchange.path.isprintable()
        assert reply.all("x-request-id") == [exchange.request_id]
    assert caplog.records == []


async def test_a_client_of_http2_or_grpc_is_told_what_this_port_speaks() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        reply = await client.exchange(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        assert reply.status == 400
        assert "this port speaks HTTP/1.1" in reply.error
        assert "gRPC" in (await running.exchange()).detail


async def test_a_client_that_sends_a_body_behind_a_head_that_is_refused_gets_to_see_the_reply() -> None:
    """A reset would mean that bytes were left unread; it may overtake the reply on its way."""
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nBad Name: 1\r\nContent-Length: 200000\r\n\r\n"
    async with serving(echo) as running, connect(running.url) as client:
        client.writer.write(head)
        for _ in range(20):
            client.writer.write(b"x" * 10_000)
            await asyncio.sleep(0.001)
        assert (await client.read_reply()).status == 400
        assert await client.reader.read() == b""


@pytest.mark.parametrize("version", [b"0.9", b"2.0", b"1.2", b"3.0"])
async def test_other_versions_of_http_are_refused(version: bytes) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        reply = await client.exchange(b"GET /a HTTP/%b\r\nHost: x\r\n\r\n" % version)
        assert reply.status in (400, 505)
        assert reply.error


async def test_after_a_refused_header_the_connection_goes_on() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        reply = await client.exchange(POST.replace(b"Host", b"X-A: adm\xffin\r\nHost"))
        assert (reply.status, "'X-A'" in reply.error) == (400, True)
        assert (await client.exchange(POST)).body == b"POST /a abc"


@pytest.mark.parametrize("garbage", [b"GARBAGE\r\n\r\n", b"\x00", CHUNKED + b"zz\r\n", b"G\xffT / HTTP/1.1\r\n\r\n"])
@pytest.mark.parametrize("good", [GET, POST, GET + POST, CHUNKED + b"3\r\nabc\r\n0\r\n\r\n"])
async def test_a_good_request_gets_its_reply_before_the_garbage_behind_it(good: bytes, garbage: bytes) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        client.writer.write(good + garbage)
        number = good.count(b"HTTP")
        for _ in range(number):
            reply = await client.read_reply()
            assert reply.status == 200
        if reply.all("connection") != ["close"]:  # as it is after a chunked body
            reply = await client.read_reply()
            assert (reply.status, bool(reply.error)) == (400, True)
            assert (await running.exchange(number + 1)).error is ErrorKind.MALFORMED_REQUEST
        assert await client.is_closed()


async def test_the_body_of_a_queued_request_that_breaks_fails_it_at_once() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        client.writer.write(GET + CHUNKED)
        assert (await client.read_reply()).status == 200
        client.writer.write(b"zz\r\n")
        assert "malformed HTTP body" in (await client.read_reply()).error
        assert await client.is_closed()
        assert len(running.exchanges) == 2


@pytest.mark.parametrize("breaks", [b"zz\r\n", b"0\r\nContent-Length: 5\r\n\r\n"], ids=["chunk", "trailer"])
@pytest.mark.parametrize("missing", [b"\n", b"\r\n"])
async def test_a_body_that_breaks_in_one_piece_with_the_end_of_a_chunk_fails_at_once(
    missing: bytes, breaks: bytes
) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        client.writer.write(CHUNKED + b"3\r\nabc\r\n"[: -len(missing)])
        while not running.requests or not _waits_for_body(running):
            await asyncio.sleep(0)
        client.writer.write(missing + breaks)
        async with asyncio.timeout(10):
            assert "malformed HTTP body" in (await client.read_reply()).error
            assert await client.is_closed()


def _waits_for_body(running: Running) -> bool:
    """Whether the handler of the only connection has read what has come of its body, and waits for more."""
    (protocol,) = running.server.connections
    assert isinstance(protocol, ClientConnection)
    return protocol.serving is not None and protocol.serving.upload.is_awaited


async def test_a_body_that_breaks_while_an_earlier_request_is_served_fails_its_own_request_only() -> None:
    arrived = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        if request.method == "GET":
            await arrived.wait()
        await echo(request, body, reply)

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(GET + CHUNKED + b"zz\r\n")
        while not running.requests:
            await asyncio.sleep(0)
        arrived.set()
        assert (await client.read_reply()).status == 200
        assert "malformed HTTP body" in (await client.read_reply()).error


async def test_many_pipelined_requests_in_one_piece_are_answered_in_order() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        client.writer.write(b"".join(GET.replace(b"/a", b"/%d" % number) for number in range(100)))
        bodies = [(await client.read_reply()).body for _ in range(100)]
        assert bodies == [b"GET /%d " % number for number in range(100)]


async def test_no_reply_waits_for_the_acknowledgement_of_the_one_before() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        seconds = []
        for _ in range(10):  # the kernel acknowledges the first replies of a connection at once
            began_s = time.perf_counter()
            client.writer.write(GET * 8)
            for _ in range(8):
                await client.read_reply()
            seconds.append(time.perf_counter() - began_s)
        assert min(seconds[5:]) < 0.03, "a delayed acknowledgement takes 40 ms"


async def test_an_upgrade_is_not_taken_up_and_what_follows_is_a_request() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        upgrade = GET.replace(b"Host", b"Connection: upgrade\r\nUpgrade: websocket\r\nHost")
        assert (await client.exchange(upgrade)).status == 200
        assert (await client.exchange(POST)).body == b"POST /a abc"


@pytest.mark.parametrize(
    "head",
    [
        b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(GET),
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775808\r\n\r\n",
    ],
)
async def test_a_refused_body_whose_end_is_not_certain_is_never_parsed_as_a_request(head: bytes) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        reply = await client.exchange(head + GET)
        assert (reply.status, bool(reply.error), reply.all("connection")) == (400, True, ["close"])
        assert await client.is_closed()
        assert len(running.requests) == 1


UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\nHost"


@pytest.mark.parametrize("first", [GET, POST])
@pytest.mark.parametrize("upgrade", [UPGRADE, UPGRADE.replace(b"h2c", b"websocket")])
async def test_what_follows_an_upgrade_is_a_request_at_every_split_or_the_connection_ends(
    first: bytes, upgrade: bytes
) -> None:
    hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    outer = b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden
    asking = first.replace(b"Host", upgrade)
    text = asking + outer
    async with serving(echo) as running:
        for split in range(1, len(text) + 1):
            running.requests.clear()
            async with connect(running.url) as client:
                client.writer.write(text[:split])
                while split >= asking.index(b"\r\n\r\n") + 4 and not running.requests:
                    await asyncio.sleep(0)
                client.writer.write(text[split:])
                reply = await client.read_reply()
                assert reply.status == 200
                if reply.all("connection") == ["close"]:
                    assert await client.is_closed()
                else:
                    assert (await client.read_reply()).body == b"POST /b " + hidden
            assert "/hidden" not in [request.path for request in running.requests]


@pytest.mark.parametrize("before", range(0, 50, 3))
async def test_an_upgrade_among_very_many_requests_in_one_piece_loses_none_in_silence(before: int) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        client.writer.write(GET * 20)
        await client.read_reply()
        client.writer.write(GET * before + GET.replace(b"Host", UPGRADE) + GET * (50 - before))
        number = 1
        while number < 71:
            number += 1
            if (await client.read_reply()).all("connection") == ["close"]:
                break
        assert number in (20 + before + 1, 71)
        assert len(running.requests) == number


@pytest.mark.parametrize("first", [GET, POST])
async def test_a_client_that_asks_for_an_upgrade_and_waits_keeps_its_connection(first: bytes) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        for _ in range(3):
            reply = await client.exchange(first.replace(b"Host", UPGRADE))
            assert (reply.status, reply.all("connection")) == (200, [])


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_good_request_gets_its_reply_also_where_the_end_of_its_head_comes_in_two_pieces(at: int) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        client.writer.write(GET)
        assert (await client.read_reply()).status == 200
        client.writer.write(GET[:-at])
        server = running.server
        protocol = server.connections[0]
        while not protocol.is_in_head:
            await asyncio.sleep(0)
        client.writer.write(GET[-at:] + b"GARBAGE\r\n\r\n")
        assert (await client.read_reply()).status == 200
        assert (await client.read_reply()).status == 400


@pytest.mark.parametrize("connection", [b"close", b"x, close", b"x\r\nConnection: close"])
async def test_a_client_that_asks_in_any_connection_header_gets_its_connection_closed(connection: bytes) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        reply = await client.exchange(GET.replace(b"Host", b"Connection: %b\r\nHost" % connection))
        assert (reply.status, reply.all("connection")) == (200, ["close"])
        assert await client.is_closed()


async def test_requests_of_other_connections_come_between_those_of_a_pipeline() -> None:
    async with serving(echo) as running, connect(running.url) as first, connect(running.url) as second:
        protocols: list[ClientConnection] = []
        while len(protocols) < 2:
            await asyncio.sleep(0)
            found = [each for each in running.server.connections if isinstance(each, ClientConnection)]
            protocols = [each for each in found if each.is_silent and each.transport is not None]
        one, other = protocols
        one.data_received(GET * 20)
        other.data_received(GET.replace(b"/a", b"/b"))
        for client in (first, second):
            assert (await client.read_reply()).status == 200
        while len(running.requests) < 21:
            await asyncio.sleep(0)
        assert [request.path for request in running.requests].index("/b") == 1


@pytest.mark.parametrize("leaves", [False, True])
async def test_nothing_is_kept_of_a_request_that_is_served_or_whose_client_left(leaves: bool) -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        async with asyncio.timeout(60) as timeout:
            await read_body(body)
            assert not timeout.expired()
            await reply.whole(200, [], (b"",))

    def kept() -> list[object]:
        # the message that a connection waits for next has no request yet
        return [each for each in gc.get_objects() if isinstance(each, ClientRequest | Served)]

    head = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
    async with serving(serve) as running:
        gc.collect()
        gc.disable()
        try:
            async with connect(running.url) as client:
                if leaves:
                    client.writer.write(head)
                    while not running.requests:
                        await asyncio.sleep(0)
                else:
                    assert (await client.exchange(head + b"abc")).status == 200
                    running.requests.clear()
                    assert not kept()
            await running.exchange()
            while running.server.connections:
                await asyncio.sleep(0)
            running.requests.clear()
            assert not kept()
        finally:
            gc.enable()


async def test_a_handler_that_fails_ends_no_other_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        if request.path == "/b":
            raise KeyError("x")
        await echo(request, body, reply)

    async with serving(serve) as running, connect(running.url) as good, connect(running.url) as bad:
        assert (await good.exchange(GET)).status == 200
        bad.writer.write(GET.replace(b"/a", b"/b"))
        assert await bad.is_closed()
        assert (await good.exchange(GET)).status == 200
    assert [record.message for record in caplog.records] == ["the connection of client 127.0.0.1 failed"]


async def test_a_client_that_leaves_just_before_it_is_invited_is_recorded_once_and_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        (connection,) = running.server.connections
        assert connection.transport is not None
        connection.transport.close()  # as the client's end does, before it cancels the handler
        await read_body(body)

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(b"POST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        await running.exchange()
        while running.server.connections:
            await asyncio.sleep(0)
    assert [(each.path, each.error) for each in running.exchanges] == [("/b", ErrorKind.CLIENT_CLOSED)]
    assert caplog.records == []


async def test_a_handler_that_fails_in_the_middle_of_a_reply_cuts_it_off() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await reply.begin(200, [], None)
        raise KeyError("x")

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(GET)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.read_reply()


LONG = b"a" * 70_000


@pytest.mark.parametrize(
    "text",
    [
        b"\0secret\r\n\r\n",
        CHUNKED + b"1\r\na\r\nsecret\r\n",
        CHUNKED + b"1\r\na\r\n0\r\nX-A: secret%b\r\n\r\n" % LONG,
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret%b\r\n\r\n" % LONG,
        b"GET / HTTP/1.1\r\nHost: x\r\nsecret%b: a\r\n\r\n" % LONG,
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: secret\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization : secret\r\n\r\n",
        b"GET /?key=secret%b HTTP/1.1\r\nHost: x\r\n\r\n" % LONG,
        b"GET http:///?key=secret HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET secret HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT secret: HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SECRET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / SECRET\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_refusal_of_bad_http_says_why_in_one_line_without_the_clients_bytes(text: bytes) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        reply = await client.exchange(text)
        assert reply.status == (431 if LONG in text and not text.startswith(CHUNKED) else 400)
        assert reply.error
        assert not reply.error.endswith(":")
        assert "\n" not in reply.error
        assert " " in reply.error  # more than the client's own words
        assert "secret" not in reply.error.lower()
        assert (await running.exchange()).detail == reply.error
