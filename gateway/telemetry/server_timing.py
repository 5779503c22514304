"""The value of `Server-Timing` in a reply (`logging.server_timing`): where its time went until its head is written.

Not here: when it is sent (`client.reply`), and what is measured (`exchange`).
"""

import asyncio

from gateway.exchange import Exchange


def server_timing(exchange: Exchange) -> str:
    """Milliseconds of the codec, of the backend, of waiting for it and for room, and since the request's head came.

    `upstream` and `queue` are those of all attempts; `queue` has the wait until slow uploads made room, too. An attempt
    that still goes on, as while its answer is passed on, counts as far as it has come. `first_byte` is the time to the
    first byte of the last answer. What did not occur is absent.
    """
    now_s = asyncio.get_running_loop().time()
    codec_s = exchange.request_codec_s + exchange.response_codec_s
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
