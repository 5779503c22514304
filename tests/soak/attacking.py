"""Clients that attack: bodies in chunks of one byte, and large heads behind a slow request.

Each attack has one right ending, whatever the endpoints do (docs/architecture.md, "Connections of clients"): 400, or
the reply of the slow request and then 431.
"""

import asyncio
import random
import ssl
from collections.abc import Callable, Iterator

from tests.soak.client import REPLY_S, Message, message, read_reply
from tests.soak.journal import Journal, Plan
from tests.system.scripted import Wire, head_of, wire

WAYS = {
    "a long body in chunks of one byte": 4,
    "chunks of one byte behind a large one": 2,
    "a head too large behind a slow request": 3,
    "many heads too large behind a slow request": 2,
    "many large heads behind a slow request": 2,
}
"""What an attacker does with a connection, and how often beside the others."""

PAUSE_S = 0.2
"""The longest between two attacks of one client."""

LONG_BODY_ELEMENTS = (2800, 5000)
"""Twice 64 KiB on the wire, and not more than a gateway reads of what it refuses."""

SEEN_BYTES = 256 * 1024
"""A client that has sent up to so much of a head that is too large gets to see the 431."""

_FIELD = "a" * 8000
TOO_LARGE = head_of("GET", "/v2/any?id=0", None, {f"x-{number:03}": _FIELD for number in range(123)})
"""A head of 124 fields, beyond `limits.head`."""

LARGE_FIELDS = {f"x-{number:03}": "a" * 480 for number in range(120)}
"""Nearly what `limits.head` allows."""


class AttackingClient:
    """One attack after the other."""

    def __init__(
        self, url: str, journal: Journal, seed: str, ids: Iterator[int], trust: ssl.SSLContext | None = None
    ) -> None:
        self._url = url
        self._trust = trust
        self._journal = journal
        self._dice = random.Random(seed)
        self._ids = ids

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Attack in one way after the other while *goes_on*."""
        while goes_on():
            way = self._dice.choices(list(WAYS), list(WAYS.values()))[0]
            ending = "no connection"
            try:
                async with wire(self._url, trust=self._trust) as connection:
                    ending = await (
                        self._send_tiny_chunks(connection, way)
                        if "chunks" in way
                        else self._send_heads(connection, way)
                    )
            except ConnectionError as error:
                ending = type(error).__name__
            self._journal.attacks[f"{way}: {ending}"] += 1
            await asyncio.sleep(self._dice.random() * PAUSE_S)

    def _plan(self, kind: str, fault: str, elements: int = 3) -> Plan:
        delay_s = self._dice.choice([0.01, 0.05, 0.15])
        plan = Plan(next(self._ids), kind, fault, delay_s=delay_s, elements=elements, answer_bytes=20)
        self._journal.plans[plan.id] = plan
        return plan

    async def _send_tiny_chunks(self, connection: Wire, way: str) -> str:
        """Send a body that has to be refused; how it ended."""
        plan = self._plan(self._dice.choice(["binary", "post"]), "none", self._dice.randrange(*LONG_BODY_ELEMENTS))
        sent = message(plan, chunk_bytes=1)
        if "behind" in way:  # the large one goes on to an endpoint before the tiny ones come
            plan.elements += 2**15
            sent = message(plan, chunk_bytes=1, first_chunk_bytes=2**18)
        try:
            async with asyncio.timeout(REPLY_S):
                connection.writer.write(sent.head + sent.body)
                status, body, ending = await read_reply(connection, plan.kind)
            self._journal.judge(plan, status, body, ending.header_length)
        except (ConnectionError, asyncio.IncompleteReadError):
            status = 0
        except TimeoutError:
            self._journal.violated(f"a client waited longer than {REPLY_S:g} s", f"{plan.kind} {plan.id}, {way}")
            return "timeout"
        # what goes on to an endpoint while it comes may also fail there
        allowed = (400, 500, 502, 503, 504) if "behind" in way and plan.kind == "post" else (400,)
        if status not in allowed:
            self._journal.violated("a body in tiny chunks was not refused", f"{plan.kind} {plan.id}: {status}")
        if self._journal.executed[plan.id]:
            self._journal.violated("a body in tiny chunks was executed", f"{plan.kind} {plan.id}")
        return str(status or "cut")

    async def _send_heads(self, connection: Wire, way: str) -> str:
        """Send large heads behind a slow request; how it ended."""
        slow = self._plan(self._dice.choice(["binary", "json", "post", "get"]), "slow")
        if "too large" in way:
            behind: list[Message] = []
            tail = TOO_LARGE[: self._dice.randrange(2**17, SEEN_BYTES)] if way.startswith("a head") else TOO_LARGE * 4
        else:
            behind = [message(self._plan("get", "none"), fields=LARGE_FIELDS) for _ in range(8)]
            tail = b"".join(one.head for one in behind)
        first = message(slow)
        connection.writer.write(first.head + first.body + tail)
        still_sending = "too large" in way and len(tail) > SEEN_BYTES  # what is refused may end the connection
        for plan in (slow, *(one.plan for one in behind)):
            try:
                async with asyncio.timeout(REPLY_S):
                    status, body, ending = await read_reply(connection, plan.kind)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                self._journal.cut(plan, f"{way}: {error!r}", still_sending=still_sending)
                return "cut"
            except TimeoutError:
                self._journal.violated(f"a client waited longer than {REPLY_S:g} s", f"{plan.kind} {plan.id}, {way}")
                return "timeout"
            self._journal.judge(plan, status, body, ending.header_length)
            self._journal.forget(plan)
            if ending.closes:
                return f"closed after {status}"
        return await self._refused_head(connection, way, still_sending) if "too large" in way else "whole"

    async def _refused_head(self, connection: Wire, way: str, still_sending: bool) -> str:
        """The ending of a head that is too large: 431, which a client that has not sent too much gets to see."""
        try:
            async with asyncio.timeout(REPLY_S):
                status, _, _ = await read_reply(connection, "get")
                ends = await connection.reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            if not still_sending:
                self._journal.violated("a client did not get to see 431", way)
            return "cut"
        except TimeoutError:
            status, ends = 0, b"nothing came"
        if status != 431 or ends:
            self._journal.violated("a head beyond the limits was not refused", f"{way}: {status}, {ends[:100]!r}")
        return str(status or "timeout")
