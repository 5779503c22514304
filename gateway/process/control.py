"""The messages between the supervisor and its workers: lines of JSON, over a socket that is a worker's standard input.

Not here: how either side acts on a message.
"""

import asyncio
import socket
from typing import Self

import msgspec

from gateway.telemetry.counting import Batch
from gateway.telemetry.reading import Reading

MAX_BYTES = 64 * 1024 * 1024
"""The longest message in bytes: a configuration, or a worker's report."""


class Serve(msgspec.Struct, frozen=True, tag=True):
    """To a worker: serve by this configuration, for the first time or from now on; answered by `Done`."""

    config: msgspec.Raw
    """As `config.encode` writes it."""


class Drain(msgspec.Struct, frozen=True, tag=True):
    """To a worker: finish the requests in flight, and end."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """To the supervisor: the worker serves by the configuration."""

    error: str | None = None
    """Why it cannot, in which case nothing has changed."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """To the supervisor: the worker's state, and its counts since the last report.

    Reports come several times a second, which shows that the worker's event loop runs.
    """

    reading: Reading
    batch: Batch


Message = Serve | Drain | Done | Report

_decode = msgspec.json.Decoder(Message).decode


class Channel:
    """One end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """The channel over the socket *end*."""
        return cls(*await asyncio.open_connection(sock=end, limit=MAX_BYTES))

    def send(self, message: Message) -> None:
        """Send *message*, without waiting."""
        self._writer.write(msgspec.json.encode(message) + b"\n")

    @property
    def is_read(self) -> bool:
        """Whether the other end has read, or could read at once, all that was sent."""
        return not self._writer.transport.get_write_buffer_size()

    async def receive(self) -> Message | None:
        """The next message; None at the end. Raises `ValueError` for an invalid one."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return _decode(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Close the socket."""
        self._writer.close()
