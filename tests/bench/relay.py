"""P, the yardstick for moving bytes: a bare aiohttp relay with the body sizes of the gateway and no other work.

`python -m tests.bench.relay FOLDER BACKEND_URL`. It reads the client's binary body, sends the backend the JSON body
of the case, reads the JSON answer and replies with the binary body of the case. Like the gateway it has no router
and no middleware, and hands aiohttp every body in one piece, which is the cheapest way.
"""

import asyncio
import sys
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.bench.cases import Case


class Relay:
    """One backend, one client session."""

    def __init__(self, folder: Path, backend_url: str, session: aiohttp.ClientSession) -> None:
        self._folder = folder
        self._backend_url = backend_url
        self._session = session
        self._bodies: dict[str, tuple[bytes, bytes, dict[str, str]]] = {}

    async def handle(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        if path not in self._bodies:
            self._bodies[path] = self._load(path)
        sent, reply, headers = self._bodies[path]
        while await request.content.readany():
            pass
        url = self._backend_url + path
        async with self._session.post(url, data=sent, headers={"Content-Type": "application/json"}) as response:
            while await response.content.readany():
                pass
        return web.Response(body=reply, headers=headers)

    def _load(self, path: str) -> tuple[bytes, bytes, dict[str, str]]:
        case = Case(self._folder / path.split("/")[3])
        headers = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(case.header_bytes[1]),
        }
        return bytes(case.backend_request), bytes(case.client_reply), headers


async def _serve(folder: Path, backend_url: str) -> None:
    async with aiohttp.ClientSession() as session:
        runner = web.ServerRunner(web.Server(Relay(folder, backend_url, session).handle, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2]))
