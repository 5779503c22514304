"""The messages between the supervisor and its workers, in frames, over a socket that is a worker's standard input.

Down (to a worker): the configuration to start with, and the two steps of a reload. Up (to the supervisor): that the
worker listens, the result of each step, the worker's state and its counts. Not here: how either side acts on a message.
"""

import asyncio
from typing import TypeVar

import msgspec

from gateway.telemetry.counting import Batch
from gateway.telemetry.reading import Reading

MAX_FRAME_BYTES = 64 * 1024 * 1024
"""The longest message in bytes: a configuration, or a worker's report."""

_LENGTH_BYTES = 4


class Start(msgspec.Struct, frozen=True, tag=True):
    """Down, first: serve by this configuration, as `config.encode` writes it."""

    config: msgspec.Raw


class Prepare(msgspec.Struct, frozen=True, tag=True):
    """Down: do all steps of a change to this configuration that may fail; answered by `Prepared`."""

    config: msgspec.Raw


class Commit(msgspec.Struct, frozen=True, tag=True):
    """Down: serve by the prepared configuration; answered by `Committed`."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Down: give up the prepared configuration. Has no answer."""


class Listening(msgspec.Struct, frozen=True, tag=True):
    """Up: clients are accepted."""


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """Up: the answer to `Prepare`."""

    error: str | None = None
    """Why the change is not possible, in which case nothing has changed; None if it is prepared."""


class Committed(msgspec.Struct, frozen=True, tag=True):
    """Up: the answer to `Commit`."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """Up: the worker's state, and its counts since the last report. Has no answer.

    Reports come several times a second, which shows that the worker's event loop runs.
    """

    reading: Reading
    batch: Batch


Down = Start | Prepare | Commit | Abort
Up = Listening | Prepared | Committed | Report

DOWN = msgspec.json.Decoder(Down)
"""The decoder of messages to a worker."""

UP = msgspec.json.Decoder(Up)
"""The decoder of messages from a worker."""

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
