"""Random pipelines at random splits: bytes of a body are never a request, and replies keep their order.

Every body is made of requests for `/hidden`. What stands on the connection is known, so what may come back is known
too: the replies to the first requests in their order, all of them unless one of them says that the connection closes.
"""

import asyncio
import random

import pytest

from tests.client.raw import connect, echo, serving

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
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
