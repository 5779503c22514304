"""A program with 300 descriptors: a listener for clients and an admin listener. Reports at the end of its input.

`python -m tests.client.crowded MAX_CONNECTIONS` prints both URLs, then, when standard input ends, what it has counted.
"""

import asyncio
import json
import logging
import resource
import sys
import time
from types import SimpleNamespace

from gateway.client.listeners import ClientListener
from gateway.client.request import ClientRequest
from gateway.client.server import Server
from gateway.config import Address, Limits, parse
from gateway.exchange import Exchange
from gateway.process.admin import AdminListener
from tests.client.raw import replying

DESCRIPTORS = 300


class CountingListener(ClientListener):
    """Counts how often it could not accept."""

    pauses = 0

    def _pause(self, error: OSError) -> None:
        self.pauses += 1
        super()._pause(error)


async def handle(request: ClientRequest) -> None:
    """Reply at once."""
    exchange = Exchange(request.peer, request.method, request.path, "1", 0.0)
    await replying(request, exchange).whole(200, [], (b"served",))


async def main(max_connections: int) -> None:
    """Serve until standard input ends."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    server = Server(handle, Limits(connections=max_connections))
    listener = CountingListener(server)
    config = parse("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nbackends: {a: {endpoints: ['http://127.0.0.1:1']}}")
    admin = AdminListener(SimpleNamespace(config=config, not_ready=lambda: None, stalled=lambda: None))  # type: ignore[arg-type]
    urls = [await listener.open(Address("127.0.0.1:0")), await admin.start()]
    started = time.monotonic()
    print(json.dumps(urls), flush=True)
    await ended.wait()
    print(
        json.dumps(
            {
                "open": server.open_connections,
                "refused": server.refused_connections,
                "pauses": listener.pauses,
                "seconds": time.monotonic() - started,
            }
        )
    )
    loop.remove_reader(0)
    listener.stop_accepting()
    await server.close()
    await admin.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    asyncio.run(main(int(sys.argv[1])))
