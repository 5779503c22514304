"""No piece of work holds the event loop for long, whatever the tensors' size."""

import asyncio
import io
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import orjson
import pytest

from tests.conftest import HEADER_LENGTH, Connection, lying, tensor
from tests.system.measured_gateway import HELD

pytestmark = pytest.mark.alone

LONGEST_S = 0.020
"""What no single callback may take of the processor."""

ROUNDS = 5
BESIDE = 50


def answer_of(name: str, array: npt.NDArray[Any], datatype: str, shape: list[int]) -> bytes:
    data = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    return b'{"outputs":[{"name":"%b","datatype":"%b","shape":%b,"data":%b}]}' % (
        name.encode(),
        datatype.encode(),
        json.dumps(shape).encode(),
        data,
    )


SMALL = answer_of("x", np.zeros(4, np.float32), "FP32", [4])

Exercise = Callable[[aiohttp.ClientSession, str], Awaitable[None]]


async def longest_callback(answer: bytes, exercise: Exercise, small: bytes = SMALL, settings: str = "") -> float:
    """The longest callback in seconds while *exercise* runs against a gateway whose backend gives *answer*.

    *small* is its answer to small requests, *settings* are those of the backend.

    Of the calmest of up to `ROUNDS` rounds: a stall that belongs to the work is there in each of them, the time that
    a busy host takes away from this machine in the middle of a callback is not.
    """
    calmest = float("inf")
    for _ in range(ROUNDS):
        calmest = min(calmest, await one_round(answer, exercise, small, settings))
        if calmest < LONGEST_S:
            break
    return calmest


async def one_round(answer: bytes, exercise: Exercise, small: bytes = SMALL, settings: str = "") -> float:
    async def script(connection: Connection) -> None:
        while True:
            await connection.read_request()
            if connection.head.startswith(b"GET"):
                await connection.answer(b"{}", "404 Not Found")
            else:
                await connection.answer(answer if len(connection.body) > 100_000 else small)

    async with lying(script) as liar:
        gateway = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.system.measured_gateway", liar.url, *filter(None, [settings])),
            stdout=asyncio.subprocess.PIPE,
        )
        assert gateway.stdout is not None
        url = (await gateway.stdout.readline()).decode().strip()
        try:
            async with aiohttp.ClientSession() as session:
                await exercise(session, f"{url}/v2/models/m/infer")
        finally:
            gateway.terminate()
        printed = float(await gateway.stdout.readline())
        await gateway.wait()
        return printed


async def longest_callback_beside(
    header: dict[str, Any],
    blob: bytes,
    answer: bytes,
    expected: bytes,
    small_answer: bytes = SMALL,
    settings: str = "",
) -> float:
    """Carry one large request through, twice at once, with `BESIDE` small ones one after the other."""

    async def exercise(session: aiohttp.ClientSession, path: str) -> None:
        async def infer(asked: dict[str, Any], body: bytes) -> bytes:
            text = json.dumps(asked).encode()
            headers = {HEADER_LENGTH: str(len(text))}
            async with session.post(path, data=io.BytesIO(text + body), headers=headers) as response:
                reply = await response.read()
                assert response.status == 200, reply[:500]
                return reply[int(response.headers.get(HEADER_LENGTH, "0")) :]

        small = {
            "inputs": [tensor("x", np.zeros(4, np.float32), "FP32")],
            "parameters": {"binary_data_output": True},
        }
        large = [asyncio.create_task(infer(header, blob)) for _ in range(2)]
        for _ in range(BESIDE):
            assert await infer(small, bytes(16)) == bytes(16)
        for task in large:
            assert await task == expected

    return await longest_callback(answer, exercise, small_answer, settings)


async def test_a_callback_that_holds_the_loop_is_seen() -> None:
    """The measure itself: a request whose path asks the measured gateway to work for long."""

    async def exercise(session: aiohttp.ClientSession, path: str) -> None:
        async with session.get(path.replace("/infer", HELD)) as response:
            assert response.status == 404  # the backend knows nothing but inferences

    assert await one_round(b"{}", exercise) >= LONGEST_S


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "UINT8"])
async def test_large_tensors_do_not_hold_the_loop(datatype: str) -> None:
    dtype = {"FP32": np.float32, "INT64": np.int64, "UINT8": np.uint8}[datatype]
    rng = np.random.default_rng(5)
    count = 32 * 1024 * 1024 // np.dtype(dtype).itemsize // (4 if datatype == "UINT8" else 1)
    array = (
        rng.standard_normal(count).astype(dtype) if datatype == "FP32" else rng.integers(0, 200, count).astype(dtype)
    )
    header = {"inputs": [tensor("x", array, datatype)], "parameters": {"binary_data_output": True}}
    answer = answer_of("x", array, datatype, [count])
    assert await longest_callback_beside(header, array.tobytes(), answer, array.tobytes()) < LONGEST_S


DIALECTS = {
    "columnar": ("dialect: tensorflow", "", b'{"outputs":%b}', b'{"outputs":[0,0,0,0]}'),
    "row": ("dialect: tensorflow", "format: row, ", b'{"predictions":%b}', b'{"predictions":[0,0,0,0]}'),
    "mlflow": ("dialect: mlflow", "", b'{"predictions":{"x":%b}}', b'{"predictions":{"x":[0,0,0,0]}}'),
}


@pytest.mark.parametrize("form", DIALECTS)
@pytest.mark.parametrize("shape", [(-1, 4), (1, 3, 1024, -1)], ids=["short rows", "long rows"])
async def test_large_tensors_of_other_dialects_do_not_hold_the_loop(form: str, shape: tuple[int, ...]) -> None:
    dialect, format_, large, small = DIALECTS[form]
    array = np.random.default_rng(5).standard_normal(3 * 1024 * 1024, dtype=np.float32).reshape(shape)
    header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
    settings = f"{dialect}, models: {{'*': {{{format_}outputs: {{x: {{datatype: FP32}}}}}}}}"
    answer = large % orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    blob = array.tobytes()
    assert await longest_callback_beside(header, blob, answer, blob, small, settings) < LONGEST_S


async def test_large_strings_do_not_hold_the_loop() -> None:
    element = ('é\\"' + "x" * 97).encode() * 100_000
    blob = len(element).to_bytes(4, "little") + element
    entry = {"name": "x", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(blob)}}
    header = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    answer = b'{"outputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":[%b]}]}' % orjson.dumps(element.decode())
    assert await longest_callback_beside(header, blob, answer, blob) < LONGEST_S


async def test_many_small_strings_do_not_hold_the_loop() -> None:
    elements = [b"%d" % number for number in range(300_000)]
    blob = b"".join(len(element).to_bytes(4, "little") + element for element in elements)
    entry = {"name": "x", "shape": [300_000], "datatype": "BYTES", "parameters": {"binary_data_size": len(blob)}}
    header = {"inputs": [entry], "parameters": {"binary_data_output": True}}
    texts = orjson.dumps([element.decode() for element in elements])
    answer = b'{"outputs":[{"name":"x","datatype":"BYTES","shape":[300000],"data":%b}]}' % texts
    assert await longest_callback_beside(header, blob, answer, blob) < LONGEST_S


def many_numbers() -> tuple[str, list[int], bytes]:
    numbers = np.random.default_rng(5).standard_normal(4_000_000).astype(np.float32)
    return "FP32", [numbers.size], orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)


def one_string() -> tuple[str, list[int], bytes]:
    return "BYTES", [1], orjson.dumps([('\u00e9\\"' + "x" * 97) * 200_000])


@pytest.mark.parametrize("made", [many_numbers, one_string])
async def test_large_json_that_stays_json_does_not_hold_the_loop(
    made: Callable[[], tuple[str, list[int], bytes]],
) -> None:
    datatype, shape, data = made()
    entry = b'{"name":"x","shape":%b,"datatype":"%b","data":%b}' % (json.dumps(shape).encode(), datatype.encode(), data)
    asked = b'{"inputs":[%b]}' % entry

    async def exercise(session: aiohttp.ClientSession, path: str) -> None:
        headers = {HEADER_LENGTH: str(len(asked))}
        async with session.post(path, data=io.BytesIO(asked), headers=headers) as response:
            assert response.status == 200
            assert entry[:-1] in await response.read()

    assert await longest_callback(b'{"outputs":[%b]}' % entry, exercise) < LONGEST_S
