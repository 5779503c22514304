"""All connections of clients together: their number, their limits, and refusals of bytes that are no request.

Not here: one connection (`connection`), and how connections are accepted (`listeners`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.client.reply import Reply
from gateway.client.request import ClientRequest, Peer, new_request_id
from gateway.client.served import Served
from gateway.client.watching import Connection, GoneCheck, Watcher
from gateway.config import Limits
from gateway.errors import GatewayError
from gateway.exchange import Exchange
from gateway.headers import Headers
from gateway.policy.quiet import OncePerInterval

CUT_S = 0.05
"""How long `close` waits for handlers that it has cancelled."""

DEFAULT_LIMITS = Limits()

Handler = Callable[[ClientRequest], Awaitable[None]]
"""Serves one request: replies to it with a `Reply` and returns."""

log = logging.getLogger("gateway")


def _not_counted(n_bytes: int) -> None:
    pass


class Server:
    """The state that all connections of a process share."""

    def __init__(
        self,
        handler: Handler,
        record: Callable[[Exchange], None],
        limits: Limits = DEFAULT_LIMITS,
        hold_unread: Callable[[int], None] = _not_counted,
    ) -> None:
        """Must be made on a running event loop.

        *record* takes the exchanges of bad HTTP, which never became a request. *hold_unread* takes the change of how
        many unread bytes all connections hold beside the reservations of requests.
        """
        self.handler = handler
        self.hold_unread = hold_unread
        self._record = record
        self.limits = limits
        """The current limits. A reload replaces them as a whole, also for open connections."""
        self.loop = asyncio.get_running_loop()
        self.refused_connections = 0
        """Connections that were closed as soon as they were accepted, since the start."""
        self.slow_connections = dict.fromkeys(("header_timeout", "body_timeout", "client_idle"), 0)
        """Connections that were ended because their clients were too slow, by the limit's name, since the start."""
        self.watcher = Watcher(lambda: self.limits)
        self.gone_check = GoneCheck()
        """Watches the connections that are not read at the moment."""
        self._warnings = OncePerInterval()
        self._admitted: set[Connection] = set()
        self._open: set[Connection] = set()

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._open)

    @property
    def open_connections(self) -> int:
        """How many connections of clients are open or being opened."""
        return len(self._admitted)

    def admit(self, kind: "Callable[[Server], Connection]") -> Connection | None:
        """A new connection of *kind*, which is not open yet; None if there are too many.

        Refusals are counted, and logged once a minute.
        """
        if self.open_connections < self.limits.connections:
            connection = kind(self)
            self._admitted.add(connection)
            return connection
        self.refused_connections += 1
        if self._warnings.allows("", self.loop.time()):
            log.warning(
                "limits.connections (%d) is reached: new connections are closed, %d so far",
                self.limits.connections,
                self.refused_connections,
            )
        return None

    def opened(self, connection: Connection) -> None:
        """Count *connection* as open, and watch it."""
        self._open.add(connection)
        self.watcher.watch(connection)

    def closed(self, connection: Connection) -> None:
        """Forget *connection*, which has ended or was never opened, and free its slot; a second call does nothing."""
        self._admitted.discard(connection)
        self._open.discard(connection)
        self.watcher.unwatch(connection)
        self.gone_check.unwatch(connection)
        self.hold_unread(-connection.held_bytes)
        connection.held_bytes = 0

    def n_unfinished_heads(self) -> int:
        """How many connections have received a part of a head, and not its end."""
        return sum(each.is_in_head for each in self._open)

    def n_silent(self) -> int:
        """How many connections have received nothing since they were accepted."""
        return sum(each.is_silent for each in self._open)

    async def refuse(self, peer: Peer, served: Served, method: str, fault: GatewayError) -> None:
        """Reply with *fault* to bytes that are no request, or after a handler has failed, and record it."""
        exchange = Exchange(peer.address, method, "", new_request_id(), self.loop.time())
        served.keeps_alive = False
        request = ClientRequest(method, "", Headers(), "", peer.address, peer.scheme, (1, 1), None, False, served)
        reply = Reply(request, exchange, body=None, is_draining=lambda: True)
        try:
            with suppress(ConnectionError):  # the client has left
                await reply.error(fault)
        finally:
            self._record(exchange)

    def drain(self) -> None:
        """Tell clients whose protocol needs it (HTTP/2) to send no more requests."""
        for connection in self.connections:
            connection.drain()

    async def close(self) -> None:
        """End all connections; requests that are still being served are cut off after `CUT_S`."""
        connections = self.connections
        for connection in connections:
            connection.end()
        tasks = [task for connection in connections if (task := connection.cancel()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_S)
        for connection in connections:
            if connection.transport is not None:
                connection.transport.abort()
