"""The steps of a request, and to which of them a sample of the event loop's thread belongs.

A sample is a stack of frames `function (package/module.py:line)`, outermost first. It belongs to the innermost
function of the gateway in it, with all that this calls in libraries: what aiohttp does for `gateway/backend` is part
of the backend's call, and so is what `gateway/http1.py` does for it. What no function of the gateway has called is the
loop's, and so are the connections of clients.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator

LOOP = "event loop, client's sockets, HTTP parsing"
CLIENT = "body read, reply sent"
ROUTING = "routing, headers, admission, the rest"
REQUEST = "request: parsed, JSON made"
BACKEND = "call of the backend"
ANSWER = "answer: JSON decoded"
TELEMETRY = "metrics, records, log"

STEPS = (LOOP, CLIENT, ROUTING, REQUEST, BACKEND, ANSWER, TELEMETRY)
"""In the order of a request."""

_REPLY_PARTS = re.compile(r"gateway/client/(reply|body)\b")
_GATEWAY = (
    (re.compile(r"gateway/(__main__|cli|process|client/(?!reply|body)\w+)\b"), LOOP),
    (_REPLY_PARTS, CLIENT),
    (re.compile(r"gateway/(backend/|sockets)"), BACKEND),
    (re.compile(r"gateway/(telemetry/|exchange)"), TELEMETRY),
    (re.compile(r"gateway/codec/.*(answer|reading|parsing|arriving|finder)"), ANSWER),
    (re.compile(r"gateway/codec/.*(request|printing|raw)"), REQUEST),
)
_CALL = re.compile(r"aiohttp/(client|connector)")
_REPLY = re.compile(r"aiohttp/web_response|RequestHandler.finish_response")


def stacks(text: str) -> Iterator[tuple[list[str], int]]:
    """The stacks of a file of `sampled.py` that are work of the event loop, and how often each was seen."""
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if any(frame.startswith("BaseEventLoop._run_once ") for frame in frames):
            yield frames, int(count)


def step_of_gateway(frames: list[str]) -> str:
    """The step of a sample of the gateway."""
    mine = [frame for frame in frames if "gateway/" in frame and "gateway/http1" not in frame]
    if not mine:
        return LOOP
    for pattern, step in _GATEWAY:
        if pattern.search(mine[-1]):
            # the server's connection is what replies are written to
            return CLIENT if step is LOOP and any(_REPLY_PARTS.search(frame) for frame in mine) else step
    if "gateway/codec/" in mine[-1]:  # a part that both ways use, such as datatypes: the caller tells
        return ANSWER if any(_GATEWAY[4][0].search(frame) for frame in mine) else REQUEST
    return ROUTING


def step_of_relay(frames: list[str]) -> str:
    """The step of a sample of P."""
    for pattern, step in ((_CALL, BACKEND), (_REPLY, CLIENT)):
        if any(pattern.search(frame) for frame in frames):
            return step
    return ROUTING if any("tests/bench/relay.py" in frame and "handle" in frame for frame in frames) else LOOP


def shares(text: str, step_of: Callable[[list[str]], str]) -> dict[str, float]:
    """Each step's part of the whole, in the order of a request."""
    counts: Counter[str] = Counter()
    for frames, count in stacks(text):
        counts[step_of(frames)] += count
    total = counts.total() or 1
    return {step: counts[step] / total for step in STEPS}
