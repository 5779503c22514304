"""One of several worker processes: it serves clients on the shared port, and carries out the supervisor's messages.

Each worker binds its own socket to the port with SO_REUSEPORT, because a single socket that all inherit feeds them
unevenly. Not here: who starts and replaces workers (`supervisor`), and how messages cross the pipes (`control`).
"""

import asyncio
import itertools
import logging
import os
import shutil
import signal
import socket
import sys

from gateway.app import Change, DataPlane, settle
from gateway.config import Config, decode
from gateway.errors import ConfigError
from gateway.process import control
from gateway.process.control import (
    METRICS_FOLDER,
    Abort,
    Alive,
    Commit,
    Committed,
    Listening,
    Look,
    Prepare,
    Prepared,
    Report,
    Seen,
    Start,
)
from gateway.process.reading import reading_of
from gateway.telemetry.log_writer import LogWriter

REPORT_S = 0.1
"""How often a worker looks whether the state of its endpoints has changed, and tells the supervisor."""

ALIVE_REPORTS = 5
"""Every so many looks the supervisor is also told that the event loop runs: every half second."""

log = logging.getLogger("gateway")


class _Worker:
    """Serves clients, and carries out the supervisor's messages."""

    def __init__(self, config: Config, name: str) -> None:
        """*name* is what all workers of the gateway call it in `Via`. Must be made on a running event loop."""
        self.data_plane = DataPlane(config, name)
        self.stopped = asyncio.Event()
        self._tell: asyncio.WriteTransport | None = None
        self._reported: Report | None = None

    async def run(self, tell: int, inherited: int | None) -> None:
        """Serve until SIGTERM or the end of the supervisor, then drain. Writes to *tell*.

        *inherited* is the descriptor of a socket that all workers share.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.stopped.set)
        self._tell, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(tell, "wb", 0))
        obeying: asyncio.Task[None] | None = None
        reporting: asyncio.Task[None] | None = None
        try:
            shared = socket.socket(fileno=inherited) if inherited is not None else None
            await self.data_plane.start(shared=True, inherited=shared)
            settle()
            self._report()
            self._answer(Listening())
            obeying = asyncio.create_task(self._obey())
            reporting = asyncio.create_task(self._report_changes())
            await self.stopped.wait()
            await self.data_plane.drain()
        finally:
            for task in (obeying, reporting):
                if task is not None:
                    task.cancel()
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
                if isinstance(message, Look):
                    self._answer(Seen(reading_of(self.data_plane)))
                elif isinstance(message, Prepare):
                    prepared, answer = await self._prepare(message)
                    self._answer(answer)
                elif isinstance(message, Commit) and prepared is not None:
                    await self.data_plane.commit(prepared)
                    prepared = None
                    self._report()
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

    def _answer(self, message: control.Up) -> None:
        assert self._tell is not None
        self._tell.write(control.frame(message))

    async def _report_changes(self) -> None:
        for turn in itertools.count():
            await asyncio.sleep(REPORT_S)
            self._report()
            assert self._tell is not None
            if turn % ALIVE_REPORTS == 0 and not self._tell.get_write_buffer_size():
                self._answer(Alive())

    def _report(self) -> None:
        """Report the state of the endpoints if it has changed and the supervisor has read the last report."""
        report = Report(self.data_plane.readings(), self.data_plane.not_usable(), self.data_plane.expiries())
        assert self._tell is not None
        if report != self._reported and not self._tell.get_write_buffer_size():
            self._reported = report
            self._answer(report)


def main() -> None:
    """Run a worker's process, which gets its configuration on standard input."""
    supervisor = os.getppid()
    for number in (signal.SIGHUP, signal.SIGINT):  # of a terminal they go to all processes; the supervisor decides
        signal.signal(number, signal.SIG_IGN)
    start = control.read_blocking(0, control.DOWN)
    if not isinstance(start, Start):
        return  # the supervisor is gone
    config = decode(bytes(start.config))
    writer = LogWriter(config.logging.level, f"worker {os.getpid()}")
    writer.start()
    inherited = int(sys.argv[3]) if len(sys.argv) > 3 else None
    try:
        asyncio.run(_serve(config, sys.argv[2], int(sys.argv[1]), inherited))
    except (ConfigError, OSError) as error:
        log.error("%s", error)
        sys.exit(1)
    finally:
        writer.stop()
        if os.getppid() != supervisor:  # it was killed, and has left the folder behind
            shutil.rmtree(os.environ[METRICS_FOLDER], ignore_errors=True)


async def _serve(config: Config, name: str, tell: int, inherited: int | None) -> None:
    await _Worker(config, name).run(tell, inherited)


if __name__ == "__main__":
    main()
