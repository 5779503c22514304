"""The admin listener: metrics, liveness, readiness, the effective configuration. Never for clients."""

from collections.abc import Callable

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gateway.client import listeners
from gateway.client.server import CUT_S
from gateway.config import Config, masked


class AdminListener:
    """Answers operators and machines, for one process or for all workers together."""

    def __init__(
        self, config: Config, registry: Callable[[], CollectorRegistry], not_ready: Callable[[], str | None]
    ) -> None:
        """*registry* gives the metrics of this moment, *not_ready* the reason why no client should come, or None."""
        self._config = config
        self._registry = registry
        self._not_ready = not_ready
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Listen; the URL. Raises `OSError` if the address cannot be had."""
        application = web.Application()
        application.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/-/live", self._live),
                web.get("/-/ready", self._ready),
                web.get("/-/config", self._configuration),
            ]
        )
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=CUT_S)
        await listeners.serve(self._runner, self._config.admin)
        return listeners.url_of(self._config.admin, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the listener and its connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._registry()), headers={"Content-Type": content_type})

    async def _live(self, request: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def _ready(self, request: web.Request) -> web.Response:
        reason = self._not_ready()
        return web.Response(status=200 if reason is None else 503, text=f"{reason or 'ready'}\n")

    async def _configuration(self, request: web.Request) -> web.Response:
        text = msgspec.json.format(msgspec.json.encode(masked(self._config)), indent=2)
        return web.Response(body=text + b"\n", headers={"Content-Type": "application/json"})
