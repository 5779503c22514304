"""A backend whose sockets belong to the test, and calls to it: what tests of this folder share."""

import asyncio
import enum
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.backend.arriving import ArrivingAnswer
from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer
from gateway.backend.endpoints import Endpoint, EndpointState
from gateway.backend.upstream import Upstream
from gateway.backend.wire import Wire
from gateway.config import parse
from gateway.exchange import Attempt
from gateway.plan import Plan

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

SOMEWHERE = Endpoint.parse("http://127.0.0.1:1", None)

INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"


def upstream_to(url: str, settings: str = "") -> Upstream:
    """The run-time side of a backend with the only endpoint *url*; *settings* is YAML in flow style, such as `a: 1`."""
    return upstream_of([url], settings)


def upstream_of(urls: Sequence[str], settings: str = "", before: Upstream | None = None) -> Upstream:
    """As `upstream_to`, for a backend of several endpoints, and maybe after a reload."""
    config = parse(f"backends: {{main: {{endpoints: [{', '.join(map(repr, urls))}], {settings}}}}}")
    return Upstream(Plan(config, "test").backends["main"], before)


def whole(text: bytes) -> Body:
    return Body(whole=text)


def streamed(text: bytes) -> Body:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(text), 65536):
            piece = text[start : start + 65536]
            yield piece

    return Body(open=pieces)


class Backend:
    """A listening socket, and the connections that were accepted from it, each read and written by the test."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.connections: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    async def accept(self) -> socket.socket:
        connection, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        self.connections.append(connection)
        return connection

    async def read_request(self, connection: socket.socket) -> bytes:
        """All of a request whose length is in its head, or which comes in chunks. Raises `EOFError`."""
        text = b""
        while b"\r\n\r\n" not in text:
            text += await self._receive(connection)
        head, _, body = text.partition(b"\r\n\r\n")
        if b"chunked" in head:
            while not body.endswith(b"0\r\n\r\n"):
                body += await self._receive(connection)
            return body
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or 0)
        while len(body) < length:
            body += await self._receive(connection)
        return body

    async def _receive(self, connection: socket.socket) -> bytes:
        text = await asyncio.get_running_loop().sock_recv(connection, 65536)
        if not text:
            raise EOFError
        return text

    async def serve_once(self, connection: socket.socket) -> bytes:
        body = await self.read_request(connection)
        await asyncio.get_running_loop().sock_sendall(connection, ANSWER)
        return body


async def read_whole(answer: Answer) -> bytes:
    text = bytearray()
    while chunk := await answer.next():
        text += chunk
    return bytes(text)


async def ask(upstream: Upstream, method: str, body: Body) -> tuple[bytes, list[str]]:
    attempts: list[Attempt] = []
    text = await upstream.call(BackendRequest(method, "/x", [], body), attempts, read_whole)
    return text, [attempt.code for attempt in attempts]


def busy_and_idle(state: EndpointState) -> tuple[int, int]:
    """How many connections to an endpoint carry a request, and how many are kept for the next."""
    return state.busy, len(state.idle)


@asynccontextmanager
async def calling(settings: str = "") -> AsyncIterator[tuple[Backend, Upstream]]:
    """A backend and the upstream that calls it."""
    backend = Backend()
    upstream = upstream_to(backend.url, settings)
    try:
        yield backend, upstream
        assert busy_and_idle(upstream.endpoints.states[0])[0] == 0
    finally:
        await upstream.close()
        for each in (backend.listener, *backend.connections):
            each.close()


@asynccontextmanager
async def listening(method: str) -> AsyncIterator[tuple[Wire, ArrivingAnswer]]:
    """A connection on which a request of *method* is open; the test gives it what the backend sends."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    transport, wire = await loop.create_connection(lambda: Wire(loop, SOMEWHERE, lambda lost: None, ours), sock=ours)
    wire.begin(method, b"")
    assert wire.answer is not None
    try:
        yield wire, wire.answer
    finally:
        transport.abort()
        theirs.close()
        await asyncio.sleep(0)


def should_close(wire: Wire) -> bool:
    """Whether a connection can carry no other exchange, as far as is known."""
    answer, transport = wire.answer, wire.transport
    is_cut = transport is not None and transport.is_closing()
    return is_cut or (answer is not None and (answer.is_last or answer.has_surplus))


class Ending(enum.Enum):
    """What follows the last byte that a backend sends."""

    NOTHING = enum.auto()
    STREAM_ENDS = enum.auto()
    RESET = enum.auto()
