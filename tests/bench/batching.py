"""Row b: many clients before a server that takes most of its time for the call, with `batch` and without.

`python -m tests.bench.batching` is that server: one call after the other, each `CALL_S` and `ROW_S` a row.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack

import aiohttp
import numpy as np
import orjson
from aiohttp import web

from tests.bench import processes
from tests.bench.cases import WrongBytesError
from tests.bench.measuring import Bench, Result

CLIENTS = 64
COLUMNS = 16
CALL_S = 0.005
ROW_S = 50e-6
WAYS = {"alone": "batch: {max_size: 1}", "together": "batch: {max_size: 32, max_delay: 5ms}"}
_HEADER_LENGTH = "Inference-Header-Content-Length"


def rows(bench: Bench) -> Iterator[Result]:
    """Row b. 64 clients before a server that takes 5 ms a call: requests a second, together / alone."""
    scale = bench.scale
    result = Result("b", f"{CLIENTS} clients, FP32 [1, {COLUMNS}], batches / alone", "ratio", 8, at_least=True)
    per_s: dict[str, list[float]] = {way: [] for way in WAYS}
    with ExitStack() as stack:
        python = processes.python("tests.bench.batching")
        server = stack.enter_context(processes.Process("slow server", python, bench.folder))
        gateways = {
            way: stack.enter_context(processes.start_gateway([server.url], bench.folder, backend=backend))
            for way, backend in WAYS.items()
        }
        for index in range(scale.batch_rounds):
            bench.tick(f"row b: round {index + 1} of {scale.batch_rounds}")
            for way, gateway in gateways.items():
                per_s[way].append(asyncio.run(_throughput(gateway.url, scale.batch_s)))
            result.samples.append(per_s["together"][-1] / per_s["alone"][-1])
    result.absolute = ", ".join(f"{way} {sorted(each)[len(each) // 2]:.0f}/s" for way, each in per_s.items())
    yield result


async def _throughput(url: str, seconds: float) -> float:
    """Requests a second of `CLIENTS` that ask again as soon as they have their answer, each of which is checked."""
    ends_s = time.monotonic() + seconds
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        counts = await asyncio.gather(*(_client(session, url, number, ends_s) for number in range(CLIENTS)))
    return sum(counts) / seconds


async def _client(session: aiohttp.ClientSession, url: str, number: int, ends_s: float) -> int:
    blob = np.full((1, COLUMNS), number, "<f4").tobytes()
    tensor = {"name": "x", "shape": [1, COLUMNS], "datatype": "FP32", "parameters": {"binary_data_size": len(blob)}}
    header = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    n_requests = 0
    while time.monotonic() < ends_s:
        async with session.post(
            f"{url}/v2/models/rows/infer", data=header + blob, headers={_HEADER_LENGTH: str(len(header))}
        ) as response:
            body = await response.read()
            if body[int(response.headers.get(_HEADER_LENGTH, 0)) :] != blob:
                raise WrongBytesError(f"client {number} got {response.status} {body[:200]!r}")
        n_requests += 1
    return n_requests


async def serve() -> None:
    """Serve until the process is ended."""
    turn = asyncio.Lock()

    async def answer(request: web.Request) -> web.Response:
        (tensor,) = orjson.loads(await request.read())["inputs"]
        async with turn:
            await asyncio.sleep(CALL_S + ROW_S * tensor["shape"][0])
        return web.Response(body=orjson.dumps({"model_name": "rows", "outputs": [tensor]}))

    async def ready(_: web.Request) -> web.Response:
        return web.Response()

    application = web.Application(client_max_size=2**30)
    application.add_routes([web.post("/{path:.*}", answer), web.get("/{path:.*}", ready)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
