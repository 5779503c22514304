"""The requests that are measured: one folder per case with its bodies, read by every process that needs them.

client_request     what the client sends: JSON header and blob
backend_request    what the backend gets: JSON
backend_answer     what it answers: JSON
client_reply       what the client gets back: JSON header and blob
request_data       the inside of `backend_request`'s `data`, by which the backend checks what it got
sizes              length of the JSON header in `client_request` and in `client_reply`

A case is named like the model that its requests go to. Bodies are mapped, not read: 256 MiB of FP32 are 700 MB of
JSON, and so exist once for all processes.
"""

import functools
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

WIRE = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
    "BF16": "<u2",
}
"""The numpy type that views a tensor of a datatype on the wire; BF16, which numpy lacks, as its bits."""

BLOCK_ELEMENTS = 1024 * 1024
"""Larger tensors repeat a block of this many elements."""


class WrongBytesError(Exception):
    """A request or a reply is not what it has to be."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as blob and as the inside of a JSON array; both are *repeats* times a block."""

    datatype: str
    shape: tuple[int, ...]
    block: bytes
    block_text: bytes
    repeats: int = 1

    @property
    def blob_bytes(self) -> int:
        return len(self.block) * self.repeats

    def blob(self) -> Iterator[bytes]:
        for _ in range(self.repeats):
            yield self.block

    def text(self) -> Iterator[bytes]:
        for index in range(self.repeats):
            yield b"," + self.block_text if index else self.block_text


def numbers(datatype: str, shape: tuple[int, ...], *, nested: bool = False) -> Tensor:
    """Random numbers: integers over their whole range, floats in [0, 1). Up to a block may be *nested* as its shape."""
    elements = int(np.prod(shape))
    repeats = max(1, elements // BLOCK_ELEMENTS)
    array = _random(datatype, elements // repeats)
    assert len(array) * repeats == elements, "larger tensors are whole blocks"
    assert not (nested and repeats > 1), "brackets do not repeat"
    printed = printable(array, datatype).reshape(shape if nested else -1)
    text = orjson.dumps(printed, option=orjson.OPT_SERIALIZE_NUMPY)
    return Tensor(datatype, shape, array.tobytes(), text[1:-1], repeats)


def strings(count: int, length: int, *, escapes: bool = False) -> Tensor:
    """Random ASCII text; with *escapes*, three of four strings of 100 have a line feed or a quote in them."""
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz 0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ .,-", np.uint8)
    generator = np.random.default_rng(0)
    characters = generator.choice(letters, count * length)
    if escapes:
        places = generator.random(count * length) < 0.014
        characters[places] = generator.choice(np.frombuffer(b'\n"', np.uint8), np.count_nonzero(places))
    text = characters.tobytes()
    elements = [text[start : start + length] for start in range(0, len(text), length)]
    blob = b"".join(length.to_bytes(4, "little") + element for element in elements)
    return Tensor("BYTES", (count,), blob, orjson.dumps([element.decode() for element in elements])[1:-1])


def _random(datatype: str, count: int) -> npt.NDArray[Any]:
    generator = np.random.default_rng(0)
    wire = np.dtype(WIRE[datatype])
    if datatype == "BF16":
        return (generator.random(count, np.float32).view("<u4") >> np.uint32(16)).astype(wire)
    if wire.kind == "f":
        return generator.random(count).astype(wire)
    if wire.kind == "b":
        return generator.integers(0, 2, count).astype(wire)
    bounds = np.iinfo(wire)
    return generator.integers(bounds.min, bounds.max, count, wire.type, endpoint=True)


def printable(array: npt.NDArray[Any], datatype: str) -> npt.NDArray[Any]:
    """*array* as one that orjson prints: BF16 becomes FP32 by appending zero bits."""
    return (array.astype("<u4") << np.uint32(16)).view("<f4") if datatype == "BF16" else array


@dataclass(frozen=True)
class Case:
    """The bodies of one request, in *folder*."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @functools.cached_property
    def client_request(self) -> memoryview:
        return self._mapped("client_request")

    @functools.cached_property
    def backend_request(self) -> memoryview:
        return self._mapped("backend_request")

    @functools.cached_property
    def backend_answer(self) -> memoryview:
        return self._mapped("backend_answer")

    @functools.cached_property
    def client_reply(self) -> memoryview:
        return self._mapped("client_reply")

    @functools.cached_property
    def request_data(self) -> memoryview:
        return self._mapped("request_data")

    @functools.cached_property
    def header_bytes(self) -> tuple[int, int]:
        """Length of the JSON header in the client's request, and in its reply."""
        request, reply = (self.folder / "sizes").read_text().split()
        return int(request), int(reply)

    def _mapped(self, name: str) -> memoryview:
        with (self.folder / name).open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def create(parent: Path, name: str, request: Tensor, answer: Tensor | None = None) -> Case:
    """Write the bodies of a case: *request* goes in as `x`, *answer* (absent: the same) comes back as `y`."""
    folder = parent / name
    if folder.exists():
        return Case(folder)
    folder.mkdir()
    answer = answer or request

    def write(file_name: str, *parts: bytes | Iterator[bytes]) -> None:
        with (folder / file_name).open("wb") as file:
            for part in parts:
                file.writelines((part,) if isinstance(part, bytes) else part)

    x = f'{{"name":"x","shape":{list(request.shape)},"datatype":"{request.datatype}",'.encode()
    y = f'{{"name":"y","shape":{list(answer.shape)},"datatype":"{answer.datatype}",'.encode()
    said = f'{{"model_name":"{name}","outputs":['.encode()
    header = (
        b'{"inputs":[' + x + b'"parameters":{"binary_data_size":%d}}],' % request.blob_bytes
        + b'"outputs":[{"name":"y","parameters":{"binary_data":true}}]}'
    )  # fmt: skip
    reply_header = said + y + b'"parameters":{"binary_data_size":%d}}]}' % answer.blob_bytes
    write("client_request", header, request.blob())
    write("backend_request", b'{"inputs":[', x, b'"data":[', request.text(), b']}],"outputs":[{"name":"y"}]}')
    write("backend_answer", said, y, b'"data":[', answer.text(), b"]}]}")
    write("client_reply", reply_header, answer.blob())
    write("request_data", b"[", request.text(), b"]")
    (folder / "sizes").write_text(f"{len(header)} {len(reply_header)}")
    return Case(folder)
