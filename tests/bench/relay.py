"""P, the yardstick for moving bytes: a bare aiohttp relay with the body sizes of the gateway and no other work.

`python -m tests.bench.relay FOLDER BACKEND_URL`. It reads the client's binary body, sends the backend the JSON body
of the case, reads the JSON answer and replies with the binary body of the case. For a model of `traffic` it sends
that model's bodies one after another, half of them with an id. Like the gateway it has no router and no middleware,
and hands aiohttp every body in one piece, which is the cheapest way. It has one backend where the gateway has two.
With a third argument, `binary`, the backend gets the client's body, and its binary answer is the reply.
"""

import asyncio
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.bench import traffic
from tests.bench.cases import Case

Bodies = tuple[bytes, dict[str, str], bytes, dict[str, str]]
"""What the backend is sent and with which headers, and the same of the client."""

JSON = {"Content-Type": "application/json"}


class Relay:
    """One backend, one client session."""

    def __init__(self, folder: Path, backend_url: str, session: aiohttp.ClientSession, *, is_binary: bool) -> None:
        self._folder = folder
        self._backend_url = backend_url
        self._session = session
        self._is_binary = is_binary
        self._bodies: dict[str, Iterator[Bodies]] = {}

    async def handle(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        if path not in self._bodies:
            self._bodies[path] = itertools.cycle(self._load(path.split("/")[3]))
        sent, sent_headers, reply, headers = next(self._bodies[path])
        while await request.content.readany():
            pass
        url = self._backend_url + path
        async with self._session.post(url, data=sent, headers=sent_headers) as response:
            while await response.content.readany():
                pass
        return web.Response(body=reply, headers=headers)

    def _load(self, model: str) -> list[Bodies]:
        if not traffic.is_of_traffic(model):
            case = Case(self._folder / model)
            sent, headers = case.backend_request, JSON
            if self._is_binary:
                sent, headers = case.client_request, _headers(case.header_bytes[0])
            return [(bytes(sent), headers, bytes(case.client_reply), _headers(case.header_bytes[1]))]
        bodies = []
        for exchange, identity in itertools.islice(traffic.load([model]), traffic.TENSORS):
            reply, header_bytes = exchange.replied(identity or traffic.new_id().encode())
            bodies.append((exchange.sent_on(identity), JSON, reply, _headers(header_bytes)))
        return bodies


def _headers(header_bytes: int) -> dict[str, str]:
    if not header_bytes:
        return JSON
    return {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(header_bytes)}


async def _serve(folder: Path, backend_url: str, *, is_binary: bool) -> None:
    async with aiohttp.ClientSession() as session:
        runner = web.ServerRunner(
            web.Server(Relay(folder, backend_url, session, is_binary=is_binary).handle, access_log=None)
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2], is_binary="binary" in sys.argv[3:]))
