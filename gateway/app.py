"""The composition root: a configuration becomes a running data plane and its admin listener.

Everything is put together here and nowhere else; read it to see what talks to what.
"""

import asyncio
import logging
import socket
from dataclasses import dataclass, field

import msgspec
import orjson
from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from prometheus_client.exposition import choose_encoder

from gateway.config import Address, Config, masked
from gateway.errors import ErrorKind
from gateway.exchange import Exchange
from gateway.handlers import Gateway
from gateway.policy.routing import Router
from gateway.telemetry import AccessLog, Metrics
from gateway.upstream import Upstream

CLIENT_KEEP_ALIVE_S = 75.0
"""How long an idle connection of a client is kept: longer than the 60 s of common load balancers."""

SAMPLE_S = 0.1
"""How often the event loop's lag is measured."""

HEAD_S = 0.1
"""How long a request whose connection was just accepted has to show itself when draining begins."""

CUT_S = 0.05
"""How long handlers have to notice that they are cut off. Not 0, which aiohttp takes for no limit."""

log = logging.getLogger("gateway")


class _Protocol(RequestHandler):
    """aiohttp's HTTP server protocol, with its own refusals (bad HTTP) in the error shape of the gateway."""

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what never became a request."""
        text = message or (str(exc) if status < 500 and exc is not None else "internal error")
        response = web.Response(
            status=status,
            body=orjson.dumps({"error": text.splitlines()[0] if text else "malformed HTTP"}),
            headers={"Content-Type": "application/json"},
        )
        response.force_close()
        return response


class _Server(web.Server):
    """aiohttp's low-level server: no router and no middleware, since every path is the backend's."""

    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


@dataclass
class Application:
    """A running gateway."""

    config: Config
    metrics: Metrics
    gateway: Gateway
    upstreams: dict[str, Upstream]
    listen_url: str = ""
    admin_url: str = ""
    _runners: list[web.BaseRunner] = field(default_factory=list)
    _listener: web.SockSite | None = None
    _sampler: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, config: Config) -> "Application":
        """Build everything, open both listeners and serve. Raises `OSError` if an address cannot be had."""
        metrics = Metrics()
        upstreams = {name: Upstream(name, backend) for name, backend in config.backends.items()}
        access_log = AccessLog(config.logging.access) if config.logging.access != "none" else None

        def record(exchange: Exchange) -> None:
            metrics.record(exchange)
            if access_log is not None:
                access_log.record(exchange)
            if exchange.error is ErrorKind.INTERNAL:
                log.error("request %s: %s", exchange.request_id, exchange.detail)

        gateway = Gateway(
            Router(config.routes, next(iter(config.backends))),
            upstreams,
            config.limits,
            config.compression,
            recover_header_length=config.recover_header_length,
            record=record,
        )
        application = cls(config, metrics, gateway, upstreams)
        try:
            await application._open()
        except BaseException:
            await application.stop()
            raise
        return application

    async def _open(self) -> None:
        server = _Server(
            self.gateway.handle,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            keepalive_timeout=CLIENT_KEEP_ALIVE_S,
            lingering_time=0,  # the corridor drops the rest of refused bodies itself, within bounds
        )
        clients = web.ServerRunner(server, shutdown_timeout=CUT_S)
        admin = web.AppRunner(self._admin_application(), access_log=None, shutdown_timeout=CUT_S)
        self._runners = [clients, admin]
        for runner in self._runners:
            await runner.setup()
        admin_site, self.admin_url = await _listen(admin, self.config.admin)
        self._listener, self.listen_url = await _listen(clients, self.config.listen)
        self._sampler = asyncio.create_task(self._sample())
        log.debug("admin listener: %s", admin_site.name)

    async def _sample(self) -> None:
        """Measure how late the event loop is: how long anything kept it from waking this up."""
        loop = asyncio.get_running_loop()
        while True:
            expected = loop.time() + SAMPLE_S
            await asyncio.sleep(SAMPLE_S)
            self.metrics.observe_lag(max(0.0, loop.time() - expected))

    def _observe_load(self) -> None:
        admission = self.gateway.admission
        self.metrics.observe_load(self.gateway.in_flight, admission.held_bytes, admission.max_bytes)

    async def drain(self) -> int:
        """Stop accepting and let what is in flight finish, up to `shutdown.grace`; how many did not."""
        shutdown = self.config.shutdown
        self.gateway.is_draining = True
        await asyncio.sleep(shutdown.delay)
        if self._listener is not None:
            await self._listener.stop()
        await asyncio.sleep(min(HEAD_S, shutdown.grace))
        return await self.gateway.wait_until_idle(shutdown.grace)

    async def stop(self) -> None:
        """Close both listeners and all connections at once."""
        for runner in self._runners:
            await runner.cleanup()
        if self._sampler is not None:
            self._sampler.cancel()
        await self.gateway.close()
        for upstream in self.upstreams.values():
            await upstream.close()

    def _admin_application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [
                web.get("/metrics", self._serve_metrics),
                web.get("/-/live", self._serve_live),
                web.get("/-/ready", self._serve_ready),
                web.get("/-/config", self._serve_config),
            ]
        )
        return application

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        self._observe_load()
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self.metrics.registry), headers={"Content-Type": content_type})

    async def _serve_live(self, request: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def _serve_ready(self, request: web.Request) -> web.Response:
        if self.gateway.is_draining:
            return web.Response(status=503, text="draining\n")
        return web.Response(text="ready\n")

    async def _serve_config(self, request: web.Request) -> web.Response:
        text = msgspec.json.format(msgspec.json.encode(masked(self.config)), indent=2)
        return web.Response(body=text + b"\n", headers={"Content-Type": "application/json"})


async def _listen(runner: web.BaseRunner, address: Address) -> tuple[web.SockSite, str]:
    """Listen on *address*; the site, and its URL with the real port."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    infos = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    infos = [info for info in infos if info[0] == family] or infos
    listener = socket.socket(infos[0][0], socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(infos[0][4])
        site = web.SockSite(runner, listener, backlog=1024)
        await site.start()
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    port = listener.getsockname()[1]
    host = f"[{address.host}]" if ":" in address.host else address.host
    return site, f"http://{host}:{port}"
