"""The composition root: a configuration becomes a running data plane.

The parts are put together here and nowhere else; read this file to see which part calls which. Processes: `process`.
"""

import asyncio
import gc
import logging
import os
import secrets
import socket
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest

from gateway import certificates
from gateway.backend.tasks import Tasks
from gateway.backend.upstream import Upstream
from gateway.certificates import TlsContext
from gateway.client.listeners import addresses, grpc_problems, listeners
from gateway.client.server import Server
from gateway.config import Config, without_hidden_paths
from gateway.config.tokens import token_problems
from gateway.errors import ConfigError, ErrorKind
from gateway.exchange import Exchange
from gateway.plan import Plan
from gateway.serving.adapter_modules import AdapterModule, adapter_problems, import_adapters, load_adapters
from gateway.serving.call import Serving
from gateway.serving.gateway import Gateway
from gateway.telemetry.access_log import AccessLog, FailureLog
from gateway.telemetry.counting import Batch, Counting
from gateway.telemetry.log_writer import change_logging
from gateway.telemetry.reading import STARTED_S, Certificate, EndpointReading, Level, Reading
from gateway.telemetry.tracing import Tracing, tracing_problems

SAMPLE_S = 0.1
"""How often the event loop's lag is measured."""

HEAD_S = 0.1
"""How long draining waits at its beginning for requests that are still on their way."""

FIRST_HEAD_S = 1.0
"""How long the first request is waited for on connections that were accepted before draining began."""

LOOK_S = 0.02
"""How often draining checks whether anything is still in flight."""

_INTERNAL = ErrorKind.INTERNAL  # looked up once, as `exchange.JSON` is

log = logging.getLogger("gateway")


def settle() -> None:
    """Tune the garbage collection once the process has started, before it serves.

    Objects that exist now live until the process ends, so they are no longer searched for garbage: a full collection
    would walk every object of every imported module and hold the event loop for 20 ms.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _settle_without(adapter: AdapterModule) -> None:
    """Free what *adapter* holds, once no request uses it any more.

    Its functions and its module refer to each other, and the first module was there when the process settled, so it
    would never be searched for garbage. This holds the event loop for about 20 ms, after a reload.
    """
    loop = asyncio.get_running_loop()

    def settle_soon() -> None:
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(settle)

    if gc.get_freeze_count():  # else the process has not settled
        weakref.finalize(adapter, settle_soon).atexit = False


def file_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Errors in the files and extras (pip) that *config* needs: the path of the key, and the reason."""
    for problems in (certificates.tls_problems, token_problems, tracing_problems, grpc_problems, adapter_problems):
        for key, reason in problems(config):
            yield key, without_hidden_paths(config, reason)


def new_name() -> str:
    """A unique name for this gateway, by which it recognizes in `Via` a request that it has passed on before."""
    return f"tensor-gateway-{secrets.token_hex(8)}"


class DataPlane:
    """The parts that serve clients, in one process. Must be made on a running event loop."""

    def __init__(self, config: Config, name: str, deliver: Callable[[Batch], bool] = lambda _: True) -> None:
        """*name* is the gateway's name in `Via` (`new_name`), the same in all its workers.

        *deliver* takes the batches of `Counting`; the default drops them.
        Raises `ConfigError` for certificates and adapters that cannot be used.
        """
        self.config = config
        self.counting = Counting(deliver)
        plan = Plan(config, name)
        upstreams = {backend.name: Upstream(backend) for backend in plan.backends.values()}
        self._access_log = _access_log(config)
        self._tracing: Tracing | None = None
        self.gateway = Gateway(Serving(plan, upstreams, adapters=load_adapters(config)), self._record)
        self._trace_by(_tracing(config))
        tls = TlsContext.following(None, "tls", config.tls)
        self.server = Server(self.gateway.handle, config.limits, self.gateway.admission.hold_unread, tls=tls)
        self._listeners = listeners(self.server, config)
        self._beside = Tasks()
        # weak: a retired backend lives as long as its last request
        self._retired: weakref.WeakSet[Upstream] = weakref.WeakSet()

    def _record(self, exchange: Exchange) -> None:
        try:
            self.counting.record(exchange)
            self._access_log.record(exchange)
            if exchange.trace is not None and self._tracing is not None:
                self._tracing.record(exchange)
        except Exception:  # the client has its reply, and shall keep it
            log.exception("request %s could not be recorded", exchange.request_id)
        if exchange.error is _INTERNAL:
            place = f" ({exchange.failed_at})" if exchange.failed_at else ""
            log.error("request %s: %s%s", exchange.request_id, exchange.detail, place)

    async def start(self, sockets: Sequence[socket.socket] = ()) -> None:
        """Listen, on *sockets* if a worker was given some. Raises `OSError` if an address cannot be used."""
        await asyncio.gather(*(upstream.start() for upstream in self._upstreams))
        for listener, address, bound in zip_longest(self._listeners, addresses(self.config), sockets):
            await listener.open(address, bound)
        await self._expect()
        self._beside.begin(self._sample())
        self._beside.begin(certificates.watch(self._tls_contexts))

    @property
    def urls(self) -> list[str]:
        """Where clients are served: the URL for HTTP/1.1, and that for gRPC if it is configured."""
        return [listener.url for listener in self._listeners]

    def _tls_contexts(self) -> list[TlsContext | None]:
        return [self.server.tls, *(upstream.tls for upstream in self._upstreams)]

    async def _expect(self) -> None:
        """Announce what is configured and found to the counting, so that its metrics exist and begin at 0."""
        plan = self.gateway.serving.plan
        known: list[tuple[str, ...]] = [("client", name) for name in plan.access.names]
        known += [("route", name) for name in plan.router.names]
        known += [("backend", name) for name in plan.backends]
        known += [("endpoint", state.url, each.name) for each in self._upstreams for state in each.endpoints.states]
        for each in known:
            if self.counting.expect(*each):
                self.count()
                await asyncio.sleep(0)  # a look-up of a host name may bring many new endpoints at once
        self.count()

    async def _sample(self) -> None:
        """Measure the event loop's lag: how much later than asked for it wakes this task; and write what waits."""
        loop = asyncio.get_running_loop()
        while True:
            expected = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            self.counting.note_lag(max(0.0, loop.time() - expected))
            self._access_log.flush()
            await self._expect()

    def count(self) -> None:
        """Count and deliver what has happened up to now."""
        self.counting.note_connections(self.server.refused_connections, self.server.slow_connections)
        self.counting.add_up()

    @property
    def _upstreams(self) -> Iterable[Upstream]:
        return self.gateway.serving.upstreams.values()

    def reading(self) -> Reading:
        """The current state of this process, for metrics and the status page."""
        admission, server = self.gateway.admission, self.server
        now_s = asyncio.get_running_loop().time()
        return Reading(
            os.getpid(),
            STARTED_S,
            self.gateway.in_flight,
            Level(admission.requests, admission.max_requests),
            Level(admission.held_bytes, int(admission.max_bytes)),
            Level(server.open_connections, server.limits.connections),
            [
                EndpointReading(
                    upstream.name,
                    state.url,
                    state.is_up,
                    state.ejection.is_ejected and not state.ejection.is_on_trial(now_s),
                    state.busy,
                    len(state.idle),
                    state.reason,
                    state.changed_at_s,
                    str(upstream.configured or upstream.speaking.last or ""),
                    state.ejection.is_on_trial(now_s),
                )
                for upstream in self._upstreams
                for state in upstream.endpoints.states
            ],
            [Certificate(tls.where, tls.expires_s) for tls in self._tls_contexts() if tls and tls.expires_s],
            self.not_usable(),
        )

    def not_usable(self) -> str | None:
        """Why no request can succeed; None if some backend has an endpoint that is not known to be down."""
        if any(upstream.is_usable for upstream in self._upstreams):
            return None
        return f"no backend can be used: all endpoints of {', '.join(self.gateway.serving.upstreams)} are down"

    async def replace(self, config: Config) -> None:
        """Serve by *config* from now on; requests in flight keep the configuration they began with.

        Raises `ConfigError` or `OSError`; nothing has changed then, because all that may fail comes first.
        """
        before = self.gateway.serving.upstreams
        try:
            plan = Plan(config, self.gateway.serving.plan.name)
            tls = TlsContext.following(self.server.tls, "tls", config.tls)
            now = {name: Upstream(backend, before.get(name)) for name, backend in plan.backends.items()}
            # in a thread: an adapter may import what takes a second
            adapters = await import_adapters(config)
            # last, since it may begin a thread; importing OpenTelemetry would hold the loop for a third of a second
            tracing = await asyncio.to_thread(_tracing, config)
        except ConfigError as error:
            raise ConfigError(without_hidden_paths(config, str(error))) from None
        for adapter in self.gateway.serving.adapters.values():
            _settle_without(adapter)
        self.gateway.replace(Serving(plan, now, adapters=adapters))
        self.config = config
        self.server.limits = config.limits
        self.server.tls = tls
        self._access_log.finish()
        self._access_log = _access_log(config)
        change_logging(config.logging.level, config.logging.format)
        self._trace_by(tracing)
        for upstream in now.values():
            self._beside.begin(upstream.start())
        for upstream in before.values():
            if upstream.name not in now:
                upstream.retire()
                self._retired.add(upstream)
        await asyncio.sleep(0)  # lets the upstreams that were just started take over
        await self._expect()

    def _trace_by(self, tracing: Tracing | None) -> None:
        """Trace requests by *tracing* from now on; spans of the previous tracing are still sent."""
        before, self._tracing = self._tracing, tracing
        self.gateway.begin_trace = tracing.begin if tracing is not None else None
        if before is not None:
            self._beside.begin(before.close())

    async def drain(self) -> None:
        """Stop accepting and let requests in flight finish for up to `shutdown.grace`; the rest is cut off."""
        shutdown = self.config.shutdown
        self.gateway.is_draining = True
        await asyncio.sleep(shutdown.delay)
        for listener in self._listeners:
            listener.stop_accepting()
        self.server.drain()
        loop = asyncio.get_running_loop()
        first_head_at = loop.time() + FIRST_HEAD_S
        ends_at = loop.time() + shutdown.grace
        await asyncio.sleep(min(HEAD_S, shutdown.grace))
        # a request whose head has begun to arrive on a connection that was accepted in time counts as in flight
        while (left := ends_at - loop.time()) > 0:
            is_awaited = loop.time() < first_head_at and self.server.n_silent()
            if not (self.gateway.in_flight or self.server.n_unfinished_heads() or is_awaited):
                break
            await asyncio.sleep(min(LOOK_S, left))
        self.gateway.is_ending = True
        cut_off = self.gateway.in_flight + self.server.n_unfinished_heads()
        if cut_off:
            log.warning("shutdown.grace is over: %d requests in flight are cut off", cut_off)

    async def stop(self) -> None:
        """Close the listener and all connections at once."""
        for listener in self._listeners:
            listener.stop_accepting()
        await self.server.close()
        await self._beside.close()
        await self.gateway.metadata.close()
        for upstream in (*self._upstreams, *self._retired):
            upstream.retire()
            await upstream.close()
        self.counting.finish()
        self._access_log.finish()
        if self._tracing is not None:
            await self._tracing.close()


def _access_log(config: Config) -> AccessLog | FailureLog:
    style = config.logging.access
    return AccessLog(style, config.logging.sample) if style != "none" else FailureLog(config.workers)


def _tracing(config: Config) -> Tracing | None:
    """The tracing for *config*, if there is any. Raises `ConfigError`."""
    return Tracing(config.tracing) if config.tracing is not None else None
