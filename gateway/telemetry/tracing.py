"""Tracing (`tracing` in the configuration): gives requests their traces, and hands finished ones over to be sent.

OpenTelemetry is imported only where `tracing` is configured, and is an extra.
"""

import asyncio
import logging
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec

from gateway import config
from gateway.errors import ConfigError
from gateway.exchange import Exchange
from gateway.headers import Headers
from gateway.policy.quiet import OncePerInterval
from gateway.policy.trace_context import NEW_TRACE_BITS, Trace, trace_of
from gateway.telemetry.access_log import DETAIL_CHARACTERS

FLUSH_S = 3.0
"""How long sending the waiting spans may take when the process ends."""

_MISSING = "needs OpenTelemetry, which is not installed: pip install 'tensor-gateway[tracing]'"

log = logging.getLogger("gateway")


def tracing_problems(configured: config.Config) -> Iterator[tuple[str, str]]:
    """Why `tracing` cannot work: the path of the key, and the reason; nothing if it can."""
    if configured.tracing is not None:
        with suppress(ModuleNotFoundError):
            if all(map(find_spec, ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"))):
                return
        yield "tracing", _MISSING


class Tracing:
    """Traces requests as *settings* say, until `close`."""

    def __init__(self, settings: config.Tracing) -> None:
        """Raises `ConfigError` if the extra is not installed."""
        try:
            from gateway.telemetry import spans  # noqa: PLC0415  an extra, and half a second of imports
        except ModuleNotFoundError:
            raise ConfigError(f"tracing: {_MISSING}") from None
        self.settings = settings
        self._complaints = _Complaints(settings.endpoint)
        logging.getLogger("opentelemetry").addHandler(self._complaints)
        logging.getLogger("opentelemetry").propagate = False
        self._processor = spans.processor_of(settings)
        self._spans_of = partial(spans.spans_of, spans.resource_of(settings.service_name))

    def begin(self, headers: Headers) -> Trace:
        """The trace of a request with *headers*."""
        return trace_of(headers, random.getrandbits(NEW_TRACE_BITS), self.settings.sample)

    def record(self, exchange: Exchange) -> None:
        """Let the spans of a finished *exchange* be sent, if its trace is sampled. Never waits."""
        if exchange.trace is not None and exchange.trace.is_sampled:
            for span in self._spans_of(exchange, exchange.trace):
                self._processor.on_end(span)

    async def close(self) -> None:
        """Send the spans that wait, for `FLUSH_S` at most."""
        # a daemon, so that a collector that does not answer cannot keep the process from ending
        sending = threading.Thread(target=self._processor.shutdown, name="last spans", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, FLUSH_S)
        logging.getLogger("opentelemetry").removeHandler(self._complaints)
        if sending.is_alive():
            log.warning("tracing: spans were dropped: %s did not take them in time", self.settings.endpoint)


class _Complaints(logging.Handler):
    """Logs once a minute what OpenTelemetry would log for each failed batch and each dropped span."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(logging.WARNING)
        self._endpoint = endpoint
        self._once = OncePerInterval()

    def emit(self, record: logging.LogRecord) -> None:
        """Log the first record of a minute; called with the handler's lock, also by the thread that sends."""
        if self._once.allows(record.created):
            error = record.exc_info[1] if record.exc_info is not None else None
            reason = " ".join(str(error or record.getMessage()).split())[:DETAIL_CHARACTERS]
            log.warning("tracing: spans may be lost, %s does not take them: %s", self._endpoint, reason)
