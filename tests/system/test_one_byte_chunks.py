"""Bodies in tiny chunks cost others little: what is accepted, what is refused, on both sides.

See docs/architecture.md, "Connections of clients".

A chunk of one byte costs six on the wire. A connection whose chunks carry less than a third of what they cost on the
wire, over any 64 KiB, is refused. Its figures in a table: row 6c of tests/bench.
"""

import asyncio
import json
import ssl
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.bench import chunks, processes
from tests.bench.cases import create, numbers
from tests.certificates import Authority
from tests.conftest import HEADER_LENGTH, running
from tests.system.gateway_process import gateway_process
from tests.system.scripted import CountingBackend, RawReply, Seen, counting, echo, head_of, infer_header, until, wire

KIB = 1024

CHUNKED = {"Transfer-Encoding": "chunked"}

OF_ONE_BYTE = [1]

ACCEPTED = {
    "few of one byte": (OF_ONE_BYTE, 60 * KIB),
    "three bytes": ([3], 350 * KIB),
    "64 bytes": ([64], 350 * KIB),
    "1000 bytes": ([1000], 350 * KIB),
    "tiny ones among large ones": ([1] * 200 + [4 * KIB], 350 * KIB),
    "tiny ones at the end of a large body": ([300 * KIB] + [1] * 2000, 300 * KIB + 12_000),
}
"""The sizes of chunks, again and again, and how many bytes they take on the wire in all."""

REFUSED = {
    "one byte": (OF_ONE_BYTE, 130 * KIB),
    "two bytes": ([2], 130 * KIB),
    "one byte, and for long": (OF_ONE_BYTE, 300 * KIB),
    "tiny ones behind much that was right": ([300 * KIB] + [1] * 30_000, 300 * KIB + 180_000),
    "tiny ones between few large ones": ([1] * 11_500 + [4 * KIB], 300 * KIB),
}
"""At least twice 64 KiB, so that it does not matter where a measured stretch begins; and at most 256 KiB behind the
first stretch, which is what is read of a refused body so that its client gets to see the 400."""

REPLY_S = 20.0
"""A client that waits longer than this was not answered."""


def in_chunks(body: bytes, sizes: list[int], extension: bytes = b"") -> bytes:
    """*body* in chunks of *sizes*, which begin again at their end, and the last chunk."""
    parts, start, number = [], 0, 0
    while start < len(body):
        piece = body[start : start + sizes[number % len(sizes)]]
        parts.append(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece))
        start += len(piece)
        number += 1
    return b"".join(parts) + b"0\r\n\r\n"


def body_bytes(sizes: list[int], wire_bytes: int) -> int:
    """How many bytes of a body chunks of *sizes* carry in *wire_bytes*."""
    cost = carried = number = 0
    while cost < wire_bytes:
        size = sizes[number % len(sizes)]
        cost += len(b"%x" % size) + 4 + size
        carried += size
        number += 1
    return carried


def message(form: str, n_bytes: int) -> tuple[dict[str, object], str, bytes]:
    """Headers, path and body, of some *n_bytes*, of a request that is relayed or infers."""
    if form == "relayed":
        return {}, "/v2/models/m/any?id=1", bytes(np.resize(np.arange(256, dtype=np.uint8), n_bytes))
    array = np.resize(np.arange(256, dtype=np.uint8), n_bytes)
    text = json.dumps(infer_header(array, "UINT8")).encode()
    return {HEADER_LENGTH: len(text)}, "/v2/models/m/infer?id=1", text + array.tobytes()


async def sent(
    url: str,
    form: str,
    sizes: list[int],
    wire_bytes: int,
    extension: bytes = b"",
    trust: ssl.SSLContext | None = None,
) -> RawReply:
    """The reply to a request whose body comes in chunks, which is sent to its end before the reply is read."""
    headers, path, body = message(form, body_bytes(sizes, wire_bytes))
    text = head_of("POST", path, None, {**headers, **CHUNKED}) + in_chunks(body, sizes, extension)
    async with wire(url, trust=trust) as connection, asyncio.timeout(REPLY_S):
        connection.writer.write(text)
        reply = await connection.reply("POST")
        if reply.status == 400:
            assert reply.values("connection") == ["close"]
            assert await connection.reader.read() == b""
        return reply


FORMS = pytest.mark.parametrize("form", ["relayed", "inference"])


@FORMS
@pytest.mark.parametrize("kind", ACCEPTED)
async def test_a_request_in_these_chunks_is_served(kind: str, form: str) -> None:
    async with counting() as backend, running(backend.url) as client:
        reply = await sent(client.url, form, *ACCEPTED[kind])
        assert reply.status == 200, reply.body[:500]
        expected = message(form, body_bytes(*ACCEPTED[kind]))[2]
        if form == "relayed":
            assert backend.seen[0].body == expected
        else:
            assert json.loads(backend.seen[0].body)["inputs"][0]["data"][:5] == [0, 1, 2, 3, 4]
            assert reply.body.endswith(expected[-1000:])


@FORMS
@pytest.mark.parametrize("kind", REFUSED)
async def test_a_request_in_these_chunks_is_refused_and_others_are_served(kind: str, form: str) -> None:
    async with counting() as backend, running(backend.url) as client:
        reply = await sent(client.url, form, *REFUSED[kind])
        assert reply.status == 400, reply.status
        assert "chunk" in json.loads(reply.body)["error"]
        assert not backend.executed
        await until(client, "errors_total", 1, reason="malformed_request")
        await until(client, "in_flight_bytes", 0)
        assert (await sent(client.url, form, *ACCEPTED["few of one byte"])).status == 200


@FORMS
async def test_what_stands_beside_a_chunks_size_counts_too(form: str) -> None:
    async with counting() as backend, running(backend.url) as client:
        reply = await sent(client.url, form, [100], 100 * KIB, b";a=" + b"x" * 300)
        assert reply.status == 400, reply.status
        assert not backend.executed


@pytest.mark.slow
@FORMS
async def test_chunks_that_come_over_tls_are_judged_alike_and_none_is_waited_for_in_vain(
    form: str, authority: Authority, tmp_path: Path
) -> None:
    """What TLS has decrypted and a parser has not read yet is announced by no socket; it depends on the sizes."""
    pair = authority.issue()
    trust = authority.client_context()
    async with counting() as backend:
        text = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {access: none}\nlimits: {body_timeout: 2s}\n"
        text += f"tls: {{certificate: {pair.certificate}, key: {pair.key}}}\n"
        text += f"backends: {{main: {{endpoints: ['{backend.url}']}}}}\n"
        async with gateway_process(text, tmp_path / "gateway.yaml") as gateway:
            for sizes, wire_bytes in ACCEPTED.values():
                assert (await sent(gateway.url, form, sizes, wire_bytes, trust=trust)).status == 200
            several = await asyncio.gather(
                *(sent(gateway.url, form, OF_ONE_BYTE, wire_kib * KIB, trust=trust) for wire_kib in range(130, 256, 12))
            )
            assert [reply.status for reply in several] == [400] * len(several)


# Answers


def answer_text(seen: Seen, form: str, n_bytes: int) -> bytes:
    """An answer of at least *n_bytes*."""
    if form == "relayed":
        return bytes(np.resize(np.arange(256, dtype=np.uint8), n_bytes))
    count = n_bytes // 2 + 1
    data = b",".join([b"7"] * count)
    return b'{"outputs":[{"name":"x","datatype":"UINT8","shape":[%d],"data":[%b]}]}' % (count, data)


async def answered(form: str, sizes: list[int], wire_bytes: int) -> tuple[CountingBackend, RawReply | None, bytes]:
    """What a client gets of an answer in chunks: the reply, or None if the connection ended in it; and the answer."""
    texts = []

    async def behave(seen: Seen) -> bool:
        if seen.id == "2":
            return await echo(seen)
        texts.append(answer_text(seen, form, body_bytes(sizes, wire_bytes)))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        await seen.peer.send(head + in_chunks(texts[0], sizes))
        return True

    async with counting(behave) as backend, running(backend.url) as client:
        async with wire(client.url) as connection, asyncio.timeout(REPLY_S):
            headers, path, body = message(form, 4)
            await connection.send(head_of("POST", path, len(body), headers) + body)
            try:
                reply = await connection.reply("POST")
            except (asyncio.IncompleteReadError, ConnectionError):
                reply = None
        if reply is None or reply.status == 502:
            await until(client, "errors_total", 1, reason="malformed_response")
        await until(client, "in_flight_bytes", 0)
        headers, path, body = message("inference", 4)
        named = {name: str(value) for name, value in headers.items()}
        other = await client.request("POST", path.replace("id=1", "id=2"), data=body, headers=named)
        assert other.status == 200
        return backend, reply, texts[0]


@FORMS
@pytest.mark.parametrize("kind", ACCEPTED)
async def test_an_answer_in_these_chunks_is_passed_on(kind: str, form: str) -> None:
    _, reply, text = await answered(form, *ACCEPTED[kind])
    assert reply is not None
    assert reply.status == 200, reply.body[:500]
    assert reply.body.endswith(text if form == "relayed" else b"\x07" * json.loads(text)["outputs"][0]["shape"][0])


@FORMS
@pytest.mark.parametrize("kind", REFUSED)
async def test_an_answer_in_these_chunks_is_refused_and_its_connection_ends(kind: str, form: str) -> None:
    backend, reply, _ = await answered(form, *REFUSED[kind])
    status = reply.status if reply is not None else "broken off"
    # a reply that is relayed may have begun before
    assert status == 502 or (form == "relayed" and status == "broken off"), status
    assert len(backend.peers) == 2
    assert backend.executed == {"1": 1, "2": 1}


# What others wait for


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chunks.Attack]:
    folder: Path = tmp_path_factory.mktemp("attacked")
    cases = folder / "cases"
    cases.mkdir()
    small = create(cases, "small", numbers("FP32", (1, 16)))
    with processes.start_backends(cases, folder) as own, chunks.attack(small, own, folder) as attack:
        yield attack


@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
@pytest.mark.parametrize("connections", [20, 100])
@pytest.mark.parametrize("way", chunks.WAYS)
def test_others_wait_at_most_three_times_as_long_as_beside_bodies_in_one_piece(
    attacked: chunks.Attack, way: str, connections: int
) -> None:
    rounds = [
        (
            attacked.spent_ms(way, connections, is_tiny=True),
            attacked.spent_ms(way, connections, is_tiny=False),
        )
        for _ in range(5)
    ]
    ratio = statistics.median(tiny_ms / whole_ms for tiny_ms, whole_ms in rounds)
    assert ratio <= 3, f"{ratio:.1f} times: {rounds}"
