"""Bodies of clients: read, relayed, invited, reserved, dropped."""

import asyncio
import gzip
import time

import pytest

from gateway.client.body import ClientBody, _look
from gateway.client.reply import Reply
from gateway.client.request import DROP_BYTES, ClientRequest
from gateway.config import Size
from gateway.errors import ErrorKind, GatewayError
from gateway.pacing import SLICE_S, Pacer
from gateway.policy.admission import LOOK_S, SMALL_BYTES, Admission, Claim, Reservation
from gateway.policy.slowness import Upload
from tests.client.raw import connect, echo, replying, serving

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"


def post(body: bytes, length: int | None = None, extra: bytes = b"") -> bytes:
    """A request with *body*, maybe a part of what it announces."""
    announced = len(body) if length is None else length
    return b"POST /a HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (extra, announced, body)


CHUNKED = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_others_run_while_a_body_is_read_that_is_all_there() -> None:
    """In chunks of one byte, reading takes long and never has to wait."""
    n_turns = 0

    async def others() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    async def read(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        beside = asyncio.create_task(others())
        n_pieces = 0
        async for _ in body.chunks():
            n_pieces += 1
            until = time.perf_counter() + 2 * SLICE_S
            while time.perf_counter() < until:
                pass
        beside.cancel()
        seen.append((n_pieces, n_turns))
        await reply.whole(200, [], (b"",))

    seen: list[tuple[int, int]] = []
    async with serving(read) as running, connect(running.url) as client:
        assert (await client.exchange(CHUNKED + b"4\r\nxxxx\r\n" * 40_000 + b"0\r\n\r\n")).status == 200
    ((n_pieces, turns),) = seen
    assert turns >= n_pieces - 1 > 0  # between the pieces


@pytest.mark.parametrize("size", [0, 1, 70_000, 1_000_000])
async def test_a_body_is_read_whole_however_it_comes(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    async with serving(echo) as running, connect(running.url) as client:
        assert (await client.exchange(post(body))).body == b"POST /a " + body
        head, _, rest = post(body).partition(b"\r\n\r\n")
        client.writer.write(head + b"\r\n\r\n")
        while len(running.requests) < 2:
            await asyncio.sleep(0)
        client.writer.write(rest)
        assert (await client.read_reply()).body == b"POST /a " + body
        pieces = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        assert (await client.exchange(CHUNKED + chunks + b"0\r\n\r\n")).body == b"POST /a " + body
        assert [exchange.client_request_bytes for exchange in running.exchanges] == [size] * 3


@pytest.mark.parametrize(("pieces", "expected"), [([b"body"], 0), ([b"bo", b"dy"], 1)])
async def test_a_body_that_has_come_to_its_end_waits_for_nobody(
    pieces: list[bytes], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a wait for the client, `breathe` takes a turn behind every large request: a small body is spared that."""
    n_breaths = 0

    async def breathe(pacer: Pacer) -> None:
        nonlocal n_breaths
        n_breaths += 1

    begun = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        begun.set()
        with monkeypatch.context() as patched:
            patched.setattr(Pacer, "breathe", breathe)
            whole = await body.read()
        await reply.whole(200, [], (bytes(whole),))

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(post(b"", 4))
        await begun.wait()
        for piece in pieces:
            client.writer.write(piece)
            for _ in range(5):
                await asyncio.sleep(0)
        assert (await client.read_reply()).body == b"body"
        assert n_breaths == expected


async def test_a_compressed_body_is_inflated_and_counted_as_it_came() -> None:
    packed = gzip.compress(bytes(100_000))
    async with serving(echo) as running, connect(running.url) as client:
        reply = await client.exchange(post(packed, extra=b"Content-Encoding: gzip\r\n"))
        assert reply.body == b"POST /a " + bytes(100_000)
        assert (await running.exchange()).client_request_bytes == len(packed)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post(b"", 1001), 413),
        (CHUNKED + b"3e9\r\n" + bytes(1001) + b"\r\n0\r\n\r\n", 413),
        (post(gzip.compress(bytes(2000)), extra=b"Content-Encoding: gzip\r\n"), 413),
        (post(b"x", extra=b"Content-Encoding: gzip\r\n"), 400),
        (post(b"x", extra=b"Content-Encoding: br\r\n"), 415),
        (post(b"x", extra=b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n"), 415),
        (CHUNKED + b"zz\r\n", 400),
    ],
)
async def test_a_body_that_cannot_be_read_is_refused(request_: bytes, status: int) -> None:
    async with serving(echo, max_bytes=1000) as running, connect(running.url) as client:
        reply = await client.exchange(request_)
        assert (reply.status, bool(reply.error)) == (status, True)


LARGER = "the body has more than 1048576 bytes, limits.request_body is 1048576"
INFLATED = "the body is larger than 1048576 bytes after decompression (limits.request_body)"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (post(b"", 2_000_000), "the body has 2000000 bytes, limits.request_body is 1048576"),
        (CHUNKED + b"100001\r\n" + bytes(0x100001) + b"\r\n0\r\n\r\n", LARGER),
        (post(gzip.compress(bytes(2_000_000)), extra=b"Content-Encoding: gzip\r\n"), INFLATED),
    ],
)
async def test_a_limit_with_a_unit_is_said_in_bytes(request_: bytes, words: str) -> None:
    async with serving(echo, max_bytes=Size(1024**2)) as running, connect(running.url) as client:
        assert (await client.exchange(request_)).error == words


async def test_an_overload_says_which_limits_are_reached_and_how_much_is_in_flight() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        admission = Admission(Size(1024**2), 10)
        first, second = (replying(request, exchange, admission=admission) for exchange in [body._exchange] * 2)
        with pytest.raises(GatewayError) as caught:
            await first.admit(2_000_000)
        said.append(str(caught.value))
        await first.admit(1000)
        await second.admit(1000)
        with pytest.raises(GatewayError) as caught:
            second.reserve(2_000_000)
        said.append(str(caught.value))
        await reply.whole(200, [], (b"",))

    said: list[str] = []
    async with serving(serve) as running, connect(running.url) as client:
        assert (await client.exchange(GET)).status == 200
    assert said == [
        "too busy: a request that needs 2000000 bytes has no room beside 0 of 10 requests "
        "(limits.concurrent_requests) and 0 of 1048576 bytes (limits.in_flight_bytes) in flight; try again",
        "too busy: a request that needs 2001000 bytes has no room beside 2 of 10 requests "
        "(limits.concurrent_requests) and 2000 of 1048576 bytes (limits.in_flight_bytes) in flight; try again",
    ]


async def test_the_first_part_of_a_relayed_body_is_waited_for_and_the_rest_streams() -> None:
    seen: list[bytes] = []
    is_first_read = asyncio.Event()

    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        first = await body.read_first(1000)
        seen.append(first)
        assert not body.at_end
        is_first_read.set()
        seen.extend([chunk async for chunk in body.chunks()])
        assert body.at_end
        await reply.whole(200, [], (b"",))

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(post(b"a" * 500, 2000))
        while not running.requests:
            await asyncio.sleep(0)
        assert not is_first_read.is_set()
        client.writer.write(b"b" * 500)
        await is_first_read.wait()
        assert seen == [b"a" * 500 + b"b" * 500]
        assert (await client.exchange(b"c" * 1000)).status == 200
        assert b"".join(seen) == b"a" * 500 + b"b" * 500 + b"c" * 1000
        assert (await running.exchange()).client_request_bytes == 2000


@pytest.mark.parametrize("body", [b"", b"abc"])
async def test_a_body_that_ends_before_is_read_to_its_end(body: bytes) -> None:
    async def serve(request: ClientRequest, reading: ClientBody, reply: Reply) -> None:
        first = await reading.read_first(1000)
        assert reading.at_end
        await reply.whole(200, [], (first,))

    async with serving(serve) as running, connect(running.url) as client:
        assert (await client.exchange(post(body))).body == body
        assert (await client.exchange(CHUNKED + b"3\r\nabc\r\n0\r\n\r\n")).body == b"abc"


async def test_a_client_that_waits_for_its_invitation_gets_it_once() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await echo(request, body, reply)

    async with serving(serve) as running, connect(running.url) as client:
        client.writer.write(post(b"", 3, b"Expect: 100-Continue\r\n"))
        assert (await client.read_reply()).status == 100
        assert (await client.exchange(b"abc")).body == b"POST /a abc"
        assert (await client.exchange(GET)).status == 200


async def test_reserving_more_than_there_is_room_for_is_refused_and_everything_given_back() -> None:
    async def serve(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await body.admit(1 << 23)
        body.reserve(1 << 22)
        body.hold_answer(100)
        with pytest.raises(GatewayError, match="has no room") as caught:
            body.reserve(1 << 23)
        assert body.admission.held_bytes == (1 << 23) + (1 << 22) + 100
        body.admission.max_bytes = 0
        body.reserve(SMALL_BYTES)  # so little is not worth a request that is there
        with pytest.raises(GatewayError, match="has no room"):
            body.reserve(1)
        assert body.admission.held_bytes == (1 << 23) + (1 << 22) + 100 + SMALL_BYTES
        body.release()
        body.release()
        assert (body.admission.held_bytes, body.admission.requests) == (0, 0)
        raise caught.value

    async with serving(serve) as running, connect(running.url) as client:
        reply = await client.exchange(GET)
        assert (reply.status, reply.all("retry-after")) == (503, ["1"])
        assert (await running.exchange()).error is ErrorKind.OVERLOADED


async def test_a_client_that_does_not_wait_for_its_invitation_gets_none_in_the_middle_of_its_reply() -> None:
    async def relay(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
        await reply.begin(200, [], 4)
        await reply.write(await body.read_first(2))
        async for chunk in body.chunks():
            await reply.write(chunk)
        await reply.end()

    async with serving(relay) as running, connect(running.url) as client:
        client.writer.write(post(b"ab", 4, b"Expect: 100-continue\r\n"))
        assert (await client.read_reply(to_head=True)).status == 200
        assert await client.reader.readexactly(2) == b"ab"
        client.writer.write(b"cd")
        assert await client.reader.readexactly(2) == b"cd"
        assert (await client.exchange(post(b"abcd"))).body == b"abcd"


async def test_a_claim_gets_its_verdict_although_the_loop_stands_still_all_the_time() -> None:
    async def stand_still() -> None:
        while True:
            time.sleep(3 * LOOK_S)  # noqa: ASYNC251  on purpose
            await asyncio.sleep(0)

    now_s = asyncio.get_running_loop().time()
    admission, upload, verdict = Admission(100, 10), Upload(), asyncio.Event()
    Reservation(admission).take(80)
    slow = Reservation(admission)
    upload.begin_waiting(now_s)
    slow.begin_upload(upload, lambda words: None)
    claim = Claim(Reservation(admission), 50, 0, now_s + LOOK_S, bool, verdict.set)
    assert admission.wait(claim, now_s)
    tasks = [asyncio.create_task(stand_still()), asyncio.create_task(_look(admission))]
    try:
        await asyncio.wait_for(verdict.wait(), 20 * LOOK_S)
    finally:
        for task in tasks:
            task.cancel()
    assert claim.is_granted is False


async def refuse(request: ClientRequest, body: ClientBody, reply: Reply) -> None:
    raise GatewayError(ErrorKind.NO_ROUTE, "no route")


async def test_after_a_small_refused_body_the_connection_goes_on() -> None:
    async with serving(refuse) as running, connect(running.url) as client:
        client.writer.write(post(b"", DROP_BYTES))
        assert (await client.read_reply()).all("connection") == []
        client.writer.write(bytes(DROP_BYTES))
        assert (await client.exchange(GET)).status == 404


@pytest.mark.parametrize(
    "head",
    [
        post(b"", DROP_BYTES + 1),
        post(b"", 10, b"Expect: 100-continue\r\n"),
        CHUNKED,
    ],
)
async def test_after_a_refused_body_of_unknown_size_or_a_large_one_the_connection_is_closed(head: bytes) -> None:
    async with serving(refuse) as running, connect(running.url) as client:
        assert (await client.exchange(head)).all("connection") == ["close"]
        assert await client.is_closed()
