"""One of several worker processes: it serves clients on the shared port, and carries out the supervisor's messages.

Each worker binds its own socket to the port with SO_REUSEPORT, because a single socket that all inherit feeds them
unevenly. Not here: who starts and replaces workers (`supervisor`), and how messages cross the pipes (`control`).
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

    def __init__(self, config: Config, name: str) -> None:
        """*name* is what all workers of the gateway call it in `Via`. Must be made on a running event loop."""
        self.data_plane = DataPlane(config, name, self._deliver)
        self.stopped = asyncio.Event()
        self._tell: asyncio.WriteTransport | None = None

    async def run(self, tell: int, inherited: list[int | None]) -> None:
        """Serve until SIGTERM or the end of the supervisor, then drain. Writes to *tell*.

        *inherited* are the descriptors of sockets that all workers share, for each listener one or None.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stopped.set)
        self._tell, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(tell, "wb", 0))
        obeying: asyncio.Task[None] | None = None
        try:
            shared = [socket.socket(fileno=each) if each is not None else None for each in inherited]
            await self.data_plane.start(shared=True, inherited=shared)
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
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb", 0)
        )
        prepared: Change | None = None
        try:
            while (message := await control.read(reader, control.DOWN)) is not None:
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
        except Exception:  # which configuration holds here is uncertain: the supervisor starts another worker
            log.exception("a reload failed after it had begun to take effect; this worker exits")
        finally:
            self.stopped.set()
            transport.close()

    async def _prepare(self, message: Prepare) -> tuple[Change | None, Prepared]:
        try:
            return await self.data_plane.prepare(decode(bytes(message.config))), Prepared()
        except (ConfigError, OSError) as error:
            return None, Prepared(str(error))
        except Exception as error:
            log.exception("a reload cannot be prepared")
            return None, Prepared(f"internal error: {type(error).__name__}")

    def _deliver(self, batch: Batch) -> bool:
        """Let the supervisor have what was counted; False if it has not read the report before."""
        if self._tell is None or self._tell.get_write_buffer_size():
            return False
        self._answer(Report(self.data_plane.reading(), batch))
        return True

    def _answer(self, message: control.Up) -> None:
        assert self._tell is not None
        self._tell.write(control.frame(message))


def main() -> None:
    """Run a worker's process, which gets its configuration on standard input."""
    for number in (signal.SIGHUP, signal.SIGINT):  # of a terminal they go to all processes; the supervisor decides
        signal.signal(number, signal.SIG_IGN)
    start = control.read_blocking(0, control.DOWN)
    if not isinstance(start, Start):
        return  # the supervisor is gone
    config = decode(bytes(start.config))
    writer = LogWriter(config.logging.level, config.logging.format, f"worker {os.getpid()}")
    writer.start()
    inherited = [int(number) if number != control.NONE else None for number in sys.argv[3:]]
    try:
        asyncio.run(_serve(config, sys.argv[2], int(sys.argv[1]), inherited))
    except (ConfigError, OSError) as error:
        log.error("%s", error)
        sys.exit(1)
    finally:
        writer.stop()


async def _serve(config: Config, name: str, tell: int, inherited: list[int | None]) -> None:
    await _Worker(config, name).run(tell, inherited)


if __name__ == "__main__":
    main()
