"""The supervisor of several worker processes that listen on one port.

The supervisor has the admin listener and serves no client. It reserves the port, starts the workers, replaces workers
that die, adds up their counts, lets all of them reload or none, and drains them together.
Not here: the worker's own process (`worker`), and the format of messages (`control`).
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
from prometheus_client import Metric

from gateway.app import new_name, require_usable_files
from gateway.client import listeners
from gateway.client.fronts import addresses
from gateway.config import Address, Config, encode
from gateway.errors import ConfigError
from gateway.process import control
from gateway.process.admin import AdminListener
from gateway.process.control import Abort, Commit, Committed, Listening, Prepare, Prepared, Report, Start
from gateway.process.descriptors import fit
from gateway.process.reload import keep_fixed
from gateway.process.status import Answered, Death, Listens, Status, status_of
from gateway.telemetry.counting import Batch
from gateway.telemetry.log_writer import change_logging
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.reading import Reading

RESTART_S = 1.0
"""How long after a worker's death its replacement is started."""

START_S = 30.0
"""How long a worker may take to listen."""

PREPARE_S = 5.0
"""How long a worker may take to prepare a reload, or to carry it out; a slower worker is replaced."""

HANG_S = 5.0
"""How much longer than twice `shutdown.grace` a worker may take to end before it is killed."""

SILENT_S = 3.0
"""How long after its last message a worker counts as hanging; it sends ten a second."""

_OF_TERMINAL = {signal.SIGHUP, signal.SIGINT}

log = logging.getLogger("gateway")


class _WorkerProcess:
    """A worker's process, as the supervisor sees it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        told: asyncio.StreamReader,
        tell: asyncio.StreamWriter,
        count: Callable[[Batch], bool],
    ) -> None:
        """*count* takes the worker's batches of counts."""
        self.process = process
        self._told = told
        self._tell = tell
        self.pid = process.pid
        self.is_listening = False
        """Whether it accepts clients, and every reload reaches it."""
        self.share: Config | None = None
        """The configuration that it is known to serve by."""
        self.reading: Reading | None = None
        """The worker's last reading; None while it starts."""
        self.heard_s = 0.0
        """When its last message came, by the loop's clock."""
        self._count = count
        self._answers: asyncio.Queue[Listening | Prepared | Committed | None] = asyncio.Queue()
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Read the worker's messages until its end."""
        loop = asyncio.get_running_loop()
        try:
            while (message := await control.read(self._told, control.UP)) is not None:
                self.heard_s = loop.time()
                if isinstance(message, Report):
                    self.reading = message.reading
                    self._count(message.batch)
                else:
                    self._answers.put_nowait(message)
        except ValueError as error:  # for example a message of another version, installed meanwhile
            log.error("worker %d has sent an invalid message: %s", self.pid, error)
            self.kill()
        finally:
            self._answers.put_nowait(None)
            self._tell.close()

    def tell(self, message: control.Down) -> None:
        """Send *message* to the worker, without waiting."""
        self._tell.write(control.frame(message))

    async def answer(self, timeout_s: float) -> Listening | Prepared | Committed | None:
        """The worker's next answer. If none comes within *timeout_s*, the worker is killed; then None."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._answers.get()
        except TimeoutError:
            log.error("worker %d has not answered within %g s; it is killed", self.pid, timeout_s)
            answer = None
        if answer is None:
            self.kill()
        return answer

    def kill(self) -> None:
        """Kill the worker at once."""
        self.is_listening = False
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class Supervisor:
    """Starts the workers of one configuration, replaces those that die, and has them all reload or none."""

    def __init__(self, config: Config) -> None:
        config = fit(config)
        self.listen_url = ""
        self.admin_url = ""
        self.metrics = Metrics(lambda: [reading for _, reading in self._readings()], lambda: self._workers)
        self._config = config
        self.grpc_urls: list[str] = []
        """The URLs for gRPC; empty if it is not configured."""
        self._admin = AdminListener(
            config.admin, lambda: self._config, self._collect, self._not_ready, self._status, self.stalled
        )
        self._last_death: Death | None = None
        self._is_draining = False
        self.name = new_name()
        self._workers: dict[int, _WorkerProcess] = {}
        self._minders: list[asyncio.Task[None]] = []
        self._changes = asyncio.Lock()
        """Held while workers change their configuration, or while a new worker joins them."""
        self._reserved: list[tuple[Address, socket.socket]] = []
        """Where the workers listen, with the real port, and what keeps it for them."""

    @classmethod
    async def start(cls, config: Config) -> "Supervisor":
        """Open the admin listener and start all workers.

        Raises `OSError` if an address cannot be used or a worker not started, `ConfigError` for wrong certificates.
        """
        require_usable_files(config)  # here once, and not in every worker
        supervisor = cls(config)
        try:
            supervisor.admin_url = await supervisor._admin.start()
            await supervisor._start_workers()
        except BaseException:
            await supervisor.stop()
            raise
        return supervisor

    async def _start_workers(self) -> None:
        scheme = "http" if self._config.tls is None else "https"
        urls = []
        for address in addresses(self._config):
            holder = await listeners.reserve(address)
            url = listeners.url_of(address, 0 if address.is_unix else holder.getsockname()[1], scheme)
            self._reserved.append((address if address.is_unix else Address(url.partition("//")[2]), holder))
            urls.append(url)
        self.listen_url, *self.grpc_urls = urls
        workers = await asyncio.gather(*(self._spawn() for _ in range(self._config.workers)))
        self._minders = [asyncio.create_task(self._mind(worker)) for worker in workers]

    async def _spawn(self) -> _WorkerProcess:
        """Start a worker and wait until it listens. Raises `OSError` if it does not."""
        own, its = socket.socketpair()
        given = [its]
        try:
            for address, holder in self._reserved:
                # a `unix:` address cannot be bound a second time
                given.append(holder.dup() if address.is_unix else await listeners.bind_shared(address))
            process = await self._exec(*(each.fileno() for each in given))
        except BaseException:
            own.close()
            raise
        finally:
            for each in given:
                each.close()
        # the end of this socket tells the worker that the supervisor is gone
        told, tell = await asyncio.open_connection(sock=own)
        worker = self._workers[process.pid] = _WorkerProcess(process, told, tell, self.metrics.add)
        worker.share = self._config.share()
        worker.tell(Start(msgspec.Raw(encode(worker.share))))
        if await worker.answer(START_S) is None or not await self._join(worker):
            self._workers.pop(worker.pid, None)
            worker.kill()
            await process.wait()
            await asyncio.wait([worker.reader])
            raise OSError(f"a worker did not start on {self._config.listen}")
        return worker

    async def _exec(self, told: int, *listening: int) -> asyncio.subprocess.Process:
        """Start the process of a worker, with the descriptor of its messages (*told*) and those of its listeners."""
        # blocked until the worker ignores them: a terminal's signals go to all processes, and would end the worker
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINAL)
        try:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.process.worker", self.name, *map(str, listening)),
                stdin=told,
                pass_fds=listening,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_TERMINAL)

    async def _join(self, worker: _WorkerProcess) -> bool:
        """Bring *worker* to the current configuration and include it in reloads; False if that fails."""
        async with self._changes:
            worker.is_listening = True
            try:
                if worker.share != self._config.share():
                    await self._bring([worker], self._config)
            except ConfigError:
                return False
            return worker.is_listening

    async def replace(self, config: Config) -> list[str]:
        """See `Reloadable`. All workers change, or none.

        A worker that dies or does not answer is replaced by one with the configuration in effect. This is the new one
        if another worker could prepare it, or if no worker serves at the moment: it may let workers start again.
        """
        config, kept = keep_fixed(config, self._config)
        async with self._changes:
            await self._bring(self._serving(), fit(config, self._config))
        return kept

    async def _bring(self, workers: list[_WorkerProcess], config: Config) -> None:
        """Let *workers*, and those that start later, serve by *config*. If one refuses: `ConfigError`, and none do."""
        share = config.share()
        prepare = Prepare(msgspec.Raw(encode(share)))
        for worker in workers:
            worker.tell(prepare)
        answers = await asyncio.gather(*(worker.answer(PREPARE_S) for worker in workers))
        prepared = [worker for worker, answer in zip(workers, answers, strict=True) if answer == Prepared()]
        errors = [answer.error for answer in answers if isinstance(answer, Prepared) and answer.error is not None]
        if errors or (workers and not prepared):
            for worker in prepared:
                worker.tell(Abort())
            raise ConfigError(errors[0] if errors else "no worker prepared the reload in time")
        self._config = config
        change_logging(config.logging.level, config.logging.format)
        for worker in prepared:
            worker.tell(Commit())
            worker.share = share
        await asyncio.gather(*(worker.answer(PREPARE_S) for worker in prepared))

    def stalled(self) -> str | None:
        """Which workers hang, in words, for the watchdog and the liveness probe; None if none does."""
        latest_s = asyncio.get_running_loop().time() - SILENT_S
        hanging = [str(worker.pid) for worker in self._serving() if worker.heard_s < latest_s]
        return f"nothing was heard of worker {', '.join(hanging)} for {SILENT_S:g} s" if hanging else None

    def _serving(self) -> list[_WorkerProcess]:
        return [worker for worker in self._workers.values() if worker.is_listening]

    def _readings(self) -> list[tuple[_WorkerProcess, Reading]]:
        """The last readings of the workers that serve."""
        return [(worker, worker.reading) for worker in self._serving() if worker.reading is not None]

    async def _mind(self, worker: _WorkerProcess) -> None:
        """Replace *worker* whenever it dies."""
        while True:
            code = await worker.process.wait()
            worker.is_listening = False
            await asyncio.wait([worker.reader])  # its last counts are read
            self._workers.pop(worker.pid, None)
            if self._is_draining:
                return
            log.error("worker %d died with code %d; it is replaced", worker.pid, code)
            self._last_death = Death(worker.pid, code, time.time())
            self.metrics.workers_replaced += 1
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
        """Let all workers finish their requests in flight, up to `shutdown.grace`."""
        self._is_draining = True
        for address, holder in self._reserved:
            if address.is_unix:
                # else this socket would go on listening, and clients would wait instead of being refused
                holder.close()
        for worker in list(self._workers.values()):
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)
        # each worker keeps to the grace itself; twice the grace bounds the wait for a worker that hangs
        shutdown = self._config.shutdown
        if self._minders:
            await asyncio.wait(self._minders, timeout=shutdown.delay + 2 * shutdown.grace + HANG_S)
        for worker in self._workers.values():
            log.error("worker %d has not ended in time; it is killed, with what it has in flight", worker.pid)

    async def stop(self) -> None:
        """Kill the workers that are left, and close the admin listener."""
        self._is_draining = True
        for task in self._minders:
            task.cancel()
        for worker in list(self._workers.values()):
            worker.kill()
            await worker.process.wait()
            await asyncio.wait([worker.reader])
        await self._admin.stop()
        for _, holder in self._reserved:
            listeners.release(holder)

    async def _collect(self) -> Iterator[Metric]:
        return self.metrics.collect()

    async def _status(self) -> Status:
        started_s = time.time() - asyncio.get_running_loop().time()  # of the loop's clock
        answered = [Answered(reading, started_s + worker.heard_s) for worker, reading in self._readings()]
        listens = Listens(self.listen_url, self.admin_url, self.grpc_urls)
        return status_of(self._config, listens, answered, self.metrics, self._not_ready(), self._last_death)

    def _not_ready(self) -> str | None:
        if self._is_draining:
            return "draining"
        serving = self._serving()
        if len(serving) < self._config.workers:
            return f"{len(serving)} of {self._config.workers} workers accept"
        if (reason := self.stalled()) is not None:
            return reason
        # all workers must be ready, because the kernel decides which of them a client reaches
        return next((reading.not_usable for _, reading in self._readings() if reading.not_usable is not None), None)
