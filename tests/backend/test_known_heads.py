"""Heads of answers that are recognized without parsing."""

import asyncio
import itertools
import random
import re
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpResponseParser

import gateway.backend.wire
from gateway.backend import known_heads
from gateway.backend.attempt import Answer, BackendRequest, Body
from gateway.backend.known_heads import LEARNING_S, MAX_HEAD_BYTES, MAX_KINDS, KnownHead, KnownHeads
from gateway.backend.wire import HELD_BYTES, LostError, NotHttpError, Wire
from gateway.headers import Headers
from gateway.policy.crossing import Fields, transcoded_to_client
from tests.backend.sockets import INTERIM, Backend, Ending, calling, listening, read_whole
from tests.backend.waiting import turns

UVICORN = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 22:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 5\r\n"
    b"content-type: application/json\r\n\r\n"
)
MLSERVER = UVICORN[:-2] + b"ce-specversion: 0.3\r\nce-id: 0b6f\r\nce-requestid: 0b6f\r\n\r\n"
NGINX = (
    b"HTTP/1.1 200 Fine\r\nServer: nginx/1.27\r\nContent-Type: application/json\r\nContent-Length: 5\r\n"
    b'Connection: keep-alive\r\nETag: "1"\r\nX_Odd: 1\r\nSet-Cookie: a=b; c\r\nX.Hop: 1\r\n\r\n'
)
NAMING = b"HTTP/1.1 200 OK\r\nX-Hop: 1\r\nconnection: x-hop\r\nX-End: 2\r\ncontent-length: 5\r\n\r\n"
SHORTEST = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
KINDS = [UVICORN, MLSERVER, NGINX, NAMING, SHORTEST]


def fields_of(head: bytes) -> Headers:
    lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:-2]]
    return Headers([(name, value.strip(" ")) for name, _, value in lines])


def learn(known: KnownHeads, head: bytes, now_s: float) -> None:
    reason = head.decode("latin-1").partition("\r\n")[0].partition(" 200 ")[2]
    known.learn(reason, fields_of(head), now_s)


def knowing(*heads: bytes) -> KnownHeads:
    known = KnownHeads()
    for number, head in enumerate(heads):
        learn(known, head, number * LEARNING_S)
    return known


def other_values(head: bytes, rng: random.Random) -> bytes:
    """*head* with other values, but for those that say how its answer is to be read."""
    lines = head.split(b"\r\n")
    for number, line in enumerate(lines[1:-2], 1):
        name, _, _ = line.partition(b": ")
        if name.lower() not in (b"content-length", b"connection"):
            value = bytes(rng.choices(range(0x21, 0x7F), k=rng.choice([1, 2, 36])))
            lines[number] = name + b": " + rng.choice([value, value + b"  " + value])
    return b"\r\n".join(lines)


def crossing_of(head: KnownHead) -> Fields:
    """What the lines hold that cross, as fields; what is said of them is compared here."""
    lines = head.transcoded_lines()
    if lines is None:
        return []
    assert lines.text.isascii()
    each = [line.partition(": ") for line in lines.text.split("\r\n")]
    assert all(name and blank and value for name, blank, value in each)
    fields = [(name, value) for name, _, value in each]
    names = {name.lower() for name, _ in fields}
    assert lines.n_lines == len(fields)
    assert lines.has_server == ("server" in names)
    assert lines.has_date == ("date" in names)
    return fields


def with_length(head: bytes, n_bytes: int) -> bytes:
    return re.sub(rb"(?i)(content-length: )\d+", rb"\g<1>%d" % n_bytes, head)


@pytest.mark.parametrize("head", KINDS)
def test_head_of_a_known_kind_is_recognized_with_other_values(head: bytes) -> None:
    known = knowing(*KINDS)
    rng = random.Random(0)
    for n_bytes in (0, 5, 10, 99_999):
        other = with_length(other_values(head, rng), n_bytes)
        found = known.recognize(other + b"body: 1\r\n\r\n")
        assert found is not None
        assert (found.code, found.n_bytes, found.length) == (200, len(other), n_bytes)
        assert found.reason == ("Fine" if head is NGINX else "OK")
        fields = Headers([(name.decode(), value.decode()) for name, value in found.raw_headers])
        assert fields.pairs == fields_of(other).pairs
        assert crossing_of(found) == transcoded_to_client(fields)


LENGTH = b"content-length: 5"
ODD = {
    "signed": (LENGTH, b"content-length: +5"),
    "negative": (LENGTH, b"content-length: -5"),
    "two numbers": (LENGTH, b"content-length: 5 5"),
    "list": (LENGTH, b"content-length: 5, 5"),
    "leading zero": (LENGTH, b"content-length: 05"),
    "two zeros": (LENGTH, b"content-length: 00"),
    "six digits": (LENGTH, b"content-length: 123456"),
    "no digits": (LENGTH, b"content-length: "),
    "other digits": (LENGTH, "content-length: \u0665".encode()),
    "blank before the colon": (LENGTH, b"content-length : 5"),
    "no blank behind the colon": (LENGTH, b"content-length:5"),
    "two blanks": (LENGTH, b"content-length:  5"),
    "tab": (LENGTH, b"content-length:\t5"),
    "blank behind the length": (LENGTH, b"content-length: 5 "),
    "folded": (LENGTH, b"content-length: 5\r\n 5"),
    "two lengths": (LENGTH, b"content-length: 5\r\ncontent-length: 5"),
    "other case": (LENGTH, b"Content-Length: 5"),
    "strength": (LENGTH, b"X-Strength: 5"),
    "coded too": (LENGTH, b"content-length: 5\r\ntransfer-encoding: chunked"),
    "coded": (LENGTH, b"transfer-encoding: chunked"),
    "closing": (LENGTH, b"content-length: 5\r\nconnection: close"),
    "missing field": (b"server: uvicorn\r\n", b""),
    "other field": (b"server:", b"servers:"),
    "other order": (b"server: uvicorn\r\n" + LENGTH, LENGTH + b"\r\nserver: uvicorn"),
    "other reason": (b"200 OK", b"200 Fine"),
    "no reason": (b"200 OK", b"200"),
    "other status": (b"200 OK", b"201 OK"),
    "error": (b"200 OK", b"500 OK"),
    "old version": (b"HTTP/1.1", b"HTTP/1.0"),
    "empty value": (b"uvicorn", b""),
    "blank behind a value": (b"uvicorn", b"uvicorn "),
    "control": (b"uvicorn", b"uvi\x01corn"),
    "deleted": (b"uvicorn", b"uvi\x7fcorn"),
    "null": (b"uvicorn", b"uvi\x00corn"),
    "tab in a value": (b"uvicorn", b"uvi\tcorn"),
    "not ASCII": (b"uvicorn", "uvicörn".encode()),
    "not UTF-8": (b"uvicorn", b"uvi\xffcorn"),
    "folded value": (b"uvicorn", b"uvi\r\n corn"),
    "line end": (b"uvicorn\r\n", b"uvicorn\n"),
    "return alone": (b"uvicorn", b"uvi\rcorn"),
    "blank line before": (b"HTTP/1.1", b"\r\nHTTP/1.1"),
    "interim": (b"HTTP/1.1", INTERIM + b"HTTP/1.1"),
    "no end": (b"\r\n\r\n", b"\r\n\r"),
}


@pytest.mark.parametrize("odd", ODD)
def test_head_that_differs_in_more_than_open_values_is_not_recognized(odd: str) -> None:
    assert UVICORN.count(ODD[odd][0]) == 1
    known = knowing(UVICORN)
    assert known.recognize(UVICORN) is not None
    assert known.recognize(UVICORN.replace(*ODD[odd])) is None


@pytest.mark.parametrize("reason", ["\udcff", "\u00e9", "a\tb"])
def test_nothing_is_learned_from_a_head_whose_reason_is_not_passed_on(reason: str) -> None:
    known = KnownHeads()
    known.learn(reason, fields_of(UVICORN), 0.0)
    assert known._kinds == []


@pytest.mark.parametrize("odd", ["two lengths", "strength", "coded", "coded too", "six digits", "two numbers"])
def test_nothing_is_learned_from_a_head_that_may_not_be_recognized(odd: str) -> None:
    head = UVICORN.replace(*ODD[odd])
    known = knowing(head)
    assert known._kinds == [] or odd == "two numbers"
    assert known.recognize(head) is None


@pytest.mark.parametrize("name", sorted(known_heads._UNFIT))
def test_head_with_a_field_that_says_how_to_read_its_answer_is_not_learned(name: str) -> None:
    assert knowing(UVICORN.replace(b"server", name.title().encode()))._kinds == []


@pytest.mark.parametrize(("head", "value"), [(NGINX, b"close"), (NGINX, b"Keep-Alive"), (NAMING, b"x-end")])
def test_head_with_another_value_of_connection_is_not_recognized(head: bytes, value: bytes) -> None:
    other = re.sub(rb"(?i)(connection: )[^\r]+", rb"\g<1>" + value, head)
    assert other != head
    assert knowing(head).recognize(other) is None


def test_lines_for_the_client_are_without_a_name_of_the_request() -> None:
    found = knowing(UVICORN.replace(b"server:", b"X-Request-Id:")).recognize(
        UVICORN.replace(b"server: uvicorn", b"X-Request-Id: 1")
    )
    assert found is not None
    assert crossing_of(found) == [("date", "Sat, 21 Nov 2026 22:00:00 GMT")]


def test_names_are_taken_as_they_are_and_not_as_patterns() -> None:
    known = knowing(NGINX)
    assert known.recognize(NGINX.replace(b"X.Hop", b"X-Hop")) is None


def numbered(number: int) -> bytes:
    return UVICORN.replace(b"server", b"server-%d" % number)


def test_so_many_kinds_are_remembered_and_the_one_not_seen_for_longest_makes_room() -> None:
    known = knowing(*map(numbered, range(MAX_KINDS)))
    assert len(known._kinds) == MAX_KINDS
    assert known.recognize(numbered(0)) is not None
    learn(known, numbered(MAX_KINDS), 100.0)
    assert len(known._kinds) == MAX_KINDS
    assert known.recognize(numbered(1)) is None
    assert all(known.recognize(numbered(number)) for number in (0, *range(2, MAX_KINDS + 1)))


def test_a_kind_is_remembered_once() -> None:
    assert len(knowing(UVICORN, with_length(UVICORN, 7), UVICORN)._kinds) == 1


def test_within_a_second_one_kind_is_learned() -> None:
    known = knowing(UVICORN)
    learn(known, MLSERVER, LEARNING_S / 2)
    assert known.recognize(MLSERVER) is None
    learn(known, MLSERVER, LEARNING_S)
    assert known.recognize(MLSERVER) is not None


def test_long_heads_are_neither_learned_nor_recognized() -> None:
    long = UVICORN.replace(b"uvicorn", b"u" * MAX_HEAD_BYTES)
    known = knowing(long)
    assert known._kinds == []
    learn(known, UVICORN, 100.0)
    assert known.recognize(long) is None
    fitting = UVICORN.replace(b"uvicorn", b"u" * (MAX_HEAD_BYTES - len(UVICORN) + len(b"uvicorn")))
    assert len(fitting) == MAX_HEAD_BYTES
    assert known.recognize(fitting) is not None


@pytest.mark.parametrize(
    "fields",
    [b"".join(b"x-%d: 1\r\n" % number for number in range(100)), b"x" * 2000 + b": 1\r\n"],
    ids=["many names", "a long name"],
)
def test_heads_whose_pattern_takes_long_to_compile_are_not_learned(fields: bytes) -> None:
    head = UVICORN.replace(b"\r\n", b"\r\n" + fields, 1)
    assert len(head) < MAX_HEAD_BYTES
    known = knowing(head)
    assert known._kinds == []
    learn(known, UVICORN.replace(b"uvicorn", b"u" * 2000), 100.0)  # values are not in the pattern
    assert known.recognize(UVICORN) is not None


# Over connections


@pytest.mark.parametrize(
    ("method", "head", "is_held"),
    [
        ("HEAD", UVICORN, True),
        ("POST", UVICORN, False),
        ("POST", UVICORN.replace(b"200 OK", b"201 Created"), True),
        ("POST", UVICORN.replace(b"200 OK", b"204 No Content"), True),
        ("POST", SHORTEST.replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"OK", b"OK\r\nConnection: keep-alive"), True),
        ("POST", UVICORN.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"), True),
    ],
    ids=["HEAD", "not held", "201", "204", "HTTP/1.0", "closing"],
)
async def test_only_an_answer_200_of_a_lasting_connection_that_is_read_whole_is_learned_from(
    method: str, head: bytes, is_held: bool
) -> None:
    known = KnownHeads()
    async with listening(method, known) as wire:
        if is_held:
            wire.hold(lambda status: None)
        wire.data_received(head + (b"" if method == "HEAD" or b" 204 " in head else b"body!"))
        message, _ = await wire.read_head()
        wire.learn(message, fields_of(head))
    assert known._kinds == []


@pytest.mark.parametrize(("method", "is_held"), [("HEAD", True), ("POST", False)])
async def test_heads_are_recognized_only_where_the_body_is_wanted_with_them(method: str, is_held: bool) -> None:
    async with listening(method, knowing(UVICORN)) as wire:
        if is_held:
            wire.hold(lambda status: None)
        wire.data_received(UVICORN)
        message, _ = await wire.read_head()
        assert not isinstance(message, KnownHead)


async def test_a_longer_body_than_is_held_is_read_by_the_parser() -> None:
    for n_bytes in (HELD_BYTES, HELD_BYTES + 1):
        async with listening("POST", knowing(UVICORN)) as wire:
            wire.hold(lambda status: None)
            wire.data_received(with_length(UVICORN, n_bytes) + bytes(n_bytes))
            message, reader = await wire.read_head()
            assert isinstance(message, KnownHead) == (n_bytes == HELD_BYTES)
            assert len(await wire.read_body(reader)) == n_bytes
            assert await wire.read_body(reader) == b""


async def test_a_body_that_came_in_many_pieces_and_is_cut_off_is_parsed_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr(Wire, "_parse_piece", lambda wire, data: parsed.append(data))
    async with listening("POST", knowing(UVICORN)) as wire:
        wire.hold(lambda status: None)
        pieces = [with_length(UVICORN, HELD_BYTES), *([b"x"] * (HELD_BYTES - 1))]
        for piece in pieces:
            wire.data_received(piece)
        wire.abort()
    assert parsed == [b"".join(pieces)]


async def test_bytes_sent_before_the_request_are_no_answer_although_their_head_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Wire, "_was_sent_before_the_request", lambda wire: True)
    async with listening("POST", knowing(UVICORN)) as wire:
        wire.hold(lambda status: None)
        wire.data_received(UVICORN + b"body!")
        assert wire.should_close
        assert not wire._buffer


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> list[HttpResponseParser]:
    """The parsers that are made."""
    made: list[HttpResponseParser] = []

    def make(protocol: BaseProtocol, loop: asyncio.AbstractEventLoop, limit: int, **options: Any) -> HttpResponseParser:
        made.append(HttpResponseParser(protocol, loop, limit, **options))
        return made[-1]

    monkeypatch.setattr(gateway.backend.wire, "HttpResponseParser", make)
    return made


async def serve(backend: Backend, pieces: list[bytes]) -> None:
    """Answer one request on the last connection in *pieces*, each of which is received for itself."""
    connection = backend.connections[-1]
    await backend.read_request(connection)
    for piece in pieces:
        await asyncio.get_running_loop().sock_sendall(connection, piece)
        await turns()


ANSWERS = [
    (UVICORN + b"first", b"first"),
    (with_length(UVICORN, 6) + b"second", b"second"),
    (with_length(UVICORN, 0), b""),
    (UVICORN + b"third", b"third"),
]


@pytest.mark.parametrize("n_pieces", [1, 2, 4])
async def test_one_parser_reads_all_answers_of_a_kind_over_one_connection(
    n_pieces: int, parsers: list[HttpResponseParser]
) -> None:
    async with calling("keep_alive: 1m") as (backend, upstream):
        heads: list[tuple[object, ...]] = []

        async def read(answer: Answer) -> bytes:
            answer.refuse_encoded()
            length = answer.content_length
            taken = answer.take_arrived(1)  # too long, but for the empty one
            assert (taken is None) == bool(length)
            text = await read_whole(answer) if taken is None else taken
            fields = answer.headers
            assert answer.transcoded_headers() == transcoded_to_client(fields)
            heads.append((answer.status, answer.reason, length, fields.get("content-length"), fields.get("server")))
            return text

        for number, (text, body) in enumerate(ANSWERS):
            request = BackendRequest("POST", "/x", [], Body(whole=b"x"), is_read_whole=True)
            asked = asyncio.ensure_future(upstream.call(request, [], read))
            if not number:
                await backend.accept()
            end = text.index(b"\r\n\r\n") + 4
            cuts = [end, *range(end + 1, min(len(text), end + n_pieces - 1))][: n_pieces - 1]
            await serve(backend, [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])])
            assert await asked == body
            n_bytes = len(body)
            assert heads[-1] == (200, "OK", n_bytes, str(n_bytes), "uvicorn")
        assert len(backend.connections) == len(parsers) == 1


# The law: whatever comes, it is read as it is where nothing is known


class NothingKnown(KnownHeads):
    """Never learns."""

    def learn(self, reason: str, headers: Headers, now_s: float) -> None:
        return


def random_answer(rng: random.Random) -> bytes:
    """What a backend sends for one request: mostly one small answer, sometimes more, less, damaged, or another kind."""
    text = INTERIM * rng.choice([0] * 9 + [1])
    for _ in range(rng.choice([1] * 8 + [2])):
        body = rng.randbytes(rng.choice([0, 1, 5, 5, 300, HELD_BYTES, HELD_BYTES + 1]))
        head = with_length(other_values(rng.choice(KINDS), rng), len(body))
        if rng.random() < 0.1:
            head = head.replace(b"200", rng.choice([b"204", b"404", b"201"]))
        if rng.random() < 0.1:
            head = re.sub(rb"(?i)content-length: \d+", b"Transfer-Encoding: chunked", head)
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        if rng.random() < 0.1:
            head = head.replace(b"\r\n", b"\r\nConnection : " + rng.choice([b"keep-alive", b"close"]) + b"\r\n", 1)
        text += head + body
    if rng.random() < 0.2:
        text += rng.choice([b"\r\n", b"H", b"HTTP/1.1 200 OK\r\n", b"x", INTERIM, bytes(5000)])
    if rng.random() < 0.1:
        text = text[: rng.randrange(len(text))]
    if rng.random() < 0.15:
        at = rng.randrange(min(len(text), 200) + 1)
        text = text[:at] + rng.choice([b"", b" ", b"\r\n", b"\t", b"0", rng.randbytes(1)]) + text[at + 1 :]
    return text


def cut(text: bytes, rng: random.Random) -> list[bytes]:
    """*text* in pieces: often between head and body, as servers write it."""
    cuts = rng.choices(range(len(text) + 1), k=rng.choice([0, 0, 1, 2, 4]))
    if rng.random() < 0.5 and b"\r\n\r\n" in text:
        cuts.append(text.index(b"\r\n\r\n") + 4)
    places = sorted({0, *cuts, len(text)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


async def read_answer(wire: Wire) -> tuple[object, ...]:
    """What the reader gets: the heads, the body and the error."""
    heads: list[object] = []
    body = b""
    try:
        async with asyncio.timeout(0):
            code = 0
            while code < 200:
                message, reader = await wire.read_head()
                code = message.code
                heads.append((code, message.reason, *message.raw_headers))
            while chunk := await wire.read_body(reader):
                body += chunk
    except (LostError, NotHttpError) as error:
        return heads, body, repr(error)
    except TimeoutError:
        return heads, body, "more is awaited"
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.raw_headers]
    fields = Headers([(name.rstrip(" "), value) for name, value in pairs])  # as attempts do
    if isinstance(message, KnownHead):
        crossing = crossing_of(message)
    else:
        crossing = transcoded_to_client(fields)
        if not re.search(r"[^\t -~]", "".join(itertools.chain(*fields.pairs))):  # else it is refused
            wire.learn(message, fields)
    return heads, body, crossing


async def what_happens(
    exchanges: list[tuple[list[bytes], list[bytes]]], ending: Ending | None, known: KnownHeads
) -> list[tuple[object, ...]]:
    """Of each exchange over one connection: what is read of the pieces that come before and after reading begins."""
    seen: list[tuple[object, ...]] = []
    async with listening("POST", known) as wire:
        for number, (pieces, late) in enumerate(exchanges):
            if number:
                wire.begin("POST")
            told: list[int] = []
            wire.hold(told.append)
            for piece in pieces:
                wire.data_received(piece)
            if ending is not None and number == len(exchanges) - 1:
                if ending is Ending.NOTHING:
                    wire.abort()
                wire.connection_lost(ConnectionResetError() if ending is Ending.RESET else None)
            read = await read_answer(wire)
            if wire.transport is not None:
                for piece in late:
                    wire.data_received(piece)
            is_kept = wire.end()
            seen.append((*read, tuple(told), wire.received_bytes, is_kept))
            if not is_kept:
                break
    return seen


@pytest.mark.parametrize("seed", range(6))
async def test_answers_are_read_as_they_are_where_nothing_is_known(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_heads, "LEARNING_S", 0.0)
    n_given = n_parsed_after_all = 0
    give, parse = Wire._give_known, Wire._parse_known

    def count_given(wire: Wire, known: KnownHead, data: bytes) -> None:
        nonlocal n_given
        n_given += 1
        give(wire, known, data)

    def count_parsed(wire: Wire) -> None:
        nonlocal n_parsed_after_all
        n_parsed_after_all += wire._known is not None
        parse(wire)

    monkeypatch.setattr(Wire, "_give_known", count_given)
    monkeypatch.setattr(Wire, "_parse_known", count_parsed)
    rng = random.Random(seed)
    known = KnownHeads()
    for _ in range(600):
        exchanges = []
        for _ in range(rng.choice([1, 2, 4])):
            pieces = cut(random_answer(rng), rng)
            at = rng.choice([len(pieces)] * 3 + [rng.randrange(len(pieces) + 1)])
            exchanges.append((pieces[:at], pieces[at:]))
        ending = rng.choice([None, None, *Ending])
        expected = await what_happens(exchanges, ending, NothingKnown())
        assert await what_happens(exchanges, ending, known) == expected, (exchanges, ending)
    assert n_given > 120
    assert n_parsed_after_all > 20


@pytest.mark.parametrize("head", [UVICORN, NGINX])
@pytest.mark.parametrize("extra", [b"", b"\r\n", b"HTTP", b"x", UVICORN + b"other", INTERIM])
async def test_an_answer_is_read_as_where_nothing_is_known_wherever_it_is_cut(head: bytes, extra: bytes) -> None:
    text = head + b"body!" + extra
    for at in range(1, len(text)):
        for exchange in (([text[:at], text[at:]], []), ([text[:at]], [text[at:]])):
            for ending in (None, *Ending):
                expected = await what_happens([exchange], ending, NothingKnown())
                assert await what_happens([exchange], ending, knowing(head)) == expected, (at, ending)
