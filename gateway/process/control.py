"""The messages between the supervisor and its workers: lines of JSON, over a socket that is a worker's standard input.

Not here: how either side acts on a message.
"""

import asyncio
import socket
from typing import Generic, Literal, Self, TypeVar

import msgspec

from gateway.telemetry.counting import Batch
from gateway.telemetry.reading import Reading

MAX_BYTES = 64 * 1024 * 1024
"""The longest message in bytes: a configuration, or a worker's report."""

Step = Literal["serve", "prepare", "commit", "abort", "drain"]


class Order(msgspec.Struct, frozen=True):
    """To a worker: what to do. `serve`, `prepare` and `commit` are answered by `Done`."""

    step: Step
    """First `serve`; for each reload `prepare`, which does all that may fail, and `commit` or `abort`; last `drain`."""
    config: msgspec.Raw = msgspec.Raw(b"null")
    """What to serve by, or what to prepare, as `config.encode` writes it."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """To the supervisor: an order is carried out."""

    error: str | None = None
    """Why a change cannot be prepared, in which case nothing has changed."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """To the supervisor: the worker's state, and its counts since the last report.

    Reports come several times a second, which shows that the worker's event loop runs.
    """

    reading: Reading
    batch: Batch


ORDERS = msgspec.json.Decoder(Order)
ANSWERS = msgspec.json.Decoder(Done | Report)

M = TypeVar("M")


class Channel(Generic[M]):
    """One end of the socket."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: "msgspec.json.Decoder[M]"
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder

    @classmethod
    async def over(cls, end: socket.socket, decoder: "msgspec.json.Decoder[M]") -> Self:
        """The channel over the socket *end*; *decoder* is that of the other end's messages."""
        return cls(*await asyncio.open_connection(sock=end, limit=MAX_BYTES), decoder)

    def send(self, message: Order | Done | Report) -> None:
        """Send *message*, without waiting."""
        self._writer.write(msgspec.json.encode(message) + b"\n")

    @property
    def is_read(self) -> bool:
        """Whether the other end has read, or could read at once, all that was sent."""
        return not self._writer.transport.get_write_buffer_size()

    async def receive(self) -> M | None:
        """The next message; None at the end. Raises `ValueError` for an invalid one."""
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return self._decoder.decode(line) if line.endswith(b"\n") else None

    def close(self) -> None:
        """Close the socket."""
        self._writer.close()
