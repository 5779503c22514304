"""A real Chromium without a window, driven by the DevTools protocol over its websocket.

Not here: what a test expects of a page.
"""

import asyncio
import base64
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.conftest import require_tool

DEADLINE_S = 60.0
"""How long a browser may take to start, and a page to become what a test waits for, on a busy machine."""

_CLOSING = aiohttp.ClientWSTimeout(ws_close=1.0)
"""A browser that is about to be killed is not waited for longer, in seconds."""

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Page:
    """A page of the browser, with all that it has asked for and complained about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requested: list[str] = []
        """The URLs of all its requests."""
        self.complaints: list[str] = []
        """Its errors and warnings: exceptions, refusals of the policy, failed requests."""
        self.session = ""
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol; its result. Raises `RuntimeError` for its error."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json({**message, "sessionId": self.session} if self.session else message)
        async with asyncio.timeout(DEADLINE_S):
            return await answer

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            answer = self._answers.pop(told.get("id", 0), None)
            if answer is not None and not answer.done():
                if "error" in told:
                    answer.set_exception(RuntimeError(told["error"]["message"]))
                else:
                    answer.set_result(told["result"])
            self._note(told.get("method", ""), told.get("params", {}))

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    async def open(self, url: str) -> None:
        """Go to *url* and wait until it has been loaded."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def value(self, expression: str) -> Any:
        """What *expression* is in the page, under the page's own policy. Raises `RuntimeError` for what it throws."""
        answer = await self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    async def text(self, selector: str) -> str:
        """The text of the first element that *selector* finds."""
        return str(await self.value(f"document.querySelector({json.dumps(selector)}).textContent"))

    async def until(self, expression: str) -> None:
        """Wait until *expression* is true in the page. Raises `TimeoutError`, with what the page shows."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not await self.value(expression):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise TimeoutError(f"{expression}; the page: {await self.value('document.body.innerText')}") from None

    async def look(self, scheme: str, width: int, height: int = 900) -> None:
        """Be a screen of that size in pixels, with a `light` or `dark` scheme."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def screenshot(self, file: Path) -> None:
        """Write the whole page to *file* as PNG."""
        height = await self.value("document.documentElement.scrollHeight")
        width = await self.value("document.documentElement.clientWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))

    async def close(self) -> None:
        """Close the websocket, and read nothing more."""
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading
        await self._socket.close()


@asynccontextmanager
async def chromium() -> AsyncIterator[Callable[[], Awaitable[Page]]]:
    """A running browser: what it gives opens an empty page in a context of its own."""
    program = require_tool("chromium", "Debian's package chromium")
    folder = Path(tempfile.mkdtemp(prefix="chromium-"))
    process = await asyncio.create_subprocess_exec(
        *(program, *_OPTIONS, f"--user-data-dir={folder}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
        env={"HOME": str(folder), "TMPDIR": str(folder), "PATH": "/usr/bin:/bin"},
    )
    pages: list[Page] = []
    draining: asyncio.Task[None] | None = None
    try:
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(DEADLINE_S):
                url = await _devtools(process.stderr)
            draining = asyncio.create_task(_drain(process.stderr))

            async def new_page() -> Page:
                socket = await session.ws_connect(url, max_msg_size=0, proxy=None, timeout=_CLOSING)
                page = Page(socket)
                pages.append(page)
                context = (await page.call("Target.createBrowserContext"))["browserContextId"]
                target = await page.call("Target.createTarget", url="about:blank", browserContextId=context)
                attached = await page.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
                page.session = attached["sessionId"]
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.call(f"{domain}.enable")
                return page

            try:
                yield new_page
            finally:
                for page in pages:
                    await page.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if draining is not None:
            await draining
        shutil.rmtree(folder, ignore_errors=True)


async def _devtools(stream: asyncio.StreamReader | None) -> str:
    """The URL of the browser's websocket, which it announces on standard error."""
    assert stream is not None
    said = ""
    while line := (await stream.readline()).decode(errors="replace"):
        said += line
        if found := re.search(r"DevTools listening on (ws://\S+)", line):
            return found[1]
    raise RuntimeError(f"chromium ended at once: {said}")


async def _drain(stream: asyncio.StreamReader | None) -> None:
    assert stream is not None
    with suppress(ValueError):
        while await stream.read(65536):
            pass
