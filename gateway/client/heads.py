"""Heads of requests that have come before: what depends on a head alone is worked out once.

A client sends the same head with each of its requests to a model, but for two numbers: the length of the body, and
that of the JSON header in it. Parsing and judging such a head costs more than the codec does for a small tensor.

Here: recognizing a head by its bytes. Not here: parsing and judging a new one (`server`), and what the gateway makes
of it (`handlers`), which is kept with it. A head is kept once it has come twice, so heads that never repeat, such as
those with the id of a trace, cost no more than a look.
"""

import re

import msgspec

from gateway.client.request import ClientRequest, Connection, KnownHead

MAX_HEADS = 256
"""The most heads that are kept; of more the oldest goes."""

MAX_HEAD_BYTES = 2048
"""The longest head that is kept."""

MAX_SEEN = 4096
"""The most heads that are remembered, by their hashes, as having come once."""

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"ength: "  # the end of both names, and of others, which `_lengths` tells apart
_N_LENGTH = len(_LENGTH)
_LENGTHS = ("content-length", "inference-header-content-length")
_NUMBER = re.compile(rb"[1-9][0-9]{0,6}").fullmatch
# With these a body is framed or coded otherwise, or more than the body is to be read or said.
_UNCOMMON = frozenset({"connection", "content-encoding", "expect", "te", "trailer", "transfer-encoding", "upgrade"})


class Arrived(msgspec.Struct, gc=False):
    """A request with a known head, all of whose body has come."""

    head: KnownHead
    numbers: tuple[bytes, ...]
    """Its lengths, in the order in which they came."""
    body: bytes

    def request(self, peer: str, scheme: str, connection: Connection) -> ClientRequest:
        """The request as `server` would have parsed it."""
        head = self.head
        values = dict(zip(head.lengths, [str(number, "ascii") for number in self.numbers], strict=True))
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
        self._known: dict[bytes, KnownHead] = {}
        self._seen: set[int] = set()

    def find(self, data: bytes) -> Arrived | None:
        """The request that is all of *data*; None if its head is not known or its body has not all come."""
        cut = _cut(data)
        if cut is None:
            return None
        key, numbers, end = cut
        head = self._known.get(key)
        if head is None or not all(map(_NUMBER, numbers)) or len(data) - end != int(numbers[head.length_index]):
            return None
        return Arrived(head, numbers, data[end:])

    def unknown(self, data: bytes) -> bytes | None:
        """The head with which *data* begins, if it may be one to `keep`: if it has come before, and is not known."""
        cut = _cut(data)
        if cut is None or cut[0] in self._known:
            return None
        seen = hash(cut[0])
        if seen in self._seen:
            return data[: cut[2]]
        if len(self._seen) >= MAX_SEEN:
            self._seen.clear()
        self._seen.add(seen)
        return None

    def keep(self, head: bytes, request: ClientRequest) -> KnownHead | None:
        """Keep the *head* of *request*, which was parsed and judged; None if it is not one to be kept."""
        cut = _cut(head)
        headers = request.headers
        if (
            cut is None
            or request.method != "POST"
            or request.version != (1, 1)
            or request.fault is not None
            or not request.content_length
            or len(headers.first) != len(headers.pairs)
            or not _UNCOMMON.isdisjoint(headers.first)
        ):
            return None
        key, numbers, _ = cut
        lengths = _lengths(key, len(numbers))
        if lengths is None or not all(map(_NUMBER, numbers)):
            return None
        if [headers.first[name].encode() for name in lengths] != list(numbers):
            return None
        known = KnownHead(request.method, request.path, request.host, headers, lengths, lengths.index("content-length"))
        if len(self._known) >= MAX_HEADS:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return known


def _cut(data: bytes) -> tuple[bytes, tuple[bytes, ...], int] | None:
    """The head with which *data* begins without its numbers, these, and where the body begins; None for a long head.

    The numbers are what stands behind the first two `_LENGTH`. They hold nothing but digits where a head is known, so
    no two heads are cut to the same key and the same numbers.
    """
    end = data.find(_HEAD_END)
    if not 0 < end <= MAX_HEAD_BYTES:
        return None
    first = data.find(_LENGTH, 0, end) + _N_LENGTH
    if first < _N_LENGTH:
        return None
    first_end = data.find(b"\r\n", first)
    second = data.find(_LENGTH, first_end, end) + _N_LENGTH
    if second < _N_LENGTH:
        return data[:first] + data[first_end:end], (data[first:first_end],), end + 4
    second_end = data.find(b"\r\n", second)
    key = data[:first] + data[first_end:second] + data[second_end:end]
    return key, (data[first:first_end], data[second:second_end]), end + 4


def _lengths(key: bytes, n_numbers: int) -> list[str] | None:
    """The names of the fields whose values were cut out of *key*, in lower case.

    None if one of them is no length, or if that of the body is none of them.
    """
    names = []
    end = 0
    for _ in range(n_numbers):
        end = key.index(_LENGTH, end) + _N_LENGTH
        line = key[key.rfind(b"\r\n", 0, end) + 2 : end - 2]
        names.append(line.decode(errors="replace").lower())
    return names if "content-length" in names and set(names) <= set(_LENGTHS) else None
