"""One of several worker processes: it serves clients on the shared port, and obeys the supervisor's messages.

The messages are lines of JSON, over a socket that is a worker's standard input; when they end, the worker drains. Each
worker has its own socket on the port, by SO_REUSEPORT, because the kernel spreads connections of one inherited socket
unevenly.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from typing import NamedTuple, Self

import msgspec

from gateway.app import DataPlane, settle
from gateway.backend.tasks import Tasks
from gateway.config import Config, decode
from gateway.errors import ConfigError
from gateway.telemetry.counting import Batch
from gateway.telemetry.log_writer import LogWriter
from gateway.telemetry.reading import Reading

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The longest message in bytes: a configuration, or a worker's report."""

log = logging.getLogger("gateway")


class Serve(msgspec.Struct, frozen=True, tag=True):
    """To a worker: serve by this configuration, for the first time or from now on; answered by `Done`."""

    config: msgspec.Raw
    """As `config.encode` writes it."""


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


Message = Serve | Done | Report

_decode = msgspec.json.Decoder(Message).decode


class Channel(NamedTuple):
    """One end of the socket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """The channel over the socket *end*."""
        return cls(*await asyncio.open_connection(sock=end, limit=MAX_MESSAGE_BYTES))

    def send(self, message: Message) -> None:
        """Send *message*, without waiting."""
        self.writer.write(msgspec.json.encode(message) + b"\n")

    async def receive(self) -> Message | None:
        """The next message; None at the end. Raises `ValueError` for an invalid one."""
        try:
            line = await self.reader.readline()
        except ConnectionError:
            return None
        return _decode(line) if line.endswith(b"\n") else None


def main() -> None:
    """Run a worker's process; its configuration comes with the first message on standard input."""
    for number in (signal.SIGHUP, signal.SIGINT):  # sent to all processes; the supervisor decides
        signal.signal(number, signal.SIG_IGN)
    name, *inherited = sys.argv[1:]
    sys.exit(asyncio.run(_serve(name, [socket.socket(fileno=int(number)) for number in inherited])))


async def _serve(name: str, sockets: list[socket.socket]) -> int:
    """Serve on *sockets* by what the supervisor sends; the exit code. *name* is the gateway's in `Via`."""
    channel = await Channel.over(socket.socket(fileno=0))
    if not isinstance(order := await channel.receive(), Serve):
        return 0  # the supervisor is gone
    config = decode(bytes(order.config))
    writer = LogWriter(config.logging.level, config.logging.format, f"worker {os.getpid()}")
    writer.start()
    try:
        await _serve_until_told(config, name, channel, sockets)
    except (ConfigError, OSError) as error:
        log.error("%s", error)
        return 1
    finally:
        writer.stop()
        channel.writer.close()
    return 0


async def _serve_until_told(config: Config, name: str, channel: Channel, sockets: list[socket.socket]) -> None:
    """Serve until the supervisor's messages end, or until SIGTERM; then drain."""

    def deliver(batch: Batch) -> bool:
        """Send the counts to the supervisor; False if it has not read the previous report yet."""
        if channel.writer.transport.get_write_buffer_size():
            return False
        channel.send(Report(plane.reading(), batch))
        return True

    plane = DataPlane(config, name, deliver)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the supervisor has blocked it
    beside = Tasks()
    try:
        await plane.start(sockets)
        settle()
        channel.send(Done())
        beside.begin(_obey(plane, channel)).add_done_callback(lambda _: stopped.set())
        await stopped.wait()
        await plane.drain()
    finally:
        await beside.close()
        await plane.stop()


async def _obey(plane: DataPlane, channel: Channel) -> None:
    """Serve by each configuration that the supervisor sends, until its messages end."""
    while isinstance(order := await channel.receive(), Serve):
        error = None
        try:
            await plane.replace(decode(bytes(order.config)))
        except (ConfigError, OSError) as why:
            error = str(why)
        except Exception as why:
            log.exception("a reload failed")
            error = f"internal error: {type(why).__name__}"
        channel.send(Done(error))


if __name__ == "__main__":
    main()
