"""What a request held is free as soon as it is over: nothing that holds a tensor waits for the garbage collector."""

import asyncio
import gc
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import numpy as np
import orjson
import pytest

from tests.conftest import Connection, Script, answering, lying, running, tensor

LARGE_BYTES = 100_000
X = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}
FLOATS = b'{"outputs":[{"name":"y","datatype":"FP32","shape":[100000],"data":%b}]}' % orjson.dumps(X.tolist())
TEXTS = b'{"outputs":[{"name":"y","datatype":"BYTES","shape":[20000],"data":%b}]}' % orjson.dumps(
    ["some text"] * 20_000
)


@contextmanager
def collecting() -> Iterator[list[Any]]:
    """What the garbage collector finds in circles at the end, of all that was made within."""
    found: list[Any] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += gc.garbage
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def large(found: list[Any]) -> list[str]:
    """The tensors and texts that the objects in *found* hold, be it through containers and views."""
    held: dict[int, str] = {}
    for owner in found:
        waiting = [owner, *gc.get_referents(owner)]
        while waiting:
            thing = waiting.pop()
            if id(thing) in held:
                continue
            held[id(thing)] = ""
            if isinstance(thing, dict | list | tuple | set):
                waiting += gc.get_referents(thing)
            elif isinstance(thing, memoryview):
                waiting.append(thing.obj)
            elif isinstance(thing, np.ndarray) and thing.base is not None:
                waiting.append(thing.base)
            size = thing.nbytes if isinstance(thing, memoryview | np.ndarray) else sys.getsizeof(thing, 0)
            if size > LARGE_BYTES:
                held[id(thing)] = f"{owner!r:.200} holds a {type(thing).__name__}"
    return [words for words in held.values() if words]


def cut_off(body: bytes) -> Script:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) + 1) + body)

    return script


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "header", "blob", "status"),
    [
        pytest.param(answering(FLOATS), HEADER, X.tobytes(), 200, id="numbers"),
        pytest.param(answering(TEXTS), HEADER, X.tobytes(), 200, id="strings"),
        pytest.param(answering(FLOATS), {**HEADER, "parameters": {}}, X.tobytes(), 200, id="stays JSON"),
        pytest.param(answering(FLOATS.replace(b"FP32", b"INT8")), HEADER, X.tobytes(), 502, id="wrong values"),
        pytest.param(answering(FLOATS[:-1000]), HEADER, X.tobytes(), 502, id="cut off"),
        pytest.param(cut_off(FLOATS), HEADER, X.tobytes(), 502, id="closed too early"),
        pytest.param(answering(FLOATS, "500 Oh"), HEADER, X.tobytes(), 500, id="backend error"),
        pytest.param(answering(FLOATS), HEADER, X.tobytes()[1:], 400, id="refused"),
        pytest.param(answering(FLOATS), HEADER, np.full_like(X, np.nan).tobytes(), 400, id="refused value"),
        pytest.param(answering(FLOATS), json.loads(FLOATS.replace(b"outputs", b"inputs")), b"", 200, id="JSON"),
    ],
)
async def test_nothing_large_waits_for_the_garbage_collector(
    script: Script, header: dict[str, Any], blob: bytes, status: int
) -> None:
    async with lying(script) as liar, running(liar.url) as client:
        await client.infer_binary(header, blob)
        with collecting() as found:
            assert (await client.infer_binary(header, blob)).status == status
        assert large(found) == []


async def test_a_client_with_broken_chunks_leaves_nothing_large() -> None:
    """Half a body, and then what is no chunk."""
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"%x\r\n%b\r\n" % (X.nbytes, X.tobytes())
    async with lying(answering(FLOATS)) as liar, running(liar.url) as client:
        with collecting() as found:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(client.url.rpartition(":")[2]))
            writer.write(head + body)
            while client.gateway.gateway.admission.held_bytes < X.nbytes:
                await asyncio.sleep(0.01)
            writer.write(b"no chunk\r\n")
            assert b" 400 " in await reader.readline()
            await reader.read()
            writer.close()
            await writer.wait_closed()
            del reader, writer
        assert large(found) == []


@pytest.mark.parametrize(
    "thing",
    [
        bytes(LARGE_BYTES + 1),
        {"chunk": bytes(LARGE_BYTES + 1)},
        np.zeros(LARGE_BYTES)[:2],
        [[memoryview(b"x" * LARGE_BYTES * 2)]],
    ],
)
def test_what_is_in_a_circle_would_be_found(thing: Any) -> None:
    with collecting() as found:
        circle: list[Any] = [thing]
        circle.append(circle)
        del circle
    assert len(large(found)) >= 1


async def test_a_client_that_leaves_leaves_nothing_large() -> None:
    async def script(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + FLOATS)
        await connection.reader.read()

    async with lying(script) as liar, running(liar.url) as client:
        with collecting() as found:
            with pytest.raises(TimeoutError):
                await client.infer_binary(HEADER, X.tobytes(), timeout=aiohttp.ClientTimeout(total=0.5))
            assert await client.wait_until_idle(5.0) == 0
        assert large(found) == []
