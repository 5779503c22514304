"""Writes log lines to standard output and standard error, by threads that may wait for a slow reader."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from gateway.policy.quiet import OncePerInterval

PIPE_BYTES = 4096
"""How many bytes Linux writes to a pipe in one step (PIPE_BUF). A longer write may be interrupted by that of another
process to the same pipe."""

QUEUE_BYTES = 8 * 1024 * 1024
"""How many bytes of each stream may wait for a slow reader, or for room on a full disk. If lines that came together do
not fit, all of them are dropped and counted."""

STOP_S = 2.0
"""How long the writing of waiting lines may take when the process ends."""

AGAIN_S = 0.01
"""After how long a write that failed is tried again."""

ACCESS = "gateway.access"
"""The logger whose bare messages, and nothing else, go to standard output."""

ANNOUNCE = "gateway.announce"
"""The logger whose messages always go to standard error: the addresses that are served, and the start of draining."""


def utc_of(seconds: float) -> str:
    """A time in seconds since 1970, such as `2026-11-21T18:00:00.123Z`."""
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{int(seconds % 1 * 1000):03d}Z", time.gmtime(seconds))


class LogWriter(logging.Handler):
    """Writes access lines to standard output and all other lines to standard error, each from a thread of its own.

    A reader that stalls or has gone must not stall requests, nor the other stream. So up to `QUEUE_BYTES` wait; lines
    that do not fit are counted. While lines of standard output cannot be written, standard error says so once a minute.
    """

    def __init__(self, level: str, style: str = "text", process: str = "") -> None:
        """*level* and *style*, `text` or `json`, are those of standard error.

        *process* is written beside the logger's name if several processes write to standard error.
        """
        super().__init__()
        self._process = process
        self._level = level
        self._style = style
        self._complaints = OncePerInterval()
        self._output = _Stream(1, self._complain)
        self._error = _Stream(2)

    @property
    def dropped(self) -> int:
        """How many lines were not written."""
        return self._output.dropped + self._error.dropped

    def start(self) -> None:
        """Take over the root logger, and standard output.

        What adapters print goes to standard error: between lines of the access log, or inside of one, it would break
        whatever reads these.
        """
        self._print = contextlib.redirect_stdout(sys.stderr)
        self._print.__enter__()
        root = logging.getLogger()
        root.handlers = [self]
        logging.captureWarnings(capture=True)
        self.change(self._level, self._style)
        for name in (ACCESS, ANNOUNCE):
            logging.getLogger(name).setLevel(logging.INFO)
        self._output.start()
        self._error.start()

    def change(self, level: str, style: str) -> None:
        """Set the lowest *level* that is written to standard error, and the *style*."""
        logging.getLogger().setLevel(level.upper())
        self._style = style
        mark = f"[{self._process}]" if self._process else ""
        self.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s %(name)s{mark}: %(message)s"))

    def format(self, record: logging.LogRecord) -> str:
        """The line of *record* for standard error; in JSON with its time in UTC."""
        if self._style != "json":
            return super().format(record)
        line = {"time": utc_of(record.created), "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        if self._process:
            line["process"] = self._process
        if record.exc_info:
            line["exception"] = logging.Formatter().formatException(record.exc_info)
        return msgspec.json.encode(line).decode()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the lines of *record*."""
        is_access = record.name == ACCESS
        line = record.getMessage() if is_access else self.format(record)
        (self._output if is_access else self._error).put(line.encode(errors="replace") + b"\n")

    def stop(self) -> None:
        """Write the waiting lines for `STOP_S` at most, and say how many were dropped."""
        logging.captureWarnings(capture=False)
        logging.getLogger().handlers = []
        self._print.__exit__(None, None, None)
        self._output.stop()
        if self.dropped:
            self._say(f"{self.dropped} log lines were dropped")
        self._error.stop()

    def _complain(self, reason: str) -> None:
        if self._complaints.allows(time.monotonic()):
            self._say(f"lines of standard output cannot be written: {reason}")

    def _say(self, text: str) -> None:
        """Write *text* to standard error, whatever the level of the root logger."""
        self.handle(logging.LogRecord("gateway", logging.ERROR, "", 0, text, None, None))


class _Stream:
    """One standard stream, and the thread that writes to it."""

    def __init__(self, descriptor: int, complain: Callable[[str], None] = lambda _: None) -> None:
        """*complain* is called with the reason whenever lines cannot be written."""
        self.dropped = 0
        self._descriptor = descriptor
        self._complain = complain
        self._waiting = bytearray()
        """Lines; of the first one only the rest, if its beginning is written."""
        self._is_ending = False
        self._changed = threading.Condition()
        """Held to change the two above."""
        # a daemon, so that a pipe that nobody reads cannot keep the process from ending
        self._thread = threading.Thread(target=self._write, name=f"log {descriptor}", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, lines: bytes) -> None:
        """Queue *lines*, each of which ends with a newline, or count them as dropped."""
        with self._changed:
            is_room = len(self._waiting) + len(lines) <= QUEUE_BYTES
            if is_room:
                self._waiting += lines
                self._changed.notify()
        if not is_room:
            self.dropped += lines.count(b"\n")
            self._complain("nobody reads them in time")

    def stop(self) -> None:
        """Write the waiting lines; those that cannot be written within `STOP_S` are dropped."""
        with self._changed:
            self._is_ending = True
            self._changed.notify()
        self._thread.join(STOP_S)
        self.dropped += self._waiting.count(b"\n")

    def _write(self) -> None:
        """Write whole lines, until the end."""
        while piece := self._next_piece():
            try:
                # not through sys.stdout: a blocked thread would hold its lock, and the interpreter waits for it at exit
                n_written = os.write(self._descriptor, piece)
            except BlockingIOError:  # the pipe is full, and another process has made it non-blocking
                time.sleep(AGAIN_S)
            except OSError as error:
                self._complain(str(error.strerror))
                if self._is_ending:
                    return
                time.sleep(AGAIN_S)
            else:
                with self._changed:
                    del self._waiting[:n_written]

    def _next_piece(self) -> bytes:
        """Whole lines that wait, of `PIPE_BYTES` or one line; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            end = self._waiting.rfind(b"\n", 0, PIPE_BYTES) + 1 or self._waiting.find(b"\n") + 1
            return bytes(self._waiting[:end])


def change_logging(level: str, style: str) -> None:
    """Change the `LogWriter` of the root logger, see its `change`; does nothing if there is none."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogWriter):
            handler.change(level, style)
