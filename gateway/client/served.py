"""A client's request while it comes and is served, and what it may do with its connection: read its body, and reply.

Not here: when the connection is read, and what comes behind the request (`connection`); how it is cut (`http1`).
"""

import asyncio
from typing import TYPE_CHECKING

from gateway.client.outgoing import NOBODY, Outgoing, client_left
from gateway.errors import ErrorKind, GatewayError
from gateway.http1 import Heads, Incoming, MalformedError, Phase
from gateway.pacing import Pacer
from gateway.policy.slowness import Upload
from gateway.waiting import Waiter, wake_soon

if TYPE_CHECKING:
    from gateway.client.connection import ClientConnection


class Served(Incoming):
    """A request, with its connection for the time in which it is served: afterwards it can no longer touch that."""

    __slots__ = (
        "_client",
        "_failure",
        "_pacer",
        "_upload",
        "is_answered",
        "is_broken",
        "keeps_alive",
        "out",
        "waiter",
    )

    def __init__(self, client: "ClientConnection", heads: Heads) -> None:
        super().__init__(heads)
        self._client: ClientConnection | None = client
        self.out: Outgoing = client.out
        """Where the reply is written. Not to be kept: it is another one when the request is over."""
        self.keeps_alive = False
        """Whether the connection serves another request after this one. `Reply` sets it to False when it says so."""
        self.is_answered = False
        """Whether the head of a reply was written."""
        self.is_broken = False
        """Whether the body is malformed, so that nobody knows where it ends."""
        self._failure: Exception | None = None
        self._pacer: Pacer | None = None  # of a chunked body
        self._upload = Upload()
        self.waiter: Waiter | None = None
        """Of `read_more`, while it waits for more to come."""

    def leave(self) -> None:
        """The request is over."""
        if self.unread_bytes:
            self.drop()
        self._client = None
        self.out = NOBODY

    def fail(self, error: Exception) -> None:
        """Let the read that waits at the moment, or else the next one, raise *error*; no other request may follow."""
        self._failure = error
        self.keeps_alive = False
        wake_soon(self.waiter)

    async def read_more(self) -> bytes:
        """What has arrived of the body; waits if that is nothing; empty at the end.

        Raises `GatewayError`, MALFORMED_REQUEST for a body that breaks HTTP and SLOW_CLIENT for one that comes too
        slowly (`limits.body_timeout`); `ConnectionError` if the client left.
        """
        while True:
            if self.phase is Phase.CHUNKED and self.unread_bytes:
                # decoding is work, and many tiny chunks are much of it
                if self._pacer is None:
                    self._pacer = Pacer()
                await self._pacer.breathe()
            if (chunk := self.read_arrived()) or self.is_read:
                return chunk
            if not self.unread_bytes:
                await self._wait_for_more()

    def read_arrived(self) -> bytes:
        """What has arrived of the body, without waiting, possibly nothing. Raises as `read_more` does."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        client = self._client
        if client is None:
            raise client_left()
        try:
            chunk = self.read()
        except MalformedError as error:
            self.is_broken = True
            self.fail(GatewayError(ErrorKind.MALFORMED_REQUEST, f"malformed HTTP body: {error}"))
            return self.read_arrived()
        self._upload.received_bytes += len(chunk)
        if client.held_bytes:  # else nothing is counted, and nothing is paused
            client.count()
            client.read_on()
        return chunk

    async def _wait_for_more(self) -> None:
        client = self._client
        assert client is not None
        self._upload.begin_waiting(client.time())
        self.waiter = Waiter(asyncio.get_running_loop())
        try:
            await self.waiter
        finally:
            self.waiter = None
            self._upload.end_waiting(client.time())

    @property
    def is_awaited(self) -> bool:
        """Whether more of the body is waited for at the moment."""
        return self._upload.is_awaited

    def fail_if_slow(self, now_s: float, limit_s: float) -> bool:
        """Let the read that waits at the moment raise SLOW_CLIENT if the client takes too long; whether it does.

        Only the time in which the gateway waits for the client counts, not that in which it does not read.
        """
        words = self._upload.find_slowness(now_s, limit_s)
        if words is None:
            return False
        words = f"the client sent its body too slowly: {words} (limits.body_timeout)"
        self.fail(GatewayError(ErrorKind.SLOW_CLIENT, words))
        return True
