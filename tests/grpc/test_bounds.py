"""What one client of gRPC may cost: memory, time of the event loop, and the patience of its connection."""

import asyncio

import numpy as np
import pytest
from hpack import Decoder
from tritonclient.grpc import service_pb2 as pb

from tests.conftest import Connection, answering, lying
from tests.grpc.conftest import address_of, serving
from tests.grpc.frames import (
    DATA,
    END_STREAM,
    FIELDS,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    connected,
    fields,
    frame,
    message,
)
from tests.grpc.test_clients import Both, in_message
from tests.grpc.test_hostile import BODY, still_serves

pytestmark = pytest.mark.rule("12.6")

STREAMING = [*FIELDS[:2], (":path", "/inference.GRPCInferenceService/ModelStreamInfer"), *FIELDS[3:]]


def calling(name: str) -> list[tuple[str, str]]:
    """The fields of the call *name*."""
    return [*FIELDS[:2], (":path", f"/inference.GRPCInferenceService/{name}"), *FIELDS[3:]]


async def test_a_window_that_shrinks_below_zero(both: Both) -> None:
    """RFC 9113 section 6.9.2: what was sent counts against the new size."""
    values = np.arange(30_000, dtype="f4")
    big = message(in_message(values, "FP32", is_typed=False).SerializeToString())
    async with connected(address_of(both[0])) as raw:
        await raw.until(WINDOW_UPDATE)
        await raw.send(fields(1))
        for start in range(0, len(big), 16_000):
            await raw.send(frame(DATA, 1, big[start : start + 16_000]))
            await asyncio.sleep(0.01)
        await raw.send(frame(DATA, 1, b"", END_STREAM))
        got = b""
        while len(got) < 65_535:
            got += (await raw.until(DATA))[3]
        await raw.send(frame(SETTINGS, 0, b"\0\x04" + (10).to_bytes(4)))  # the window is now 10 - 65535
        await raw.send(frame(WINDOW_UPDATE, 0, (200_000).to_bytes(4)))
        await raw.send(frame(WINDOW_UPDATE, 1, (1000).to_bytes(4)))  # and still below zero
        await raw.send(frame(PING, 0, bytes(8)))
        kind, _, _, payload = await raw.until(PING, DATA, RST_STREAM)
        assert kind == PING
        await raw.send(frame(WINDOW_UPDATE, 1, (200_000).to_bytes(4)))
        kind = 0
        while kind != HEADERS:
            kind, _, _, payload = await raw.until(DATA, HEADERS, RST_STREAM)
            assert kind != RST_STREAM
            if kind == DATA:
                got += payload
    answer = pb.ModelInferResponse.FromString(got[5:])
    assert answer.raw_output_contents[0] == values.tobytes()
    await still_serves(both)


async def test_a_client_that_offers_a_table_for_fields_without_end(both: Both) -> None:
    """The gateway keeps no more than 4 KiB of the fields that it has sent, however much it may."""
    async with connected(address_of(both[0])) as raw:
        await raw.send(frame(SETTINGS, 0, b"\0\x01\x7f\xff\xff\xff"))
        raw.decoder = Decoder()
        raw.decoder.max_allowed_table_size = 2**31
        for n in range(200):
            number = 2 * n + 1
            await raw.send(fields(number) + frame(DATA, number, message(b""), END_STREAM))
            assert (await raw.status(number))["grpc-status"] == "3"
        assert raw.decoder.header_table_size <= 4096
    await still_serves(both)


async def test_errors_that_end_streams_leave_nothing() -> None:
    """A client whose stream was ended by an error does not end its own half."""
    body = b'{"error": "no such model"}'
    script = answering(body, "404 Not Found")
    large = [*STREAMING, ("triton_grpc_error", "true"), *((f"x-{n}", "y" * 1000) for n in range(14))]
    async with lying(script) as liar, serving(liar.url) as both, connected(address_of(both[0])) as raw:
        for n in range(90):
            number = 2 * n + 1
            await raw.send(fields(number, large) + frame(DATA, number, message(BODY)))
            assert (await raw.status(number)).get("grpc-status") == "5"


async def test_pings_between_the_answers_of_a_stream(both: Both) -> None:
    """Clients of Go send one for each answer, to learn how much the way holds."""
    async with connected(address_of(both[0])) as raw:
        await raw.send(fields(1, STREAMING))
        for _ in range(300):
            await raw.send(frame(DATA, 1, message(BODY)) + frame(PING, 0, bytes(8)))
            kind = (await raw.until(DATA, GOAWAY))[0]
            assert kind == DATA
            await raw.send(frame(WINDOW_UPDATE, 0, (1000).to_bytes(4)) + frame(WINDOW_UPDATE, 1, (1000).to_bytes(4)))
        await raw.send(frame(DATA, 1, b"", END_STREAM))
        assert (await raw.status(1))["grpc-status"] == "0"
    await still_serves(both)


async def test_calls_that_are_cancelled_after_a_while_are_no_flood() -> None:
    """So clients end calls whose deadline is over, a hundred at once where a server hangs."""

    async def silent(connection: Connection) -> None:
        await connection.read_request()
        await asyncio.sleep(30)

    async with lying(silent) as liar, serving(liar.url) as both, connected(address_of(both[0])) as raw:
        for round_ in range(4):
            numbers = [2 * n + 1 + 200 * round_ for n in range(100)]
            for number in numbers:
                await raw.send(fields(number) + frame(DATA, number, message(BODY), END_STREAM))
            await asyncio.sleep(0.3)
            for number in numbers:
                await raw.send(frame(RST_STREAM, number, (8).to_bytes(4)))
        await raw.send(frame(PING, 0, bytes(8)))
        assert (await raw.until(PING, GOAWAY))[0] == PING
