"""Limits how often the log repeats a warning."""

INTERVAL_S = 60.0
"""How long a warning is not repeated."""


class OncePerInterval:
    """Allows one warning once per `INTERVAL_S`."""

    def __init__(self) -> None:
        self._until_s = float("-inf")

    def allows(self, now_s: float) -> bool:
        """Whether the warning may be logged now."""
        is_allowed = now_s >= self._until_s
        if is_allowed:
            self._until_s = now_s + INTERVAL_S
        return is_allowed
