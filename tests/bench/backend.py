"""A backend that costs next to nothing: it reads a request, looks at its model's name, and sends a ready answer.

`python -m tests.bench.backend FOLDER` with the folder of all cases; to a model of `traffic` it sends the answers of
that model one after another, with the request's id or a new one, head and body in two writes, as uvicorn does. To a
binary request it sends the case's binary reply, as servers do that speak the extension themselves, and to one of
another dialect (`dialects`) the case's numbers as that dialect has them. It describes no model.

A request with the header `x-bench-check` is compared; if it is not what it has to be, the answer is a 422. For a model
of `traffic` that header has the number of the exchange, whose answer is sent. It is ready for health probes.
"""

import asyncio
import re
import sys
from pathlib import Path

import orjson

from tests.bench import traffic
from tests.bench.cases import Case, WrongBytesError
from tests.bench.dialects import DIALECTS, Dialect
from tests.bench.traffic import Exchange

BUFFER_BYTES = 256 * 1024
SMALL_BYTES = 64 * 1024
LINE_BYTES = 1024

_MODEL = re.compile(rb"\S+ \S*/models/([^/ :]+)[/:](\S*)")
_CHECK = re.compile(rb"\r\nx-bench-check: *(\d+)")
_ID = re.compile(rb'"id":"([^"]*)"')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")
_HEADER_LENGTH = b"\r\ninference-header-content-length:"


class Model:
    """A model of `traffic` and how far its answers have come."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._exchanges = traffic.exchanges(name)
        self._next = 0
        self._repeated_id = None if name.startswith("life-") else traffic.new_id()

    def answer(self, request: bytes, check: int | None) -> tuple[bytes, bytes]:
        """Head and body of the answer to *request*; *check* is the number of the exchange that it has to be."""
        found = _ID.search(request)
        identity = found[1].decode() if found is not None else self._repeated_id or traffic.new_id()
        body = self._pick(request, check).answered(identity.encode())
        return traffic.answer_head(self._name, identity, len(body)), body

    def _pick(self, request: bytes, check: int | None) -> Exchange:
        if check is None:
            self._next = (self._next + 1) % len(self._exchanges)
            return self._exchanges[self._next]
        self._exchanges[check].check_sent_on(request)
        return self._exchanges[check]


class CannedAnswers(asyncio.BufferedProtocol):
    """One connection. Data goes through `_step`, which is one of the `_read_...` methods, until it is used up."""

    def __init__(self, folder: Path, cases: dict[str, Case], models: dict[str, Model], buffer: bytearray) -> None:
        """*cases*, *models* and *buffer* are shared by all connections of the process."""
        self._folder = folder
        self._cases = cases
        self._models = models
        self._buffer = memoryview(buffer)
        self._step = self._read_head
        self._line = b""
        self._left = 0
        self._is_chunked = False
        self._is_binary = False
        self._dialect: Dialect | None = None
        self._case: Case | Model
        self._kept: bytearray | None = None
        self._check: int | None = None
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
        if model is None:
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")  # a health probe
            return rest
        if head.startswith(b"GET "):
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")
            return rest
        self._dialect = DIALECTS.get(model[2].decode())
        self._case = self._find(model[1].decode())
        head = head.lower()
        check = _CHECK.search(head)
        self._check = int(check[1]) if check is not None else None
        self._kept = bytearray() if check is not None or isinstance(self._case, Model) else None
        self._is_binary = _HEADER_LENGTH in head
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

    def _find(self, name: str) -> Case | Model:
        if traffic.is_of_traffic(name):
            if name not in self._models:
                self._models[name] = Model(name)
            return self._models[name]
        if name not in self._cases:
            self._cases[name] = Case(self._folder / name)
        return self._cases[name]

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
        status, body, type_ = b"200 OK", memoryview(b""), b"application/json"
        try:
            if isinstance(self._case, Model):
                assert self._kept is not None
                for part in self._case.answer(bytes(self._kept), self._check):
                    self._transport.write(part)
                return
            if self._kept is not None:
                self._compare(self._case, memoryview(self._kept))
            if self._dialect is not None:
                body = self._dialect.answer(self._case)
            elif self._is_binary:
                type_ = b"application/octet-stream%s %d" % (_HEADER_LENGTH, self._case.header_bytes[1])
                body = self._case.client_reply
            else:
                body = self._case.backend_answer
        except WrongBytesError as error:
            text = f"the backend got other numbers than were sent: {error}"
            status, body = b"422 Wrong", memoryview(orjson.dumps({"error": text}))
        finally:
            self._kept = None
        head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, type_, len(body))
        first = body[:SMALL_BYTES]
        self._transport.write(head + first)
        self._unsent = body[len(first) :]
        self._send()

    def _compare(self, case: Case, body: memoryview) -> None:
        """Compare what came with what was sent. Raises `WrongBytesError`."""
        if self._dialect is not None:
            self._dialect.check(case, body)
        elif not self._is_binary:
            _compare_json(case, body)
        elif body != case.client_request:
            raise WrongBytesError(case.name)

    def _send(self) -> None:
        while self._unsent and not self._is_paused:
            piece, self._unsent = self._unsent[:BUFFER_BYTES], self._unsent[BUFFER_BYTES:]
            self._transport.write(piece)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send()


def _compare_json(case: Case, body: memoryview) -> None:
    """Compare the numbers that came with those that were sent. Raises `WrongBytesError`."""
    expected = case.request_data
    key = b'"data":'
    start = bytes(body[:65536]).find(key) + len(key)
    if body[start : start + len(expected)] == expected:
        return
    # the same values may be written in another way
    if orjson.loads(body)["inputs"][0]["data"] != orjson.loads(expected):
        raise WrongBytesError(case.name)


async def _serve(folder: Path) -> None:
    cases: dict[str, Case] = {}
    models: dict[str, Model] = {}
    buffer = bytearray(BUFFER_BYTES)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CannedAnswers(folder, cases, models, buffer), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
