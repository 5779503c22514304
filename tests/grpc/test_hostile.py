"""Clients that break HTTP/2, or use it against the gateway: each is refused, and others are served meanwhile."""

import asyncio
import gc
import json
import random
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from hpack import Encoder
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from gateway.client.grpc.connection import GrpcConnection
from gateway.client.grpc.frames import CONNECTION_WINDOW, Http2Error, Sender
from gateway.client.request import ClientRequest
from gateway.demo import JsonServer
from tests.conftest import Client, Connection, access_lines, answering, lying
from tests.grpc.conftest import address_of, serving
from tests.grpc.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    FIELDS,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    connected,
    fields,
    frame,
    message,
)
from tests.grpc.test_clients import Both, given, in_message

pytestmark = pytest.mark.rule("12.6")

BODY = in_message(np.ones(4, "f4"), "FP32", is_typed=False).SerializeToString()
CALM, COMPRESSION, PROTOCOL, REFUSED_STREAM = 11, 9, 1, 7


async def still_serves(both: Both) -> None:
    """Another client gets its answer, and nothing is left of the one that was hostile."""
    result = await both[1].infer("identity", [given("x", np.ones(4, "f4"))])
    assert result.as_numpy("x").tolist() == [1, 1, 1, 1]
    admission = both[0].gateway.gateway.admission
    async with asyncio.timeout(5):
        while admission.held_bytes or admission.requests or both[0].gateway.gateway.in_flight:
            await asyncio.sleep(0.02)


async def test_a_plain_call_on_a_raw_connection(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1) + frame(DATA, 1, message(BODY), END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"
        with_length = [*FIELDS, ("content-length", str(len(message(BODY))))]
        await raw.send(fields(3, with_length) + frame(DATA, 3, message(BODY), END_STREAM))
        assert (await raw.status(3))["grpc-status"] == "0"
    await still_serves(both)


async def test_a_malformed_call_again_and_again_leaves_nothing(both: Both) -> None:
    """Its head comes in a few bytes that name fields of the table; each raised the same error, and stayed in it."""
    encoder = Encoder()
    async with connected(address_of(both[0])) as raw:
        for number in range(1, 101, 2):
            block = encoder.encode([*FIELDS, ("x-bad", " a")])
            await raw.send(frame(HEADERS, number, block, END_HEADERS) + frame(DATA, number, message(BODY), END_STREAM))
            assert (await raw.status(number))["grpc-status"] == "3"
        assert len(block) < 10
        gc.collect()
        assert sum(isinstance(each, ClientRequest) for each in gc.get_objects()) <= 2
    await still_serves(both)


async def test_messages_of_a_malformed_stream_leave_nothing(both: Both) -> None:
    """All are refused with the error of their one head."""
    path = "/inference.GRPCInferenceService/ModelStreamInfer"
    named = [(name, path if name == ":path" else value) for name, value in FIELDS]
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, [*named, ("x-bad", " a")]))
        for _ in range(50):
            await raw.send(frame(DATA, 1, message(BODY)))
            await raw.until(DATA)
        gc.collect()
        assert sum(isinstance(each, ClientRequest) for each in gc.get_objects()) <= 3
        await raw.send(frame(DATA, 1, b"", END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"
    await still_serves(both)


async def test_cookies_in_several_fields_are_one_for_the_backend() -> None:
    """HTTP/2 may send them apart, for its compression; HTTP/1.1 may not (RFC 9113 section 8.2.3)."""
    heads: list[str] = []

    async def script(connection: Connection) -> None:
        await connection.read_request()
        heads.append(connection.head.decode())
        await connection.answer(b"{}", "400 Bad Request")

    async with lying(script) as liar, serving(liar.url) as (client, _), connected(address_of(client)) as raw:
        cookies = [("cookie", "a=1"), ("x-other", "x"), ("cookie", "b=2")]
        await raw.send(fields(1, [*FIELDS, *cookies]) + frame(DATA, 1, message(BODY), END_STREAM))
        await raw.status(1)
    assert [line for line in heads[0].split("\r\n") if line.lower().startswith("cookie")] == ["cookie: a=1; b=2"]
    assert "x-other: x" in heads[0]


async def test_fields_that_cannot_be_read_are_not_sent_back(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(frame(HEADERS, 1, b"\x00\x7f" + b"\xff" * 20_000 + b"\1", END_HEADERS))
        _, _, _, payload = await raw.until(GOAWAY)
    assert int.from_bytes(payload[4:8]) == COMPRESSION
    assert len(payload) < 200
    assert b"xff" not in payload
    await still_serves(both)


FLOODS = {
    "pings": frame(PING, 0, bytes(8)),
    "settings": frame(SETTINGS),
    "priorities": frame(PRIORITY, 1, bytes(4) + b"\x10"),
    "farewells": frame(GOAWAY, 0, bytes(8)),
    "frames of no type": frame(0xEE, 0, b"x"),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_of_frames_that_ask_for_nothing(both: Both, kind: str) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(FLOODS[kind] * 300)
        assert await raw.goaway() == CALM
    await still_serves(both)


async def test_streams_that_are_reset_as_soon_as_they_begin(both: Both, server: JsonServer) -> None:
    async with connected(address_of(both[0])) as raw:
        calls = [fields(2 * n + 1) + frame(RST_STREAM, 2 * n + 1, bytes(4)) for n in range(300)]
        await raw.send(b"".join(calls))
        assert await raw.goaway() == CALM
    assert server.inferences == 0
    await still_serves(both)


async def test_empty_frames_of_data(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1) + frame(DATA, 1) * 300)
        assert await raw.goaway() == CALM
    await still_serves(both)


async def test_continuations_without_end(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, flags=0) + frame(CONTINUATION, 1, b"\x00\x01a\x7f" + b"b" * 127) * 1000)
        assert await raw.goaway() in (PROTOCOL, CALM)
    await still_serves(both)


async def test_fields_that_are_small_only_on_the_wire(both: Both) -> None:
    # one field of 4,000 bytes goes into the table, and is then named with one byte each
    first = b"\x40\x01a\x7f" + bytes([0xA1, 0x1E]) + b"x" * 4000
    bomb = frame(HEADERS, 1, first + b"\xbe" * 10_000, END_HEADERS)
    async with connected(address_of(both[0])) as raw:
        await raw.send(bomb)
        assert await raw.goaway() in (PROTOCOL, CALM)
    await still_serves(both)


async def test_more_than_128_fields(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, FIELDS + [(f"x-{n}", "1") for n in range(130)]))
        assert (await raw.status(1))["grpc-status"] == "3"
    await still_serves(both)


async def test_the_most_fields_that_are_an_error_of_their_call_alone(both: Both) -> None:
    """They are read, so that the table of fields can be followed; the connection goes on."""
    plain, few = b"\x00\x01a\x7f\xa1\x9b\x01" + b"x" * 20_000, len(FIELDS) + 1
    async with connected(address_of(both[0])) as raw:
        parts = [BLOCK + plain, b"\x00\x01a\x00" * (256 - few)]
        await raw.send(frame(HEADERS, 1, parts[0]) + frame(CONTINUATION, 1, parts[1], END_HEADERS))
        refused = await raw.status(1)
        assert (refused["grpc-status"], "more than 128 fields" in refused["grpc-message"]) == ("3", True)
        await raw.send(fields(3) + frame(DATA, 3, message(BODY), END_STREAM))
        assert (await raw.status(3))["grpc-status"] == "0"
    await still_serves(both)


async def test_fields_of_many_streams_together(both: Both, server: JsonServer) -> None:
    """Sixty thousand bytes each are allowed, but not of a hundred calls at once."""
    async with connected(address_of(both[0])) as raw:
        many = FIELDS + [(f"x-{n}", "y" * 1000) for n in range(50)]
        for n in range(40):
            block = Encoder().encode(many, huffman=False)
            parts = [block[start : start + 16_000] for start in range(0, len(block), 16_000)]
            await raw.send(frame(HEADERS, 2 * n + 1, parts[0]))
            for index, part in enumerate(parts[1:], 2):
                await raw.send(frame(CONTINUATION, 2 * n + 1, part, END_HEADERS if index == len(parts) else 0))
        _, _, number, payload = await raw.until(RST_STREAM)
        assert int.from_bytes(payload) == REFUSED_STREAM
        assert number < 80
    await still_serves(both)


async def test_more_streams_than_are_allowed(both: Both) -> None:
    """Those beyond are refused and may be repeated; the others go on, until the client asks for far too many."""
    async with connected(address_of(both[0])) as raw:
        await raw.send(b"".join(fields(2 * n + 1) for n in range(140)))
        for n in range(128, 140):
            _, _, number, payload = await raw.until(RST_STREAM)
            assert (number, int.from_bytes(payload)) == (2 * n + 1, REFUSED_STREAM)
        await raw.send(frame(DATA, 1, message(BODY), END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"
        await raw.send(b"".join(fields(2 * n + 1) for n in range(140, 400)))
        assert await raw.goaway() == CALM
    await still_serves(both)


def block(number: int, data: bytes, flags: int = END_HEADERS) -> bytes:
    """A HEADERS frame with a block of HPACK as it is."""
    return frame(HEADERS, number, data, flags)


FLOW_CONTROL, STREAM_CLOSED, FRAME_SIZE, COMPRESSION = 3, 5, 6, 9
CALL = fields(1) + frame(DATA, 1, message(BODY), END_STREAM)
BLOCK = Encoder().encode(FIELDS)
BROKEN = {
    "data on stream 0": (frame(DATA, 0, b"x"), PROTOCOL),
    "data before fields": (frame(DATA, 1, b"x"), PROTOCOL),
    "a reset before fields": (frame(RST_STREAM, 9, bytes(4)), PROTOCOL),
    "a window before fields": (frame(WINDOW_UPDATE, 9, (5).to_bytes(4)), PROTOCOL),
    "data on a stream of the server": (fields(5) + frame(DATA, 2, b"x"), PROTOCOL),
    "a reset of a stream of the server": (fields(5) + frame(RST_STREAM, 2, bytes(4)), PROTOCOL),
    "a window of a stream of the server": (fields(5) + frame(WINDOW_UPDATE, 2, (5).to_bytes(4)), PROTOCOL),
    "even stream": (fields(2), PROTOCOL),
    "a stream that begins twice": (fields(1) * 2, PROTOCOL),
    "a stream behind its successor": (fields(5) + fields(3), STREAM_CLOSED),
    "a stream behind its successor, whose fields say nothing": (
        fields(5) + block(3, b"\x00\x01a\x01b"),
        STREAM_CLOSED,
    ),
    "trailers with a method": (fields(1) + block(1, b"\x83", END_HEADERS | END_STREAM), PROTOCOL),
    "window beyond 2^31": (frame(WINDOW_UPDATE, 0, b"\x7f\xff\xff\xff"), FLOW_CONTROL),
    "window of nothing": (frame(WINDOW_UPDATE, 0, bytes(4)), PROTOCOL),
    "windows beyond 2^31 by settings": (
        fields(1) + frame(WINDOW_UPDATE, 1, b"\x7f\xfe\xff\xff") + frame(SETTINGS, 0, b"\0\x04\0\x02\0\0"),
        FLOW_CONTROL,
    ),
    "frame too long": (frame(DATA, 1, bytes(70_000)), FRAME_SIZE),
    "settings of the wrong size": (frame(SETTINGS, 0, b"x"), FRAME_SIZE),
    "settings on a stream": (frame(SETTINGS, 1), PROTOCOL),
    "settings that acknowledge others": (frame(SETTINGS, 0, bytes(6), ACK), FRAME_SIZE),
    "settings with a window too large": (frame(SETTINGS, 0, b"\0\x04\x80\0\0\0"), FLOW_CONTROL),
    "settings with a frame too small": (frame(SETTINGS, 0, b"\0\x05\0\0\0\x01"), PROTOCOL),
    "settings with a push that is neither on nor off": (frame(SETTINGS, 0, b"\0\x02\0\0\0\x02"), PROTOCOL),
    "a ping on a stream": (frame(PING, 1, bytes(8)), PROTOCOL),
    "a short ping": (frame(PING, 0, bytes(7)), FRAME_SIZE),
    "a short farewell": (frame(GOAWAY, 0, bytes(3)), FRAME_SIZE),
    "a short reset": (fields(1) + frame(RST_STREAM, 1, bytes(3)), FRAME_SIZE),
    "a priority of all": (frame(PRIORITY, 0, bytes(5)), PROTOCOL),
    "more padding than data": (fields(1) + frame(DATA, 1, b"\x05abc", PADDED), PROTOCOL),
    "padding of no length": (fields(1) + frame(DATA, 1, b"", PADDED), PROTOCOL),
    "a priority that is cut off": (frame(HEADERS, 1, b"\0\0", HAS_PRIORITY | END_HEADERS), PROTOCOL),
    "a frame between fields and continuation": (fields(1, flags=0) + frame(PING, 0, bytes(8)), PROTOCOL),
    "an unknown frame between fields and continuation": (fields(1, flags=0) + frame(0x55, 1, b""), PROTOCOL),
    "a continuation of another stream": (fields(1, flags=0) + frame(CONTINUATION, 3, b"", END_HEADERS), PROTOCOL),
    "a continuation of nothing": (frame(CONTINUATION, 1, b"", END_HEADERS), PROTOCOL),
    "fields on a stream that was reset": (fields(1) + frame(RST_STREAM, 1, bytes(4)) + fields(1), STREAM_CLOSED),
    "fields on a stream before one that was reset": (
        fields(1) + frame(RST_STREAM, 1, bytes(4)) + fields(3) + fields(1),
        STREAM_CLOSED,
    ),
    "1,400 fields": (block(1, BLOCK + b"\x00\x01a\x00" * 1400), CALM),
    "1,400 fields for the table": (block(1, BLOCK + b"\x40\x01a\x00" * 1400), CALM),
    "a value of 20 KB in Huffman's code": (block(1, BLOCK + b"\x00\x01a\xff\xa1\x9b\x01" + b"\x07" * 20_000), CALM),
    "empty continuations": (fields(1, flags=0) + frame(CONTINUATION, 1, b"") * 40, CALM),
    "no fields that can be read": (block(1, b"\xff" * 20), COMPRESSION),
    "fields that are cut off": (block(1, BLOCK + b"\x00\x05a"), COMPRESSION),
    "a field without a value": (block(1, BLOCK + b"\x00\x01a"), COMPRESSION),
    "a place that no table has": (block(1, b"\x80"), COMPRESSION),
    "a table larger than allowed": (block(1, b"\x3f\xe2\x1f" + BLOCK), COMPRESSION),
    "a table that changes too late": (block(1, BLOCK + b"\x20"), COMPRESSION),
    "a table that changes again and again": (block(1, b"\x20" * 60_000 + BLOCK), CALM),
    "letters that Huffman's code has not": (block(1, BLOCK + b"\x00\x01a\x84\xff\xff\xff\xff"), COMPRESSION),
    "data behind the end": (CALL + frame(DATA, 1, b"x"), STREAM_CLOSED),
    "fields behind the end": (CALL + fields(1), STREAM_CLOSED),
    "trailers behind the end": (CALL + block(1, b"\x00\x01a\x01b", END_HEADERS | END_STREAM), STREAM_CLOSED),
    "a stream's window of nothing": (fields(1) + frame(WINDOW_UPDATE, 1, bytes(4)), PROTOCOL),
    "a stream's window beyond 2^31": (fields(1) + frame(WINDOW_UPDATE, 1, b"\x7f\xff\xff\xff"), FLOW_CONTROL),
    "more data than the stream's window": (fields(1) + frame(DATA, 1, b"\0\0\1\0\0" + bytes(16_000)) * 5, FLOW_CONTROL),
    "a push": (frame(PUSH_PROMISE, 1, bytes(4)), PROTOCOL),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_what_breaks_http2_ends_the_connection(both: Both, case: str) -> None:
    sent, code = BROKEN[case]
    async with connected(address_of(both[0])) as raw:
        await raw.send(sent)
        assert await raw.goaway() == code
    await still_serves(both)


MALFORMED = {
    "a name with capitals": block(1, BLOCK + b"\x00\x05X-Bad\x011"),
    "a value with a line's end": block(1, BLOCK + b"\x00\x05x-bad\x03a\nb"),
    "a name of nothing": block(1, BLOCK + b"\x00\x00\x01a"),
    "a field of HTTP/1.1": fields(1, [*FIELDS, ("connection", "close")]),
    "another te": fields(1, [*FIELDS[:-1], ("te", "gzip")]),
    "another host": fields(1, [*FIELDS, ("host", "b")]),
    "a method behind other fields": fields(1, [*FIELDS[1:], FIELDS[0]]),
    "a method twice": fields(1, [FIELDS[0], *FIELDS]),
    "a status": fields(1, [(":status", "200"), *FIELDS]),
    "no scheme": fields(1, [FIELDS[0], *FIELDS[2:]]),
    "a length that is no number": fields(1, [*FIELDS, ("content-length", "3x")]),
    "a length below that of the message": fields(1, [*FIELDS, ("content-length", str(len(BODY)))]),
    "a length beyond that of the message": fields(1, [*FIELDS, ("content-length", str(len(BODY) + 6))]),
    "a timeout without a unit": fields(1, [*FIELDS, ("grpc-timeout", "1")]),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_malformed_fields_are_the_error_of_their_call(both: Both, server: JsonServer, case: str) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(MALFORMED[case] + frame(DATA, 1, message(BODY), END_STREAM))
        refused = await raw.status(1)
        assert refused["grpc-status"] == "3"
        assert refused["grpc-message"].startswith(("malformed ", "grpc-timeout"))
        assert server.inferences == 0
        await raw.send(fields(3) + frame(DATA, 3, message(BODY), END_STREAM))
        assert (await raw.status(3))["grpc-status"] == "0"
    await still_serves(both)


async def test_fields_without_a_method_are_no_call_of_grpc(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, FIELDS[1:]))
        assert (await raw.status(1))[":status"] == "415"
    await still_serves(both)


async def test_padding_priorities_and_trailers_are_taken_off(both: Both) -> None:
    padded = frame(HEADERS, 1, b"\x02\0\0\0\0\x10" + BLOCK + b"\0\0", PADDED | HAS_PRIORITY | END_HEADERS)
    trailers = block(3, b"\x00\x01a\x01b", END_HEADERS | END_STREAM)
    async with connected(address_of(both[0])) as raw:
        await raw.send(padded + frame(DATA, 1, b"\x03" + message(BODY) + bytes(3), PADDED | END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"
        await raw.send(fields(3) + frame(DATA, 3, message(BODY)) + trailers)
        assert (await raw.status(3))["grpc-status"] == "0"
        await raw.send(block(3, b"\x00\x01a\x01b", END_HEADERS | END_STREAM) + frame(PING, 0, bytes(8)))
        await raw.until(PING)
    await still_serves(both)


async def test_a_table_that_becomes_smaller_and_larger_again(both: Both) -> None:
    """RFC 7541 section 4.2: the smallest size between two blocks is said, then the last."""
    async with connected(address_of(both[0])) as raw:
        await raw.send(block(1, b"\x20\x3f\xe1\x1f" + BLOCK) + frame(DATA, 1, message(BODY), END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"
    await still_serves(both)


async def test_more_than_one_message_where_one_is_asked_for(both: Both, server: JsonServer) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1) + frame(DATA, 1, message(BODY) * 2, END_STREAM))
        refused = await raw.status(1)
    assert (refused["grpc-status"], "more than one message" in refused["grpc-message"]) == ("3", True)
    assert server.inferences == 0
    await still_serves(both)


async def test_fields_of_an_answer_that_take_several_frames(server: JsonServer) -> None:
    """RFC 9113 section 6.10; and a client that makes its table smaller hears that nothing is in it."""
    script = answering(b'{"outputs": []}', headers="".join(f"X-{n}: {'y' * 1000}\r\n" for n in range(30)))
    async with lying(script) as liar, serving(liar.url) as both, connected(address_of(both[0])) as raw:
        raw.decoder.max_allowed_table_size = 0
        await raw.send(frame(SETTINGS, 0, b"\0\x01\0\0\0\0") + CALL)
        _, _, number, begun = await raw.until(HEADERS)
        _, flags, _, rest = await raw.until(CONTINUATION)
        assert (number, len(begun), flags) == (1, 16_384, END_HEADERS)
        assert "y" * 1000 in [str(value) for _, value in raw.decoder.decode(begun + rest)]


async def test_http1_on_this_port_is_told_what_it_is(both: Both, caplog: pytest.LogCaptureFixture) -> None:
    """The operator is told of the first such client in a minute: there may be thousands."""
    for _ in range(3):
        async with connected(address_of(both[0]), begins=False) as raw:
            await raw.send(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
            reply = await raw.reader.read()
        assert reply.startswith(b"HTTP/1.1 400 ")
        assert b"this port speaks gRPC" in reply
    assert [record.message for record in caplog.records if "does not speak HTTP/2" in record.message] == [
        "client 127.0.0.1 does not speak HTTP/2, which the port for gRPC needs"
    ]


@pytest.mark.parametrize("n_bytes", [1, 3, 4, 6])
async def test_http1_that_comes_in_pieces_is_told_what_the_port_is(both: Both, n_bytes: int) -> None:
    sent = b"PRICE /v2 HTTP/1.1\r\nHost: a\r\n\r\n"
    async with connected(address_of(both[0]), begins=False) as raw:
        await raw.send(sent[:n_bytes])
        await asyncio.sleep(0.05)
        await raw.send(sent[n_bytes:])
        assert (await raw.reader.read()).startswith(b"HTTP/1.1 400 ")


BEGUN = {
    "half a preface": PREFACE[:10],
    "half a method of HTTP/1.1": b"GE",
    "half the head of a frame": PREFACE + frame(SETTINGS) + frame(PING, 0, bytes(8))[:4],
    "the type of no frame": PREFACE + frame(SETTINGS) + b"\0\0",
    "half a frame of settings": PREFACE + frame(SETTINGS) + frame(SETTINGS, 0, bytes(6))[:-1],
    "half a ping": PREFACE + frame(SETTINGS) + frame(PING, 0, bytes(8))[:-1],
    "half a frame of no type": PREFACE + frame(0xEE, 0, bytes(8))[:-1],
    "half a head": PREFACE + frame(SETTINGS) + fields(1)[:-1],
    "half a head behind a call": PREFACE + CALL + fields(3, flags=0),
}
SENDING = [*FIELDS[:2], (":path", "/inference.GRPCInferenceService/ModelStreamInfer"), *FIELDS[3:]]


async def test_what_has_begun_to_come_ends_within_its_limit(server: JsonServer) -> None:
    """A stream of messages is open where there can be one, so that the connection is not idle."""
    limits = "limits: {header_timeout: 1s, body_timeout: 300s, client_keep_alive: 300s}"

    async def end_of(address: str, case: str) -> None:
        begun = BEGUN[case].replace(PREFACE + frame(SETTINGS), PREFACE + fields(1, SENDING))
        async with asyncio.timeout(10), connected(address, begins=False) as raw:
            await raw.send(begun.replace(fields(1)[:-1], fields(3)[:-1]))
            while await raw.read() is not None:
                pass

    async with serving(server.url, limits) as both:
        await asyncio.gather(*(end_of(address_of(both[0]), case) for case in BEGUN))
        assert both[0].gateway.data_plane.server.slow_connections["header_timeout"] == len(BEGUN)


async def test_a_frame_of_data_between_two_messages_ends_within_its_limit(server: JsonServer) -> None:
    """The next message has not begun for the stream, which may be idle for as long as the client likes."""
    async with serving(server.url, "limits: {header_timeout: 300s, body_timeout: 1s}") as both:
        async with connected(address_of(both[0])) as raw:
            await raw.send(fields(1, SENDING) + frame(DATA, 1, message(BODY)))
            await raw.until(DATA)
            await raw.send(frame(DATA, 1, message(BODY))[:-1])
            while await raw.read() is not None:
                pass
        await still_serves(both)


async def test_a_message_between_two_others_that_is_half_there(server: JsonServer) -> None:
    async def status_of_half(address: str, n_bytes: int) -> str:
        async with connected(address) as raw:
            await raw.send(fields(1, SENDING) + frame(DATA, 1, message(BODY)))
            await raw.until(DATA)
            await raw.send(frame(DATA, 1, message(BODY)[:n_bytes]) + frame(DATA, 1, message(BODY)[n_bytes:])[:-1])
            return str(await raw.status(1))

    async with serving(server.url, "limits: {body_timeout: 1s}") as both:
        for status in await asyncio.gather(*(status_of_half(address_of(both[0]), n_bytes) for n_bytes in (2, 20))):
            assert "limits.body_timeout" in status
        await still_serves(both)


SMALL = {
    "windows of the connection": frame(WINDOW_UPDATE, 0, (1).to_bytes(4)),
    "windows of a stream": frame(WINDOW_UPDATE, 1, (1).to_bytes(4)),
    "windows of a stream that has ended": frame(WINDOW_UPDATE, 3, (1).to_bytes(4)),
    "data of one byte": frame(DATA, 1, b"\0"),
    "data of one byte for a stream that has ended": frame(DATA, 3, b"\0"),
    "data in padding": frame(DATA, 1, b"\x20\0" + bytes(32), PADDED),
}


@pytest.mark.parametrize("case", SMALL)
async def test_frames_that_carry_too_little(both: Both, case: str) -> None:
    begun = fields(1) + fields(3) + frame(RST_STREAM, 3, bytes(4)) + frame(DATA, 1, b"\0\0\1\0\0")
    async with connected(address_of(both[0])) as raw:
        await raw.send(begun + SMALL[case] * (70_000 // len(SMALL[case])))
        assert await raw.goaway() == CALM
    await still_serves(both)


async def test_windows_that_open_for_answers_may_be_small(both: Both) -> None:
    """Clients open them for what they have read: each byte of an answer earns."""
    async with connected(address_of(both[0])) as raw:
        for number in range(1, 301, 2):
            await raw.send(fields(number) + frame(DATA, number, message(BODY), END_STREAM))
            assert (await raw.status(number))["grpc-status"] == "0"
            await raw.send(frame(WINDOW_UPDATE, 0, (50).to_bytes(4)) * 40)
    await still_serves(both)


async def test_the_preface_may_come_in_pieces_and_what_is_none_ends_the_connection(both: Both) -> None:
    async with connected(address_of(both[0]), begins=False) as raw:
        await raw.send(PREFACE[:10])
        await asyncio.sleep(0.02)
        await raw.send(PREFACE[10:] + frame(SETTINGS) + CALL)
        assert (await raw.status(1))["grpc-status"] == "0"
        await raw.send(
            frame(WINDOW_UPDATE, 1, (5).to_bytes(4)) + frame(PING, 0, bytes(8))
        )  # of a stream that has ended
        await raw.until(PING)
    async with connected(address_of(both[0]), begins=False) as raw:
        await raw.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20))  # a handshake of TLS
        assert (await raw.reader.read()).startswith(b"HTTP/1.1 400 ")
    await still_serves(both)


def test_more_data_than_the_window_of_the_connection() -> None:
    sender = Sender(lambda: 0.0)
    sender.receive(CONNECTION_WINDOW)
    sender.receive(CONNECTION_WINDOW)  # it is opened again
    with pytest.raises(Http2Error, match="window of the connection") as refused:
        sender.receive(CONNECTION_WINDOW + 1)
    assert refused.value.code == FLOW_CONTROL


async def test_a_client_that_reads_its_reply_late(both: Both) -> None:
    """Nothing more is read from it meanwhile, and all of the reply goes out when it reads on."""
    values = np.arange(2_000_000, dtype="f4")
    big = message(in_message(values, "FP32", is_typed=False).SerializeToString())
    async with connected(address_of(both[0])) as raw:
        await raw.send(frame(SETTINGS, 0, b"\0\x04\x7f\xff\xff\xff") + frame(WINDOW_UPDATE, 0, (2**30).to_bytes(4)))
        await raw.send(fields(1))
        room = 65_535
        for start in range(0, len(big), 16_000):
            piece = big[start : start + 16_000]
            while room < len(piece):
                _, _, number, payload = await raw.until(WINDOW_UPDATE)
                room += int.from_bytes(payload) if number == 1 else 0
            room -= len(piece)
            await raw.send(frame(DATA, 1, piece))
        await raw.send(frame(DATA, 1, b"", END_STREAM))
        await asyncio.sleep(0.5)
        got = bytearray()
        while (came := await raw.until(DATA, HEADERS))[0] == DATA or not got:
            got += came[3] if came[0] == DATA else b""
    assert pb.ModelInferResponse.FromString(bytes(got[5:])).raw_output_contents[0] == values.tobytes()
    await still_serves(both)


async def test_data_in_frames_of_one_byte(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        body = message(BODY)
        await raw.send(fields(1) + b"".join(frame(DATA, 1, body[n : n + 1]) for n in range(len(body))))
        await raw.send(frame(DATA, 1, b"", END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"


async def test_a_message_that_is_cut_off(both: Both, server: JsonServer) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1) + frame(DATA, 1, message(BODY)[:-3], END_STREAM))
        got = await raw.status(1)
    assert got["grpc-status"] == "3"
    assert "cut%20off" in got["grpc-message"] or "cut off" in got["grpc-message"]
    assert server.inferences == 0
    await still_serves(both)


async def test_no_message_and_a_prefix_that_is_none(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1) + frame(DATA, 1, b"", END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "3"
        await raw.send(fields(3) + frame(DATA, 3, b"\x02\0\0\0\0", END_STREAM))
        assert (await raw.status(3))["grpc-status"] == "3"
        await raw.send(fields(5) + frame(DATA, 5, message(b"\xff" * 50), END_STREAM))
        assert (await raw.status(5))["grpc-status"] == "3"
        ready = [
            (":path", "/inference.GRPCInferenceService/ModelReady") if each[0] == ":path" else each for each in FIELDS
        ]
        await raw.send(fields(7, ready) + frame(DATA, 7, message(b"\xff" * 50), END_STREAM))
        assert (await raw.status(7))["grpc-status"] == "3"
    await still_serves(both)


async def test_a_stream_of_messages_that_breaks_between_two(both: Both) -> None:
    streaming = [*FIELDS[:2], (":path", "/inference.GRPCInferenceService/ModelStreamInfer"), *FIELDS[3:]]
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, streaming) + frame(DATA, 1, message(BODY) + b"\x02\0\0\0\0"))
        got = await raw.status(1)
        assert got["grpc-status"] == "3"
        await raw.send(fields(3, streaming) + frame(DATA, 3, message(BODY) + b"\0\0", END_STREAM))
        assert (await raw.status(3))["grpc-status"] == "3"
    await still_serves(both)


async def test_a_stream_of_messages_and_its_connection_that_break_in_one_turn(both: Both) -> None:
    """The error of the stream has nowhere to go any more: its task ends like that of a client that left."""
    tasks: list[asyncio.Task[Any]] = []

    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        tasks.append(asyncio.Task(work, loop=loop, **options))
        return tasks[-1]

    asyncio.get_running_loop().set_task_factory(make)
    streaming = [*FIELDS[:2], (":path", "/inference.GRPCInferenceService/ModelStreamInfer"), *FIELDS[3:]]
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, streaming) + frame(PING, 0, bytes(8)) * 190)
        for _ in range(190):
            await raw.until(PING)
        await raw.send(frame(DATA, 1, b"\0\0", END_STREAM) + frame(PING, 0, bytes(8)) * 50)
        while await raw.read() is not None:
            pass
    await still_serves(both)
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    assert ended
    assert not [task for task in ended if task.exception() is not None]


async def test_a_connection_that_is_lost_in_the_middle_of_a_message(both: Both) -> None:
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1) + frame(DATA, 1, message(BODY)[:-3]))
        await asyncio.sleep(0.05)
        raw.writer.transport.abort()
    await still_serves(both)


async def test_a_message_beyond_the_limit_is_refused_before_it_is_read(server: JsonServer) -> None:
    async with serving(server.url, "limits: {request_body: 1MiB, in_flight_bytes: 2MiB}") as both:
        async with connected(address_of(both[0])) as raw:
            await raw.send(fields(1) + frame(DATA, 1, b"\0" + (2**20 + 1).to_bytes(4) + bytes(1000)))
            got = await raw.status(1)
            assert got["grpc-status"] == "8"
            assert "limits.request_body" in got["grpc-message"]
            await raw.send(fields(3) + frame(DATA, 3, message(BODY), END_STREAM))  # the connection goes on
            assert (await raw.status(3))["grpc-status"] == "0"
        await still_serves(both)


async def test_what_does_not_fit_into_memory_is_unavailable(server: JsonServer) -> None:
    """Sixteen clients at once, of whose messages the budget holds three."""
    array = np.random.default_rng(1).random(250_000).astype("f4")
    async with serving(server.url, "limits: {request_body: 1MiB, in_flight_bytes: 3MiB}") as both:

        async def one() -> str:
            async with triton.InferenceServerClient(address_of(both[0])) as client:
                try:
                    result = await client.infer("identity", [given("x", array)])
                except InferenceServerException as error:
                    assert "limits.in_flight_bytes" in error.message()
                    return str(error.status())
                assert result.as_numpy("x").tobytes() == array.tobytes()
                return "OK"

        ends = await asyncio.gather(*(one() for _ in range(16)))
        assert set(ends) == {"OK", "StatusCode.UNAVAILABLE"}
        await still_serves(both)


async def test_more_beside_the_tensors_than_the_limit(both: Both) -> None:
    message_ = in_message(np.ones(1, "f4"), "FP32", is_typed=False)
    message_.parameters["x"].string_param = "y" * 200_000
    async with connected(address_of(both[0])) as raw:
        data = message(message_.SerializeToString())
        await raw.send(fields(1))
        for start in range(0, len(data), 16_000):
            await raw.send(frame(DATA, 1, data[start : start + 16_000]))
            await asyncio.sleep(0.005)
        await raw.send(frame(DATA, 1, b"", END_STREAM))
        got = await raw.status(1)
    assert got["grpc-status"] == "3"
    assert "limits.header" in got["grpc-message"]
    await still_serves(both)


async def test_a_message_of_a_stream_that_is_refused_before_it_is_read(server: JsonServer) -> None:
    streaming = [*FIELDS[:2], (":path", "/inference.GRPCInferenceService/ModelStreamInfer"), *FIELDS[3:]]
    async with serving(server.url, "limits: {request_body: 10KiB, in_flight_bytes: 1MiB}") as both:
        async with connected(address_of(both[0])) as raw:
            await raw.send(fields(1, streaming) + frame(DATA, 1, b"\0" + (12_000).to_bytes(4) + bytes(12_000)))
            await raw.send(frame(DATA, 1, message(BODY), END_STREAM))  # the stream goes on
            assert (await raw.status(1))["grpc-status"] == "0"
            await raw.send(fields(3, streaming) + frame(DATA, 3, b"\0" + (10**6).to_bytes(4) + bytes(1000)))
            got = await raw.status(3)
            assert got["grpc-status"] == "8"
            assert "too long to be skipped" in got["grpc-message"]
        await still_serves(both)


@pytest.mark.rule("12.5")
@pytest.mark.parametrize("backend", ["", "max_connections: 1\nqueue: {length: 9, timeout: 9s}"])
async def test_a_deadline_of_the_clients_own(caplog: pytest.LogCaptureFixture, backend: str) -> None:
    """The same words everywhere, also where the call waits for a connection; and it is nobody else's fault."""
    words = "Deadline Exceeded: the client's deadline (grpc-timeout) is over"
    caplog.set_level("INFO", "gateway.access")

    async def silent(connection: Connection) -> None:
        await connection.read_request()
        await asyncio.sleep(10)

    async def late(client: Client) -> dict[str, str]:
        async with connected(address_of(client)) as raw:
            await raw.send(fields(1, [*FIELDS, ("grpc-timeout", "300m")]) + frame(DATA, 1, message(BODY), END_STREAM))
            return await raw.status(1)

    async with lying(silent) as liar, serving(liar.url, "logging: {access: json}\n", backend) as (client, _):
        got = await asyncio.gather(late(client), late(client))
        metrics = await client.metrics()
    assert [(each["grpc-status"], each["grpc-message"]) for each in got] == [("4", words)] * 2
    details = f'tensor-gateway; error=http_response_timeout; details="{words}"'
    assert [each["proxy-status"] for each in got] == [details] * 2
    lines = [json.loads(line) for line in access_lines(caplog)]
    said = [(line["status"], line["reason"], line["blame"], line["detail"]) for line in lines]
    assert said == [(499, "client_closed", "client", words)] * 2
    assert metrics['tensor_gateway_errors_total{blame="client",reason="client_closed",route="main"}'] == 2


@pytest.mark.slow
async def test_a_connection_that_says_nothing_or_asks_for_nothing_ends(server: JsonServer) -> None:
    async with serving(server.url, "limits: {header_timeout: 1s, client_keep_alive: 1s}") as both:
        async with connected(address_of(both[0]), begins=False) as raw:
            assert await raw.reader.read() == b""
        async with connected(address_of(both[0])) as raw:
            assert await raw.goaway() == 0


async def test_server_timing_is_metadata(server: JsonServer) -> None:
    async with serving(server.url, "logging: {server_timing: true, access: none}") as both:
        async with connected(address_of(both[0])) as raw:
            await raw.send(fields(1) + frame(DATA, 1, message(BODY), END_STREAM))
            assert "server-timing" in await raw.status(1)


async def test_a_slow_message_is_given_up(server: JsonServer) -> None:
    async with serving(server.url, "limits: {body_timeout: 1s}") as both:
        async with connected(address_of(both[0])) as raw:
            await raw.send(fields(1) + frame(DATA, 1, message(BODY)[:20]))
            got = await raw.status(1)
        assert got["grpc-status"] == "4"
        assert "limits.body_timeout" in got["grpc-message"]
        await still_serves(both)


async def test_a_message_whose_rest_is_not_read_is_not_slow(
    server: JsonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While replies to other calls wait nothing is read: the gateway does not wait for the client then."""
    made: list[GrpcConnection] = []
    feed = GrpcConnection.data_received

    def noted(connection: GrpcConnection, data: bytes) -> None:
        made.append(connection)
        feed(connection, data)

    monkeypatch.setattr(GrpcConnection, "data_received", noted)
    async with serving(server.url, "limits: {body_timeout: 1s}") as both:
        async with connected(address_of(both[0])) as raw:
            whole = message(BODY)
            await raw.send(fields(1) + frame(DATA, 1, whole[:9]) + frame(PING, 0, bytes(8)))
            await raw.until(PING)
            made[-1].pause_writing()
            await raw.send(frame(DATA, 1, whole[9:], END_STREAM))
            await asyncio.sleep(3)
            made[-1].resume_writing()
            assert (await raw.status(1))["grpc-status"] == "0"


async def test_a_client_that_opens_no_window(server: JsonServer) -> None:
    async with serving(server.url, "limits: {client_idle: 1s}") as both:
        big = in_message(np.ones(100_000, "f4"), "FP32", is_typed=False).SerializeToString()
        async with connected(address_of(both[0])) as raw:
            await raw.until(WINDOW_UPDATE)
            await raw.send(fields(1))
            data = message(big)
            for start in range(0, len(data), 16_000):
                await raw.send(frame(DATA, 1, data[start : start + 16_000]))
                await asyncio.sleep(0.01)
            await raw.send(frame(DATA, 1, b"", END_STREAM))
            got = await raw.until(RST_STREAM)
            assert got[2] == 1
        await still_serves(both)


async def test_a_client_that_opens_its_window_by_single_bytes(server: JsonServer) -> None:
    """It is never silent, and would hold its reply for weeks."""
    async with serving(server.url, "limits: {client_idle: 1s}") as both:
        big = in_message(np.ones(30_000, "f4"), "FP32", is_typed=False).SerializeToString()
        async with connected(address_of(both[0])) as raw:
            await raw.until(WINDOW_UPDATE)
            await raw.send(fields(1))
            data = message(big)
            for start in range(0, len(data), 16_000):
                await raw.send(frame(DATA, 1, data[start : start + 16_000]))
                await asyncio.sleep(0.01)
            await raw.send(frame(DATA, 1, b"", END_STREAM))
            ended = asyncio.ensure_future(raw.until(RST_STREAM))
            while not ended.done():
                await raw.send(frame(WINDOW_UPDATE, 1, (1).to_bytes(4)))
                await asyncio.sleep(0.02)
            assert ended.result()[2] == 1
        await still_serves(both)


async def test_unread_bytes_count(server: JsonServer) -> None:
    async with serving(server.url) as both:
        admission = both[0].gateway.gateway.admission
        async with connected(address_of(both[0])) as raw:
            await raw.send(frame(SETTINGS, 0, b"") + b"\0\xff\xff\0\0\0\0\0\1" + bytes(60_000))
            async with asyncio.timeout(5):
                while admission.held_bytes < 50_000:
                    await asyncio.sleep(0.01)
        await still_serves(both)


async def test_drain_lets_calls_finish_and_sends_clients_away(server: JsonServer) -> None:
    async with serving(server.url) as both:
        client: Client = both[0]
        async with connected(address_of(client)) as raw:
            await raw.send(fields(1) + frame(DATA, 1, message(BODY)[:-3]))
            await asyncio.sleep(0.05)
            draining = asyncio.ensure_future(client.gateway.drain())
            assert (await raw.until(GOAWAY))[3][4:8] == bytes(4)
            await raw.send(fields(3))  # it was on its way
            _, _, number, payload = await raw.until(RST_STREAM)
            assert (number, int.from_bytes(payload)) == (3, REFUSED_STREAM)
            await raw.send(frame(DATA, 1, message(BODY)[-3:], END_STREAM))
            assert (await raw.status(1))["grpc-status"] == "0"
            async with asyncio.timeout(5):
                await draining


async def test_a_second_farewell_names_no_higher_stream(server: JsonServer) -> None:
    """RFC 9113 section 6.8; clients of Go take one that does for a broken connection."""
    async with serving(server.url) as both, connected(address_of(both[0])) as raw:
        await raw.send(fields(1) + frame(DATA, 1, message(BODY)[:-3]) + frame(PING, 0, bytes(8)))
        await raw.until(PING)
        draining = asyncio.ensure_future(both[0].gateway.drain())
        assert (await raw.until(GOAWAY))[3][:4] == (1).to_bytes(4)
        await raw.send(fields(3))
        _, _, number, code = await raw.until(RST_STREAM)
        assert (number, int.from_bytes(code)) == (3, REFUSED_STREAM)
        await raw.send(frame(PING, 1, bytes(8)))  # breaks HTTP/2
        assert (await raw.until(GOAWAY))[3][:8] == (1).to_bytes(4) + PROTOCOL.to_bytes(4)
        await draining


async def test_drain_lets_a_stream_of_messages_finish_that_is_between_two(server: JsonServer) -> None:
    streaming = [*FIELDS[:2], (":path", "/inference.GRPCInferenceService/ModelStreamInfer"), *FIELDS[3:]]
    async with serving(server.url) as both, connected(address_of(both[0])) as raw:
        await raw.send(fields(1, streaming) + frame(DATA, 1, message(BODY)))
        await raw.until(DATA)
        draining = asyncio.ensure_future(both[0].gateway.drain())
        await raw.until(GOAWAY)
        await asyncio.sleep(1)  # longer than a head may take to come
        assert not draining.done()
        await raw.send(frame(DATA, 1, message(BODY), END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"
        async with asyncio.timeout(5):
            await draining


@pytest.mark.parametrize("seed", range(20))
async def test_damaged_exchanges_end_and_leave_nothing(both: Both, seed: int) -> None:
    chance = random.Random(seed)
    whole = PREFACE + frame(SETTINGS)
    for n in range(5):
        body = pb.ModelInferRequest.FromString(BODY)
        body.id = str(n)
        whole += fields(2 * n + 1) + frame(DATA, 2 * n + 1, message(body.SerializeToString()), END_STREAM)
    damaged = bytearray(whole)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(PREFACE), len(damaged))
        match chance.randrange(3):
            case 0:
                damaged[at] = chance.randrange(256)
            case 1:
                del damaged[at : at + chance.randrange(1, 20)]
            case _:
                damaged[at:at] = chance.randbytes(chance.randrange(1, 20))
    async with connected(address_of(both[0]), begins=False) as raw:
        await raw.send(bytes(damaged))
        raw.writer.write_eof()
        while await raw.read() is not None:
            pass
    await still_serves(both)


@pytest.mark.parametrize("turns", range(8))
async def test_a_stream_that_is_reset_while_its_message_begins(
    both: Both, caplog: pytest.LogCaptureFixture, turns: int
) -> None:
    """Whichever turn of the event loop the reset comes in: nothing more is done with the stream."""
    streaming = [*FIELDS[:2], (":path", "/inference.GRPCInferenceService/ModelStreamInfer"), *FIELDS[3:]]
    async with connected(address_of(both[0])) as raw:
        for n, head in enumerate((FIELDS, streaming) * 5):
            await raw.send(fields(2 * n + 1, head) + frame(DATA, 2 * n + 1, b"\0" + (500_000).to_bytes(4) + b"x"))
            for _ in range(turns):
                await asyncio.sleep(0)
            await raw.send(frame(RST_STREAM, 2 * n + 1, bytes(4)))
        await raw.send(fields(21) + frame(DATA, 21, message(BODY), END_STREAM))
        assert (await raw.status(21))["grpc-status"] == "0"
    await still_serves(both)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_client_that_goes_away_gets_the_answers_that_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    """RFC 9113 section 6.8: whoever sends GOAWAY takes no new streams; those that there are go on."""
    go_on = asyncio.Event()

    async def slow(connection: Connection) -> None:
        await connection.read_request()
        await go_on.wait()
        await connection.answer(b'{"outputs": []}')

    async with lying(slow) as liar, serving(liar.url) as both:
        async with connected(address_of(both[0])) as raw:
            await raw.send(fields(1) + frame(DATA, 1, message(BODY), END_STREAM))
            await raw.send(frame(GOAWAY, 0, bytes(8)) + frame(PING, 0, bytes(8)))
            await raw.until(PING)
            go_on.set()
            assert (await raw.status(1))["grpc-status"] == "0"
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
async def test_a_deadline_that_is_over_before_the_message_is_there(both: Both, server: JsonServer, name: str) -> None:
    head = [*FIELDS[:2], (":path", f"/inference.GRPCInferenceService/{name}"), *FIELDS[3:], ("grpc-timeout", "200m")]
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, head) + frame(DATA, 1, message(BODY)[:20]))
        got = await raw.status(1)
        assert (got["grpc-status"], "grpc-timeout" in got["grpc-message"]) == ("4", True)
        await raw.send(fields(3, head) + frame(PING, 0, bytes(8)))  # not a byte of a message
        assert (await raw.status(3))["grpc-status"] == "4"
    assert server.inferences == 0
    await still_serves(both)
