"""The load: a raw socket and bodies that are ready, so that the client is never what is measured.

`python -m tests.bench.client URL FOLDER CASE` repeats a request until it is stopped; it is the load beside which
others are measured.
"""

import re
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from tests.bench.cases import Case, WrongBytesError
from tests.bench.traffic import Exchange

TIMEOUT_S = 120
SMALL_BYTES = 64 * 1024
RECEIVE_BYTES = 1024 * 1024

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_HEADER_LENGTH = re.compile(rb"\r\ninference-header-content-length: *(\d+)", re.IGNORECASE)


class Connection:
    """One connection that is kept alive. Use it from one thread."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        self._prepared: dict[str, tuple[bytes, memoryview]] = {}
        self._host = address.netloc

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def infer(self, case: Case) -> None:
        """Send the case's request and drop its reply, of which only the status is looked at."""
        self.begin(case)
        self.finish(case)

    def begin(self, case: Case) -> None:
        """Send the case's request."""
        if case.name not in self._prepared:
            self._prepared[case.name] = _prepare(case, b"")
        self._send(*self._prepared[case.name])

    def finish(self, case: Case) -> None:
        """Drop the reply, of which only the status is looked at. Raises `WrongBytesError`."""
        status, _, n_bytes, got = self._read_head()
        if status != 200:
            raise WrongBytesError(f"{case.name}: status {status}: {bytes(got[:200])!r}")
        left = n_bytes - len(got)
        while left:
            left -= self._receive(self._received[:left])

    def infer_and_check(self, case: Case) -> None:
        """As `infer`, and compare every byte, on both sides of the gateway. Raises `WrongBytesError`."""
        status, head, n_bytes, got = self._exchange(*_prepare(case, b"x-bench-check: 1\r\n"))
        body = memoryview(bytearray(n_bytes))
        body[: len(got)] = got
        filled = len(got)
        while filled < n_bytes:
            filled += self._receive(body[filled:])
        if status != 200:
            raise WrongBytesError(f"{case.name}: status {status}: {bytes(body[:200])!r}")
        check_reply(case, head, body)

    def send(self, exchange: Exchange, identity: bytes, extra: bytes = b"") -> None:
        """Send a request of `traffic` with *extra* lines in its head, and look at nothing but its reply's status."""
        status, _, body = self.ask(exchange.request(identity, self._host, extra))
        if status != 200:
            raise WrongBytesError(f"{exchange.model}: status {status}: {bytes(body[:200])!r}")

    def send_and_check(self, exchange: Exchange, identity: bytes) -> None:
        """As `send`, and compare every value, on both sides of the gateway. Raises `WrongBytesError`."""
        extra = b"x-bench-check: %d\r\n" % exchange.index
        status, head, body = self.ask(exchange.request(identity, self._host, extra))
        if status != 200:
            raise WrongBytesError(f"{exchange.model}: status {status}: {bytes(body[:200])!r}")
        length = _HEADER_LENGTH.search(head)
        exchange.check_reply(identity, int(length[1]) if length else 0, body)

    def ask(self, message: bytes) -> tuple[int, bytes, memoryview]:
        """Send a request whose reply is small; its status, head and body, which is valid until the next one."""
        status, head, n_bytes, got = self._exchange(message, memoryview(b""))
        start, filled = len(head) + len(b"\r\n\r\n"), len(got)
        while filled < n_bytes:
            filled += self._receive(self._received[start + filled :])
        return status, head, self._received[start : start + n_bytes]

    def _exchange(self, head: bytes, body: memoryview) -> tuple[int, bytes, int, memoryview]:
        """Send a request; status, head, length of the body, and what of the body came with the head."""
        self._send(head, body)
        return self._read_head()

    def _send(self, head: bytes, body: memoryview) -> None:
        self._socket.sendall(head)
        if body:
            self._socket.sendall(body)

    def _read_head(self) -> tuple[int, bytes, int, memoryview]:
        filled = 0
        while (end := bytes(self._received[: min(filled, SMALL_BYTES)]).find(b"\r\n\r\n")) < 0:
            filled += self._receive(self._received[filled:])
        reply_head = bytes(self._received[:end])
        length = _LENGTH.search(reply_head)
        if length is None:
            raise WrongBytesError(f"a reply without Content-Length: {reply_head!r}")
        return int(reply_head[9:12]), reply_head, int(length[1]), self._received[end + 4 : filled]

    def _receive(self, into: memoryview) -> int:
        n_bytes = self._socket.recv_into(into)
        if not n_bytes:
            raise WrongBytesError("the connection was closed before the reply was complete")
        return n_bytes


def _prepare(case: Case, extra: bytes) -> tuple[bytes, memoryview]:
    """What is sent in one go, and what after it: small bodies go with their head."""
    body = case.client_request
    head = (
        b"POST /v2/models/%s/infer HTTP/1.1\r\nUser-Agent: python/gevent-http-client-2.6.1\r\n%s"
        b"Inference-Header-Content-Length: %d\r\nHost: bench\r\nContent-Length: %d\r\n\r\n"
    ) % (case.name.encode(), extra, case.header_bytes[0], len(body))
    return (head + body, body[:0]) if len(body) <= SMALL_BYTES else (head, body)


def check_reply(case: Case, head: bytes, body: memoryview) -> None:
    """Compare a reply with what the case expects. Raises `WrongBytesError`."""
    length = _HEADER_LENGTH.search(head)
    if length is None:
        raise WrongBytesError(f"{case.name}: the reply is not binary")
    expected = case.client_reply
    said, wanted = orjson.loads(body[: int(length[1])]), orjson.loads(expected[: case.header_bytes[1]])
    for key in ("name", "datatype", "shape"):
        if said["outputs"][0][key] != wanted["outputs"][0][key]:
            raise WrongBytesError(f"{case.name}: {key} is {said['outputs'][0][key]!r}")
    if body[int(length[1]) :] != expected[case.header_bytes[1] :]:
        raise WrongBytesError(f"{case.name}: the reply's numbers are not those of the backend")


def _repeat(url: str, case: Case) -> None:
    with Connection(url) as connection:
        connection.infer(case)
        print(f"{url} has answered once", flush=True)
        while True:
            connection.infer(case)


if __name__ == "__main__":
    _repeat(sys.argv[1], Case(Path(sys.argv[2]) / sys.argv[3]))
