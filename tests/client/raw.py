"""A client that writes bytes of its own, and a server whose handler is a test's."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import msgspec

from gateway.certificates import TlsContext
from gateway.client.body import ClientBody
from gateway.client.listeners import ClientListener
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest, request_id
from gateway.client.server import DEFAULT_LIMITS, Server
from gateway.config import Address, Limits
from gateway.errors import GatewayError
from gateway.exchange import Exchange
from gateway.plan import Plan
from gateway.policy.admission import Admission

Serve = Callable[[ClientRequest, ClientBody, Reply], Awaitable[None]]


@dataclass
class RawReply:
    """What came back on a raw connection."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        """Every value of header *name* (lower case)."""
        return [value for key, value in self.headers if key == name]

    @property
    def error(self) -> str:
        """The text of an error, whose shape is checked on the way."""
        assert self.all("content-type") == ["application/json"]
        assert len(self.all("x-request-id")) == 1
        parsed = json.loads(self.body)
        assert list(parsed) == ["error"]
        return str(parsed["error"])


@dataclass
class RawConnection:
    """A client's connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def exchange(self, request: bytes) -> RawReply:
        """Send *request* and read one reply."""
        self.writer.write(request)
        return await self.read_reply()

    async def read_reply(self, *, to_head: bool = False) -> RawReply:
        """Read one reply; its body by Content-Length, in chunks, or up to the end of the connection."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in head[1:-2])]
        reply = RawReply(int(head[0].split()[1]), headers, b"")
        if to_head or reply.status in (100, 204, 304):
            return reply
        if reply.all("content-length"):
            reply.body = await self.reader.readexactly(int(reply.all("content-length")[0]))
        elif reply.all("transfer-encoding"):
            while size := int(await self.reader.readline(), 16):
                reply.body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            assert await self.reader.readexactly(2) == b"\r\n"
        else:
            reply.body = await self.reader.read()
        return reply

    async def is_closed(self) -> bool:
        """Whether the connection ends here; waits for it."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def connect(url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[RawConnection]:
    """A connection to the gateway or server at *url*."""
    if url.startswith("unix:"):
        reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix:"))
    else:
        host, port = url.partition("://")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()


@dataclass
class Running:
    """A server of the client's side with nothing behind it."""

    server: Server
    url: str
    exchanges: list[Exchange] = field(default_factory=list)
    """Those that are finished."""
    finished: asyncio.Condition = field(default_factory=asyncio.Condition)
    requests: list[ClientRequest] = field(default_factory=list)
    is_draining: bool = False

    async def exchange(self, number: int = 1) -> Exchange:
        """The exchange of that number, when it is finished."""
        async with self.finished:
            await self.finished.wait_for(lambda: len(self.exchanges) >= number)
        return self.exchanges[number - 1]


def replying(
    request: ClientRequest,
    exchange: Exchange,
    *,
    admission: Admission | None = None,
    max_bytes: int = 1 << 20,
    is_draining: bool = True,
) -> Reply:
    """The body of *request*, and its reply."""
    shared = SimpleNamespace(admission=admission or Admission(1 << 24, 10), is_draining=is_draining)
    plan = cast("Plan", SimpleNamespace(limits=SimpleNamespace(request_body=max_bytes), timing=None))
    return Reply(request, exchange, shared, plan)


@asynccontextmanager
async def serving(
    serve: Serve,
    *,
    max_bytes: int = 1 << 20,
    max_connections: int = 100,
    limits: Limits = DEFAULT_LIMITS,
    tls: TlsContext | None = None,
    address: str = "127.0.0.1:0",
) -> AsyncIterator[Running]:
    """aiohttp's server as the gateway wants it, whose every sound request is given to *serve*.

    *max_connections* replaces that of *limits*.
    """

    async def tell() -> None:
        async with running.finished:
            running.finished.notify_all()

    def record(exchange: Exchange) -> None:
        running.exchanges.append(exchange)
        tasks.append(asyncio.create_task(tell()))

    async def handle(request: ClientRequest) -> None:
        running.requests.append(request)
        exchange = Exchange(request.peer, request.method, request.path, request_id(request.headers), 0.0)
        reply = replying(request, exchange, max_bytes=max_bytes, is_draining=running.is_draining)
        try:
            try:
                if request.fault is not None:
                    raise request.fault
                await serve(request, reply, reply)
            except GatewayError as error:
                await reply.error(error)
        except (asyncio.CancelledError, ConnectionError):
            reply.client_left()
            raise
        finally:
            reply.release()
            record(exchange)

    tasks: list[asyncio.Task[None]] = []
    server = Server(handle, msgspec.structs.replace(limits, connections=max_connections), tls=tls)
    listener = ClientListener(server)
    running = Running(server, await listener.open(Address(address)))
    try:
        yield running
    finally:
        listener.stop_accepting()
        await server.close()
        await asyncio.gather(*tasks)


async def read_body(body: ClientBody) -> memoryview:
    """All of *body*, inflated."""
    return await body.read()


async def echo(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
    """Reply with method, path, and the body."""
    text = await read_body(body) if request.has_body else b""
    await reply.whole(200, [], (f"{request.method} {request.path} ".encode() + bytes(text),))
