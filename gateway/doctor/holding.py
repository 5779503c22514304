"""Does a kept connection hold up all others? Single-threaded servers with HTTP/1.1 read one connection until it ends.

Python's `HTTPServer` is one: requests that come over other connections wait until the kept one is closed. Not here: how
many requests a server answers at once.
"""

import asyncio
import time
from contextlib import suppress

from gateway.backend.connections import NoAnswerError
from gateway.backend.wire import Wire
from gateway.doctor.asking import TRIAL_S, Asker
from gateway.doctor.model import Straight
from gateway.doctor.report import Report

WAIT_S = 2.0
"""How long a request may take longer than the one before it, while that one's connection is kept."""

_WHY = "the server reads one connection at a time, so a kept one holds up the others"


async def find_single_connection(asker: Asker, straight: Straight | None, report: Report) -> None:
    """Keep a connection after an answer, and send another request beside it; set the keys if it has to wait."""
    if not await _waits(asker, straight):
        report.ok("a kept connection holds up no other")
        return
    if not await _waits(asker, straight):  # the first time may have been slow for another reason
        return
    report.problem(
        f"{_WHY}: a request beside it was answered only after it had been closed. `max_connections: 1` sends one "
        "request after the other, `queue` lets the others wait, and with `keep_alive: 1ms` health probes get through"
    )
    report.set("max_connections", 1, _WHY)
    report.set("queue", {"length": 64, "timeout": "30s"}, "requests that wait for the only connection, and how long")
    report.set("keep_alive", "1ms", "no connection is kept: probes have one of their own")


async def _waits(asker: Asker, straight: Straight | None) -> bool:
    """Whether a request is answered only after the connection of the one before it has been closed."""
    began_s = time.perf_counter()
    wire = None
    try:
        wire = await _kept(asker, straight)
        took_s = time.perf_counter() - began_s
        beside = asyncio.ensure_future(_ask(asker, straight))
        done, _ = await asyncio.wait({beside}, timeout=WAIT_S + 2 * took_s)
        wire.abort()
        with suppress(NoAnswerError):
            await beside
            return not done
    except NoAnswerError:
        pass
    finally:
        if wire is not None:
            wire.abort()
    return False


async def _ask(asker: Asker, straight: Straight | None) -> None:
    if straight is None:
        await asker.get("/v2")
    else:
        await asker.post(straight.path, straight.body)


async def _kept(asker: Asker, straight: Straight | None) -> Wire:
    """A connection on which a request was answered, and that stays open unless the server closes it."""
    method, path, body = ("GET", "/v2", b"") if straight is None else ("POST", straight.path, straight.body)
    return await asker.keep(method, path, body, TRIAL_S)
