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
        max_requests, max_bytes = self.max_requests, self.max_bytes
        held_bytes = self.held_bytes + n_bytes
        if n_bytes > SMALL_BYTES:
            max_requests -= max_requests // SMALL_SHARE
            if held_bytes > n_bytes:  # one that is alone may use all bytes
                max_bytes -= max_bytes // SMALL_SHARE
        if self.requests >= max_requests or held_bytes > max_bytes:
            return None
        self.requests += 1
        self.held_bytes = held_bytes
        return Reservation(self, n_bytes)


class Reservation:
    """What one request holds of the budget."""

    __slots__ = ("_admission", "_n_bytes")

    def __init__(self, admission: Admission, n_bytes: int) -> None:
        self._admission = admission
        self._n_bytes = n_bytes

    def grow(self, n_bytes: int) -> bool:
        """Reserve *n_bytes* more for a body whose size was not known; False if there is no room."""
        admission = self._admission
        own_bytes = self._n_bytes + n_bytes
        held_bytes = admission.held_bytes + n_bytes
        max_bytes = admission.max_bytes
        if own_bytes > SMALL_BYTES and held_bytes > own_bytes:  # as in `admit`
            max_bytes -= max_bytes // SMALL_SHARE
        if held_bytes > max_bytes:
            return False
        self._n_bytes = own_bytes
        admission.held_bytes = held_bytes
        return True

    def hold(self, n_bytes: int) -> None:
        """Count *n_bytes* more of an answer, whether there is room or not."""
        self._n_bytes += n_bytes
        self._admission.held_bytes += n_bytes

    def release(self) -> None:
        """Give everything back. Must be called once."""
        admission = self._admission
        admission.held_bytes -= self._n_bytes
        admission.requests -= 1
        self._n_bytes = 0
