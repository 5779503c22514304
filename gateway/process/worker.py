"""One of several worker processes: it serves clients on the shared port, and obeys the supervisor's messages.

Each worker has its own socket on the port, by SO_REUSEPORT, because the kernel spreads connections of one inherited
socket unevenly. Not here: starting and replacing workers (`supervisor`), and the format of messages (`control`).
"""

import asyncio
import logging
import os
import signal
import socket
import sys

from gateway.app import DataPlane, settle
from gateway.config import Config, decode
from gateway.errors import ConfigError
from gateway.process.control import Channel, Done, Report, Serve
from gateway.telemetry.counting import Batch
from gateway.telemetry.log_writer import LogWriter

log = logging.getLogger("gateway")


class _Worker:
    """Serves clients, and carries out the supervisor's orders."""

    def __init__(self, config: Config, name: str, channel: Channel) -> None:
        """*name* is the gateway's name in `Via`, the same in all workers. Must be made on a running event loop."""
        self._channel = channel
        self.data_plane = DataPlane(config, name, self._deliver)
        self.stopped = asyncio.Event()

    async def run(self, sockets: list[socket.socket]) -> None:
        """Serve on *sockets* until it is told to drain, by SIGTERM too, or the supervisor ends; then drain."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopped.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the supervisor has blocked it
        obeying: asyncio.Task[None] | None = None
        try:
            await self.data_plane.start(sockets)
            settle()
            self._channel.send(Done())
            obeying = asyncio.create_task(self._obey())
            await self.stopped.wait()
            await self.data_plane.drain()
        finally:
            if obeying is not None:
                obeying.cancel()
            await self.data_plane.stop()
            self._channel.close()

    async def _obey(self) -> None:
        """Serve by each configuration that the supervisor sends, until it says `Drain` or ends."""
        while isinstance(order := await self._channel.receive(), Serve):
            error = None
            try:
                await self.data_plane.replace(decode(bytes(order.config)))
            except (ConfigError, OSError) as why:
                error = str(why)
            except Exception as why:
                log.exception("a reload failed")
                error = f"internal error: {type(why).__name__}"
            self._channel.send(Done(error))
        self.stopped.set()

    def _deliver(self, batch: Batch) -> bool:
        """Send the counts to the supervisor; False if it has not read the previous report yet."""
        if not self._channel.is_read:
            return False
        self._channel.send(Report(self.data_plane.reading(), batch))
        return True


def main() -> None:
    """Run a worker's process; its configuration comes with the first message on standard input."""
    for number in (signal.SIGHUP, signal.SIGINT):  # sent to all processes; the supervisor decides
        signal.signal(number, signal.SIG_IGN)
    name, *inherited = sys.argv[1:]
    sys.exit(asyncio.run(_serve(name, [socket.socket(fileno=int(number)) for number in inherited])))


async def _serve(name: str, sockets: list[socket.socket]) -> int:
    """Serve on *sockets* as the supervisor says; the exit code."""
    channel = await Channel.over(socket.socket(fileno=0))
    if not isinstance(order := await channel.receive(), Serve):
        return 0  # the supervisor is gone
    config = decode(bytes(order.config))
    writer = LogWriter(config.logging.level, config.logging.format, f"worker {os.getpid()}")
    writer.start()
    try:
        await _Worker(config, name, channel).run(sockets)
    except (ConfigError, OSError) as error:
        log.error("%s", error)
        return 1
    finally:
        writer.stop()
    return 0


if __name__ == "__main__":
    main()
