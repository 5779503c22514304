"""The data of the status page: what all processes say of themselves, added up, and what of it is a problem.

An operator who looks at it at night asks first: is it healthy, and if not, who has to look at it? `Problem` answers
that in words, and what follows are the numbers behind it. Not here: the page (`status.html`), how it is served
(`admin`), and what one process says (`reading`).
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Literal, NamedTuple

import msgspec

from gateway import __version__
from gateway.config import Config, Route
from gateway.errors import Blame
from gateway.process.reading import STARTED_S, Certificate, Level, ProcessReading
from gateway.telemetry.failures import Failure, latest
from gateway.telemetry.metrics import EndpointReading, Reload
from gateway.telemetry.recent import MAX_GROUPS, N_SLICES, OTHER, SLICE_S, Group, Sums, merged

SILENT_S = 5.0
"""How long a worker may have said nothing before that is a problem."""

NEARLY_FULL = 0.9
"""The share of a limit from which on its use is a problem."""

MANY_FAIL = 0.01
"""The share of failed requests from which on they are a problem, and not merely mentioned."""

MOST_FAIL = 0.5
"""The share of failed requests from which on a backend does not work, or its clients do not."""

EXPIRES_SOON_S = 14 * 24 * 3600.0
"""How long before its end a certificate is a problem."""

DEATH_SHOWN_S = 600.0
"""How long the death of a worker is shown as a problem."""

State = Literal["ok", "warning", "critical"]
Severity = Literal["critical", "warning", "notice"]
_SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice")


class Listens(NamedTuple):
    """Where the gateway listens."""

    clients: str
    admin: str


class Answered(NamedTuple):
    """What a process has said, and when that came, in seconds since 1970."""

    reading: ProcessReading
    answered_s: float


class Death(NamedTuple):
    """A worker that ended without having been told to."""

    pid: int
    code: int
    at_s: float


class Problem(msgspec.Struct, frozen=True):
    """Something that an operator should know, in words."""

    severity: Severity
    """Critical: requests fail, or soon will. Notice: good to know, and nothing to do about here."""
    about: Literal["backend", "gateway", "client", "configuration", "certificate"]
    """Who has to look at it."""
    text: str
    since_s: float | None = None
    """In seconds since 1970."""
    reason: str = ""


class Stats(msgspec.Struct, frozen=True):
    """Requests of the last minute."""

    requests: int
    errors: int
    requests_per_s: float
    errors_per_s: float
    blames: dict[str, int]
    reasons: dict[str, int]
    p50_s: float | None
    p99_s: float | None


class Wire(msgspec.Struct, frozen=True):
    """Bytes of inferences in the last minute that were transcoded: with clients, and with backends."""

    client_request_bytes: int
    upstream_request_bytes: int
    upstream_response_bytes: int
    client_response_bytes: int


class LastMinute(msgspec.Struct, frozen=True):
    """All requests of the last minute."""

    seconds: float
    """How much of a minute is known."""
    all: Stats
    slice_s: int
    slices: list[tuple[int, int]]
    """Requests and errors in each slice of the minute, the last first; the first is still being filled."""
    codec_share: float | None
    """Of the requests' time; None if there were none."""
    upstream_share: float | None
    """The same; large bodies are encoded and decoded while they cross, so it and the codec's overlap."""
    wire: Wire


class EndpointStatus(msgspec.Struct, frozen=True):
    """One endpoint, as all processes together see it: down if one of them finds it down, else ejected if one has."""

    url: str
    state: Literal["up", "down", "ejected"]
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


class RouteStatus(msgspec.Struct, frozen=True):
    """One row of the configuration's routes; without any, a row for the backend that gets every request."""

    name: str
    host: str | None
    path_prefix: str | None
    models: list[str] | None
    backends: dict[str, int]
    """Where it leads, with relative weights."""
    stats: Stats


class WorkerStatus(msgspec.Struct, frozen=True):
    """One process that serves clients."""

    pid: int
    started_s: float
    answered_s: float
    """When it said last how it was."""


class InFlight(msgspec.Struct, frozen=True):
    """What is in use of the limits of the whole gateway."""

    requests: Level
    body_bytes: Level
    connections: Level


class Status(msgspec.Struct, frozen=True):
    """All that the page shows. Moments are seconds since 1970."""

    version: str
    host: str
    pid: int
    started_s: float
    now_s: float
    listen: str
    admin: str
    n_workers: int
    """How many processes are configured to serve clients."""
    workers: list[WorkerStatus]
    state: State
    headline: str
    """The worst problem, or that there is none."""
    problems: list[Problem]
    """The worst first."""
    last_minute: LastMinute
    in_flight: InFlight
    backends: list[BackendStatus]
    routes: list[RouteStatus]
    failures: list[Failure]
    """The last first."""
    reload: Reload | None
    """The last one that was tried."""
    certificates: list[Certificate]


def status_of(
    config: Config,
    listens: Listens,
    answered: Sequence[Answered],
    not_ready: str | None,
    reload: Reload | None = None,
    death: Death | None = None,
) -> Status:
    """The status of a gateway that serves by *config*, whose processes have *answered*.

    *not_ready*: why clients should not come. *death*: the last of a worker.
    """
    now_s = time.time()
    readings = [each.reading for each in answered]
    groups = [group for reading in readings for group in reading.minute.groups]
    by_backend = _summed_by(attrgetter("backend"), groups)
    by_route = _summed_by(attrgetter("route"), groups)
    seconds = max((reading.minute.seconds for reading in readings), default=0.0)
    backends = _backends(config, readings, by_backend, seconds)
    last_minute = _last_minute(readings, merged(by_backend.values()), seconds)
    workers = [WorkerStatus(each.reading.pid, each.reading.started_s, each.answered_s) for each in answered]
    in_flight = InFlight(
        *(_added(getattr(reading, name) for reading in readings) for name in ("requests", "body_bytes", "connections"))
    )
    failures = latest(failure for reading in readings for failure in reading.failures)
    certificates = _soonest(reading.certificates for reading in readings)
    problems = [
        *_process_problems(config, workers, not_ready, death, now_s),
        *(problem for backend in backends for problem in _backend_problems(backend, failures)),
        *_request_problems(last_minute.all, failures),
        *_uncounted(by_backend),
        *_limit_problems(in_flight),
        *_reload_problems(reload),
        *_certificate_problems(certificates, now_s),
    ]
    problems.sort(key=lambda problem: _SEVERITIES.index(problem.severity))
    state: State
    if not problems or problems[0].severity == "notice":
        state, headline = "ok", _all_is_well(backends)
    else:
        state, headline = problems[0].severity, problems[0].text
    return Status(
        version=__version__,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_s=STARTED_S,
        now_s=now_s,
        listen=listens.clients,
        admin=listens.admin,
        n_workers=int(config.workers),
        workers=workers,
        state=state,
        headline=headline,
        problems=problems,
        last_minute=last_minute,
        in_flight=in_flight,
        backends=backends,
        routes=_routes(config, by_route, seconds),
        failures=failures,
        reload=reload,
        certificates=certificates,
    )


def _all_is_well(backends: Iterable[BackendStatus]) -> str:
    """That nothing is wrong; that backends answer only if something has asked them."""
    if all(backend.is_probed or backend.stats.requests for backend in backends):
        return "All backends answer"
    return "No backend is known to be down"


# What is added up


def _stats(sums: Sums, seconds: float) -> Stats:
    per_s = 1 / max(seconds, 1.0)
    p50_s, p99_s = sums.percentiles(0.5, 0.99)
    return Stats(
        sums.requests,
        sums.errors,
        sums.requests * per_s,
        sums.errors * per_s,
        sums.blames,
        sums.reasons,
        p50_s,
        p99_s,
    )


def _added(levels: Iterable[Level]) -> Level:
    levels = list(levels)
    return Level(sum(level.used for level in levels), sum(level.limit for level in levels))


def _summed_by(key_of: Callable[[Group], str], groups: Iterable[Group]) -> dict[str, Sums]:
    found: dict[str, Sums] = {}
    for group in groups:
        found.setdefault(key_of(group), Sums()).add(group.sums)
    return found


def _last_minute(readings: Sequence[ProcessReading], total: Sums, seconds: float) -> LastMinute:
    now = max((reading.minute.now for reading in readings), default=0)
    slices = [[0, 0] for _ in range(N_SLICES)]
    for reading in readings:
        for each in reading.minute.slices:
            if 0 <= now - each.number < N_SLICES:
                slices[now - each.number][0] += each.requests
                slices[now - each.number][1] += each.errors
    has_time = total.microseconds > 0
    return LastMinute(
        seconds,
        _stats(total, seconds),
        SLICE_S,
        [(requests, errors) for requests, errors in slices],
        total.codec_microseconds / total.microseconds if has_time else None,
        total.upstream_microseconds / total.microseconds if has_time else None,
        Wire(
            total.client_request_bytes,
            total.upstream_request_bytes,
            total.upstream_response_bytes,
            total.client_response_bytes,
        ),
    )


def _backends(
    config: Config, readings: Iterable[ProcessReading], sums: Mapping[str, Sums], seconds: float
) -> list[BackendStatus]:
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
            _stats(sums.get(name, Sums()), seconds),
        )
        for name, settings in config.backends.items()
    ]


def _endpoint(url: str, readings: Sequence[EndpointReading]) -> EndpointStatus:
    down = [each for each in readings if not each.is_up]
    ejected = [each for each in readings if each.is_up and each.is_ejected]
    state: Literal["up", "down", "ejected"] = "down" if down else "ejected" if ejected else "up"
    alike = down or ejected or list(readings)
    # out of use since the first process found so, and up since the last did
    told = (max if state == "up" else min)(alike, key=lambda each: each.since_s)
    busy, idle = sum(each.busy for each in readings), sum(each.idle for each in readings)
    return EndpointStatus(url, state, told.since_s, told.reason, len(alike), busy, idle)


def _routes(config: Config, sums: Mapping[str, Sums], seconds: float) -> list[RouteStatus]:
    routes = config.routes or [Route(name=name, backend=name) for name in config.backends]
    return [
        RouteStatus(
            route.name,
            route.host,
            route.path_prefix,
            route.models,
            dict(route.split) if route.split is not None else dict.fromkeys(route.backends, 1),
            _stats(sums.get(route.name, Sums()), seconds),
        )
        for route in routes
    ]


def _soonest(certificates: Iterable[Iterable[Certificate]]) -> list[Certificate]:
    """One for each place in the configuration; where processes differ for a moment, the one that expires first."""
    found: dict[str, Certificate] = {}
    for each in (certificate for part in certificates for certificate in part):
        if each.where not in found or each.expires_s < found[each.where].expires_s:
            found[each.where] = each
    return list(found.values())


# What is a problem


def _process_problems(
    config: Config, workers: Sequence[WorkerStatus], not_ready: str | None, death: Death | None, now_s: float
) -> Iterator[Problem]:
    for worker in workers:
        if now_s - worker.answered_s > SILENT_S:
            yield Problem("warning", "gateway", f"Worker {worker.pid} does not answer", worker.answered_s)
    if not_ready is not None:
        if not not_ready.startswith("no backend"):  # the backends have lines of their own
            yield Problem("warning" if workers else "critical", "gateway", f"Not ready: {not_ready}")
    elif len(workers) < config.workers:
        text = f"{len(workers)} of {config.workers} workers answer"
        yield Problem("warning" if workers else "critical", "gateway", text)
    if death is not None and now_s - death.at_s < DEATH_SHOWN_S:
        text = f"Worker {death.pid} died with code {death.code}"
        reason = "it has been replaced" if len(workers) == config.workers else "it is being replaced"
        yield Problem("warning", "gateway", text, death.at_s, reason)


def _backend_problems(backend: BackendStatus, failures: Iterable[Failure]) -> Iterator[Problem]:
    name, endpoints = backend.name, backend.endpoints
    unusable = [endpoint for endpoint in endpoints if endpoint.state != "up"]
    if unusable:
        states = sorted({endpoint.state for endpoint in unusable})
        first = min(unusable, key=lambda endpoint: endpoint.since_s)
        is_none_left = len(unusable) == len(endpoints)
        if len(endpoints) == 1:
            which = "the endpoint is"
        elif is_none_left:
            which = f"{'both' if len(endpoints) == 2 else f'all {len(endpoints)}'} endpoints are"
        else:
            which = f"{len(unusable)} of {len(endpoints)} endpoints {'is' if len(unusable) == 1 else 'are'}"
        severity: Severity = "critical" if is_none_left else "warning"
        yield Problem(
            severity, "backend", f"{name}: {which} {' or '.join(states)}", first.since_s, _sentence(first.reason)
        )
    own = [failure for failure in failures if failure.backend == name]
    n_failed, n_requests = backend.stats.blames.get(Blame.BACKEND.value, 0), backend.stats.requests
    if n_failed:
        text = f"{name}: {_of(n_failed, n_requests)} failed in the last minute"
        yield Problem(_severity(n_failed, n_requests), "backend", text, None, _last_of(Blame.BACKEND, own))
    # such as a model that the backend does not know any more: few are clients' own affair, most are not
    n_failed = backend.stats.blames.get(Blame.CLIENT.value, 0)
    if n_failed and n_failed >= MOST_FAIL * n_requests:
        text = f"{name}: {_of(n_failed, n_requests)} failed because of clients in the last minute"
        yield Problem("warning", "client", text, None, _last_of(Blame.CLIENT, own))


def _request_problems(stats: Stats, failures: Sequence[Failure]) -> Iterator[Problem]:
    n_failed = stats.blames.get(Blame.GATEWAY.value, 0)
    if n_failed:
        text = f"The gateway failed or refused {_of(n_failed, stats.requests)} in the last minute"
        reason = _last_of(Blame.GATEWAY, failures)
        yield Problem(_severity(n_failed, stats.requests), "gateway", text, None, reason)
    n_failed = stats.blames.get(Blame.CLIENT.value, 0)
    if n_failed:
        text = f"Clients caused the failure of {_of(n_failed, stats.requests)} in the last minute"
        yield Problem("notice", "client", text, None, _last_of(Blame.CLIENT, failures))


def _uncounted(by_backend: Mapping[str, Sums]) -> Iterator[Problem]:
    if (others := by_backend.get(OTHER)) is not None:
        text = f"{others.requests:,} requests of the last minute are in no line of a route or backend"
        yield Problem("notice", "gateway", text, None, f"only {MAX_GROUPS} pairs of them are counted apart")


def _last_of(blame: Blame, failures: Iterable[Failure]) -> str:
    """The last of *failures* that *blame* has caused, in words; empty if it is not known any more."""
    last = next((failure for failure in failures if failure.blame == blame.value), None)
    return _sentence(f"the last: {last.reason}: {last.detail}") if last is not None else ""


def _limit_problems(in_flight: InFlight) -> Iterator[Problem]:
    for level, key, text in (
        (in_flight.requests, "limits.concurrent_requests", "requests in flight"),
        (in_flight.body_bytes, "limits.in_flight_bytes", "bytes in flight"),
        (in_flight.connections, "limits.connections", "connections of clients"),
    ):
        if level.limit and level.used >= NEARLY_FULL * level.limit:
            share = f"{100 * level.used / level.limit:.0f} %"
            yield Problem(
                "warning", "gateway", f"The limit of {text} is nearly reached", None, f"{key}: {share} in use"
            )


def _reload_problems(reload: Reload | None) -> Iterator[Problem]:
    if reload is None:
        return
    if not reload.is_successful:
        text = "The last reload failed, and the configuration before it stays in use"
        yield Problem("warning", "configuration", text, reload.at_s, reload.words)
    elif reload.words:
        yield Problem("notice", "configuration", "A part of the configuration waits", reload.at_s, reload.words)


def _certificate_problems(certificates: Iterable[Certificate], now_s: float) -> Iterator[Problem]:
    for certificate in certificates:
        left_s = certificate.expires_s - now_s
        if left_s <= 0:
            text = f"The certificate of {certificate.where} has expired"
            yield Problem("critical", "certificate", text, certificate.expires_s)
        elif left_s < EXPIRES_SOON_S:
            days = int(left_s // 86400)
            when = f"in {days} {'day' if days == 1 else 'days'}" if days else "within a day"
            yield Problem("warning", "certificate", f"The certificate of {certificate.where} expires {when}")


def _severity(n_failed: int, n_requests: int) -> Severity:
    if n_failed >= MOST_FAIL * n_requests:
        return "critical"
    return "warning" if n_failed >= MANY_FAIL * n_requests else "notice"


def _of(count: int, total: int) -> str:
    return f"{count:,} of {total:,} {'request' if total == 1 else 'requests'}"


def _sentence(text: str) -> str:
    """*text* on one line."""
    return " ".join(text.split())
