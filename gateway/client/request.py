"""One request of a client as a value of our own, and the connection that it came on.

Here: what the rest of the gateway knows of a client's request. Not here: aiohttp, which only `server` knows, and
what is read from the connection (`body`) or written to it (`reply`).
"""

import random
from dataclasses import dataclass
from typing import Protocol

from gateway.headers import Headers

MAX_REQUEST_ID = 128
"""The longest `X-Request-Id` of a client that is kept, in characters."""


class Connection(Protocol):
    """What `ClientBody` and `Reply` need of a client's connection, for the time of one request."""

    keeps_alive: bool
    """Whether the connection serves another request after this one. `Reply` sets it to False when it says so."""
    has_begun: bool
    """Whether the head of a reply was written."""

    async def read(self) -> bytes:
        """What has arrived of the body; waits if that is nothing; empty at the end.

        Raises `GatewayError` (MALFORMED_REQUEST) for a body that breaks HTTP, `ConnectionError` if the client left.
        """

    def read_arrived(self) -> bytes:
        """What has arrived of the body, without waiting, possibly nothing. Raises as `read` does."""

    @property
    def has_arrived(self) -> bool:
        """Whether the body has arrived to its end (it need not be read yet)."""

    @property
    def is_read(self) -> bool:
        """Whether the body has arrived to its end and everything was read."""

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write to the client. Raises `ConnectionResetError` when the client left."""

    async def drain(self) -> None:
        """Wait while too much waits to be sent. Raises `ConnectionError` when the client left."""

    def cut(self) -> None:
        """End the connection with a reset, so that the client sees that its reply is incomplete."""


@dataclass(slots=True, eq=False)
class ClientRequest:
    """One request of a client; its body is read by `ClientBody`."""

    method: str
    path: str
    """Raw path and query in origin form, as the client wrote them: `/v2/models/m/infer?a=b`. An absolute-form target
    (`http://host/path`) is reduced to this."""
    headers: Headers
    host: str
    """`Host`, or the authority of an absolute-form target, which replaces it (RFC 9112 section 3.2.2)."""
    peer: str
    """The client's address, or `unknown`."""
    scheme: str
    version: tuple[int, int]
    content_length: int | None
    """None if the client did not say, which with `has_body` means a chunked body."""
    has_body: bool
    """Whether there is a body of at least one byte, or a chunked one."""
    connection: Connection

    @property
    def is_chunked(self) -> bool:
        """Whether the body comes in chunks."""
        return "transfer-encoding" in self.headers


def request_id(headers: Headers) -> str:
    """The client's `X-Request-Id` if it can stand in a log line and a header; otherwise a new one."""
    given = headers.get("x-request-id")
    return given if 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable() else new_request_id()


def new_request_id() -> str:
    """32 random hexadecimal digits. They name a request and are no secret."""
    return f"{random.getrandbits(128):032x}"
