"""What one request may do with its connection: read its body and write its reply, as long as it lasts.

Not here: when the connection is read, and what comes behind the request (`connection`).
"""

import asyncio
from typing import TYPE_CHECKING

from gateway.client.outgoing import client_left
from gateway.errors import ErrorKind, GatewayError
from gateway.http1 import Incoming, MalformedError, Phase
from gateway.pacing import Pacer
from gateway.policy.slowness import find_slowness

if TYPE_CHECKING:
    from gateway.client.connection import ClientConnection


class Served:
    """A connection for the time of one request. Afterwards its holder can no longer touch the connection."""

    __slots__ = (
        "_client",
        "_failure",
        "_pacer",
        "_received_bytes",
        "_waited_s",
        "_waiter",
        "_waits_since_s",
        "has_begun",
        "is_broken",
        "keeps_alive",
        "message",
    )

    def __init__(self, client: "ClientConnection", message: Incoming) -> None:
        self._client: ClientConnection | None = client
        self.message = message
        self.keeps_alive = False
        """Whether the connection serves another request after this one. `Reply` sets it to False when it says so."""
        self.has_begun = False
        """Whether the head of a reply was written."""
        self.is_broken = False
        """Whether the body is malformed, so that nobody knows where it ends."""
        self._failure: Exception | None = None
        self._pacer: Pacer | None = None  # of a chunked body
        self._received_bytes = 0
        self._waiter: asyncio.Future[None] | None = None  # of `read`
        self._waited_s = 0.0  # by `read`, in all that have ended
        self._waits_since_s: float | None = None

    def end(self) -> None:
        """The request is over."""
        message = self.message
        if message.unread_bytes:
            message.drop()
        self._client = None

    def wake(self) -> None:
        """More of the body has come."""
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Let the `read` that waits at the moment, or else the next one, raise *error*; no other request may follow."""
        self._failure = error
        self.keeps_alive = False
        self.wake()

    async def read(self) -> bytes:
        """What has arrived of the body; waits if that is nothing; empty at the end.

        Raises `GatewayError`, MALFORMED_REQUEST for a body that breaks HTTP and SLOW_CLIENT for one that comes too
        slowly (`limits.body_timeout`); `ConnectionError` if the client left.
        """
        message = self.message
        while True:
            if message.phase is Phase.CHUNKED and message.unread_bytes:
                # decoding is work, and many tiny chunks are much of it
                if self._pacer is None:
                    self._pacer = Pacer()
                await self._pacer.breathe()
            if (chunk := self.read_arrived()) or message.is_read:
                return chunk
            if not message.unread_bytes:
                await self._wait_for_more()

    def read_arrived(self) -> bytes:
        """What has arrived of the body, without waiting, possibly nothing. Raises as `read` does."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        client = self._client
        if client is None:
            raise client_left()
        try:
            chunk = self.message.read()
        except MalformedError as error:
            self.is_broken = True
            self.fail(GatewayError(ErrorKind.MALFORMED_REQUEST, f"malformed HTTP body: {error}"))
            return self.read_arrived()
        self._received_bytes += len(chunk)
        if client.arriving.held_bytes:  # else nothing is counted, and nothing is paused
            client.arriving.body_was_read()
        return chunk

    async def _wait_for_more(self) -> None:
        client = self._client
        assert client is not None
        now_s = client.time
        self._waits_since_s = since_s = now_s()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = self._waits_since_s = None
            self._waited_s += now_s() - since_s

    @property
    def is_awaited(self) -> bool:
        """Whether more of the body is waited for at the moment."""
        return self._waits_since_s is not None

    def fail_if_slow(self, now_s: float, limit_s: float) -> bool:
        """Let the `read` that waits at the moment raise SLOW_CLIENT if the client takes too long; whether it does.

        Only the time in which the gateway waits for the client counts, not that in which it does not read.
        """
        if self._waits_since_s is None:
            return False
        silent_s = now_s - self._waits_since_s
        words = find_slowness(self._received_bytes, self._waited_s + silent_s, silent_s, limit_s)
        if words is None:
            return False
        words = f"the client sent its body too slowly: {words} (limits.body_timeout)"
        self.fail(GatewayError(ErrorKind.SLOW_CLIENT, words))
        return True

    @property
    def has_arrived(self) -> bool:
        """Whether the body has arrived to its end (it need not be read yet)."""
        return self.message.phase is Phase.DONE

    @property
    def is_read(self) -> bool:
        """Whether the body has arrived to its end and everything was read."""
        return self.message.is_read

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed or about to be."""
        return self._client is None or self._client.out.is_closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write to the client. Raises `ConnectionResetError` when the client left."""
        if self._client is None:
            raise client_left()
        self._client.out.write(data)

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be sent that nothing more should be written before `drain`."""
        return self._client is not None and self._client.out.is_behind

    async def drain(self) -> None:
        """Wait while too much waits to be sent. Raises `ConnectionError` when the client left."""
        if self._client is not None:
            await self._client.out.drain()

    @property
    def cut_reason(self) -> str:
        """Why the gateway has cut the connection of a client that does not read; empty if it has not."""
        return "" if self._client is None else self._client.out.cut_reason

    def cut(self) -> None:
        """End the connection with a reset, so that the client sees that its reply is incomplete."""
        if self._client is not None:
            self._client.reset()
