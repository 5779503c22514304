"""One request of a client as a value of our own, and the connection that it came on.

Here: what the rest of the gateway knows of a client's request, and how it is made of a parsed head. Not here: the
connection itself (`connection`), and what is read from it (`body`) or written to it (`reply`).
"""

import asyncio
import random
import re
import socket
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

import msgspec
from aiohttp.http import RawRequestMessage, RawResponseMessage

from gateway.client.outgoing import Outgoing
from gateway.client.served import Served
from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Headers
from gateway.policy.crossing import UNIX_PEER

ABSOLUTE = re.compile(r"https?://(?:[^/?#]*@)?([^/?#]+)", re.IGNORECASE)
"""The beginning of a target in absolute form; group 1 is the authority without the user."""

MAX_CONTENT_LENGTH = 2**63 - 1
"""The largest length of a body that is believed. aiohttp's parser takes 2**64 - 1 for no body at all."""

MAX_DIGITS = 20
"""The longest `Content-Length` that is read, in digits: longer ones are no length that anybody sends."""

MAX_REQUEST_ID = 128
"""The longest `X-Request-Id` of a client that is kept, in characters."""


class Peer(NamedTuple):
    """Who has connected."""

    address: str
    """The client's address, or `UNIX_PEER`."""
    scheme: str
    """`https` on a connection with TLS, else `http`."""


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Who has opened the connection of *transport*."""
    peername = transport.get_extra_info("peername")
    address = "unknown"
    if isinstance(peername, tuple):
        address = str(peername[0])
    elif transport.get_extra_info("socket").family == socket.AF_UNIX:
        address = UNIX_PEER
    return Peer(address, "http" if transport.get_extra_info("sslcontext") is None else "https")


class Incoming(Protocol):
    """What a `ClientBody` reads from: a body while it comes."""

    out: Outgoing

    @property
    def has_arrived(self) -> bool:
        """Whether all of it is there to be read, or was read."""

    @property
    def is_read(self) -> bool:
        """Whether all of it was read."""

    def read_arrived(self) -> bytes:
        """What has arrived of it, without waiting, possibly nothing. Raises as `read_more` does."""

    async def read_more(self) -> bytes:
        """What has arrived of it; waits if that is nothing; empty at the end.

        Raises `GatewayError`, and `ConnectionError` if the client left.
        """

    def fail(self, error: Exception) -> None:
        """Let whoever reads, now or next, get *error*."""


class ClientRequest(msgspec.Struct, eq=False):
    """One request of a client; its body is read by `ClientBody`. A msgspec struct is made in a third of the time."""

    method: str
    path: str
    """Raw path and query in origin form, as the client wrote them: `/v2/models/m/infer?a=b`. An absolute-form target
    (`http://host/path`) is reduced to this."""
    headers: Headers
    host: str
    """`Host`, or the authority of an absolute-form target, which replaces it (RFC 9112 section 3.2.2)."""
    peer: str
    """The address of whoever has connected, or `unknown`."""
    scheme: str
    version: tuple[int, int]
    content_length: int | None
    """None if the client did not say, which with `has_body` means a chunked body."""
    has_body: bool
    """Whether there is a body of at least one byte, or a chunked one."""
    connection: Any
    """A `Served`, or what another front has in its place."""
    fault: GatewayError | None = None
    """Why the request must be refused whatever it asks for (`find_fault`); to be raised before routing."""
    is_from_proxy: bool = False
    """Whether the peer is one of `trusted_proxies`, which says who the client is."""
    protocol: str = "http"
    """The front that the request came to: `http` or `grpc`."""
    front: Callable[..., tuple[Any, Any]] | None = None
    """Makes what reads the body and what writes the reply; None: those of HTTP/1.1."""
    begin: Callable[[], Awaitable[None]] | None = None
    """Reads what the request asks for where its body says that: to be awaited before it is routed."""
    deadline_s: float | None = None
    """When the client gives up, by the event loop's clock, if it says so."""


def read_request(head: RawRequestMessage | RawResponseMessage, peer: Peer, connection: Served) -> ClientRequest:
    """The request that *head* begins.

    Says to *connection* what body it has, and whether another request may follow.
    """
    assert isinstance(head, RawRequestMessage)
    method, path, version = head.method, head.path, head.version
    connection.keeps_alive = not head.should_close
    headers = Headers(head.headers.items())
    first = headers.first
    given_length = first.get("content-length")
    length = None
    if given_length:  # in digits, as the parser has proved
        length = int(given_length) if len(given_length) <= MAX_DIGITS else MAX_CONTENT_LENGTH + 1
    fault = find_fault(method, path, version, headers, length, is_ascii=connection.is_ascii)
    if fault is not None:
        path = path.encode(errors="backslashreplace").decode()  # may stand in a log
        if (
            fault.status != ErrorKind.MALFORMED_REQUEST.status
            or "transfer-encoding" in first
            or method == "CONNECT"
            or (length is not None and length > MAX_CONTENT_LENGTH)
        ):
            connection.keeps_alive = False  # where its body ends is not certain
    host = first.get("host", "")
    if not path.startswith("/"):
        absolute = ABSOLUTE.match(path)
        if absolute is not None:
            host = absolute[1]
            path = path[absolute.end() :]
        if not path.startswith("/"):
            path = f"/{path}"
    if head.chunked:
        connection.expect_chunks()
    else:
        connection.expect_sized(length or 0)
    has_body = not connection.has_arrived
    return ClientRequest(
        method, path, headers, host, peer.address, peer.scheme, version, length, has_body, connection, fault
    )


def find_fault(
    method: str,
    target: str,
    version: tuple[int, int],
    headers: Headers,
    content_length: int | None,
    *,
    is_ascii: bool,
) -> GatewayError | None:
    """What makes a request unacceptable whatever it asks for; None if nothing does. *target* is as the client wrote it.

    HTTP that aiohttp's parser lets pass, and on whose meaning a backend or a proxy before the gateway may not agree.
    """
    if version not in ((1, 0), (1, 1)):
        return _fault(f"HTTP/{version[0]}.{version[1]} is not supported, only 1.0 and 1.1", status=505)
    if "transfer-encoding" in headers.first and (fault := _coding_fault(version, headers)) is not None:
        return fault
    if content_length is not None and content_length > MAX_CONTENT_LENGTH:
        return _fault(f"Content-Length {content_length} is too large, at most {MAX_CONTENT_LENGTH} is possible")
    if method == "CONNECT":
        return _fault("CONNECT is not supported: this is no forward proxy")
    if not target.startswith("/") and ABSOLUTE.match(target) is None:
        quoted = target.encode(errors="replace").decode()[:64]
        return _fault(f"the target of a request must be a path or an http URL, got {quoted!r}")
    if "#" in target:
        return _fault("'#' cannot stand in the target of a request")
    return None if is_ascii else find_encoding_fault(target, headers)


def _coding_fault(version: tuple[int, int], headers: Headers) -> GatewayError | None:
    """What is wrong with the `Transfer-Encoding` that a request has."""
    codings = headers.all("transfer-encoding")
    if [coding.lower() for coding in codings] != ["chunked"]:
        quoted = ", ".join(codings).encode(errors="replace").decode()[:64]
        return _fault(f"Transfer-Encoding: only 'chunked' is supported, got {quoted!r}", status=501)
    if "content-length" in headers.first:  # RFC 9112 section 6.3: an attempt at request smuggling
        return _fault("Content-Length and Transfer-Encoding exclude each other")
    if version == (1, 0):  # RFC 9112 section 6.1: its framing is to be treated as faulty
        return _fault("HTTP/1.0 has no Transfer-Encoding")
    return None


def find_encoding_fault(target: str, headers: Headers) -> GatewayError | None:
    """Which part of a head that is not ASCII is not UTF-8 either."""
    for name, value in headers.pairs:
        if _is_undecodable(value):
            return _fault(f"header {name[:64]!r} holds bytes that are not UTF-8")
    if _is_undecodable(target):
        return _fault("the target of the request holds bytes that are not UTF-8")
    return None


def _is_undecodable(text: str) -> bool:
    """Whether *text* was decoded with surrogateescape from bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _fault(message: str, status: int | None = None) -> GatewayError:
    return GatewayError(ErrorKind.MALFORMED_REQUEST, message, status=status)


def request_id(headers: Headers) -> str:
    """The client's `X-Request-Id` if it can stand in a log line and a header; otherwise a new one."""
    given = headers.first.get("x-request-id", "")
    return given if 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable() else new_request_id()


def new_request_id() -> str:
    """32 random hexadecimal digits. They name a request and are no secret."""
    return f"{random.getrandbits(128):032x}"
