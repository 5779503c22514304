"""Reload: the configuration's file is read again, by SIGHUP or because it has changed, and taken whole or not at all.

Some keys cannot change without a restart (`keep_fixed`).
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from gateway.config import Config, load
from gateway.config.rules import ERRORS, check
from gateway.errors import ConfigError
from gateway.process.systemd import Notifier
from gateway.telemetry.log_writer import ANNOUNCE
from gateway.telemetry.metrics import Metrics

WATCH_S = 0.25
"""How often `serve --watch` reads the file: about 0.1 ms of a processor each time, 0.05 % of one.

The file's time and size are not enough: two writes within one tick of the file system's clock can leave them unchanged.
To read a few kilobytes costs no more than to open the file.
"""

AGAIN_S = 10.0
"""How often `serve --watch` tries a refused file again: other files that were missing may be there by then.

Kubernetes updates a ConfigMap and the Secret with the tokens or certificates that it names at different times.
"""

FIXED = ("listen", "admin", "grpc", "workers")
"""Keys that take effect after a restart only; so does whether there is `tls` (its files are read again)."""

log = logging.getLogger("gateway")
announce = logging.getLogger(ANNOUNCE)


def keep_fixed(config: Config, running: Config) -> tuple[Config, list[str]]:
    """*config* with *running*'s values of keys that need a restart, and the names of such keys that have changed.

    Raises `ConfigError` if new values contradict those that stay.
    """
    fixed = {key: getattr(running, key) for key in FIXED if getattr(running, key) != getattr(config, key)}
    if (config.tls is None) != (running.tls is None):
        fixed["tls"] = running.tls
    if not fixed:
        return config, []
    # a value is hidden if it was hidden in the configuration from which it comes
    hidden = [path for path in config.hidden if path.partition(".")[0] not in fixed]
    hidden += [path for path in running.hidden if path.partition(".")[0] in fixed]
    kept = msgspec.structs.replace(config, **fixed, hidden=hidden)
    for path, reason in check(ERRORS, kept):
        names = ", ".join(f"`{key}`" for key in fixed)
        raise ConfigError(f"{path}: {reason}, with {names} unchanged, because that needs a restart")
    return kept, list(fixed)


class Reloader:
    """Reloads one file on request, one reload at a time."""

    def __init__(self, file: Path | None, notifier: Notifier | None = None) -> None:
        """*file*: None if the configuration is from the command line. To be made before the file is loaded."""
        self._file = file
        self._notifier = notifier or Notifier()
        self._wanted = asyncio.Event()
        self._tried = _digest(file) if file is not None else None
        """Of the content that was loaded, or tried, the last time."""
        self._tried_s = 0.0
        self._refused = ""
        """Why it was not taken the last time; empty if it was."""
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Reload soon. A request during a reload causes another one after it."""
        if self._file is None:
            log.warning("SIGHUP ignored: there is no file to read again; `serve --config FILE` has one")
        self._wanted.set()

    def start(self, replace: Callable[[Config], Awaitable[list[str]]], metrics: Metrics, *, watch: bool) -> None:
        """Reload when requested; *watch*: also when the file's content changes.

        *replace* is `Application.replace`; *metrics* are told how each reload went.
        """
        self._replace = replace
        self._metrics = metrics
        if self._file is not None:
            self._task = asyncio.create_task(self._run(self._file, watch=watch))

    async def stop(self) -> None:
        """Ignore requests from now on."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self, file: Path, *, watch: bool) -> None:
        """Reload *file* on request, and if its content differs from that of the last try.

        New content must be read twice, so that a file is not loaded while it is being written. Links are followed each
        time: Kubernetes swaps one in the folder of a ConfigMap. What was refused is tried again every `AGAIN_S`.
        """
        before = self._tried
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), WATCH_S if watch else None)
            if self._wanted.is_set():
                self._wanted.clear()
                await self._reload(file)
                continue
            try:
                now = await asyncio.to_thread(_digest, file)
            except (RuntimeError, MemoryError):  # no thread or no memory for it at this moment
                continue
            is_new = now != self._tried
            is_due = self._refused and time.monotonic() >= self._tried_s + AGAIN_S
            if now == before and (is_new or is_due):
                await self._reload(file, known="" if is_new else self._refused)
            before = now

    async def _reload(self, file: Path, known: str = "") -> None:
        """Try once, and log the result in one line; not if *file* is refused because of what is *known*."""
        self._notifier.tell(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}", "reloading")
        self._refused = words = ""
        try:
            # the digest is taken before loading: `_run` notices a change in between, at worst it loads once too often
            self._tried = await asyncio.to_thread(_digest, file)
            config = await asyncio.to_thread(_load_again, file)
            kept = await self._replace(config)
        except (ConfigError, OSError) as error:
            self._refused = "; ".join(line.strip() for line in str(error).splitlines())
            if self._refused != known:
                log.error("not reloaded, the running configuration stays in use: %s", self._refused)
        except Exception as error:
            self._refused = repr(error)
            log.exception("not reloaded, the running configuration stays in use")
        else:
            words = f"{', '.join(kept)}: takes effect after a restart" if kept else ""
            announce.log(logging.WARNING if kept else logging.INFO, "reloaded %s%s", file, words and f"; {words}")
        self._tried_s = time.monotonic()
        self._metrics.reloaded(is_successful=not self._refused, words=self._refused or words)
        self._notifier.tell("READY=1", f"the last reload was refused: {self._refused}" if self._refused else "reloaded")


def _load_again(file: Path) -> Config:
    """`load`, but never from a pipe: it is empty by now, or would be waited for without end. Raises `ConfigError`."""
    if file.exists() and not file.is_file():
        raise ConfigError(f"{file}: not a regular file; only such a file can be read again")
    return load(file)


def _digest(file: Path) -> bytes | None:
    """The digest of *file*'s content; None if it cannot be read, or not a second time, as with a pipe."""
    with contextlib.suppress(OSError):
        if file.is_file():
            with file.open("rb") as content:
                return hashlib.file_digest(content, "blake2b").digest()  # in pieces: it may be of any size
    return None
