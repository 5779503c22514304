"""One attempt: interim heads, an answer that comes before the request is sent, and a request that cannot be sent."""

import asyncio
import fcntl
import gc
import itertools
import random
import re
import select
import socket
import ssl
import struct
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.backend.arriving import MAX_INTERIM, READ_BYTES, LostError, NotHttpError
from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer
from gateway.backend.upstream import Upstream
from gateway.backend.wire import Wire
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.http1 import Incoming
from gateway.pacing import Pacer
from tests.backend.sockets import (
    ANSWER,
    INTERIM,
    Ending,
    ask,
    busy_and_idle,
    calling,
    listening,
    read_whole,
    should_close,
    streamed,
    upstream_to,
    whole,
)
from tests.backend.waiting import turns
from tests.certificates import Authority


def broken() -> GatewayError:
    """What an upload breaks with; each time a new one, because a raised error keeps all that it went through."""
    return GatewayError(ErrorKind.MALFORMED_REQUEST, "the upload is broken")


class Upload:
    """A streamed body of one piece, which then ends or breaks when the test says so."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.go_on = asyncio.Event()
        self.is_cancelled = False

    async def pieces(self) -> AsyncIterator[bytes]:
        yield b"begin"
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        if self.error is not None:
            raise self.error

    @property
    def body(self) -> Body:
        return Body(open=self.pieces, can_be_repeated=False)


@pytest.mark.parametrize(("n_interim", "is_refused"), [(0, False), (1, False), (MAX_INTERIM, False), (17, True)])
async def test_interim_answers_are_skipped_up_to_a_limit(n_interim: int, is_refused: bool) -> None:
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "POST", whole(b"x")))
        connection = await backend.accept()
        await backend.read_request(connection)
        await asyncio.get_running_loop().sock_sendall(connection, INTERIM * n_interim + ANSWER)
        if is_refused:
            with pytest.raises(GatewayError, match=f"more than {MAX_INTERIM} interim answers") as caught:
                await asked
            assert caught.value.kind is ErrorKind.MALFORMED_RESPONSE
        else:
            assert await asked == (b"ok", ["200"])


@pytest.mark.parametrize("method", ["HEAD", "POST"])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\n"])
async def test_flood_of_interim_heads_is_not_parsed_to_its_end(
    method: str, line_end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read full of them was parsed to its end: 26 ms of the loop, and with HEAD copied anew for each of them."""
    n_heads = 0
    feed_head = Incoming.feed_head

    def count(message: Incoming, data: bytes) -> object:
        nonlocal n_heads
        n_heads += 1
        return feed_head(message, data)

    monkeypatch.setattr(Incoming, "feed_head", count)
    async with listening(method) as (wire, _):
        flood = (b"HTTP/1.1 100 Continue" + line_end * 2) * 10_000
        wire.data_received(flood)
        wire.data_received(flood)
        assert n_heads == MAX_INTERIM + 1
        assert should_close(wire)


@pytest.mark.parametrize("n_bytes", [1, 3, 7, 50, 1000])
@pytest.mark.parametrize("text", [INTERIM * MAX_INTERIM + ANSWER, b"\r\n\r\n" + ANSWER], ids=["interim", "blank"])
async def test_answer_to_head_ends_with_its_head_however_it_is_cut(text: bytes, n_bytes: int) -> None:
    for is_read_first in (True, False):  # the head, before the body that should not come
        async with listening("HEAD") as (wire, answer):
            head_bytes = len(text) - len(b"ok") if is_read_first else len(text)
            for start in range(0, head_bytes, n_bytes):
                wire.data_received(text[start : min(start + n_bytes, head_bytes)])
            assert (await answer.read_head()).code == 200
            assert await answer.read_body() == b""
            wire.data_received(b"ok")
            assert should_close(wire)


@pytest.mark.parametrize("n_bytes", [1, 7, 4096, 10**6])
async def test_answer_with_a_long_head_is_read_whole_however_it_is_cut(n_bytes: int) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %b\r\n" % (number, b"a" * 100) for number in range(100))
    body = b"b" * 20_000
    text = INTERIM * MAX_INTERIM + head + b"Content-Length: 20000\r\n\r\n" + body
    async with listening("GET") as (wire, answer):
        for start in range(0, len(text), n_bytes):
            wire.data_received(text[start : start + n_bytes])
        head_ = await answer.read_head()
        assert (head_.code, len(head_.headers.pairs)) == (200, 101)
        received = b""
        while piece := await answer.read_body():
            received += piece
        assert received == body
        assert not should_close(wire)


async def test_interim_answers_may_come_one_after_the_other() -> None:
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "POST", whole(b"x")))
        connection = await backend.accept()
        await backend.read_request(connection)
        for at in range(0, len(INTERIM * 2 + ANSWER), 7):
            await asyncio.get_running_loop().sock_sendall(connection, (INTERIM * 2 + ANSWER)[at : at + 7])
        assert await asked == (b"ok", ["200"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "101"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\nX-A: \xff\r\nContent-Length: 0\r\n\r\n", "not UTF-8"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "'gzip, chunked'"),
    ],
)
async def test_an_answer_that_cannot_be_understood_is_refused_and_its_connection_closed(
    text: bytes, words: str
) -> None:
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "POST", whole(b"x")))
        connection = await backend.accept()
        await backend.read_request(connection)
        await asyncio.get_running_loop().sock_sendall(connection, text)
        with pytest.raises(GatewayError, match="'main'") as caught:
            await asked
        assert caught.value.kind is ErrorKind.MALFORMED_RESPONSE
        assert words in caught.value.message
        assert busy_and_idle(upstream.endpoints.states[0]) == (0, 0)


async def test_an_answer_that_comes_before_all_is_sent_ends_the_upload() -> None:
    upload = Upload()
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "POST", upload.body))
        connection = await backend.accept()
        loop = asyncio.get_running_loop()
        await loop.sock_recv(connection, 65536)
        await loop.sock_sendall(connection, ANSWER)
        assert await asked == (b"ok", ["200"])
        while not upload.is_cancelled:
            await asyncio.sleep(0)
        # the request has no end: its connection cannot carry another
        assert busy_and_idle(upstream.endpoints.states[0]) == (0, 0)


class Impatient:
    """A server that answers when it is told to, whatever of the request has come, and resets the connection."""

    def __init__(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._context = context
        self._may_answer = threading.Event()
        self._has_reset = threading.Event()

    def answer_and_reset(self) -> None:
        """Blocks, so that the event loop sees the answer and the reset at once."""
        self._may_answer.set()
        assert self._has_reset.wait(10)

    def serve(self) -> None:
        connection, _ = self._listener.accept()
        # else the kernel keeps the answer back, and drops it, until the session tickets are acknowledged
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        connection.recv(65536)
        assert self._may_answer.wait(10)
        connection.sendall(ANSWER)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        self._has_reset.set()


@contextmanager
def impatient(context: ssl.SSLContext | None) -> Iterator[tuple[Impatient, str]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Impatient(listener, context)
        serving = threading.Thread(target=server.serve)
        serving.start()
        yield server, f"{'http' if context is None else 'https'}://127.0.0.1:{listener.getsockname()[1]}"
        serving.join(10)


@pytest.mark.parametrize("version", [None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_answer_is_not_lost_where_writing_the_rest_of_the_request_fails(
    version: ssl.TLSVersion | None, tmp_path: Path
) -> None:
    context = None
    if version is not None:
        context = Authority(tmp_path).issue().server_context()
        context.maximum_version = version
    with impatient(context) as (server, url):

        async def pieces() -> AsyncIterator[bytes]:
            for number in range(10):
                yield b"piece"
                if number == 5:
                    server.answer_and_reset()

        upstream = upstream_to(url, "eject: {failures: 1}, tls: {verify: false}")
        try:
            answered = ask(upstream, "POST", Body(open=pieces, can_be_repeated=False))
            assert await answered == (b"ok", ["200"])
            assert busy_and_idle(upstream.endpoints.states[0]) == (0, 0)
        finally:
            await upstream.close()


class Ended:
    """A server that answers without a length, ends its stream, and then resets, for it has not read all of the request.

    `serve` runs in a thread.
    """

    def __init__(self, listener: socket.socket, n_bytes: int) -> None:
        self.has_ended = threading.Event()
        self.has_reset = threading.Event()
        self._listener = listener
        self._n_bytes = n_bytes

    def serve(self) -> None:
        connection, _ = self._listener.accept()
        connection.recv(65536)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * self._n_bytes)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(self._n_bytes))
        connection.shutdown(socket.SHUT_WR)
        for _ in range(100):  # until the gateway's kernel has all of it, if it takes so much
            if not int.from_bytes(fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)), sys.byteorder):
                break
            time.sleep(0.01)
        self.has_ended.set()
        select.select([connection], [], [], 10)
        connection.close()
        self.has_reset.set()


async def test_an_answer_without_length_is_whole_or_an_error_where_writing_the_request_fails() -> None:
    """More of the answer waits in the kernel, when the connection is lost, than is read then."""
    n_bytes = 4 * READ_BYTES
    may_go_on, fails = asyncio.Event(), asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(4):
            if number == 1:
                await may_go_on.wait()
            elif number == 2:
                await asyncio.to_thread(server.has_reset.wait, 10)
                fails.set()
            yield b"piece"

    async def read(answer: Answer) -> int:
        await asyncio.to_thread(server.has_ended.wait, 10)
        may_go_on.set()
        await fails.wait()
        await turns()
        return len(await read_whole(answer))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Ended(listener, n_bytes)
        serving = threading.Thread(target=server.serve)
        serving.start()
        upstream = upstream_to(f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            body = Body(open=pieces, can_be_repeated=False)
            assert await upstream.call(BackendRequest("POST", "/x", [], body), [], read) == n_bytes
        except GatewayError as error:
            assert error.kind is ErrorKind.UPSTREAM_CLOSED
        finally:
            await upstream.close()
            serving.join(10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nok", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", ErrorKind.UPSTREAM_CLOSED),
        (b"HTTP/1.1 200 OK\r\nConte", ErrorKind.UPSTREAM_CLOSED),
        (b"", ErrorKind.UPSTREAM_CLOSED),
    ],
    ids=["whole", "cut", "cut head", "nothing"],
)
async def test_the_end_of_the_stream_is_not_waited_for_behind_a_request_that_is_not_taken(
    text: bytes, expected: ErrorKind | None
) -> None:
    """A server that ends its side and reads nothing more: what it said is complete, and no timeout has run out."""
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "POST", streamed(bytes(20_000_000))))
        connection = await backend.accept()
        loop = asyncio.get_running_loop()
        await loop.sock_recv(connection, 100)
        before, unread = -1, 0
        while before != unread:  # until the kernels hold all that they take
            before = unread
            await asyncio.sleep(0.05)
            unread = int.from_bytes(fcntl.ioctl(connection, termios.FIONREAD, bytes(4)), sys.byteorder)
        await loop.sock_sendall(connection, text)
        connection.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(10):
            if expected is None:
                assert await asked == (b"ok", ["200"])
            else:
                with pytest.raises(GatewayError) as caught:
                    await asked
                assert caught.value.kind is expected


ENDINGS = [
    (broken, ErrorKind.MALFORMED_REQUEST, "the upload is broken"),
    (ConnectionResetError, ErrorKind.CLIENT_CLOSED, "the client left while it was sending"),
]


@pytest.mark.parametrize(("error", "kind", "words"), ENDINGS)
async def test_an_upload_that_breaks_before_the_answer_gives_its_own_error(
    error: Callable[[], Exception], kind: ErrorKind, words: str
) -> None:
    upload = Upload(error())
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "POST", upload.body))
        await backend.accept()
        upload.go_on.set()
        with pytest.raises(GatewayError, match=words) as caught:
            await asked
        assert caught.value.kind is kind


async def test_a_body_that_cannot_be_made_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    upload = Upload(ZeroDivisionError())
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "POST", upload.body))
        await backend.accept()
        upload.go_on.set()
        with pytest.raises(GatewayError, match="internal error: ZeroDivisionError") as caught:
            await asked
        assert caught.value.kind is ErrorKind.INTERNAL
        assert "the request's body could not be made" in caplog.text


@pytest.mark.parametrize(("error", "kind", "words"), ENDINGS)
@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
        b"HTTP/1.1 200 OK\r\n\r\npart",
    ],
)
async def test_an_upload_that_breaks_while_the_answer_comes_gives_its_own_error(
    head: bytes, error: Callable[[], Exception], kind: ErrorKind, words: str
) -> None:
    upload = Upload(error())
    async with calling("timeouts: {idle: 2s}") as (backend, upstream):
        loop = asyncio.get_running_loop()
        attempts: list[Attempt] = []

        async def read(answer: Answer) -> None:
            async for chunk in answer.chunks_for_client():
                assert chunk == b"part"
                upload.go_on.set()

        asked = asyncio.ensure_future(upstream.call(BackendRequest("POST", "/x", [], upload.body), attempts, read))
        connection = await backend.accept()
        await loop.sock_recv(connection, 65536)
        await loop.sock_sendall(connection, head)
        with pytest.raises(GatewayError, match=words) as caught:
            await asked
        assert caught.value.kind is kind
        assert attempts[0].response_bytes == 4


@pytest.mark.parametrize(
    ("answer", "expected", "is_all"),
    [
        (ANSWER, b"ok", True),
        (ANSWER[:-1], b"o", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n", b"ok", True),
        (b"HTTP/1.1 200 OK\r\n\r\nok", b"ok", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
    ],
    ids=["whole", "not to its end", "chunked", "without length", "none"],
)
async def test_a_body_that_has_arrived_is_read_at_once(answer: bytes, expected: bytes, is_all: bool) -> None:
    async with calling("keep_alive: 1m") as (backend, upstream):
        (state,) = upstream.endpoints.states
        seen: list[tuple[bytes, bool, tuple[int, int]]] = []

        async def read(answer: Answer) -> None:
            seen.append((answer.read_arrived(), answer.is_read, busy_and_idle(state)))

        attempts: list[Attempt] = []
        asked = asyncio.ensure_future(upstream.call(BackendRequest("GET", "/x", [], Body()), attempts, read))
        connection = await backend.accept()
        await backend.read_request(connection)
        await asyncio.get_running_loop().sock_sendall(connection, answer)
        await asked
        # a connection is given up when the answer is read to its end
        assert seen == [(expected, is_all, (0, 1) if is_all else (1, 0))]
        assert attempts[0].response_bytes == len(expected)


FIELDS = [("X-A", "1"), ("x-b", "\udce9"), ("X-A", "2")]


async def head_sent(request: BackendRequest) -> bytes:
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(upstream.call(request, [], read_whole))
        connection = await backend.accept()
        sent = await asyncio.get_running_loop().sock_recv(connection, 65536)
        await asyncio.get_running_loop().sock_sendall(connection, ANSWER)
        assert await asked == b"ok"
    return re.sub(rb"Host: [^\r]*", b"Host: h", sent)


@pytest.mark.parametrize("body", [Body(), Body(whole=b""), Body(whole=b"body")], ids=["none", "empty", "body"])
async def test_fields_go_out_in_their_order_and_the_framing_behind_them(body: Body) -> None:
    request = BackendRequest("POST", "/x", FIELDS, body)
    framing = b"" if body.whole is None else b"Content-Length: %d\r\n" % len(body.whole)
    fields = b"X-A: 1\r\nx-b: \xe9\r\nX-A: 2\r\n"
    assert await head_sent(request) == b"POST /x HTTP/1.1\r\nHost: h\r\n%b%b\r\n%b" % (
        fields,
        framing,
        body.whole or b"",
    )


@pytest.mark.parametrize("field", [("X", "a\nb"), ("X", "a\rb"), ("X", "a\r\nb"), ("X\r\nY", "b"), ("X\n", "b")])
async def test_a_line_break_in_a_field_is_never_sent(field: tuple[str, str]) -> None:
    async with calling() as (_, upstream):
        for fields in ([field], [*FIELDS, field]):
            with pytest.raises(GatewayError, match="a line break in a header") as caught:
                await upstream.call(BackendRequest("POST", "/x", fields, Body()), [], read_whole)
            assert caught.value.kind is ErrorKind.INTERNAL


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = b"x" * 32_768


@pytest.mark.parametrize("is_read_whole", [False, True])
@pytest.mark.parametrize(
    ("pieces", "ends", "outcome", "code"),
    [
        ([HEAD, b"bo", b"dy"], False, b"body", "200"),
        ([INTERIM, HEAD + b"bo", b"dy"], False, b"body", "200"),
        ([CHUNKED, b"4\r\nbody\r\n", b"0\r\n\r\n"], False, b"body", "200"),
        ([b"HTTP/1.1 200 OK\r\n\r\n", b"bo", b"dy"], True, b"body", "200"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(LARGE), LARGE], False, LARGE, "200"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], False, b"", "204"),
        ([HEAD, b"bo"], True, "before its answer was complete", "200"),
        ([HEAD, b"bo"], False, "was silent in the middle for 0.2 s (timeouts.idle)", "200"),
        ([CHUNKED, b"4\r\nbodyxx"], False, "does not speak HTTP", "200"),
        ([CHUNKED, b"4\r\nbody", b"\r\nxx"], False, "does not speak HTTP", "200"),
        ([HEAD.replace(b"200", b"777") + b"body"], False, "answered with status 777", "malformed_response"),
        ([HEAD.replace(b"200", b"777") + b"bo"], False, "answered with status 777", "malformed_response"),
        (
            [b"HTTP/1.1 200 OK\r\nX-A: \x01\r\nContent-Length: 4\r\n\r\nbody"],
            False,
            "a control character",
            "malformed_response",
        ),
    ],
)
async def test_an_answer_is_the_same_however_it_comes_and_whether_or_not_it_is_judged(
    pieces: list[bytes], ends: bool, outcome: bytes | str, code: str, is_read_whole: bool
) -> None:
    async with calling("retry: {attempts: 1}, timeouts: {idle: 200ms}") as (backend, upstream):
        loop = asyncio.get_running_loop()
        attempts: list[Attempt] = []
        request = BackendRequest("GET", "/x", [], Body(), is_read_whole=is_read_whole)
        asked = asyncio.ensure_future(upstream.call(request, attempts, read_whole))
        connection = await backend.accept()
        await backend.read_request(connection)
        for piece in pieces:
            await loop.sock_sendall(connection, piece)
            await turns()
        if ends:
            connection.shutdown(socket.SHUT_WR)
        if isinstance(outcome, bytes):
            assert await asked == outcome
        else:
            with pytest.raises(GatewayError, match=re.escape(outcome)):
                await asked
        assert [attempt.code for attempt in attempts] == [code]
        assert (attempts[0].first_byte_s is None) == (code == "malformed_response")


@pytest.mark.parametrize("status", ["302 Found", "500 Internal Server Error", "999 Odd"])
async def test_the_body_of_what_is_no_answer_is_not_awaited(status: str) -> None:
    async with calling() as (backend, upstream):
        request = BackendRequest("GET", "/x", [], Body(), is_read_whole=True)
        seen: list[int] = []

        async def read(answer: Answer) -> None:
            seen.append(answer.status)

        asked = asyncio.ensure_future(upstream.call(request, [], read))
        connection = await backend.accept()
        await backend.read_request(connection)
        head = f"HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(connection, head.encode())
        if status.startswith("999"):
            with pytest.raises(GatewayError, match="answered with status 999"):
                await asyncio.wait_for(asked, 10)
        else:
            await asyncio.wait_for(asked, 10)
            assert seen == [int(status[:3])]


async def test_an_answer_that_has_come_to_its_end_takes_no_turn_behind_large_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_breaths = 0

    async def breathe(pacer: Pacer) -> None:
        nonlocal n_breaths
        n_breaths += 1

    monkeypatch.setattr(Pacer, "breathe", breathe)
    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "GET", Body()))
        connection = await backend.accept()
        await backend.read_request(connection)
        for piece in (HEAD, b"bo", b"dy"):
            await asyncio.get_running_loop().sock_sendall(connection, piece)
            await turns()
        assert await asked == (b"body", ["200"])
    assert n_breaths == 1  # between the two pieces of the body


SECOND = b"HTTP/1.1 500 No\r\nContent-Length: 6\r\n\r\nsecond"


@pytest.mark.parametrize("second", [SECOND, SECOND[:-3], INTERIM], ids=["whole", "not to its end", "interim"])
async def test_a_second_answer_never_takes_the_place_of_the_first(second: bytes) -> None:
    async with listening("POST") as (wire, answer):
        wire.data_received(HEAD + b"bo")
        wire.data_received(b"dy" + second)
        assert ((await answer.read_head()).code, await answer.read_body()) == (200, b"body")
        assert should_close(wire)


def random_answers(rng: random.Random) -> bytes:
    """What a backend sends for one request: answers of all framings, rarely more than one, now and then damaged."""
    text = INTERIM * rng.choice([0, 0, 0, 1, 2])
    for _ in range(rng.choice([1, 1, 2])):
        body = rng.randbytes(rng.choice([0, 1, 4, 300, 32_768]))
        head = b"HTTP/1.1 %d X\r\n" % rng.choice([200, 200, 404, 204, 304])
        framing = rng.choice(["length", "length", "chunks", "end"])
        if framing == "length":
            text += head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        elif framing == "chunks":
            chunks = [body[at : at + 200] for at in range(0, len(body), 200)] if body else []
            chunked = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
            text += head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + b"0\r\n\r\n"
        else:
            text += head + b"\r\n" + body
        text += INTERIM * rng.choice([0, 0, 0, 1])
    if rng.random() < 0.2:
        text = text[: rng.randrange(len(text))]
    if rng.random() < 0.2:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.randbytes(1) + text[at + 1 :]
    return text


async def what_is_read(pieces: list[bytes], ending: Ending) -> tuple[object, ...]:
    """The status, the body, the error, and whether the connection must be closed, for what a backend sends."""
    async with listening("POST") as (wire, answer):
        for piece in pieces:
            wire.data_received(piece)
        if ending is not Ending.NOTHING:
            assert wire.transport is not None
            wire.connection_lost(None if ending is Ending.STREAM_ENDS else ConnectionResetError())
        status = 0
        body = b""
        try:
            async with asyncio.timeout(0):
                status = (await answer.read_head()).code
                while chunk := await answer.read_body():
                    body += chunk
        except (LostError, NotHttpError) as error:
            return status, body, repr(error), should_close(wire)
        except TimeoutError:
            return ("more is awaited",)
        return status, body, None, should_close(wire)


async def test_whatever_comes_is_read_the_same_however_it_is_cut() -> None:
    rng = random.Random(5)
    for _ in range(300):
        text = random_answers(rng)
        ending = rng.choice([Ending.STREAM_ENDS, Ending.RESET])
        places = sorted({0, *rng.choices(range(len(text) + 1), k=rng.randrange(1, 6)), len(text)})
        pieces = [text[start:end] for start, end in itertools.pairwise(places)]
        status, _, error, is_last = await what_is_read([text], ending)
        cut = await what_is_read(pieces, ending)
        assert (cut[0], cut[2], cut[3]) == (status, error, is_last), (pieces, ending)


TINY = CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"


@pytest.mark.parametrize("is_read_whole", [False, True])
async def test_an_answer_in_tiny_chunks_is_refused_and_others_run_while_it_is_read(is_read_whole: bool) -> None:
    longest_s = 0.0

    async def others() -> None:
        nonlocal longest_s
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s

    async with calling() as (backend, upstream):
        request = BackendRequest("GET", "/x", [], Body(), is_read_whole=is_read_whole)
        asked = asyncio.ensure_future(upstream.call(request, [], read_whole))
        connection = await backend.accept()
        await backend.read_request(connection)
        gc.disable()  # a collection of all that the tests hold takes longer
        beside = asyncio.ensure_future(others())
        try:
            with pytest.raises(GatewayError, match="chunks are too small") as caught:
                await asyncio.gather(asked, asyncio.get_running_loop().sock_sendall(connection, TINY))
        finally:
            gc.enable()
            beside.cancel()
        assert caught.value.kind is ErrorKind.MALFORMED_RESPONSE
        assert busy_and_idle(upstream.endpoints.states[0]) == (0, 0)
    assert longest_s < 0.006  # to the end of its window it takes as long, to its own twice that


@pytest.mark.parametrize(("status", "n_kept"), [("200 OK", 1), ("404 No", 1), ("500 Oh", 0), ("503 Oh", 1)])
async def test_a_whole_500_ends_its_connection(status: str, n_kept: int) -> None:
    """uvicorn closes behind the 500 of an exception that nobody handles, without having said so."""
    async with calling("keep_alive: 1m") as (backend, upstream):
        asked = asyncio.ensure_future(ask(upstream, "GET", Body()))
        connection = await backend.accept()
        await backend.read_request(connection)
        await asyncio.get_running_loop().sock_sendall(connection, ANSWER.replace(b"200 OK", status.encode()))
        assert await asked == (b"ok", [status[:3]])
        assert busy_and_idle(upstream.endpoints.states[0]) == (0, n_kept)


@pytest.mark.parametrize(
    ("error", "n_kept"),
    [
        (None, 1),
        (GatewayError(ErrorKind.BACKEND_ERROR, "it refused"), 1),
        (GatewayError(ErrorKind.MALFORMED_RESPONSE, "another's id"), 0),
        (ZeroDivisionError(), 0),
    ],
    ids=["right", "refused", "malformed", "broken"],
)
@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_connection_is_kept_only_when_the_answer_that_came_over_it_was_found_right(
    error: Exception | None, n_kept: int, is_taken: bool
) -> None:
    async with calling("keep_alive: 1m, retry: {attempts: 1}") as (backend, upstream):
        (state,) = upstream.endpoints.states

        async def read(answer: Answer) -> None:
            text = answer.read_arrived() if is_taken else await read_whole(answer)
            assert text == b"ok"
            assert busy_and_idle(state) == (1, 0)  # still its own
            assert await read_whole(answer) == b""
            if error is not None:
                raise error

        request = BackendRequest("POST", "/x", [], whole(b"x"), is_read_whole=True)
        asked = asyncio.ensure_future(upstream.call(request, [], read))
        await backend.serve_once(await backend.accept())
        if error is None:
            await asked
        else:
            with pytest.raises(type(error)):
                await asked
        assert busy_and_idle(state) == (0, n_kept)


async def test_what_comes_behind_an_answer_while_it_is_judged_ends_its_connection() -> None:
    async with calling("keep_alive: 1m") as (backend, upstream):

        async def read(answer: Answer) -> bytes:
            text = answer.read_arrived()
            await asyncio.get_running_loop().sock_sendall(connection, ANSWER)
            await turns()
            return text

        request = BackendRequest("POST", "/x", [], whole(b"x"), is_read_whole=True)
        asked = asyncio.ensure_future(upstream.call(request, [], read))
        connection = await backend.accept()
        await backend.serve_once(connection)
        assert await asked == b"ok"
        assert busy_and_idle(upstream.endpoints.states[0]) == (0, 0)


@pytest.mark.parametrize("behind", [b"\r\n", b"H", ANSWER[:10], ANSWER])
async def test_what_comes_behind_chunks_ends_the_connection(behind: bytes) -> None:
    answer = CHUNKED + b"2\r\nok\r\n0\r\n\r\n"
    for text, is_last in ((answer, False), (answer + behind, behind != b"\r\n")):
        assert await what_is_read([text], Ending.NOTHING) == (200, b"ok", None, is_last)


async def test_no_more_than_two_windows_of_an_answer_wait_to_be_read() -> None:
    async with calling() as (backend, upstream):
        seen = 0
        loop = asyncio.get_running_loop()

        async def read(answer: Answer) -> None:
            nonlocal seen
            await turns(200)
            waiting = upstream_wire(upstream).received_bytes
            async for chunk in answer.chunks_for_client():
                seen += len(chunk)
            assert waiting <= 2 * READ_BYTES

        asked = asyncio.ensure_future(upstream.call(BackendRequest("GET", "/x", [], Body()), [], read))
        connection = await backend.accept()
        await backend.read_request(connection)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 20000000\r\n\r\n"
        await asyncio.gather(asked, loop.sock_sendall(connection, head + bytes(20_000_000)))
        assert seen == 20_000_000


def upstream_wire(upstream: Upstream) -> Wire:
    (wire,) = upstream.connections._open
    return wire


async def test_a_byte_of_a_small_answer_costs_the_same_however_many_have_come_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def byte_by_byte(answer: Answer) -> bytes:
        return b"x"

    async def read(answer: Answer) -> list[float]:
        seconds = []
        with monkeypatch.context() as patched:
            patched.setattr(Answer, "next", byte_by_byte)
            for n_bytes in (20_000, 200_000):
                began_s = time.process_time()
                assert len(await answer.read_beginning(n_bytes)) == n_bytes
                seconds.append(time.process_time() - began_s)
        return seconds

    async with calling() as (backend, upstream):
        asked = asyncio.ensure_future(upstream.call(BackendRequest("GET", "/x", [], Body()), [], read))
        connection = await backend.accept()
        await backend.read_request(connection)
        await asyncio.get_running_loop().sock_sendall(connection, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        few, many = await asked
        assert many < 30 * few
