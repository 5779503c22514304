"""The access log: one line per finished exchange, as JSON or text; without it, a line per failure.

Lines of successful exchanges are written together, because a log record, its lock and the writer's thread cost ten
times as much as the line itself.
"""

import logging
import os
import random
import re
import time
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from gateway.codec.v2.error_bodies import shortened
from gateway.errors import Blame, ErrorKind, blame_of
from gateway.exchange import Exchange, upstream_times
from gateway.telemetry.log_writer import PIPE_BYTES, utc_of

BATCH_BYTES = 64 * 1024
"""Lines are written once they have this many bytes together."""

DETAIL_CHARACTERS = 512
"""How many characters of `detail` are written; of a longer text the beginning and the end, half of this each.

The status page has as many of each text of a failure, and a span of its status: clients may send long ones.
"""

PREFIX_BYTES = 256
"""Room for the beginning of a failure's line on standard error: time, level and process.

A line with its end has at most `PIPE_BYTES`: several workers write to one pipe, which could mix up longer lines.
"""

TEXT_CHARACTERS = (1024, 256, 32)
"""How much is left of each text in a line that would be longer: the first of these with which it fits. The last always
does, where each character takes the six bytes of an escape."""

FAILURES_PER_S = 10
"""How many failures all workers together write in one second if there is no access log."""

SHORT = ("time", "status", "method", "path", "model", "seconds", "reason", "detail")
"""The fields of a line of text on a terminal."""

Line = dict[str, Any]
"""The fields of one line by their names, in the order of the line."""


class AccessLog:
    """Writes one line per exchange to standard output.

    The lines of successful exchanges wait for others, until `flush`, which is called several times a second. Lines that
    wait are one message of the logger, in their order. An exchange that failed lets none wait.
    """

    def __init__(self, style: Literal["json", "text"], sample: float = 1) -> None:
        """*style*: on a terminal, `text` has the fields of `SHORT`.

        *sample* is the share of successful exchanges that get a line; errors always get one.
        """
        self._sample = sample
        self._encode = msgspec.json.encode if style == "json" else _short_line if os.isatty(1) else _text_line
        self._log = logging.getLogger("gateway.access")
        self._waiting = bytearray()
        self._max_bytes = BATCH_BYTES

    def record(self, exchange: Exchange) -> None:
        """Take the line of a finished exchange."""
        if self._sample < 1 and exchange.error is None and random.random() >= self._sample:  # noqa: S311  no secret
            return
        self._waiting += _fitting(line_of(exchange), self._encode, PIPE_BYTES)
        self._waiting += b"\n"
        if exchange.error is not None or len(self._waiting) > self._max_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        if self._waiting:
            lines, self._waiting = self._waiting[:-1], bytearray()
            self._log.info(lines.decode())

    def finish(self) -> None:
        """Write the lines that wait, and from now on each line at once, because the event loop may end."""
        self._max_bytes = 0
        self.flush()


class FailureLog:
    """Without an access log: failures of backends and of the gateway itself, as warnings on standard error."""

    def __init__(self, n_processes: int = 1) -> None:
        """*n_processes* share `FAILURES_PER_S`; each may write one."""
        self._at_most = max(1, FAILURES_PER_S // n_processes)
        self._second = 0
        self._written = 0
        self._log = logging.getLogger("gateway")

    def record(self, exchange: Exchange) -> None:
        """Write the line of a finished exchange if it failed, up to the limit of this second."""
        error = exchange.error
        # `app` logs internal errors itself
        if error is None or error is ErrorKind.INTERNAL or blame_of(error, exchange.status) is Blame.CLIENT:
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._written = second, 0
        if self._written < self._at_most:
            self._written += 1
            text = _fitting(line_of(exchange), _text_line, PIPE_BYTES - PREFIX_BYTES).decode()
            self._log.warning("failed: %s", text)

    def flush(self) -> None:
        """As `AccessLog.flush`; does nothing, because no line waits here."""

    finish = flush


def line_of(exchange: Exchange) -> Line:
    """The line of a finished exchange; docs/operations.md, "Access log" has the meaning of each field."""
    endpoint = connection = reason = blame = None
    detail = f"{exchange.detail} ({exchange.failed_at})" if exchange.failed_at and exchange.error else exchange.detail
    n_attempts = request_bytes = response_bytes = 0
    upstream_s, queue_s = upstream_times(exchange.attempts)
    queue_s += exchange.queue_s
    for attempt in exchange.attempts:
        endpoint, connection = attempt.endpoint, attempt.connection
        n_attempts += not attempt.is_metadata
        request_bytes += attempt.request_bytes
        response_bytes += attempt.response_bytes
    if (error := exchange.error) is not None:
        reason, blame = error.label, blame_of(error, exchange.status).value
    line: Line = {
        "time": utc_of(time.time()),
        "client": exchange.client,
        "client_name": exchange.client_name or None,
        "protocol": exchange.protocol,
        "method": exchange.method,
        "path": exchange.path,
        "model": exchange.model,
        "route": exchange.route,
        "backend": exchange.backend,
        "endpoint": endpoint,
        "upstream_connection": connection,
        "attempts": n_attempts,
        "status": exchange.status,
        "reason": reason,
        "blame": blame,
        "detail": shortened(detail, DETAIL_CHARACTERS) or None,
        "client_request_bytes": exchange.client_request_bytes,
        "upstream_request_bytes": request_bytes,
        "upstream_response_bytes": response_bytes,
        "client_response_bytes": exchange.client_response_bytes,
        "seconds": _to_microseconds(exchange.seconds),
        "upstream_seconds": _to_microseconds(upstream_s),
        "codec_seconds": _to_microseconds(exchange.request_codec.seconds + exchange.response_codec.seconds),
        "queue_seconds": _to_microseconds(queue_s),
        "request_id": exchange.request_id,
    }
    if exchange.trace is not None:
        line["trace_id"] = exchange.trace.trace_id
    if exchange.batch_rows:
        line |= {"batch_rows": exchange.batch_rows, "batch_wait_seconds": _to_microseconds(exchange.batch_wait_s)}
    return line


def _to_microseconds(seconds: float) -> float:
    """*seconds*, not negative, rounded to six places; `round` takes three times as long."""
    return int(seconds * 1e6 + 0.5) / 1e6


def with_short_texts(line: Line, n_characters: int) -> Line:
    """*line* with `shortened` texts."""
    return {key: shortened(value, n_characters) if isinstance(value, str) else value for key, value in line.items()}


def _fitting(line: Line, encode: Callable[[Line], bytes], max_bytes: int) -> bytes:
    """The encoded *line*; long fields are shortened until it has at most *max_bytes* with its end."""
    encoded = encode(line)
    for n_characters in TEXT_CHARACTERS:
        if len(encoded) < max_bytes:
            break
        encoded = encode(with_short_texts(line, n_characters))
    return encoded


def _text_line(line: Line) -> bytes:
    """`key=value` pairs of the fields with a value; a value that could break a line or a pair is a JSON string."""
    texts = [(key, str(value)) for key, value in line.items() if value is not None]
    pairs = [
        f"{key}={text if text.isprintable() and _PLAIN(text) else msgspec.json.encode(text).decode()}"
        for key, text in texts
    ]
    return " ".join(pairs).encode()


_PLAIN = re.compile('[^ "=]+').fullmatch


def _short_line(line: Line) -> bytes:
    """The pairs of the fields that people look for."""
    return _text_line({key: line[key] for key in SHORT})
