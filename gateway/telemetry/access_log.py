"""The access log: one line per finished exchange, as JSON or as text; without it, a line per failure.

Not here: where lines go (`log_writer`).
"""

import logging
import time
from typing import Literal

import msgspec

from gateway.errors import Blame, ErrorKind
from gateway.exchange import Exchange

DETAIL_CHARACTERS = 512
"""The longest `detail` that is written as it is; of longer ones the first and the last half."""

LINE_BYTES = 4096
"""The most bytes of a line with its end: what Linux writes to a pipe in one step (PIPE_BUF). Several workers write to
one pipe, and longer lines would be mixed up there."""

TEXT_CHARACTERS = (1024, 256, 32)
"""How much is left of each text in a line that would be longer: the first of these with which it fits. The last always
does, where each character takes the six bytes of an escape."""


FAILURES_PER_S = 10
"""The most failures that are written in one second where there is no access log, over all workers."""


class AccessLine(msgspec.Struct, omit_defaults=False):
    """One line of the access log."""

    time: str
    client: str
    method: str
    path: str
    model: str | None
    route: str
    backend: str
    endpoint: str | None
    attempts: int
    status: int
    reason: str | None
    detail: str | None
    client_request_bytes: int
    upstream_request_bytes: int
    upstream_response_bytes: int
    client_response_bytes: int
    seconds: float
    upstream_seconds: float
    codec_seconds: float
    queue_seconds: float
    request_id: str


class AccessLog:
    """Writes one line per exchange to standard output, as JSON or as text."""

    def __init__(self, style: Literal["json", "text"]) -> None:
        self._encode = _json_line if style == "json" else _text_line
        self._log = logging.getLogger("gateway.access")

    def record(self, exchange: Exchange) -> None:
        """Write the line of a finished exchange."""
        line = _access_line(exchange)
        text = self._encode(line)
        if len(text) >= LINE_BYTES // 4:  # a character has at most four bytes
            text = self._fitting(line, text)
        self._log.info(text)

    def _fitting(self, line: AccessLine, text: str) -> str:
        """*text*, which is the *line* encoded, or that with shorter texts if it is too long."""
        for n_characters in TEXT_CHARACTERS:
            if len(text.encode(errors="replace")) < LINE_BYTES:
                break
            shorter = {
                key: _shortened(value, n_characters)
                for key, value in msgspec.structs.asdict(line).items()
                if isinstance(value, str)
            }
            text = self._encode(msgspec.structs.replace(line, **shorter))
        return text


class FailureLog:
    """Without an access log: failures of backends and of the gateway itself, as warnings on standard error."""

    def __init__(self, n_processes: int = 1) -> None:
        """*n_processes* share `FAILURES_PER_S`; each may write one."""
        self._at_most = max(1, FAILURES_PER_S // n_processes)
        self._second = 0
        self._written = 0
        self._left_out = 0
        self._log = logging.getLogger("gateway")

    def record(self, exchange: Exchange) -> None:
        """Write the line of a finished exchange if it failed, and if this second has not seen too many."""
        if not _has_failed(exchange):
            return
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= self._at_most:
            self._left_out += 1
            return
        self._written += 1
        more = f" (after {self._left_out} failures that were left out)" if self._left_out else ""
        self._left_out = 0
        self._log.warning("failed%s: %s", more, _text_line(_access_line(exchange)))


def _has_failed(exchange: Exchange) -> bool:
    """Whether a backend or the gateway has failed, and nothing else says so: internal errors have their own line."""
    if exchange.error is ErrorKind.BACKEND_ERROR:
        return exchange.status >= 500  # a backend's 4xx is its client's
    return exchange.error not in (None, ErrorKind.INTERNAL) and exchange.error.blame is not Blame.CLIENT


def _access_line(exchange: Exchange) -> AccessLine:
    now = time.time()
    return AccessLine(
        time=f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z",
        client=exchange.client,
        method=exchange.method,
        path=exchange.path,
        model=exchange.model,
        route=exchange.route,
        backend=exchange.backend,
        endpoint=exchange.endpoint,
        attempts=exchange.n_attempts,
        status=exchange.status,
        reason=exchange.error.label if exchange.error is not None else None,
        detail=_shortened(exchange.detail, DETAIL_CHARACTERS) or None,
        client_request_bytes=exchange.client_request_bytes,
        upstream_request_bytes=exchange.upstream_request_bytes,
        upstream_response_bytes=exchange.upstream_response_bytes,
        client_response_bytes=exchange.client_response_bytes,
        seconds=round(exchange.seconds, 6),
        upstream_seconds=round(exchange.upstream_s, 6),
        codec_seconds=round(exchange.request_codec_s + exchange.response_codec_s, 6),
        queue_seconds=round(exchange.queue_s, 6),
        request_id=exchange.request_id,
    )


def _shortened(text: str, n_characters: int) -> str:
    """The beginning and the end of a long *text*: a chain of errors often names the cause at its end."""
    if len(text) <= n_characters:
        return text
    half = n_characters // 2
    return f"{text[:half]} ... {text[1 - half :]}"


def _json_line(line: AccessLine) -> str:
    return msgspec.json.encode(line).decode(errors="replace")


def _text_line(line: AccessLine) -> str:
    """`key=value` pairs; values that could break a line or a pair are quoted as JSON strings."""
    pairs = []
    for key, value in msgspec.structs.asdict(line).items():
        text = "-" if value is None else str(value)
        if not text.isprintable() or any(mark in text for mark in ' "=') or not text:
            text = msgspec.json.encode(text).decode(errors="replace")
        pairs.append(f"{key}={text}")
    return " ".join(pairs)
