"""The last requests that failed, for the status page.

They are kept apart by who caused them, so that many errors of clients do not push out the few of a backend; nor do the
errors of one backend push out those of another. Not here: their number (`metrics`, `recent`), and a complete list
(`access_log`).
"""

import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import msgspec

from gateway.errors import Blame
from gateway.exchange import Exchange
from gateway.telemetry.access_log import line_of, shortened

KEPT = 20
"""How many failures are kept for each `Blame`."""

TEXT_CHARACTERS = 400
"""How many characters of a text are kept; of a longer one the beginning and the end. Clients may send long ones."""


class Failure(msgspec.Struct, frozen=True, gc=False):
    """One request that failed, with fields of its line in the access log."""

    at_s: float
    """When the request ended, in seconds since 1970."""
    blame: str
    reason: str
    status: int
    detail: str
    request_id: str
    client: str
    """The name of the client's token, or the client's address."""
    method: str
    path: str
    model: str | None
    route: str
    backend: str
    endpoint: str | None
    seconds: float


class Failures:
    """The last failures."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Failure]] = {blame.value: [] for blame in Blame}

    def add(self, group: Sequence[Exchange]) -> None:
        """Keep the last failed exchanges of *group*; their times are of the event loop's (monotonic) clock."""
        offset_s = time.time() - time.monotonic()
        for exchange in group[-KEPT:]:
            self.keep(_failure(exchange, offset_s + exchange.started_s + exchange.seconds))

    def keep(self, failure: Failure) -> None:
        """Keep *failure*. Above `KEPT` for its blame, the backend with the most failures loses its oldest."""
        kept = self._kept[failure.blame]
        kept.append(failure)
        if len(kept) > KEPT:
            backends = [each.backend for each in kept]
            ((most, _),) = Counter(backends).most_common(1)
            del kept[backends.index(most)]

    def latest(self) -> list[Failure]:
        """All kept failures, the latest first."""
        return sorted(chain.from_iterable(self._kept.values()), key=lambda each: each.at_s, reverse=True)


def _failure(exchange: Exchange, at_s: float) -> Failure:
    line = line_of(exchange)
    line["client"] = line["client_name"] or line["client"]
    line["detail"] = line["detail"] or ""
    return Failure(at_s, *map(_shown, _fields_but_time(line)))


_fields_but_time = itemgetter(*Failure.__struct_fields__[1:])


def _shown(value: Any) -> Any:
    """A text without its middle if it is long; lone surrogates, which JSON cannot hold, are escaped."""
    if not isinstance(value, str):
        return value
    text = shortened(value, TEXT_CHARACTERS)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()
