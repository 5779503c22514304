"""Heads of answers: what is taken from them, what is refused, and which of their fields cross, as lines."""

import asyncio
import random

import pytest
from aiohttp.http import RawResponseMessage

from gateway.backend.arriving import AnswerHead
from gateway.http1 import Heads, Incoming, Phase
from gateway.policy.crossing import Fields, transcoded_lines, transcoded_to_client

UVICORN = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 22:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 5\r\n"
    b"content-type: application/json\r\n\r\n"
)
MLSERVER = UVICORN[:-2] + b"ce-specversion: 0.3\r\nce-id: 0b6f\r\nce-requestid: 0b6f\r\n\r\n"
NGINX = (
    b"HTTP/1.1 200 Fine\r\nServer: nginx/1.27\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
    b'Connection: keep-alive\r\nETag: "1"\r\nX_Odd: 1\r\nContent_Length: 5\r\nSet-Cookie: a=b; c\r\nX.Hop: 1\r\n\r\n'
)
NAMING = b"HTTP/1.1 200 OK\r\nX-Hop: 1\r\nconnection: x-hop, Date\r\nDate: now\r\nX-End: 2\r\ncontent-length: 5\r\n\r\n"
TWICE = b"HTTP/1.1 200 OK\r\nConnection: close\r\nX-A: 1\r\nConnection: x-a\r\nX-A: 2\r\nX_A: 3\r\nServer: s\r\n\r\n"
OURS = b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nX_Request_Id: 2\r\nX-Reason: gr\xc3\xbc\xc3\x9fe\tb\r\n\r\n"
NOTHING = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: 1\r\nETag: 1\r\n\r\n"
HEADS = [UVICORN, MLSERVER, NGINX, NAMING, TWICE, OURS, NOTHING]


def parsed(text: bytes, method: str = "GET") -> AnswerHead:
    found = Incoming(Heads(asyncio.get_running_loop(), 65536, is_for_requests=False)).feed_head(text)
    assert found is not None
    message, _ = found
    assert isinstance(message, RawResponseMessage)
    return AnswerHead(message, method)


def crossing(head: AnswerHead) -> Fields:
    """What the lines hold, as fields."""
    text = transcoded_lines(head.headers)
    if not text:
        return []
    return [(name, value) for name, _, value in (line.partition(": ") for line in text.split("\r\n"))]


def expected(head: AnswerHead) -> Fields:
    """What crosses but for the name of the request, in either spelling."""
    crossing = transcoded_to_client(head.headers)
    return [field for field in crossing if field[0].lower().replace("_", "-") != "x-request-id"]


@pytest.mark.parametrize("text", HEADS)
async def test_lines_are_the_fields_that_cross_but_for_the_name_of_the_request(text: bytes) -> None:
    head = parsed(text)
    assert head.defect is None
    assert crossing(head) == expected(head)
    assert crossing(head) == expected(head)  # they may be asked for again


@pytest.mark.parametrize("seed", range(4))
async def test_lines_of_any_fields_are_those_that_cross(seed: int) -> None:
    rng = random.Random(seed)
    lines = [line for text in HEADS for line in text.split(b"\r\n")[1:-2] if not line.lower().startswith(b"content-l")]
    for _ in range(300):
        head = parsed(b"\r\n".join([b"HTTP/1.1 200 OK", *rng.choices(lines, k=rng.randrange(9)), b"", b""]))
        assert crossing(head) == expected(head)


async def test_what_decides_how_an_answer_is_read_is_noted() -> None:
    head = parsed(NGINX)
    assert (head.code, head.reason, head.length, head.phase) == (200, "Fine", 5, Phase.SIZED)
    head = parsed(b"HTTP/1.1 206 \xff\r\nTransfer-Encoding : chunked\r\nContent-Encoding: gzip\r\n\r\n")
    assert (head.code, head.reason, head.length, head.phase) == (206, "", None, Phase.CHUNKED)
    assert head.headers.get("transfer-encoding") == "chunked"


@pytest.mark.parametrize(
    ("status", "field", "method", "ends"),
    [
        (b"200 OK", b"Content-Length: 5", "GET", False),
        (b"200 OK", b"Transfer-Encoding: chunked", "GET", False),
        (b"200 OK", b"X-A: 1", "GET", True),
        (b"200 OK", b"Connection: close", "GET", True),
        (b"500 Oh", b"Content-Length: 5", "GET", True),
        (b"503 Oh", b"Content-Length: 5", "GET", False),
        (b"204 No", b"X-A: 1", "GET", False),
        (b"204 No", b"Content-Length: 0", "GET", False),
        (b"204 No", b"Content-Length: 5", "GET", True),
        (b"304 No", b"Transfer-Encoding: chunked", "GET", True),
        (b"200 OK", b"Content-Length: 5", "HEAD", True),
        (b"200 OK", b"Content-Length: 0", "HEAD", False),
    ],
)
async def test_which_answers_are_the_last_of_their_connection(
    status: bytes, field: bytes, method: str, ends: bool
) -> None:
    head = parsed(b"HTTP/1.1 %b\r\n%b\r\n\r\n" % (status, field), method)
    assert (head.is_last, head.phase is Phase.DONE) == (ends, method == "HEAD" or status[:3] in (b"204", b"304"))


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"HTTP/1.1 777 No\r\n\r\n", "status 777"),
        (b"HTTP/1.1 099 No\r\n\r\n", "status 099"),
        (b"HTTP/1.1 101 No\r\n\r\n", "status 101; expected"),
        (b"HTTP/1.1 200 OK\r\nX-A: a\x01\r\n\r\n", "control character"),
        (b"HTTP/1.1 200 OK\r\nX-A: a\x7fb\r\n\r\n", "control character"),
        (b"HTTP/1.1 200 OK\r\nETag: \xff\r\n\r\n", "not UTF-8"),
        (b"HTTP/1.1 200 OK\r\nX-A: a\xc3\r\nX-B: \xbcb\r\n\r\n", "not UTF-8"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "'gzip'"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n", "''"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n", "at most 9223372036854775807"),
    ],
)
async def test_defects_are_said_in_words(head: bytes, words: str) -> None:
    assert words in (parsed(head).defect or "")
