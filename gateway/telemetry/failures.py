"""The last requests that failed, for the status page.

They are kept apart by who caused them, so that many errors of clients do not push the few of a backend out; nor do
many of one backend those of another. Not here: how many have failed (`metrics`, `recent`), and every one of them
(`access_log`).
"""

import time
from collections import Counter
from collections.abc import Iterable
from itertools import chain

import msgspec

from gateway.errors import Blame, blame_of
from gateway.exchange import Exchange
from gateway.telemetry.access_log import shortened

KEPT = 20
"""How many are kept for each who may have caused them."""

DETAIL_CHARACTERS = 400
"""The longest `detail` that is kept as it is; of longer ones the beginning and the end."""

NAME_CHARACTERS = 120
"""The same for all other texts: some of them come from clients."""


class Failure(msgspec.Struct, frozen=True, gc=False):
    """One request that failed."""

    at_s: float
    """When it ended, in seconds since 1970."""
    blame: str
    reason: str
    """The error's label."""
    status: int
    """What the client got; 499 if it had left."""
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
    """The last that was asked."""
    seconds: float


class Failures:
    """The last failures."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Failure]] = {blame.value: [] for blame in Blame}

    def add(self, group: Iterable[Exchange]) -> None:
        """Keep finished exchanges that failed. Their times are of the event loop's clock: `time.monotonic`."""
        offset_s = time.time() - time.monotonic()
        for exchange in group:
            self.keep(_failure(exchange, offset_s + exchange.started_s + exchange.seconds))

    def keep(self, failure: Failure) -> None:
        """Keep *failure*; beyond `KEPT` of its blame the oldest goes of the backend that has the most."""
        kept = self._kept[failure.blame]
        kept.append(failure)
        if len(kept) > KEPT:
            ((most, _),) = Counter(each.backend for each in kept).most_common(1)
            del kept[next(index for index, each in enumerate(kept) if each.backend == most)]

    def latest(self) -> list[Failure]:
        """Those that are kept, the last first."""
        return sorted(chain.from_iterable(self._kept.values()), key=lambda each: each.at_s, reverse=True)


def _failure(exchange: Exchange, at_s: float) -> Failure:
    assert exchange.error is not None
    return Failure(
        at_s=at_s,
        blame=blame_of(exchange.error, exchange.status).value,
        reason=exchange.error.label,
        status=exchange.status,
        detail=_shown(exchange.detail, DETAIL_CHARACTERS),
        request_id=_shown(exchange.request_id, NAME_CHARACTERS),
        client=_shown(exchange.client_name or exchange.client, NAME_CHARACTERS),
        method=_shown(exchange.method, NAME_CHARACTERS),
        path=_shown(exchange.path, NAME_CHARACTERS),
        model=_shown(exchange.model, NAME_CHARACTERS) if exchange.model is not None else None,
        route=exchange.route,
        backend=exchange.backend,
        endpoint=exchange.attempts[-1].endpoint if exchange.attempts else None,
        seconds=exchange.seconds,
    )


def _shown(text: str, n_characters: int) -> str:
    """*text* without its middle if it is long; lone surrogates, which JSON cannot hold, are escaped."""
    return shortened(text, n_characters).encode(errors="backslashreplace").decode()
