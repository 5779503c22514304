"""A client's connection: the bytes that arrive, the request that is served, and the end.

`ClientConnection` is always in one of the states of `State`. This table is all of its transitions:

    state     what comes                         next state
    IDLE      the first bytes of a head          HEAD, or SERVING if the head is complete
    HEAD      the end of the head                SERVING
    HEAD      what is no head, or too large      SERVING: the request is its refusal, and all that follows its body
    SERVING   the body                           SERVING: it waits until the request's task reads it
    SERVING   bytes behind the body              SERVING: they wait unparsed, within bounds
    SERVING   the reply is complete              IDLE, or CLOSING if no other request may follow,
                                                 or DROPPING if the body has not come to its end
    DROPPING  the rest of the body               DROPPING, within bounds; then as behind SERVING
    any       the end of the connection          CLOSING: whatever is under way is cancelled

One task serves the requests of a connection, one after the other. A client that only shuts down its sending side counts
as gone, as it does with nginx: on the wire it looks the same as a client that has closed, whose request must not go on
at the backend.
"""

import asyncio
import logging
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING

from gateway.client.peers import UNCOUNTED_BYTES, Connection, client_left
from gateway.client.request import DROP_BYTES, DROP_S, ClientRequest, Served, read_request
from gateway.config import Limits
from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Headers
from gateway.http1 import Heads, HeadTooLargeError, MalformedError, Phase
from gateway.sockets import has_unread, hung_up
from gateway.waiting import Waiter

if TYPE_CHECKING:
    from gateway.client.server import Server

BEHIND_BYTES = 64 * 1024
"""How many bytes behind the current request may wait before nothing more is read from the client."""

UNREAD_BYTES = 256 * 1024
"""How many unread bytes of a body may wait before nothing more is read from the client. One read may bring as many."""

HEAD_TOO_LARGE = 431
UNKNOWN_METHOD = "UNKNOWN"  # the method in the record of bytes that are no HTTP

log = logging.getLogger("gateway")


class State(Enum):
    """What a connection is doing; the table of this module names all transitions."""

    IDLE = auto()
    HEAD = auto()
    SERVING = auto()
    DROPPING = auto()
    CLOSING = auto()


# as globals, because looking up an enum's attribute costs as much as a call
_IDLE, _HEAD, _SERVING, _DROPPING, _CLOSING = State


class ClientConnection(Connection):
    """One connection; see the table of this module."""

    def __init__(self, owner: "Server") -> None:
        """Must be made on a running event loop."""
        super().__init__(owner)
        self.state = _IDLE
        self.serving: Served | None = None
        """The current request, from its first byte to the end of its reply."""
        self._is_first = True  # whether no request has been served yet
        self._heads = Heads(owner.loop, owner.limits.head, is_for_requests=True)
        self._behind = bytearray()  # bytes that have come behind the current request
        self._next: ClientRequest | None = None  # the request that the task serves next
        self._awaited = Waiter(owner.loop)  # ends when `_next` is set, or when bytes of a body were dropped
        self._task: asyncio.Task[None] | None = None
        # when the state became IDLE or HEAD; None: since the last look, and the next look sets the time of that look
        self._since_s: float | None = owner.loop.time()
        self._dropped_bytes = 0  # in the state DROPPING

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `Connection`; one task serves all requests."""
        super().connection_made(transport)
        # the waiting task goes on at once, or with TLS in the next turn of the loop (see `waiting`)
        self._wake = Waiter.wake if self.scheme == "http" else Waiter.wake_soon
        self._task = self.owner.loop.create_task(self._serve())

    # What comes

    def data_received(self, data: bytes) -> None:
        """Take *data* as the state says."""
        if self.state is _IDLE or self.state is _HEAD:
            self._take_head(data)
        elif self.state is _SERVING:
            assert self.serving is not None
            self._take_body(data, self.serving)
            if self.serving.waiter is not None:
                self._wake(self.serving.waiter)
        elif self.state is _DROPPING:
            assert self.serving is not None
            self._take_body(data, self.serving)
            self.serving.drop()
            self._dropped_bytes += len(data)
            self._awaited.wake_soon()

    def _take_head(self, data: bytes) -> None:
        """Parse *data* of a head, and let the task serve the request if the head is complete."""
        request = self.serving
        if request is None:
            if self._heads.max_bytes != self.owner.limits.head:  # a reload has changed it
                self._heads = Heads(self.owner.loop, self.owner.limits.head, is_for_requests=True)
            self.serving = request = Served(self, self._heads)
        try:
            found = request.feed_head(data)
        except MalformedError as error:
            self._refuse(error, request)
            return
        if found is None:
            self.count()
            if self.state is _IDLE and request.has_begun:
                self.state = _HEAD
                if not self._is_first:  # the first head has its time from the connection on
                    self._since_s = self.time()
            return
        head, behind = found
        self._next = read_request(head, self.peer, self.scheme, request)
        self.state = _SERVING
        self._take_body(behind, request)
        self._wake(self._awaited)

    def _take_body(self, data: bytes, request: Served) -> None:
        """Keep *data* for the reader of *request*'s body, and bytes behind the body for the next request."""
        if request.is_expecting and data:  # a client that sends its body does not wait to be told to
            request.is_expecting = False
        self._behind += request.feed_body(data)
        self.count()

    def count(self) -> None:
        """Tell the owner how many bytes that were not served yet this connection holds now, if they count.

        If too many of them wait to be read, nothing more is read from the client.
        """
        n_behind, request = len(self._behind), self.serving
        n_bytes = n_behind if request is None else n_behind + request.head_bytes + request.unread_bytes
        if n_bytes > UNCOUNTED_BYTES or self.held_bytes:
            self.hold(n_bytes)
            if n_behind >= BEHIND_BYTES or (request is not None and request.unread_bytes >= UNREAD_BYTES):
                self.pause_reading()

    def read_on(self) -> None:
        """Go on reading from the client, if reading was paused and there is room again."""
        transport = self.transport
        if transport is None or transport.is_closing() or transport.is_reading() or len(self._behind) >= BEHIND_BYTES:
            return
        if self.serving is None or self.serving.unread_bytes < UNREAD_BYTES:
            transport.resume_reading()

    def _refuse(self, error: MalformedError, served: Served) -> None:
        """Let the task refuse bytes that are no head: all that comes behind them is the body of the request."""
        status = HEAD_TOO_LARGE if isinstance(error, HeadTooLargeError) else None
        words = f"{error} (limits.head)" if status is not None and "bytes" in str(error) else str(error)
        fault = GatewayError(ErrorKind.MALFORMED_REQUEST, words, status=status)
        served.expect(Phase.UNTIL_END)
        self._next = ClientRequest(
            UNKNOWN_METHOD, "", Headers(), "", self.peer, self.scheme, (1, 1), None, True, served, fault
        )
        self.state = _SERVING
        self._awaited.wake_soon()

    # What is served

    async def _serve(self) -> None:
        """Serve the requests of this connection one after the other; its end cancels this task.

        Between two requests nothing of the first is kept in memory.
        """
        owner = self.owner
        try:
            while True:
                await self._awaited
                request, self._next = self._next, None
                assert request is not None
                served = request.connection
                try:
                    await owner.handler(request)
                except ConnectionError:  # the client left
                    served.keeps_alive = False
                finally:
                    served.leave()
                if not served.has_arrived:
                    await self._drop_rest(served)
                if not (served.keeps_alive and served.has_arrived):
                    break
                del request, served
                if self._behind:
                    await asyncio.sleep(0)  # other connections come before the next request of a pipeline
                    if self._has_left():  # nobody would read the replies to further requests
                        break
                self.state, self.serving, self._awaited = _IDLE, None, Waiter(owner.loop)
                self._is_first, self._since_s = False, None
                if self._behind:  # a part of the next request, or all of it
                    behind, self._behind = bytes(self._behind), bytearray()
                    self._take_head(behind)
                if self.held_bytes:
                    self.count()
                    self.read_on()
        except asyncio.CancelledError:
            pass  # not raised again: the task ends here, and would keep the error, which holds the request
        except Exception:
            log.exception("the connection of client %s failed", self.peer)
            self.reset()
        self._close()

    def _has_left(self) -> bool:
        """Whether the client has left. If nothing is read from it at the moment, the kernel is asked."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        return not transport.is_reading() and hung_up(transport)

    async def _drop_rest(self, served: Served) -> None:
        """Drop what the client still sends of a body that nobody reads any more, so that it can see the reply.

        A connection that is closed while bytes wait to be read is reset, which may overtake the reply.
        """
        transport = self.transport
        if served.is_expecting or transport is None or transport.is_closing():
            return
        self.state = _DROPPING
        self._dropped_bytes = 0
        transport.resume_reading()
        if not served.keeps_alive and transport.can_write_eof():
            with suppress(OSError):  # the client has reset the connection, which is read only now
                transport.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(DROP_S):
                while not served.has_arrived and self._dropped_bytes < DROP_BYTES:
                    self._awaited = Waiter(self.owner.loop)
                    await self._awaited

    # The end

    def cancel(self) -> "asyncio.Task[None] | None":
        """Cancel the current request, and return the connection's task, which closes the connection and ends soon."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    def _close(self) -> None:
        """Close the connection once all written bytes are sent."""
        if self.transport is not None and not self.transport.is_closing():
            self.state = _CLOSING
            # with TLS the client's end of the stream would never be noticed behind unread bytes
            self.transport.resume_reading()
            self.transport.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio: the current request and the task are cancelled."""
        self.state = _CLOSING
        super().connection_lost(exc)
        if self.serving is not None:
            self.serving.fail(client_left())
        if self._task is not None:
            self._task.cancel()
            self._task = None

    # Clients that are too slow

    @property
    def is_in_head(self) -> bool:
        """Whether the beginning of a request's head has come, and its end has not."""
        return self.state is _HEAD

    @property
    def is_silent(self) -> bool:
        """Whether no byte has come yet."""
        return self._is_first and self.state is _IDLE

    def look(self, now_s: float, limits: Limits) -> None:
        """End the connection if the client is too slow for *limits* (docs/configuration.md, "Limits").

        What is seen here is at most one look old, so a limit takes effect a little late, and never early.
        """
        transport = self.transport
        if transport is None:
            return
        if self._since_s is None:
            self._since_s = now_s
        if transport.is_closing() or self.state is _DROPPING:
            return
        if self.state is not _SERVING:
            self._end_if_late(transport, now_s - self._since_s, limits)
        elif self.serving is not None and (words := self.serving.upload.find_slowness(now_s, limits.body_timeout)):
            self.owner.slow_connections["body_timeout"] += 1
            words = f"the client sent its body too slowly: {words} (limits.body_timeout)"
            self.serving.fail(GatewayError(ErrorKind.SLOW_CLIENT, words))

    def _end_if_late(self, transport: asyncio.Transport, waited_s: float, limits: Limits) -> None:
        """End the connection if a head has not come for *waited_s*; bytes that wait in the kernel are read first."""
        is_due = self.state is _HEAD or self._is_first  # else another request is welcome, and nothing more
        limit_s = limits.header_timeout if is_due else limits.client_keep_alive
        if self.serving is not None:  # at least blank lines have come, which may be the beginning of a head
            limit_s = min(limit_s, limits.header_timeout)
        if waited_s < limit_s or (self.state is _IDLE and has_unread(transport)):
            return
        if is_due:
            self.owner.slow_connections["header_timeout"] += 1
            transport.abort()
        else:
            self._close()
