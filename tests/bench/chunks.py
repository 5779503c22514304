"""Row 6c: what a small request costs the gateway beside many connections whose bodies come in chunks of one byte.

The bytes of all bodies stand in the kernel's buffers before the gateway sees the first of them, with the small request
behind them: the gateway's process is stopped meanwhile. So a round does not depend on who is scheduled when. No body is
sent to its end, so what is compared is the receiving of bytes and nothing that is done with a whole body.

Linux only. Not here: what is right in chunks and what is refused, see tests/system/test_one_byte_chunks.py.
"""

import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from tests.bench import processes
from tests.bench.cases import Case
from tests.bench.client import Connection
from tests.bench.measuring import Bench, Result
from tests.bench.processes import Process

KIB = 1024

BODY_BYTES = 350 * KIB
"""What each connection sends of its body, as it is on the wire."""

WAYS = ("request, relayed", "request, inference", "answer, relayed", "answer, inference")
"""Whose body comes in chunks, and on which of the gateway's paths."""

TIMEOUT_S = 120
QUIET_S = 0.05
"""A gateway that has used less than a tenth of this time within it is at rest."""

_RELAYED = "/attacked"
_INFERENCE = "/v2/models/attacked/infer"
_HEADER = b'{"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","parameters":{"binary_data_size":1}}]}'
_HEADER_LENGTH = b"Inference-Header-Content-Length: %d\r\n" % len(_HEADER)
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
_ANSWER_START = b'{"model_name":"attacked","outputs":[{"name":"x","datatype":"UINT8","shape":[1000000],"data":['

_PIECE_BYTES = 64 * KIB


def tiny(body: bytes) -> bytes:
    """*body* in chunks of one byte, without the last chunk."""
    return b"".join(b"1\r\n%c\r\n" % byte for byte in body)


def whole(body: bytes) -> bytes:
    """*body* in one chunk, without the last chunk."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def _wire(start: bytes, *, is_tiny: bool) -> bytes:
    """`BODY_BYTES` of the wire: *start* and digits behind it, in tiny chunks or in one."""
    n_bytes = BODY_BYTES // 6 if is_tiny else BODY_BYTES
    body = start + b"1," * ((n_bytes - len(start)) // 2)
    return tiny(body) if is_tiny else whole(body)


class _Holder:
    """The server of the requests that attack: it reads them and answers when it is told to, and 404 to all others."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.held: list[socket.socket] = []
        """Connections whose request was read, and not answered."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._seen: dict[socket.socket, bytes] = {}
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._ends = True
        self._thread.join()
        for connection in (*self._seen, *self.held, self._listener):
            connection.close()
        self._selector.close()

    def take(self, count: int) -> list[socket.socket]:
        """*count* connections whose request was read; waits for them. They are the caller's from now on."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(self.held) < count:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"only {len(self.held)} of {count} requests reached their server")
            time.sleep(0.01)
        taken, self.held = self.held[:count], self.held[count:]
        return taken

    def _run(self) -> None:
        while not self._ends:
            for key, _ in self._selector.select(0.1):
                if key.fileobj is self._listener:
                    connection = self._listener.accept()[0]
                    self._seen[connection] = b""
                    self._selector.register(connection, selectors.EVENT_READ)
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_PIECE_BYTES)
        except OSError:
            data = b""
        seen = self._seen[connection]
        # what matters is the beginning, which says what it is, and the end
        self._seen[connection] = seen + data if len(seen) < _PIECE_BYTES else seen
        if not data:
            self._forget(connection)
            connection.close()
        elif not seen.startswith(b"POST") and self._seen[connection].endswith(b"\r\n\r\n") and data[:4] != b"POST":
            self._seen[connection] = b""
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")
        elif self._seen[connection].startswith(b"POST") and _is_whole(self._seen[connection]):
            self._forget(connection)
            self.held.append(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._seen[connection]


def _is_whole(request: bytes) -> bool:
    """Whether a small request was read to its end."""
    head, end, body = request.partition(b"\r\n\r\n")
    length = head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n")[0]
    return bool(end) and (len(body) >= int(length) if length else body.endswith(b"0\r\n\r\n"))


class _Pump(threading.Thread):
    """Sends one message on each of many connections, and drops what comes on them and on others."""

    def __init__(self, senders: Sequence[socket.socket], message: bytes, readers: Sequence[socket.socket]) -> None:
        super().__init__(daemon=True)
        self._selector = selectors.DefaultSelector()
        self._ends = False
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        for sender in senders:
            sender.setblocking(False)
            self._selector.register(sender, both, [memoryview(message)])
        for reader in readers:
            reader.setblocking(False)
            self._selector.register(reader, selectors.EVENT_READ, [memoryview(b"")])

    def fill(self) -> None:
        """Send what the kernel takes now."""
        for key in list(self._selector.get_map().values()):
            self._serve(key, selectors.EVENT_WRITE)

    def run(self) -> None:
        while not self._ends and self._selector.get_map():
            for key, events in self._selector.select(0.05):
                self._serve(key, events)

    def _serve(self, key: selectors.SelectorKey, events: int) -> None:
        connection, rest = key.fileobj, key.data
        assert isinstance(connection, socket.socket)
        try:
            while events & selectors.EVENT_WRITE and rest[0]:
                rest[0] = rest[0][connection.send(rest[0]) :]
            if events & selectors.EVENT_READ and not connection.recv(_PIECE_BYTES):
                raise ConnectionResetError
        except BlockingIOError:
            return
        except OSError:  # refused by the gateway, which is its right
            self._selector.unregister(connection)
            return
        if events & selectors.EVENT_WRITE:
            self._selector.modify(connection, selectors.EVENT_READ, rest)

    def end(self) -> None:
        """Stop."""
        self._ends = True
        self.join()
        self._selector.close()


@contextmanager
def _stopped(process: Process) -> Iterator[None]:
    """*process* does nothing meanwhile."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def _rest(process: Process) -> None:
    """Wait until *process* has nothing to do. Raises `RuntimeError`."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        before = process.processor_ns()
        time.sleep(QUIET_S)
        if process.processor_ns() - before < QUIET_S * 1e8:
            return
    raise RuntimeError(f"{process.name} does not come to rest")


class Attack:
    """A gateway, a server of its own for the requests that attack, and servers for the small ones."""

    def __init__(self, gateway: Process, holder: _Holder, small: Case) -> None:
        self.gateway = gateway
        self._holder = holder
        self._small = small

    def spent_ms(self, way: str, connections: int, *, is_tiny: bool) -> float:
        """Processor time of the gateway until a small request is answered that came right behind all bodies.

        *way* is one of `WAYS`. Raises `RuntimeError` if what should be measured did not take place.
        """
        is_request, is_relayed = way.startswith("request"), way.endswith("relayed")
        with ExitStack() as stack:
            small = stack.enter_context(Connection(self.gateway.url))
            clients = [stack.enter_context(self._connect()) for _ in range(connections)]
            if is_request:
                wire = _wire(b"" if is_relayed else _HEADER, is_tiny=is_tiny)
                head = b"POST %b HTTP/1.1\r\nHost: bench\r\n" % (_RELAYED if is_relayed else _INFERENCE).encode()
                message = head + (b"" if is_relayed else _HEADER_LENGTH) + _CHUNKED + wire
                pump = _Pump(clients, message, [])
            else:
                for client in clients:
                    client.sendall(_whole_request(is_relayed=is_relayed))
                servers = self._holder.take(connections)
                for server in servers:
                    stack.callback(server.close)
                wire = _wire(b"" if is_relayed else _ANSWER_START, is_tiny=is_tiny)
                message = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + _CHUNKED + wire
                pump = _Pump(servers, message, clients)
            small.infer_and_check(self._small)  # so that its connections are there, and not older than keep_alive
            _rest(self.gateway)
            before = self.gateway.processor_ns()
            with _stopped(self.gateway):
                pump.fill()
                small.begin(self._small)
            pump.start()
            small.finish(self._small)
            spent = self.gateway.processor_ns() - before
            pump.end()
        _rest(self.gateway)
        return spent / 1e6

    def _connect(self) -> socket.socket:
        """A connection that the gateway has accepted: it has answered on it."""
        address = urlsplit(self.gateway.url)
        connection = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        connection.sendall(b"GET /warm HTTP/1.1\r\nHost: bench\r\n\r\n")
        answer = b""
        while not answer.endswith(b"{}"):
            data = connection.recv(_PIECE_BYTES)
            if not data:
                raise RuntimeError(f"the gateway closed a connection: {answer!r}")
            answer += data
        return connection


def _whole_request(*, is_relayed: bool) -> bytes:
    if is_relayed:
        return b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Length: 1\r\n\r\n1" % _RELAYED.encode()
    head = b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n" % (_INFERENCE.encode(), len(_HEADER) + 1)
    return head + _HEADER_LENGTH + b"\r\n" + _HEADER + b"1"


@contextmanager
def attack(small: Case, small_endpoints: Sequence[str], folder: Path) -> Iterator[Attack]:
    """A gateway that can be attacked; *small* is inferred at *small_endpoints*."""
    with (
        _Holder() as holder,
        processes.start_gateway(
            [holder.url], folder, small_endpoints=small_endpoints, backend="balance: round_robin"
        ) as gateway,
    ):
        yield Attack(gateway, holder, small)


def rows(bench: Bench) -> Iterator[Result]:
    """Row 6c. Processor time until a small request is answered beside bodies in chunks of one byte / in one piece."""
    scale = bench.scale
    with processes.start_backends(bench.cases, bench.folder) as own:
        with attack(bench.small_case(), own, bench.folder) as attacked:
            for way in WAYS:
                for connections in scale.chunk_connections:
                    what = f"{connections} x chunks of one byte / one piece: {way}"
                    result = Result("6c", what, "ratio", 3)
                    spent: dict[bool, list[float]] = {True: [], False: []}
                    for index in range(scale.chunk_rounds):
                        bench.tick(f"row 6c, {result.what}: round {index + 1} of {scale.chunk_rounds}")
                        for is_tiny, found in spent.items():
                            found.append(attacked.spent_ms(way, connections, is_tiny=is_tiny))
                        result.samples.append(spent[True][-1] / spent[False][-1])
                    tiny_ms, whole_ms = (sorted(spent[key])[len(spent[key]) // 2] for key in (True, False))
                    result.absolute = f"tiny {tiny_ms:.0f} ms, one piece {whole_ms:.1f} ms"
                    yield result
