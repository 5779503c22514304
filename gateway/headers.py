"""HTTP header fields as a small value of our own, so that no library's type goes through the house.

Here: fields and looking them up. Not here: which of them cross the gateway (`policy.crossing`).
"""

from collections.abc import Iterable

Pairs = Iterable[tuple[str, str]]
"""Header fields, name and value, in the order in which they are sent."""


class Headers:
    """The header fields of one message in the order in which they came. Never changed once made.

    Names are compared in any case; the names given to the methods are in lower case, to save the conversion.
    """

    __slots__ = ("_by_name", "pairs")

    def __init__(self, pairs: Pairs = ()) -> None:
        """*pairs* are names and values as they came."""
        self.pairs = tuple(pairs)
        by_name: dict[str, list[str]] = {}
        for name, value in self.pairs:
            by_name.setdefault(name.lower(), []).append(value)
        self._by_name = by_name

    def get(self, name: str, default: str = "") -> str:
        """The first value of the field *name* (lower case), or *default*."""
        values = self._by_name.get(name)
        return default if values is None else values[0]

    def all(self, name: str) -> list[str]:
        """Every value of the field *name* (lower case), in order; empty if there is none."""
        return self._by_name.get(name, [])

    def joined(self, name: str) -> str:
        """All values of a field that is a list (RFC 9110 section 5.3), joined with commas; empty if there is none."""
        return ", ".join(self._by_name.get(name, ()))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name
