"""W3C Trace Context (Level 1): the trace that a request is part of, in `traceparent` and `tracestate`.

Traces are read, continued and begun here.
"""

import re

import msgspec

from gateway.headers import Headers

TRACE_HEADERS = ("traceparent", "tracestate")

NEW_TRACE_BITS = 192
"""How many random bits a new trace takes: 128 for its id, 64 for the id of its first span."""

MAX_STATE_MEMBERS = 32
"""The most members of a `tracestate`."""

MAX_STATE_CHARACTERS = 1024
"""The longest `tracestate` that is kept: every waiting span holds one. Twice as long as the standard asks for."""

_SAMPLED = 0x01
# Later versions may have more behind the flags; ff is no version.
_PARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")

_NAME = "[a-z0-9_*/-]"
_STATE_MEMBER = re.compile(
    rf"(?:[a-z]{_NAME}{{0,255}}|[a-z0-9]{_NAME}{{0,240}}@[a-z]{_NAME}{{0,13}})=[ -<>-~]{{0,255}}[!-<>-~]"
)


class Trace(msgspec.Struct, frozen=True, gc=False):
    """The trace of one request; ids are in lower-case hexadecimal."""

    trace_id: str
    span_id: str
    """The id of the gateway's own span for the request."""
    is_sampled: bool
    """Whether spans are recorded."""
    parent_id: str = ""
    """The id of the client's span; empty if the trace begins here."""
    state: str = ""
    """`tracestate` as it came; empty if it was malformed, or longer than `MAX_STATE_CHARACTERS`."""

    def fields(self, span_id: str) -> list[tuple[str, str]]:
        """The header fields for a backend that is asked as part of the span *span_id*."""
        fields = [("traceparent", f"00-{self.trace_id}-{span_id}-{'01' if self.is_sampled else '00'}")]
        if self.state:
            fields.append(("tracestate", self.state))
        return fields


def trace_of(headers: Headers, bits: int, share: float) -> Trace:
    """The trace of a request with *headers*; new ids are made of *bits*, `NEW_TRACE_BITS` random ones.

    A client that has begun the trace has decided whether it is sampled; of the traces that begin here, *share* are. A
    malformed `traceparent`, or more than one, is ignored, and `tracestate` with it. So is a malformed `tracestate`.
    """
    span_id = f"{bits >> 128 or 1:016x}"
    given = headers.all("traceparent") if "traceparent" in headers.first else ()
    parent = _PARENT.fullmatch(given[0]) if len(given) == 1 else None
    if parent is not None and (parent[1] != "00" or parent[5] is None):
        is_sampled = bool(int(parent[4], 16) & _SAMPLED)
        return Trace(parent[2], span_id, is_sampled, parent[3], _state(headers.joined("tracestate")))
    trace_id = bits & (1 << 128) - 1 or 1
    # sampled by the id's own bits, which are random: no second random number is needed
    return Trace(f"{trace_id:032x}", span_id, trace_id & (1 << 56) - 1 < share * (1 << 56))


def _state(text: str) -> str:
    """*text* if it is a valid `tracestate` that is not too long and names each key once; else an empty text."""
    if len(text) > MAX_STATE_CHARACTERS:
        return ""
    members = list(filter(None, (member.strip(" \t") for member in text.split(","))))
    keys = {member.partition("=")[0] for member in members}
    is_right = len(keys) == len(members) <= MAX_STATE_MEMBERS and all(map(_STATE_MEMBER.fullmatch, members))
    return text if is_right else ""
