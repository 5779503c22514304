"""What connections of clients have in common, whatever their protocol.

Not here: when connections are looked at (`server`), and when a client is too slow (`policy.slowness`).
"""

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from gateway.certificates import HTTP1
from gateway.client.outgoing import Outgoing
from gateway.client.request import Peer, peer_of
from gateway.config import Limits

if TYPE_CHECKING:
    from gateway.client.server import Server

UNCOUNTED_BYTES = 4 * 1024
"""A connection that holds no more than this is not counted: the head of an ordinary request, and a small body."""


class Connection(asyncio.Protocol, ABC):
    """A connection as the server sees it, of any protocol."""

    protocol = HTTP1
    """The protocol above TLS, by its name in the handshake."""

    def __init__(self, owner: "Server") -> None:
        """Must be made on a running event loop."""
        self.owner = owner
        self.transport: asyncio.Transport | None = None
        """The transport; None before the connection is open, and when it has ended."""
        self.peer = Peer("unknown", "http")
        self.out = Outgoing()
        self.held_bytes = 0
        """How many unserved bytes the owner has counted for this connection; 0 for nearly all connections."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio; with TLS this is called after the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.out.open(transport)
        self.peer = peer_of(transport)
        self.owner.opened(self)

    def pause_writing(self) -> None:
        """See asyncio."""
        self.out.hold_back()

    def resume_writing(self) -> None:
        """See asyncio."""
        self.out.go_on()

    def pause_reading(self) -> None:
        """Stop reading for now. asyncio then does not notice when the client leaves, but the next look does."""
        if self.transport is not None:
            self.transport.pause_reading()

    def hold(self, n_bytes: int) -> None:
        """Tell the owner that the connection holds *n_bytes* that were not served yet."""
        if n_bytes <= UNCOUNTED_BYTES:
            n_bytes = 0
        if n_bytes != self.held_bytes and self.transport is not None:
            self.owner.hold_unread(n_bytes - self.held_bytes)
            self.held_bytes = n_bytes

    def time(self) -> float:
        """The clock by which clients are judged, see `Server.time`."""
        return self.owner.time()

    @property
    @abstractmethod
    def is_in_head(self) -> bool:
        """Whether a part of a request's head has come, which is not served yet."""

    @property
    @abstractmethod
    def is_silent(self) -> bool:
        """Whether nothing has come yet."""

    @abstractmethod
    def look(self, now_s: float, limits: Limits) -> None:
        """End the connection if the client is too slow for *limits* (docs/configuration.md, "Limits")."""

    def drain(self) -> None:
        """Tell the client to send no more requests, if the protocol has a message for it."""

    @abstractmethod
    def cancel(self) -> "asyncio.Future[Any] | None":
        """Cancel all current requests, and close; the future is done when they have ended. None if there are none."""
