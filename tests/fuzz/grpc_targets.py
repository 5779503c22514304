"""What is fuzzed of gRPC, and the invariant of each target in its first line."""

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any, Protocol, cast
from unittest import mock

from google.protobuf.message import DecodeError

from gateway.client.grpc import inference
from gateway.client.grpc.connection import GrpcConnection
from gateway.client.grpc.heads import encoded
from gateway.client.grpc.messages import CLASSES
from gateway.client.grpc.stream import Message
from gateway.client.request import ClientRequest
from gateway.codec.inference import HeaderLimits, TensorPolicy
from gateway.errors import CodecError, GatewayError
from tests.codec.walk import parsing
from tests.grpc import frames
from tests.steps import run

LIMITS = HeaderLimits(64 * 1024)
KINDS = [*range(11), frames.DATA, frames.HEADERS]
TURNS = 6
"""So often each task goes on between two pieces of what comes."""

_PATHS = ("ModelInfer", "ModelStreamInfer", "ServerLive", "NoSuchCall")
_LOOP = asyncio.new_event_loop()


class Provider(Protocol):
    """What is used of atheris's data provider."""

    def ConsumeIntInRange(self, low: int, high: int) -> int: ...  # noqa: N802
    def ConsumeBytes(self, count: int) -> bytes: ...  # noqa: N802
    def ConsumeBool(self) -> bool: ...  # noqa: N802
    def remaining_bytes(self) -> int: ...


def fuzz_message(data: Provider) -> None:
    """Any message is an inference with the values that protobuf reads in it, or a CodecError.

    Where entries count as long, too: their values never come before protobuf as a whole.
    """
    long_bytes = 8 if data.ConsumeBool() else inference.LONG_BYTES
    message = data.ConsumeBytes(data.remaining_bytes())
    try:
        with mock.patch.object(inference, "LONG_BYTES", long_bytes):
            found = run(inference.read_request(memoryview(message), LIMITS, lambda n_bytes: None))
        body = found.header + b"".join(found.blobs)
        run(parsing(memoryview(body), len(found.header), TensorPolicy(), recover=True))
    except CodecError as error:
        assert str(error)
        return
    try:
        request = CLASSES["ModelInferRequest"].FromString(message)
    except DecodeError:
        raise AssertionError(f"protobuf refuses {message!r}") from None
    header = json.loads(found.header)
    assert [entry["name"] for entry in header["inputs"]] == [tensor.name for tensor in request.inputs]
    assert [entry["shape"] for entry in header["inputs"]] == [list(tensor.shape) for tensor in request.inputs]
    assert header.get("id", "") == request.id
    if request.raw_input_contents:
        assert [bytes(blob) for blob in found.blobs] == list(request.raw_input_contents)
    elif long_bytes == 8:  # the same as where nothing is long
        short = run(inference.read_request(memoryview(message), LIMITS, lambda n_bytes: None))
        assert [bytes(blob) for blob in found.blobs] == [bytes(blob) for blob in short.blobs]


class Transport(asyncio.Transport):
    """A connection to nobody, which keeps nothing."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written_bytes = 0
        self._is_closing = False
        self._is_reading = True

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self._is_closing = True

    def write(self, data: Any) -> None:
        self.written_bytes += len(data)

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True


async def serve_anything(request: ClientRequest) -> None:
    """Read the message, and send as much again."""
    message = request.connection
    assert isinstance(message, Message)
    stream = message.stream
    try:
        n_bytes = 0
        if message.length >= 0 or await message.begin():
            while chunk := await message.read_more():
                n_bytes += len(chunk)
        begun = b"" if stream.is_answered else encoded([(":status", "200")])
        await stream.write([bytes(n_bytes)], cast(Any, SimpleNamespace(breathe=lambda: asyncio.sleep(0))), begun)
        stream.connection.flush()
    except GatewayError as error:
        assert str(error)
    if request.path.endswith("ModelInfer") and not stream.is_closed:
        stream.finish(encoded([("grpc-status", "0")]))


def fuzz_frames(data: Provider) -> None:
    """Whatever comes behind the preface, nothing raises, no call outlives its connection, nothing stays counted."""
    _LOOP.run_until_complete(_connection(data))


async def _connection(data: Provider) -> None:
    failures: list[object] = []
    _LOOP.set_exception_handler(lambda loop, context: failures.append(context))
    held = [0]

    def hold(n_bytes: int) -> None:
        held[0] += n_bytes

    owner = SimpleNamespace(
        limits=SimpleNamespace(head=16 * 1024),
        time=_LOOP.time,
        loop=_LOOP,
        handler=serve_anything,
        hold_unread=hold,
        opened=lambda connection: None,
        closed=lambda connection: hold(-connection.held_bytes),
    )
    connection = GrpcConnection(cast(Any, owner))
    transport = Transport()
    log = logging.getLogger("gateway")
    with mock.patch.object(log, "exception", lambda *args: failures.append(args)):
        connection.connection_made(transport)
        connection.data_received(frames.PREFACE + frames.frame(frames.SETTINGS))
        while data.remaining_bytes() and not transport.is_closing():
            piece = _frame(data)
            cut = data.ConsumeIntInRange(0, len(piece))
            for part in (piece[:cut], piece[cut:]):
                if part and not transport.is_closing():
                    connection.data_received(part)
            if data.ConsumeBool():
                for _ in range(TURNS):
                    await asyncio.sleep(0)
        connection.connection_lost(None)
        connection.cancel()
        for _ in range(4 * TURNS):
            await asyncio.sleep(0)
    assert not failures, failures
    assert not connection._streams
    assert not connection._message_bytes
    assert held[0] == 0, held


def _frame(data: Provider) -> bytes:
    """A frame, most often one that means something, or any bytes."""
    kind = KINDS[data.ConsumeIntInRange(0, len(KINDS) - 1)]
    stream = data.ConsumeIntInRange(0, 7)
    flags = data.ConsumeIntInRange(0, 255) & 0x2D
    way = data.ConsumeIntInRange(0, 3)
    text = data.ConsumeBytes(data.ConsumeIntInRange(0, 24))
    if way == 0:
        return text
    if way == 1:
        return frames.frame(kind, stream, text, flags)
    stream |= 1
    if kind == frames.HEADERS:
        path = f"/inference.GRPCInferenceService/{_PATHS[len(text) % len(_PATHS)]}"
        pairs = [(name, path if name == ":path" else value) for name, value in frames.FIELDS]
        return frames.fields(stream, pairs, frames.END_HEADERS | flags & frames.END_STREAM)
    if kind == frames.DATA:
        body = frames.message(text) if way == 2 else frames.message(text * 3000)[: 9000 * len(text)]
        return b"".join(
            frames.frame(frames.DATA, stream, body[at : at + 16384], flags & frames.END_STREAM)
            for at in range(0, len(body), 16384)
        )
    if kind == frames.SETTINGS:
        return frames.frame(kind, 0, text[: len(text) // 6 * 6])
    if kind in (frames.WINDOW_UPDATE, frames.RST_STREAM):
        return frames.frame(kind, stream if way == 2 else 0, (text + bytes(4))[:4])
    return frames.frame(kind, 0 if kind == frames.PING else stream, (text + bytes(8))[:8], flags)


def message_seeds() -> list[bytes]:
    """Messages of each form, raw and typed."""
    request = CLASSES["ModelInferRequest"](model_name="m", model_version="1", id="a")
    tensor = request.inputs.add(name="x", datatype="INT32", shape=[2])
    typed = type(request).FromString(request.SerializeToString())
    typed.inputs[0].contents.int_contents.extend([1, -300])
    tensor.parameters["p"].int64_param = 5
    request.parameters["q"].string_param = "s"
    request.outputs.add(name="y")
    request.raw_input_contents.append(bytes(8))
    floats = CLASSES["ModelInferRequest"](model_name="m")
    floats.inputs.add(name="x", datatype="FP32", shape=[3]).contents.fp32_contents.extend([1, 2, 3])
    floats.inputs.add(name="s", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a", b"bc"])
    return [bytes(each.SerializeToString()) for each in (request, typed, floats)]
