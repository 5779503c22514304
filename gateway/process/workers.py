"""Several processes on one port: a supervisor with the admin listener, and workers with a data plane each.

The supervisor serves no client. It reserves the port, starts the workers, replaces one that dies, sums their metrics
through files in a folder of its own, and drains them together. Each worker binds its own socket to the port with
SO_REUSEPORT, because a single socket that all inherit feeds them unevenly.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from gateway.app import DataPlane, new_name, settle
from gateway.certificates import require_sound
from gateway.client import listeners
from gateway.config import Address, Config, decode, encode
from gateway.process.admin import AdminListener
from gateway.process.descriptors import fit
from gateway.telemetry.log_writer import LogWriter

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that names the folder of metrics files; prometheus_client reads it when it is imported."""

RESTART_S = 1.0
"""How long after a worker's death its replacement is started."""

START_S = 30.0
"""How long a worker may take to listen."""

log = logging.getLogger("gateway")


class Supervisor:
    """Starts the workers of one configuration and replaces those that die."""

    def __init__(self, config: Config) -> None:
        config = fit(config)
        self.listen_url = ""
        self.admin_url = ""
        self._config = config
        self._folder = Path(tempfile.mkdtemp(prefix="tensor-gateway-"))
        self._admin = AdminListener(config, self._registry, self._not_ready)
        self._is_draining = False
        self._name = new_name()
        self._workers: dict[int, asyncio.subprocess.Process] = {}
        self._listening: set[int] = set()
        """The processes of `_workers` that accept clients."""
        self._minders: list[asyncio.Task[None]] = []
        self._port_holder: socket.socket | None = None

    @classmethod
    async def start(cls, config: Config) -> "Supervisor":
        """Open the admin listener and start all workers.

        Raises `OSError` if an address or a worker cannot be had, and `ConfigError` for wrong certificates.
        """
        require_sound(config)  # here once, and not in every worker
        supervisor = cls(config)
        try:
            supervisor.admin_url = await supervisor._admin.start()
            await supervisor._start_workers()
        except BaseException:
            await supervisor.stop()
            raise
        return supervisor

    async def _start_workers(self) -> None:
        address = self._config.listen
        self._port_holder = await listeners.reserve(address)
        if not address.is_unix:
            port = self._port_holder.getsockname()[1]
            address = Address(f"{address.rpartition(':')[0]}:{port}")
        scheme = "http" if self._config.tls is None else "https"
        self.listen_url = listeners.url_of(address, 0 if address.is_unix else address.port, scheme)
        share = encode(msgspec.structs.replace(self._config.share(), listen=address))
        workers = await asyncio.gather(*(self._spawn(share) for _ in range(self._config.workers)))
        self._minders = [asyncio.create_task(self._mind(worker, share)) for worker in workers]

    async def _spawn(self, config: bytes) -> asyncio.subprocess.Process:
        """Start a worker and wait until it listens. Raises `OSError` if it does not."""
        listening, tell = os.pipe()
        # the workers of a `unix:` listener share one socket, which cannot be bound a second time
        inherited = []
        if self._config.listen.is_unix and self._port_holder is not None:
            inherited = [self._port_holder.fileno()]
        try:
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.process.workers", str(tell), self._name, *map(str, inherited)),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[tell, *inherited],
                env={**os.environ, METRICS_FOLDER: str(self._folder)},
            )
        except BaseException:
            os.close(listening)
            raise
        finally:
            os.close(tell)
        self._workers[worker.pid] = worker
        assert worker.stdin is not None
        # standard input stays open: its end tells the worker that the supervisor is gone
        worker.stdin.write(len(config).to_bytes(4, "big") + config)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(listening, "rb")
        )
        try:
            told = await asyncio.wait_for(reader.read(1), START_S)
        except TimeoutError:
            told = b""
        finally:
            transport.close()
        if not told:
            self._workers.pop(worker.pid, None)
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()
            self._forget_gauges(worker)
            raise OSError(f"a worker did not start on {self._config.listen}")
        self._listening.add(worker.pid)
        return worker

    def _forget_gauges(self, worker: asyncio.subprocess.Process) -> None:
        """Leave what *worker* had in flight out of the sums, now that it is dead."""
        mark_process_dead(worker.pid, str(self._folder))  # type: ignore[no-untyped-call]

    async def _mind(self, worker: asyncio.subprocess.Process, config: bytes) -> None:
        """Replace *worker* whenever it dies."""
        while True:
            code = await worker.wait()
            self._workers.pop(worker.pid, None)
            self._listening.discard(worker.pid)
            self._forget_gauges(worker)
            if self._is_draining:
                return
            log.error("worker %d died with code %d; it is replaced", worker.pid, code)
            while True:
                await asyncio.sleep(RESTART_S)
                if self._is_draining:
                    return
                try:
                    worker = await self._spawn(config)
                    if self._is_draining:  # it was still starting when the others got the signal
                        worker.send_signal(signal.SIGTERM)
                    break
                except OSError as error:
                    log.error("%s; trying again", error)

    async def drain(self) -> None:
        """Let all workers finish what is in flight, up to `shutdown.grace`."""
        self._is_draining = True
        if self._config.listen.is_unix and self._port_holder is not None:
            # it listens as long as anybody has it: clients that come when the workers have stopped are refused
            self._port_holder.close()
        for worker in list(self._workers.values()):
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGTERM)
        # each worker keeps the grace itself; twice that bounds the wait for one that hangs
        shutdown = self._config.shutdown
        if self._minders:
            await asyncio.wait(self._minders, timeout=shutdown.delay + 2 * shutdown.grace + 5)

    async def stop(self) -> None:
        """End what is left at once."""
        self._is_draining = True
        for task in self._minders:
            task.cancel()
        for worker in list(self._workers.values()):
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()
        await self._admin.stop()
        if self._port_holder is not None:
            listeners.release(self._port_holder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        return registry

    def _not_ready(self) -> str | None:
        if self._is_draining:
            return "draining"
        accepting = len(self._listening)
        return None if accepting == self._config.workers else f"{accepting} of {self._config.workers} workers accept"


async def work(config: Config, tell: int, name: str, inherited: int | None) -> None:
    """Serve until SIGTERM, SIGINT or the end of standard input, then drain. Writes to *tell* once it listens.

    *name* is what all workers of the gateway call it in `Via`; *inherited* the descriptor of a socket that all share.
    """
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    loop.add_reader(0, stopped.set)
    data_plane = DataPlane(config, name)
    try:
        await data_plane.start(shared=True, inherited=socket.socket(fileno=inherited) if inherited else None)
        settle()
        os.write(tell, b"!")
        os.close(tell)
        await stopped.wait()
        loop.remove_reader(0)
        await data_plane.drain()
    finally:
        await data_plane.stop()


def main() -> None:
    """Run a worker's process, which gets its configuration on standard input."""
    # unbuffered, because the event loop watches the same pipe later
    length = int.from_bytes(os.read(0, 4), "big")
    text = b""
    while len(text) < length:
        piece = os.read(0, length - len(text))
        if not piece:
            return  # the supervisor is gone
        text += piece
    config = decode(text)
    writer = LogWriter(config.logging.level)
    writer.start()
    try:
        inherited = int(sys.argv[3]) if len(sys.argv) > 3 else None
        asyncio.run(work(config, int(sys.argv[1]), sys.argv[2], inherited))
    finally:
        writer.stop()


if __name__ == "__main__":
    main()
