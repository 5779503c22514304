"""What one client may ask for: requests at once, requests a second, and how many may come together.

A client is its token's name, or its address where there are no tokens. Not here: clocks, and who a client is.
"""

from collections import OrderedDict
from dataclasses import dataclass

MAX_CLIENTS = 10_000
"""How many clients are remembered; the one that has asked for nothing for longest is forgotten first."""


@dataclass(slots=True)
class Client:
    """What one client has asked for lately."""

    in_flight: int = 0
    spent: float = 0.0
    """Of the requests that may come together, how many it has used up; they come back with `rate` a second."""
    seen_s: float = 0.0


class Clients:
    """All clients of a process. What they have asked for outlives a change of the limits."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Client] = OrderedDict()

    def begin(self, name: str, now_s: float, concurrent: int, rate: float, burst: int) -> float | None:
        """Count a request of *name*, which `end` must follow; or the seconds after which it may try again.

        *concurrent* requests at once and *rate* a second are allowed, of which *burst* may come together, or those of
        one second; 0 is no limit.
        """
        client = self._known.get(name)
        if client is None:
            self._forget()
            client = self._known[name] = Client(seen_s=now_s)
        self._known.move_to_end(name)
        client.spent = max(0.0, client.spent - rate * (now_s - client.seen_s))
        client.seen_s = now_s
        if concurrent and client.in_flight >= concurrent:
            return 1.0
        together = max(1.0, burst or rate)
        if rate and client.spent + 1 > together:
            return (client.spent + 1 - together) / rate
        client.in_flight += 1
        client.spent += 1 if rate else 0
        return None

    def end(self, name: str) -> None:
        """A request of *name* that `begin` has counted has ended."""
        client = self._known.get(name)
        if client is not None:
            client.in_flight -= 1

    def _forget(self) -> None:
        """Forget a client that has nothing in flight, where there is no room for another."""
        if len(self._known) >= MAX_CLIENTS:
            idle = next((name for name, client in self._known.items() if not client.in_flight), None)
            if idle is not None:
                del self._known[idle]
