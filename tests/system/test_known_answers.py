"""Replies whose answers had heads of a known kind are those that the first answer of that kind got."""

import gzip
import re

import numpy as np
import pytest

from gateway.backend.known_heads import KnownHead, KnownHeads
from tests.conftest import running
from tests.system.scripted import Seen, counting, infer_message, wire

X = np.arange(200)
DATE = "Date: Sat, 21 Nov 2026 22:00:00 GMT\r\n"
HEADS = {
    "uvicorn": DATE.lower() + "server: uvicorn\r\ncontent-type: application/json\r\n",
    "MLServer": DATE.lower()
    + "server: uvicorn\r\ncontent-type: application/json\r\nce-id: {id}\r\nce-requestid: {id}\r\n",
    "no date": "Server: odd\r\nX-A: {id}\r\n",
    "no server": DATE + "X-A: {id}\r\n",
    "own fields": "X-Request-Id: backend-{id}\r\nVary: Origin\r\nX-A: 1\r\n",
    "nothing crosses": "Content-Type: application/json\r\nX-Request-Id: {id}\r\nETag: {id}\r\n",
    "connection": "X-A: {id}\r\nConnection: X-Hop\r\nX-Hop: {id}\r\nX-B: {id}\r\nKeep-Alive: timeout={id}\r\n",
    "repeated": DATE + "Set-Cookie: a={id}; Secure\r\nSet-Cookie: b={id}\r\nServer: a\r\nServer: b\r\n",
}


@pytest.fixture
def recognized(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each answer, whether its head was known."""
    results: list[bool] = []
    recognize = KnownHeads.recognize

    def note(known: KnownHeads, data: bytes) -> KnownHead | None:
        found = recognize(known, data)
        results.append(found is not None)
        return found

    monkeypatch.setattr(KnownHeads, "recognize", note)
    return results


@pytest.mark.parametrize("extra", ["", "compression: {responses: true, min_size: 1KiB}"], ids=["plain", "compressed"])
@pytest.mark.parametrize("headers", HEADS.values(), ids=HEADS)
async def test_reply_is_the_same_where_the_head_of_the_answer_was_known(
    headers: str, extra: str, recognized: list[bool]
) -> None:
    async def behave(seen: Seen) -> bool:
        await seen.answer(seen.echo(), headers=headers.format(id=seen.id))
        return True

    replies = []
    async with counting(behave) as backend, running(backend.url, extra) as client, wire(client.url) as connection:
        for id_ in (b"first", b"other"):
            message = infer_message(id_.decode(), X, "INT64")
            await connection.send(message.replace(b"\r\n", b"\r\nX-Request-Id: mine\r\nAccept-Encoding: gzip\r\n", 1))
            reply = await connection.reply("POST")
            assert (reply.status, reply.values("X-Request-Id"), len(reply.values("Date"))) == (200, ["mine"], 1)
            is_coded = reply.values("Content-Encoding") == ["gzip"]
            assert is_coded == bool(extra)
            head = reply.head if "date:" in headers.lower() else re.sub(rb"\r\nDate: [^\r]*", b"", reply.head)
            body = gzip.decompress(reply.body) if is_coded else reply.body
            replies.append((head.replace(id_, b"id"), body.replace(id_, b"id")))
    assert replies[0] == replies[1]
    assert recognized == [False, True]
