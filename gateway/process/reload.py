"""Reload: the configuration's file is read again, by SIGHUP or because it has changed, and taken whole or not at all.

Some keys cannot change without a restart (`keep_fixed`). Not here: how the data plane is changed (`app`), and how
several workers agree on a change (`supervisor`).
"""

import asyncio
import contextlib
import hashlib
import logging
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

Replace = Callable[[Config], Awaitable[list[str]]]

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
        self._refused = ""
        """Why it was not taken the last time; empty if it was."""
        self._is_silent = False
        """Whether the next try repeats a failed one by itself: if it fails the same way, nothing is logged."""
        self._tasks: list[asyncio.Task[None]] = []

    def request(self) -> None:
        """Reload soon. A request during a reload causes another one after it."""
        self._is_silent = False
        self._wanted.set()

    def start(
        self, replace: Replace, metrics: Metrics, *, watch: bool, on_taken: Callable[[Config], None] = lambda _: None
    ) -> None:
        """Reload when requested; *watch*: also when the file's content changes.

        *replace* is `Running.replace`; *metrics* are told how each reload went. *on_taken* is called with each
        configuration that has taken effect.
        """
        self._replace = replace
        self._metrics = metrics
        self._on_taken = on_taken
        self._tasks.append(asyncio.create_task(self._reload_when_wanted()))
        if watch:
            self._tasks.append(asyncio.create_task(self._watch()))

    async def stop(self) -> None:
        """Ignore requests from now on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _reload_when_wanted(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            self._notifier.reloading()
            if self._file is None:
                log.warning("SIGHUP ignored: there is no file to read again; `serve --config FILE` has one")
            else:
                await self._reload(self._file)
            self._notifier.reloaded(self._refused)

    async def _reload(self, file: Path) -> None:
        """Try once, and log the result in one line."""
        is_silent, self._is_silent = self._is_silent, False
        words = ""
        before, self._refused = self._refused, ""
        try:
            # the digest is taken before loading: `_watch` notices a change in between, at worst it loads once too often
            self._tried = await asyncio.to_thread(_digest, file)
            config = await asyncio.to_thread(_load_again, file)
            kept = await self._replace(config)
        except (ConfigError, OSError) as error:
            self._refused = "; ".join(line.strip() for line in str(error).splitlines())
            if self._refused != before or not is_silent:
                log.error("not reloaded, the running configuration stays in use: %s", self._refused)
        except Exception as error:
            self._refused = repr(error)
            log.exception("not reloaded, the running configuration stays in use")
        else:
            words = f"{', '.join(kept)}: takes effect after a restart" if kept else ""
            announce.info("reloaded %s%s", file, words and f"; {words}")
            self._on_taken(config)
        self._metrics.reloaded(is_successful=not self._refused, words=self._refused or words)

    async def _watch(self) -> None:
        """Request a reload when the content differs from that of the last try.

        New content must be read twice, so that a file is not loaded while it is being written. Links are followed each
        time: Kubernetes swaps one in the folder of a ConfigMap. Refused content is tried again every `AGAIN_S`.
        """
        assert self._file is not None
        loop = asyncio.get_running_loop()
        before = self._tried
        again_s = loop.time() + AGAIN_S
        is_missing = False
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                now = await asyncio.to_thread(_digest, self._file)
            except (RuntimeError, MemoryError):  # no thread or no memory for it at this moment
                now = None
            if now is None and not is_missing:
                log.warning("%s cannot be read; the running configuration stays in use", self._file)
            is_missing = now is None
            is_new = now != self._tried
            is_due = self._refused and loop.time() >= again_s and not self._wanted.is_set()
            if now is not None and now == before and (is_new or is_due):
                self.request()
                self._is_silent = not is_new
                again_s = loop.time() + AGAIN_S
            before = now or before


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
