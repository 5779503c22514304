"""The problems in the data of the status page, in words.

An operator who looks at the page at night asks first: is the gateway healthy, and if not, who has to act? A `Problem`
answers this. Not here: the data (`status`).
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Literal

import msgspec

from gateway.telemetry.access_log import Line
from gateway.telemetry.metrics import Reload
from gateway.telemetry.reading import Certificate

MANY_FAIL = 0.01
"""The share of failed requests from which on they are a problem."""

MOST_FAIL = 0.5
"""The share of failed requests from which on a backend does not work."""

EXPIRES_SOON_S = 14 * 24 * 3600.0
"""How long before its end a certificate is a problem."""


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


def problems_of(status: Mapping[str, Any], not_ready: str | None) -> dict[str, Any]:
    """The `problems` in *status*, the worst first; the `state`, `ok` or the worst severity; the `headline`."""
    failures = status["failures"]
    problems = [
        *chain.from_iterable(_backend_problems(backend, failures) for backend in status["backends"]),
        *_failed(status["last_minute"]["all"], "gateway", "The gateway failed or refused", failures),
        *_reload_problems(status["reload"]),
        *_certificate_problems(status["certificates"], status["now_s"]),
    ]
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


def _reload_problems(reload: Reload | None) -> Iterator[Problem]:
    if reload is not None and not reload.is_successful:
        text = "The last reload failed, and the configuration before it stays in use"
        yield Problem("warning", "configuration", text, reload.since_s, reload.words)


def _certificate_problems(certificates: Iterable[Certificate], now_s: float) -> Iterator[Problem]:
    for certificate in certificates:
        text = f"The certificate of {certificate.where}"
        left_s = certificate.expires_s - now_s
        if left_s <= 0:
            yield Problem("critical", "certificate", f"{text} has expired", certificate.expires_s)
        elif left_s < EXPIRES_SOON_S:
            yield Problem("warning", "certificate", f"{text} expires in {left_s / 86400:.1f} days")
