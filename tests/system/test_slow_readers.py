"""Clients that read slowly and never stop: a limit for clients that stop must not end them.

The kernels' buffers on the way hold megabytes, and a socket takes more only when a third of its buffer is free, so
what the gateway can write says little about what the client has read.
"""

import asyncio
from pathlib import Path

import pytest

from tests.system.gateway_process import gateway_process
from tests.system.scripted import Seen, counting, head_of, wire

ANSWER_BYTES = 6 * 2**20
STEP_BYTES, STEP_S = 2**16, 0.1

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
logging: {{access: none}}
limits: {{client_idle: 1s}}
backends: {{main: {{endpoints: ['{url}'], timeouts: {{idle: 1s, total: 60s}}}}}}
"""


@pytest.mark.alone
async def test_a_client_that_reads_steadily_and_slowly_gets_all(tmp_path: Path) -> None:
    async def behave(seen: Seen) -> bool:
        await seen.answer(b"x" * ANSWER_BYTES)
        return True

    async with (
        counting(behave) as backend,
        gateway_process(CONFIGURATION.format(url=backend.url), tmp_path / "gateway.yaml") as gateway,
        wire(gateway.url) as client,
    ):
        await client.send(head_of("GET", "/any"))
        await client.reader.readuntil(b"\r\n\r\n")
        missing = ANSWER_BYTES
        while missing:
            missing -= len(await client.reader.readexactly(min(STEP_BYTES, missing)))
            await asyncio.sleep(STEP_S)
