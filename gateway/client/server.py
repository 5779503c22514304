"""All connections of clients together: their number, their limits, the looks at slow clients and at those that left."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

from gateway import tls
from gateway.certificates import TlsContext
from gateway.client.peers import Connection
from gateway.client.request import ClientRequest
from gateway.config import Limits
from gateway.policy.quiet import OncePerInterval
from gateway.sockets import hung_up

CUT_S = 0.05
"""How long `close` waits for handlers that it has cancelled."""

LOOK_S = 1.0
"""How often each connection is looked at. A limit takes effect this much late at most, or a quarter of the limit."""

LOOK_AT_ONCE = 128
"""How many connections are looked at before others run: 0.3 ms at most, since each look costs 0.3 to 2.3 us."""

DEFAULT_LIMITS = Limits()

Handler = Callable[[ClientRequest], Awaitable[None]]
"""Serves one request, also one with a fault: replies to it with a `Reply` and returns."""

log = logging.getLogger("gateway")


class Server:
    """The state that all connections of a process share."""

    def __init__(
        self,
        handler: Handler,
        limits: Limits = DEFAULT_LIMITS,
        hold_unread: Callable[[int], None] = lambda n_bytes: None,
        *,
        tls: TlsContext | None = None,
    ) -> None:
        """Must be made on a running event loop.

        *hold_unread* takes the change of how many unread bytes connections hold beside the reservations of requests.
        """
        self.handler = handler
        self.hold_unread = hold_unread
        self.limits = limits
        """The current limits. A reload replaces them as a whole, also for open connections."""
        self.tls = tls
        """The certificates for new connections; None: they have no TLS."""
        self.loop = asyncio.get_running_loop()
        self.refused_connections = 0
        """Connections that were closed as soon as they were accepted, since the start."""
        self.slow_connections = dict.fromkeys(("header_timeout", "body_timeout", "client_idle"), 0)
        """Connections that were ended because their clients were too slow, by the limit's name, since the start."""
        self._warnings = OncePerInterval()
        self.warnings_of_protocols = OncePerInterval()
        self._opening: dict[Connection, asyncio.Task[None]] = {}
        """The connections that were accepted and are not open yet: with TLS, their handshake goes on."""
        self._open: set[Connection] = set()
        self._watching = self.loop.create_task(self._watch())

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._open)

    @property
    def open_connections(self) -> int:
        """How many connections of clients are open or being opened."""
        return len(self._open) + len(self._opening)

    def take(self, client: socket.socket, kind: "type[Connection]") -> None:
        """Open a connection of *kind* on the accepted socket *client*, or close it if there are too many.

        Refusals are counted, and logged once a minute.
        """
        if self.open_connections < self.limits.connections:
            client.setblocking(False)
            connection = kind(self)
            self._opening[connection] = self.loop.create_task(self._open_on(client, connection))
            return
        client.close()
        self.refused_connections += 1
        if self._warnings.allows(self.loop.time()):
            log.warning(
                "limits.connections (%d) is reached: new connections are closed, %d so far",
                self.limits.connections,
                self.refused_connections,
            )

    async def _open_on(self, client: socket.socket, connection: Connection) -> None:
        """Open *connection* on the accepted socket *client*: with TLS, when its handshake is done."""
        try:
            if self.tls is None:
                await self.loop.connect_accepted_socket(lambda: connection, client)
            else:
                context = self.tls.contexts[connection.protocol]
                await tls.accept(client, connection, context, self.limits.header_timeout)
        except OSError as error:
            if isinstance(error, TimeoutError):
                self.slow_connections["header_timeout"] += 1
            log.debug("a connection ended before it was open: %s", str(error) or type(error).__name__)
        finally:
            if connection in self._opening:
                client.close()
                self.closed(connection)

    def opened(self, connection: Connection) -> None:
        """Count *connection* as open, and look at it from now on."""
        self._opening.pop(connection, None)
        self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        """Forget *connection*, which has ended or was never opened, and free its slot; a second call does nothing."""
        self._opening.pop(connection, None)
        self._open.discard(connection)
        self.hold_unread(-connection.held_bytes)
        connection.held_bytes = 0

    async def _watch(self) -> None:
        """Look at every connection once per `LOOK_S`, without a task or timer of its own for any of them.

        A limit of seconds needs no more than a look per second, and requests cost nothing here. A timer that is set and
        cancelled for each phase of each request would cost more than the codec takes for a small tensor.
        """
        while True:
            limits = self.limits
            shortest_s = min(limits.header_timeout, limits.body_timeout, limits.client_idle, limits.client_keep_alive)
            pause_s = min(LOOK_S, shortest_s / 4)
            due_s = self.loop.time() + pause_s
            await asyncio.sleep(pause_s)
            if self.loop.time() > due_s + pause_s:  # the loop stood still, and bytes of clients wait in the kernel
                continue
            for number, connection in enumerate(self.connections, 1):
                self._look_at(connection)
                if number % LOOK_AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _look_at(self, connection: Connection) -> None:
        """End *connection* if its client is too slow, or has left while it is not read (protocol 10, case 25).

        asyncio does not watch a connection that is not read. Without this look the call to the backend would go on
        until it ends or times out.
        """
        transport = connection.transport
        if transport is None:
            return
        try:
            if not (transport.is_reading() or transport.is_closing()) and hung_up(transport):
                transport.abort()  # which cancels the handler
            elif connection.is_read_too_slowly(self.loop.time(), self.limits.client_idle):
                self.slow_connections["client_idle"] += 1
                connection.reset()
            else:
                connection.look(self.loop.time(), self.limits)
        except Exception:  # must not end the looks at all other connections
            log.exception("a connection could not be checked for a slow client")

    def n_unfinished_heads(self) -> int:
        """How many connections have received a part of a head, and not its end."""
        return sum(each.is_in_head for each in self._open)

    def n_silent(self) -> int:
        """How many connections have received nothing since they were accepted."""
        return len(self._opening) + sum(each.is_silent for each in self._open)

    def drain(self) -> None:
        """Tell clients whose protocol needs it (HTTP/2) to send no more requests."""
        for connection in self.connections:
            connection.end_soon()

    async def close(self) -> None:
        """End all connections; requests that are still being served are cut off after `CUT_S`."""
        self._watching.cancel()
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.sleep(0)
        connections = self.connections
        self.drain()
        tasks = [task for connection in connections if (task := connection.cancel()) is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_S)
        for connection in connections:
            if connection.transport is not None:
                connection.transport.abort()
