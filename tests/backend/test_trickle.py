"""What an answer gives to its reader."""

import asyncio
import time
from typing import cast

from gateway.backend.attempt import Answer, Sent
from gateway.backend.wire import Reader
from gateway.headers import Headers
from gateway.pacing import SLICE_S

N_CHUNKS = 20


class Arrived:
    """An exchange whose answer is all there: reading it takes long and never waits."""

    def __init__(self) -> None:
        self.left = N_CHUNKS

    async def read(self, reader: Reader, *, ends_with_connection: bool) -> bytes:
        until = time.perf_counter() + 2 * SLICE_S
        while time.perf_counter() < until:
            pass
        self.left -= 1
        return b"x" if self.left >= 0 else b""


class Endless:
    """A reader whose body has not come to its end."""

    def at_eof(self) -> bool:
        return False


async def test_others_run_while_an_answer_is_read_that_is_all_there() -> None:
    n_turns = 0

    async def others() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    answer = Answer(cast(Sent, Arrived()), 200, "", Headers(), cast(Reader, Endless()))
    assert b"".join([chunk async for chunk in answer.chunks()]) == b"x" * N_CHUNKS
    beside.cancel()
    assert n_turns >= N_CHUNKS
