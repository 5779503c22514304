"""A client's request while it arrives and is served, with limited access to its connection: read the body, and reply.

Not here: when the connection is read, and bytes behind the request (`connection`); how a message is cut (`http1`).
"""

import asyncio
from typing import TYPE_CHECKING

from gateway.client.peers import NOBODY, Outgoing, client_left
from gateway.errors import ErrorKind, GatewayError
from gateway.http1 import Heads, Incoming, MalformedError, Phase
from gateway.policy.slowness import Upload
from gateway.waiting import Waiter, wake_soon

if TYPE_CHECKING:
    from gateway.client.connection import ClientConnection

DROP_BYTES = 256 * 1024
DROP_S = 1.0
"""How much is dropped of a body that nobody has read, and for how long, so that the client can see the reply."""


class Served(Incoming):
    """A request with its connection. When the request is over (`leave`), it cannot touch the connection any more."""

    keeps_alive = False
    """Whether the connection serves another request after this one; `Reply` may set it to False."""
    is_expecting = False
    """Whether the client waits for `100 Continue` before it sends its body."""
    waiter: Waiter | None = None
    """The waiter of `read_more`, while it waits for bytes."""
    _failure: Exception | None = None

    def __init__(self, client: "ClientConnection", heads: Heads) -> None:
        super().__init__(heads)
        self._client: ClientConnection | None = client
        self.out: Outgoing = client
        """Where the reply is written. Must not be kept elsewhere: `leave` replaces it by `NOBODY`."""
        self.upload = Upload()
        """How fast the body comes."""

    def leave(self) -> None:
        """End the request's access to its connection."""
        if self.unread_bytes:
            self.drop()
        self._client = None
        self.out = NOBODY

    def fail(self, error: Exception) -> None:
        """Let the current read, or the next one, raise *error*; no other request may follow on the connection."""
        self._failure = error
        self.keeps_alive = False
        wake_soon(self.waiter)

    @property
    def is_left_over(self) -> bool:
        """Whether so much of the body has not come that the connection cannot serve another request."""
        return not self.has_arrived and (self.is_expecting or self.phase is not Phase.SIZED or self.left > DROP_BYTES)

    async def read_more(self) -> bytes:
        """The bytes of the body that have arrived; waits if there are none. Empty at the end.

        A client that waits for `100 Continue` gets it when its bytes are first waited for.
        Raises `GatewayError`, MALFORMED_REQUEST for a body that breaks HTTP and SLOW_CLIENT for one that comes too
        slowly (`limits.body_timeout`); `ConnectionError` if the client left.
        """
        while True:
            if (chunk := self.read_arrived()) or self.is_read:
                return chunk
            if not self.unread_bytes:
                await self._wait_for_more()

    def read_arrived(self) -> bytes:
        """The bytes of the body that have arrived, maybe none; does not wait. Raises as `read_more` does."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        client = self._client
        if client is None:
            raise client_left()
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
