"""A gateway that measures itself: `python -m tests.system.measured_gateway BACKEND_URL [SETTINGS]`.

SETTINGS are those of the backend, as YAML in one line. It runs as ever, with two changes. The processor time of each
callback of the event loop is taken, and the longest is printed at the end, in seconds: processor time, because a busy
machine makes the clock on the wall meaningless. And a request whose path ends in `HELD` holds the loop, to prove that
such a thing is seen.
"""

import asyncio
import signal
import sys
import time

from gateway.app import settle
from gateway.client.request import ClientRequest
from gateway.config import for_backend, parse
from gateway.process.application import Application
from gateway.serving.gateway import Gateway

HELD = "/held"
HELD_S = 0.05

longest_s = 0.0


def measure_callbacks() -> None:
    """Take the time of everything that the event loop runs."""
    run = asyncio.Handle._run

    def measured(handle: asyncio.Handle) -> None:
        global longest_s  # noqa: PLW0603
        started = time.thread_time()
        run(handle)
        longest_s = max(longest_s, time.thread_time() - started)

    asyncio.Handle._run = measured  # type: ignore[assignment, method-assign]


def hold_when_asked() -> None:
    """Let requests for `HELD` take `HELD_S` of the processor at once."""
    handle = Gateway.handle

    async def held(gateway: Gateway, request: ClientRequest) -> None:
        if request.path.endswith(HELD):
            until = time.thread_time() + HELD_S
            while time.thread_time() < until:
                pass
        await handle(gateway, request)

    Gateway.handle = held  # type: ignore[assignment, method-assign]


async def main() -> None:
    global longest_s  # noqa: PLW0603
    url, settings = (*sys.argv[1:], "")[:2]
    config = parse(
        f"listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nlogging: {{access: none}}\n"
        f"backends: {{main: {{endpoints: ['{url}'], {settings}}}}}\n"
    )
    plain = for_backend(url, listen="127.0.0.1:0", admin="127.0.0.1:0")
    application = await Application.start(config if settings else plain)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    settle()
    await asyncio.sleep(0)  # what was done until here is not measured
    longest_s = 0.0
    print(application.listen_url, flush=True)
    await stopped.wait()
    print(longest_s, flush=True)
    await application.stop()


if __name__ == "__main__":
    hold_when_asked()
    measure_callbacks()
    asyncio.run(main())
