"""A backend that costs next to nothing: it reads a request, looks at its model's name, and sends the case's answer.

`python -m tests.bench.backend FOLDER` with the folder of all cases. A request with the header `x-bench-check` is
kept and compared; if its `data` is not that of the case, the answer is a 422.
"""

import asyncio
import re
import sys
from pathlib import Path

import orjson

from tests.bench.cases import Case

BUFFER_BYTES = 256 * 1024
SMALL_BYTES = 64 * 1024
LINE_BYTES = 1024

_MODEL = re.compile(rb"\S+ \S*/models/([^/ ]+)/")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")


class CannedAnswers(asyncio.BufferedProtocol):
    """One connection. Data goes through `_step`, which is one of the `_read_...` methods, until it is used up."""

    def __init__(self, folder: Path, cases: dict[str, Case], buffer: bytearray) -> None:
        """*cases* and *buffer* are shared by all connections of the process."""
        self._folder = folder
        self._cases = cases
        self._buffer = memoryview(buffer)
        self._step = self._read_head
        self._line = b""
        self._left = 0
        self._is_chunked = False
        self._kept: bytearray | None = None
        self._unsent = memoryview(b"")
        self._is_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, n_bytes: int) -> None:
        data = self._buffer[:n_bytes]
        while data:
            data = self._step(data)

    def _until(self, end: bytes, data: memoryview) -> tuple[bytes | None, memoryview]:
        """The text before *end*, and what follows it; None if *end* has not come yet."""
        look = self._line + bytes(data[:LINE_BYTES])
        position = look.find(end)
        if position < 0:
            self._line = look
            return None, data[LINE_BYTES:]
        used = position + len(end) - len(self._line)
        self._line = b""
        return look[:position], data[used:]

    def _read_head(self, data: memoryview) -> memoryview:
        head, rest = self._until(b"\r\n\r\n", data)
        if head is None:
            return rest
        model = _MODEL.match(head)
        assert model is not None, "every path names a model"
        name = model[1].decode()
        if name not in self._cases:
            self._cases[name] = Case(self._folder / name)
        self._case = self._cases[name]
        head = head.lower()
        self._kept = bytearray() if b"\r\nx-bench-check:" in head else None
        self._is_chunked = b"\r\ntransfer-encoding: chunked" in head
        if self._is_chunked:
            self._step = self._read_chunk_size
        else:
            length = _LENGTH.search(head)
            self._left = int(length[1]) if length is not None else 0
            self._step = self._read_data
            if not self._left:
                self._answer()
        return rest

    def _read_data(self, data: memoryview) -> memoryview:
        taken = data[: self._left]
        if self._kept is not None:
            self._kept += taken
        self._left -= len(taken)
        if not self._left:
            if self._is_chunked:
                self._step = self._read_chunk_end
            else:
                self._answer()
        return data[len(taken) :]

    def _read_chunk_size(self, data: memoryview) -> memoryview:
        line, rest = self._until(b"\r\n", data)
        if line is not None:
            self._left = int(line, 16)
            self._step = self._read_data if self._left else self._read_last_line
        return rest

    def _read_chunk_end(self, data: memoryview) -> memoryview:
        line, rest = self._until(b"\r\n", data)
        if line is not None:
            self._step = self._read_chunk_size
        return rest

    def _read_last_line(self, data: memoryview) -> memoryview:
        line, rest = self._until(b"\r\n", data)
        if line is not None:
            self._answer()
        return rest

    def _answer(self) -> None:
        self._step = self._read_head
        status, body = b"200 OK", self._case.backend_answer
        if self._kept is not None and not self._is_right(memoryview(self._kept)):
            status, body = b"422 Wrong", memoryview(b'{"error":"the backend got other numbers than were sent"}')
        self._kept = None
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        first = body[:SMALL_BYTES]
        self._transport.write(head + first)
        self._unsent = body[len(first) :]
        self._send()

    def _is_right(self, body: memoryview) -> bool:
        expected = self._case.request_data
        key = b'"data":'
        start = bytes(body[:65536]).find(key) + len(key)
        if body[start : start + len(expected)] == expected:
            return True
        # the same values may be written in another way
        return bool(orjson.loads(body)["inputs"][0]["data"] == orjson.loads(expected))

    def _send(self) -> None:
        while self._unsent and not self._is_paused:
            piece, self._unsent = self._unsent[:BUFFER_BYTES], self._unsent[BUFFER_BYTES:]
            self._transport.write(piece)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send()


async def _serve(folder: Path) -> None:
    cases: dict[str, Case] = {}
    buffer = bytearray(BUFFER_BYTES)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CannedAnswers(folder, cases, buffer), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
