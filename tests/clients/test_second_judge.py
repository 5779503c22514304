"""NVIDIA's own Triton as the judge: what it answers to a binary request, the gateway in front of it must answer too.

The gateway speaks JSON to it, so that a blob which is the same has crossed in JSON twice.

Optional, with the marker `triton`: it takes 370 MB and a quarter of a minute to start. TRITON_PYTHON names the
interpreter of an environment of its own, CPython 3.8 to 3.13 whose `libpython` is a shared library:

    pip install nvidia-pytriton==0.7.0

No GPU is needed. Triton cannot read or write FP16 and BF16 in JSON; with these it answers 400, and so does the
gateway in front of it. Its JSON reader does not round FP64 correctly.
"""

import gzip
import json
import os
import re
import socket
import struct
import subprocess
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt
import pytest

from tests.conftest import HEADER_LENGTH, Client, Reply, running, tensor
from tests.values import VALUES as ALL_VALUES

pytestmark = pytest.mark.triton

PROGRAM = Path(__file__).parent / "programs" / "triton_server.py"
START_S = 120

# those that Triton reads in JSON as arrays of numbers
VALUES = {name: array for name, array in ALL_VALUES.items() if name not in ("FP16", "BYTES")}
HALVES = {"FP16": np.array([[1.5, -0.0]], np.float16), "BF16": np.array([[0x3FC0, 0x8000]], np.uint16)}


def bytes_blob(*items: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


@dataclass
class Judges:
    """The same request to Triton itself, and to the gateway in front of it."""

    direct: Client
    gateway: Client

    async def both(self, model: str, body: bytes, header_length: object = None, **options: Any) -> tuple[Reply, Reply]:
        """Both replies; Triton's first."""
        return (
            await self.direct.infer(body, header_length, model, **options),
            await self.gateway.infer(body, header_length, model, **options),
        )

    async def both_binary(self, model: str, header: dict[str, Any], *blobs: bytes) -> tuple[Reply, Reply]:
        """Both replies to *header* and *blobs* with the right header length."""
        text = json.dumps(header).encode()
        return await self.both(model, text + b"".join(blobs), len(text))


def wait_until_open(port: int) -> None:
    """Return once *port* is open: the server says that it has started a moment before it has."""
    until = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.02)
        else:
            return


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running Triton."""
    python = os.environ.get("TRITON_PYTHON")
    if python is None:
        pytest.skip(f"TRITON_PYTHON is not set: see {Path(__file__).name}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path_factory.mktemp("triton")
    said: list[str] = []
    ready = threading.Event()
    with subprocess.Popen(
        [python, PROGRAM, folder, str(port)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:

        def listen() -> None:
            for line in process.stdout or ():
                said.append(line)
                if "Started HTTPService" in line:
                    ready.set()
            ready.set()

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            assert ready.wait(START_S) and process.poll() is None, "".join(said)
            wait_until_open(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)
            listener.join(10)


@pytest.fixture
async def judges(triton: str) -> AsyncIterator[Judges]:
    """Triton, and a gateway in front of it."""
    async with running(triton) as gateway:
        async with aiohttp.ClientSession(
            auto_decompress=False, skip_auto_headers=["Content-Type"], headers={"Accept-Encoding": "identity"}
        ) as session:
            through = Client(session, gateway.gateway, gateway.url, gateway.admin)
            yield Judges(Client(session, gateway.gateway, triton, ""), through)


def assert_same(direct: Reply, through: Reply) -> None:
    """Status, form and meaning agree, and the blobs byte for byte."""
    assert (direct.status, through.status) == (200, 200), (direct.body[:300], through.body[:300])
    assert (HEADER_LENGTH in direct.headers) == (HEADER_LENGTH in through.headers)
    assert direct.json["outputs"] == through.json["outputs"]
    assert [direct.json.get(key) for key in ("model_name", "model_version", "id")] == [
        through.json.get(key) for key in ("model_name", "model_version", "id")
    ]
    if HEADER_LENGTH in direct.headers:
        assert direct.binary == through.binary
        assert direct.headers["Content-Type"] == through.headers["Content-Type"] == "application/octet-stream"
    else:
        assert direct.headers["Content-Type"] == through.headers["Content-Type"] == "application/json"


def random_floats(kind: Any, bits: Any) -> npt.NDArray[Any]:
    """Finite floats of all magnitudes."""
    array: npt.NDArray[Any] = (
        np.random.default_rng(11).integers(0, np.iinfo(bits).max, (50, 400), bits, endpoint=True).view(kind)
    )
    return np.where(np.isfinite(array), array, kind(0))


BINARY_OUT = {"parameters": {"binary_data_output": True}}


@pytest.mark.parametrize("datatype", VALUES)
async def test_blobs_agree(judges: Judges, datatype: str) -> None:
    array = VALUES[datatype]
    header = {"id": "7", "inputs": [tensor("x", array, datatype)], **BINARY_OUT}
    direct, through = await judges.both_binary(datatype.lower(), header, array.tobytes())
    assert_same(direct, through)
    assert through.binary == array.tobytes()


async def test_random_bit_patterns_of_fp32_agree(judges: Judges) -> None:
    array = random_floats(np.float32, np.uint32)
    header = {"inputs": [tensor("x", array, "FP32")], **BINARY_OUT}
    direct, through = await judges.both_binary("fp32", header, array.tobytes())
    assert_same(direct, through)
    assert through.binary == array.tobytes()


async def test_random_bit_patterns_of_fp64_are_what_triton_reads_in_json(judges: Judges) -> None:
    # Triton's JSON reader is up to two steps off in three of ten such numbers, and its writer is exact
    array = random_floats(np.float64, np.uint64)
    described = {"name": "x", "datatype": "FP64", "shape": list(array.shape), "data": array.ravel().tolist()}
    direct = await judges.direct.infer(json.dumps({"inputs": [described], **BINARY_OUT}).encode(), model="fp64")
    header = {"inputs": [tensor("x", array, "FP64")], **BINARY_OUT}
    through = await judges.gateway.infer_binary(header, array.tobytes(), model="fp64")
    assert_same(direct, through)
    in_json, in_binary = await judges.both_binary("fp64", {"inputs": [tensor("x", array, "FP64")]}, array.tobytes())
    assert np.array(in_json.json["outputs"][0]["data"]).tobytes() == array.tobytes()
    assert np.array(in_binary.json["outputs"][0]["data"]).tobytes() == through.binary


async def test_bytes_agree(judges: Judges) -> None:
    blob = bytes_blob(b"a", b"", "é\u2028\U0001f600".encode(), b"nul \x00 in", b'quote " \\ / \n\x7f', b"x" * 102_400)
    header = {
        "inputs": [{"name": "x", "datatype": "BYTES", "shape": [2, 3], "parameters": {"binary_data_size": len(blob)}}],
        **BINARY_OUT,
    }
    direct, through = await judges.both_binary("bytes", header, blob)
    assert_same(direct, through)
    assert through.binary == blob


async def test_non_finite_values_agree_as_literals(triton: str, judges: Judges) -> None:
    array = np.array([[np.nan, np.inf, -np.inf, 1]], np.float32)
    header = {"inputs": [tensor("x", array, "FP32")], **BINARY_OUT}
    async with running(triton, backend="nonfinite: literal") as literal:
        through = await literal.infer_binary(header, array.tobytes(), model="fp32")
    direct = await judges.direct.infer_binary(header, array.tobytes(), model="fp32")
    assert_same(direct, through)


@pytest.mark.parametrize("datatype", HALVES)
async def test_halves_are_binary_only_for_triton(judges: Judges, datatype: str) -> None:
    array = HALVES[datatype]
    header = {"inputs": [tensor("x", array, datatype)], **BINARY_OUT}
    direct, through = await judges.both_binary(datatype.lower(), header, array.tobytes())
    assert direct.status == 200
    assert direct.binary == array.tobytes()
    in_json = {"inputs": [{"name": "x", "datatype": datatype, "shape": [1, 2], "data": [1.5, -0.0]}]}
    refused = await judges.direct.infer(json.dumps(in_json).encode(), model=datatype.lower())
    assert (refused.status, through.status) == (400, 400)
    # so little JSON is not why: Triton's own words, and nothing behind them (protocol 4.9)
    assert through.error == json.loads(refused.body)["error"]


FLAGS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "all binary": {"parameters": {"binary_data_output": True}},
    "all json": {"parameters": {"binary_data_output": False}},
    "one of each": {
        "outputs": [
            {"name": "x", "parameters": {"binary_data": True}},
            {"name": "y", "parameters": {"binary_data": False}},
        ]
    },
    "the second alone": {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]},
    "the other order": {
        "outputs": [
            {"name": "y", "parameters": {"binary_data": True}},
            {"name": "x", "parameters": {"binary_data": True}},
        ]
    },
    "own flag over the request's": {
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "x", "parameters": {"binary_data": False}}],
    },
    "own flag over the request's, the other way": {
        "parameters": {"binary_data_output": False},
        "outputs": [{"name": "x", "parameters": {"binary_data": True}}],
    },
    "listed without flags": {"outputs": [{"name": "x"}, {"name": "y"}]},
    "empty list": {"outputs": [], "parameters": {"binary_data_output": True}},
}


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("name", FLAGS)
async def test_flags_mean_the_same(judges: Judges, name: str, binary_in: bool) -> None:
    array = np.array([0.1, -0.0], np.float32)
    inputs: list[dict[str, Any]] = [tensor(one, array, "FP32") for one in ("x", "y")]
    if not binary_in:
        inputs = [{"name": one, "datatype": "FP32", "shape": [2], "data": [0.1, -0.0]} for one in ("x", "y")]
    text = json.dumps({"inputs": inputs, **FLAGS[name]}).encode()
    blobs = array.tobytes() * 2 if binary_in else b""
    direct, through = await judges.both("pair", text + blobs, len(text) if binary_in else None)
    for reply in (direct, through):
        assert reply.status == 200, reply.body
    # Triton writes what it has in FP32 as the FP64 next to it; the values are the same
    for mine, its in zip(through.json["outputs"], direct.json["outputs"], strict=True):
        for one in (mine, its):
            if "data" in one:
                one["data"] = np.array(one["data"], np.float32).tobytes()
        assert mine == its
    assert (HEADER_LENGTH in direct.headers) == (HEADER_LENGTH in through.headers)
    if HEADER_LENGTH in direct.headers:
        assert direct.binary == through.binary


async def test_listed_without_flag_is_where_the_text_and_triton_differ(judges: Judges) -> None:
    array = np.array([0.5], np.float32)
    header = {"inputs": [tensor(one, array, "FP32") for one in ("x", "y")], "outputs": [{"name": "x"}], **BINARY_OUT}
    direct, through = await judges.both_binary("pair", header, array.tobytes() * 2)
    assert direct.json["outputs"][0]["data"] == [0.5]
    assert through.json["outputs"][0]["parameters"] == {"binary_data_size": 4}


RAW: dict[str, tuple[str, bytes, int]] = {
    # name: model, body, status
    "one variable dimension": ("rows", np.arange(12, dtype=np.int32).tobytes(), 200),
    "one row": ("rows", np.arange(4, dtype=np.int32).tobytes(), 200),
    "fixed": ("row", np.arange(4, dtype=np.int32).tobytes(), 200),
    "the first of two is the batch": ("batched", np.arange(5, dtype=np.int32).tobytes(), 200),
    "one element of bytes": ("word", "é and more".encode(), 200),
    "no multiple of a row": ("rows", bytes(20), 400),
    "no multiple of an element": ("rows", bytes(15), 400),
    "too much": ("row", bytes(20), 400),
    "too little": ("row", bytes(12), 400),
    "two inputs": ("pair", bytes(8), 400),
}


@pytest.mark.parametrize("name", RAW)
async def test_raw_binary_requests_agree(judges: Judges, name: str) -> None:
    model, body, status = RAW[name]
    direct, through = await judges.both(model, body, 0)
    assert (direct.status, through.status) == (status, status), (direct.body, through.body)
    if status == 200:
        assert_same(direct, through)
    else:
        assert through.error


async def test_raw_request_with_two_variable_dimensions_is_where_metadata_does_not_tell(judges: Judges) -> None:
    # Triton knows that this model has no batches; its metadata looks as if it had
    direct, through = await judges.both("int32", np.arange(5, dtype=np.int32).tobytes(), 0)
    assert (direct.status, through.status) == (400, 200)
    assert through.json["outputs"][0]["shape"] == [1, 5]


WRONG_LENGTHS = ["abc", "-1", "99999999999", "+{n}", "{n}.0", "0x10", "{n} {n}"]


@pytest.mark.parametrize("length", WRONG_LENGTHS)
async def test_wrong_header_lengths_are_refused(judges: Judges, length: str) -> None:
    array = VALUES["INT32"]
    text = json.dumps({"inputs": [tensor("x", array, "INT32")]}).encode()
    said = length.replace("{n}", str(len(text)))
    through = await judges.gateway.infer(text + array.tobytes(), said, "int32")
    assert through.status == 400
    assert through.error


def wrong(**changes: Any) -> dict[str, Any]:
    described = {"name": "x", "datatype": "INT32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}
    return {"inputs": [{key: value for key, value in (described | changes).items() if value is not None}]}


MALFORMED: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "a byte left over": ("int32", wrong(), bytes(13)),
    "a byte missing": ("int32", wrong(), bytes(11)),
    "no blob": ("int32", wrong(), b""),
    "size too small for the shape": ("int32", wrong(parameters={"binary_data_size": 8}), bytes(8)),
    "size too large for the shape": ("int32", wrong(parameters={"binary_data_size": 16}), bytes(16)),
    "negative size": ("int32", wrong(parameters={"binary_data_size": -1}), b""),
    "size as text": ("int32", wrong(parameters={"binary_data_size": "12"}), bytes(12)),
    "size as a fraction": ("int32", wrong(parameters={"binary_data_size": 12.5}), bytes(12)),
    "data and a size": ("int32", wrong(data=[1, 2, 3]), bytes(12)),
    "neither data nor a size": ("int32", wrong(parameters=None), b""),
    "negative dimension": ("int32", wrong(shape=[1, -3]), bytes(12)),
    "shape as text": ("int32", wrong(shape="3"), bytes(12)),
    "no shape": ("int32", wrong(shape=None), bytes(12)),
    "no datatype": ("int32", wrong(datatype=None), bytes(12)),
    "no name": ("int32", wrong(name=None), bytes(12)),
    "unknown datatype": ("int32", wrong(datatype="FOO"), bytes(12)),
    "datatype in lower case": ("int32", wrong(datatype="int32"), bytes(12)),
    "another datatype": ("int32", wrong(datatype="UINT32"), bytes(12)),
    "another name": ("int32", wrong(name="z"), bytes(12)),
    "shape that overflows": ("int32", wrong(shape=[2**32, 2**32 + 3]), bytes(12)),
    "no inputs": ("int32", {"outputs": []}, b""),
    "output that is not there": ("int32", wrong() | {"outputs": [{"name": "z"}]}, bytes(12)),
    "flag that is no flag": (
        "int32",
        wrong() | {"outputs": [{"name": "x", "parameters": {"binary_data": "yes"}}]},
        bytes(12),
    ),
    "bytes with a length beyond the end": (
        "bytes",
        wrong(datatype="BYTES", shape=[1, 1], parameters={"binary_data_size": 5}),
        b"\x09\x00\x00\x00a",
    ),
    "bytes with a cut length": (
        "bytes",
        wrong(datatype="BYTES", shape=[1, 1], parameters={"binary_data_size": 3}),
        b"\x00\x00\x00",
    ),
    "too few bytes elements": (
        "bytes",
        wrong(datatype="BYTES", shape=[1, 2], parameters={"binary_data_size": 5}),
        bytes_blob(b"a"),
    ),
    "too many bytes elements": (
        "bytes",
        wrong(datatype="BYTES", shape=[1, 1], parameters={"binary_data_size": 10}),
        bytes_blob(b"a", b"b"),
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_requests_are_refused_by_both(judges: Judges, name: str) -> None:
    model, header, blob = MALFORMED[name]
    direct, through = await judges.both_binary(model, header, blob)
    # Triton blames itself, with 500, where JSON has the wrong type
    assert (direct.status in (400, 500), through.status) == (True, 400), (direct.body, through.body)
    assert set(json.loads(direct.body)) == {"error"}
    assert through.error


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_compressed_requests_and_replies_agree(triton: str, coding: str) -> None:
    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]
    pack, unpack = (gzip.compress, gzip.decompress) if coding == "gzip" else (zlib.compress, zlib.decompress)
    array = np.tile(VALUES["INT32"], (1, 1000))
    header = json.dumps({"inputs": [tensor("x", array, "INT32")], **BINARY_OUT}).encode()
    body = pack(header + array.tobytes())
    headers = {"Content-Encoding": coding, "Accept-Encoding": coding}
    async with running(triton, "compression: {responses: true, min_size: 1KiB}\n") as gateway:
        direct = await Client(gateway.session, gateway.gateway, triton, "").infer(
            body, len(header), "int32", headers=headers
        )
        through = await gateway.infer(body, len(header), "int32", headers=headers)
    for reply in (direct, through):
        assert reply.status == 200
        assert reply.headers["Content-Encoding"] == coding
        whole = unpack(reply.body)
        assert whole[int(reply.headers[HEADER_LENGTH]) :] == array.tobytes()


async def test_metadata_and_errors_agree(judges: Judges) -> None:
    direct, through = [await one.request("GET", "/v2/models/pair") for one in (judges.direct, judges.gateway)]
    assert direct.body == through.body
    direct, through = [await one.request("GET", "/v2") for one in (judges.direct, judges.gateway)]
    assert direct.json == through.json  # Triton has the extension in its list already
    direct, through = await judges.both_binary("nobody", wrong(), bytes(12))
    assert direct.status == through.status
    assert re.search("nobody", through.error)
    assert through.error == json.loads(direct.body)["error"]
