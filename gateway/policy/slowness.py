"""When a client is too slow: in the middle of its body, or in reading its reply.

Numbers are judged here; `client.server` acts on the judgement.
"""

from dataclasses import dataclass

MIN_BYTES_PER_S = 1024
"""The lowest average rate at which a client must send its body or read its reply, while it is waited for."""


def find_slowness(n_bytes: int, waited_s: float, silent_s: float, limit_s: float) -> str | None:
    """Why a client is too slow, in words; None if it is not.

    The gateway has waited for the client for *waited_s* in all, in which the client sent or read *n_bytes*, and nothing
    in the last *silent_s*. A silence may last *limit_s*. The first *limit_s* do not count against
    `MIN_BYTES_PER_S`, so that a body that has just begun is not judged: n bytes may take
    `n / MIN_BYTES_PER_S + limit_s` at most.
    """
    if silent_s >= limit_s:
        return f"nothing for {limit_s:g} s"
    if n_bytes < MIN_BYTES_PER_S * (waited_s - limit_s):
        least = f"{MIN_BYTES_PER_S} a second after the first {limit_s:g} s"
        return f"{n_bytes} bytes in {waited_s:.1f} s, less than {least}"
    return None


@dataclass(slots=True, eq=False)
class Upload:
    """How much of its body a client has sent, and how long it was waited for; time without a reader does not count."""

    received_bytes: int = 0
    _waited_s: float = 0.0
    _since_s: float | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the client is waited for at the moment."""
        return self._since_s is not None

    def begin_waiting(self, now_s: float) -> None:
        """The time from *now_s* on counts as waiting for the client."""
        self._since_s = now_s

    def end_waiting(self, now_s: float) -> None:
        """End what `begin_waiting` began; does nothing if it was not called."""
        self._waited_s = self.waited_s(now_s)
        self._since_s = None

    def waited_s(self, now_s: float) -> float:
        """How long the client has been waited for in all."""
        return self._waited_s + (0.0 if self._since_s is None else now_s - self._since_s)

    def bytes_per_s(self, now_s: float) -> float:
        """The average rate while the client was waited for; 0 at the very beginning."""
        waited_s = self.waited_s(now_s)
        return self.received_bytes / waited_s if waited_s > 0 else 0.0

    def find_slowness(self, now_s: float, limit_s: float) -> str | None:
        """As the function `find_slowness`; None while the client is not waited for."""
        if self._since_s is None:
            return None
        return find_slowness(self.received_bytes, self.waited_s(now_s), now_s - self._since_s, limit_s)


class Backlog:
    """A client that has not yet read everything that was written to it."""

    __slots__ = ("_began_s", "_moved_s", "_taken", "_taken_before")

    def __init__(self, taken: int, now_s: float) -> None:
        """*taken*: how many bytes the client has taken since its connection was opened."""
        self._began_s = self._moved_s = now_s
        self._taken = self._taken_before = taken

    def find_slowness(self, taken: int, now_s: float, limit_s: float) -> str | None:
        """As the function `find_slowness`; *taken* as in the constructor, from then until now."""
        if taken != self._taken:
            self._taken = taken
            self._moved_s = now_s
        return find_slowness(taken - self._taken_before, now_s - self._began_s, now_s - self._moved_s, limit_s)
