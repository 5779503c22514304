"""The composition root: a configuration becomes a running data plane.

Everything is put together here and nowhere else; read it to see what talks to what. Processes: `process`.
"""

import asyncio
import gc
import logging
import secrets

from gateway.backend.upstream import Upstream
from gateway.client.listeners import ClientListener
from gateway.client.server import Server
from gateway.config import Config
from gateway.errors import ErrorKind
from gateway.exchange import Exchange
from gateway.handlers import Gateway
from gateway.plan import Plan
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.metrics import Metrics

SAMPLE_S = 0.1
"""How often the event loop's lag is measured."""

HEAD_S = 0.1
"""How long a request whose connection was just accepted has to show itself when draining begins."""

log = logging.getLogger("gateway")


def settle() -> None:
    """To be called once when a process has started: what lives until its end is no longer searched for garbage.

    A full collection walks every object of every imported module, which holds the event loop for 20 ms.
    """
    gc.collect()
    gc.freeze()


def new_name() -> str:
    """A name for this gateway that no other has, so that it recognizes a request that went through it (`Via`)."""
    return f"tensor-gateway-{secrets.token_hex(8)}"


class DataPlane:
    """What serves clients, in one process. Must be made on a running event loop."""

    def __init__(self, config: Config, name: str) -> None:
        """*name* is what the gateway calls itself in `Via`, see `new_name`; its workers share one."""
        self.config = config
        self.metrics = Metrics()
        self.url = ""
        plan = Plan.of(config, name)
        self._upstreams = {backend.name: Upstream(backend) for backend in plan.backends.values()}
        self._access_log = AccessLog(config.logging.access) if config.logging.access != "none" else None
        self.gateway = Gateway(plan, self._upstreams, self._record)
        self.server = Server(self.gateway.handle, self._record, max_connections=config.limits.connections)
        self._listener = ClientListener(self.server)
        self._sampler: asyncio.Task[None] | None = None

    def _record(self, exchange: Exchange) -> None:
        try:
            self.metrics.record(exchange)
            if self._access_log is not None:
                self._access_log.record(exchange)
        except Exception:  # the client has its reply, and shall keep it
            log.exception("request %s could not be recorded", exchange.request_id)
        if exchange.error is ErrorKind.INTERNAL:
            log.error("request %s: %s", exchange.request_id, exchange.detail)

    async def start(self, *, shared: bool = False) -> None:
        """Listen, on a port that is *shared* with other workers. Raises `OSError` if the address cannot be had."""
        await asyncio.gather(*(upstream.start() for upstream in self._upstreams.values()))
        self.url = await self._listener.open(self.config.listen, shared=shared)
        self.observe_load()
        self._sampler = asyncio.create_task(self._sample())

    async def _sample(self) -> None:
        """Measure how late the event loop is: how long anything kept it from waking this up."""
        loop = asyncio.get_running_loop()
        while True:
            expected = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            self.metrics.observe_lag(max(0.0, loop.time() - expected))
            self.observe_load()

    def observe_load(self) -> None:
        """Set the gauges of what is in flight to this moment's values."""
        admission = self.gateway.admission
        self.metrics.observe_load(self.gateway.in_flight, admission.held_bytes, admission.max_bytes)
        self.metrics.observe_connections(self.server.open_connections, self.server.refused_connections)
        for upstream in self._upstreams.values():
            for state in upstream.endpoints.states:
                self.metrics.observe_upstream(upstream.name, state.url, *upstream.connections.counts(state.endpoint))

    async def drain(self) -> None:
        """Stop accepting and let what is in flight finish, up to `shutdown.grace`; then it is cut off."""
        shutdown = self.config.shutdown
        self.gateway.is_draining = True
        await asyncio.sleep(shutdown.delay)
        await self._listener.stop_accepting()
        await asyncio.sleep(min(HEAD_S, shutdown.grace))
        cut_off = await self.gateway.wait_until_idle(shutdown.grace)
        if cut_off:
            log.warning("shutdown.grace is over: %d requests in flight are cut off", cut_off)

    async def stop(self) -> None:
        """Close the listener and all connections at once."""
        await self._listener.close()
        if self._sampler is not None:
            self._sampler.cancel()
        await self.gateway.close()
        for upstream in self._upstreams.values():
            await upstream.close()
