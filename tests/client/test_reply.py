"""What a client reads: heads, framing, errors, and whether its connection goes on."""

import asyncio

import pytest

from gateway.client.body import ClientBody
from gateway.client.peers import Outgoing
from gateway.client.reply import JOIN_BYTES, WRITE_BYTES, Reply
from gateway.client.request import ClientRequest
from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Pairs
from gateway.pacing import Pacer
from tests.client.raw import Serve, connect, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
OLD = b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
LARGE = bytes(range(256)) * 10_000


def whole(status: int, headers: Pairs, body: bytes) -> Serve:
    async def serve(request: ClientRequest, _: ClientBody, reply: Reply) -> None:
        await reply.whole(status, headers, (body,))

    return serve


def streaming(length: int | None, *pieces: bytes, status: int = 200) -> Serve:
    async def serve(request: ClientRequest, _: ClientBody, reply: Reply) -> None:
        await reply.begin(status, [], length)
        for piece in pieces:
            await reply.write(piece)
        await reply.end()

    return serve


async def test_a_reply_has_its_id_server_date_and_length_once_whatever_the_backend_sent() -> None:
    backend = [
        ("X-A", "1"),
        ("x-a", "é"),
        ("x-request-id", "another"),
        ("Content-Length", "7"),
        ("Connection", "upgrade"),
        ("Transfer-Encoding", "chunked"),
    ]
    async with serving(whole(200, backend, b"body")) as running, connect(running.url) as client:
        reply = await client.exchange(GET.replace(b"Host", b"X-Request-Id: mine\r\nHost"))
        assert (reply.status, reply.body, reply.all("x-a")) == (200, b"body", ["1", "é"])
        assert (reply.all("x-request-id"), reply.all("server")) == (["mine"], ["tensor-gateway"])
        assert (reply.all("content-length"), reply.all("transfer-encoding"), reply.all("connection")) == (["4"], [], [])
        assert len(reply.all("date")) == 1
        assert (await client.exchange(GET)).status == 200
        exchange = await running.exchange()
        assert (exchange.status, exchange.error, exchange.client_response_bytes) == (200, None, 4)


async def test_server_and_date_of_the_backend_cross() -> None:
    backend = [("server", "uvicorn"), ("date", "Thu, 01 Jan 1970 00:00:00 GMT")]
    async with serving(whole(200, backend, b"")) as running, connect(running.url) as client:
        reply = await client.exchange(GET)
        assert (reply.all("server"), reply.all("date")) == (["uvicorn"], ["Thu, 01 Jan 1970 00:00:00 GMT"])


@pytest.mark.parametrize("size", [1, JOIN_BYTES + 1])
@pytest.mark.parametrize("has_date", [False, True])
async def test_lines_go_out_as_they_are_before_other_headers(has_date: bool, size: int) -> None:
    date = "\r\ndate: today" if has_date else ""

    async def serve(request: ClientRequest, _: ClientBody, reply: Reply) -> None:
        await reply.whole(200, [("X-B", "3")], [LARGE[:size]], f"X-A: 1\r\nX-A: 2{date}")

    async with serving(serve) as running, connect(running.url) as client:
        for _ in range(2):
            reply = await client.exchange(GET)
            expected = [("x-a", "1"), ("x-a", "2"), *([("date", "today")] if has_date else []), ("x-b", "3")]
            assert reply.headers[: len(expected)] == expected
            assert (reply.body, len(reply.all("date")), len(reply.all("server"))) == (LARGE[:size], 1, 1)


@pytest.mark.parametrize("size", [0, JOIN_BYTES, JOIN_BYTES + 1, 3 * WRITE_BYTES + 1])
async def test_a_whole_body_of_any_size_arrives(size: int) -> None:
    async with serving(whole(200, [], LARGE[:size])) as running, connect(running.url) as client:
        for _ in range(2):
            assert (await client.exchange(GET)).body == LARGE[:size]
        assert (await running.exchange()).client_response_bytes == size


async def test_a_small_reply_leaves_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    async def serve(request: ClientRequest, _: ClientBody, reply: Reply) -> None:
        out = type(request.connection.out)
        original = out.write

        def write(self: Outgoing, data: bytes) -> None:
            writes.append(data)
            original(self, data)

        monkeypatch.setattr(out, "write", write)
        await reply.whole(200, [], (b"body",))

    async with serving(serve) as running, connect(running.url) as client:
        assert (await client.exchange(GET)).body == b"body"
    assert len(writes) == 1


@pytest.mark.parametrize("length", [None, len(LARGE)])
async def test_a_streamed_body_arrives_by_length_or_in_chunks(length: int | None) -> None:
    async with serving(streaming(length, LARGE[:10], b"", LARGE[10:])) as running, connect(running.url) as client:
        for _ in range(2):
            assert (await client.exchange(GET)).body == LARGE
        assert (await running.exchange()).client_response_bytes == len(LARGE)


async def test_an_http_1_0_client_gets_a_body_without_length_up_to_the_end_of_the_connection() -> None:
    async with serving(streaming(None, b"ab", b"cd")) as running, connect(running.url) as client:
        reply = await client.exchange(OLD)
        assert (reply.body, reply.all("transfer-encoding"), reply.all("connection")) == (b"abcd", [], ["close"])


async def test_an_http_1_0_client_that_asks_for_it_keeps_its_connection() -> None:
    async with serving(whole(200, [], b"body")) as running, connect(running.url) as client:
        for _ in range(2):
            assert (await client.exchange(OLD)).all("connection") == ["keep-alive"]


@pytest.mark.parametrize("serve", [whole(200, [], b"body"), streaming(4, b"body"), whole(200, [], LARGE)])
async def test_a_reply_to_head_has_the_length_and_no_body(serve: Serve) -> None:
    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(HEAD)
        reply = await client.read_reply(to_head=True)
        assert reply.all("content-length") in (["4"], [str(len(LARGE))])
        client.writer.write(GET)
        assert (await client.read_reply()).body in (b"body", LARGE)
        assert (await running.exchange()).client_response_bytes == 0


@pytest.mark.parametrize("serve", [whole(204, [], b""), streaming(None, status=204), streaming(None, status=304)])
async def test_a_reply_that_has_no_body_has_no_framing(serve: Serve) -> None:
    async with serving(serve) as running, connect(running.url) as client:
        for _ in range(2):
            reply = await client.exchange(GET)
            assert (reply.all("content-length"), reply.all("transfer-encoding")) == ([], [])


@pytest.mark.parametrize(("status", "words"), [(200, "OK"), (299, "")])
async def test_the_first_line_has_the_usual_words_of_the_status(status: int, words: str) -> None:
    async with serving(whole(status, [], b"")) as running, connect(running.url) as client:
        client.writer.write(GET)
        assert await client.reader.readline() == f"HTTP/1.1 {status} {words}\r\n".encode()


async def test_an_error_has_the_shape_of_the_protocol_with_its_own_headers() -> None:
    async def serve(request: ClientRequest, _: ClientBody, reply: Reply) -> None:
        raise GatewayError(ErrorKind.OVERLOADED, "busy \udcff", headers=[("Retry-After", "1")])

    async with serving(serve) as running, connect(running.url) as client:
        reply = await client.exchange(GET)
        assert (reply.status, reply.error, reply.all("retry-after")) == (503, "busy ?", ["1"])
        assert (await client.exchange(GET)).status == 503
        exchange = await running.exchange()
        assert (exchange.status, exchange.error) == (503, ErrorKind.OVERLOADED)


async def test_an_error_after_the_head_cuts_the_reply_off_with_a_reset() -> None:
    async def serve(request: ClientRequest, _: ClientBody, reply: Reply) -> None:
        await reply.begin(200, [], None)
        await reply.write(b"half")
        raise GatewayError(ErrorKind.TIMEOUT, "too slow")

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(GET)
        with pytest.raises(ConnectionResetError):
            while await client.reader.read(1000):
                pass
        exchange = await running.exchange()
        assert (exchange.status, exchange.error, exchange.detail) == (200, ErrorKind.TIMEOUT, "too slow")


@pytest.mark.parametrize("pieces", [(b"abc",), (b"abc", b"de")])
async def test_a_body_that_is_not_as_long_as_announced_is_cut_off(
    pieces: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of the gateway itself."""
    async with serving(streaming(4, *pieces)) as running, connect(running.url) as client:
        client.writer.write(GET)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await client.read_reply()
    assert [record.message for record in caplog.records] == ["the connection of client 127.0.0.1 failed"]


async def test_while_draining_no_connection_is_kept() -> None:
    async with serving(whole(200, [], b"body")) as running, connect(running.url) as client:
        running.is_draining = True
        assert (await client.exchange(GET)).all("connection") == ["close"]
        assert await client.is_closed()


@pytest.mark.parametrize("length", [4, None])
async def test_a_client_that_leaves_when_it_has_all_bytes_was_served(length: int | None) -> None:
    left = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await reply.begin(200, [], length)
        await reply.write(b"body")
        if length is None:
            await reply.end()
        try:
            await left.wait()  # such as for the end of the backend's answer
        finally:
            left.set()

    async with serving(serve) as running:
        async with connect(running.url) as client:
            assert (await client.exchange(GET)).body == b"body"
        exchange = await running.exchange()
        assert left.is_set()
        assert (exchange.status, exchange.error) == (200, None)


@pytest.mark.parametrize("length", [5, None])
async def test_a_client_that_leaves_before_has_closed(length: int | None) -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await reply.begin(200, [], length)
        await reply.write(b"body")
        await asyncio.Event().wait()

    async with serving(serve) as running:
        async with connect(running.url) as client:
            client.writer.write(GET)
            await client.reader.readuntil(b"body")
        exchange = await running.exchange()
        assert (exchange.status, exchange.error) == (499, ErrorKind.CLIENT_CLOSED)


async def test_a_client_that_does_not_read_is_waited_for_and_gets_everything() -> None:
    sent = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await reply.begin(200, [], len(LARGE) * 8)
        for _ in range(8):
            await reply.write(LARGE)
        sent.set()

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(GET)
        while not running.requests:
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not sent.is_set()
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await client.read_reply()).body == LARGE * 8


async def test_a_small_reply_is_complete_at_once_unless_its_client_is_behind_in_reading() -> None:
    async def serve(request: ClientRequest, _: ClientBody, reply: Reply) -> None:
        assert not request.connection.out.is_behind
        if request.path == "/large":
            request.connection.out.write(b"HTTP/1.1 103 Early Hints\r\nX: " + bytes(9_000_000).replace(b"\0", b"x"))
            request.connection.out.write(b"\r\n\r\n")
            assert request.connection.out.is_behind
        sending = asyncio.ensure_future(reply.whole(200, [], (b"a", memoryview(b"b"))))
        await asyncio.sleep(0)
        completed.append(reply.is_complete)
        await sending
        completed.append(reply.is_complete)
        assert not request.connection.out.is_behind

    completed: list[bool] = []
    async with serving(serve) as running, connect(running.url) as client:
        assert (await client.exchange(GET)).body == b"ab"
        assert completed == [True, True]
        client.writer.write(GET.replace(b"/a", b"/large"))
        read = b""
        while not read.endswith(b"\r\n\r\nab"):
            read += await client.reader.read(1 << 20)
        assert completed[2:] == [False, True]
        assert [each.client_response_bytes for each in running.exchanges] == [2, 2]


@pytest.mark.parametrize("size", [JOIN_BYTES + 1, WRITE_BYTES])
async def test_a_client_that_leaves_with_its_whole_reply_was_served_also_where_others_work(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breathe(pacer: Pacer) -> None:
        await asyncio.Event().wait()  # many others have a turn before

    monkeypatch.setattr(Pacer, "breathe", breathe)
    async with serving(whole(200, [], bytes(size))) as running:
        async with connect(running.url) as client:
            assert len((await client.exchange(GET)).body) == size
        exchange = await running.exchange()
        assert (exchange.status, exchange.error) == (200, None)
