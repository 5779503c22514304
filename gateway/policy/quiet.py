"""How often the same thing is worth a line in the log."""


class OncePerInterval:
    """Says yes to a key once per interval; forgets keys whose interval is over, and has room for so many."""

    def __init__(self, interval_s: float, max_keys: int) -> None:
        self._interval_s = interval_s
        self._max_keys = max_keys
        self._until: dict[str, float] = {}

    def allows(self, key: str, now_s: float) -> bool:
        """Whether *key* may speak now; while all room is taken, new keys may not."""
        if self._until.get(key, now_s) > now_s:
            return False
        if key not in self._until and len(self._until) >= self._max_keys:
            self._until = {known: until for known, until in self._until.items() if until > now_s}
            if len(self._until) >= self._max_keys:
                return False
        self._until[key] = now_s + self._interval_s
        return True
