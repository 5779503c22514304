"""Several processes on one port: a supervisor with the admin listener, and workers with a data plane each.

The supervisor serves no client. It reserves the port, starts the workers, replaces one that dies, sums their metrics
through files in a folder of its own, has them reload all or none, and drains them together. Each worker binds its own
socket to the port with SO_REUSEPORT, because a single socket that all inherit feeds them unevenly.
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

from gateway.app import Change, DataPlane, new_name, require_sound, settle
from gateway.client import listeners
from gateway.config import Address, Config, decode, encode
from gateway.errors import ConfigError
from gateway.process import control
from gateway.process.admin import AdminListener
from gateway.process.control import Abort, Commit, Committed, Listening, Prepare, Prepared, Report, Start
from gateway.process.descriptors import fit
from gateway.process.reload import keep_fixed
from gateway.telemetry.log_writer import LogWriter, change_level
from gateway.telemetry.metrics import StateCollector

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable that names the folder of metrics files; prometheus_client reads it when it is imported."""

RESTART_S = 1.0
"""How long after a worker's death its replacement is started."""

START_S = 30.0
"""How long a worker may take to listen."""

PREPARE_S = 5.0
"""How long a worker may take to prepare a reload, or to carry it out; beyond it, it is replaced."""

HANG_S = 5.0
"""How much longer than twice `shutdown.grace` a worker may take to end; beyond it, it is killed."""

MAX_ANSWERS = 4
"""The most answers of a worker that wait to be read; it gives one to each question, and is asked one at a time."""

REPORT_S = 0.1
"""How often a worker looks whether the state of its endpoints has changed, and tells the supervisor."""

log = logging.getLogger("gateway")


class _Worker:
    """A worker's process, as the supervisor sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pid = process.pid
        self.is_listening = False
        """Whether it accepts clients, and every reload reaches it."""
        self.share: Config | None = None
        """By what it serves, once it is known to do so."""
        self.report = Report([], "starting")
        self._answers: asyncio.Queue[Listening | Prepared | Committed | None] = asyncio.Queue(MAX_ANSWERS)

    async def read(self, pipe: int) -> None:
        """Take what the worker tells, to the end."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(pipe, "rb")
        )
        try:
            while (message := await control.read(reader, control.UP)) is not None:
                if isinstance(message, Report):
                    self.report = message
                else:
                    self._answers.put_nowait(message)
        except (ValueError, msgspec.MsgspecError, asyncio.QueueFull) as error:
            log.error("worker %d cannot be understood: %s", self.pid, str(error) or "it answers without being asked")
            self.kill()
        finally:
            with contextlib.suppress(asyncio.QueueFull):
                self._answers.put_nowait(None)
            transport.close()

    def tell(self, message: control.Down) -> None:
        """Write to the worker; it is not waited for."""
        assert self.process.stdin is not None
        self.process.stdin.write(control.frame(message))

    async def answer(self, timeout_s: float) -> Listening | Prepared | Committed | None:
        """What it answers; None, and it is killed, if that does not come within *timeout_s* or never will."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._answers.get()
        except TimeoutError:
            log.error("worker %d has not answered within %g s; it is ended", self.pid, timeout_s)
            answer = None
        if answer is None:
            self.kill()
        return answer

    def kill(self) -> None:
        """End it at once."""
        self.is_listening = False
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class Supervisor:
    """Starts the workers of one configuration, replaces those that die, and has them all reload or none."""

    def __init__(self, config: Config) -> None:
        config = fit(config)
        self.listen_url = ""
        self.admin_url = ""
        self.state = StateCollector(lambda: [each for worker in self._serving() for each in worker.report.endpoints])
        self._config = config
        self._listen = config.listen
        """Where the workers listen: with the real port."""
        self._folder = _new_folder()
        self._admin = AdminListener(config.admin, lambda: self._config, self._registry, self._not_ready)
        self._is_draining = False
        self._name = new_name()
        self._workers: dict[int, _Worker] = {}
        self._minders: list[asyncio.Task[None]] = []
        self._readers: set[asyncio.Task[None]] = set()
        """Of what the workers tell."""
        self._changes = asyncio.Lock()
        """Held while workers are brought to another configuration, or join those that are."""
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
        self._listen = address
        workers = await asyncio.gather(*(self._spawn() for _ in range(self._config.workers)))
        self._minders = [asyncio.create_task(self._mind(worker)) for worker in workers]

    def _share(self) -> Config:
        """The configuration of one worker."""
        return msgspec.structs.replace(self._config.share(), listen=self._listen)

    async def _spawn(self) -> _Worker:
        """Start a worker and wait until it listens. Raises `OSError` if it does not."""
        told, tell = os.pipe()
        # the workers of a `unix:` listener share one socket, which cannot be bound a second time
        inherited = []
        if self._config.listen.is_unix and self._port_holder is not None:
            inherited = [self._port_holder.fileno()]
        # until the worker ignores it: a hangup of the terminal goes to all processes, and ends those that do not
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.process.workers", str(tell), self._name, *map(str, inherited)),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[tell, *inherited],
                env={**os.environ, METRICS_FOLDER: str(self._folder)},
            )
        except BaseException:
            os.close(told)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            os.close(tell)
        worker = self._workers[process.pid] = _Worker(process)
        reader = asyncio.create_task(worker.read(told))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)
        worker.share = self._share()
        # standard input stays open: its end tells the worker that the supervisor is gone
        worker.tell(Start(msgspec.Raw(encode(worker.share))))
        if await worker.answer(START_S) is None or not await self._join(worker):
            self._workers.pop(worker.pid, None)
            worker.kill()
            await process.wait()
            for file in self._folder.glob(f"*_{worker.pid}.db"):  # it has counted nothing
                file.unlink(missing_ok=True)
            raise OSError(f"a worker did not start on {self._config.listen}")
        return worker

    async def _join(self, worker: _Worker) -> bool:
        """From now on reloads reach *worker*; what it missed while it started is made up for. False if that fails."""
        async with self._changes:
            if worker.share != (share := self._share()):
                worker.tell(Prepare(msgspec.Raw(encode(share))))
                answer = await worker.answer(PREPARE_S)
                if not isinstance(answer, Prepared) or answer.error is not None:
                    return False
                worker.tell(Commit())
                if await worker.answer(PREPARE_S) is None:
                    return False
                worker.share = share
            worker.is_listening = True
            return True

    async def replace(self, config: Config) -> list[str]:
        """See `Reloadable`. All workers change, or none.

        A worker that dies or does not answer is replaced by one with the configuration that holds: the new one, if
        another worker could prepare it.
        """
        config, kept = keep_fixed(config, self._config)
        config = fit(config, self._config)
        async with self._changes:
            share = msgspec.structs.replace(config.share(), listen=self._listen)
            prepare = Prepare(msgspec.Raw(encode(share)))
            workers = self._serving()
            for worker in workers:
                worker.tell(prepare)
            answers = await asyncio.gather(*(worker.answer(PREPARE_S) for worker in workers))
            prepared = [worker for worker, answer in zip(workers, answers, strict=True) if answer == Prepared()]
            errors = [answer.error for answer in answers if isinstance(answer, Prepared) and answer.error is not None]
            if errors or not prepared:
                for worker in prepared:
                    worker.tell(Abort())
                raise ConfigError(errors[0] if errors else "no worker could prepare it in time")
            # from here on a worker that starts gets the new one
            self._config = config
            change_level(config.logging.level)
            for worker in prepared:
                worker.tell(Commit())
                worker.share = share
            await asyncio.gather(*(worker.answer(PREPARE_S) for worker in prepared))
        return kept

    def _serving(self) -> list[_Worker]:
        return [worker for worker in self._workers.values() if worker.is_listening]

    def _forget_gauges(self, worker: _Worker) -> None:
        """Leave what *worker* had in flight out of the sums, now that it is dead."""
        mark_process_dead(worker.pid, str(self._folder))  # type: ignore[no-untyped-call]

    async def _mind(self, worker: _Worker) -> None:
        """Replace *worker* whenever it dies."""
        while True:
            code = await worker.process.wait()
            worker.is_listening = False
            self._workers.pop(worker.pid, None)
            self._forget_gauges(worker)
            if self._is_draining:
                return
            log.error("worker %d died with code %d; it is replaced", worker.pid, code)
            while True:
                await asyncio.sleep(RESTART_S)
                if self._is_draining:
                    return
                try:
                    worker = await self._spawn()
                    if self._is_draining:  # it was still starting when the others got the signal
                        worker.process.send_signal(signal.SIGTERM)
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
                worker.process.send_signal(signal.SIGTERM)
        # each worker keeps the grace itself; twice that bounds the wait for one that hangs
        shutdown = self._config.shutdown
        if self._minders:
            await asyncio.wait(self._minders, timeout=shutdown.delay + 2 * shutdown.grace + HANG_S)
        for worker in self._workers.values():
            log.error("worker %d has not ended in time; it is killed, with what it has in flight", worker.pid)

    async def stop(self) -> None:
        """End what is left at once."""
        self._is_draining = True
        for task in self._minders:
            task.cancel()
        for worker in list(self._workers.values()):
            worker.kill()
            await worker.process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._admin.stop()
        if self._port_holder is not None:
            listeners.release(self._port_holder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _registry(self) -> CollectorRegistry:
        registry = CollectorRegistry()
        MultiProcessCollector(registry, path=str(self._folder))  # type: ignore[no-untyped-call]
        registry.register(self.state)
        return registry

    def _not_ready(self) -> str | None:
        if self._is_draining:
            return "draining"
        serving = self._serving()
        if len(serving) < self._config.workers:
            return f"{len(serving)} of {self._config.workers} workers accept"
        # every worker, because nobody knows which of them a client comes to
        return next((worker.report.not_usable for worker in serving if worker.report.not_usable is not None), None)


def _new_folder() -> Path:
    """A folder for the workers' metrics. Raises `OSError` that says what it is for."""
    try:
        return Path(tempfile.mkdtemp(prefix="tensor-gateway-"))
    except OSError as error:
        raise OSError(
            error.errno,
            f"no temporary folder can be made, in which several workers sum their metrics: {error.strerror}; "
            "set TMPDIR to a folder that this user may write to, or `workers: 1`",
        ) from None


class _ServingProcess:
    """A worker's own side: serves, and does what the supervisor tells."""

    def __init__(self, config: Config, name: str) -> None:
        """*name* is what all workers of the gateway call it in `Via`. Must be made on a running event loop."""
        self.data_plane = DataPlane(config, name)
        self.stopped = asyncio.Event()
        self._tell: asyncio.WriteTransport | None = None
        self._reported: Report | None = None

    async def run(self, tell: int, inherited: int | None) -> None:
        """Serve until SIGTERM, SIGINT or the end of the supervisor, then drain. Writes to *tell*.

        *inherited* is the descriptor of a socket that all workers share.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopped.set)
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
        """Do what the supervisor tells, in its order."""
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
                    self._report()
                    self._answer(Committed())
                elif isinstance(message, Abort) and prepared is not None:
                    await self.data_plane.abandon(prepared)
                    prepared = None
        except Exception:  # it is not certain what holds here: the supervisor starts another worker
            log.exception("a reload failed half way; this worker ends")
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
        while True:
            await asyncio.sleep(REPORT_S)
            self._report()

    def _report(self) -> None:
        """Tell the state of the endpoints if it has changed, and if the supervisor has read what was told before."""
        report = Report(self.data_plane.readings(), self.data_plane.not_usable())
        assert self._tell is not None
        if report != self._reported and not self._tell.get_write_buffer_size():
            self._reported = report
            self._answer(report)


def main() -> None:
    """Run a worker's process, which gets its configuration on standard input."""
    supervisor = os.getppid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # reloads come from the supervisor
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
    await _ServingProcess(config, name).run(tell, inherited)


if __name__ == "__main__":
    main()
