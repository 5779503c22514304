"""Heads of answers that need not be parsed, because one with the same fields was parsed before.

A server writes the same fields in the same order before each answer of a kind. Their values differ: the date, the
length, and with MLServer two ids (`ce-id`, `ce-requestid`). So what is remembered of a head is its kind, a regular
expression with the status line, the names and the order of the fields, in which the values are left open. It takes
a tenth of the time of parsing.

Values that say how an answer is to be read are not left open, and a head that has any of them but its length and
`Connection` is never remembered. An open value is printable ASCII, which parsing does not change.

Here: what is remembered, its limits, and recognizing the next head. Not here: bodies, and when a head may be looked up
(`wire`).
"""

import re
from collections.abc import Callable

import msgspec

from gateway.headers import HeaderLines, Headers
from gateway.policy.crossing import transcoded_to_client

MAX_KINDS = 8
"""How many kinds of heads are remembered; the one that was not seen for longest makes room for a new one."""

MAX_HEAD_BYTES = 4 * 1024
"""The longest head that is learned from or recognized."""

MAX_PATTERN = 1024
"""The longest pattern that is compiled, in characters; that takes up to a millisecond, in which nothing else runs.

A field takes its name and some 25 more, so this is enough for 25 fields.
"""

LEARNING_S = 1.0
"""A kind takes half a millisecond to remember, so no other is for so long: a server may write other names each time."""

_OK = "HTTP/1.1 200 "

# Whether an answer with these can be read without the parser is not worth finding out.
_UNFIT = frozenset(
    {"content-encoding", "proxy-connection", "trailer", "transfer-encoding", "upgrade", "sec-websocket-key1"}
)
_OF_THE_REPLY = frozenset({"x-request-id"})  # which every reply to a client writes itself
_LENGTH = "(0|[1-9][0-9]{0,4})"
_VALUE = "[!-~][ -~]*(?<! )"  # parsing takes blanks away at both ends


class Kind:
    """Heads with the same status line and fields."""

    __slots__ = ("has_date", "has_server", "length_at", "match", "n_crossing", "pattern", "reason")

    def __init__(self, reason: str, headers: Headers) -> None:
        """Of an answer 200 with *reason* and *headers*, which have one `Content-Length` and no unfit field.

        `compile` must follow before the first `match`.
        """
        crossing = frozenset(name.lower() for name, _ in transcoded_to_client(headers)) - _OF_THE_REPLY
        parts = [re.escape(_OK + reason), "\r\n"]
        is_in_group = False
        self.length_at = 0
        for name, value in headers.pairs:
            lower = name.lower()
            if (lower in crossing) is not is_in_group:
                is_in_group = not is_in_group
                parts.append("(" if is_in_group else ")")
            if lower == "content-length":
                self.length_at = parts.count("(")
                value_pattern = _LENGTH
            else:
                # what a connection's field names does not cross
                value_pattern = re.escape(value) if lower == "connection" else _VALUE
            parts += re.escape(name), ": ", value_pattern, "\r\n"
        parts.append(")\r\n" if is_in_group else "\r\n")
        self.reason = reason
        self.pattern = "".join(parts)
        self.match: Callable[[bytes, int, int], re.Match[bytes] | None]
        self.n_crossing = sum(name.lower() in crossing for name, _ in headers.pairs)
        self.has_server = "server" in crossing
        self.has_date = "date" in crossing

    def compile(self) -> None:
        """Make `match`; see `MAX_PATTERN`."""
        self.match = re.compile(self.pattern.encode()).match


class KnownHead(msgspec.Struct):
    """The head of an answer 200 that was recognized, as `RawResponseMessage` is of one that was parsed."""

    kind: Kind
    found: re.Match[bytes]
    n_bytes: int
    """Of the head."""
    length: int
    """Of the body in bytes."""
    code: int = 200

    @property
    def reason(self) -> str:
        """The words behind the status; printable ASCII."""
        return self.kind.reason

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """All fields, as they came."""
        lines = [line.partition(b": ") for line in self.found[0].split(b"\r\n")[1:-2]]
        return [(name, value) for name, _, value in lines]

    def transcoded_lines(self) -> HeaderLines | None:
        """The fields that `transcoded_to_client` gives, without `X-Request-Id`; None if there are none."""
        kind = self.kind
        if not kind.n_crossing:
            return None
        blocks = self.found.groups()
        at = kind.length_at
        text = b"".join(blocks[:at] + blocks[at + 1 :])[:-2].decode()
        return HeaderLines(text, kind.n_crossing, kind.has_server, kind.has_date)


class KnownHeads:
    """The kinds of heads that one backend's servers have sent, the last seen first."""

    def __init__(self) -> None:
        self._kinds: list[Kind] = []
        self._learning_at = float("-inf")

    def recognize(self, data: bytes) -> KnownHead | None:
        """The head that *data* begins with; None if it has not come to its end, or must be parsed."""
        kinds = self._kinds
        for kind in kinds:
            found = kind.match(data, 0, MAX_HEAD_BYTES)
            if found is not None:
                if kind is not kinds[0]:
                    kinds.remove(kind)
                    kinds.insert(0, kind)
                return KnownHead(kind, found, found.end(), int(found[kind.length_at + 1]))
        return None

    def learn(self, reason: str, headers: Headers, now_s: float) -> None:
        """Remember the head of an answer 200 of HTTP/1.1 that was parsed, found right, and keeps its connection.

        Nothing is learned from one that is unfit or has too many names, whose *reason* would not be passed on, nor
        within `LEARNING_S` of the last.
        """
        if now_s < self._learning_at or len(headers.get("content-length", "unknown")) > 5:
            return
        if len(headers.all("content-length")) > 1 or not _UNFIT.isdisjoint(headers.first):
            return
        if not (reason.isascii() and reason.isprintable()):
            return
        self._learning_at = now_s + LEARNING_S
        if sum(len(name) + len(value) + 4 for name, value in headers.pairs) > MAX_HEAD_BYTES:
            return
        kind = Kind(reason, headers)
        if len(kind.pattern) <= MAX_PATTERN and all(kind.pattern != known.pattern for known in self._kinds):
            kind.compile()
            self._kinds = [kind, *self._kinds[: MAX_KINDS - 1]]
