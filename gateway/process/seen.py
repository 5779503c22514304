"""The states and counts of all processes, added up for the status page.

Not here: which of them are problems, and the rest of the page (`status`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from gateway.config import Config, Route
from gateway.exchange import PROTOCOLS
from gateway.telemetry.reading import Certificate, EndpointReading, Level, Reading
from gateway.telemetry.recent import SLICE_S, Minute, Stats, total
from gateway.telemetry.sums import Row

EndpointWord = Literal["up", "on trial", "ejected", "down"]

_SIDES = "client_request", "upstream_request", "upstream_response", "client_response"


class LastMinute(msgspec.Struct, frozen=True):
    """All requests of the last minute."""

    seconds: float
    """How many seconds are covered: fewer than a minute after the start."""
    all: Stats
    slice_s: int
    slices: list[tuple[int, int]]
    """Requests and errors in each slice of the minute, the last first; the first is still being filled."""
    protocols: dict[str, int]
    """Requests by what their clients speak."""
    codec_share: float | None
    """Of the requests' time; None if there were none."""
    upstream_share: float | None
    """The same; large bodies are encoded and decoded while they cross, so it and the codec's overlap."""
    wire: dict[str, int]
    """Bytes of inferences that were transcoded and succeeded, with clients and with backends, as `recent.Moments`
    names them."""


class EndpointStatus(msgspec.Struct, frozen=True):
    """One endpoint, as all processes together see it: in the worst state that one of them finds it in."""

    url: str
    state: EndpointWord
    since_s: float
    reason: str
    found_by: int
    """How many processes see it in this state."""
    busy: int
    """Connections with a request on them."""
    idle: int


class BackendStatus(msgspec.Struct, frozen=True):
    """One backend of the configuration."""

    name: str
    is_probed: bool
    max_connections: int
    speaks: str
    """See `EndpointReading`."""
    endpoints: list[EndpointStatus]
    stats: Stats
    rows_per_batch: float | None
    """On average in the last minute; None where nothing was batched."""
    batch_wait_s: float | None
    """How long a request waited for others of its batch, likewise."""


class RouteStatus(msgspec.Struct, frozen=True):
    """One row of the configuration's routes; without any, a row for the backend that gets every request."""

    name: str
    host: str | None
    path_prefix: str | None
    models: list[str] | None
    backends: dict[str, int]
    """The backends that the route leads to, with relative weights."""
    stats: Stats


def added(levels: Iterable[Level]) -> Level:
    """The sum of the limits, and of what is in use of them."""
    levels = list(levels)
    return Level(sum(level.used for level in levels), sum(level.limit for level in levels))


def last_minute_of(minute: Minute) -> LastMinute:
    """The figures of all requests of *minute*."""
    microseconds = total(minute.all, "microseconds")
    return LastMinute(
        minute.seconds,
        Stats.of(minute.all, minute.seconds),
        SLICE_S,
        minute.slices,
        {protocol: total(minute.all, protocol) for protocol in PROTOCOLS},
        total(minute.all, "codec_microseconds") / microseconds if microseconds else None,
        total(minute.all, "upstream_microseconds") / microseconds if microseconds else None,
        {f"{side}_bytes": total(minute.all, f"{side}_bytes") for side in _SIDES},
    )


def backends_of(config: Config, readings: Iterable[Reading], minute: Minute) -> list[BackendStatus]:
    """The backends of *config*, with the states of their endpoints in *readings*."""
    found: dict[str, dict[str, list[EndpointReading]]] = {name: {} for name in config.backends}
    for reading in readings:
        for each in reading.endpoints:
            if each.backend in found:
                found[each.backend].setdefault(each.endpoint, []).append(each)
    return [
        BackendStatus(
            name,
            settings.health is not None,
            config.max_connections(name),
            next((each.speaks for seen in found[name].values() for each in seen if each.speaks), ""),
            [_endpoint(url, seen) for url, seen in found[name].items()],
            Stats.of(minute.by_backend.get(name, {}), minute.seconds),
            *_batches(minute.by_backend.get(name, {})),
        )
        for name, settings in config.backends.items()
    ]


def _batches(counts: Mapping[Row, int]) -> tuple[float | None, float | None]:
    """The rows of a batch, and the seconds that a request waited for it, on average."""
    batches, requests = total(counts, "batches"), total(counts, "batched_requests")
    return (
        total(counts, "batch_rows") / batches if batches else None,
        total(counts, "batch_wait_microseconds") / requests / 1e6 if requests else None,
    )


def _endpoint(url: str, readings: Sequence[EndpointReading]) -> EndpointStatus:
    by_state: dict[EndpointWord, list[EndpointReading]] = {"down": [], "ejected": [], "on trial": [], "up": []}
    for each in readings:
        by_state[_word(each)].append(each)
    state, alike = next((state, found) for state, found in by_state.items() if found)
    # an endpoint is out of use since the first process found it so, and up since the last process did
    told = (max if state == "up" else min)(alike, key=lambda each: each.since_s)
    busy, idle = sum(each.busy for each in readings), sum(each.idle for each in readings)
    return EndpointStatus(url, state, told.since_s, told.reason, len(alike), busy, idle)


def _word(reading: EndpointReading) -> EndpointWord:
    if not reading.is_up:
        return "down"
    if reading.is_ejected:
        return "ejected"
    return "on trial" if reading.is_on_trial else "up"


def routes_of(config: Config, minute: Minute) -> list[RouteStatus]:
    """The routes of *config*."""
    routes = config.routes or [Route(name=name, backend=name) for name in config.backends]
    return [
        RouteStatus(
            route.name,
            route.host,
            route.path_prefix,
            route.models,
            dict(route.split) if route.split is not None else dict.fromkeys(route.backends, 1),
            Stats.of(minute.by_route.get(route.name, {}), minute.seconds),
        )
        for route in routes
    ]


def soonest(certificates: Iterable[Certificate]) -> list[Certificate]:
    """One certificate for each place in the configuration; if processes differ for a moment, the first to expire."""
    last_first = sorted(certificates, key=lambda each: each.expires_s, reverse=True)
    return list({each.where: each for each in last_first}.values())
