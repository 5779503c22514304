"""The limits of one client: concurrent requests, requests a second, and how many of these may come together.

A client is known by its token's name, or by its address where there are no tokens.
"""

from collections import OrderedDict
from dataclasses import dataclass

MAX_CLIENTS = 10_000
"""How many clients are remembered; of those without a request in flight the one seen longest ago is forgotten first."""


@dataclass(slots=True)
class Client:
    """The recent requests of one client, counted."""

    in_flight: int = 0
    spent: float = 0.0
    """How many of the requests that may come together are used up; `rate` of them come back every second."""
    seen_s: float = 0.0


class Clients:
    """All clients of a process. The counts outlive a change of the limits."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Client] = OrderedDict()

    def begin(self, name: str, now_s: float, concurrent: int, rate: float, burst: int) -> float | None:
        """Count a request of *name* and return None; or refuse it, and return the seconds after which it may try again.

        *concurrent* requests at once and *rate* requests a second are allowed (0: no limit). Of the latter *burst* may
        come together, or those of one second if *burst* is 0. `end` must follow for each request that was counted.
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
        """Count the end of a request of *name* that `begin` has counted."""
        client = self._known.get(name)
        if client is not None:
            client.in_flight -= 1

    def _forget(self) -> None:
        """If there is no room for another client, forget one that has no request in flight."""
        if len(self._known) >= MAX_CLIENTS:
            idle = next((name for name, client in self._known.items() if not client.in_flight), None)
            if idle is not None:
                del self._known[idle]
