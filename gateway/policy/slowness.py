"""When a client is too slow in sending its body, or in reading its reply. `client.server` acts on it."""

import msgspec

MIN_BYTES_PER_S = 1024
"""The lowest average rate at which a client must send its body or read its reply, while it is waited for."""


class Upload(msgspec.Struct, eq=False, gc=False):
    """How much of its body a client has sent, and how long it was waited for; time without a reader does not count.

    Also how much of its reply a client has taken while it was behind in reading.
    """

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

    def go_on(self, n_bytes: int, now_s: float) -> None:
        """Count *n_bytes*; the waiting goes on, or begins, and with any bytes the client's silence begins anew."""
        self.received_bytes += n_bytes
        if n_bytes or not self.is_awaited:
            self.end_waiting(now_s)
            self.begin_waiting(now_s)

    def waited_s(self, now_s: float) -> float:
        """How long the client has been waited for in all."""
        return self._waited_s + (0.0 if self._since_s is None else now_s - self._since_s)

    def bytes_per_s(self, now_s: float) -> float:
        """The average rate while the client was waited for; 0 at the very beginning."""
        waited_s = self.waited_s(now_s)
        return self.received_bytes / waited_s if waited_s > 0 else 0.0

    def find_slowness(self, now_s: float, limit_s: float) -> str | None:
        """Why the client is too slow, in words; None if it is not, or is not waited for.

        A silence may last *limit_s*. The first *limit_s* do not count against `MIN_BYTES_PER_S`, so that a body that
        has just begun is not judged: n bytes may take `n / MIN_BYTES_PER_S + limit_s` at most.
        """
        if self._since_s is None:
            return None
        n_bytes, waited_s = self.received_bytes, self.waited_s(now_s)
        if now_s - self._since_s >= limit_s:
            return f"nothing for {limit_s:g} s"
        if n_bytes < MIN_BYTES_PER_S * (waited_s - limit_s):
            least = f"{MIN_BYTES_PER_S} a second after the first {limit_s:g} s"
            return f"{n_bytes} bytes in {waited_s:.1f} s, less than {least}"
        return None
