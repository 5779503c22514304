"""Writes log lines to standard output and standard error, by threads that may wait for a slow reader."""

import logging
import os
import queue
import stat
import threading
import time
from collections.abc import Callable

import msgspec

from gateway.policy.quiet import OncePerInterval

PIPE_BYTES = 4096
"""How many bytes Linux writes to a pipe in one step (PIPE_BUF). A longer write may be interrupted by that of another
process to the same pipe."""

LOG_QUEUE_LINES = 10_000
LOG_QUEUE_BYTES = 8 * 1024 * 1024
"""How many lines and bytes may wait for a slow reader of each stream; more are dropped and counted.

A line of the access log has up to 4 KiB (`access_log.LINE_BYTES`), other lines can be longer. If lines that came
together do not fit, all of them are dropped.
"""

STOP_S = 2.0
"""How long the writing of waiting lines may take when the process ends."""

FULL_S = 0.01
"""After how long a write to a full non-blocking pipe is tried again."""

ACCESS = "gateway.access"
"""The logger whose bare messages, and nothing else, go to standard output."""

ANNOUNCE = "gateway.announce"
"""The logger whose messages always go to standard error: the addresses that are served, and the start of draining."""

_SLOW = "nobody read them in time"


class _JsonFormatter(logging.Formatter):
    """Makes a line of JSON of a record: its time in UTC, level, logger, message, process and traceback."""

    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self, process: str) -> None:
        super().__init__()
        self.converter = time.gmtime
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name}
        line["message"] = record.getMessage()
        if self._process:
            line["process"] = self._process
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class LogWriter(logging.Handler):
    """Writes access lines to standard output and all other lines to standard error, each from a thread of its own.

    A reader that stalls or has gone must not stall requests, nor the other stream. So lines wait in a queue of
    `LOG_QUEUE_LINES` and `LOG_QUEUE_BYTES`; lines that do not fit, or cannot be written, are counted. While lines of
    standard output are dropped, standard error says so once a minute.
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
        """Take over the root logger."""
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
        mark = f"[{self._process}]" if self._process else ""
        text = logging.Formatter(f"%(asctime)s %(levelname)s %(name)s{mark}: %(message)s")
        self.setFormatter(_JsonFormatter(self._process) if style == "json" else text)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the lines of *record*."""
        is_access = record.name == ACCESS
        line = record.getMessage() if is_access else self.format(record)
        (self._output if is_access else self._error).put(line.encode(errors="replace") + b"\n")

    def stop(self) -> None:
        """Write the waiting lines for `STOP_S` at most, and say how many were dropped."""
        logging.captureWarnings(capture=False)
        logging.getLogger().handlers = []
        self._output.stop()
        if self.dropped:
            reason = self._output.reason or self._error.reason
            self._say(logging.WARNING, f"{self.dropped} log lines were dropped: {reason}")
        self._error.stop()

    def _complain(self, reason: str) -> None:
        if self._complaints.allows("", time.monotonic()):
            self._say(logging.ERROR, f"lines of standard output are dropped: {reason}")

    def _say(self, level: int, text: str) -> None:
        """Write *text* to standard error, whatever the level of the root logger."""
        self.handle(logging.LogRecord("gateway", level, "", 0, text, None, None))


class _Stream:
    """One standard stream, and the thread that writes to it."""

    def __init__(self, descriptor: int, complain: Callable[[str], None] = lambda _: None) -> None:
        """*complain* is called with the reason whenever lines are dropped."""
        self.dropped = 0
        self.reason = ""
        """Why lines were last dropped."""
        self._descriptor = descriptor
        self._complain = complain
        self._torn = b""  # the rest of a line whose beginning is written
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # `put` keeps it within its limits
        # since the start; only changed by `put`, whose callers hold the handler's lock
        self._queued_lines = 0
        self._queued_bytes = 0
        # the part of these that was written or dropped; only changed by the thread
        self._taken_lines = 0
        self._taken_bytes = 0
        # a daemon, so that a pipe that nobody reads cannot keep the process from ending
        self._thread = threading.Thread(target=self._write, name=f"log {descriptor}", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, lines: bytes) -> None:
        """Queue *lines*, each of which ends with a newline, or count them as dropped."""
        n_lines = lines.count(b"\n")
        is_too_long = self._queued_bytes - self._taken_bytes + len(lines) > LOG_QUEUE_BYTES
        if is_too_long or self._queued_lines - self._taken_lines + n_lines > LOG_QUEUE_LINES:
            self._drop(n_lines, _SLOW)
            return
        self._queued_lines += n_lines
        self._queued_bytes += len(lines)
        self._waiting.put(lines)

    def stop(self) -> None:
        """Write the waiting lines; those that cannot be written within `STOP_S` are dropped."""
        self._waiting.put(None)
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            self.dropped += self._queued_lines - self._taken_lines
            self.reason = _SLOW

    def _drop(self, n_lines: int, reason: str) -> None:
        self.dropped += n_lines
        self.reason = reason
        self._complain(reason)

    def _write(self) -> None:
        max_bytes = LOG_QUEUE_BYTES if _is_file(self._descriptor) else PIPE_BYTES
        while (lines := self._waiting.get()) is not None:
            start = 0
            while start < len(lines):
                end = _end_of_piece(lines, start, max_bytes)
                piece = lines[start:end]
                self._write_piece(piece)
                self._taken_lines += piece.count(b"\n")
                self._taken_bytes += end - start
                start = end

    def _write_piece(self, piece: bytes) -> None:
        """Write whole lines, after the rest of a line that could only be written in part before."""
        data = left = self._torn + piece
        try:
            while left:
                # not through sys.stdout: a blocked thread would hold its lock, and the interpreter waits for it at exit
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # the pipe is full, and another process has made it non-blocking
                    time.sleep(FULL_S)
        except OSError as error:
            written = data[: len(data) - len(left)]
            is_torn = not written.endswith(b"\n") if written else bool(self._torn)
            self._torn = left[: left.find(b"\n") + 1] if is_torn else b""
            self._drop(left.count(b"\n") - is_torn, error.strerror or str(error))
        else:
            self._torn = b""


def _is_file(descriptor: int) -> bool:
    """Whether *descriptor* is a regular file, to which a write of any length is one step."""
    try:
        return stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _end_of_piece(lines: bytes, start: int, max_bytes: int) -> int:
    """The end of the whole *lines* from *start* on that fit into *max_bytes*; at least of one line."""
    if len(lines) - start <= max_bytes:
        return len(lines)
    return lines.rfind(b"\n", start, start + max_bytes) + 1 or lines.find(b"\n", start) + 1


def change_logging(level: str, style: str) -> None:
    """Change the `LogWriter` of the root logger, see its `change`; does nothing if there is none."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogWriter):
            handler.change(level, style)
