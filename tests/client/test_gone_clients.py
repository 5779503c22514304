"""Clients that leave while the gateway has paused reading from them (protocol 10, case 25).

Reading is paused where a client has sent more than the gateway wants to hold: many pipelined requests, or a body that
nobody reads yet. asyncio does not watch a connection that is not read, so the end of such a connection must be looked
for. Not here: clients that leave while they are read, see tests/system/test_backends.py.
"""

import asyncio
import socket

import numpy as np
import pytest

from gateway.client import server
from gateway.client.body import ClientBody
from gateway.client.connection import BEHIND_BYTES
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest
from gateway.client.server import Server
from gateway.errors import GatewayError
from tests.client.raw import connect, echo, read_body, serving
from tests.conftest import running
from tests.system.scripted import RESET, Seen, Wire, counting, head_of, infer_message, total, until, wire

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
BODY_BYTES = 4_000_000
INFER = infer_message("1", np.arange(16, dtype=np.float32), "FP32")
MANY = BEHIND_BYTES // len(GET) + 2
"""So many requests behind another that reading is paused."""
PIPELINED_GETS = INFER + GET * MANY
PIPELINED_BODY = INFER + head_of("POST", "/v2/models/m/any?id=2", BODY_BYTES) + bytes(BODY_BYTES)
OWN_BODY = head_of("POST", "/a", BODY_BYTES) + bytes(BODY_BYTES)


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tests not wait for a whole second."""
    monkeypatch.setattr(server, "LOOK_S", 0.01)


async def paused(server: Server, count: int = 1) -> None:
    """Wait until reading is paused on *count* connections of *server*."""

    def is_paused(transport: asyncio.Transport | None) -> bool:
        return transport is not None and not transport.is_reading()

    while sum(is_paused(protocol.transport) for protocol in server.connections) < count:
        await asyncio.sleep(0)


def leave(leaving: Wire, how: str) -> None:
    """Leave as *how* says: by a reset, a plain close, or a shutdown of the sending side only."""
    connection = leaving.writer.get_extra_info("socket")
    if how == "shutdown":
        connection.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    leaving.writer.transport.abort()


@pytest.mark.parametrize(
    ("sent", "how"),
    [
        pytest.param(PIPELINED_GETS, "reset", id="pipelined requests, reset"),
        pytest.param(PIPELINED_GETS, "close", id="pipelined requests, close"),
        pytest.param(PIPELINED_GETS, "shutdown", id="pipelined requests, shutdown of the sending side"),
        pytest.param(PIPELINED_BODY, "reset", id="pipelined body, reset"),
    ],
)
async def test_the_backend_call_of_a_client_that_left_while_it_was_not_read_is_cancelled(sent: bytes, how: str) -> None:
    called = asyncio.Event()
    ended = asyncio.Event()

    async def wait_for_the_end(seen: Seen) -> bool:
        called.set()
        try:
            await seen.peer.reader.read()
        finally:
            ended.set()
        return False

    async with (
        counting(wait_for_the_end) as backend,
        running(backend.url, backend="timeouts: {total: 5s}") as client,
        wire(client.url) as leaving,
    ):
        leaving.writer.write(sent)
        await called.wait()
        await paused(client.gateway.data_plane.server)
        leave(leaving, how)
        await ended.wait()
        samples = await until(client, "requests_in_flight", 0)
        assert total(samples, "errors_total", reason="client_closed") == 1
        assert total(samples, "errors_total", reason="timeout") == 0
        assert len(backend.seen) == 1


async def test_a_client_that_leaves_in_its_own_body_that_nobody_reads_cancels_its_handler() -> None:
    async def wait(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await asyncio.Event().wait()

    async with serving(wait) as served, wire(served.url) as leaving:
        leaving.writer.write(OWN_BODY)
        await paused(served.server)
        leave(leaving, "reset")
        assert (await served.exchange()).status == 499
        assert served.server.open_connections == 0


async def test_clients_that_are_slow_or_pipeline_a_lot_are_not_cut_off() -> None:
    may_go_on = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await may_go_on.wait()
        await echo(request, body, reply)

    async with (
        serving(serve, max_bytes=BODY_BYTES) as served,
        connect(served.url) as pipelining,
        connect(served.url) as uploading,
    ):
        pipelining.writer.write(GET * MANY)
        uploading.writer.write(OWN_BODY)
        await paused(served.server, 2)
        for number in (1, 2, 3):  # the end of each of these is proof of one more look
            async with wire(served.url) as leaving:
                leaving.writer.write(GET * MANY)
                await paused(served.server, 3)
                leave(leaving, "reset")
                assert (await served.exchange(number)).status == 499
        may_go_on.set()
        for _ in range(MANY):
            assert (await pipelining.read_reply()).status == 200
        assert (await uploading.read_reply()).status == 200


async def test_a_client_that_resets_just_when_its_malformed_body_is_refused_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def refuse(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        try:
            await read_body(body)
        except GatewayError as error:
            await reply.error(error)
            leave(leaving, "reset")
            await asyncio.sleep(0)  # the client's socket is closed, the end of the server's not read yet

    async with serving(refuse) as served, wire(served.url) as leaving:
        leaving.writer.write(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert (await served.exchange()).status == 400
        while served.server.open_connections:
            await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records] == []
