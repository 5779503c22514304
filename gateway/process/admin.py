"""The admin listener: the status page, metrics, liveness, readiness, the effective configuration."""

import asyncio
import logging
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from gateway.client import listeners
from gateway.client.server import CUT_S
from gateway.config import masked
from gateway.pacing import Pacer

if TYPE_CHECKING:
    from gateway.process.application import Application

MAX_CONNECTIONS = 64
"""The most connections of operators and machines; beyond it the oldest is closed, so that probes always get through."""

log = logging.getLogger("gateway")

# aiohttp logs bad requests with a traceback each, with which a port scan could fill the log. A filter stays when a
# program configures its logging anew, while `disabled` would be reset.
_unheard = logging.getLogger("gateway.admin")
_unheard.addFilter(lambda _: False)

_PAGE = Path(__file__).with_name("status.html").read_text(encoding="utf-8")
_PARTS = re.findall(r"<(style|script)>(.*?)</\1>", _PAGE, re.DOTALL)
_NEVER_KEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_HEADERS_OF_PAGE = {
    **_NEVER_KEPT,
    # The page's own style and script run, and it talks to this listener alone. It shows texts that clients and backends
    # have sent: the browser refuses every operation of the script that could turn such a text into markup.
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'; "
    + "; ".join(f"{tag}-src 'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for tag, text in _PARTS),
    "Referrer-Policy": "no-referrer",
}


class _Server(web.Server):
    """aiohttp's server with at most `MAX_CONNECTIONS`."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        super().__init__(answer, access_log=None, logger=_unheard)
        self._open: dict[object, asyncio.Transport] = {}
        """The open connections, the oldest first."""

    def connection_made(self, handler: Any, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._open[handler] = transport
        if len(self._open) > MAX_CONNECTIONS:
            self._open.pop(next(iter(self._open))).abort()

    def connection_lost(self, handler: Any, exc: BaseException | None = None) -> None:
        self._open.pop(handler, None)
        super().connection_lost(handler, exc)


class AdminListener:
    """Answers operators and machines, for one process or for all workers together, by the current state."""

    def __init__(self, application: "Application") -> None:
        """*application*: whose state it tells."""
        self._application = application
        self._scraping = asyncio.Lock()
        """Held by one scrape at a time, so that each turn of the event loop makes one piece however many wait."""
        self._answers: dict[str, Callable[[], Awaitable[web.Response]]] = {
            "/": self._page,
            "/-/status": self._status_as_json,
            "/metrics": self._metrics,
            "/-/live": lambda: _said("live", application.stalled()),
            "/-/ready": lambda: _said("ready", application.not_ready()),
            "/-/config": self._configuration,
        }
        self._server: web.Server | None = None
        self._listening: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen, and return the URL. Raises `OSError` if the address cannot be used."""
        address = self._application.config.admin
        bound = await listeners.bind(address)
        self._server = _Server(self._answer)
        self._listening = await asyncio.get_running_loop().create_server(self._server, sock=bound)
        return listeners.url_of(address, bound.getsockname()[1])

    async def stop(self) -> None:
        """Close the listener and its connections."""
        if self._server is not None and self._listening is not None:
            self._listening.close()
            await asyncio.sleep(0)  # lets requests that have come begin, so that they are answered
            self._server.pre_shutdown()
            await self._server.shutdown(CUT_S)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        # aiohttp's router is not used: its refusals repeat odd bytes of the request and fail to encode them
        answer = self._answers.get(request.path)
        if answer is None:
            return web.Response(status=404, text=f"not found; known are {', '.join(self._answers)}\n")
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, text="expected GET or HEAD\n", headers={"Allow": "GET, HEAD"})
        try:
            return await answer()
        except Exception:
            log.exception("%s of the admin listener could not be answered", request.path)
            return web.Response(status=500, text="internal error; the log has the details\n")

    async def _page(self) -> web.Response:
        return web.Response(text=_PAGE, content_type="text/html", headers=_HEADERS_OF_PAGE)

    async def _status_as_json(self) -> web.Response:
        status = await Pacer().run(self._application.status())  # clients are served on this loop, too
        return web.Response(body=msgspec.json.encode(status), content_type="application/json", headers=_NEVER_KEPT)

    async def _metrics(self) -> web.Response:
        text = ""
        async with self._scraping:
            for piece in self._application.exposition():
                text += piece
                await asyncio.sleep(0)  # in one process, clients are served on this loop
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _configuration(self) -> web.Response:
        text = msgspec.json.format(msgspec.json.encode(masked(self._application.config)), indent=2)
        return web.Response(body=text + b"\n", content_type="application/json")


async def _said(word: str, reason: str | None) -> web.Response:
    """200 with *word*; or 503 with the *reason*, if there is one."""
    return web.Response(status=200 if reason is None else 503, text=f"{reason or word}\n")
