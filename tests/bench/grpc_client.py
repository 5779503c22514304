"""The load of gRPC: HTTP/2 on a raw socket and messages that are ready, so that the client is never what is measured.

It sends what gRPC's C core sends, which is below tritonclient and most other clients: its settings and windows, its
fields, which take a few bytes after the first call, and with each call an update of its window.
"""

import socket
from typing import NamedTuple
from urllib.parse import urlsplit

from hpack import Decoder, Encoder

from tests.bench import grpc_messages as messages
from tests.bench.cases import Case, WrongBytesError
from tests.bench.client import RECEIVE_BYTES, TIMEOUT_S, Connection
from tests.bench.grpc_messages import Buffer
from tests.bench.processes import GRPC
from tests.bench.traffic import Exchange

INFER = "/inference.GRPCInferenceService/ModelInfer"
OK, UNAVAILABLE = "0", "14"
"""Statuses of gRPC."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_INITIAL_WINDOW, _MAX_FRAME = 4, 5
_WINDOW_BYTES = 4 * 1024 * 1024
_OWN_SETTINGS = {2: 0, 3: 0, _INITIAL_WINDOW: _WINDOW_BYTES, _MAX_FRAME: _WINDOW_BYTES, 6: 16384}
_DEFAULT_WINDOW, _DEFAULT_FRAME = 65535, 16384
_RETURNED_BYTES = 1024 * 1024
"""How much is received before the server's windows are opened again."""


class Answer(NamedTuple):
    """What came back."""

    status: str
    """`grpc-status`."""
    words: str
    message: memoryview
    """Without its prefix."""


class GrpcConnection:
    """One connection that is kept alive, with one call at a time. Use it from one thread."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", RECEIVE_BYTES)
        self._encoder, self._decoder = Encoder(), Decoder()
        self._authority = address.netloc
        self._requests: dict[str, list[Buffer]] = {}
        self._stream = -1
        self._room = {0: _DEFAULT_WINDOW}  # of the connection, and of the stream
        self._initial_window, self._frame_bytes = _DEFAULT_WINDOW, _DEFAULT_FRAME
        self._unreturned_bytes = 0
        self._fields: dict[str, str] = {}
        self._received = bytearray()
        self._is_ended = True
        settings = b"".join(key.to_bytes(2) + value.to_bytes(4) for key, value in _OWN_SETTINGS.items())
        window = _frame(_WINDOW_UPDATE, 0, (_WINDOW_BYTES - _DEFAULT_WINDOW).to_bytes(4))
        self._socket.sendall(_PREFACE + _frame(_SETTINGS, 0, settings) + window)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> "GrpcConnection":
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def infer(self, case: Case) -> None:
        """Send the case's request and drop its reply, of which only the status is looked at."""
        if case.name not in self._requests:
            self._requests[case.name] = messages.request_of_case(case)
        self._expect_ok(case.name, self.ask(self._requests[case.name]))

    def infer_and_check(self, case: Case) -> None:
        """As `infer`, and compare every byte, on both sides of the gateway. Raises `WrongBytesError`."""
        answer = self.ask(messages.request_of_case(case), {"x-bench-check": "1"})
        self._expect_ok(case.name, answer)
        messages.check_reply_to_case(case, answer.message)

    def send(self, exchange: Exchange, identity: bytes, extra: bytes = b"") -> None:
        """Send a request of `traffic`, and look at nothing but its reply's status. There is no *extra* for gRPC."""
        assert not extra
        self._expect_ok(exchange.model, self.ask(messages.request_of_exchange(exchange, identity)))

    def send_and_check(self, exchange: Exchange, identity: bytes) -> None:
        """As `send`, and compare every value, on both sides of the gateway. Raises `WrongBytesError`."""
        asked = messages.request_of_exchange(exchange, identity)
        answer = self.ask(asked, {"x-bench-check": str(exchange.index)})
        self._expect_ok(exchange.model, answer)
        messages.check_reply_to_exchange(exchange, identity, answer.message)

    def ask(self, request: list[Buffer], metadata: dict[str, str] | None = None) -> Answer:
        """Call `ModelInfer`; what came back is valid until the next call."""
        self._stream += 2
        self._room[self._stream] = self._initial_window
        self._fields, self._received, self._is_ended = {}, bytearray(), False
        fields: dict[bytes | str, bytes | str] = {
            ":path": INFER,
            ":authority": self._authority,
            ":method": "POST",
            ":scheme": "http",
            "content-type": "application/grpc",
            "te": "trailers",
            "grpc-accept-encoding": "identity, deflate, gzip",
            "user-agent": "grpc-python/1.85.1 grpc-c/58.0.0 (linux; chttp2)",
        }
        fields.update(metadata or {})
        head = _frame(_HEADERS, self._stream, self._encoder.encode(fields), _END_HEADERS)
        head += _frame(_WINDOW_UPDATE, self._stream, (5).to_bytes(4))
        self._send(head, request)
        while not self._is_ended:
            self._read_frame()
        del self._room[self._stream]
        words = self._fields.get("grpc-message", "")
        return Answer(self._fields.get("grpc-status", "none"), words, memoryview(self._received)[5:])

    def _expect_ok(self, what: str, answer: Answer) -> None:
        if answer.status != OK:
            raise WrongBytesError(f"{what}: status {answer.status}: {answer.words[:200]}")

    def _send(self, head: bytes, request: list[Buffer]) -> None:
        """Send *head* and the message, as far as the server's windows let it, and until it answers."""
        n_bytes = sum(map(len, request))
        if n_bytes <= min(self._room.values()) and n_bytes <= self._frame_bytes:
            self._take_room(n_bytes)
            self._socket.sendall(head + _frame(_DATA, self._stream, b"".join(request), _END_STREAM))
            return
        self._socket.sendall(head)
        left = n_bytes
        for buffer in request:
            at = 0
            while at < len(buffer):
                room = min(self._frame_bytes, *self._room.values())
                if not room:
                    self._read_frame()
                    if self._is_ended:
                        return
                    continue
                piece = buffer[at : at + room]
                at += len(piece)
                left -= len(piece)
                self._take_room(len(piece))
                self._socket.sendall(_head(_DATA, self._stream, len(piece), 0 if left else _END_STREAM))
                self._socket.sendall(piece)

    def _take_room(self, n_bytes: int) -> None:
        for stream in self._room:
            self._room[stream] -= n_bytes

    def _read_frame(self) -> None:
        head = self._read(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
        payload = self._read(int.from_bytes(head[:3]))
        if kind == _DATA:
            self._take_data(payload)
        elif kind == _HEADERS:
            for name, value in self._decoder.decode(payload):
                self._fields[str(name)] = str(value)
        elif kind == _WINDOW_UPDATE:
            if stream in self._room:
                self._room[stream] += int.from_bytes(payload)
        elif kind == _SETTINGS and not flags & _ACK:
            self._take_settings(payload)
        elif kind == _PING and not flags & _ACK:
            self._socket.sendall(_frame(_PING, 0, payload, _ACK))
        elif kind == _GOAWAY:
            raise WrongBytesError(f"the server gives the connection up: {payload!r}")
        if stream == self._stream and kind == _RST_STREAM:
            self._is_ended = True
        if stream == self._stream and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            self._is_ended = True

    def _take_data(self, payload: bytes) -> None:
        self._received += payload
        self._unreturned_bytes += len(payload)
        if self._unreturned_bytes >= _RETURNED_BYTES:
            update = self._unreturned_bytes.to_bytes(4)
            self._socket.sendall(_frame(_WINDOW_UPDATE, 0, update) + _frame(_WINDOW_UPDATE, self._stream, update))
            self._unreturned_bytes = 0

    def _take_settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            key, value = int.from_bytes(payload[at : at + 2]), int.from_bytes(payload[at + 2 : at + 6])
            if key == _INITIAL_WINDOW:
                for stream in self._room:
                    self._room[stream] += value - self._initial_window if stream else 0
                self._initial_window = value
            elif key == _MAX_FRAME:
                self._frame_bytes = value
        self._socket.sendall(_frame(_SETTINGS, 0, b"", _ACK))

    def _read(self, n_bytes: int) -> bytes:
        data: bytes = self._file.read(n_bytes)
        if len(data) < n_bytes:
            raise WrongBytesError("the connection was closed before the reply was complete")
        return data


def connect(url: str) -> Connection | GrpcConnection:
    """A connection to *url*, of HTTP/1.1 or of gRPC."""
    return GrpcConnection(url) if url.startswith(GRPC) else Connection(url)


def _head(kind: int, stream: int, n_bytes: int, flags: int) -> bytes:
    return n_bytes.to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4)


def _frame(kind: int, stream: int, payload: bytes, flags: int = 0) -> bytes:
    return _head(kind, stream, len(payload), flags) + payload
