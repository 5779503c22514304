"""An endpoint that can be broken and healed at any time, and that notes what it executes.

Not here: what the gateway should make of it.
"""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum

from tests.system.scripted import JSON_TYPE, Peer, Seen

HEALTH_PATH = "/v2/health/ready"


class Fault(Enum):
    """What is wrong with an endpoint."""

    KILLED = "killed"
    """Its connections end, and new ones are refused."""
    BLACK_HOLE = "black hole"
    """Its connections end, and new ones are neither accepted nor refused."""
    HANGS = "hangs"
    """It reads every request and answers none, probes neither."""
    CUTS = "cuts answers"
    """It ends the connection in the middle of each answer; probes are answered."""
    RESETS = "resets"
    """It reads each request and resets the connection; probes are answered."""
    ERRS = "answers 500"
    """To every request, probes too."""


_SHAPE = re.compile(rb'"shape": *(\[[^]]*\])')
_DATA = re.compile(rb'"data": *(\[[^]]*\])')


def echo_of(seen: Seen) -> bytes:
    """The answer with the only tensor of an inference, cut out of the request: tensors of 64 MiB would take seconds."""
    shape, data = _SHAPE.search(seen.body), _DATA.search(seen.body)
    assert shape is not None, seen.body[:200]
    assert data is not None, seen.body[:200]
    start = f'{{"model_name":"m","id":"{seen.id}","outputs":[{{"name":"x","datatype":"INT64","shape":'
    return b"".join([start.encode(), shape[1], b',"data":', data[1], b"}]}"])


class FragileEndpoint:
    """Echoes the tensors of inferences, under the request's number."""

    def __init__(self, executed: Counter[str]) -> None:
        self.port = 0
        self.served = 0
        """How many inferences it has answered well."""
        self._executed = executed
        self._fault: Fault | None = None
        self._server: asyncio.Server | None = None
        self._peers: set[asyncio.StreamWriter] = set()
        self._fillers: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Its URL, which stays the same."""
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        """Accept connections."""
        # as large as the largest request: a reader's limit holds for one line or head, and sets the socket's pace
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=2**20, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def break_down(self, fault: Fault) -> None:
        """Begin to fail."""
        self._fault = fault
        if fault in (Fault.KILLED, Fault.BLACK_HOLE):
            self.close()
        if fault is Fault.BLACK_HOLE:
            self._swallow()

    async def heal(self) -> None:
        """Serve again. What hangs goes on hanging on its connection, as with a process that was replaced."""
        self._fault = None
        for filler in self._fillers:
            filler.close()
        self._fillers.clear()
        if self._server is None:
            await self.listen()

    def close(self) -> None:
        """Let everything go, as the kernel does for a process that was killed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._peers:
            writer.transport.abort()
        for filler in self._fillers:
            filler.close()

    def _swallow(self) -> None:
        """Listen without accepting, with a full queue: the kernel drops every further connection's first packet."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=0)
        self._fillers.append(listener)
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", self.port))
            self._fillers.append(filler)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._peers.add(writer)
        try:
            while await self._exchange(peer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._peers.discard(writer)
            writer.close()

    async def _exchange(self, peer: Peer) -> bool:
        """Serve one request; whether the connection goes on."""
        head = await peer.read_head()
        seen = Seen(peer, head, await peer.read_body(head))
        is_probe = seen.target == HEALTH_PATH
        if not is_probe:
            self._executed[seen.id] += 1
        answer = b"{}" if is_probe else echo_of(seen)
        match self._fault:
            case Fault.HANGS:
                await peer.reader.read()  # until the gateway gives up
                return False
            case Fault.ERRS:
                await seen.answer(b'{"error":"out of order"}', "500 Internal Server Error")
            case Fault.CUTS if not is_probe:
                start = f"HTTP/1.1 200 OK\r\n{JSON_TYPE}Content-Length: {len(answer)}\r\n\r\n".encode()
                await peer.send(start + answer[: len(answer) // 2])
                return False
            case Fault.RESETS if not is_probe:
                peer.reset()
                return False
            case _:
                await seen.answer(answer)
                self.served += not is_probe
        return True


@asynccontextmanager
async def fragile_endpoints(count: int, executed: Counter[str]) -> AsyncIterator[list[FragileEndpoint]]:
    """*count* endpoints that note in *executed* how often they have read each request to its end."""
    endpoints = [FragileEndpoint(executed) for _ in range(count)]
    try:
        for endpoint in endpoints:
            await endpoint.listen()
        yield endpoints
    finally:
        for endpoint in endpoints:
            endpoint.close()
