"""The fields of a call, and those of its answer with its status: as HPACK has them (RFC 7541), and what they mean."""

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple
from urllib.parse import quote

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.hpack import decode_integer

from gateway.client.grpc.frames import Code, Http2Error
from gateway.client.grpc.messages import varint
from gateway.client.request import find_encoding_fault
from gateway.codec.v2.framing import HEADER_LENGTH
from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Headers, Pairs
from gateway.http1 import MAX_FIELDS

MAX_WORK = 16 * 1024
"""The most work of reading the fields of a call, counted in bytes of Huffman's code.

The fields are read in one turn of the event loop. So many bytes in Huffman's code take 2.2 ms there.
"""

FIELD_WORK, INDEXED_WORK = 64, 15
"""The work of a field that brings a string, or of another size of the table, and of a field that only names its place.

256 fields with strings take 1.7 ms, 1,092 without take 2.1.
"""

MAX_WORDS = 4096
"""The most bytes of `grpc-message`, as it is encoded: clients refuse answers with more than 8 KiB of fields."""

KNOWN_HEADS, KNOWN_BYTES = 16, 4096
"""How many heads are remembered, and the most that the fields of one take."""

FIELD_BYTES = 160
"""What a field takes beside its letters: two strings and a pair of Python. One byte on the wire can name it."""

_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])", re.ASCII)
_LENGTH = re.compile(r"[0-9]{1,15}", re.ASCII)
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_DROPPED = frozenset(("te", "user-agent", "accept-encoding", "expect", HEADER_LENGTH.lower()))
_DROPPED_BEGINNINGS = (":", "grpc-", "content-")

CROSSING = re.compile(r"(?!content-|grpc-)[0-9a-z_.-]+(?<!-bin)")  # of names: HTTP has others, which end calls in C
_INDEXED = re.compile(rb"[\x80-\xfe]+")  # each byte names a field of the table
_NAME = re.compile(rb":?[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
_PSEUDO = frozenset((":method", ":scheme", ":path", ":authority"))
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_NEEDED = (":method", ":scheme", ":path")
_OF_HTTP1 = frozenset(("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"))


class Head(NamedTuple):
    """The fields of a call."""

    first: dict[str, str]
    """The first value of each field by its name."""
    path: str
    """As it may stand in a log."""
    headers: Headers
    """What may cross to a backend, and what the gateway reads."""
    n_bytes: int
    """What they take in memory."""
    timeout_s: float | None
    """How long the client waits, from now on."""
    fault: GatewayError | None
    """Why the call is refused whatever it asks for."""


class Heads:
    """Reads the heads of one connection, whose fields HPACK mostly names by their place in a table.

    Clients send the same fields with each call, one byte for each field. A block of such bytes does not change the
    table, so it means the same fields until another block changes it: reading it costs 24 us, looking it up nothing.
    """

    __slots__ = ("_decoder", "_known")

    def __init__(self, max_bytes: int) -> None:
        """*max_bytes* is the most that the fields of a call may take."""
        self._decoder = Decoder(max_bytes)
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """The head that is sent as *block*. Raises `Http2Error` where the table can no longer be followed."""
        known = self._known.get(block)
        if known is not None:
            return known
        try:
            _check_work(block)
            head = read_head(list(self._decoder.decode(block, raw=True)))
        except OversizedHeaderListError as error:
            raise Http2Error(Code.ENHANCE_YOUR_CALM, f"{error} (limits.head)") from None
        except (HPACKError, IndexError) as error:
            words = str(error).partition(":")[0]  # behind it some errors quote the fields
            raise Http2Error(Code.COMPRESSION_ERROR, f"fields that cannot be read: {words}") from None
        if not _INDEXED.fullmatch(block):
            self._known.clear()
        # a fault is raised, and its traceback keeps the requests of the frames that it passed
        elif head.fault is None and head.n_bytes <= KNOWN_BYTES and len(self._known) < KNOWN_HEADS:
            self._known[block] = head
        return head


def _check_work(block: bytes) -> None:
    """Raise `Http2Error` if reading *block* is more than `MAX_WORK`, and `HPACKError` for an unreadable length."""
    if len(block) * (FIELD_WORK + 1) <= MAX_WORK:  # however many fields these bytes are
        return
    view, at, work = memoryview(block), 0, 0
    while at < len(block):
        first = block[at]
        work += FIELD_WORK if first < 0x80 else INDEXED_WORK
        if first >= 0x80:  # a field of the table
            n_strings, n_bits = 0, 7
        elif first & 0xE0 == 0x20:  # another size of the table
            n_strings, n_bits = 0, 5
        else:
            n_bits = 6 if first & 0x40 else 4
            n_strings = 1 if first & (1 << n_bits) - 1 else 2  # the name may stand in the table
        at += decode_integer(view[at:], n_bits)[1]
        for _ in range(n_strings):
            length, n_bytes = decode_integer(view[at:], 7)
            work += length if block[at] & 0x80 else 0
            at += n_bytes + length
        if work > MAX_WORK:
            words = f"more than {MAX_WORK} bytes in Huffman's code, where a field counts as {FIELD_WORK}"
            raise Http2Error(Code.ENHANCE_YOUR_CALM, f"the fields of a call are too much work: {words}")


def read_head(fields: Sequence[tuple[bytes, bytes]]) -> Head:
    """The head that *fields* are; of more than `MAX_FIELDS` only the first are looked at."""
    first: dict[str, str] = {}
    crossing: list[tuple[str, str]] = []
    n_bytes = 0
    words = ""
    is_behind = False  # the fields whose names begin with a colon come first
    for name_bytes, value_bytes in fields[:MAX_FIELDS]:
        n_bytes += FIELD_BYTES + len(name_bytes) + len(value_bytes)
        name = name_bytes.decode("ascii", "replace")
        value = value_bytes.decode("utf-8", "surrogateescape")
        if not _NAME.fullmatch(name_bytes) or not _VALUE.fullmatch(value_bytes):
            words = f"malformed metadata: the name or the value of {name[:64]!r} has characters that it must not have"
        elif name[0] != ":":
            is_behind = True
        elif name not in _PSEUDO or name in first or is_behind:
            words = f"malformed call: the field {name[:64]!r} is unknown, not the first of its name, or too late"
        first.setdefault(name, value)
        if name not in _DROPPED and not name.startswith(_DROPPED_BEGINNINGS) and not name.endswith("-bin"):
            crossing.append((name, value))
    headers, path = Headers(_with_one_cookie(crossing)), first.get(":path", "")
    fault = find_encoding_fault(path, headers)
    if words := words or _find_fault(first):
        fault = GatewayError(ErrorKind.MALFORMED_REQUEST, words)
    if len(fields) > MAX_FIELDS:
        fault = GatewayError(ErrorKind.MALFORMED_REQUEST, f"more than {MAX_FIELDS} fields", status=431)
    timeout = _TIMEOUT.fullmatch(first.get("grpc-timeout", ""))
    timeout_s = None if timeout is None else int(timeout[1]) * _SECONDS[timeout[2]]
    return Head(first, path.encode(errors="backslashreplace").decode(), headers, n_bytes, timeout_s, fault)


def _with_one_cookie(fields: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """*fields* as HTTP/1.1 may have them: HTTP/2 may send cookies apart (RFC 9113 section 8.2.3)."""
    cookies = [value for name, value in fields if name == "cookie"]
    if len(cookies) < 2:
        return fields
    return [field for field in fields if field[0] != "cookie"] + [("cookie", "; ".join(cookies))]


def _find_fault(first: dict[str, str]) -> str:
    """What RFC 9113 section 8 forbids in the fields of a call, *first* of each name; empty if nothing."""
    authority, timeout = first.get(":authority", first.get("host")), first.get("grpc-timeout", "1S")
    of_http1 = _OF_HTTP1 & first.keys()
    faults = (
        (all(map(first.get, _NEEDED)), f"malformed call: it must have {', '.join(_NEEDED)}"),
        (not of_http1, f"malformed call: HTTP/2 has no {', '.join(sorted(of_http1))!r}"),
        (first.get("te", "trailers") == "trailers", "malformed call: 'te' must be 'trailers'"),
        (first.get("host", authority) == authority, "malformed call: 'host' is another than ':authority'"),
        (_LENGTH.fullmatch(first.get("content-length", "0")), "malformed call: 'content-length' must be a number"),
        (_TIMEOUT.fullmatch(timeout), f"grpc-timeout: expected digits and a unit, got {timeout[:20]!r}"),
    )
    return next((words for is_right, words in faults if not is_right), "")


def encoded(fields: Pairs) -> bytes:
    """*fields* as HPACK's literals that no table remembers: no table has to be searched or kept."""
    return b"".join([b"\0%b%b" % (encoded_string(name), encoded_string(value)) for name, value in fields])


def encoded_string(text: str) -> bytes:
    """*text* as HPACK has names and values."""
    data = text.encode()
    n_bytes = len(data)
    return (bytes((n_bytes,)) if n_bytes < 0x7F else b"\x7f" + varint(n_bytes - 0x7F)) + data


class Status(IntEnum):
    """gRPC's statuses that the gateway sends."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_OF_HTTP = {
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    **dict.fromkeys((405, 501), Status.UNIMPLEMENTED),
    **dict.fromkeys((408, 499, 504), Status.DEADLINE_EXCEEDED),  # 499: its own; who left otherwise is told nothing
    **dict.fromkeys((413, 429), Status.RESOURCE_EXHAUSTED),
    503: Status.UNAVAILABLE,
}


def status_of(error: GatewayError) -> Status:
    """The status of *error*."""
    if error.kind is ErrorKind.UPSTREAM_CLOSED:
        return Status.UNAVAILABLE
    return _OF_HTTP.get(error.status, Status.INVALID_ARGUMENT if error.status < 500 else Status.INTERNAL)


def status_fields(status: Status, words: str = "") -> bytes:
    """The trailers that say *status*, as HPACK."""
    words = words[:MAX_WORDS]
    while len(message := quote(words.encode(errors="replace"), safe=_PRINTABLE)) > MAX_WORDS:
        words = words[: len(words) * MAX_WORDS // len(message)]
    return encoded([("grpc-status", str(int(status))), ("grpc-message", message)])
