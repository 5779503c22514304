"""A server that half-closes an idle connection, goes on reading and executes, behind a network with latency.

The end of its stream and the next request cross on their way, so to the gateway the stream has ended and nothing of the
request was acknowledged. The server executes it all the same: it must not get it twice
(docs/architecture.md, "Connections to backends").
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import HEADER_LENGTH
from tests.system import latency
from tests.system.gateway_process import gateway_process
from tests.system.latency import Place
from tests.system.scripted import Peer, Seen, Wire, counting, echo, head_of, infer_header

LATENCY_S = 0.025
"""From one side to the other; an acknowledgement takes twice as long."""

GAP_S = 0.02
"""From a reply to the next request."""

PHASES_S = np.arange(0.0, 2 * LATENCY_S + GAP_S + 0.02, 0.004)
"""When the server half-closes, counted from its answer; from `GAP_S` on the two cross for twice the latency."""

REPLY_S = 10.0

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
logging: {{access: none}}
backends:
  main: {{endpoints: ['{url}'], keep_alive: 4s, retry: {{attempts: 2, budget: 1}}, eject: {{failures: 0}}}}
"""


@pytest.fixture
def places() -> Iterator[tuple[Place, Place]]:
    with latency.two_places(LATENCY_S) as both:
        yield both
    assert not latency.remaining()


def message(form: str, id_: str) -> bytes:
    array = np.arange(4, dtype=np.float32)
    if form == "relayed":
        return head_of("POST", f"/v2/any?id={id_}", 4) + b"1234"
    text = json.dumps(infer_header(array, "FP32", binary=form == "binary")).encode()
    headers: dict[str, object] = (
        {HEADER_LENGTH: len(text)} if form == "binary" else {"Content-Type": "application/json"}
    )
    body = text + (array.tobytes() if form == "binary" else b"")
    return head_of("POST", f"/v2/models/m/infer?id={id_}", len(body), headers) + body


@pytest.mark.slow
@pytest.mark.parametrize("form", ["relayed", "binary", "json"])
async def test_a_server_that_half_closes_and_goes_on_reading_gets_nothing_twice(
    form: str, places: tuple[Place, Place], tmp_path: Path
) -> None:
    here, there = places
    half_closed: set[int] = set()
    crossed: list[str] = []
    phase_s = 0.0

    async def half_close(peer: Peer) -> None:
        await asyncio.sleep(phase_s)
        if not peer.writer.is_closing():
            half_closed.add(id(peer))
            peer.writer.write_eof()

    async def behave(seen: Seen) -> bool:
        if id(seen.peer) in half_closed:
            crossed.append(seen.id)
            return True  # executed, and nothing can be answered any more; it goes on reading
        await echo(seen)
        if seen.id.startswith("first"):
            backend.later(half_close(seen.peer))
        return True

    async with counting(behave, listener=there.listen()) as backend:
        command = here.command
        async with gateway_process(CONFIGURATION.format(url=backend.url), tmp_path / "g.yaml", command) as gateway:
            reader, writer = await asyncio.open_connection(sock=here.connect(gateway.url))
            client = Wire(reader, writer)
            statuses = {}
            for number, phase_s in enumerate(PHASES_S):
                async with asyncio.timeout(REPLY_S):
                    for id_ in (f"first-{number}", f"second-{number}"):
                        await client.send(message(form, id_))
                        statuses[id_] = (await client.reply("POST")).status
                        await asyncio.sleep(GAP_S)
                    await asyncio.sleep(2 * LATENCY_S + max(0.0, phase_s - GAP_S))  # until all is idle or closed
            writer.close()
    assert set(statuses.values()) <= {200, 502}
    assert all(statuses[id_] == 200 for id_ in statuses if id_.startswith("first"))
    twice = [id_ for id_, count in backend.executed.items() if count > 1]
    assert not twice, f"{len(twice)} of {len(PHASES_S)} were executed twice: {twice}"
    assert len(crossed) >= 3, "no request crossed the end of a stream: nothing was tested"
