"""Limits how often the log repeats a warning."""

INTERVAL_S = 60.0
"""How long a warning is not repeated."""


class OncePerInterval:
    """Allows each key once per interval. Remembers at most *max_keys* keys, only while their interval lasts."""

    def __init__(self, *, max_keys: int = 1, interval_s: float = INTERVAL_S) -> None:
        self._max_keys = max_keys
        self._interval_s = interval_s
        self._until: dict[str, float] = {}

    def allows(self, key: str, now_s: float) -> bool:
        """Whether *key* may be logged now. While `max_keys` others are remembered, a new key may not."""
        if self._until.get(key, now_s) > now_s:
            return False
        if key not in self._until and len(self._until) >= self._max_keys:
            self._until = {known: until for known, until in self._until.items() if until > now_s}
            if len(self._until) >= self._max_keys:
                return False
        self._until[key] = now_s + self._interval_s
        return True
