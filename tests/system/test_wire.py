"""HTTP itself, at its worst: broken framing, half-read bodies, dying connections, slow clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from gateway.demo import JsonServer
from tests.conftest import HEADER_LENGTH, Client, Connection, answering, lying, running, tensor

X = np.array([1, 2], np.int32)
HEADER = {"inputs": [tensor("x", X, "INT32")], "parameters": {"binary_data_output": True}}
TEXT = json.dumps(HEADER).encode()
BODY = TEXT + X.tobytes()
INFER = (
    f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\n{HEADER_LENGTH}: {len(TEXT)}\r\n"
    f"Content-Length: {len(BODY)}\r\n\r\n"
).encode() + BODY
CHUNKED = (
    f"POST /v2/models/identity/infer HTTP/1.1\r\nHost: x\r\n{HEADER_LENGTH}: {len(TEXT)}\r\n"
    "Transfer-Encoding: chunked\r\n\r\n"
).encode()


@asynccontextmanager
async def connected(client: Client) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = client.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_reply(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(length)


@pytest.mark.parametrize("path", [b"/v2/models/identity/infer", b"/v2/repository/index"])
async def test_chunks_that_break_later_than_the_head_are_refused_at_once(path: bytes) -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.read()

    async with lying(script) as liar, running(liar.url) as client, connected(client) as (reader, writer):
        writer.write(CHUNKED.replace(b"/v2/models/identity/infer", path) + b"3\r\nabc\r\n")
        while client.gateway.gateway.in_flight == 0:
            await asyncio.sleep(0.001)
        writer.write(b"zz\r\n")
        head, body = await read_reply(reader)
        assert head.split()[1] == b"400"
        assert "malformed HTTP body" in json.loads(body)["error"]
        assert await client.wait_until_idle(5) == 0


async def test_a_trailer_is_no_header_of_the_next_request(client: Client, server: JsonServer) -> None:
    async with connected(client) as (reader, writer):
        writer.write(CHUNKED + b"%x\r\n%b\r\n0\r\nX-Evil: 7\r\n\r\n" % (len(BODY), BODY))
        head, _ = await read_reply(reader)
        assert head.split()[1] == b"200"
        assert b"connection: close" in head.lower()
        writer.write(INFER)
        assert await reader.read() == b""
    assert server.inferences == 1


async def test_pipelined_requests_are_answered_in_order_also_after_a_refusal(client: Client) -> None:
    async with connected(client) as (reader, writer):
        bad = INFER.replace(b"INT32", b"int32")
        writer.write(INFER + bad + INFER + INFER)
        statuses = [(await read_reply(reader))[0].split()[1] for _ in range(4)]
        assert statuses == [b"200", b"400", b"200", b"200"]


async def test_header_lengths_that_differ_are_refused(client: Client) -> None:
    async with connected(client) as (reader, writer):
        writer.write(INFER.replace(b"Host: x\r\n", b"Host: x\r\n%b: 5\r\n" % HEADER_LENGTH.encode()))
        head, body = await read_reply(reader)
        assert head.split()[1] == b"400"
        assert "different values" in json.loads(body)["error"]


async def test_a_refusal_that_leaves_a_large_body_says_that_it_closes_and_is_seen(server: JsonServer) -> None:
    async with running(server.url, "limits: {request_body: 1MiB}\n") as client, connected(client) as (reader, writer):
        writer.write(INFER.replace(b"Content-Length: %d" % len(BODY), b"Content-Length: 100000000"))
        head, _ = await read_reply(reader)
        assert head.split()[1] == b"413"
        assert b"connection: close" in head.lower()
        writer.write(bytes(2_000_000))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            while True:
                writer.write(bytes(100_000))
                await writer.drain()
                await asyncio.sleep(0)


async def test_a_refused_client_that_waits_for_its_invitation_is_not_waited_for(server: JsonServer) -> None:
    async with running(server.url, "limits: {request_body: 1KiB}\n") as client, connected(client) as (reader, writer):
        writer.write(
            INFER.partition(b"\r\n\r\n")[0].replace(b"Content-Length: %d" % len(BODY), b"Content-Length: 5000")
            + b"\r\nExpect: 100-continue\r\n\r\n"
        )
        head, _ = await read_reply(reader)
        assert (head.split()[1], b"connection: close" in head.lower()) == (b"413", True)
        assert await reader.read() == b""


async def test_http_1_0_replies_without_length_end_with_the_connection() -> None:
    has_begun = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n")
        await has_begun.wait()  # an answer that has come whole has a length
        await connection.send(b"1\r\nk\r\n0\r\n\r\n")

    async with lying(script) as liar, running(liar.url) as client, connected(client) as (reader, writer):
        writer.write(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        has_begun.set()
        assert await reader.read() == b"ok"


async def test_bad_http_is_counted(client: Client) -> None:
    async with connected(client) as (reader, writer):
        writer.write(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: nonsense\r\n\r\n")
        await reader.read()
    metrics = await client.metrics()
    assert metrics['tensor_gateway_errors_total{blame="client",reason="malformed_request",route="none"}'] == 1


@pytest.mark.parametrize("value", ["é", "a" * 200, "a\tb"])
async def test_request_ids_that_cannot_stand_in_a_log_are_replaced(
    client: Client, server: JsonServer, value: str
) -> None:
    async with connected(client) as (reader, writer):
        line = f"X-Request-Id: {value}\r\n".encode()
        writer.write(INFER.replace(b"Host: x\r\n", b"Host: x\r\n" + line))
        assert (await read_reply(reader))[0].split()[1] == b"200"
    assert len(dict((name.lower(), text) for name, text in server.headers)["x-request-id"]) == 32  # noqa: C402


async def partial_head(connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 200 OK\r\nContent-")


async def early_hint(connection: Connection) -> None:
    await connection.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")


@pytest.mark.parametrize("method", ["POST", "DELETE", "GET"])
@pytest.mark.parametrize("end", [partial_head, early_hint])
async def test_nothing_is_sent_again_once_a_byte_of_an_answer_came(method: str, end: object) -> None:
    requests = 0

    async def script(connection: Connection) -> None:
        nonlocal requests
        await connection.read_request()
        requests += 1
        await connection.answer(b"{}")
        await connection.read_request()
        requests += 1
        await end(connection)  # type: ignore[operator]
        connection.writer.transport.abort()

    async with lying(script) as liar, running(liar.url) as client:
        assert (await client.request(method, "/x")).status == 200
        assert (await client.request(method, "/x")).status == 502
        assert (requests, len(liar.connections)) == (2, 1)


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("HEAD", 200), ("POST", 502), ("DELETE", 502)])
async def test_where_a_backend_may_have_read_a_request_only_get_and_head_are_sent_again(
    method: str, status: int
) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(b"" if method == "HEAD" else b"{}")
        if connection is liar.connections[0]:
            await connection.reader.read(1)

    async with lying(script) as liar, running(liar.url) as client:
        assert (await client.request(method, "/x")).status == 200
        assert (await client.request(method, "/x")).status == status
        metrics = await client.metrics()
        repeats = metrics.get('tensor_gateway_retries_total{backend="main",reason="upstream_closed"}', 0)
        assert repeats == len(liar.connections) - 1 == (1 if status == 200 else 0)


async def test_an_upload_that_cannot_be_sent_again_goes_over_a_connection_that_was_never_used() -> None:
    async def stream() -> AsyncIterator[bytes]:
        yield bytes(2_000_000)

    async with lying(answering(b"{}")) as liar, running(liar.url) as client:
        for _ in range(3):
            assert (await client.request("POST", "/x", data=stream())).status == 200
        assert len(liar.connections) == 3


@pytest.mark.parametrize("status", ["413 Too Large", "200 OK"])
async def test_an_answer_that_comes_before_its_upload_ends_the_upload_and_its_rest_is_dropped(
    caplog: pytest.LogCaptureFixture, status: str
) -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.readexactly(70_000)
        await connection.answer(b'{"error":"no"}', status)
        await connection.reader.read()

    async with lying(script) as liar, running(liar.url) as client, connected(client) as (reader, writer):
        writer.write(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + bytes(100_000))
        head, body = await read_reply(reader)
        assert (head.split()[1], body) == (status[:3].encode(), b'{"error":"no"}')
        writer.write(bytes(100_000))
        assert await client.wait_until_idle(5) == 0
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


async def test_broken_chunks_of_a_backend_are_a_502_at_once() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await asyncio.sleep(0.05)
        await connection.send(b'c\r\n{"outputs":[\r\nzz\r\n')
        await connection.reader.read()

    async with lying(script) as liar, running(liar.url) as client:
        reply = await client.infer_binary(HEADER, X.tobytes())
        assert reply.status == 502
        assert "does not speak HTTP" in reply.error


@pytest.mark.parametrize("line", [b"520 ", b"400 Err\xe9ur", b"599 What"])
async def test_statuses_without_a_usable_reason_keep_their_status(line: bytes) -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 " + line + b"\r\nContent-Length: 0\r\n\r\n")

    async with lying(script) as liar, running(liar.url) as client:
        reply = await client.infer_binary(HEADER, X.tobytes())
        assert reply.status == int(line[:3])
        assert line[:3].decode() in reply.error


async def test_connections_that_a_backend_does_not_read_are_not_kept() -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        connection.pause_reading()
        await asyncio.Event().wait()

    array = np.zeros(4_000_000, np.float32)
    async with lying(script) as liar, running(liar.url, backend="timeouts: {idle: 50ms}") as client:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(4):
            assert (await client.infer_binary({"inputs": [tensor("x", array, "FP32")]}, array.tobytes())).status == 504
        for connection in liar.connections:
            connection.writer.transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


async def test_an_answer_that_stops_is_a_504_also_while_the_client_still_sends() -> None:
    async def script(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await asyncio.Event().wait()

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x"
            await asyncio.sleep(0.01)

    async with lying(script) as liar, running(liar.url, backend="timeouts: {idle: 100ms, total: 60s}") as client:
        with pytest.raises(aiohttp.ClientError):
            await client.request("POST", "/x", data=drip())
        metrics = await client.metrics()
        assert metrics['tensor_gateway_errors_total{blame="backend",reason="timeout",route="main"}'] == 1


async def test_a_client_that_uploads_too_slowly_is_to_blame_itself() -> None:
    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.02)

    async with lying(answering(b"ok")) as liar, running(liar.url, backend="timeouts: {total: 200ms}") as client:
        reply = await client.request("POST", "/x", data=drip())
        assert (reply.status, "the client kept the request open" in reply.error) == (408, True)


async def test_a_client_that_closes_its_sending_side_counts_as_gone() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.reader.read()

    async with lying(script) as liar, running(liar.url) as client, connected(client) as (reader, writer):
        writer.write(INFER)
        writer.write_eof()
        assert await reader.read() == b""
        assert await client.wait_until_idle(5) == 0


@pytest.mark.parametrize("target", ["/v2/models/secret#x/infer", "/a?b#c"])
async def test_a_fragment_in_the_path_is_refused(client: Client, server: JsonServer, target: str) -> None:
    async with connected(client) as (reader, writer):
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await read_reply(reader))[0].split()[1] == b"400"


async def test_a_cut_reply_without_length_is_a_reset() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        await connection.reader.read()

    async with lying(script) as liar, running(liar.url, backend="timeouts: {idle: 100ms}") as client:
        async with connected(client) as (reader, writer):
            writer.write(b"GET /x HTTP/1.0\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                await reader.read()


async def test_connect_is_refused(client: Client) -> None:
    async with connected(client) as (reader, writer):
        writer.write(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"400"
