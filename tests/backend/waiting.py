"""Waiting for what must happen, and what the gateway has logged meanwhile: what tests of this folder share."""

import asyncio
from collections.abc import Callable

import pytest

BOUND_S = 20.0
"""How long a test waits for what must happen."""


async def until(condition: Callable[[], bool]) -> None:
    """Wait until *condition* holds."""
    async with asyncio.timeout(BOUND_S):
        while not condition():
            await asyncio.sleep(0.002)


async def turns(n: int = 5) -> None:
    """Let the event loop go round *n* times."""
    for _ in range(n):
        await asyncio.sleep(0)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the gateway has logged."""
    return [record.getMessage() for record in caplog.records if record.name == "gateway"]
