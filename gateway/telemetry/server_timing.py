"""The value of `Server-Timing` in a reply (`logging.server_timing`): the request's times until the head is written.

Not here: when it is sent (`client.reply`), and the measured times (`exchange`).
"""

import asyncio

from gateway.exchange import Exchange


def server_timing(exchange: Exchange) -> str:
    """Milliseconds of the codec, of the backend, of waits for a connection or for room, and since the request's head.

    `upstream` and `queue` are sums over all attempts; `queue` includes the wait until slow uploads made room. An
    attempt that still goes on, because its answer is passed on, counts up to now. `first_byte` is the time to the first
    byte of the last answer. Times of steps that did not occur are absent.
    """
    now_s = asyncio.get_running_loop().time()
    codec_s = exchange.request_codec.seconds + exchange.response_codec.seconds
    upstream_s = 0.0
    queue_s = exchange.queue_s
    first_byte_s = None
    for attempt in exchange.attempts:
        upstream_s += attempt.seconds or now_s - attempt.started_s
        queue_s += attempt.queue_s or 0.0
        first_byte_s = attempt.first_byte_s
    metrics = [("total", now_s - exchange.started_s)]
    if exchange.attempts:
        metrics += (("upstream", upstream_s), ("queue", queue_s))
    if first_byte_s is not None:
        metrics.append(("first_byte", first_byte_s))
    if codec_s:
        metrics.append(("codec", codec_s))
    return ", ".join([f"{name};dur={seconds * 1000:.3f}" for name, seconds in metrics])
