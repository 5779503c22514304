"""When a client is too slow: in the middle of its body, or in reading its reply.

Here: the floor and the judgement, on numbers. Not here: clocks, connections, and what happens to a slow client
(`client.server`).
"""

MIN_BYTES_PER_S = 1024
"""The least that a client must send of its body, or read of its reply, on average over the time it was waited for."""


def find_slowness(n_bytes: int, waited_s: float, silent_s: float, limit_s: float) -> str | None:
    """In words, what makes a client too slow; None if nothing does.

    It sent or read *n_bytes* in all while the gateway waited for it, *waited_s* in all, and nothing in the last
    *silent_s*. The silence may last *limit_s*. As much is forgiven before the floor holds, so that a body that is just
    beginning is not judged: n bytes take `n / MIN_BYTES_PER_S + limit_s` at most.
    """
    if silent_s >= limit_s:
        return f"nothing for {limit_s:g} s"
    if n_bytes < MIN_BYTES_PER_S * (waited_s - limit_s):
        return (
            f"{n_bytes} bytes in {waited_s:.1f} s, less than {MIN_BYTES_PER_S} a second after the first {limit_s:g} s"
        )
    return None


class Upload:
    """What a client has sent of its body, and how long it was waited for: not the time in which nobody reads."""

    __slots__ = ("_since_s", "_waited_s", "received_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self._waited_s = 0.0
        self._since_s: float | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether more of it is waited for at the moment."""
        return self._since_s is not None

    def begin_waiting(self, now_s: float) -> None:
        """From now on the client is waited for."""
        self._since_s = now_s

    def end_waiting(self, now_s: float) -> None:
        """No longer; also where nobody has begun."""
        if self._since_s is not None:
            self._waited_s += now_s - self._since_s
            self._since_s = None

    def find_slowness(self, now_s: float, limit_s: float) -> str | None:
        """As the function of that name; None while the client is not waited for."""
        if self._since_s is None:
            return None
        silent_s = now_s - self._since_s
        return find_slowness(self.received_bytes, self._waited_s + silent_s, silent_s, limit_s)


class Backlog:
    """A client that has not read everything yet that was written to it."""

    __slots__ = ("_began_s", "_moved_s", "_taken", "_taken_before")

    def __init__(self, taken: int, now_s: float) -> None:
        """*taken*: how many bytes the client has taken since its connection was opened."""
        self._began_s = self._moved_s = now_s
        self._taken = self._taken_before = taken

    def find_slowness(self, taken: int, now_s: float, limit_s: float) -> str | None:
        """As the function of that name, for a client that has still not taken all; *taken* as in the constructor."""
        if taken != self._taken:
            self._taken = taken
            self._moved_s = now_s
        return find_slowness(taken - self._taken_before, now_s - self._began_s, now_s - self._moved_s, limit_s)
