"""Which headers cross the gateway, in each direction (protocol 3.1, 4.9; RFC 9110 section 7.6.1).

Here: names and sets of them. Not here: what the bodies are.
"""

from collections.abc import Iterable, Mapping

from multidict import CIMultiDict, CIMultiDictProxy

_HEADER_LENGTH = "inference-header-content-length"

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers that speak to the next hop alone, besides those that `Connection` names."""

# Set anew for the backend: its own host, its own framing, and what it may answer in.
_NOT_TO_BACKEND = HOP_BY_HOP | {"host", "content-length", "expect", "accept-encoding"}
_NOT_TO_BACKEND_TRANSCODED = _NOT_TO_BACKEND | {"content-type", "content-encoding", _HEADER_LENGTH}
# Say something of the backend's body, which is not the client's.
_NOT_TO_CLIENT_TRANSCODED = HOP_BY_HOP | {
    "accept-ranges",
    "content-digest",
    "content-encoding",
    "content-length",
    "content-md5",
    "content-range",
    "content-type",
    "digest",
    "etag",
    "last-modified",
    "repr-digest",
    _HEADER_LENGTH,
}

Incoming = CIMultiDictProxy[str]


class BackendHeaders:
    """Makes the headers that one backend gets from those of the client."""

    def __init__(self, set_: Mapping[str, str], remove: Iterable[str]) -> None:
        """*set_* and *remove* are the backend's `headers` in the configuration."""
        self._set = set_
        self._remove = frozenset(name.lower() for name in [*set_, *remove])

    def relayed(self, client: Incoming, peer: str, scheme: str) -> CIMultiDict[str]:
        """For a body that crosses as it is."""
        return self._crossing(client, _NOT_TO_BACKEND, peer, scheme)

    def transcoded(self, client: Incoming, peer: str, scheme: str) -> CIMultiDict[str]:
        """For a body that has become JSON."""
        headers = self._crossing(client, _NOT_TO_BACKEND_TRANSCODED, peer, scheme)
        headers["Content-Type"] = "application/json"
        return headers

    def _crossing(self, client: Incoming, dropped: frozenset[str], peer: str, scheme: str) -> CIMultiDict[str]:
        headers = _without(client, dropped)
        headers["Accept-Encoding"] = "identity"
        forwarded = [*client.getall("X-Forwarded-For", ()), peer]
        headers["X-Forwarded-For"] = ", ".join(forwarded)
        headers.setdefault("X-Forwarded-Proto", scheme)
        if "Host" in client:
            headers.setdefault("X-Forwarded-Host", client["Host"])
        for name in self._remove:
            headers.popall(name, None)
        headers.update(self._set)
        return headers


def relayed_to_client(backend: Incoming) -> CIMultiDict[str]:
    """The headers of an answer whose body crosses as it is."""
    return _without(backend, HOP_BY_HOP)


def transcoded_to_client(backend: Incoming) -> CIMultiDict[str]:
    """The headers of an answer whose body the gateway has made anew."""
    return _without(backend, _NOT_TO_CLIENT_TRANSCODED)


def _without(headers: Incoming, dropped: frozenset[str]) -> CIMultiDict[str]:
    connection = headers.get("Connection")
    if connection is not None and connection.lower() not in ("keep-alive", "close"):
        named = {name.strip().lower() for value in headers.getall("Connection") for name in value.split(",")}
        dropped = dropped | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)
