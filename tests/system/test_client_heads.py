"""What a client may not send, through the whole gateway: refused before routing, nothing sent to a backend."""

import asyncio

import pytest

from tests.client.raw import connect
from tests.conftest import Connection, answering, lying, running

ROUTES = """
routes:
  - {name: public, models: [public], backend: main}
"""


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v2/models/public/../secret/infer HTTP/1.1\r\nHost: x",
        b"POST /v2/models/public/%2e%2E/secret/infer HTTP/1.1\r\nHost: x",
        b"GET /v2/models/public%2f..%2fsecret HTTP/1.1\r\nHost: x",
        b"GET http://x/v2/models/public/../secret HTTP/1.1\r\nHost: x",
        b"GET /v2/models/public HTTP/1.1\r\nHost: x\r\nAuthorization: adm\xffin",
        b"GET /v2/models/public HTTP/1.1\r\nHost: x\r\nX\xff: a",
        b"GET /v2/models/public HTTP/1.1\r\nHost: x\xff",
        b"OPTIONS * HTTP/1.1\r\nHost: x",
        b"GET /v2/models/public#x HTTP/1.1\r\nHost: x",
        b"POST /v2/models/public/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    ],
)
async def test_a_refused_head_reaches_no_backend_and_is_counted_once(head: bytes) -> None:
    async with lying(answering(b"{}")) as liar, running(liar.url, ROUTES) as client, connect(client.url) as raw:
        reply = await raw.exchange(head + b"\r\n\r\n")
        assert (reply.status, bool(reply.error)) == (400, True)
        metrics = await client.metrics()
        assert metrics['tensor_gateway_errors_total{blame="client",reason="malformed_request",route="none"}'] == 1
        assert liar.connections == []


async def test_a_client_that_leaves_with_the_last_byte_of_a_relayed_answer_counts_as_served() -> None:
    ended = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(b"{}")
        await ended.wait()

    async with lying(script) as liar, running(liar.url) as client:
        async with connect(client.url) as raw:
            assert (await raw.exchange(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")).body == b"{}"
        assert await client.wait_until_idle(5) == 0
        metrics = await client.metrics()
        assert metrics['tensor_gateway_requests_total{code="200",model="other",protocol="http",route="main"}'] == 1
        ended.set()
