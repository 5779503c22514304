"""Runs a client's program in a process of its own, while the gateway serves in the test's."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 180.0
"""Room for a compiler whose cache is empty."""


async def output_of(*command: str | Path, folder: Path | None = None, variables: Mapping[str, str] = {}) -> bytes:
    """What *command* prints, once it has ended with 0."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **variables},
    )
    try:
        printed, complaint = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaint.decode(errors="replace")
    return printed
