"""Heads that come again: a request is the same value, and gets the same reply, whether its head is known or not."""

import asyncio
import inspect
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from gateway.client.body import ClientBody
from gateway.client.heads import (
    LEARNING_S,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_HEADS_PER_LINE,
    MAX_LINES,
    MAX_SEEN,
    Arrived,
    KnownHeads,
)
from gateway.client.reply import Reply
from gateway.client.request import ClientRequest, KnownHead
from gateway.client.server import PIECES_AT_ONCE
from gateway.headers import Headers
from tests.client.raw import Running, connect, echo, read_body, serving

HEAD = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nInference-Header-Content-Length: %d\r\nHost: h\r\nContent-Length: %d\r\n\r\n"
)


def message(head_length: int, body: bytes) -> bytes:
    return HEAD % (head_length, len(body)) + body


class AttentiveHeads(KnownHeads):
    """Keeps one head directly after another."""

    def keep(self, data: bytes, request: ClientRequest, now_s: float) -> KnownHead | None:
        self._learning_at = now_s
        return super().keep(data, request, now_s)


class ForgetfulHeads(KnownHeads):
    """Knows no head, as if each came for the first time."""

    def find(self, data: bytes) -> Arrived | None:
        return None


def values(request: ClientRequest) -> tuple[object, ...]:
    """Everything of a request that whoever serves it can see."""
    headers = request.headers
    names = [*headers.first, "absent"]
    return (
        request.method,
        request.path,
        request.host,
        request.peer,
        request.scheme,
        request.version,
        request.content_length,
        request.has_body,
        headers.pairs,
        dict(headers.first),
        [(headers.get(name), headers.all(name), headers.joined(name), name in headers) for name in names],
        headers.are_ascii,
        request.fault and str(request.fault),
    )


async def test_a_head_is_known_from_the_third_time_on() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        for number in range(1, 6):
            body = b"a" * number
            reply = await client.exchange(message(number, body))
            assert reply.body == b"POST /v2/models/m/infer " + body
        assert [request.head is not None for request in running.requests] == [False, True, True, True, True]
        assert len({id(request.head) for request in running.requests[1:]}) == 1
        last = running.requests[-1]
        assert last.headers.first["inference-header-content-length"] == "5"
        assert last.headers.pairs[2] == ("Content-Length", "5")
        assert last.content_length == 5


async def test_a_known_head_serves_all_connections() -> None:
    async with serving(echo) as running:
        for _ in range(3):
            async with connect(running.url) as client:
                for _ in range(2):  # the first data of a connection may come before anything waits for it
                    assert (await client.exchange(message(2, b"{}"))).status == 200
        assert all(request.head is not None for request in running.requests[2:] if request.content_length)


async def test_no_body_is_held_beside_the_one_that_is_read() -> None:
    held: list[int] = []

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await read_body(body)
        frame = inspect.currentframe()
        while (frame := frame.f_back if frame is not None else None) is not None:
            held.extend(len(value) for value in frame.f_locals.values() if isinstance(value, bytes))
        await reply.whole(200, [], b"")

    async with serving(serve) as running, connect(running.url) as client:
        for _ in range(2):
            assert (await client.exchange(message(1, bytes(8 * MAX_HEAD_BYTES)))).status == 200
        assert running.requests[-1].head is not None
    assert max(held, default=0) <= MAX_HEAD_BYTES


async def test_a_connection_holds_no_empty_lines() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        assert (await client.exchange(message(1, b"a"))).status == 200
        client.writer.write(b"\r\n\r\n" * 8 * MAX_HEAD_BYTES)
        for _ in range(40):
            await asyncio.sleep(0)
        [protocol] = running.server.connections
        held = [len(value) for value in vars(protocol).values() if isinstance(value, bytes)]
        assert MAX_HEAD_BYTES in held
        assert max(held) == MAX_HEAD_BYTES


async def test_a_head_that_is_known_is_not_kept_again_where_its_body_comes_later() -> None:
    async with serving(echo) as running, connect(running.url) as client:
        running.server.known_heads = heads = AttentiveHeads()
        for _ in range(3):
            assert (await client.exchange(message(1, b"a"))).status == 200
        for _ in range(3):
            client.writer.write(message(1, b"abc")[:-2])
            for _ in range(40):
                await asyncio.sleep(0)
            assert (await client.exchange(b"bc")).body.endswith(b"abc")
        assert [len(known) for known in heads._known.values()] == [1]
        assert len({id(request.head) for request in running.requests[1:]}) == 1


SEVERAL = [
    b"X-Strength: 5\r\nX-Strength: 5\r\nContent-Length: %d",
    b"Content-Length: %d\r\nContent-Length: %d",
    b"Content-Length: +%d",
    b"Content-Length: 0%d",
    b"Content-Length : %d",
    b"Content-Length: %d ",
    b"Content-Length:  %d",
    b"Content-Length:%d",
    b"X: Content-Length: %d",
    b"Content-Length: %d\r\nExpect: 100-continue",
    b"Content-Length: %d\r\nConnection: close",
    b"Content-Length: %d\r\nTransfer-Encoding: chunked",
    b"Content-Length: %d\r\nContent-Encoding: gzip",
    b"Content-Length: %d\r\nUpgrade: h2c\r\nConnection: upgrade",
    b"Content-Length: %d\r\nX-A: 1\r\nx-a: 2",
    b"Content-Length: %d\r\nX-A: \xff",
    b"Content-Length: %d\r\n X-A: folded",
    b"Inference-Header-Content-Length: 1\r\nInference-Header-Content-Length: 2\r\nContent-Length: %d",
    b"Transfer-Encoding: chunked\r\nX-Length: %d",
    b"X-Length: %d",
]
COMMON = [
    b"Content-Length: %d\r\nX-Strength: 5",
    b"X-Strength: 5\r\nContent-Length: %d",
    b"Content-Length: %d\r\nConnection: keep-alive",
    b"Content-Length: %d\r\nContent-Type: a/b;length: 3",
    b"CONTENT-LENGTH: %d",
    b"Content-Length: %d",
    b"content-length: %d",
    b"content-length: %d\r\ninference-header-content-length: 7",
    b"Inference-Header-Content-Length: 7\r\nContent-Length: %d\r\nX-Request-Id: a\r\nAuthorization: Bearer b",
]


@pytest.mark.parametrize("lines", SEVERAL)
async def test_a_head_whose_body_is_not_framed_by_one_plain_length_is_never_known(lines: bytes) -> None:
    async with serving(echo) as running:
        for _ in range(4):
            fields = lines.replace(b"%d", b"3")
            await converse(running, [b"POST /a HTTP/1.1\r\nHost: h\r\n%b\r\n\r\nabc" % fields])
        assert [request.head for request in running.requests] == [None] * len(running.requests)


@pytest.mark.parametrize("lines", COMMON)
async def test_a_head_in_its_common_form_is_known(lines: bytes) -> None:
    async with serving(echo) as running, connect(running.url) as client:
        for _ in range(3):
            reply = await client.exchange(b"POST /a HTTP/1.1\r\nHost: h\r\n%b\r\n\r\nabc" % (lines % 3))
            assert reply.body == b"POST /a abc"
        assert running.requests[-1].head is not None


@pytest.mark.parametrize(
    "start", [b"PUT /a HTTP/1.1", b"POST /a HTTP/1.0", b"GET /a HTTP/1.1", b"POST /a#b HTTP/1.1", b"post /a HTTP/1.1"]
)
async def test_only_a_sound_post_is_known(start: bytes) -> None:
    async with serving(echo) as running:
        for _ in range(4):
            await converse(running, [b"%b\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc" % start])
        assert not any(request.head for request in running.requests)


@pytest.mark.parametrize(
    "before",
    [
        b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nX-A: ",
        b"\r\n",
        b"P",
        b"GET /%x HTTP/1.1\r\nHost: h\r\n\r\nGET /%x HTTP/1.1\r\nX-A: ",
        b"\r\n\r\n" * PIECES_AT_ONCE + b"POST /a HTTP/1.1\r\nHost: h\r\nX-A: ",
        b"\r\n\r\n" * (PIECES_AT_ONCE - 1) + b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab",
    ],
)
async def test_what_stands_within_another_message_is_no_request(before: bytes) -> None:
    async with serving(echo) as running, serving(echo) as forgetful:
        forgetful.server.known_heads = ForgetfulHeads()
        usual = message(1, b"a")
        for each in (running, forgetful):
            await converse(each, [usual, usual, usual])
            await converse(each, [usual, before, usual])
        assert running.requests[2].head is not None
        assert list(map(values, running.requests)) == list(map(values, forgetful.requests))


def parsed(line: str, *fields: tuple[str, str]) -> tuple[bytes, ClientRequest]:
    """A request with the request line *line* and a body of one byte, as it comes and as it was parsed."""
    pairs = [("Host", "h"), *fields, ("Content-Length", "1")]
    head = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    method, path, _ = line.split()
    connection: Any = None
    request = ClientRequest(method, path, Headers(pairs), "h", "p", "http", (1, 1), 1, True, connection)
    return f"{line}\r\n{head}\r\na".encode(), request


def test_what_is_kept_is_limited() -> None:
    heads = KnownHeads()
    for number in range(2 * MAX_SEEN):
        assert heads.keep(*parsed(f"POST /{number} HTTP/1.1"), now_s=number) is None
        assert len(heads._seen) <= MAX_SEEN
    long = parsed("POST /a HTTP/1.1", ("X", "a" * MAX_HEAD_BYTES))
    assert [heads.keep(*long, now_s=number) for number in (1e6, 2e6, 3e6)] == [None, None, None]
    assert heads._known == {}


def test_a_head_with_more_fields_than_are_quickly_compiled_is_not_kept() -> None:
    heads = KnownHeads()
    for n_fields in (MAX_FIELDS, MAX_FIELDS + 1):  # of which two are Host and Content-Length
        head = parsed(f"POST /{n_fields} HTTP/1.1", *((f"X-{number}", "a") for number in range(n_fields - 2)))
        heads.keep(*head, now_s=0.0)
        assert (heads.keep(*head, now_s=0.0) is not None) is (n_fields == MAX_FIELDS)


def test_of_more_heads_than_are_kept_the_oldest_go() -> None:
    heads = KnownHeads()
    now_s = 0.0
    for number in range(MAX_LINES + 1):
        line = f"POST /{number} HTTP/1.1"
        n_heads = MAX_HEADS_PER_LINE + 2
        for accepted in range(n_heads):
            now_s += LEARNING_S
            known = heads.keep(*parsed(line, ("Accept", str(accepted))), now_s=now_s)
            assert (known is not None) is (accepted > 0), "a request line that comes for the first time"
        assert [
            heads.find(parsed(line, ("Accept", str(accepted)))[0]) is not None for accepted in range(1, n_heads)
        ] == [
            False,
            *[True] * MAX_HEADS_PER_LINE,
        ]
    assert len(heads._known) == MAX_LINES
    assert heads.find(parsed("POST /0 HTTP/1.1", ("Accept", str(n_heads - 1)))[0]) is None
    assert heads.find(parsed("POST /1 HTTP/1.1", ("Accept", str(n_heads - 1)))[0]) is not None


def test_two_heads_are_not_kept_in_quick_succession() -> None:
    heads = KnownHeads()
    for line in ("POST /a HTTP/1.1", "POST /b HTTP/1.1"):
        assert heads.keep(*parsed(line), now_s=0.0) is None
    assert heads.keep(*parsed("POST /a HTTP/1.1"), now_s=0.0) is not None
    assert heads.keep(*parsed("POST /b HTTP/1.1"), now_s=LEARNING_S / 2) is None
    assert heads.keep(*parsed("POST /b HTTP/1.1"), now_s=LEARNING_S) is not None


@pytest.mark.parametrize(
    ("name", "value", "is_known"),
    [
        ("X-A", "b c", True),
        ("X-A", "", False),
        ("X-A", "\xe9", False),
        ("X-A", "a\tb", False),
        ("X-A", "a ", False),
        ("Authorization", "Bearer other", True),
        ("User-Agent", "other", False),
        ("Content-Type", "other", False),
        ("x-a", "a", False),
    ],
)
def test_values_that_decide_nothing_may_differ(name: str, value: str, is_known: bool) -> None:
    heads = KnownHeads()
    usual = {"X-A": "a", "Authorization": "Bearer a", "User-Agent": "a", "Content-Type": "a"}
    data, request = parsed("POST /a HTTP/1.1", *usual.items())
    for _ in range(2):
        heads.keep(data, request, now_s=0.0)
    assert heads.find(data) is not None
    other = [(name, value) if key.lower() == name.lower() else (key, old) for key, old in usual.items()]
    changed, _ = parsed("POST /a HTTP/1.1", *other)
    assert (heads.find(changed) is not None) is is_known


def lines_of(rng: random.Random) -> bytes:
    lines = [rng.choice(rng.choice([*7 * [COMMON], SEVERAL]))]
    lines += [b"Host: h", *rng.sample([b"X-B: %x", b"Accept: */*", b"X-C: 7"], rng.randrange(4))]
    rng.shuffle(lines)
    return b"\r\n".join(lines)


def damaged(text: bytes, rng: random.Random) -> bytes:
    """*text* with a byte changed, left out or doubled."""
    at = rng.randrange(len(text))
    return rng.choice(
        [text[:at] + text[at + 1 :], text[:at] + rng.randbytes(1) + text[at + 1 :], text[: at + 1] + text[at:]]
    )


def connections_of(rng: random.Random) -> Iterator[list[bytes]]:
    """The pieces of data of connections, one after the other; their heads come again and again."""
    heads = [b"POST /%d HTTP/1.1\r\n%b\r\n\r\n" % (number, lines_of(rng)) for number in range(6)]
    for _ in range(100):
        pieces = []
        for _ in range(rng.randrange(1, 6)):
            body = rng.randbytes(rng.choice([1, 2, 9, 10, 99, 100, 1000]))
            head = rng.choice(heads)
            head = head.replace(b"%x", rng.choice([b"1", b"", b" ", b"a b", b"a ", b" a", b"\xe9", b"a\tb", b"%d"]))
            text = head.replace(b"%d", b"%d" % (len(body) + rng.choice([*98 * [0], -1, 1]))) + body
            if rng.random() < 0.03:
                text = damaged(text, rng)
            if rng.random() < 0.05:
                text += rng.choice([b"\r\n", b"GET /x HTTP/1.1\r\n\r\n", text])
            if rng.random() < 0.05:
                text = b"\r\n\r\n" * (PIECES_AT_ONCE - rng.randrange(3)) + text
                if rng.random() < 0.5:  # what comes next belongs to this head, whatever it looks like
                    text = text[: text.rindex(b"\r\n\r\n")]
            cuts = sorted(rng.sample(range(len(text)), k=min(len(text), rng.choice([0, 0, 0, 1, 2]))))
            pieces += [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        yield [piece for piece in pieces if piece]


async def converse(running: Running, pieces: list[bytes]) -> None:
    """Send *pieces*, each of them once the server has had time for the one before, and wait for the end."""
    async with connect(running.url) as client:
        for piece in [b"", *pieces]:
            try:
                client.writer.write(piece)
                await client.writer.drain()
            except ConnectionError:
                break
            for _ in range(40):
                await asyncio.sleep(0)
        with suppress(OSError):
            client.writer.write_eof()
            await client.reader.read()


@pytest.mark.parametrize("seed", range(6))
async def test_a_known_head_changes_no_request(seed: int) -> None:
    bodies: list[bytes] = []

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        bodies.append(bytes(await read_body(body)) if request.has_body else b"")
        await reply.whole(200, [], b"")

    async with serving(serve) as remembering, serving(serve) as forgetful:
        remembering.server.known_heads, forgetful.server.known_heads = AttentiveHeads(), ForgetfulHeads()
        n_known = 0
        for pieces in connections_of(random.Random(seed)):
            seen = []
            for running in (remembering, forgetful):
                running.requests.clear()
                await converse(running, pieces)
                seen.append(([values(request) for request in running.requests], bodies.copy()))
                bodies.clear()
            n_known += sum(request.head is not None for request in remembering.requests)
            assert seen[0] == seen[1], pieces
        assert n_known > 30
