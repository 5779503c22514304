"""Load by clients that mean harm: JSON headers of the largest size allowed, and of the kinds that cost the most.

`python -m tests.bench.hostile URL CLIENTS` sends them in loops until it is stopped, each client its kinds in turn,
beginning with another one. Statuses are not looked at: some kinds are valid, some are refused.
"""

import itertools
import sys
import threading
from collections.abc import Callable
from urllib.parse import urlsplit

from tests.bench.client import Connection

HEADER_BYTES = 128 * 1024
"""The default of `limits.header`."""

MODEL = "repeated-fp32-0"
"""Of `traffic`: what is valid gets an answer."""


def _filled(start: bytes, part: Callable[[int], bytes], end: bytes) -> bytes:
    """*start*, as many parts as fit, *end*, and blanks up to `HEADER_BYTES`."""
    parts = []
    left = HEADER_BYTES - len(start) - len(end)
    for number in itertools.count():
        text = b"," * bool(number) + part(number)
        if len(text) > left:
            break
        parts.append(text)
        left -= len(text)
    return start + b"".join(parts) + end + b" " * left


_INPUT = b'{"name":"x","shape":[1],"datatype":"FP32","parameters":{"binary_data_size":4}}'
_END = b',"outputs":[{"name":"y0","parameters":{"binary_data":true}}]}'

HEADERS = {
    "members in the parameters": _filled(
        b'{"parameters":{', lambda number: b'"%d":1' % number, b'},"inputs":[' + _INPUT + b"]" + _END
    ),
    "members in an input's parameters": _filled(
        b'{"inputs":[' + _INPUT[:-2] + b",", lambda number: b'"%d":1' % number, b"}}]" + _END
    ),
    "literals that are not JSON": _filled(
        b'{"parameters":{"a":[', lambda number: b"NaN", b']},"inputs":[' + _INPUT + b"]" + _END
    ),
    "literals in an id": _filled(b'{"id":"', lambda number: b"NaN", b'","inputs":[' + _INPUT + b"]" + _END),
    "literals in a name": _filled(b'{"inputs":[{"name":"', lambda number: b"NaN", b'",' + _INPUT[12:] + b"]" + _END),
    "empty inputs": _filled(b'{"inputs":[', lambda number: b"{}", b"]" + _END),
    "outputs": _filled(b'{"inputs":[' + _INPUT + b'],"outputs":[', lambda number: b'{"name":"%d"}' % number, b"]}"),
}
"""By what is in them."""


def _message(host: str, header: bytes) -> bytes:
    return (
        b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n"
        b"Inference-Header-Content-Length: %d\r\n\r\n%s\x00\x00\x80?"
    ) % (MODEL.encode(), host.encode(), len(header) + 4, len(header), header)


def _attack(url: str, first: int, has_answered: threading.Event) -> None:
    messages = [_message(urlsplit(url).netloc, header) for header in HEADERS.values()]
    with Connection(url) as connection:
        for number in itertools.count(first):
            connection.ask(messages[number % len(messages)])
            has_answered.set()


def _run(url: str, clients: int) -> None:
    has_answered = threading.Event()
    threads = [threading.Thread(target=_attack, args=(url, number, has_answered)) for number in range(clients)]
    for thread in threads:
        thread.start()
    has_answered.wait()
    print(f"{url} has answered once", flush=True)


if __name__ == "__main__":
    _run(sys.argv[1], int(sys.argv[2]))
