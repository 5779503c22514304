"""Messages of HTTP/1.1 as they arrive: the same however they are cut, and as aiohttp's parser reads them whole."""

import asyncio
import random
import tracemalloc

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser, HttpResponseParser, RawRequestMessage, RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError

from gateway.http1 import (
    PIECE_BYTES,
    WINDOW_BYTES,
    Heads,
    HeadTooLargeError,
    Incoming,
    MalformedError,
    Phase,
)

HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
MAX_HEAD = 4096


def request() -> Incoming:
    return Incoming(Heads(asyncio.get_running_loop(), MAX_HEAD, is_for_requests=True))


def expect(message: Incoming, head: RawRequestMessage | RawResponseMessage) -> None:
    fields = {name.rstrip(b" ").lower(): value for name, value in head.raw_headers}
    if isinstance(head, RawResponseMessage) and head.code == 204:
        message.expect(Phase.DONE)
    elif head.chunked:
        message.expect(Phase.CHUNKED)
    elif isinstance(head, RawResponseMessage) and b"content-length" not in fields:
        message.expect(Phase.UNTIL_END)
    else:
        message.expect(Phase.SIZED, int(fields.get(b"content-length", b"0")))


def read(message: Incoming, pieces: list[bytes]) -> tuple[list[tuple[bytes, bytes]], bytes, bytes]:
    """The fields, the body, and what is behind the message, whose *pieces* come one after the other."""
    fields: list[tuple[bytes, bytes]] = []
    body = behind = b""
    for piece in pieces:
        data = piece
        if message.phase is Phase.HEAD:
            found = message.feed_head(data)
            if found is None:
                continue
            head, data = found
            fields = list(head.raw_headers)
            expect(message, head)
        behind += message.feed_body(data)
        while text := message.read():
            body += text
    return fields, body, behind


def cut(text: bytes, rng: random.Random) -> list[bytes]:
    cuts = sorted(rng.sample(range(1, len(text)), rng.randrange(0, min(12, len(text) - 1))))
    if rng.random() < 0.2:
        cuts = list(range(1, len(text)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.parametrize("blank", [b"", b"\r\n", b"\r\n\r\n\n"])
@pytest.mark.parametrize("seed", range(20))
async def test_a_message_is_the_same_however_it_is_cut(seed: int, blank: bytes) -> None:
    rng = random.Random(seed)
    body = rng.randbytes(rng.randrange(300))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 7]), body[at : at + 7]) for at in range(0, len(body), 7))
    for text, behind in (
        (HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), b"GET /b"),
        (HEAD + b"\r\n", b"\r\n\r\nGET /b"),
        (CHUNKED + chunks + b"0\r\nX-T: u\r\n\r\n", b""),
    ):
        fields, got, rest = read(request(), cut(blank + text + behind, rng))
        assert fields[0] == (b"Host", b"x")
        assert got == (b"" if text == HEAD + b"\r\n" else body)
        assert rest == behind


async def test_a_chunked_body_is_decoded_in_pieces_when_it_is_read() -> None:
    message = request()
    assert message.feed_head(CHUNKED) is not None
    message.expect(Phase.CHUNKED)
    text = b"x" * 100_000
    message.feed_body(b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text))
    read = 0
    while message.phase is not Phase.DONE:
        piece = message.read()
        assert len(piece) <= PIECE_BYTES
        read += len(piece)
    assert read == len(text)
    assert message.is_read
    assert message.unread_bytes == 0


async def test_what_was_read_of_a_chunked_body_is_not_kept_in_memory() -> None:
    """Else a connection would hold up to 32 times the bytes that are counted for it."""
    heads = Heads(asyncio.get_running_loop(), MAX_HEAD, is_for_requests=True)
    tracemalloc.start()
    try:
        message = Incoming(heads)
        assert message.feed_head(CHUNKED) is not None
        message.expect(Phase.CHUNKED)
        message.feed_body(b"100000\r\n" + bytes(32 * PIECE_BYTES))
        while message.unread_bytes > PIECE_BYTES:
            message.read()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4 * PIECE_BYTES


@pytest.mark.parametrize(("size", "is_accepted"), [(1, False), (2, False), (3, True), (64, True)])
async def test_chunks_that_cost_more_than_three_times_what_they_carry_are_refused(size: int, is_accepted: bool) -> None:
    message = request()
    assert message.feed_head(CHUNKED) is not None
    message.expect(Phase.CHUNKED)
    chunk = b"%x\r\n%b\r\n" % (size, b"x" * size)
    message.feed_body(chunk * (WINDOW_BYTES // len(chunk) + PIECE_BYTES))
    if is_accepted:
        while message.unread_bytes:
            message.read()
        return
    carried = 0
    with pytest.raises(MalformedError, match="chunks are too small"):
        while message.unread_bytes:
            carried += len(message.read())
    assert carried < WINDOW_BYTES


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X-A: " + b"a" * 9000 + b"\r\n\r\n",
        HEAD + b"X-A: a\r\n" * 200 + b"\r\n",
        HEAD + (b"X-A: " + b"a" * 100 + b"\r\n") * 50,
        b"\r\n" * MAX_HEAD,
    ],
    ids=["line", "fields", "bytes", "blank lines"],
)
async def test_a_head_that_is_too_large_is_told_from_one_that_is_none(head: bytes) -> None:
    with pytest.raises(HeadTooLargeError):
        request().feed_head(head)


@pytest.mark.parametrize("head", [b"\x16\x03\x01", b"GARBAGE\r\n\r\n", b"GET /a HTTP/1.1\nHost: x\n\n", b"\x00"])
async def test_what_is_no_head_is_refused_as_soon_as_it_shows(head: bytes) -> None:
    with pytest.raises(MalformedError):
        request().feed_head(head)


ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n"


@pytest.mark.parametrize("behind", [b"", b"\r\n", ANSWER])
@pytest.mark.parametrize(
    "head", [b"X:\r\r\n", b"X: \r\r\n", b"X: \r\n \r\r\n", b" \r\n", b"\t\n", b"X: a\r\n\tb\r\n\r\n", b"X: a\n b\n\n"]
)
async def test_a_head_with_a_line_that_is_neither_a_field_nor_empty_is_refused(head: bytes, behind: bytes) -> None:
    """Else what comes behind it would be read as the head of this answer, and its own would be lost."""
    text = b"HTTP/1.1 200 OK\r\n" + head + behind
    for size in (1, 2, len(text)):
        message = Incoming(Heads(asyncio.get_running_loop(), MAX_HEAD, is_for_requests=False))
        with pytest.raises(MalformedError):
            for start in range(0, len(text), size):
                message.feed_head(text[start : start + size])


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 2", b"x", b"H"])
async def test_what_comes_behind_a_chunked_answer_shows(behind: bytes) -> None:
    for text, surplus in ((b"", False), (behind, True)):
        message = Incoming(Heads(asyncio.get_running_loop(), MAX_HEAD, is_for_requests=False))
        assert message.feed_head(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") is not None
        message.expect(Phase.CHUNKED)
        message.feed_body(b"2\r\nok\r\n0\r\n\r\n" + text)
        assert message.read() == b"ok"
        assert message.is_read
        assert message.has_surplus is surplus


class NoPauses(BaseProtocol):
    def pause_reading(self) -> None: ...

    def resume_reading(self, resume_parser: bool = True) -> None: ...


PROTOCOL = NoPauses(None)  # type: ignore[arg-type]

PARTS = [
    b"GET /a HTTP/1.1\r\n", b"POST /a HTTP/1.1\r\n", b"POST http://y/a HTTP/1.0\r\n", b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 204 No\r\n", b"HTTP/1.0 200\r\n", b"Host: x\r\n", b"Content-Length: 5\r\n", b"Content-Length: 5 \r\n",
    b"content-length:\t3\r\n", b"Content-Length : 3\r\n", b"Content-Length: 0\r\n", b"Content-Length: 4\r\nX: \r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding : chunked\r\n", b"transfer-encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: identity\r\n", b"Connection: close\r\n", b"Upgrade: h2c\r\nConnection: upgrade\r\n",
    b"X-A: a\n", b"X-A: \xff\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\n\n", b"abcde",
    b"5\r\nabcde\r\n", b"0\r\n\r\n", b"0\r\nX-T: u\r\n\r\n", b"A;x=y\r\n0123456789\r\n", b"zz\r\n", b"1\r\na\n", b"\0",
]  # fmt: skip


def whole(
    parser: HttpRequestParser | HttpResponseParser, text: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes, bool] | None:
    """The first message of *text* as aiohttp's parser reads it at once: fields, body so far, and whether it is whole.

    None if there is no head or the text breaks.
    """
    try:
        messages, _, _ = parser.feed_data(text)
    except HttpProcessingError:
        return None
    if not messages:
        return None
    head, body = messages[0]
    return list(head.raw_headers), body.read_nowait(-1), body.is_eof()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["request", "answer"])
async def test_nothing_is_read_otherwise_than_by_aiohttps_parser_alone(kind: str, seed: int) -> None:
    """What that parser takes as one message in one go has the same fields and the same body here, however it is cut."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    n_whole = 0
    for _ in range(4000):
        first = rng.choice(PARTS[:3] if kind == "request" else PARTS[3:6])
        text = first + b"".join(rng.choices(PARTS[6:], k=rng.randrange(1, 9)))
        if rng.random() < 0.6:
            text = first + b"Host: x\r\n" + text[len(first) :]
        if kind == "request":
            parser: HttpRequestParser | HttpResponseParser = HttpRequestParser(
                PROTOCOL, loop, 2**20, auto_decompress=False, max_msg_queue_size=1
            )
            message = Incoming(Heads(loop, MAX_HEAD, is_for_requests=True))
        else:
            parser = HttpResponseParser(PROTOCOL, loop, 2**20, read_until_eof=True, auto_decompress=False)
            message = Incoming(Heads(loop, MAX_HEAD, is_for_requests=False))
        expected = whole(parser, text)
        if expected is None:
            continue
        fields, body, is_whole = expected
        try:
            got = read(message, cut(text, rng))
        except MalformedError:
            # what is behind the first message may break; a coding that is not chunked is refused beside an upgrade, too
            assert not is_whole or (kind == "request" and b"upgrade" in text and b"ransfer-" in text), text
            continue
        n_whole += is_whole
        assert got[0] == fields, text
        assert got[1] == body, text
    assert n_whole > 20


HOSTILE = [
    b"Content-Length: +5\r\n", b"Content-Length: 5, 5\r\n", b"Content-Length: 0x5\r\n", b"Content-Length: 5\x0b\r\n",
    b"Content-Length:\r\n", b"Content-Length: \xd9\xa3\r\n", b"Content-Length: 18446744073709551616\r\n",
    b"Content_Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chun\xe2\x84\xaaed\r\n", b"Transfer-Encoding: \x0bchunked\r\n",
    b"Transfer-Encoding: chunked, chunked\r\n", b"Transfer-Encoding: chunked;q=1\r\n",
    b"Transfer-Encoding:\r\n chunked\r\n",
    b"X: a\rContent-Length: 5\r\n", b"X: a\nContent-Length: 5\r\n", b"X: a\r\r\n", b" X: y\r\n",
    b"X Y: z\r\n", b"Host: y\r\n",
    b"5;a=\n\r\nabcde\r\n", b"5;a=\r\nabcde\r\n", b"5 \r\nabcde\r\n", b"5\nabcde\r\n",
    b"5\r\nabcdeX\r\n", b"0x5\r\nabcde\r\n",
    b"10000000000000005\r\nabcde\r\n", b"0\n\r\n", b"0\r\n\n", b"0\r\nContent-Length: 5\r\n\r\n", b"0\r\nX Y\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
async def test_what_aiohttps_parser_does_not_accept_is_not_accepted(seed: int) -> None:
    """A request that is read to its end here is one that this parser has accepted byte by byte, with the same body."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    n_accepted = 0
    for _ in range(4000):
        parts = rng.choices(PARTS[6:], k=rng.randrange(4)) + rng.choices(HOSTILE, k=rng.randrange(4))
        rng.shuffle(parts)
        text = rng.choice(PARTS[:3]) + b"Host: x\r\n" + b"".join(parts) + rng.choice([b"\r\n", b"0\r\n\r\n", b""])
        message = Incoming(Heads(loop, MAX_HEAD, is_for_requests=True))
        try:
            fields, body, _ = read(message, cut(text, rng))
        except MalformedError:
            continue
        if not message.is_read:
            continue
        n_accepted += 1
        parser = HttpRequestParser(PROTOCOL, loop, 2**20, auto_decompress=False)
        messages = []
        try:
            for byte in text:
                messages += parser.feed_data(bytes([byte]))[0]
        except HttpProcessingError:
            pass  # behind the first message, if there is one
        assert messages, text
        head, whole_body = messages[0]
        assert whole_body.is_eof(), text
        assert (list(head.raw_headers), whole_body.read_nowait(-1)) == (fields, body), text
    assert n_accepted > 100
