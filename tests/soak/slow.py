"""Clients that stop in the middle, and one that reads slowly and never stops: it must get everything."""

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Iterator

from tests.soak.client import LeavesError, message
from tests.soak.journal import Journal, Plan
from tests.system.scripted import Wire, wire

LIMIT_S = 3.0
"""What the gateway's limits of slowness are set to."""

CUT_S = LIMIT_S + 10
"""When a client that has stopped must have lost its connection."""

WAYS = ["says nothing", "stops in the head", "stops in the body", "does not read", "reads slowly"]

RECEIVE_BYTES = 4096
"""The kernel's buffer of a client that does not read."""

UNREAD_BYTES = 8 * 2**20
"""An answer that does not fit into the kernels' buffers on its way."""

STEP_BYTES, STEP_S = 2**18, 0.1
"""What a slow reader reads at a time, and how long it pauses: three seconds in all, which is more than any limit."""

SHORTEST_TOTAL_S = 8.0
"""The shortest `timeouts.total`: on a busy machine a slow reader may need longer, and may then be cut off."""


class SlowClient:
    """One slow client after the other."""

    def __init__(
        self, url: str, journal: Journal, seed: str, ids: Iterator[int], trust: ssl.SSLContext | None = None
    ) -> None:
        self._url = url
        self._trust = trust
        self._journal = journal
        self._dice = random.Random(seed)
        self._ids = ids

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Be slow in one way after the other while *goes_on*."""
        while goes_on():
            way = self._dice.choice(WAYS)
            plan = self._plan("post" if way == "stops in the body" else "get")
            try:
                receive_bytes = RECEIVE_BYTES if way == "does not read" else None
                async with asyncio.timeout(2 * CUT_S), wire(self._url, receive_bytes, self._trust) as connection:
                    ending = await self._be(connection, way, plan)
            except (ConnectionError, asyncio.IncompleteReadError, LeavesError) as error:
                ending = type(error).__name__
            except TimeoutError:
                ending = "kept"
                self._journal.violated("a client that had stopped was not cut off", f"it {way}, {plan.id}")
            self._journal.slow[f"{way}: {ending}"] += 1
            self._journal.forget(plan)

    def _plan(self, kind: str) -> Plan:
        plan = Plan(
            next(self._ids), kind, "none", delay_s=0.0, elements=2000, answer_bytes=UNREAD_BYTES if kind == "get" else 0
        )
        self._journal.plans[plan.id] = plan
        return plan

    async def _be(self, connection: Wire, way: str, plan: Plan) -> str:
        """Be slow in one *way*; how it ended."""
        request = message(plan)
        first = b""
        match way:
            case "says nothing":
                pass
            case "stops in the head":
                await connection.send(request.head[: self._dice.randrange(1, len(request.head))])
            case "stops in the body":
                await connection.send(request.head + request.body[: self._dice.randrange(1, len(request.body))])
            case "does not read":
                await connection.send(request.head)
                # a client is slow from when there is something to read, which may be late where endpoints hang
                first = await connection.reader.readexactly(1)
                await asyncio.sleep(LIMIT_S + 3)
            case _:
                return await self._read_slowly(connection, plan, request.head)
        received = len(first)
        async with asyncio.timeout(CUT_S):
            while piece := await connection.reader.read(2**16):
                first = first if b" " in first else first + piece
                received += len(piece)
        if way == "does not read" and received >= UNREAD_BYTES:
            self._journal.violated("a client that did not read was not cut off", f"{plan.id}: {received} bytes")
        return f"closed after {first.split(b' ', 2)[1].decode()}" if first else "closed"

    async def _read_slowly(self, connection: Wire, plan: Plan, head: bytes) -> str:
        await connection.send(head)
        start = await connection.reader.readuntil(b"\r\n\r\n")
        status = int(start.split(b" ", 2)[1])
        if status != 200:
            return str(status)
        began_s = time.monotonic()
        missing = len(plan.mark) + plan.answer_bytes
        try:
            while missing:
                missing -= len(await connection.reader.readexactly(min(STEP_BYTES, missing)))
                await asyncio.sleep(STEP_S)
        except (ConnectionError, asyncio.IncompleteReadError):
            if time.monotonic() - began_s > SHORTEST_TOTAL_S - 1:
                return "cut, as it took longer than `total`"
            self._journal.cut(plan, "it read slowly, and never stopped", still_sending=False)
            return "cut"
        return "whole"
