"""The data of the status page: the states and counts of all processes, added up, and the problems in them.

An operator who looks at the page at night asks first: is the gateway healthy, and if not, who has to act? A `Problem`
answers this. The page (`status.html`) has the names of these data.
"""

import os
import socket
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import msgspec

from gateway import __version__
from gateway.certificates import expiry_words
from gateway.config import Config, Route
from gateway.telemetry.access_log import Line
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.reading import STARTED_S, Certificate, EndpointReading, Level, Reading
from gateway.telemetry.recent import Minute, stats
from gateway.telemetry.sums import Cells

_Listed = Generator[None, None, list[dict[str, Any]]]

_WORST_FIRST = "down", "ejected", "on trial", "up"
"""The states of an endpoint."""

MANY_FAIL = 0.01
"""The share of failed requests from which on they are a problem."""

MOST_FAIL = 0.5
"""The share of failed requests from which on a backend does not work."""


def status_of(
    config: Config, urls: dict[str, Any], readings: Sequence[Reading], metrics: Metrics, not_ready: str | None
) -> Generator[None, None, dict[str, Any]]:
    """The data of the status page of a gateway that serves by *config* at *urls*: `listen`, `admin`, the list `grpc`.

    *readings* are the last ones of its processes, and *metrics* has their counts. *not_ready* is why clients should not
    come. Times are seconds since 1970. Yields after each step of work.
    """
    minute = yield from metrics.recent.minute()
    certificates = chain.from_iterable(reading.certificates for reading in readings)
    # one for each place in the configuration; if processes differ for a moment, the first to expire
    last_first = sorted(certificates, key=lambda each: each.expires_s, reverse=True)
    status = {
        "version": __version__,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_s": STARTED_S,
        "now_s": time.time(),
        **urls,
        "n_workers": int(config.workers),
        "workers": [{"pid": each.pid, "started_s": each.started_s} for each in readings],
        "last_minute": _last_minute(minute),
        "in_flight": {
            "requests": _added(reading.requests for reading in readings),
            "body_bytes": _added(reading.body_bytes for reading in readings),
            "connections": _added(reading.connections for reading in readings),
        },
        "backends": (yield from _backends(config, readings, minute)),
        "routes": (yield from _routes(config, minute)),
        "failures": metrics.failures.latest(),
        "reload": metrics.last_reload,
        "certificates": list({each.where: each for each in last_first}.values()),
    }
    return status | _problems_of(status, not_ready)


def _added(levels: Iterable[Level]) -> Level:
    """The sum of the limits, and of what is in use of them."""
    levels = list(levels)
    return Level(sum(level.used for level in levels), sum(level.limit for level in levels))


def _last_minute(minute: Minute) -> dict[str, Any]:
    """The figures of all requests of *minute*; shares are those of the requests' time, and None without requests."""
    time_s = minute.amount("request_seconds")
    bodies = "client_request_bytes", "upstream_request_bytes", "upstream_response_bytes", "client_response_bytes"
    return {
        "seconds": minute.seconds,
        "all": stats(minute.all, minute.seconds),
        "codec_share": minute.amount("transcode_seconds") / time_s if time_s else None,
        "upstream_share": minute.amount("upstream_seconds") / time_s if time_s else None,
        "wire": {name: int(minute.amount(name)) for name in bodies},
    }


def _mean(cells: Cells) -> float | None:
    """The mean of what a histogram has counted; None if that is nothing."""
    *buckets, total = cells
    return total / sum(buckets) if any(buckets) else None


def _backends(config: Config, readings: Iterable[Reading], minute: Minute) -> _Listed:
    """The backends of *config*, with the states of their endpoints in *readings*."""
    found: dict[str, dict[str, list[EndpointReading]]] = {name: {} for name in config.backends}
    for reading in readings:
        for each in reading.endpoints:
            if each.backend in found:
                found[each.backend].setdefault(each.endpoint, []).append(each)
    backends = []
    for name, settings in config.backends.items():
        backend = {
            "name": name,
            "is_probed": settings.health is not None,
            "max_connections": config.max_connections(name),
            "speaks": next((each.speaks for seen in found[name].values() for each in seen if each.speaks), ""),
            "endpoints": [_endpoint(url, seen) for url, seen in found[name].items()],
            "stats": stats(minute.by_backend[name], minute.seconds),
            "rows_per_batch": _mean(minute.sums["batch_rows", name]),
            "batch_wait_s": _mean(minute.sums["batch_wait_seconds", name]),
        }
        backends.append(backend)
        yield
    return backends


def _endpoint(url: str, readings: Sequence[EndpointReading]) -> dict[str, Any]:
    """One endpoint, as all processes together see it: in the worst state that one of them finds it in."""
    state = min((each.state for each in readings), key=_WORST_FIRST.index)
    alike = [each for each in readings if each.state == state]
    # an endpoint is out of use since the first process found it so, and up since the last process did
    told = (max if state == "up" else min)(alike, key=lambda each: each.since_s)
    return {
        "url": url,
        "state": state,
        "since_s": told.since_s,
        "reason": told.reason,
        "found_by": len(alike),
        "busy": sum(each.busy for each in readings),
        "idle": sum(each.idle for each in readings),
    }


def _routes(config: Config, minute: Minute) -> _Listed:
    """The routes of *config*; without any, a row for the backend that gets every request."""
    routes = []
    for each in config.routes or [Route(name=name, backend=name) for name in config.backends]:
        route = {
            "name": each.name,
            "host": each.host,
            "path_prefix": each.path_prefix,
            "models": each.models,
            "backends": each.split if each.split is not None else dict.fromkeys(each.backends, 1),
            "stats": stats(minute.by_route[each.name], minute.seconds),
        }
        routes.append(route)
        yield
    return routes


class Problem(msgspec.Struct, frozen=True):
    """Something that an operator should know, in words."""

    severity: Literal["critical", "warning"]
    """Critical: requests fail, or soon will."""
    about: Literal["backend", "gateway", "configuration", "certificate"]
    """Who has to act."""
    text: str
    since_s: float | None = None
    """In seconds since 1970."""
    reason: str = ""


def _problems_of(status: Mapping[str, Any], not_ready: str | None) -> dict[str, Any]:
    """The `problems` in *status*, the worst first; the `state`, `ok` or the worst severity; the `headline`."""
    failures = status["failures"]
    problems = [
        *chain.from_iterable(_backend_problems(backend, failures) for backend in status["backends"]),
        *_failed(status["last_minute"]["all"], "gateway", "The gateway failed or refused", failures),
        *_certificate_problems(status["certificates"], status["now_s"]),
    ]
    if (reload := status["reload"]) is not None and not reload.is_successful:
        text = "The last reload failed, and the configuration before it stays in use"
        problems.append(Problem("warning", "configuration", text, reload.since_s, reload.words))
    if not_ready is not None and not not_ready.startswith("no backend"):  # the backends have lines of their own
        severity: Literal["critical", "warning"] = "warning" if status["workers"] else "critical"
        problems.insert(0, Problem(severity, "gateway", f"Not ready: {not_ready}"))
    problems.sort(key=lambda problem: problem.severity != "critical")
    if not problems:
        return {"problems": [], "state": "ok", "headline": "No backend is known to be down"}
    return {"problems": problems, "state": problems[0].severity, "headline": problems[0].text}


def _backend_problems(backend: Mapping[str, Any], failures: Iterable[Line]) -> Iterator[Problem]:
    name, endpoints = backend["name"], backend["endpoints"]
    unusable = [endpoint for endpoint in endpoints if endpoint["state"] in ("down", "ejected")]
    if unusable:
        states = " or ".join(sorted({endpoint["state"] for endpoint in unusable}))
        text = f"{name}: endpoints {states}: {len(unusable)} of {len(endpoints)}"
        first = min(unusable, key=lambda endpoint: endpoint["since_s"])
        is_all = len(unusable) == len(endpoints)
        yield Problem("critical" if is_all else "warning", "backend", text, first["since_s"], first["reason"])
    own = [failure for failure in failures if failure["backend"] == name]
    yield from _failed(backend["stats"], "backend", f"{name} failed", own)


def _failed(
    stats: Mapping[str, Any], blame: Literal["backend", "gateway"], words: str, failures: Iterable[Line]
) -> Iterator[Problem]:
    """The failures with this *blame* as one problem, if they are many."""
    n_failed, n_requests = stats["blames"].get(blame, 0), stats["requests"]
    if not n_failed or n_failed < MANY_FAIL * n_requests:
        return
    last = next((failure for failure in failures if failure["blame"] == blame), None)
    reason = f"the last: {last['reason']}: {last['detail']}" if last is not None else ""
    text = f"{words} {n_failed:,} of {n_requests:,} requests in the last minute"
    yield Problem("critical" if n_failed >= MOST_FAIL * n_requests else "warning", blame, text, None, reason)


def _certificate_problems(certificates: Iterable[Certificate], now_s: float) -> Iterator[Problem]:
    for certificate in certificates:
        if words := expiry_words(certificate.expires_s - now_s):
            text = f"The certificate of {certificate.where} {words}"
            since_s = certificate.expires_s if certificate.expires_s <= now_s else None
            yield Problem("critical" if since_s else "warning", "certificate", text, since_s)
