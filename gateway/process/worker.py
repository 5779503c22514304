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

from gateway.app import Change, DataPlane, settle
from gateway.config import Config, decode
from gateway.errors import ConfigError
from gateway.process import control
from gateway.process.control import Abort, Commit, Committed, Listening, Prepare, Prepared, Report, Start
from gateway.telemetry.counting import Batch
from gateway.telemetry.log_writer import LogWriter

log = logging.getLogger("gateway")


class _Worker:
    """Serves clients, and carries out the supervisor's messages."""

    def __init__(self, config: Config, name: str, told: asyncio.StreamReader, tell: asyncio.StreamWriter) -> None:
        """*name* is the gateway's name in `Via`, the same in all workers. Must be made on a running event loop."""
        self._told = told
        self._tell = tell
        self.data_plane = DataPlane(config, name, self._deliver)
        self.stopped = asyncio.Event()

    async def run(self, sockets: list[socket.socket]) -> None:
        """Serve on *sockets* until SIGTERM or the end of the supervisor, then drain."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stopped.set)
        obeying: asyncio.Task[None] | None = None
        try:
            await self.data_plane.start(sockets)
            settle()
            self._answer(Listening())
            obeying = asyncio.create_task(self._obey())
            await self.stopped.wait()
            await self.data_plane.drain()
        finally:
            if obeying is not None:
                obeying.cancel()
            await self.data_plane.stop()
            self._tell.close()

    async def _obey(self) -> None:
        """Carry out the supervisor's messages, in their order."""
        prepared: Change | None = None
        try:
            while (message := await control.read(self._told, control.DOWN)) is not None:
                if isinstance(message, Prepare):
                    prepared, answer = await self._prepare(message)
                    self._answer(answer)
                elif isinstance(message, Commit) and prepared is not None:
                    await self.data_plane.commit(prepared)
                    prepared = None
                    self._answer(Committed())
                elif isinstance(message, Abort) and prepared is not None:
                    await self.data_plane.abandon(prepared)
                    prepared = None
        except Exception:  # the configuration in effect here is uncertain: end, and be replaced
            log.exception("a reload failed after it had begun to take effect; this worker exits")
        finally:
            self.stopped.set()

    async def _prepare(self, message: Prepare) -> tuple[Change | None, Prepared]:
        try:
            return await self.data_plane.prepare(decode(bytes(message.config))), Prepared()
        except (ConfigError, OSError) as error:
            return None, Prepared(str(error))
        except Exception as error:
            log.exception("a reload cannot be prepared")
            return None, Prepared(f"internal error: {type(error).__name__}")

    def _deliver(self, batch: Batch) -> bool:
        """Send the counts to the supervisor; False if it has not read the previous report yet."""
        if self._tell.transport.get_write_buffer_size():
            return False
        self._answer(Report(self.data_plane.reading(), batch))
        return True

    def _answer(self, message: control.Up) -> None:
        self._tell.write(control.frame(message))


def main() -> None:
    """Run a worker's process; its configuration comes as the first message on standard input."""
    for number in (signal.SIGHUP, signal.SIGINT):  # of a terminal they go to all processes; the supervisor decides
        signal.signal(number, signal.SIG_IGN)
    name, *inherited = sys.argv[1:]
    sys.exit(asyncio.run(_serve(name, [socket.socket(fileno=int(number)) for number in inherited])))


async def _serve(name: str, sockets: list[socket.socket]) -> int:
    """Serve on *sockets* as the supervisor says; the exit code."""
    told, tell = await asyncio.open_connection(sock=socket.socket(fileno=0))
    start = await control.read(told, control.DOWN)
    if not isinstance(start, Start):
        return 0  # the supervisor is gone
    config = decode(bytes(start.config))
    writer = LogWriter(config.logging.level, config.logging.format, f"worker {os.getpid()}")
    writer.start()
    try:
        await _Worker(config, name, told, tell).run(sockets)
    except (ConfigError, OSError) as error:
        log.error("%s", error)
        return 1
    finally:
        writer.stop()
    return 0


if __name__ == "__main__":
    main()
