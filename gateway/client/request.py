"""One request of a client: while it arrives and is served (`Served`), and as a value (`ClientRequest`).

`Served` has limited access to the connection: read the body, and reply. `read_request` makes the value of a parsed
head, and checks it.
"""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp.http import RawRequestMessage, RawResponseMessage

from gateway.client.peers import NOBODY, Outgoing, client_left
from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Headers
from gateway.http1 import MAX_CONTENT_LENGTH, MAX_DIGITS, Heads, Incoming, MalformedError, Phase
from gateway.pacing import next_turn
from gateway.policy.slowness import Upload
from gateway.waiting import Waiter, wake_soon

if TYPE_CHECKING:
    from gateway.client.connection import ClientConnection

ABSOLUTE = re.compile(r"https?://(?:[^/?#]*@)?([^/?#]+)", re.IGNORECASE)
"""The beginning of a target in absolute form; group 1 is the authority without the user."""

# as globals, because looking up an enum's attribute costs as much as a call
_SIZED, _CHUNKED = Phase.SIZED, Phase.CHUNKED

_UNDECODABLE = re.compile("[\ud800-\udfff]")  # what stands for bytes that are not UTF-8 (surrogateescape)

DROP_BYTES = 256 * 1024
DROP_S = 1.0
"""How much is dropped of a body that nobody has read, and for how long, so that the client can see the reply."""

MAX_REQUEST_ID = 128
"""The longest `X-Request-Id` of a client that is kept, in characters."""


class Served(Incoming):
    """A request with its connection. When the request is over (`leave`), it cannot touch the connection any more."""

    out: Outgoing
    """Where the reply is written. Must not be kept elsewhere: `leave` replaces it by `NOBODY`."""
    keeps_alive = False
    """Whether the connection serves another request after this one; `Reply` may set it to False."""
    is_expecting = False
    """Whether the client waits for `100 Continue` before it sends its body."""
    waiter: Waiter | None = None
    """The waiter of `read_more`, while it waits for bytes."""
    _failure: Exception | None = None
    _client: "ClientConnection | None"

    def __init__(self, client: "ClientConnection", heads: Heads) -> None:
        super().__init__(heads)
        self._client = self.out = client
        self.upload = Upload()
        """How fast the body comes."""

    def leave(self) -> None:
        """End the request's access to its connection; a failure stays, without the traceback that holds the body."""
        if self.unread_bytes:
            self.drop()
        if self._failure is not None:
            self._failure.__traceback__ = None
        self._client, self.out = None, NOBODY

    def fail(self, error: Exception) -> None:
        """Let the current read, or the next one, raise *error*; no other request may follow on the connection."""
        self._failure = error
        self.keeps_alive = False
        wake_soon(self.waiter)

    @property
    def is_left_over(self) -> bool:
        """Whether so much of the body has not come that the connection cannot serve another request."""
        return not self.has_arrived and (self.is_expecting or self.left > DROP_BYTES)

    async def read_more(self) -> bytes:
        """The bytes of the body that have arrived; waits if there are none. Empty at the end.

        A client that waits for `100 Continue` gets it when its bytes are first waited for.
        Raises `GatewayError`, MALFORMED_REQUEST for a body that breaks HTTP and SLOW_CLIENT for one that comes too
        slowly (`limits.body_timeout`); `ConnectionError` if the client left.
        """
        if self.is_mostly_framing:  # gives way to others after each piece
            await next_turn()
        while True:
            if (chunk := self.read_arrived()) or self.is_read:
                return chunk
            if not self.unread_bytes:
                await self._wait_for_more()

    def read_arrived(self) -> bytes:
        """The bytes of the body that have arrived, maybe none; does not wait. Raises as `read_more` does."""
        client = self._client
        if client is None or self._failure is not None:
            raise client_left() if self._failure is None else self._failure.with_traceback(None)
        try:
            chunk = self.read()
        except MalformedError as error:
            self.expect(Phase.UNTIL_END)  # its own end is not known
            self.fail(GatewayError(ErrorKind.MALFORMED_REQUEST, f"malformed HTTP body: {error}"))
            return self.read_arrived()
        self.upload.received_bytes += len(chunk)
        if client.held_bytes:  # without held bytes there is nothing to count, and reading is not paused
            client.count()
            client.read_on()
        return chunk

    async def _wait_for_more(self) -> None:
        client = self._client
        assert client is not None
        if self.is_expecting:  # the body is welcome, or nobody would read it
            self.is_expecting = False
            self.out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.upload.begin_waiting(client.time())
        self.waiter = Waiter(asyncio.get_running_loop())
        try:
            await self.waiter
        finally:
            self.waiter = None
            self.upload.end_waiting(client.time())


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
    """The announced length in bytes; None without one: with `has_body` the body is chunked, or its end not known."""
    has_body: bool
    """Whether there is a body of at least one byte, or a chunked one."""
    connection: Any
    """A `Served`, or another front's object in its place."""
    fault: GatewayError | None = None
    """Why the request must be refused whatever it asks for (see `read_request`); to be raised before routing."""
    is_from_proxy: bool = False
    """Whether the peer is one of `trusted_proxies`, which says who the client is."""
    protocol: str = "http"
    """The front that the request came to: `http` or `grpc`."""
    front: Callable[..., Any] | None = None
    """Makes the object that reads the body and writes the reply; None: a `Reply` of HTTP/1.1."""
    begin: Callable[[], Awaitable[None]] | None = None
    """Reads the path of a request that names it in its body, over gRPC; to be awaited before routing."""
    deadline_s: float | None = None
    """When the client gives up, by the event loop's clock, if it says so."""


def read_request(
    head: RawRequestMessage | RawResponseMessage, peer: str, scheme: str, connection: Served
) -> ClientRequest:
    """The request of *head*. *connection* is told how its body ends, and whether another request may follow."""
    assert isinstance(head, RawRequestMessage)
    method, path, version = head.method, head.path, head.version
    headers = Headers(head.headers.items())
    length = _length(headers.first["content-length"]) if "content-length" in headers.first else None
    fault = _framing_fault(method, version, headers, length)
    # bytes behind a chunked body are dropped with it, see `http1`
    connection.keeps_alive = not (head.should_close or head.chunked or fault is not None)
    if "expect" in headers.first:
        connection.is_expecting = headers.get("expect").strip().lower() == "100-continue" and version >= (1, 1)
    host = headers.first.get("host", "")
    # nothing is to be changed or refused in a target that is a path without `#`, in a head that is ASCII alone
    if not (path.startswith("/") and "#" not in path and connection.is_ascii):
        fault = fault or _target_fault(path, headers)
        path = path.encode(errors="backslashreplace").decode()  # may stand in a log
        absolute = ABSOLUTE.match(path)
        if absolute is not None:
            host, path = absolute[1], path[absolute.end() :]
        path = f"/{path.removeprefix('/')}"
    connection.expect(_CHUNKED if head.chunked else _SIZED, length or 0)
    has_body = not connection.has_arrived
    return ClientRequest(method, path, headers, host, peer, scheme, version, length, has_body, connection, fault)


def _length(digits: str) -> int:
    """The number of a `Content-Length`, of which the parser accepts digits alone; one too large stays too large."""
    return int(digits) if len(digits) <= MAX_DIGITS else MAX_CONTENT_LENGTH + 1


def _framing_fault(
    method: str, version: tuple[int, int], headers: Headers, content_length: int | None
) -> GatewayError | None:
    """Why it is not certain where the body of a request ends; None if it is.

    aiohttp's parser lets such requests pass, but a backend or a proxy before the gateway may read them differently.
    """
    if version not in ((1, 0), (1, 1)):
        return _fault(f"HTTP/{version[0]}.{version[1]} is not supported, only 1.0 and 1.1", status=505)
    if "transfer-encoding" in headers.first:
        codings = headers.all("transfer-encoding")
        if [coding.lower() for coding in codings] != ["chunked"]:
            quoted = ", ".join(codings).encode(errors="replace").decode()[:64]
            return _fault(f"Transfer-Encoding: only 'chunked' is supported, got {quoted!r}", status=501)
        if content_length is not None:  # RFC 9112 section 6.3: an attempt at request smuggling
            return _fault("Content-Length and Transfer-Encoding exclude each other")
        if version == (1, 0):  # RFC 9112 section 6.1: its framing is to be treated as faulty
            return _fault("HTTP/1.0 has no Transfer-Encoding")
    if content_length is not None and content_length > MAX_CONTENT_LENGTH:
        return _fault(f"Content-Length {content_length} is too large, at most {MAX_CONTENT_LENGTH} is possible")
    return _fault("CONNECT is not supported: this is no forward proxy") if method == "CONNECT" else None


def _target_fault(target: str, headers: Headers) -> GatewayError | None:
    """Why a request for *target*, as the client wrote it, with *headers* must be refused; None if it need not."""
    if not target.startswith("/") and ABSOLUTE.match(target) is None:
        quoted = target.encode(errors="replace").decode()[:64]
        return _fault(f"the target of a request must be a path or an http URL, got {quoted!r}")
    if "#" in target:
        return _fault("'#' cannot stand in the target of a request")
    return find_encoding_fault(target, headers)


def find_encoding_fault(target: str, headers: Headers) -> GatewayError | None:
    """The error for a header value or target that is not UTF-8; None if all are."""
    for name, value in headers.pairs:
        if _UNDECODABLE.search(value):
            return _fault(f"header {name[:64]!r} holds bytes that are not UTF-8")
    if _UNDECODABLE.search(target):
        return _fault("the target of the request holds bytes that are not UTF-8")
    return None


def _fault(message: str, status: int | None = None) -> GatewayError:
    return GatewayError(ErrorKind.MALFORMED_REQUEST, message, status=status)


def request_id(headers: Headers) -> str:
    """The client's `X-Request-Id` if it can stand in a log line and a header; otherwise a new one."""
    given = headers.first.get("x-request-id", "")
    return given if 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable() else new_request_id()


def new_request_id() -> str:
    """32 random hexadecimal digits. They name a request and are no secret."""
    return random.getrandbits(128).to_bytes(16).hex()
