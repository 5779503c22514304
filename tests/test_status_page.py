"""The status page in a real browser: what it shows, what it never does, and how it looks."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import aiohttp
import numpy as np
import pytest

from gateway.demo import JsonServer
from tests.chromium import DEADLINE_S, Page, chromium
from tests.conftest import Client, Connection, lying, tensor
from tests.system.gateway_process import GatewayProcess, gateway_process

pytestmark = pytest.mark.slow  # a browser takes a second to begin

X = np.linspace(0, 1, 4096, dtype=np.float32)
HEADER = {"inputs": [tensor("x", X, "FP32")], "parameters": {"binary_data_output": True}}

PLAIN = {"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]}

BIDI = "\u202e\u2066\u200f"
PILE = "\u0336\u030d\u033f\u0346" * 5
HOSTILE = '<script>window.hit=1;<img src=x onerror="window.hit=2">\'"&amp;--><svg onload=window.hit=3>'


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """The folder for screenshots."""
    folder = Path(os.environ.get("STATUS_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
async def new_page() -> AsyncIterator[Callable[[], Awaitable[Page]]]:
    async with chromium() as open_page:
        yield open_page


@dataclass
class Running:
    """A gateway in a process of its own, and a client of it."""

    process: GatewayProcess
    client: Client


@asynccontextmanager
async def gateway(folder: Path, text: str) -> AsyncIterator[Running]:
    """A gateway whose configuration is *text*, and free ports."""
    text = f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\n{text}"
    async with gateway_process(text, folder / "gateway.yaml") as process, aiohttp.ClientSession() as session:
        yield Running(process, Client(session, None, process.url, process.admin))  # type: ignore[arg-type]


MARKUP = (
    "document.body.innerHTML = '<b>x</b>'",
    "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit=1\">')",
    "document.write('<script>window.hit=1</script>')",
    "document.createRange().createContextualFragment('<b>x</b>')",
)


async def fail_with_hostile_words(connection: Connection) -> None:
    """A backend whose errors are markup."""
    while True:
        await connection.read_request()
        await connection.answer(json.dumps({"error": f"{HOSTILE} {BIDI}{PILE}"}).encode(), "500 Internal Server Error")


def assert_calm(page: Page, admin: str) -> None:
    """The page has not complained, and has asked this gateway alone, for the page and its data alone."""
    assert page.complaints == []
    asked = {urlsplit(url).path for url in page.requested if not url.startswith("data:")}
    assert asked == {"/", "/-/status"}
    hosts = {urlsplit(url).netloc for url in page.requested if not url.startswith("data:")}
    assert hosts == {urlsplit(admin).netloc}


async def test_what_clients_and_backends_send_is_never_markup(
    tmp_path: Path, new_page: Callable[[], Awaitable[Page]]
) -> None:
    async with lying(fail_with_hostile_words) as liar:
        async with gateway(tmp_path, f"backends: {{a: {{endpoints: ['{liar.url}']}}}}\n") as running:
            client = running.client
            model = f"{HOSTILE}{BIDI}"
            await client.infer_binary(
                HEADER, X.tobytes(), model=quote(model, safe=""), headers={"X-Request-Id": HOSTILE[:60]}
            )
            await client.request("GET", f"/{quote(HOSTILE, safe='')}")
            page = await new_page()
            await page.open(client.admin)
            await page.until("document.querySelectorAll('#failures tbody tr').length === 2")
            shown = await page.value("document.querySelector('#failures').textContent")
            told = "".join(f"\\u{{{ord(each):x}}}" for each in BIDI)
            assert f"{HOSTILE}{told}" in shown
            assert f"{HOSTILE} {told}" in shown
            assert HOSTILE[:60] in shown
            assert "".join(f"\\u{{{ord(each):x}}}" for each in PILE) in shown
            assert not any(each in shown for each in BIDI + PILE)
            assert await page.value("window.hit === undefined")
            assert await page.value("document.querySelectorAll('main script, main img, main svg').length") == 0
            assert_calm(page, client.admin)


async def test_the_policy_lets_nothing_run_that_is_not_the_page_s_own(
    tmp_path: Path, new_page: Callable[[], Awaitable[Page]], server: JsonServer
) -> None:
    async with gateway(tmp_path, f"backends: {{a: {{endpoints: ['{server.url}']}}}}\n") as running:
        page = await new_page()
        await page.open(running.client.admin)
        await page.until("document.querySelector('#headline').textContent !== ''")
        assert_calm(page, running.client.admin)
        # what would happen if some text became markup after all
        for attempt in MARKUP:
            with pytest.raises(RuntimeError, match="TrustedHTML"):
                await page.value(attempt)
        for attempt in ("eval('window.hit=1')", "document.body.setAttribute('onclick', 'window.hit=1')"):
            with pytest.raises(RuntimeError, match=r"Trusted(Script|Type)|Content Security Policy"):
                await page.value(attempt)
        await page.value(f"document.body.append(Object.assign(new Image, {{src: '{server.url}/image'}}))")
        reached = f"fetch('{server.url}/v2').then(() => 'reached', () => 'refused')"
        assert await page.value(reached) == "refused"
        assert await page.value("window.hit === undefined")
        refused = " ".join(page.complaints)
        assert "Connecting to" in refused
        assert "Loading the image" in refused


async def test_the_page_renews_itself_and_says_when_the_gateway_is_gone(
    tmp_path: Path, new_page: Callable[[], Awaitable[Page]], server: JsonServer, shots: Path
) -> None:
    async with gateway(tmp_path, f"backends: {{a: {{endpoints: ['{server.url}']}}}}\n") as running:
        page = await new_page()
        await page.open(running.client.admin)
        await page.until("document.querySelector('#headline').textContent === 'No backend is known to be down'")
        reply = await running.client.infer_binary(HEADER, X.tobytes())
        assert reply.status == 200
        await page.until("document.querySelector('#more').textContent === '1 request in the last minute, none failed'")
        assert (await page.value("document.title")).startswith("Healthy · tensor-gateway on ")
        assert " · speaks V2 in JSON · no health probes" in await page.text("#backends .muted")
        assert await page.value("document.querySelector('#stale').hidden")
        assert_calm(page, running.client.admin)
        os.kill(running.process.pid, signal.SIGSTOP)
        try:
            await page.until("!document.querySelector('#stale').hidden")
            assert re.fullmatch(
                r"The gateway does not answer \(nothing within 5 s\)\. What you see is from \d\d:\d\d:\d\d\.",
                await page.text("#stale"),
            )
            assert (await page.value("document.title")).startswith("No answer")
            assert await page.text("#state") == "Not known; it was: Healthy"
            await page.look("light", 1280)
            await page.value(FADED)
            await page.screenshot(shots / "stale-light-1280.png")
        finally:
            os.kill(running.process.pid, signal.SIGCONT)
        await page.until("document.querySelector('#stale').hidden")
        assert await page.text("#state") == "Healthy"
        # another version has taken its place, and the page is the former's
        pages = [urlsplit(url).path for url in page.requested].count("/")
        await page.value("last.version = '0.0.0'")
        async with asyncio.timeout(DEADLINE_S):
            while [urlsplit(url).path for url in page.requested].count("/") == pages:
                await asyncio.sleep(0.05)
        await page.until("document.querySelector('#headline')?.textContent === 'No backend is known to be down'")
        running.process.terminate()
        await page.until("document.querySelector('#stale').textContent.includes('no connection')")


async def test_without_its_script_the_page_says_so(
    tmp_path: Path, new_page: Callable[[], Awaitable[Page]], server: JsonServer
) -> None:
    async with gateway(tmp_path, f"backends: {{a: {{endpoints: ['{server.url}']}}}}\n") as running:
        page = await new_page()
        await page.call("Emulation.setScriptExecutionDisabled", value=True)
        await page.call("Page.navigate", url=running.client.admin)
        async with asyncio.timeout(DEADLINE_S):
            while "A script draws this page" not in str(await page.value("document.body?.innerText ?? ''")):
                await asyncio.sleep(0.05)


ROUTES = """
routes:
  - {name: images, models: ["resnet*", "identity"], backend: vision}
  - {name: canary, models: [ranker], split: {vision: 95, ranking: 5}}
  - {name: everything-else, path_prefix: /prod, host: api.example.com, backend: ranking}
"""

FADED = "Promise.all(document.getAnimations().map((each) => each.finished.catch(() => 0))).then(() => 1)"
"""Waits until all transitions of colours and widths are over."""

TOO_WIDE = """
[...document.querySelectorAll("main *")]
  .filter((each) => each.offsetParent && !each.closest("thead, caption, .hidden"))
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 0.5)
  .map((each) => each.outerHTML.slice(0, 200))
"""
"""Parts that can be seen and reach beyond the right edge."""

TOO_PALE = """
(() => {
  const light = (color) => {
    const [red, green, blue] = color.match(/[0-9.]+/g).map((part) => part / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (node) => {
    const color = node ? getComputedStyle(node).backgroundColor : "rgb(255, 255, 255)";
    return color.startsWith("rgba") ? ground(node.parentElement) : color;
  };
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.offsetParent && [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
    .map((each) => [each, [light(getComputedStyle(each).color), light(ground(each))].sort((one, other) => other - one)])
    .filter(([, [high, low]]) => (high + 0.05) / (low + 0.05) < 4.5)
    .map(([each]) => each.outerHTML.slice(0, 200));
})()
"""
"""Texts whose contrast to their background is less than WCAG's 4.5."""

EACH_SIZE = [("light", 1280), ("dark", 1280), ("light", 360), ("dark", 360), ("light", 768)]


CARDS = [
    "Requests",
    "Errors",
    "Time of a request",
    "In flight",
    "Sizes before and after transcoding",
]

BROKEN_PARTS = """
(() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const broken = [];
  while (texts.nextNode()) {
    const { data, parentElement } = texts.currentNode;
    if (!parentElement.closest("#backends tbody :is(th, td:nth-child(3)), #facts dd, #health")) continue;
    for (const { index, 0: part } of data.matchAll(/[^\\s./:_-]+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, index);
      range.setEnd(texts.currentNode, index + part.length);
      if (range.getClientRects().length > 1) broken.push(`${part} of ${data}`);
    }
  }
  return broken;
})()
"""
"""The parts of addresses and times that stand on two lines."""


async def test_addresses_and_times_break_between_their_parts_and_no_card_is_empty(
    tmp_path: Path, new_page: Callable[[], Awaitable[Page]], server: JsonServer
) -> None:
    long = "http://inference-server-production-a.some-namespace.svc.cluster.invalid:8000"
    eject = "eject: {failures: 1}, retry: {attempts: 2, budget: 1}, balance: round_robin"
    backends = f"backends: {{vision: {{endpoints: ['{server.url}', '{long}'], {eject}}}}}\n"
    async with gateway(tmp_path, backends) as running:
        for _ in range(2):
            await running.client.infer_binary(HEADER, X.tobytes())
        page = await new_page()
        for width in (1280, 360):
            await page.look("light", width)
            await page.open(running.client.admin)
            await page.until("document.querySelector('#health').textContent.includes('ejected')")
            assert await page.value(BROKEN_PARTS) == []
            assert await page.value(TOO_WIDE) == []
            shown = "document.querySelector('#backends tbody').textContent"
            assert long in await page.value(shown)  # what is copied from the page is the address
        # a card for reasons alone would be empty as long as nothing fails
        titles = await page.value("[...document.querySelectorAll('.tile h3')].map((each) => each.textContent)")
        assert [title.partition(",")[0] for title in titles] == CARDS


async def test_the_page_in_trouble_and_in_health_fits_every_screen(
    tmp_path: Path, new_page: Callable[[], Awaitable[Page]], server: JsonServer, shots: Path
) -> None:
    """One endpoint refuses connections, a backend fails, a client errs, a reload is refused; two workers serve."""

    async def overloaded(connection: Connection) -> None:
        while True:
            await connection.read_request()
            is_probe = connection.head.startswith(b"GET")
            text = b'{"error": "CUDA out of memory: tried to allocate 2.00 GiB on device 0"}'
            await connection.answer(b"{}" if is_probe else text, "200 OK" if is_probe else "500 Internal Server Error")

    health = "health: {interval: 100ms, timeout: 5s, unhealthy_after: 1}"
    async with lying(overloaded) as liar, JsonServer.on_port(0) as gone:
        await gone.runner.cleanup()
        backends = (
            f"workers: 2\nbackends:\n  ranking: {{endpoints: ['{liar.url}']}}\n"
            f"  vision: {{endpoints: ['{server.url}', '{gone.url}'], {health}}}\n"
        )
        async with gateway(tmp_path, backends + ROUTES) as running:
            client = running.client
            for _ in range(40):
                await client.infer_binary(HEADER, X.tobytes())
            await client.infer(b"not json", model="identity")
            await client.request("GET", "/v2/models/" + "a-model-with-a-very-long-name-" * 4)
            for _ in range(3):
                await client.request(
                    "POST", "/prod/v2/models/ranker/infer", json=PLAIN, headers={"Host": "api.example.com"}
                )
            running.process.reload("backends: {a: {endpoints: ['http://x'], typo: 1}}")
            page = await new_page()
            await page.look("light", 1280)
            await page.open(client.admin)
            await page.until("document.querySelector('#health').className.includes('critical')")
            await page.until("document.querySelector('#facts').textContent.includes('failed')")
            await page.until("document.querySelector('#backends').textContent.includes('1 of 2 up')")
            problems = await page.value("document.querySelector('#health').innerText")
            assert re.search(
                r"vision: endpoints down: 1 of 2\W+since \d\d:\d\d:\d\d \(\d+ (s|min)\): .*refused", problems
            )
            assert "ranking failed 3 of 3 requests in the last minute" in problems
            assert "CUDA out of memory" in problems
            assert "The last reload failed" in problems
            for scheme, width in EACH_SIZE:
                await page.look(scheme, width)
                await page.value(FADED)
                assert await page.value("document.documentElement.scrollWidth") <= width
                assert await page.value(TOO_WIDE) == []
                assert await page.value(TOO_PALE) == []
                await page.screenshot(shots / f"trouble-{scheme}-{width}.png")
            assert_calm(page, client.admin)

            # only the errors of one side
            await page.value("document.querySelector('#filter input[value=client]').click()")
            blames = "[...document.querySelectorAll('#failures tbody .badge')].map(each => each.textContent)"
            assert set(await page.value(blames)) == {"client"}
            # what has not changed is not made anew, so that a selection stays
            await page.value("window.row = document.querySelector('#failures tbody tr'); 1")
            before = await page.text("#fresh")
            await page.until(f"document.querySelector('#fresh').textContent !== {json.dumps(before)}")
            assert await page.value("window.row.isConnected")

    async with gateway(tmp_path, f"backends: {{vision: {{endpoints: ['{server.url}'], {health}}}}}\n") as running:
        for _ in range(60):
            await running.client.infer_binary(HEADER, X.tobytes())
        page = await new_page()
        await page.open(running.client.admin)
        await page.until("document.querySelector('#health').className.includes('ok')")
        await page.until("document.querySelector('#more').textContent.includes('60 requests')")
        for scheme, width in EACH_SIZE:
            await page.look(scheme, width)
            await page.value(FADED)
            await page.screenshot(shots / f"health-{scheme}-{width}.png")
            assert await page.value(TOO_PALE) == []
        assert_calm(page, running.client.admin)
