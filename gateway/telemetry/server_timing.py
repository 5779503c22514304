"""The value of `Server-Timing` in a reply (`logging.server_timing`): the request's times until the head is written."""

import asyncio

from gateway.exchange import Exchange, upstream_times


def server_timing(exchange: Exchange) -> str:
    """Milliseconds of the codec, of the backend, of waits for a connection or for room, and since the request's head.

    `upstream` and `queue` are those of all attempts; time in which several of these run side by side counts once.
    `queue` includes the wait until slow uploads made room. An attempt that still goes on, because its answer is passed
    on, counts up to now. `first_byte` is the time to the first byte of the last answer. Times of steps that did not
    occur are absent.
    """
    now_s = asyncio.get_running_loop().time()
    times = {"total": now_s - exchange.started_s}
    if attempts := exchange.attempts:
        times["upstream"], queue_s = upstream_times(attempts, now_s)
        times["queue"] = exchange.queue_s + queue_s
        if (first_byte_s := attempts[-1].first_byte_s) is not None:
            times["first_byte"] = first_byte_s
    if codec_s := exchange.request_codec.seconds + exchange.response_codec.seconds:
        times["codec"] = codec_s
    return ", ".join([f"{name};dur={seconds * 1000:.3f}" for name, seconds in times.items()])
