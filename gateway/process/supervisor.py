"""The supervisor of several worker processes that listen on one port.

The supervisor has the admin listener and serves no client. It reserves the port, starts the workers, replaces workers
that die, adds up their counts, lets all of them reload or none, and drains them together.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable

import msgspec

from gateway.client import listeners
from gateway.config import Address, Config, encode
from gateway.errors import ConfigError
from gateway.process.application import Application
from gateway.process.worker import Channel, Done, Message, Report, Serve
from gateway.telemetry.counting import Batch
from gateway.telemetry.log_writer import change_logging
from gateway.telemetry.reading import Reading

RESTART_S = 1.0
"""How long after a worker's death its replacement is started."""

START_S = 30.0
"""How long a worker may take to listen."""

RELOAD_S = 5.0
"""How long a worker may take for a reload; a slower worker is replaced."""

HANG_S = 5.0
"""How much longer than twice `shutdown.grace` a worker may take to end before it is killed."""

SILENT_S = 3.0
"""How long after its last message a worker counts as hanging; it sends ten a second."""

_OF_ALL = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM}
"""Signals that a terminal or a service manager sends to all processes together."""

log = logging.getLogger("gateway")


class _WorkerProcess:
    """A worker's process, as the supervisor sees it."""

    def __init__(self, process: asyncio.subprocess.Process, channel: Channel, count: Callable[[Batch], bool]) -> None:
        """*count* takes the worker's batches of counts."""
        self.process = process
        self.pid = process.pid
        self.is_listening = False
        """Whether it accepts clients, and every reload reaches it."""
        self.reading: Reading | None = None
        """The worker's last reading; None while it starts."""
        self.heard_s = 0.0
        """When its last message came, by the loop's clock."""
        self._channel = channel
        self._count = count
        self._answers: asyncio.Queue[Message | None] = asyncio.Queue()
        self._is_draining = False
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Read the worker's messages until its end."""
        loop = asyncio.get_running_loop()
        try:
            while (message := await self._channel.receive()) is not None:
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
            self._channel.writer.close()

    def drain(self) -> None:
        """Tell the worker to finish its requests and to end, without waiting."""
        self._is_draining = True
        self._channel.writer.write_eof()

    async def serve(self, share: Config, timeout_s: float) -> Done | None:
        """Let the worker serve by *share*; its answer. If none comes within *timeout_s*, it is given up; then None."""
        if self._is_draining:
            return None
        self._channel.send(Serve(msgspec.Raw(encode(share))))
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._answers.get()
        except TimeoutError:
            log.error("worker %d has not answered within %g s", self.pid, timeout_s)
            answer = None
        if isinstance(answer, Done):
            return answer
        self.give_up()
        return None

    def give_up(self) -> None:
        """Kill the worker, unless it was told to drain: then it ends by itself, when its requests have ended."""
        if not self._is_draining:
            self.kill()

    def kill(self) -> None:
        """Kill the worker at once."""
        self.is_listening = False
        if self.process.returncode is None:
            # not by `Process.kill`: if the process has just died, that takes its exit code away from asyncio
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Wait for the worker's end, and until its last counts are read; returns the exit code."""
        code = await self.process.wait()
        self.is_listening = False
        await asyncio.wait([self.reader])
        return code


class Supervisor(Application):
    """Starts the workers of one configuration, replaces those that die, and has them all reload or none."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._is_draining = False
        self._workers: dict[int, _WorkerProcess] = {}
        self._minders: list[asyncio.Task[None]] = []
        self._changes = asyncio.Lock()
        """Held while workers change their configuration, or while a new worker joins them."""
        self._reserved: list[tuple[Address, socket.socket]] = []
        """Where the workers listen, with the real port, and what keeps it for them."""

    async def _serve(self) -> list[str]:
        self._ending.push_async_callback(self._end)
        scheme = "http" if self.config.tls is None else "https"
        urls = []
        for address in listeners.addresses(self.config):
            holder = await listeners.reserve(address)
            url = listeners.url_of(address, 0 if address.is_unix else holder.getsockname()[1], scheme)
            self._reserved.append((address if address.is_unix else Address(url.partition("//")[2]), holder))
            urls.append(url)
        workers = await asyncio.gather(*(self._spawn() for _ in range(self.config.workers)))
        self._minders = [asyncio.create_task(self._mind(worker)) for worker in workers]
        self._ending.callback(asyncio.create_task(self._listen()).cancel)
        return urls

    async def _spawn(self) -> _WorkerProcess:
        """Start a worker and wait until it listens. Raises `OSError` if it does not."""
        own, its = socket.socketpair()
        given = [its]
        try:
            for address, holder in self._reserved:
                # a `unix:` address cannot be bound a second time
                given.append(holder.dup() if address.is_unix else await listeners.bind(address, is_shared=True))
            told, *listening = (each.fileno() for each in given)
            # they would end the worker before it can ignore or handle them
            signal.pthread_sigmask(signal.SIG_BLOCK, _OF_ALL)
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.process.worker", self.name, *map(str, listening)),
                stdin=told,
                pass_fds=listening,
            )
        except BaseException:
            own.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_ALL)
            for each in given:
                each.close()
        # the end of this socket tells the worker that the supervisor is gone
        channel = await Channel.over(own)
        worker = self._workers[process.pid] = _WorkerProcess(process, channel, self.metrics.add)
        config = self.config
        if await worker.serve(config.share(), START_S) is not None:
            async with self._changes:
                worker.is_listening = True
                try:
                    # a reload meanwhile, perhaps of the same text with other files; who drains is told no more
                    if self.config is not config and not self._is_draining:
                        await self._bring([worker], self.config)
                except ConfigError:
                    worker.give_up()
        if not worker.is_listening:
            self._workers.pop(worker.pid, None)
            worker.kill()
            await worker.ended()
            raise OSError(f"a worker did not start on {self.config.listen}")
        return worker

    async def _change(self, config: Config) -> None:
        """See `Application`.

        A worker that dies or does not answer is replaced by one with the configuration in effect. This is the new one
        if another worker took it, or if no worker serves at the moment: it may let workers start again.
        """
        async with self._changes:
            await self._bring(self._serving(), config)

    async def _bring(self, workers: list[_WorkerProcess], config: Config) -> None:
        """Let *workers*, and those that start later, serve by *config*.

        If one refuses, those that have taken it go back to the configuration before: `ConfigError`.
        """
        share = config.share()
        answers = await asyncio.gather(*(worker.serve(share, RELOAD_S) for worker in workers))
        taken = [worker for worker, answer in zip(workers, answers, strict=True) if answer == Done()]
        errors = [answer.error for answer in answers if answer is not None and answer.error is not None]
        if errors or (workers and not taken):
            share = self.config.share()
            answers = await asyncio.gather(*(worker.serve(share, RELOAD_S) for worker in taken))
            for worker, answer in zip(taken, answers, strict=True):
                if answer != Done():  # its files cannot be read again: it must not serve by what others refuse
                    worker.give_up()
            raise ConfigError(errors[0] if errors else "no worker took the reload in time")
        self.config = config
        change_logging(config.logging.level, config.logging.format)

    def stalled(self) -> str | None:
        """See `Application`: which workers hang."""
        latest_s = asyncio.get_running_loop().time() - SILENT_S
        hanging = [str(worker.pid) for worker in self._serving() if worker.heard_s < latest_s]
        return f"nothing was heard of worker {', '.join(hanging)} for {SILENT_S:g} s" if hanging else None

    async def _listen(self) -> None:
        """Log once that workers hang, and once that none does any more."""
        stalled = None
        while not self._is_draining:
            before, stalled = stalled, self.stalled()
            if stalled != before:
                log.log(logging.WARNING if stalled else logging.INFO, "%s", stalled or "no worker hangs any more")
            await asyncio.sleep(SILENT_S / 3)

    def _serving(self) -> list[_WorkerProcess]:
        return [worker for worker in self._workers.values() if worker.is_listening]

    def _readings(self) -> list[Reading]:
        return [worker.reading for worker in self._serving() if worker.reading is not None]

    async def _mind(self, worker: _WorkerProcess) -> None:
        """Replace *worker* whenever it dies."""
        while True:
            code = await worker.ended()
            self._workers.pop(worker.pid, None)
            if self._is_draining:
                return
            log.error("worker %d died with code %d; it is replaced", worker.pid, code)
            self.metrics.count_replaced()
            while True:
                await asyncio.sleep(RESTART_S)
                if self._is_draining:
                    return
                try:
                    worker = await self._spawn()
                    if self._is_draining:  # it was still starting when the others were told
                        worker.drain()
                    break
                except OSError as error:
                    log.error("%s; trying again", error)

    async def drain(self) -> None:
        """See `Application`."""
        self._is_draining = True
        for address, holder in self._reserved:
            if address.is_unix:
                # else this socket would go on listening, and clients would wait instead of being refused
                holder.close()
        for worker in self._workers.values():
            worker.drain()
        # each worker keeps to the grace itself; twice the grace bounds the wait for a worker that hangs
        shutdown = self.config.shutdown
        if self._minders:
            await asyncio.wait(self._minders, timeout=shutdown.delay + 2 * shutdown.grace + HANG_S)
        for worker in self._workers.values():
            log.error("worker %d has not ended in time; it is killed, with what it has in flight", worker.pid)

    async def _end(self) -> None:
        self._is_draining = True
        for task in self._minders:
            task.cancel()
        for worker in list(self._workers.values()):
            worker.kill()
            await worker.ended()
        for _, holder in self._reserved:
            listeners.release(holder)

    def not_ready(self) -> str | None:
        """See `Application`."""
        if self._is_draining:
            return "draining"
        serving = self._serving()
        if len(serving) < self.config.workers:
            return f"{len(serving)} of {self.config.workers} workers accept"
        # all workers must be ready, because the kernel decides which of them a client reaches
        not_usable = (reading.not_usable for reading in self._readings() if reading.not_usable is not None)
        return self.stalled() or next(not_usable, None)
