"""Random pipelines at random splits: bytes of a body are never a request, and replies keep their order.

Every body is made of requests for `/hidden`. What stands on the connection is known, so what may come back is known
too: the replies to the first requests in their order, all of them unless one of them says that the connection closes.
"""

import asyncio
import random
import re
from contextlib import suppress

import pytest

from tests.client.raw import connect, echo, serving

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
VARYING = re.compile(rb"HTTP/1.1 100 Continue\r\n\r\n|X-Request-Id: [0-9a-f]{32}|Date: [^\r]*")
CLOSING = {"chunked", "connect", "upgrade", "upgrade with body"}
"""After these the server may close; what comes behind them then meets a reset, which may overtake the reply."""

KINDS = ["get", "post", "chunked", "refused", "upgrade", "upgrade with body", "connect", "expecting", "old"]


def request_of(kind: str, number: int, rng: random.Random) -> tuple[bytes, int]:
    """A request of *kind* for `/<number>`, and the status of its reply."""
    body = HIDDEN * rng.randrange(1, 4)
    fields = [b"Host: x"]
    method, version, status = b"POST", b"1.1", 200
    if kind in ("get", "upgrade"):
        method, body = b"GET", b""
    if kind.startswith("upgrade"):
        fields.append(b"Connection: Upgrade\r\nUpgrade: " + rng.choice([b"websocket", b"h2c"]))
    if kind == "refused":
        fields.append(b"X-A: \xff")
        status = 400
    if kind == "connect":
        method, status = b"CONNECT", 400
    if kind == "expecting":
        fields.append(b"Expect: 100-continue")
    if kind == "old":
        version = b"1.0"
        fields.append(b"Connection: keep-alive")
    if kind == "chunked":
        fields.append(b"Transfer-Encoding: chunked")
        body = b"%x;a=b\r\n%b\r\n0\r\nX-T: u\r\n\r\n" % (len(body), body)
    elif body:
        fields.append(b"Content-Length: %d" % len(body))
    target = b"x:1" if kind == "connect" else b"/%d" % number
    return b"%b %b HTTP/%b\r\n%b\r\n\r\n%b" % (method, target, version, b"\r\n".join(fields), body), status


@pytest.mark.parametrize("seed", range(4))
async def test_no_body_is_taken_for_a_request_and_replies_come_in_order(seed: int) -> None:
    rng = random.Random(seed)
    n_replies = 0
    async with serving(echo) as running:
        for _ in range(60):
            running.requests.clear()
            kinds = rng.choices(KINDS, weights=[4, 4, 1, 2, 1, 1, 0.3, 1, 1], k=rng.randrange(2, 7))
            made = [request_of(kind, number, rng) for number, kind in enumerate(kinds)]
            text = b"".join(request for request, _ in made)
            cuts = sorted(rng.sample(range(1, len(text)), rng.randrange(0, 6)))
            async with connect(running.url) as client:
                for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
                    client.writer.write(text[start:end])
                    for _ in range(rng.randrange(30)):
                        await asyncio.sleep(0)
                for number, (_, status) in enumerate(made):
                    try:
                        reply = await client.read_reply()
                        while reply.status == 100:
                            reply = await client.read_reply()
                    except ConnectionError:
                        assert CLOSING.intersection(kinds), (kinds, cuts)
                        break
                    n_replies += 1
                    assert reply.status == status, (kinds, cuts)
                    if status == 200:
                        assert reply.body.split(b" ")[1] == b"/%d" % number, (kinds, cuts)
                    if reply.all("connection") == ["close"]:
                        break
            paths = [request.path for request in running.requests]
            assert "/hidden" not in paths, (kinds, cuts)
    assert n_replies > 90


def odd_request(number: int, rng: random.Random) -> bytes:
    """A request of any kind for `/<number>`, sound or not, whose body hides others; none asks for an upgrade."""
    target, host, body = b"/%d" % number, b"Host: x\r\n", HIDDEN * rng.randrange(4)
    length = b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body[at : at + 30]), body[at : at + 30]) for at in range(0, len(body), 30))
    in_chunks = b"Transfer-Encoding: chunked\r\n\r\n" + chunks
    made = [
        *[b"GET %b HTTP/1.1\r\n%b\r\n" % (target, host)] * 6,
        *[b"POST %b HTTP/1.1\r\n%b%b" % (target, host, length)] * 6,
        b"HEAD %b HTTP/1.1\r\n%b\r\n" % (target, host),
        b"GET http://y%b HTTP/1.1\r\n%b\r\n" % (target, host),
        b"OPTIONS * HTTP/1.1\r\n%b\r\n" % host,
        b"GET %b HTTP/1.1\nHost: x\n\n" % target,
        b"\r\n\r\nGET %b HTTP/1.1\r\n%b\r\n" % (target, host),
        b"POST %b HTTP/1.0\r\nConnection: keep-alive\r\n%b" % (target, length),
        b"POST %b HTTP/1.1\r\n%bX-A: \xff\r\n%b" % (target, host, length),
        b"POST %b HTTP/1.1\r\n%bExpect: 100-continue\r\n%b" % (target, host, length),
        b"CONNECT x:1 HTTP/1.1\r\n%b\r\n" % host,
        b"POST %b HTTP/1.1\r\n%b%b0\r\n\r\n" % (target, host, in_chunks),
        b"POST %b HTTP/1.1\r\n%b%b0\r\nX-T: u\r\nContent-Length: 5\r\n\r\n" % (target, host, in_chunks),
        b"POST %b HTTP/1.1\r\n%b%bzz\r\n" % (target, host, in_chunks),
        b"POST %b HTTP/1.1\r\n%bContent-Length: 3\r\n%b0\r\n\r\n" % (target, host, in_chunks),
        b"POST %b HTTP/1.1\r\n%bContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd" % (target, host),
        b"GET %b HTTP/1.1\r\nBad Header: 1\r\n%b\r\n" % (target, host),
        b"GARBAGE\r\n\r\n",
    ]
    return rng.choice(made)


async def replies_to(url: str, pieces: list[bytes], rng: random.Random) -> bytes:
    """All that comes back for *pieces*, one after the other, without what differs from reply to reply."""
    async with connect(url) as client, asyncio.timeout(20):
        for piece in pieces:
            if not client.writer.is_closing():
                client.writer.write(piece)
            for _ in range(rng.choice([0, 1, 3, 30])):
                await asyncio.sleep(0)
        text = b""
        with suppress(ConnectionError):
            while piece := await client.reader.read(65536):
                text += piece
    return VARYING.sub(b"", text)


@pytest.mark.parametrize("seed", range(4))
async def test_replies_are_the_same_however_the_requests_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    n_whole = 0
    async with serving(echo) as running:
        for _ in range(40):
            text = b"".join(odd_request(number, rng) for number in range(rng.choice([1, 2, 3, 5, 40]))) + LAST
            at_once = await replies_to(running.url, [text], rng)
            cuts = list(range(1, len(text)))
            if len(text) > 400 or rng.random() < 0.7:
                cuts = sorted(rng.sample(cuts, rng.randrange(1, 8)))
            pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            in_pieces = await replies_to(running.url, pieces, rng)
            # what is not read when the server closes is answered by a reset, which may overtake the last replies
            shorter, longer = sorted((at_once, in_pieces), key=len)
            assert longer.startswith(shorter), (text, cuts)
            n_whole += shorter == longer
        assert "/hidden" not in [request.path for request in running.requests]
    assert n_whole > 15
