"""Endpoints that fail in every way there is, and count what they execute: what the tests of `Upstream` share."""

import asyncio
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer
from gateway.backend.endpoints import EndpointState
from gateway.backend.upstream import Upstream
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from tests.backend.sockets import busy_and_idle, read_whole, upstream_of
from tests.system.scripted import Behaviour, CountingBackend, Seen, counting

PIECE_BYTES = 256 * 1024

IN_TURN = "balance: round_robin, timeouts: {first_byte: 100ms, idle: 100ms}"
"""Settings by which the second of two endpoints gets the first request: turns are counted from 1."""


async def well(seen: Seen) -> bool:
    """Answer with the request's id and a digest of its body."""
    await seen.answer(own_answer(seen.id, seen.body))
    return True


def own_answer(id_: str, body: bytes) -> bytes:
    return f"{id_} {hashlib.sha256(body).hexdigest()}".encode()


async def hanging(seen: Seen) -> bool:
    """Read the request, and never answer."""
    await asyncio.get_running_loop().create_future()
    return False


async def closing(seen: Seen) -> bool:
    """Read the request, and close."""
    return False


async def resetting(seen: Seen) -> bool:
    """Read the request, and reset the connection."""
    seen.peer.reset()
    return False


async def cutting(seen: Seen) -> bool:
    """End the stream in the middle of the answer."""
    await seen.peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
    return False


async def falling_silent(seen: Seen) -> bool:
    """Stop in the middle of the answer, and keep the connection."""
    await seen.peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart")
    return await hanging(seen)


async def breaking_chunks(seen: Seen) -> bool:
    """Break the framing in the middle of the answer."""
    await seen.peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\nxyz\r\n")
    return True


async def babbling(seen: Seen) -> bool:
    """Answer with what is not HTTP."""
    await seen.peer.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    return False


def answering(status: str) -> Behaviour:
    """Answer with *status*, and the body of `well`."""

    async def behave(seen: Seen) -> bool:
        await seen.answer(own_answer(seen.id, seen.body), status)
        return True

    return behave


class Gate:
    """A behaviour that holds each request until it is let go, and then behaves as `then`."""

    def __init__(self, then: Behaviour = well) -> None:
        self.then = then
        self.open = asyncio.Event()
        self.waiting = 0
        self._arrived = asyncio.Event()

    async def __call__(self, seen: Seen) -> bool:
        self.waiting += 1
        self._arrived.set()
        await self.open.wait()
        self.waiting -= 1
        return await self.then(seen)

    async def until_waiting(self, n_requests: int) -> None:
        """Wait until so many requests are held; fails after ten seconds."""
        async with asyncio.timeout(10):
            while self.waiting < n_requests:
                self._arrived.clear()
                await self._arrived.wait()


@contextmanager
def nobody() -> Iterator[str]:
    """The URL of a port that refuses connections, and that nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@asynccontextmanager
async def upstream_with(
    *behaviours: Behaviour, settings: str = ""
) -> AsyncIterator[tuple[Upstream, list[CountingBackend]]]:
    """A backend of endpoints that behave so; at its end no attempt is in flight, and no connection is busy."""
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(counting(behave)) for behave in behaviours]
        upstream = upstream_of([backend.url for backend in backends], settings)
        try:
            yield upstream, backends
            assert_nothing_is_left(upstream)
        finally:
            await upstream.close()


def assert_nothing_is_left(upstream: Upstream) -> None:
    """No slot is taken, no connection is busy, no attempt is counted as in flight."""
    assert upstream.connections._in_use == 0
    for state in upstream.endpoints.states:
        assert state.in_flight == 0
        assert busy_and_idle(state)[0] == 0


async def call(
    upstream: Upstream,
    id_: object = 1,
    *,
    method: str = "POST",
    body: Body | None = None,
    read: Callable[[Answer], Awaitable[bytes]] = read_whole,
    attempts: list[Attempt] | None = None,
    sticky_key: str | None = None,
) -> bytes:
    """Call *upstream* with a request that has an id; what `read` makes of the answer."""
    request = BackendRequest(method, f"/x?id={id_}", [], body or Body(whole=b"body"))
    return await upstream.call(request, [] if attempts is None else attempts, read, sticky_key=sticky_key)


async def read_as_malformed(answer: Answer) -> bytes:
    await read_whole(answer)
    raise GatewayError(ErrorKind.MALFORMED_RESPONSE, "the answer makes no sense")


def codes(attempts: list[Attempt]) -> list[str]:
    return [attempt.code for attempt in attempts]


def make_due(state: EndpointState) -> None:
    """As if the time of its ejection were over."""
    assert state.ejection.is_ejected
    state.ejection._until_s = 0.0


class Streamed:
    """A body of pieces that are made anew each time, as that of a large tensor."""

    def __init__(self, n_bytes: int, *, can_be_repeated: bool = True) -> None:
        self.n_opened = 0
        self._n_bytes = n_bytes
        self.body = Body(open=self._pieces, can_be_repeated=can_be_repeated)

    def pieces(self) -> Iterator[bytes]:
        for start in range(0, self._n_bytes, PIECE_BYTES):
            piece = hashlib.sha256(str(start).encode()).digest() * (PIECE_BYTES // 32)
            yield piece[: self._n_bytes - start]

    async def _pieces(self) -> AsyncIterator[bytes]:
        self.n_opened += 1
        for piece in self.pieces():
            yield piece
