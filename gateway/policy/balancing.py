"""Which endpoint of a backend gets the next request."""

from collections.abc import Sequence
from typing import Generic, TypeVar

E = TypeVar("E")


class RoundRobin(Generic[E]):
    """Each endpoint in turn."""

    def __init__(self, endpoints: Sequence[E]) -> None:
        self._endpoints = endpoints
        self._next = 0

    def pick(self) -> E:
        """The endpoint whose turn it is."""
        endpoint = self._endpoints[self._next]
        self._next = (self._next + 1) % len(self._endpoints)
        return endpoint
