"""The messages between the supervisor and its workers, in frames, over a socket that is a worker's standard input.

Down: the configuration to start with, and the two steps of a reload. Up: that the worker listens, how each step went,
what it says of itself, and what it has counted. Not here: what either side does with a message.
"""

import asyncio
from typing import TypeVar

import msgspec

from gateway.telemetry.counting import Batch
from gateway.telemetry.reading import Reading

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The longest message: a configuration, or what a worker says of itself or has counted."""

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


class Listening(msgspec.Struct, frozen=True, tag=True):
    """Up: clients are accepted."""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Up: the answer to `Prepare`."""

    error: str | None = None
    """Why it cannot be done; nothing has changed then."""


class Committed(msgspec.Struct, frozen=True, tag=True):
    """Up: the answer to `Commit`."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """Up: what the worker says of itself, and has counted since the last report. Has no answer.

    It comes several times a second, and so says that the worker's event loop runs.
    """

    reading: Reading
    batch: Batch


Down = Start | Prepare | Commit | Abort
Up = Listening | Prepared | Committed | Report

DOWN = msgspec.json.Decoder(Down)
"""Of the messages to a worker."""

UP = msgspec.json.Decoder(Up)
"""Of the messages from a worker."""

M = TypeVar("M")


def frame(message: Down | Up) -> bytes:
    """*message* as it crosses the socket: its length, then JSON."""
    text = msgspec.json.encode(message)
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


async def read(reader: asyncio.StreamReader, decoder: "msgspec.json.Decoder[M]") -> M | None:
    """The next message; None at the end. Raises `ValueError` for an invalid one."""
    try:
        n_bytes = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        if n_bytes > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {n_bytes} bytes, at most {MAX_FRAME_BYTES} are allowed")
        return decoder.decode(await reader.readexactly(n_bytes))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
