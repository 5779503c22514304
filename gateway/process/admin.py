"""The admin listener: the status page, metrics, liveness, readiness, the effective configuration.

Not here: anything for clients, and what the status page shows (`status`).
"""

import asyncio
import hashlib
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import msgspec
from aiohttp import web
from prometheus_client import Metric

from gateway.client import listeners
from gateway.client.server import CUT_S
from gateway.config import Address, Config, masked
from gateway.process.status import Status
from gateway.telemetry.exposition import Exposition

_PAGE = Path(__file__).with_name("status.html")

_NEVER_KEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def _policy(page: str) -> str:
    """The Content-Security-Policy of *page*: its own style and script run, and it talks to this listener alone.

    It shows texts that clients and backends have sent. With `require-trusted-types-for` the browser itself refuses
    every use of the script that could make markup of them.
    """
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    hashes = [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


class AdminListener:
    """Answers operators and machines, for one process or for all workers together."""

    def __init__(
        self,
        address: Address,
        config: Callable[[], Config],
        metrics: Callable[[], Awaitable[Iterable[Metric]]],
        not_ready: Callable[[], str | None],
        status: Callable[[], Awaitable[Status]],
    ) -> None:
        """What is true at this moment: *config* is effective, *metrics* are collected, maybe in parts.

        *not_ready* gives the reason why clients should not come, or None. *metrics* and *status* may wait for others.
        """
        self._address = address
        self._config = config
        self._collected = metrics
        self._not_ready = not_ready
        self._gather_status = status
        page = _PAGE.read_text(encoding="utf-8")
        self._page = page.encode()
        self._page_headers = {
            **_NEVER_KEPT,
            "Content-Type": "text/html; charset=utf-8",
            "Content-Security-Policy": _policy(page),
            "Referrer-Policy": "no-referrer",
        }
        self._handlers: dict[str, Callable[[web.BaseRequest], Awaitable[web.Response]]] = {
            "/": self._status_page,
            "/-/status": self._status,
            "/metrics": self._metrics,
            "/-/live": self._live,
            "/-/ready": self._ready,
            "/-/config": self._configuration,
        }
        self._runner: web.ServerRunner | None = None

    async def start(self) -> str:
        """Listen; the URL. Raises `OSError` if the address cannot be had."""
        server = web.Server(self._answer, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=CUT_S)
        await listeners.serve(self._runner, self._address)
        return listeners.url_of(self._address, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Close the listener and its connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        # not by aiohttp's router, whose refusals repeat odd bytes of the request and fail to encode them
        handler = self._handlers.get(request.path)
        if handler is None:
            return web.Response(status=404, text=f"not found; known are {', '.join(self._handlers)}\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="expected GET or HEAD\n", headers={"Allow": "GET, HEAD"})
        return await handler(request)

    async def _status_page(self, request: web.BaseRequest) -> web.Response:
        return web.Response(body=self._page, headers=self._page_headers)

    async def _status(self, request: web.BaseRequest) -> web.Response:
        text = msgspec.json.encode(await self._gather_status())
        return web.Response(body=text, headers={**_NEVER_KEPT, "Content-Type": "application/json"})

    async def _metrics(self, request: web.BaseRequest) -> web.Response:
        exposition = Exposition(request.headers.get("Accept", ""))
        text = bytearray()
        for piece in exposition.pieces(await self._collected()):
            text += piece
            await asyncio.sleep(0)  # in one process, clients are served on this loop
        return web.Response(body=text, headers={"Content-Type": exposition.content_type})

    async def _live(self, request: web.BaseRequest) -> web.Response:
        return web.Response(text="live\n")

    async def _ready(self, request: web.BaseRequest) -> web.Response:
        reason = self._not_ready()
        return web.Response(status=200 if reason is None else 503, text=f"{reason or 'ready'}\n")

    async def _configuration(self, request: web.BaseRequest) -> web.Response:
        text = msgspec.json.format(msgspec.json.encode(masked(self._config())), indent=2)
        return web.Response(body=text + b"\n", headers={"Content-Type": "application/json"})
