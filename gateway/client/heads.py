"""Heads of requests that need not be parsed and judged, because one like them was.

A client sends the same head with each of its requests to a model, but for some values: the length of the body, that
of the JSON header in it, an id, what traces it. So what is kept of a head is a regular expression: the names, their
order, and the values that decide something as they came; the others are left open. Matching it costs a tenth of what
parsing, judging and routing do, which cost more than the codec does for a small tensor.

An open value is printable ASCII, which parsing does not change. A head with a field that decides how a body is read
is never kept, but for `Content-Length`, whose value must be a plain number.

Here: what is kept, its limits, and recognizing a head. Not here: parsing and judging a new one (`server`), and what
the gateway makes of it (`plan.HeadNotes`), which is kept with it.
"""

import re

import msgspec

from gateway.client.request import ClientRequest, Connection, KnownHead

MAX_LINES = 128
"""For how many request lines heads are kept; of more the one that was kept first goes.

A head of `MAX_HEAD_BYTES` takes 42 KiB, so a client can make a process hold 16 MiB.
"""

MAX_HEADS_PER_LINE = 3
"""The most heads that are kept for a request line; of more the oldest goes."""

MAX_HEAD_BYTES = 2048
"""The longest head that is recognized."""

MAX_SEEN = 4096
"""How many request lines are remembered, by their hashes, as having come once: those that come again are kept."""

MAX_FIELDS = 32
"""The most fields of a head that is kept: compiling its regular expression holds the loop for 1.3 ms."""

LEARNING_S = 0.05
"""A head takes half a millisecond to keep, with `MAX_FIELDS` more than one, so no other is for so long."""

_CONTENT_LENGTH = "content-length"
_LENGTHS = frozenset({_CONTENT_LENGTH, "inference-header-content-length"})
# What these say decides something, or is always the same.
_FIXED = frozenset(
    {
        "accept",
        "accept-encoding",
        "connection",
        "content-type",
        "host",
        "user-agent",
        "via",
        "x-forwarded-host",
        "x-forwarded-proto",
    }
)
# With these a body is framed or coded otherwise, or more than the body is to be read or said.
_UNFIT = frozenset(
    {
        "content-encoding",
        "expect",
        "http2-settings",
        "keep-alive",
        "proxy-connection",
        "sec-websocket-key1",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NUMBER = rb"([1-9][0-9]{0,6})"
_VALUE = rb"([!-~][ -~]*(?<! ))"  # parsing takes blanks away at both ends


class Arrived(msgspec.Struct, gc=False):
    """A request with a known head, all of whose body has come."""

    head: KnownHead
    values: tuple[bytes, ...]
    """Those that the head leaves open, in their order."""
    body: bytes

    def request(self, peer: str, scheme: str, connection: Connection) -> ClientRequest:
        """The request as `server` would have parsed it."""
        head = self.head
        values = dict(zip(head.open_names, [str(value, "ascii") for value in self.values], strict=True))
        return ClientRequest(
            head.method,
            head.path,
            head.headers.with_values(values),
            head.host,
            peer,
            scheme,
            (1, 1),
            len(self.body),
            True,
            connection,
            None,
            head,
        )


class KnownHeads:
    """The heads that are known, of all connections."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[KnownHead]] = {}  # by request line, without its end; the newest first
        self._seen: set[int] = set()
        self._learning_at = float("-inf")

    def find(self, data: bytes) -> Arrived | None:
        """The request that is all of *data*; None if its head is not known or its body has not all come."""
        for head in self._known.get(data[: data.find(b"\r\n")], ()):
            found = head.match(data, 0, MAX_HEAD_BYTES)
            if found is not None:
                values = found.groups()
                end = found.end()
                if len(data) - end != int(values[head.length_index]):
                    return None
                return Arrived(head, values, data[end:])
        return None

    def keep(self, data: bytes, request: ClientRequest, now_s: float) -> KnownHead | None:
        """Keep the head with which *data* begins, that of *request*, which was parsed and judged.

        One that is known already is not kept again: its body may come later, or another request behind it. None if it
        is not one to be kept, if its request line comes for the first time, or if another one was kept within
        `LEARNING_S` before *now_s*.
        """
        headers = request.headers
        first = headers.first
        if (
            request.method != "POST"
            or request.version != (1, 1)
            or request.fault is not None
            or not request.content_length
            or len(first) != len(headers.pairs)
            or len(first) > MAX_FIELDS
            or not _UNFIT.isdisjoint(first)
            or first.get("connection", "keep-alive").lower() != "keep-alive"
        ):
            return None
        line = data[: data.find(b"\r\n")]
        for known in self._known.get(line, ()):
            if known.match(data, 0, MAX_HEAD_BYTES) is not None:
                return known
        if not self._has_come_before(line) or now_s < self._learning_at:
            return None
        self._learning_at = now_s + LEARNING_S
        head = _known_head(data, request)
        if head is None:
            return None
        if line not in self._known and len(self._known) >= MAX_LINES:
            del self._known[next(iter(self._known))]
        self._known[line] = [head, *self._known.get(line, [])[: MAX_HEADS_PER_LINE - 1]]
        return head

    def _has_come_before(self, line: bytes) -> bool:
        seen = hash(line)
        if seen in self._seen:
            return True
        if len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        self._seen.add(seen)
        return False


def _known_head(data: bytes, request: ClientRequest) -> KnownHead | None:
    """What is kept of the head with which *data* begins; None if it is not written as its fields were read."""
    end = data.find(b"\r\n\r\n")
    if not 0 < end <= MAX_HEAD_BYTES - 4:
        return None
    start, *lines = data[:end].split(b"\r\n")
    parts = [re.escape(start)]
    names = []
    for line, (name, value) in zip(lines, request.headers.pairs, strict=False):
        lower = name.lower()
        written, _, text = line.partition(b": ")  # aiohttp gives common names in a spelling of its own
        if (written.lower(), text) != (lower.encode(), value.encode()):
            return None
        if lower in _FIXED:
            parts.append(re.escape(line))
        else:
            names.append(lower)
            parts.append(re.escape(written) + b": " + (_NUMBER if lower in _LENGTHS else _VALUE))
    pattern = re.compile(b"\r\n".join(parts) + b"\r\n\r\n")
    if len(lines) != len(request.headers.pairs) or pattern.match(data) is None:
        return None
    return KnownHead(
        request.method,
        request.path,
        request.host,
        request.headers,
        pattern.match,
        names,
        [name for name in names if name not in _LENGTHS],
        names.index(_CONTENT_LENGTH),
    )
