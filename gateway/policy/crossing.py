"""Which headers cross the gateway, in each direction (protocol 3.1, 4.9; RFC 9110 section 7.6.1).

Everything here works on the names of fields; no body is looked at.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol

import msgspec

from gateway import __version__
from gateway.headers import Headers
from gateway.policy.trace_context import Trace

_HEADER_LENGTH = "inference-header-content-length"

# fmt: off
HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})
"""Headers that are meant for the next hop alone, besides those that `Connection` names."""

# Made anew for the backend: the host, the framing of the body, the client's address and the id of the request. The
# caller adds the length and the id.
_NOT_TO_BACKEND = HOP_BY_HOP | {"host", "content-length", "expect", "x-forwarded-for", "x-request-id"}
# What proxies say of the client, besides X-Forwarded-For: dropped unless a trusted proxy has sent it.
_SAID_BY_PROXIES = frozenset({
    "forwarded", "x-forwarded-host", "x-forwarded-port", "x-forwarded-prefix", "x-forwarded-proto", "x-real-ip",
})
OF_THE_BODY = frozenset({
    "content-digest", "content-encoding", "content-md5", "content-type", "digest", "repr-digest", _HEADER_LENGTH,
})
"""These describe the client's body, which the gateway has inflated or turned into JSON."""
OF_ONE_ANSWER = frozenset({
    "accept", "if-match", "if-modified-since", "if-none-match", "if-range", "if-unmodified-since", "range",
})
"""These ask for a part or a form of one answer; one that the gateway asks for itself is kept for other clients."""
_CODING = frozenset({"accept-encoding"})
# These name one request, to a trace or to one proxy's log, and no server decides by them who may do what. Metadata is
# asked once for many requests, those that send the same other headers: a client's address stays among these.
_OF_ONE_REQUEST = frozenset({
    "b3", "baggage", "cf-ray", "elastic-apm-traceparent", "newrelic", "request-id", "sentry-trace", "traceparent",
    "tracestate", "uber-trace-id", "x-amz-cf-id", "x-amzn-trace-id", "x-b3-flags", "x-b3-parentspanid", "x-b3-sampled",
    "x-b3-spanid", "x-b3-traceid", "x-cloud-trace-context", "x-correlation-id", "x-datadog-origin",
    "x-datadog-parent-id", "x-datadog-sampling-priority", "x-datadog-tags", "x-datadog-trace-id", "x-request-start",
})
_OF_ONE_OF_SEVERAL = _OF_ONE_REQUEST | {"x-forwarded-for", "x-real-ip", "x-request-id"}
_QUOTED = r'"(?:[^"\\]|\\.)*"?'  # maybe unclosed: to look for the end again at each quote would be quadratic
_READ_CHARACTERS = 1024  # of `Forwarded`, which takes a millisecond; a request with a longer one goes alone
# the client's address in `Forwarded` (RFC 7239); or a quoted value of something else, which is kept
_FOR = re.compile(rf'(?<![^;,\s])for=(?:{_QUOTED}|[^;,"\s]*)\s*;?\s*|({_QUOTED})', re.IGNORECASE)

_NOT_TO_CLIENT = HOP_BY_HOP | {"content-length"}
# These were computed from the bytes of the backend's body, and are wrong when a part of it is replaced.
_NOT_TO_CLIENT_CHANGED = _NOT_TO_CLIENT | {
    "accept-ranges", "content-digest", "content-md5", "digest", "etag", "repr-digest",
}
# These describe the backend's body, which is not the one that the client gets.
_NOT_TO_CLIENT_TRANSCODED = _NOT_TO_CLIENT_CHANGED | {
    "content-encoding", "content-range", "content-type", "last-modified", _HEADER_LENGTH,
}
_NOT_IN_LINES = _NOT_TO_CLIENT_TRANSCODED | {"x-request-id"}
# fmt: on

UNIX_PEER = "unix"
"""Stands for the peer's address on a `unix:` listener: it has none, and so is no hop in X-Forwarded-For."""

Fields = list[tuple[str, str]]
"""Header fields in the order in which they are sent."""

_IDENTITY = ("Accept-Encoding", "identity")
_JSON = ("Content-Type", "application/json")
_KEEP_OR_CLOSE = ("keep-alive", "close")
# What proxies say of a request is for every hop behind them: these cross even if `Connection` names them.
_FOR_ALL = _SAID_BY_PROXIES | {"via", "x-forwarded-for"}


class Asking(Protocol):
    """A client's request, as far as the headers for a backend depend on it."""

    headers: Headers
    """The header fields as the client sent them."""
    peer: str
    """The address of the other end of the connection, or `UNIX_PEER`."""
    is_from_proxy: bool
    """Whether the peer is a trusted proxy, which may say who the client is."""
    scheme: str
    host: str
    """The host in the request; empty if the request named none."""


class BackendHeaders:
    """Makes the headers for one backend from the headers of a client's request."""

    def __init__(self, set_: Mapping[str, str], remove: Iterable[str], replaced: Iterable[str] = ()) -> None:
        """*set_* and *remove* are the backend's `headers` in the configuration.

        *replaced* are fields (lower case) that each attempt writes itself.
        """
        self._set = list(set_.items())
        self._removed = frozenset(name.lower() for name in [*set_, *remove])
        self._never = _NOT_TO_BACKEND | self._removed | frozenset(replaced)
        self.relayed = self._kind(frozenset())
        """For a request whose body crosses as it is, and whose answer comes back coded as the client asked."""
        self.relayed_uncoded = self._kind(_CODING)
        """For a request whose body crosses as it is, and whose answer must not be compressed (protocol 7)."""
        self.inflated = self._kind(OF_THE_BODY, _JSON)
        """For JSON that the gateway has read, maybe inflated, and passes on; coded as the client asked."""
        self.transcoded = self._kind(OF_THE_BODY | _CODING, _JSON)
        """For a body that has become JSON, and whose answer the gateway reads."""
        self.metadata = self._kind(OF_THE_BODY | _CODING | OF_ONE_ANSWER | _OF_ONE_REQUEST)
        """For metadata that the gateway asks for itself; the answer is kept for clients whose headers give the same."""

    def probing(self, who: str) -> Fields:
        """For a question of the gateway's own, such as a health probe: *who* asks."""
        return self._added(("User-Agent", f"tensor-gateway/{__version__} ({who})"), _IDENTITY)

    def trace(self, trace: Trace) -> Trace | None:
        """*trace* without the fields that the configuration sets or removes; None without `traceparent`."""
        if "traceparent" in self._removed:
            return None
        return msgspec.structs.replace(trace, state="") if "tracestate" in self._removed else trace

    def _kind(self, dropped: frozenset[str], *added: tuple[str, str]) -> Callable[[Asking], Fields]:
        """What makes the fields for one kind of request: without *dropped*, and with *added*."""
        of_proxy = self._never | dropped
        of_others = of_proxy | _SAID_BY_PROXIES
        uncoded = self._added(*added, _IDENTITY)
        coded = self._added(*added) if dropped.isdisjoint(_CODING) else uncoded
        names_client, names_scheme, names_host = (
            f"x-forwarded-{name}" not in self._removed for name in ("for", "proto", "host")
        )

        def fields_for(client: Asking) -> Fields:
            headers, is_from_proxy = client.headers, client.is_from_proxy
            fields = _without(headers, of_proxy if is_from_proxy else of_others)
            said: Container[str] = headers.first if is_from_proxy else ()
            if names_scheme and "x-forwarded-proto" not in said:
                fields.append(("X-Forwarded-Proto", client.scheme))
            if names_host and client.host and "x-forwarded-host" not in said:
                fields.append(("X-Forwarded-Host", client.host))
            hop = _hops(client) if is_from_proxy else client.peer
            if names_client and hop and hop != UNIX_PEER:
                fields.append(("X-Forwarded-For", hop))
            # a client that says nothing expects no coding, although RFC 9110 section 12.5.3 would allow any
            fields += coded if "accept-encoding" in headers.first else uncoded
            return fields

        return fields_for

    def _added(self, *fields: tuple[str, str]) -> Fields:
        """The fields that the configuration sets, and those of *fields* that it neither sets nor removes."""
        return self._set + [field for field in fields if field[0].lower() not in self._removed]


def _hops(client: Asking) -> str:
    """The addresses that a trusted proxy has named, and its own if it has one, as `X-Forwarded-For` has them."""
    hop = "" if client.peer == UNIX_PEER else client.peer
    return ", ".join(filter(None, (client.headers.joined("x-forwarded-for"), hop)))


def crossing_of_all(fields: Iterable[tuple[str, str]]) -> Fields:
    """The *fields* without what names one client or one request, for a request that goes for several."""
    crossing: Fields = []
    left = _READ_CHARACTERS
    for name, value in fields:
        kind, said = name.lower().replace("_", "-"), value  # as in `_without`
        if kind == "forwarded" and (left := left - len(value)) >= 0:
            said = _FOR.sub(r"\1", value).strip(" ,;")
        if kind not in _OF_ONE_OF_SEVERAL and (said or not value):
            crossing.append((name, said))
    return crossing


def relayed_to_client(backend: Headers) -> Fields:
    """The headers of an answer whose body crosses as it is; the reply adds Content-Length itself."""
    return _without(backend, _NOT_TO_CLIENT)


def changed_to_client(backend: Headers) -> Fields:
    """The headers of an answer in whose body a part is replaced: the model's name, or a server's extensions."""
    return _without(backend, _NOT_TO_CLIENT_CHANGED)


def transcoded_to_client(backend: Headers) -> Fields:
    """The headers of an answer whose body the gateway has made anew."""
    return _without(backend, _NOT_TO_CLIENT_TRANSCODED)


def transcoded_lines(backend: Headers) -> str:
    """As `transcoded_to_client`, as the lines of a reply's head, with CR LF between them.

    `X-Request-Id` is not among them, because every reply writes it itself.
    """
    return "\r\n".join(map(": ".join, _without(backend, _NOT_IN_LINES)))


def may_name_model(status: int, backend: Headers) -> bool:
    """Whether an answer of *status* has a body that clients read as JSON, or as events of JSON."""
    content_type = backend.get("content-type", "json").lower()
    has_body = 200 <= status < 300 and status not in (204, 206) and backend.get("content-length") != "0"
    return has_body and ("json" in content_type or "event-stream" in content_type)


def went_through(via: Iterable[str], name: str) -> bool:
    """Whether one of the `Via` fields names the gateway called *name* (RFC 9110 section 7.6.3)."""
    entries = (entry.split() for value in via for entry in value.split(","))
    return any(len(entry) > 1 and entry[1] == name for entry in entries)


def _without(headers: Headers, dropped: frozenset[str]) -> Fields:
    """All fields without *dropped* and without those that a `Connection` field names.

    `_` counts as `-` in names: to applications behind CGI or WSGI the two are the same.
    """
    if "connection" in headers.first:
        connection = headers.all("connection")
        if len(connection) > 1 or connection[0].lower() not in _KEEP_OR_CLOSE:
            named = {name.strip().lower() for value in connection for name in value.split(",")}
            dropped = dropped | (named - _FOR_ALL)
    fields: Fields = []
    for pair in headers.pairs:  # for so few a comprehension would take longer to begin
        name = pair[0].lower()
        if name not in dropped and ("_" not in name or name.replace("_", "-") not in dropped):
            fields.append(pair)
    return fields
