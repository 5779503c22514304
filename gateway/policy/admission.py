"""Which requests are admitted: memory and a slot are reserved before a body is read (design: memory budget).

A request reserves the size of its body. Answers add what they hold; they are never refused, because the work has been
done by then, but keep new requests out. A share is left for small requests, so that large ones cannot starve them.
Not here: what is counted of a request (`client.body`).
"""

SMALL_BYTES = 64 * 1024
"""The largest body of a small request."""

SMALL_SHARE = 16
"""Only small requests may use the last sixteenth of the bytes and of the slots."""


class Admission:
    """The budget of one process."""

    def __init__(self, max_bytes: int, max_requests: int) -> None:
        self.max_bytes = max_bytes
        self.max_requests = max_requests
        self.held_bytes = 0
        self.requests = 0

    def admit(self, n_bytes: int) -> "Reservation | None":
        """Let in a request whose body has *n_bytes* (0 if that is not known yet); None if there is no room."""
        kept = 0 if n_bytes <= SMALL_BYTES else self.max_requests // SMALL_SHARE
        if self.requests >= self.max_requests - kept or not self._has_room(n_bytes):
            return None
        self.requests += 1
        self.held_bytes += n_bytes
        return Reservation(self, n_bytes)

    def _has_room(self, n_bytes: int, already: int = 0) -> bool:
        """Whether *n_bytes* more fit, for a request that holds *already*; one that is alone may use everything."""
        total = self.held_bytes + n_bytes
        if self.held_bytes == already:
            return total <= self.max_bytes
        kept = 0 if n_bytes + already <= SMALL_BYTES else self.max_bytes // SMALL_SHARE
        return total <= self.max_bytes - kept


class Reservation:
    """What one request holds of the budget."""

    __slots__ = ("_admission", "_n_bytes")

    def __init__(self, admission: Admission, n_bytes: int) -> None:
        self._admission = admission
        self._n_bytes = n_bytes

    def grow(self, n_bytes: int) -> bool:
        """Reserve *n_bytes* more for a body whose size was not known; False if there is no room."""
        if not self._admission._has_room(n_bytes, self._n_bytes):
            return False
        self.hold(n_bytes)
        return True

    def hold(self, n_bytes: int) -> None:
        """Count *n_bytes* more of an answer, whether there is room or not."""
        self._n_bytes += n_bytes
        self._admission.held_bytes += n_bytes

    def release(self) -> None:
        """Give everything back. Must be called once."""
        self._admission.held_bytes -= self._n_bytes
        self._admission.requests -= 1
        self._n_bytes = 0
