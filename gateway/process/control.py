"""The messages between the supervisor and its workers, in frames, over one pipe each way.

Down, on a worker's standard input: the configuration to start with, the two steps of a reload, and questions for the
status page. Up: that the worker listens, how each step went, the state of its endpoints, answers to the questions, and
that it is alive. Not here: what either side does with a message.
"""

import asyncio
import os
from typing import TypeVar

import msgspec

from gateway.process.reading import ProcessReading
from gateway.telemetry.metrics import EndpointReading

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that names the folder of metrics files; prometheus_client reads it when it is imported."""

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The longest message: a configuration, or the state of all endpoints of one worker."""

_LENGTH_BYTES = 4


class Start(msgspec.Struct, frozen=True, tag=True):
    """Down, first: serve by this configuration, as `config.encode` writes it."""

    config: msgspec.Raw


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Down: do every step of a change to this configuration that can fail; answered by `Prepared`."""

    config: msgspec.Raw


class Commit(msgspec.Struct, frozen=True, tag=True):
    """Down: serve by what was prepared; answered by `Committed`."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Down: forget what was prepared. Has no answer."""


class Look(msgspec.Struct, frozen=True, tag=True):
    """Down: asks for a reading of the worker, for the status page. Answered by `Seen`."""


class Listening(msgspec.Struct, frozen=True, tag=True):
    """Up: clients are accepted."""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Up: the answer to `Prepare`."""

    error: str | None = None
    """Why it cannot be done; nothing has changed then."""


class Committed(msgspec.Struct, frozen=True, tag=True):
    """Up: the answer to `Commit`."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """Up: the state of all endpoints of the worker, when it has changed."""

    endpoints: list[EndpointReading]
    not_usable: str | None = None
    """Why no request can succeed; None if some backend is usable."""
    expiries: dict[str, float] = {}
    """When the worker's own certificates expire, by their use."""


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Up: the worker's event loop runs; sent again and again. Has no answer."""


class Seen(msgspec.Struct, frozen=True, tag=True):
    """Up: the answer to `Look`."""

    reading: ProcessReading


Down = Start | Prepare | Commit | Abort | Look
Up = Listening | Prepared | Committed | Report | Seen | Alive

DOWN = msgspec.json.Decoder(Down)
"""Of the messages to a worker."""

UP = msgspec.json.Decoder(Up)
"""Of the messages from a worker."""

M = TypeVar("M")


def frame(message: Down | Up) -> bytes:
    """*message* as it crosses a pipe: its length, then JSON."""
    text = msgspec.json.encode(message)
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


async def read(reader: asyncio.StreamReader, decoder: "msgspec.json.Decoder[M]") -> M | None:
    """The next message; None at the end. Raises `ValueError` or `MsgspecError` for an invalid one."""
    try:
        n_bytes = _checked_length(await reader.readexactly(_LENGTH_BYTES))
        return decoder.decode(await reader.readexactly(n_bytes))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def read_blocking(descriptor: int, decoder: "msgspec.json.Decoder[M]") -> M | None:
    """As `read`, before there is an event loop; nothing beyond the message is taken from *descriptor*."""
    length = _read_exactly(descriptor, _LENGTH_BYTES)
    text = _read_exactly(descriptor, _checked_length(length)) if length is not None else None
    return decoder.decode(text) if text is not None else None


def _checked_length(length: bytes) -> int:
    n_bytes = int.from_bytes(length, "big")
    if n_bytes > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {n_bytes} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return n_bytes


def _read_exactly(descriptor: int, n_bytes: int) -> bytes | None:
    text = b""
    while len(text) < n_bytes:
        piece = os.read(descriptor, n_bytes - len(text))
        if not piece:
            return None
        text += piece
    return text
