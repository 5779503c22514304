"""The last requests that failed, for the status page.

They are kept apart by who caused them, so that many errors of clients do not push the few of a backend out; nor do
many of one backend those of another. Not here: how many have failed (`metrics`, `recent`), and every one of them
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
"""How many are kept for each who may have caused them."""

TEXT_CHARACTERS = 400
"""The longest text that is kept as it is; of longer ones the beginning and the end: some of them come from clients."""


class Failure(msgspec.Struct, frozen=True, gc=False):
    """One request that failed, with fields of its line in the access log."""

    at_s: float
    """When it ended, in seconds since 1970."""
    blame: str
    reason: str
    status: int
    detail: str
    request_id: str
    client: str
    """The name of its token, or its address."""
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
        """Keep the last of finished exchanges that failed. Their times are of the event loop's clock, the monotonic."""
        offset_s = time.time() - time.monotonic()
        for exchange in group[-KEPT:]:
            self.keep(_failure(exchange, offset_s + exchange.started_s + exchange.seconds))

    def keep(self, failure: Failure) -> None:
        """Keep *failure*; beyond `KEPT` of its blame the oldest goes of the backend that has the most."""
        kept = self._kept[failure.blame]
        kept.append(failure)
        if len(kept) > KEPT:
            backends = [each.backend for each in kept]
            ((most, _),) = Counter(backends).most_common(1)
            del kept[backends.index(most)]

    def latest(self) -> list[Failure]:
        """Those that are kept, the last first."""
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
