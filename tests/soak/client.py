"""Clients that send what their plans say over connections of their own, and leave when it pleases them."""

import asyncio
import json
import random
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.conftest import HEADER_LENGTH
from tests.soak.backend import FAULTS
from tests.soak.journal import Journal, Plan
from tests.system.scripted import Peer, Wire, head_of, wire

KINDS = {"binary": 8, "json": 4, "get": 4, "post": 4, "head": 1}
WAYS = {
    "plain": 60,
    "pipelined": 8,
    "in pieces": 8,
    "in chunks of one byte": 4,
    "expects 100": 4,
    "leaves in the head": 2,
    "leaves in the body": 5,
    "leaves before the reply": 6,
    "leaves in the reply": 5,
    "leaves with pipelined requests": 2,
}
"""What a client does with a connection, and how often beside the others."""

REPLY_S = 20.0
"""A client that stays has its reply, or its connection's end, after this time: `total` and much more."""

TINY_CHUNKS_BYTES = 1400
"""Bodies of up to this size may come in chunks of one byte: seven of them on one connection take less than 64 KiB."""

LARGE = 0.08
"""The share of requests and of relayed answers of 1 to 3 MB."""


def choose(dice: random.Random, weights: dict[str, float] | dict[str, int]) -> str:
    """One of the keys."""
    return dice.choices(list(weights), list(weights.values()))[0]


def plans(journal: Journal, dice: random.Random, ids: Iterator[int]) -> Iterator[Plan]:
    """Exchanges without end."""
    for id_ in ids:
        large = dice.random() < LARGE
        plan = Plan(
            id=id_,
            kind=choose(dice, KINDS),
            fault=choose(dice, FAULTS),
            delay_s=dice.choice([0.0, 0.001, 0.01, 0.05, 0.15]),
            elements=dice.randrange(125_000, 375_000) if large else dice.randrange(1, 20),
            answer_bytes=dice.randrange(1_000_000, 3_000_000) if dice.random() < LARGE else dice.randrange(20_000),
        )
        journal.plans[id_] = plan
        yield plan


@dataclass
class Message:
    """A request as bytes."""

    plan: Plan
    head: bytes
    body: bytes


def message(
    plan: Plan,
    *,
    expects: bool = False,
    chunked: bool = False,
    chunk_bytes: int = 0,
    first_chunk_bytes: int = 0,
    fields: Mapping[str, object] | None = None,
) -> Message:
    """The request of *plan*: *chunked* in three, or in chunks of *chunk_bytes*; *fields* are more of the head's."""
    if plan.kind in ("get", "head"):
        return Message(plan, head_of(plan.kind.upper(), f"/v2/any?id={plan.id}", None, fields), b"")
    array = plan.array()
    headers: dict[str, object] = {"Expect": "100-continue"} if expects else {}
    if plan.kind == "post":
        body, path = array.tobytes(), "/any"
    else:
        path = "/infer"
        entry: dict[str, object] = {"name": "x", "shape": [plan.elements], "datatype": "INT64"}
        request: dict[str, object] = {"id": plan.mark, "inputs": [entry]}
        if plan.kind == "binary":
            entry["parameters"] = {"binary_data_size": array.nbytes}
            request["parameters"] = {"binary_data_output": True}
            text = json.dumps(request, separators=(",", ":")).encode()
            headers[HEADER_LENGTH] = len(text)
            body = text + array.tobytes()
        else:
            entry["data"] = array.tolist()
            body = json.dumps(request, separators=(",", ":")).encode()
    target = f"/v2/models/m{path}?id={plan.id}"
    if chunked or chunk_bytes:
        size = chunk_bytes or max(1, len(body) // 3)
        pieces = [body[:first_chunk_bytes]] if first_chunk_bytes else []
        pieces += [body[start : start + size] for start in range(first_chunk_bytes, len(body), size)]
        coded = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        return Message(plan, head_of("POST", target, None, {**headers, "Transfer-Encoding": "chunked"}), coded)
    return Message(plan, head_of("POST", target, len(body), headers), body)


class Ending(NamedTuple):
    """What the head of a reply says beside its status."""

    header_length: int | None
    """How long the JSON of a binary reply is."""
    closes: bool
    """The gateway closes the connection after it."""


async def read_reply(connection: Wire, kind: str) -> tuple[int, bytes, Ending]:
    """Status and body of the next final reply, to a request of *kind*."""
    head = await connection.reader.readuntil(b"\r\n\r\n")
    while head.split(b" ", 2)[1].startswith(b"1"):
        head = await connection.reader.readuntil(b"\r\n\r\n")
    lower = head.lower()
    status = int(head.split(b" ", 2)[1])
    body = b""
    if kind != "head" and status not in (204, 304):
        body = await Peer(connection.reader, connection.writer).read_body(head)
    length = re.search(rb"\r\ninference-header-content-length: (\d+)", lower)
    return status, body, Ending(int(length[1]) if length else None, b"\r\nconnection: close" in lower)


class LeavesError(Exception):
    """The client has left."""


class SoakClient:
    """One client after the other, each with a connection."""

    def __init__(
        self, url: str, journal: Journal, seed: str, ids: Iterator[int], trust: ssl.SSLContext | None = None
    ) -> None:
        self._url = url
        self._trust = trust
        self._journal = journal
        self._dice = random.Random(seed)
        self._way = ""
        """What the client does at the moment, for messages."""
        self._plans = plans(journal, self._dice, ids)

    async def run(self, goes_on: Callable[[], bool]) -> None:
        """Use connections one after the other while *goes_on*."""
        while goes_on():
            open_plans: list[Plan] = []
            try:
                async with wire(self._url, trust=self._trust) as connection:
                    await self._use(connection, open_plans)
            except LeavesError:
                pass
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                if open_plans:
                    how = f"{self._way}: {error!r}"
                    self._journal.cut(open_plans[0], how, still_sending=len(open_plans) > 1)
                    self._journal.replies["not reached in a pipeline"] += len(open_plans) - 1
            except TimeoutError:
                first = open_plans[0]
                example = f"{first.kind} {first.id} ({first.fault}), {self._way}"
                self._journal.violated(f"a client waited longer than {REPLY_S:g} s", example)
            for plan in open_plans:
                self._journal.forget(plan)

    async def _use(self, connection: Wire, open_plans: list[Plan]) -> None:
        for _ in range(self._dice.randrange(1, 8)):
            way = choose(self._dice, WAYS)
            self._journal.clients[way] += 1
            self._way = way
            count = self._dice.randrange(2, 5) if "pipelined" in way else 1
            messages = [
                message(next(self._plans), expects=way == "expects 100", chunked=self._dice.random() < 0.15)
                for _ in range(count)
            ]
            if way == "in chunks of one byte" and 0 < len(messages[0].body) <= TINY_CHUNKS_BYTES:
                messages = [message(messages[0].plan, chunk_bytes=1)]
            open_plans += [one.plan for one in messages]
            sending = asyncio.create_task(self._send(connection, way, messages))
            try:
                if way.startswith("leaves"):
                    await self._leave(connection, way, sending)
                closes = False
                for one in messages:
                    closes = await self._read(connection, one.plan)
                    self._journal.forget(open_plans.pop(0))
                    if closes:
                        break
                if closes or not sending.done():
                    self._journal.replies["not reached in a pipeline"] += len(open_plans)
                    open_plans.clear()
                    return
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, connection: Wire, way: str, messages: list[Message]) -> None:
        dice = self._dice
        first = messages[0]
        whole = first.head + first.body
        match way:
            case "leaves in the head":
                await connection.send(first.head[: dice.randrange(1, len(first.head))])
            case "leaves in the body":
                await connection.send(whole[: len(first.head) + dice.randrange(len(first.body) + 1)])
            case "in pieces":
                cut = dice.randrange(1, len(whole))
                await connection.send(whole[:cut])
                await asyncio.sleep(dice.choice([0, 0.001, 0.02]))
                await connection.send(whole[cut:])
            case "expects 100":
                await connection.send(first.head)
                await asyncio.sleep(0.02)  # as clients do that do not wait for ever
                await connection.send(first.body)
            case _:
                await connection.send(b"".join(one.head + one.body for one in messages))

    async def _leave(self, connection: Wire, way: str, sending: asyncio.Task[None]) -> None:
        dice = self._dice
        if way == "leaves in the reply":
            await asyncio.wait_for(connection.reader.read(dice.randrange(1, 400)), REPLY_S)
        else:
            await asyncio.wait({sending}, timeout=dice.choice([0, 0.002, 0.02, 0.1]))
            await asyncio.sleep(dice.choice([0, 0, 0.001, 0.01, 0.05]))
        if dice.random() < 0.5:
            connection.reset()
            self._journal.clients["left by reset"] += 1
        else:
            self._journal.clients["left by close"] += 1
        raise LeavesError

    async def _read(self, connection: Wire, plan: Plan) -> bool:
        """Read one reply and have it judged; whether the gateway closes the connection after it."""
        async with asyncio.timeout(REPLY_S):
            status, body, ending = await read_reply(connection, plan.kind)
        self._journal.judge(plan, status, body, ending.header_length)
        return ending.closes
