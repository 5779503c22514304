"""The data of the status page, and the problems in them.

An operator who looks at the page at night asks first: is the gateway healthy, and if not, who has to act? A `Problem`
answers this in words. Not here: the sums over all processes (`seen`), the page (`status.html`), and serving it
(`admin`).
"""

import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from gateway import __version__
from gateway.config import Config
from gateway.errors import Blame
from gateway.process.seen import (
    BackendStatus,
    LastMinute,
    RouteStatus,
    added,
    backends_of,
    last_minute_of,
    routes_of,
    soonest,
)
from gateway.telemetry.failures import Failure
from gateway.telemetry.metrics import Metrics, Reload
from gateway.telemetry.reading import STARTED_S, Certificate, Level, Reading
from gateway.telemetry.recent import MAX_GROUPS, OTHER, Stats, total
from gateway.telemetry.sums import Row

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
    grpc: Sequence[str] = ()


class Answered(NamedTuple):
    """The reading of a process, and the time of its last message, in seconds since 1970."""

    reading: Reading
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
    """Who has to act."""
    text: str
    since_s: float | None = None
    """In seconds since 1970."""
    reason: str = ""


class WorkerStatus(msgspec.Struct, frozen=True):
    """One process that serves clients."""

    pid: int
    started_s: float
    answered_s: float
    """When its last message came."""


class Status(msgspec.Struct, frozen=True):
    """All data of the status page. Times are seconds since 1970."""

    version: str
    host: str
    pid: int
    started_s: float
    now_s: float
    listen: str
    admin: str
    grpc: list[str]
    """The URL for clients of gRPC; empty if it is not configured."""
    n_workers: int
    """How many processes are configured to serve clients."""
    workers: list[WorkerStatus]
    last_minute: LastMinute
    in_flight: dict[str, Level]
    """The use of the whole gateway's limits: `requests`, `body_bytes`, `connections`."""
    backends: list[BackendStatus]
    routes: list[RouteStatus]
    failures: list[Failure]
    """The last first."""
    clients: list[tuple[str, int]]
    """The names of tokens with the most requests since the start, and how many."""
    reload: Reload | None
    """The last one that was tried."""
    certificates: list[Certificate]
    problems: list[Problem] = []
    """The problems in these data, the worst first."""
    state: State = "ok"
    headline: str = ""
    """The worst problem, or that there is none."""


def status_of(
    config: Config,
    listens: Listens,
    answered: Sequence[Answered],
    metrics: Metrics,
    not_ready: str | None,
    death: Death | None = None,
) -> Status:
    """The status of a gateway that serves by *config*, whose processes have *answered*.

    *metrics* has their counts. *not_ready* is why clients should not come; *death* is the last death of a worker.
    """
    readings = [each.reading for each in answered]
    minute = metrics.recent.minute()
    status = Status(
        version=__version__,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_s=STARTED_S,
        now_s=time.time(),
        listen=listens.clients,
        admin=listens.admin,
        grpc=list(listens.grpc),
        n_workers=int(config.workers),
        workers=[WorkerStatus(each.reading.pid, each.reading.started_s, each.answered_s) for each in answered],
        last_minute=last_minute_of(minute),
        in_flight={
            "requests": added(reading.requests for reading in readings),
            "body_bytes": added(reading.body_bytes for reading in readings),
            "connections": added(reading.connections for reading in readings),
        },
        backends=backends_of(config, readings, minute),
        routes=routes_of(config, minute),
        failures=metrics.failures.latest(),
        clients=metrics.busiest_clients(),
        reload=metrics.last_reload,
        certificates=soonest(certificate for reading in readings for certificate in reading.certificates),
    )
    problems = [
        *_process_problems(status, not_ready, death),
        *chain.from_iterable(_backend_problems(backend, status.failures) for backend in status.backends),
        *_request_problems(status.last_minute.all, status.failures),
        *_uncounted(minute.by_backend),
        *_limit_problems(status.in_flight),
        *_reload_problems(status.reload),
        *_certificate_problems(status.certificates, status.now_s),
    ]
    problems.sort(key=lambda problem: _SEVERITIES.index(problem.severity))
    if not problems or problems[0].severity == "notice":
        return replace(status, problems=problems, headline=_all_is_well(status.backends))
    return replace(status, problems=problems, state=problems[0].severity, headline=problems[0].text)


def _all_is_well(backends: Iterable[BackendStatus]) -> str:
    """Words for a gateway without problems; that backends answer is only said if they were asked."""
    if all(backend.is_probed or backend.stats.requests for backend in backends):
        return "All backends answer"
    return "No backend is known to be down"


def _process_problems(status: Status, not_ready: str | None, death: Death | None) -> Iterator[Problem]:
    workers, n_workers = status.workers, status.n_workers
    severity: Severity = "warning" if workers else "critical"
    for worker in workers:
        if status.now_s - worker.answered_s > SILENT_S:
            yield Problem("warning", "gateway", f"Worker {worker.pid} does not answer", worker.answered_s)
    if not_ready is None:
        if len(workers) < n_workers:
            yield Problem(severity, "gateway", f"{len(workers)} of {n_workers} workers answer")
    elif not not_ready.startswith("no backend"):  # the backends have lines of their own
        yield Problem(severity, "gateway", f"Not ready: {not_ready}")
    if death is not None and status.now_s - death.at_s < DEATH_SHOWN_S:
        text = f"Worker {death.pid} died with code {death.code}"
        reason = "it has been replaced" if len(workers) == n_workers else "it is being replaced"
        yield Problem("warning", "gateway", text, death.at_s, reason)


def _endpoint_problems(backend: BackendStatus) -> Iterator[Problem]:
    name, endpoints = backend.name, backend.endpoints
    unusable = [endpoint for endpoint in endpoints if endpoint.state in ("down", "ejected")]
    if unusable:
        n_unusable, n_all = len(unusable), len(endpoints)
        if n_all == 1:
            which = "the endpoint is"
        elif n_unusable == n_all:
            which = f"{'both' if n_all == 2 else f'all {n_all}'} endpoints are"
        else:
            which = f"{n_unusable} of {n_all} endpoints {'is' if n_unusable == 1 else 'are'}"
        text = f"{name}: {which} {' or '.join(sorted({endpoint.state for endpoint in unusable}))}"
        first = min(unusable, key=lambda endpoint: endpoint.since_s)
        severity: Severity = "critical" if n_unusable == n_all else "warning"
        yield Problem(severity, "backend", text, first.since_s, _sentence(first.reason))
    for endpoint in endpoints:
        if endpoint.state == "on trial":
            text = f"{name}: {endpoint.url} is on trial: the next request shows whether it works again"
            yield Problem("notice", "backend", text, endpoint.since_s, _sentence(endpoint.reason))


def _backend_problems(backend: BackendStatus, failures: Iterable[Failure]) -> Iterator[Problem]:
    yield from _endpoint_problems(backend)
    name = backend.name
    own = [failure for failure in failures if failure.backend == name]
    n_failed, n_requests = backend.stats.blames.get(Blame.BACKEND.value, 0), backend.stats.requests
    if n_failed:
        text = f"{name}: {_of(n_failed, n_requests)} failed in the last minute"
        yield Problem(_severity(n_failed, n_requests), "backend", text, None, _last_of(Blame.BACKEND, own))
    # errors such as a model that the backend has lost: a few may be the clients' mistakes, a large share is not
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


def _uncounted(by_backend: Mapping[str, Mapping[Row, int]]) -> Iterator[Problem]:
    if (others := by_backend.get(OTHER)) is not None:
        text = f"{total(others, 'requests'):,} requests of the last minute are in no line of a route or backend"
        yield Problem("notice", "gateway", text, None, f"only {MAX_GROUPS} pairs of them are counted apart")


def _last_of(blame: Blame, failures: Iterable[Failure]) -> str:
    """The latest of *failures* with *blame*, in words; empty if none is kept any more."""
    last = next((failure for failure in failures if failure.blame == blame.value), None)
    return _sentence(f"the last: {last.reason}: {last.detail}") if last is not None else ""


def _limit_problems(in_flight: Mapping[str, Level]) -> Iterator[Problem]:
    for name, key, what in (
        ("requests", "limits.concurrent_requests", "requests in flight"),
        ("body_bytes", "limits.in_flight_bytes", "bytes in flight"),
        ("connections", "limits.connections", "connections of clients"),
    ):
        level = in_flight[name]
        if level.limit and level.used >= NEARLY_FULL * level.limit:
            reason = f"{key}: {100 * level.used / level.limit:.0f} % in use"
            yield Problem("warning", "gateway", f"The limit of {what} is nearly reached", None, reason)


def _reload_problems(reload: Reload | None) -> Iterator[Problem]:
    if reload is None:
        return
    if not reload.is_successful:
        text = "The last reload failed, and the configuration before it stays in use"
        yield Problem("warning", "configuration", text, reload.since_s, reload.words)
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
