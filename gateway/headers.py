"""HTTP header fields as a small type of the gateway's own, so that no module depends on a library's type.

Not here: which fields cross the gateway (`policy.crossing`).
"""

from collections.abc import Iterable

Pairs = Iterable[tuple[str, str]]
"""Header fields, name and value, in the order in which they are sent."""


class Headers:
    """The header fields of one message in the order in which they came; immutable.

    Names match in any case of letters. The methods take names in lower case, which saves the conversion.
    """

    __slots__ = ("first", "pairs")

    def __init__(self, pairs: Pairs = ()) -> None:
        """*pairs* are names and values as they came."""
        self.pairs: tuple[tuple[str, str], ...] = tuple(pairs)
        """Names and values as they came, in order."""
        self.first: dict[str, str] = {}
        """The first value of each field by its name in lower case, in order; the fastest way to look a field up."""
        for name, value in self.pairs:  # for so few a comprehension would take longer to begin
            self.first.setdefault(name.lower(), value)

    def get(self, name: str, default: str = "") -> str:
        """The first value of the field *name* (lower case), or *default*."""
        return self.first.get(name, default)

    def all(self, name: str) -> list[str]:
        """Every value of the field *name* (lower case), in order; empty if there is none."""
        if len(self.first) < len(self.pairs):
            return [value for each, value in self.pairs if each.lower() == name]
        return [self.first[name]] if name in self.first else []

    def joined(self, name: str) -> str:
        """All values of the list field *name* (RFC 9110 section 5.3), joined with commas; empty if there is none."""
        return ", ".join(self.all(name))
