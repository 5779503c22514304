"""The reading half of a client's connection: the request that comes, what is behind it, and when nothing more is read.

Not here: what becomes of a request (`connection`), and the writing half (`outgoing`).
"""

import asyncio
from typing import TYPE_CHECKING

from gateway.http1 import Heads, Incoming

if TYPE_CHECKING:
    from gateway.client.server import Server

BEHIND_BYTES = 64 * 1024
"""How much may wait behind the request that is served before nothing more is read from the client."""

UNREAD_BYTES = 256 * 1024
"""How much of a body may wait to be read before nothing more is read from the client. One read may bring as much."""

UNCOUNTED_BYTES = 4 * 1024
"""A connection that holds no more than this is not counted: the head of an ordinary request, and a small body."""


class Arriving:
    """What has come of one connection and was not served yet."""

    __slots__ = ("_behind", "_heads", "_is_paused", "_owner", "held_bytes", "message", "transport")

    def __init__(self, owner: "Server") -> None:
        self._owner = owner
        self._heads = Heads(owner.loop, owner.limits.head, is_for_requests=True)
        self.message = Incoming(self._heads)
        """The request that comes, or is served."""
        self._behind = bytearray()  # what has come behind it
        self.held_bytes = 0
        """What the owner has counted of it; 0 for nearly all connections."""
        self._is_paused = False
        self.transport: asyncio.Transport | None = None
        """None before the connection is open, and when it has ended."""

    def open(self, transport: asyncio.Transport) -> None:
        """The connection is open."""
        self.transport = transport

    def close(self) -> None:
        """The connection has ended."""
        self.transport = None
        self._owner.gone_check.unwatch(self)
        self._owner.hold_unread(-self.held_bytes)
        self.held_bytes = 0

    @property
    def has_behind(self) -> bool:
        """Whether something has come behind the request."""
        return bool(self._behind)

    def take_body(self, data: bytes) -> None:
        """Keep *data* for whoever reads the body, and what is behind it for later."""
        message = self.message
        behind = message.feed_body(data)
        if behind:
            self._behind += behind
        elif not self.held_bytes and message.head_bytes + message.unread_bytes <= UNCOUNTED_BYTES:
            return  # nearly all requests
        self.count()
        if message.unread_bytes >= UNREAD_BYTES or len(self._behind) >= BEHIND_BYTES:
            self.pause()

    def body_was_read(self) -> None:
        """Something of the body was read: count it, and read on if that was paused."""
        self.count()
        self.read_on()

    def begin_next(self) -> bytes:
        """The request is served, and the next is taken from now on; what has come of it. `read_on` must follow."""
        owner, behind = self._owner, b""
        if owner.limits.head != self._heads.max_bytes:  # a reload has changed it
            self._heads = Heads(owner.loop, owner.limits.head, is_for_requests=True)
        self.message = Incoming(self._heads)
        if self._behind:
            behind, self._behind = bytes(self._behind), bytearray()
        if self.held_bytes:
            self.count()
        return behind

    def count(self) -> None:
        """Tell the owner what this connection holds by now."""
        message = self.message
        held_bytes = message.head_bytes + message.unread_bytes + len(self._behind)
        if held_bytes <= UNCOUNTED_BYTES:
            held_bytes = 0
        if held_bytes != self.held_bytes:
            self._owner.hold_unread(held_bytes - self.held_bytes)
            self.held_bytes = held_bytes

    def pause(self) -> None:
        """Read nothing more for now. asyncio does not notice then that a client leaves: `GoneCheck` does."""
        transport = self.transport
        if transport is not None and transport.is_reading():
            self._is_paused = True
            transport.pause_reading()
            self._owner.gone_check.watch(self)

    def read_on(self) -> None:
        """Go on reading from the client, if that was paused and there is room again."""
        transport = self.transport
        if not self._is_paused or transport is None or transport.is_closing():
            return
        if self.message.unread_bytes < UNREAD_BYTES and len(self._behind) < BEHIND_BYTES:
            self._is_paused = False
            transport.resume_reading()
            self._owner.gone_check.unwatch(self)
