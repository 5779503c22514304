"""Answers as they arrive over a connection, against what aiohttp's own parser makes of all of their bytes at once."""

import asyncio
import random
import socket

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpResponseParser
from aiohttp.http_exceptions import HttpProcessingError

from gateway.backend.asking import BackendRequest
from gateway.backend.attempt import Answer
from gateway.errors import GatewayError
from tests.backend.sockets import calling, read_whole, whole

N_ANSWERS = 400

Read = tuple[int, list[tuple[str, str]], bytes]
"""Status, fields and body of an answer."""


class NoPauses(BaseProtocol):
    def pause_reading(self) -> None: ...

    def resume_reading(self, resume_parser: bool = True) -> None: ...


PROTOCOL = NoPauses(None)  # type: ignore[arg-type]

STARTS = [
    *(b"HTTP/1.1 200 OK", b"HTTP/1.1 404 No") * 5,
    *(b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 No", b"HTTP/1.1 304 No", b"HTTP/1.1 500 E"),
    *(
        b"HTTP/1.1 101 S",
        b"HTTP/2.0 200 OK",
        b"HTTP/0.9 200 OK",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1 2000 OK",
        b"ICY 200 OK",
    ),
]
LENGTHS = [
    *(b"Content-Length: 5", b"Content-Length: 3") * 5,
    *(b"Content-Length: 0", b"Content-Length: 5 ", b"Content-Length:\t3", b"Content-Length : 3", b"Content-Length: +5"),
    *(b"Content-Length: 5, 5", b"Content-Length:", b"Content-Length: -1", b"Content-Length: 18446744073709551615"),
    *(
        b"Content-Length: 1_0",
        b"Content-Length: 0x5",
        b"Content-Length: 005",
        b"Content-Length:\r\n 5",
        b"Content-Length: 5\n 6",
    ),
    *(b"Content-Length: 5\r\nContent-Length: 5", b"Content-Length: 5\r\nContent-Length: 3", b"Content-Length: 5\x0b"),
]
CODINGS = [
    *(b"Transfer-Encoding: chunked",) * 8,
    *(b"transfer-encoding : CHUNKED", b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity"),
    *(b"Transfer-Encoding: chunked\r\n ", b"Transfer-Encoding:\r\n chunked", b"Transfer-Encoding: chun\r\n ked"),
    *(
        b"Transfer-Encoding:",
        b"Transfer-Encoding: chunked,",
        b"Transfer-Encoding: ,chunked",
        b"Transfer-Encoding: xchunked",
    ),
    *(b"Transfer-Encoding: chunked;q=1", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
    b"Transfer-Encoding: chunked\r\nContent-Length: 5",
]
OTHERS = [
    *(
        b"X-A: a",
        b"X-A:",
        b"X-A: a\r\n b",
        b"X-A: a\n\tb",
        b"X-A: \r\n ",
        b"Connection: close",
        b"Connection: keep-alive",
    ),
    *(
        b"Connection: upgrade\r\nUpgrade: h2c",
        b"Upgrade: x",
        b"X-A: a\rb",
        b"X-A",
        b": a",
        b" a: b",
        b"X A: b",
        b"X:\r",
    ),
]
SIZED = [*(b"abcde", b"abc") * 4, b"", b"a", b"abcdefg", b"abcdeHTTP/1.1 200 OK\r\n\r\n"]
CHUNKED = [
    *(b"5\r\nabcde\r\n0\r\n\r\n",) * 5,
    *(b"5;x=y\r\nabcde\r\n0\r\nX-T: u\r\n\r\n", b"5 \r\nabcde\r\n0\r\n\r\n", b"5\nabcde\n0\n\n", b"0\r\n\r\n", b"zz\r\n", b"-5\r\n"),  # noqa: E501
    *(b"5\r\nabcde0\r\n\r\n", b"5\r\nabcde\r\n", b"5\r\nabcde\r\n0\r\n", b"FFFFFFFFFFFFFFFF1\r\na", b"5\r\nabcde\r\n0\r\nX\r\n\r\n"),  # noqa: E501
    *(b"5\r\nabcde\r\n0\r\nContent-Length: 1\r\n\r\n", b'5;"x\r\ny"\r\nabcde\r\n0\r\n\r\n', b"5\r\nabcde\r\n0\r\n\r\nHTT", b"05\r\nabcde\r\n00\r\n\r\n"),  # noqa: E501
]  # fmt: skip
INTERIM = [b"HTTP/1.1 100 Continue", b"HTTP/1.1 103 H\r\nLink: <a>", b"HTTP/1.1 103 H\r\nContent-Length: 5"]


def made_up(rng: random.Random) -> bytes:
    """An answer, or what is nearly one."""
    end = b"\n" if rng.random() < 0.05 else b"\r\n"
    interim = b"".join(rng.choice(INTERIM) + end + end for _ in range(rng.choice([0, 0, 0, 1, 2])))
    form = rng.random()
    fields = [rng.choice(OTHERS[:2] if rng.random() < 0.7 else OTHERS) for _ in range(rng.choice([0, 0, 1, 2]))]
    fields += [] if form < 0.1 else [rng.choice(LENGTHS if form < 0.5 else CODINGS)]
    rng.shuffle(fields)
    text = interim + end.join([rng.choice(STARTS), *fields, b"", b""]) + rng.choice(SIZED if form < 0.5 else CHUNKED)
    return b"\r\n" * rng.choice([0, 0, 0, 1]) + text[: len(text) - rng.choice([0, 0, 0, 0, 1, 2])]


def read_by_aiohttp(text: bytes, method: str) -> Read | None:
    """The answer in *text*, behind which the stream ends; None if it is none, or not whole."""
    loop = asyncio.get_running_loop()
    parser = HttpResponseParser(
        PROTOCOL, loop, 2**20, response_with_body=method != "HEAD", read_until_eof=True, auto_decompress=False
    )
    found = None
    try:
        for at in range(len(text)):  # what comes behind the answer, and may be broken, is not the answer's
            found = next((each for each in parser.feed_data(text[at : at + 1])[0] if each[0].code >= 200), found)
            if found is not None and found[1].is_eof():
                break
        else:
            parser.feed_eof()
    except HttpProcessingError:
        return None
    if found is None or not found[1].is_eof():
        return None
    head, body = found
    fields = [(name.decode("latin-1").rstrip(" "), value.decode("latin-1")) for name, value in head.raw_headers]
    return head.code, fields, body.read_nowait(-1)


@pytest.mark.parametrize("seed", range(4))
async def test_no_answer_is_read_otherwise_than_by_aiohttps_parser_however_it_is_cut(seed: int) -> None:
    """Some answers are refused here although that parser takes them; nothing else may differ."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    n_read = 0
    async with calling("eject: {failures: 0}, retry: {attempts: 1}") as (backend, upstream):

        async def read(answer: Answer) -> Read:
            return answer.status, list(answer.headers.pairs), await read_whole(answer)

        for _ in range(N_ANSWERS):
            text = made_up(rng)
            method = rng.choice(["POST", "POST", "HEAD"])
            call = upstream.call(BackendRequest(method, "/x", [], whole(b"x")), [], read)
            asked = asyncio.ensure_future(call)
            connection = await backend.accept()
            await backend.read_request(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            cuts = sorted(rng.sample(range(1, len(text)), rng.choice([0, 1, 3])))
            for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
                try:
                    await loop.sock_sendall(connection, text[start:end])
                except ConnectionError:
                    break  # it was refused before its end
                await asyncio.sleep(0)
            backend.connections.remove(connection)
            connection.close()
            try:
                got = await asked
            except GatewayError:
                continue
            n_read += 1
            assert got == read_by_aiohttp(text, method), text
    assert n_read > N_ANSWERS / 4


@pytest.mark.parametrize("seed", range(4))
async def test_an_answer_that_is_all_there_is_read_at_once_however_it_is_chunked_and_cut(seed: int) -> None:
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    async with calling() as (backend, upstream):
        for _ in range(N_ANSWERS // 2):
            body = rng.randbytes(int(10 ** rng.uniform(0, 4.6)))
            size = rng.choice([4, 100, 1000, len(body)])
            pieces = [body[start : start + size] for start in range(0, len(body), size)]
            text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            text += b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
            request = BackendRequest("POST", "/x", [], whole(b"x"), is_read_whole=True)
            asked = asyncio.ensure_future(upstream.call(request, [], read_whole))
            connection = await backend.accept()
            await backend.read_request(connection)
            cuts = sorted(rng.sample(range(1, len(text)), rng.choice([0, 0, 1, 5])))
            for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
                await loop.sock_sendall(connection, text[start:end])
                await asyncio.sleep(0)
            async with asyncio.timeout(5):
                assert await asked == body
            upstream.endpoints.states[0].close_idle()  # the next request comes over a connection of its own
