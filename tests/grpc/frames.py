"""A client of HTTP/2 on a raw socket that sends what it likes, for what no client library does."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache

from hpack import Decoder, Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK, PADDED, HAS_PRIORITY = 0x1, 0x4, 0x1, 0x8, 0x20

FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/inference.GRPCInferenceService/ModelInfer"),
    (":authority", "a"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def frame(kind: int, stream: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """A frame as it stands on the wire."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def fields(stream: int, pairs: list[tuple[str, str]] = FIELDS, flags: int = END_HEADERS) -> bytes:
    """A HEADERS frame, compressed without a table."""
    return frame(HEADERS, stream, _encoded(tuple(pairs)), flags)


@lru_cache(maxsize=8)
def _encoded(pairs: tuple[tuple[str, str], ...]) -> bytes:
    """*pairs* in Huffman's code, which takes long for a large head that is sent many times."""
    block: bytes = Encoder().encode(pairs)
    return block


def message(body: bytes, flag: int = 0) -> bytes:
    """A message of gRPC with its prefix."""
    return bytes([flag]) + len(body).to_bytes(4) + body


class Raw:
    """One connection, and what came on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.decoder = Decoder()

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def read(self) -> tuple[int, int, int, bytes] | None:
        """The next frame: kind, flags, stream, payload; None at the end of the connection."""
        try:
            head = await self.reader.readexactly(9)
            payload = await self.reader.readexactly(int.from_bytes(head[:3]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return head[3], head[4], int.from_bytes(head[5:9]) & 0x7FFFFFFF, payload

    async def until(self, *kinds: int) -> tuple[int, int, int, bytes]:
        """The next frame of one of *kinds*; acknowledges settings."""
        while (got := await self.read()) is not None:
            if got[0] == SETTINGS and not got[1] & ACK:
                await self.send(frame(SETTINGS, flags=ACK))
            if got[0] in kinds:
                return got
        raise AssertionError("the connection has ended")

    async def goaway(self) -> int:
        """The code with which the gateway gives the connection up; -1 if it is simply closed."""
        while (got := await self.read()) is not None:
            if got[0] == GOAWAY:
                return int(struct.unpack(">I", got[3][4:8])[0])
        return -1

    async def status(self, stream: int) -> dict[str, str]:
        """The fields with which *stream* ends, and those before."""
        found: dict[str, str] = {}
        while (got := await self.read()) is not None:
            kind, flags, number, payload = got
            if kind == SETTINGS and not flags & ACK:
                await self.send(frame(SETTINGS, flags=ACK))
            if kind == HEADERS:
                decoded = self.decoder.decode(payload)
                if number == stream:
                    found.update((str(name), str(value)) for name, value in decoded)
            if number == stream and kind == RST_STREAM and "grpc-status" not in found:
                return {"reset": str(int.from_bytes(payload))}
            if number == stream and flags & END_STREAM and kind in (HEADERS, DATA):
                return found
        raise AssertionError("the connection has ended")


@asynccontextmanager
async def connected(address: str, *, begins: bool = True, tls: ssl.SSLContext | None = None) -> AsyncIterator[Raw]:
    """A connection to *address*, on which the preface and empty settings were sent if it *begins*."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    raw = Raw(reader, writer)
    try:
        async with asyncio.timeout(20):
            if begins:
                await raw.send(PREFACE + frame(SETTINGS))
            yield raw
    finally:
        writer.close()
