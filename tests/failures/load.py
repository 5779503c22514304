"""A steady load of inferences that each carry a number of their own, and what became of each.

Requests begin at a fixed rate, whether or not those before them have ended: a gateway that stalls gets no rest.
"""

import asyncio
import io
import itertools
import json
import random
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import numpy as np

from tests.conftest import HEADER_LENGTH
from tests.system.scripted import infer_header

SMALL_ELEMENTS = 16
LARGE_ELEMENTS = 40_000
LARGE_SHARE = 0.04

CLIENT_S = 60.0
"""When a client gives up. No scenario allows the gateway to let it come to that."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request."""

    number: int
    started_s: float
    ended_s: float
    what: str
    """`ok`, `wrong` (another request's answer), the status of a failure, or how the connection ended."""
    detail: str = ""

    @property
    def seconds(self) -> float:
        """How long the client waited."""
        return self.ended_s - self.started_s


@dataclass
class Load:
    """Requests to one URL; `steady_load` starts and ends it."""

    url: str
    outcomes: list[Outcome] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    trust: ssl.SSLContext | bool = True
    model: str = "m"
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def between(self, start_s: float, end_s: float) -> list[Outcome]:
        """Those that began between two times."""
        return [outcome for outcome in self.outcomes if start_s <= outcome.started_s < end_s]

    def begin(self, session: aiohttp.ClientSession, elements: int = SMALL_ELEMENTS) -> asyncio.Task[None]:
        """Send one request beside all others."""
        task = asyncio.create_task(self._ask(session, next(self.numbers), elements))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def finish(self) -> None:
        """Wait for every reply."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def _ask(self, session: aiohttp.ClientSession, number: int, elements: int) -> None:
        array = np.arange(elements, dtype=np.int64) + number * 1_000_000
        header = json.dumps({"id": str(number), **infer_header(array, "INT64")}).encode()
        started_s = time.monotonic()
        detail = ""
        try:
            async with session.post(
                f"{self.url}/v2/models/{self.model}/infer?id={number}",
                data=io.BytesIO(header + array.tobytes()),
                headers={HEADER_LENGTH: str(len(header))},
                ssl=self.trust,
            ) as response:
                body = await response.read()
                length = int(response.headers.get(HEADER_LENGTH, 0))
            if response.status != 200:
                what, detail = str(response.status), body[:300].decode(errors="replace")
            elif body[length:] == array.tobytes() and json.loads(body[:length])["id"] == str(number):
                what = "ok"
            else:
                what, detail = "wrong", body[:300].decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            what, detail = type(error).__name__, str(error)
        self.outcomes.append(Outcome(number, started_s, time.monotonic(), what, detail))


@asynccontextmanager
async def steady_load(
    url: str, rate: float, *, trust: ssl.SSLContext | bool = True, model: str = "m"
) -> AsyncIterator[Load]:
    """*rate* requests a second while the body of `async with` runs; afterwards all have their outcome."""
    load = Load(url, trust=trust, model=model)
    async with sessions() as (keeping, closing):
        pacing = asyncio.create_task(_pace(load, rate, keeping, closing))
        try:
            yield load
        finally:
            pacing.cancel()
            await load.finish()


@asynccontextmanager
async def sessions() -> AsyncIterator[tuple[aiohttp.ClientSession, aiohttp.ClientSession]]:
    """One that keeps its connections, and one that opens a connection each time, so that every worker gets some."""
    timeout = aiohttp.ClientTimeout(CLIENT_S)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as keeping,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=timeout) as closing,
    ):
        yield keeping, closing


async def _pace(load: Load, rate: float, keeping: aiohttp.ClientSession, closing: aiohttp.ClientSession) -> None:
    dice = random.Random(7)
    start_s = time.monotonic()
    for number in itertools.count():
        await asyncio.sleep(start_s + number / rate - time.monotonic())
        elements = LARGE_ELEMENTS if dice.random() < LARGE_SHARE else SMALL_ELEMENTS
        load.begin(dice.choice([keeping, closing]), elements)


def share(
    outcomes: Iterable[Outcome], is_good: Callable[[Outcome], bool] = lambda outcome: outcome.what == "ok"
) -> float:
    """The share of *outcomes* that are good; 1 of none."""
    judged = [is_good(outcome) for outcome in outcomes]
    return sum(judged) / len(judged) if judged else 1.0


def failures(outcomes: Iterable[Outcome]) -> Counter[str]:
    """What became of those that did not go well."""
    return Counter(outcome.what for outcome in outcomes if outcome.what != "ok")
