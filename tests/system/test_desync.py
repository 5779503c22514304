"""Each side keeps its place in the bytes of a connection, or ends the connection.

What a backend sends that parsers read in different ways, and what might be taken for the answer to another request
(docs/architecture.md, "Connections to backends"). What clients send of this kind is in tests/client/test_server.py.
"""

import logging

import numpy as np
import pytest

from tests.conftest import Connection, lying, running
from tests.system.scripted import FORMS, Seen, ask, counting, echo, head_of, infer_message, total, wire

SMUGGLED = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"smuggled":1}'
HEAD_OF_TWO = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"
X = np.arange(3)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 000 X\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED, id="status 000"),
        pytest.param(b"HTTP/1.1 099 X\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED, id="status 099"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKED, id="vertical tab"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: \xc2\xa0chunked\r\n\r\n" + CHUNKED, id="no-break space"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n" + CHUNKED, id="empty coding"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n \r\n\r\n" + CHUNKED, id="folded coding"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX:\r\r\n{}", id="head that ends in two CR"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX:\r\r\n" + SMUGGLED, id="two CR and another head"),
        pytest.param(b"HTTP/1.1 200 OK\r\n \r\n" + SMUGGLED, id="blank and another head"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"0" * 5000 + b"2\r\n\r\n{}", id="5,001 digits"),
        # both would hold the event loop for 10 ms and more, if they were as long as a head may be
        pytest.param(HEAD_OF_TWO + b"X: a\r\n" + b" a\r\n" * 1000 + b"\r\n{}", id="many folded lines"),
        pytest.param(HEAD_OF_TWO + b"Connection: " + b"a," * 10_000 + b"\r\n\r\n{}", id="many names in Connection"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n{}", id="length 2**64 - 1"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX-A: a\x01b\r\nContent-Length: 2\r\n\r\n{}", id="control character"),
        pytest.param(b"HTTP/1.1 404 No\r\nX-A: a\x01b\r\nContent-Length: 2\r\n\r\n{}", id="control character in a 404"),
        pytest.param(b"HTTP/1.1 500 No\r\nX-A: a\x7fb\r\nContent-Length: 2\r\n\r\n{}", id="control character in a 500"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
async def test_an_answer_whose_head_is_not_certain_is_a_502_and_ends_its_connection(
    form: str, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def behave(seen: Seen) -> bool:
        if seen.id != "1":
            return await echo(seen)
        await seen.peer.send(answer)
        return False

    async with counting(behave) as backend, running(backend.url) as client:
        asked = await ask(client, form, 1)
        assert (asked.status, b"does not speak" in asked.body or b"answered with" in asked.body) == (502, True)
        assert not [record for record in caplog.records if record.name == "asyncio"]
        assert (await ask(client, form, 2)).is_own
        assert backend.peers[0].served == 1
        metrics = await client.metrics()
        assert total(metrics, "errors_total", reason="malformed_response") == 1
        assert total(metrics, "errors_total", reason="internal") == 0


@pytest.mark.parametrize(
    "field", ["Transfer-Encoding: gzip, chunked", "X-A: \x01", "Content-Length: 9223372036854775808"]
)
@pytest.mark.parametrize("form", FORMS)
async def test_a_head_that_cannot_be_used_is_refused_before_its_body_comes(form: str, field: str) -> None:
    async def behave(seen: Seen) -> bool:
        await seen.peer.send(f"HTTP/1.1 200 OK\r\n{field}\r\n\r\n".encode())
        return True

    async with counting(behave) as backend, running(backend.url, "", "timeouts: {idle: 300ms}") as client:
        asked = await ask(client, form, 1)
        assert (asked.status, b"answered with" in asked.body) == (502, True)


@pytest.mark.parametrize(
    ("method", "status", "framing"),
    [
        ("GET", "204 No Content", f"Content-Length: {len(SMUGGLED)}"),
        ("GET", "204 No Content", "Transfer-Encoding: chunked"),
        ("GET", "304 Not Modified", f"Content-Length: {len(SMUGGLED)}"),
        ("HEAD", "200 OK", f"Content-Length: {len(SMUGGLED)}"),
        ("HEAD", "200 OK", "Transfer-Encoding: chunked"),
        ("GET", "200 OK", "Content-Length: 18446744073709551615"),
    ],
)
async def test_a_body_that_comes_late_and_should_not_is_not_the_answer_to_the_next_request(
    method: str, status: str, framing: str
) -> None:
    async def behave(seen: Seen) -> bool:
        if seen.id == "first":
            await seen.peer.send(f"HTTP/1.1 {status}\r\n{framing}\r\n\r\n".encode())
            return True
        if seen.peer.served > 1:  # a next request has come on the connection that still owes a body
            await seen.peer.send(SMUGGLED)
        return await echo(seen)

    async with counting(behave) as backend, running(backend.url) as client, wire(client.url) as sender:
        await sender.send(head_of(method, "/any?id=first"))
        assert (await sender.reply("HEAD" if "200" in status else method)).status in (int(status[:3]), 502)
        asked = await ask(client, "post", 2)
        assert asked.is_own, asked


async def test_the_connection_is_kept_after_answers_that_have_no_body_and_announce_none() -> None:
    async def behave(seen: Seen) -> bool:
        status = {"204": "204 No Content", "304": "304 Not Modified"}.get(seen.id, "200 OK")
        await seen.peer.send(
            f"HTTP/1.1 {status}\r\n".encode() + (b"" if seen.id == "304" else b"Content-Length: 0\r\n")
        )
        await seen.peer.send(b"\r\n")
        return True

    async with counting(behave) as backend, running(backend.url) as client, wire(client.url) as sender:
        for method, id_ in (("GET", "204"), ("GET", "304"), ("HEAD", "200"), ("GET", "200")):
            await sender.send(head_of(method, f"/any?id={id_}"))
            assert (await sender.reply(method)).status == int(id_)
        assert [peer.served for peer in backend.peers] == [4]


@pytest.mark.parametrize("framing", ["Content-Length: 5000000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("status", ["200 OK", "413 Too Large"])
async def test_an_answer_that_comes_before_the_upload_has_ended_is_passed_on_and_is_no_failure(
    framing: str, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    size = 200_000

    async def script(connection: Connection) -> None:
        head = await connection.reader.readuntil(b"\r\n\r\n")
        await connection.reader.readexactly(size)
        if b"/early" in head:
            await connection.answer(b'{"error": "early"}', status)
            while await connection.reader.read(65536):
                pass

    async with lying(script) as liar, running(liar.url) as client, wire(client.url) as sender:
        first = b"x" * size
        piece = b"%x\r\n%b\r\n" % (size, first) if "chunked" in framing else first
        await sender.send(f"POST /v2/early HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode() + piece)
        reply = await sender.reply()
        assert (reply.status, reply.values("Connection")) == (int(status[:3]), ["close"])
        assert reply.body == b'{"error": "early"}'
        assert await client.wait_until_idle(10) == 0
        metrics = await client.metrics()
        assert total(metrics, "errors_total", reason="internal") == 0
        assert total(metrics, "upstream_connections") == 0
    assert caplog.records == []


# Fields whose name a blank follows, which aiohttp's parser takes for what they are, and names with the blank


@pytest.mark.parametrize("form", ["infer", "relay"])
@pytest.mark.parametrize(
    ("framing", "field"),
    [
        ("Transfer-Encoding : chunked", ""),
        ("Content-Length : {n}", ""),
        ("Content-Length: {n}", "Connection : keep-alive"),
        ("Content-Length: {n}", "Connection : X-Hop"),
        ("Content-Length: {n}", "Proxy-Connection : keep-alive"),
        ("Content-Length: {n}", "Upgrade : h2c"),
    ],
)
async def test_fields_for_the_gateway_do_not_cross_with_a_blank_behind_their_name(
    form: str, framing: str, field: str
) -> None:
    async def behave(seen: Seen) -> bool:
        body = seen.echo()
        lines = ["HTTP/1.1 200 OK", "X-Hop: 1", framing.format(n=len(body)), *filter(None, [field]), "", ""]
        if "chunked" in framing:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        await seen.peer.send("\r\n".join(lines).encode() + body)
        return True

    async with counting(behave) as backend, running(backend.url) as client, wire(client.url) as sender:
        for id_ in ("1", "2"):
            await sender.send(infer_message(id_, X, "INT64") if form == "infer" else head_of("GET", f"/any?id={id_}"))
            reply = await sender.reply()
            assert (reply.status, f'"{id_}"'.encode() in reply.body) == (200, True)
            assert b" :" not in reply.head
            names = [line.partition(":")[0].lower() for line in reply.head.decode().split("\r\n")[1:]]
            assert names.count("content-length") + names.count("transfer-encoding") == 1
            assert not {"connection", "proxy-connection", "upgrade"}.intersection(names)
            assert ("x-hop" in names) == ("X-Hop" not in field)
        assert [peer.served for peer in backend.peers] == [2]


async def test_a_connection_that_is_to_be_closed_is_not_kept_where_a_blank_follows_the_fields_name() -> None:
    async def behave(seen: Seen) -> bool:
        value = "close" if seen.id == "2" else "keep-alive"
        await seen.answer(seen.echo(), headers=f"Connection : {value}\r\n")
        return True

    async with counting(behave) as backend, running(backend.url) as client:
        for number in (1, 2, 3):
            assert (await ask(client, "binary", number)).is_own
        assert [peer.served for peer in backend.peers] == [2, 1]
