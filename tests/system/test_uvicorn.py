"""A real uvicorn whose application raises: who asks next does not pay for it.

See docs/architecture.md, "Connections to backends".

uvicorn answers an unhandled exception with a whole 500, logs the traceback, and closes the connection 1 to 20 ms later,
without having said so.
"""

import asyncio
import itertools
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import HEADER_LENGTH, require_tool
from tests.system.gateway_process import gateway_process
from tests.system.scripted import Wire, head_of, infer_header, wire

ROUNDS = 100

START_S = 30.0
ENDINGS_S = 10.0

CONFIGURATION = """
listen: 127.0.0.1:0
admin: 127.0.0.1:0
logging: {{access: none}}
backends: {{main: {{endpoints: ['{url}'], eject: {{failures: 0}}}}}}
"""

_RUNS = re.compile(r"running on (http://127\.0\.0\.1:\d+)")


@asynccontextmanager
async def uvicorn() -> AsyncIterator[str]:
    """The URL of a uvicorn that serves `raising_app`."""
    require_tool("uvicorn", "it is in the extra `test`")
    command = [sys.executable, "-m", "uvicorn", "tests.system.raising_app:app", "--port", "0", "--no-access-log"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_S):
            while (found := _RUNS.search((line := await process.stderr.readline()).decode())) is None:
                assert line, "uvicorn did not start"
        logging = asyncio.create_task(process.stderr.read())
        yield found[1]
    finally:
        process.terminate()
        await process.wait()
    assert b"this model always fails" in await logging


def message(model: str, form: str) -> bytes:
    """A request of a binary inference, of one in JSON, or of a path that is relayed."""
    array = np.arange(16, dtype=np.float32)
    headers: dict[str, object] = {"Content-Type": "application/json"}
    path = f"/v2/models/{model}/infer"
    if form == "relayed":
        path, body = f"/v2/models/{model}/any", b"{}"
    elif form == "json":
        body = json.dumps(infer_header(array, "FP32", binary=False)).encode()
    else:
        text = json.dumps(infer_header(array, "FP32")).encode()
        headers, body = {HEADER_LENGTH: len(text)}, text + array.tobytes()
    return head_of("POST", path, len(body), headers) + body


async def status_of(connection: Wire, request: bytes) -> int:
    await connection.send(request)
    return (await connection.reply("POST")).status


@pytest.mark.slow
async def test_the_client_after_an_exception_gets_its_answer(tmp_path: Path) -> None:
    async with (
        uvicorn() as url,
        gateway_process(CONFIGURATION.format(url=url), tmp_path / "gateway.yaml") as gateway,
        wire(gateway.url) as first,
        wire(gateway.url) as second,
    ):
        for form, pause_s in itertools.product(["binary", "json", "relayed"], [0.0, 0.003]):
            bad, good = message("raising", form), message("good", form)
            statuses = []
            for _ in range(ROUNDS):
                async with asyncio.timeout(ENDINGS_S):
                    assert await status_of(first, bad) == 500
                    await asyncio.sleep(pause_s)
                    statuses.append(await status_of(second, good))
            failures = [status for status in statuses if status != 200]
            assert not failures, f"{form}, {pause_s} s: {len(failures)} of {ROUNDS} failed: {sorted(set(failures))}"
