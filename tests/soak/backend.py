"""An endpoint that does with each request what its plan says, and drops or litters idle connections.

It echoes the tensor that it has read, under the mark of the request, and never answers from the plan what it has not
read, except where the plan is to answer too early.
"""

import array
import asyncio
import fcntl
import random
import re
import socket
import struct
import termios
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.soak.journal import Journal, Plan
from tests.system.scripted import JSON_TYPE, Peer

FAULTS = {
    "none": 40,
    "slow": 4,
    "chunked": 6,
    "tiny chunks": 3,
    "many tiny chunks": 2,
    "drip": 3,
    "interim": 4,
    "connection close": 4,
    "close unread": 2,
    "reset unread": 2,
    "early answer": 3,
    "early answer and close": 2,
    "early answer and reset": 2,
    "drop": 3,
    "drop by reset": 3,
    "drop after work": 3,
    "cut head": 2,
    "cut body": 3,
    "cut body by reset": 3,
    "cut chunks": 2,
    "broken chunk": 2,
    "short length": 2,
    "long length": 2,
    "extra byte": 2,
    "second answer": 3,
    "late second answer": 4,
    "late 408": 3,
    "malformed": 4,
    "error": 4,
    "no HTTP": 1,
    "HTTP/1.0": 2,
    "bare header bytes": 1,
    "idle close": 4,
    "idle reset": 3,
    "stall in head": 0.3,
    "stall in body": 0.3,
}
"""What a backend does with a request, and how often beside the others."""

MOODS = {"well": 60, "killed": 12, "hangs": 6, "sick": 12}
"""What an endpoint does as a whole for a while: `hangs` reads and never answers, `sick` answers probes with 503."""

MOOD_S = (0.5, 4.0)
"""The shortest and the longest that an endpoint stays as it is."""

HEALTH_PATH = "/v2/health/ready"

ACCEPT_FAULTS = 0.01
"""The share of connections that end before anything was read from them."""

ARRIVAL_S = 0.05
RACE_S = 0.005
"""How long to wait until unasked bytes stand in the gateway's kernel, and then for a request that had been on its way.

A request that comes later was sent by a gateway that could have seen the bytes.
"""

TINY_CHUNKS_BYTES = {"tiny chunks": 10_000, "many tiny chunks": 100_000}
"""An answer of up to this size comes in chunks of one byte: with 10,000 of them, not 64 KiB, it has to be accepted."""

ONE_SEGMENT = 50_000
"""An answer and what follows it, up to this size and in one write, come to the gateway in one read."""

_ID = re.compile(rb"^[A-Z]+ [^ ]*(?:[?&]id=|/versions/)(\d+)")
_DATA = re.compile(rb'"data": *(\[[^]]*\])')
_SHAPE = re.compile(rb'"shape": *\[(\d+)\]')


class DroppedError(Exception):
    """The connection is closed now."""


def unread_bytes(peer: Peer) -> int:
    """How many bytes of a next request have come."""
    count = array.array("i", [0])
    fcntl.ioctl(peer.writer.get_extra_info("socket").fileno(), termios.FIONREAD, count)
    return count[0] + len(peer.reader._buffer)  # type: ignore[attr-defined]


def unacknowledged(peer: Peer) -> int:
    """How many segments the gateway's kernel has not acknowledged; none when the connection is over."""
    info = peer.writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    segments: int = struct.unpack_from("I", info, 24)[0]  # tcpi_unacked
    return segments


class FaultyBackend:
    """Serves one port, with breaks, until `close`."""

    def __init__(self, journal: Journal, seed: str) -> None:
        self.port = 0
        self._journal = journal
        self._random = random.Random(seed)
        self._peers: set[Peer] = set()
        self._mood = "well"
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Its URL, which stays the same."""
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> None:
        """Accept connections."""
        listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
        self.port = listener.getsockname()[1]
        self._server = await asyncio.start_server(self.serve, sock=listener, limit=2**22)

    async def live(self) -> None:
        """Change the mood again and again."""
        dice = self._random
        while True:
            await asyncio.sleep(dice.uniform(*MOOD_S))
            self._mood = dice.choices(list(MOODS), list(MOODS.values()))[0]
            self._journal.moods[self._mood] += 1
            if self._mood == "killed":
                self.close()
            elif self._server is None:
                await self.listen()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        peer = _IdentityPeer(reader, writer)
        writer.transport.set_write_buffer_limits(0)  # `send` returns when the kernel has all
        self._peers.add(peer)
        try:
            if self._random.random() < ACCEPT_FAULTS:
                self._journal.faults["ended when accepted"] += 1
                if self._random.random() < 0.5:
                    peer.reset()
                return
            while True:
                await self._exchange(peer)
        except (DroppedError, ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            if peer.litter_crossed:  # the request is still unread: the endpoint was killed, or the gateway went
                self._journal.crossed.add(peer.littered_by)
            self._peers.discard(peer)
            writer.close()

    def close(self) -> None:
        """Close what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for peer in self._peers:
            peer.writer.close()

    async def _exchange(self, peer: "_IdentityPeer") -> None:
        head = await peer.read_head()
        if head.startswith(f"GET {HEALTH_PATH} ".encode()):
            await self._probe(peer)
            return
        found = _ID.match(head)
        plan = self._journal.plans.get(int(found[1])) if found else None
        if plan is None:
            self._journal.violated("a backend got what no client had sent", repr(head[:200]))
            raise DroppedError
        if peer.litter:
            if peer.litter_crossed:
                plan.raced_with = peer.littered_by
                peer.litter_crossed = False
                self._journal.faults["bytes met a request on its way"] += 1
            else:
                example = f"{plan.kind} {plan.id}, after {peer.litter} of {peer.littered_by}"
                self._journal.violated("a request was sent on a connection with bytes of no request", example)
            raise DroppedError
        self._journal.faults[plan.fault] += 1
        await self._unread(peer, plan)
        body = await peer.read_body(head)
        self._journal.execute(plan)
        if self._mood == "hangs":
            await self._until_dropped(peer)
        text = self._text(plan, body)
        if not plan.fault.startswith("early answer"):
            plan.texts.append(text)
            await self._answer(peer, plan, text)
        await self._idle(peer, plan)

    async def _probe(self, peer: "_IdentityPeer") -> None:
        """Answer a health probe."""
        if peer.litter:
            raise DroppedError
        self._journal.probes += 1
        if self._mood == "hangs":
            await self._until_dropped(peer)
        status = "503 Service Unavailable" if self._mood == "sick" else "200 OK"
        await peer.send(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

    async def _unread(self, peer: Peer, plan: Plan) -> None:
        """What happens before the body is read."""
        match plan.fault:
            case "close unread":
                raise DroppedError
            case "reset unread":
                peer.reset()
                raise DroppedError
            case "early answer" | "early answer and close" | "early answer and reset":
                data = b"[%b]" % b",".join(b"%d" % number for number in plan.array().tolist())
                text = self._infer_text(plan, plan.elements, data) if _is_inference(plan) else self._relay_text(plan)
                plan.texts.append(text)
                await peer.send(_whole(plan, text))
                if plan.fault == "early answer and close":
                    raise DroppedError
                if plan.fault == "early answer and reset":
                    peer.reset()
                    raise DroppedError

    def _text(self, plan: Plan, body: bytes) -> bytes:
        """The body of the true answer to what was read."""
        if not _is_inference(plan):
            return self._relay_text(plan)
        data, shape = _DATA.search(body), _SHAPE.search(body)
        if data is None or shape is None:
            self._journal.violated("a backend got a body that no client had sent", f"{plan.id}: {body[:200]!r}")
            raise DroppedError
        if plan.fault == "malformed":
            broken = data[1][:-1] + self._random.choice([b',"no"]', b",]", b",1]", b"", b",null]", b",1e400]"])
            return self._infer_text(plan, int(shape[1]), broken)
        return self._infer_text(plan, int(shape[1]), data[1])

    @staticmethod
    def _infer_text(plan: Plan, elements: int, data: bytes) -> bytes:
        start = f'{{"id":"{plan.mark}","model_name":"m","outputs":[{{"name":"x","datatype":"INT64","shape":[{elements}]'
        return start.encode() + b',"data":' + data + b"}]}"

    @staticmethod
    def _relay_text(plan: Plan) -> bytes:
        return plan.mark.encode() + b"." * plan.answer_bytes

    async def _answer(self, peer: "_IdentityPeer", plan: Plan, text: bytes) -> None:
        """What happens when the whole request was read."""
        half = len(text) // 2
        match plan.fault:
            case "slow":
                await asyncio.sleep(plan.delay_s)
                await peer.send(_whole(plan, text))
            case "chunked" | "drip":
                await peer.send(b"HTTP/1.1 200 OK\r\n%b" % JSON_TYPE.encode())
                await peer.send(b"Transfer-Encoding: chunked\r\n\r\n")
                if plan.kind != "head":
                    count = 4 if plan.fault == "drip" else 2
                    size = len(text) // count + 1
                    for start in range(0, len(text), size):
                        await peer.send(_chunk(text[start : start + size]))
                        if plan.fault == "drip":
                            await asyncio.sleep(plan.delay_s / count)
                    await peer.send(b"0\r\n\r\n")
            case "tiny chunks" | "many tiny chunks":
                await peer.send(b"HTTP/1.1 200 OK\r\n%bTransfer-Encoding: chunked\r\n\r\n" % JSON_TYPE.encode())
                if plan.kind != "head":
                    is_tiny = len(text) <= TINY_CHUNKS_BYTES[plan.fault]
                    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in text) if is_tiny else _chunk(text)
                    await peer.send(pieces + b"0\r\n\r\n")
            case "interim":
                await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
                await peer.send(_whole(plan, text))
            case "connection close":
                await peer.send(_whole(plan, text, headers="Connection: close\r\n"))
                plan.answered = True
                raise DroppedError
            case "drop after work":
                await asyncio.sleep(plan.delay_s)
                if self._random.random() < 0.5:
                    peer.reset()
                raise DroppedError
            case "drop":
                raise DroppedError
            case "drop by reset":
                peer.reset()
                raise DroppedError
            case "cut head":
                await peer.send(_whole(plan, text)[:20])
                raise DroppedError
            case "cut body" | "cut body by reset" | "long length":
                extra = 10 if plan.fault == "long length" else 0
                sent = text if extra else text[:half]
                await peer.send(_head(plan, len(text) + extra) + sent)
                if plan.fault == "cut body by reset":
                    peer.reset()
                raise DroppedError
            case "cut chunks" | "broken chunk":
                await peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunk(text[:half]))
                if plan.fault == "broken chunk":
                    await peer.send(b"zz\r\n" + text[half:] + b"\r\n0\r\n\r\n")
                    await self._until_dropped(peer)
                raise DroppedError
            case "short length":
                await peer.send(_head(plan, half) + text)
                self._litter(peer, plan, one_segment=len(text) < ONE_SEGMENT)
            case "extra byte":
                await peer.send(_whole(plan, text) + b"x")
                self._litter(peer, plan, one_segment=len(text) < ONE_SEGMENT)
            case "second answer":
                await peer.send(_whole(plan, text) * 2)
                self._litter(peer, plan, one_segment=len(text) * 2 < ONE_SEGMENT)
            case "error":
                status = self._random.choice(["500 No", "404 Not Found", "422 Unprocessable", "503 Busy"])
                error = f'{{"detail":"{plan.mark} does not work"}}'.encode()
                await peer.send(_whole(plan, error, status=status))
            case "no HTTP":
                await peer.send(b"SSH-2.0-OpenSSH\r\n\r\n")
                await self._until_dropped(peer)
            case "HTTP/1.0":
                await peer.send(b"HTTP/1.0 200 OK\r\n%b\r\n" % JSON_TYPE.encode())
                await peer.send(b"" if plan.kind == "head" else text)
                raise DroppedError
            case "bare header bytes":
                await peer.send(_whole(plan, text).replace(b"\r\n", b"\r\nX-Name: \xff\r\n", 1))
            case "stall in head":
                await self._until_dropped(peer)
            case "stall in body":
                await peer.send(_head(plan, len(text)) + text[:half])
                await self._until_dropped(peer)
            case _:
                await peer.send(_whole(plan, text))
        # an endpoint that is killed in the meantime closes all connections, and what is then written is lost
        plan.answered = not peer.writer.transport.is_closing()

    async def _idle(self, peer: "_IdentityPeer", plan: Plan) -> None:
        """What happens on the connection while no request is outstanding."""
        if plan.fault == "idle close":
            await asyncio.sleep(plan.delay_s)
            raise DroppedError
        if plan.fault == "idle reset":
            await asyncio.sleep(plan.delay_s)
            peer.reset()
            raise DroppedError
        if plan.fault in ("late second answer", "late 408"):
            await asyncio.sleep(plan.delay_s)
            if peer.writer.transport.is_closing() or peer.reader.at_eof():
                raise DroppedError
            if unread_bytes(peer) == 0:
                is_408 = plan.fault == "late 408"
                late = f'{{"id":"{plan.mark}","error":"of no request"}}'.encode()  # small: it is there at once
                peer.writer.write(_whole(plan, late, status="408 Request Timeout" if is_408 else "200 OK"))
                self._litter(peer, plan, one_segment=False)

    def _litter(self, peer: "_IdentityPeer", plan: Plan, *, one_segment: bool) -> None:
        """Note that bytes of no request were sent, and whether a request was on its way to them.

        What came in one segment with an answer cannot have crossed a request. Otherwise the kernel is asked, without a
        turn of the event loop in between: that would let requests in that were sent much later.
        """
        peer.litter = plan.fault
        peer.littered_by = plan.id
        if not one_segment and not peer.writer.transport.is_closing():
            until_s = time.monotonic() + ARRIVAL_S
            while not (is_acknowledged := unacknowledged(peer) == 0) and time.monotonic() < until_s:
                time.sleep(0.0005)
            time.sleep(RACE_S)
            peer.litter_crossed = not is_acknowledged or unread_bytes(peer) > 0

    async def _until_dropped(self, peer: Peer) -> None:
        """Wait until the gateway closes the connection."""
        while await peer.reader.read(65536):
            pass
        raise DroppedError


class _IdentityPeer(Peer):
    """A connection that remembers bytes of no request."""

    litter = ""
    littered_by = 0
    litter_crossed = False
    """A request had been sent before the bytes stood at the gateway."""
    __hash__ = object.__hash__


def _is_inference(plan: Plan) -> bool:
    return plan.kind in ("binary", "json")


def _head(plan: Plan, length: int, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}{JSON_TYPE}Content-Length: {length}\r\n\r\n".encode()


def _whole(plan: Plan, text: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return _head(plan, len(text), status, headers) + (b"" if plan.kind == "head" else text)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""


@asynccontextmanager
async def faulty_backends(count: int, journal: Journal, seed: str) -> AsyncIterator[list[FaultyBackend]]:
    """*count* faulty endpoints on free ports."""
    backends = [FaultyBackend(journal, f"{seed}-{number}") for number in range(count)]
    living: list[asyncio.Task[None]] = []
    try:
        for backend in backends:
            await backend.listen()
        living += [asyncio.create_task(backend.live()) for backend in backends]
        yield backends
    finally:
        for task in living:
            task.cancel()
        await asyncio.gather(*living, return_exceptions=True)
        for backend in backends:
            backend.close()
