"""Random damage to requests: every reply is sound, none is a 500, and the gateway goes on."""

import asyncio
import json
import logging
import random

import pytest

from tests.client.raw import connect
from tests.conftest import Client

TARGETS = [
    b"/", b"*", b"//", b"http://", b"http://x", b"http:///", b"https://[::1]:x/", b"http://%zz/", b"/%", b"/%zz/%00",
    b"/v2", b"/v2/", b"/v2/models/identity", b"/v2/models/identity/infer", b"/v2/models//infer",
    b"/v2/models/%2f/infer",
    b"/v2/models/identity/versions/x/infer", b"/v2?\xff", b"/?%", b"?", b"", b"/\xc3\xa9", b"/\xff", b"/a b", b"/#",
    b"http://user:pass@x/", b"//x/y", b"/v2/models/" + b"a" * 5000 + b"/infer", b"/\x7f", b"/v2/models/a%00/infer",
]  # fmt: skip
METHODS = [b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PUT", b"PATCH", b"TRACE", b"CONNECT", b"FOO", b"get", b"M-SEARCH", b"\xff", b"QUERY"]  # fmt: skip  # noqa: E501
VERSIONS = [b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.1", b"HTTP/1.1", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.x", b"HTTP", b""]
NAMES = [
    b"Content-Length", b"Transfer-Encoding", b"Host", b"Connection", b"Expect", b"Content-Encoding", b"Content-Type",
    b"Inference-Header-Content-Length", b"Upgrade", b"Accept-Encoding", b"X-Request-Id", b"X-Forwarded-For", b"TE",
    b"Authorization", b"Cookie", b"X-A", b"\xff", b"", b" ", b"a b", b"Sec-WebSocket-Key1", b"Date", b"Range",
]  # fmt: skip
VALUES = [
    b"", b"0", b"3", b"10", b"-1", b"99999999999999999999", b"chunked", b"gzip", b"identity", b"close", b"keep-alive",
    b"upgrade", b"websocket", b"100-continue", b"x", b"\xff", b"\xc3\xa9", b"a\tb", b"a, b", b"\0", b"\x7f",
    b"[::1]:80",
    b"x:y:z", b"application/json; charset=\xff", b"application/vnd.sagemaker-triton.binary+json;json-header-size=x",
    b"gzip;q=\xc2\xb2", b"\xc2\xb2", b"bytes=0-1", b"X-Request-Id, Host", b'"', b"a" * 3000,
]  # fmt: skip
WAIT_S = 0.2
"""How long a reply is waited for; a request that was damaged into an incomplete one gets none."""

BODIES = [b"", b"abc", b"{}", b"3\r\nabc\r\n0\r\n\r\n", b"zz\r\n", b"0\r\nX: y\r\n\r\n", b'{"inputs": []}', b"\0" * 100]


def odd_request(rng: random.Random) -> bytes:
    """A request that may or may not be one."""
    method = rng.choice(METHODS) if rng.random() < 0.2 else rng.choice(METHODS[:4])
    target = rng.choice(TARGETS) if rng.random() < 0.5 else b"/v2/models/identity/infer"
    version = rng.choice(VERSIONS) if rng.random() < 0.1 else VERSIONS[0]
    lines = [b" ".join([method, target, version])]
    if rng.random() < 0.95:
        lines.append(b"Host: x")
    lines += [rng.choice(NAMES) + b": " + rng.choice(VALUES) for _ in range(rng.choice([0, 1, 1, 1, 2, 3]))]
    body = rng.choice(BODIES)
    if rng.random() < 0.8:
        lines.append(b"Content-Length: %d" % len(body))
    text = bytearray(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    if rng.random() < 0.15:
        for _ in range(rng.randrange(1, 4)):
            text[rng.randrange(len(text))] = rng.randrange(256)
    return bytes(text)


@pytest.mark.parametrize("seed", range(4))
async def test_odd_requests_get_sound_replies_and_never_a_500(
    client: Client, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rng = random.Random(seed)
    replies = 0
    for _ in range(150):
        request = odd_request(rng)
        async with connect(client.url) as raw:
            raw.writer.write(request)
            try:
                async with asyncio.timeout(WAIT_S):
                    reply = await raw.read_reply(to_head=True)
            except TimeoutError:
                continue  # an incomplete request: its client leaves
        replies += 1
        assert reply.status != 500, request
        if reply.status == 100:
            continue
        assert len(reply.all("x-request-id")) == 1, request
    assert replies > 75
    assert await client.wait_until_idle(5) == 0
    assert client.gateway.gateway.admission.held_bytes == 0
    # the backend behind the gateway is an aiohttp server too, and has lines of its own
    assert [record.getMessage() for record in caplog.records if record.name != "aiohttp.server"] == []
    metrics = await client.metrics()
    assert not any(count for name, count in metrics.items() if 'reason="internal"' in name)
    assert (await client.request("GET", "/v2/health/live")).status == 200
    assert json.loads((await client.request("GET", "/v2")).body)


async def test_a_length_of_very_many_digits_is_refused_in_words(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Python converts 4,300 digits at most, and raises; aiohttp's parser takes any number of zeros."""
    async with connect(client.url) as raw:
        raw.writer.write(b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"0" * 5000 + b"2\r\n\r\n{}")
        async with asyncio.timeout(WAIT_S):
            assert (await raw.read_reply()).status == 400
    assert not [record for record in caplog.records if record.name == "asyncio"]
