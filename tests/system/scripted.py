"""Backends that count what they execute, and a client that owns its socket.

A request is known by the `id` in its query string. `CountingBackend` counts an id when the whole request has been
read; `echo` answers with the request's own tensor or id, so that a client can tell whether the answer is its own.
Not here: what a test expects of the gateway.
"""

import asyncio
import json
import re
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import orjson

from tests.conftest import HEADER_LENGTH, Client

JSON_TYPE = "Content-Type: application/json\r\n"
RESET = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which a close sends a reset."""

_ID = re.compile(r"[?&]id=([^&]*)")


@dataclass
class Peer:
    """One connection from the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    served: int = 0
    """How many whole requests were read from it."""

    async def read_head(self) -> bytes:
        """The head of the next request, with the empty line."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def read_body(self, head: bytes) -> bytes:
        """The body that *head* announces."""
        lower = head.lower()
        if b"\r\ntransfer-encoding: chunked" in lower:
            pieces = []
            while size := await self._chunk_size():
                pieces.append(await self.reader.readexactly(size))
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
            return b"".join(pieces)
        length = re.search(rb"\r\ncontent-length: *(\d+)", lower)
        return await self.reader.readexactly(int(length[1])) if length else b""

    async def _chunk_size(self) -> int:
        line = await self.reader.readline()
        if not line.endswith(b"\n"):
            raise asyncio.IncompleteReadError(line, None)
        return int(line, 16)

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self.writer.is_closing():  # asyncio's transports break where they are written to after their end
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Close with a reset instead of an end of stream."""
        if self.writer.transport.is_closing():
            return
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.writer.transport.abort()


@dataclass
class Seen:
    """A request as the backend has read it."""

    peer: Peer
    head: bytes
    body: bytes

    @property
    def method(self) -> str:
        """The request's method."""
        return self.head.partition(b" ")[0].decode()

    @property
    def target(self) -> str:
        """Raw path and query."""
        return self.head.split(b" ")[1].decode()

    @property
    def id(self) -> str:
        """The `id` of the query; empty if there is none."""
        found = _ID.search(self.target)
        return found[1] if found else ""

    def values(self, name: str) -> list[str]:
        """The values of all headers *name*, in their order."""
        lines = self.head.decode("utf-8", "surrogateescape").split("\r\n")[1:]
        pairs = [line.partition(":") for line in lines]
        return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]

    async def answer(self, body: bytes, status: str = "200 OK", headers: str = JSON_TYPE, behind: bytes = b"") -> None:
        """Send a well-formed answer, and *behind* in the same write."""
        head = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode()
        await self.peer.send(head + (b"" if self.method == "HEAD" else body) + behind)

    def echo(self) -> bytes:
        """The body of the answer that proves whose it is: the request's tensors, or its id."""
        if self.method == "POST" and self.target.partition("?")[0].endswith("/infer"):
            inputs = orjson.loads(self.body)["inputs"]
            outputs = [{key: item[key] for key in ("name", "datatype", "shape", "data")} for item in inputs]
            return orjson.dumps({"model_name": "m", "id": self.id, "outputs": outputs})
        return orjson.dumps({"id": self.id, "bytes": len(self.body)})


Behaviour = Callable[[Seen], Awaitable[bool]]
"""Answers a request; whether the connection is read again."""


async def echo(seen: Seen) -> bool:
    """Answer with the request's own tensor or id, and keep the connection."""
    await seen.answer(seen.echo())
    return True


@dataclass
class CountingBackend:
    """A backend that runs a behaviour for each request."""

    url: str
    behave: Behaviour
    executed: Counter[str] = field(default_factory=Counter)
    """How often each id was read to its end."""
    seen: list[Seen] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """One for each connection, and those of `later`."""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run *work* beside everything else, until the backend ends."""
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until it or the backend ends."""
        peer = Peer(reader, writer)
        self.peers.append(peer)
        self.later(self._serve(peer))

    async def _serve(self, peer: Peer) -> None:
        try:
            keep = True
            while keep:
                head = await peer.read_head()
                seen = Seen(peer, head, await peer.read_body(head))
                peer.served += 1
                self.seen.append(seen)
                self.executed[seen.id] += 1
                keep = await self.behave(seen)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            peer.writer.close()


@asynccontextmanager
async def counting(
    behave: Behaviour = echo, *, head_bytes: int = 2**16, listener: socket.socket | None = None
) -> AsyncIterator[CountingBackend]:
    """A backend that answers each request by *behave*, and reads heads of up to *head_bytes*.

    It listens on *listener*, or on a free port of the loopback interface.
    """
    backend = CountingBackend("", behave)
    listener = listener or socket.create_server(("127.0.0.1", 0), backlog=512)
    host, port = listener.getsockname()
    backend.url = f"http://{host}:{port}"
    server = await asyncio.start_server(backend.accept, sock=listener, limit=head_bytes)
    async with server:
        try:
            yield backend
        finally:
            for task in backend.tasks:
                task.cancel()
            await asyncio.gather(*backend.tasks, return_exceptions=True)
            for peer in backend.peers:
                peer.writer.close()


@dataclass
class RawReply:
    """A reply as it came over a client's own connection."""

    status: int
    head: bytes
    body: bytes

    def values(self, name: str) -> list[str]:
        """The values of all headers *name*."""
        pairs = [line.partition(":") for line in self.head.decode("latin-1").split("\r\n")[1:]]
        return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]


@dataclass
class Wire:
    """A client's connection to the gateway."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self.writer.is_closing():  # asyncio's transports break where they are written to after their end
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def reply(self, method: str = "GET") -> RawReply:
        """Read one final reply to a request of *method*, skipping interim ones."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        while head.split()[1].startswith(b"1"):
            head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if method == "HEAD" or status in (204, 304):
            return RawReply(status, head, b"")
        return RawReply(status, head, await Peer(self.reader, self.writer).read_body(head))

    def reset(self) -> None:
        """Leave with a reset."""
        Peer(self.reader, self.writer).reset()


@asynccontextmanager
async def wire(url: str, receive_bytes: int | None = None, trust: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    """A connection to *url*; *receive_bytes*: a small kernel buffer, so that a client that does not read is felt.

    *trust*: how certificates are verified, if *url* is https.
    """
    host, port = url.partition("://")[2].split(":")
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (host, int(port)))
    limit = 2**16 if receive_bytes is None else receive_bytes
    name = host if trust is not None else None
    reader, writer = await asyncio.open_connection(sock=connection, limit=limit, ssl=trust, server_hostname=name)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


def head_of(method: str, target: str, length: int | None = None, headers: Mapping[str, object] | None = None) -> bytes:
    """A request's head."""
    fields = {"Host": "x", **(headers or {}), **({} if length is None else {"Content-Length": length})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode()


def infer_header(array: np.ndarray, datatype: str, *, binary: bool = True) -> dict[str, object]:
    """The JSON of an inference of one input `x`, which asks for binary outputs if its input is binary."""
    entry: dict[str, object] = {"name": "x", "shape": list(array.shape), "datatype": datatype}
    if not binary:
        return {"inputs": [{**entry, "data": array.ravel().tolist()}]}
    return {
        "inputs": [{**entry, "parameters": {"binary_data_size": array.nbytes}}],
        "parameters": {"binary_data_output": True},
    }


def infer_message(id_: str, array: np.ndarray, datatype: str, *, binary: bool = True) -> bytes:
    """A whole request, head and body, that infers *array* on model `m`."""
    text = json.dumps(infer_header(array, datatype, binary=binary)).encode()
    body = text + (array.tobytes() if binary else b"")
    headers = {HEADER_LENGTH: len(text)} if binary else {"Content-Type": "application/json"}
    return head_of("POST", f"/v2/models/m/infer?id={id_}", len(body), headers) + body


FORMS = ("binary", "json", "get", "post")
"""The kinds of request that `ask` can send."""


@dataclass
class Asked:
    """What a client got for a request with an id."""

    status: int
    is_own: bool
    body: bytes


async def ask(client: Client, form: str, number: int, model: str = "m") -> Asked:
    """Send a request of one of `FORMS`, whose id and tensor are *number*, and see whether the answer is its own."""
    array = np.array([number, number + 1], np.int64)
    path = f"/v2/models/{model}/infer?id={number}"
    if form in ("get", "post"):
        body = b"%d" % number if form == "post" else None
        reply = await client.request(
            form.upper(), f"/v2/models/{model}/any?id={number}", data=body, allow_redirects=False
        )
        is_own = reply.status == 200 and json.loads(reply.body)["id"] == str(number)
        return Asked(reply.status, is_own, reply.body)
    text = json.dumps(infer_header(array, "INT64", binary=form == "binary")).encode()
    if form == "json":
        reply = await client.request("POST", path, data=text, headers={"Content-Type": "application/json"})
        outputs = json.loads(reply.body).get("outputs") if reply.status == 200 else None
        is_own = outputs is not None and outputs[0]["data"] == array.tolist()
        return Asked(reply.status, is_own, reply.body)
    headers = {HEADER_LENGTH: str(len(text))}
    reply = await client.request("POST", path, data=text + array.tobytes(), headers=headers)
    is_own = reply.status == 200 and reply.binary == array.tobytes() and reply.json["id"] == str(number)
    return Asked(reply.status, is_own, reply.body)


def total(samples: Mapping[str, float], name: str, **labels: str) -> float:
    """The sum of the samples of `tensor_gateway_`*name* that carry all *labels*; 0 without any."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    start = f"tensor_gateway_{name}"
    return sum(
        value
        for sample, value in samples.items()
        if (sample == start or sample.startswith(start + "{")) and all(item in sample for item in wanted)
    )


async def until(client: Client, name: str, value: float, **labels: str) -> dict[str, float]:
    """Scrape until a metric has *value*; fails after as many scrapes as take some ten seconds."""
    samples: dict[str, float] = {}
    for _ in range(2000):
        samples = await client.metrics()
        if total(samples, name, **labels) == value:
            return samples
    raise AssertionError(f"{name}{labels} is {total(samples, name, **labels)}, not {value}")


@asynccontextmanager
async def many_connections(client: Client) -> AsyncIterator[Client]:
    """*client* with a session of its own that opens as many connections as it has requests."""
    async with aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Client(session, client.gateway, client.url, client.admin)
