"""All connections of clients together: their number, their limits, and what never became a request.

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
"""How long handlers have to notice that they are cut off."""

DEFAULT_LIMITS = Limits()

Handler = Callable[[ClientRequest], Awaitable[None]]
"""Serves one request: replies to it with a `Reply` and returns."""

log = logging.getLogger("gateway")


def _not_counted(n_bytes: int) -> None:
    pass


class Server:
    """What the connections of a process share."""

    def __init__(
        self,
        handler: Handler,
        record: Callable[[Exchange], None],
        limits: Limits = DEFAULT_LIMITS,
        hold_unread: Callable[[int], None] = _not_counted,
    ) -> None:
        """Must be made on a running event loop.

        *record* is given the exchanges of what never became a request: bad HTTP. *hold_unread* is told how many bytes
        more, or less, connections hold outside of what requests have reserved.
        """
        self.handler = handler
        self.hold_unread = hold_unread
        self._record = record
        self.limits = limits
        """The limits that hold now: a reload replaces them as a whole, for connections that are open, too."""
        self.loop = asyncio.get_running_loop()
        self.open_connections = 0
        """Connections of clients that are open now, also those that are still being opened."""
        self.refused_connections = 0
        """Connections that were closed as soon as they were accepted, since the start."""
        self.slow_connections = dict.fromkeys(("header_timeout", "body_timeout", "client_idle"), 0)
        """Connections that were ended because their clients were too slow, by the limit's name, since the start."""
        self.watcher = Watcher(lambda: self.limits)
        self.gone_check = GoneCheck()
        """Of the connections that are not read at the moment."""
        self._warnings = OncePerInterval()
        self._admitted: set[Connection] = set()
        self._open: set[Connection] = set()

    @property
    def connections(self) -> list[Connection]:
        """Those that are open."""
        return list(self._open)

    def admit(self) -> bool:
        """Take a slot for a new connection; False if there is none, which is counted and logged once a minute."""
        if self.open_connections < self.limits.connections:
            self.open_connections += 1
            return True
        self.refused_connections += 1
        if self._warnings.allows("", self.loop.time()):
            log.warning(
                "limits.connections (%d) is reached: new connections are closed, %d so far",
                self.limits.connections,
                self.refused_connections,
            )
        return False

    def new_connection(self, kind: "Callable[[Server], Connection]") -> Connection:
        """A connection of *kind* that has a slot that `admit` has taken, and is still to be opened."""
        connection = kind(self)
        self._admitted.add(connection)
        return connection

    def opened(self, connection: Connection) -> None:
        """*connection* is open."""
        self._open.add(connection)
        self.watcher.watch(connection)

    def closed(self, connection: Connection) -> None:
        """*connection* has ended, or was never opened; only the first time counts."""
        if connection in self._admitted:
            self._admitted.discard(connection)
            self.open_connections -= 1
        self._open.discard(connection)
        self.watcher.unwatch(connection)
        self.gone_check.unwatch(connection)
        self.hold_unread(-connection.held_bytes)
        connection.held_bytes = 0

    def n_unfinished_heads(self) -> int:
        """Connections on which the beginning of a request has come, and nothing is served yet."""
        return sum(each.is_in_head for each in self._open)

    def n_silent(self) -> int:
        """Connections on which nothing has come since they were accepted."""
        return sum(each.is_silent for each in self._open)

    async def refuse(self, peer: Peer, served: Served, method: str, fault: GatewayError) -> None:
        """Reply to what never became a request, or whose handler failed, and record it."""
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
        """Tell those clients whose connections would bring requests for as long as they are open."""
        for connection in self.connections:
            connection.drain()

    async def close(self) -> None:
        """End all connections: idle ones at once; what is still served is cut off."""
        connections = self.connections
        for connection in connections:
            connection.end()
        tasks = [task for connection in connections if (task := connection.cancel()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_S)
        for connection in connections:
            if connection.transport is not None:
                connection.transport.abort()
