"""The problems in the data of the status page, in words.

An operator who looks at the page at night asks first: is the gateway healthy, and if not, who has to act? A `Problem`
answers this. Not here: the data (`status`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import msgspec

from gateway.telemetry.access_log import Line
from gateway.telemetry.metrics import Reload
from gateway.telemetry.reading import Certificate

MANY_FAIL = 0.01
"""The share of failed requests from which on they are a problem, and not merely mentioned."""

MOST_FAIL = 0.5
"""The share of failed requests from which on a backend does not work."""

EXPIRES_SOON_S = 14 * 24 * 3600.0
"""How long before its end a certificate is a problem."""

Severity = Literal["critical", "warning", "notice"]
_SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice")


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


def problems_of(status: Mapping[str, Any], not_ready: str | None) -> dict[str, Any]:
    """The `problems` in *status*, the worst first; the `state`, `ok` or the worst severity; the `headline`."""
    backends, failures, all_ = status["backends"], status["failures"], status["last_minute"]["all"]
    problems = [
        *chain.from_iterable(_backend_problems(backend, failures) for backend in backends),
        *_failed(all_, "gateway", "The gateway failed or refused {}", failures),
        *_failed(all_, "client", "Clients caused the failure of {}", failures, "notice"),
        *_reload_problems(status["reload"]),
        *_certificate_problems(status["certificates"], status["now_s"]),
    ]
    if not_ready is not None and not not_ready.startswith("no backend"):  # the backends have lines of their own
        severity: Severity = "warning" if status["workers"] else "critical"
        problems.insert(0, Problem(severity, "gateway", f"Not ready: {not_ready}"))
    problems.sort(key=lambda problem: _SEVERITIES.index(problem.severity))
    if problems and problems[0].severity != "notice":
        return {"problems": problems, "state": problems[0].severity, "headline": problems[0].text}
    is_known = all(backend["is_probed"] or backend["stats"]["requests"] for backend in backends)
    headline = "All backends answer" if is_known else "No backend is known to be down"
    return {"problems": problems, "state": "ok", "headline": headline}


def _backend_problems(backend: Mapping[str, Any], failures: Sequence[Line]) -> Iterator[Problem]:
    name, endpoints, stats = backend["name"], backend["endpoints"], backend["stats"]
    unusable = [endpoint for endpoint in endpoints if endpoint["state"] in ("down", "ejected")]
    if unusable:
        states = " or ".join(sorted({endpoint["state"] for endpoint in unusable}))
        text = f"{name}: endpoints {states}: {len(unusable)} of {len(endpoints)}"
        first = min(unusable, key=lambda endpoint: endpoint["since_s"])
        severity: Severity = "critical" if len(unusable) == len(endpoints) else "warning"
        yield Problem(severity, "backend", text, first["since_s"], first["reason"])
    own = [failure for failure in failures if failure["backend"] == name]
    yield from _failed(stats, "backend", f"{name}: {{}} failed", own)


def _failed(
    stats: Mapping[str, Any],
    blame: Literal["backend", "gateway", "client"],
    words: str,
    failures: Iterable[Line],
    severity: Severity | None = None,
) -> Iterator[Problem]:
    """The failures with this *blame* as one problem; without a *severity* their share decides it."""
    n_failed, n_requests = stats["blames"].get(blame, 0), stats["requests"]
    if not n_failed:
        return
    if severity is None:
        share = n_failed / n_requests
        severity = "critical" if share >= MOST_FAIL else "warning" if share >= MANY_FAIL else "notice"
    last = next((failure for failure in failures if failure["blame"] == blame), None)
    reason = f"the last: {last['reason']}: {last['detail']}" if last is not None else ""
    many = words.format(f"{n_failed:,} of {n_requests:,} {'request' if n_requests == 1 else 'requests'}")
    yield Problem(severity, blame, f"{many} in the last minute", None, reason)


def _reload_problems(reload: Reload | None) -> Iterator[Problem]:
    if reload is not None and not reload.is_successful:
        text = "The last reload failed, and the configuration before it stays in use"
        yield Problem("warning", "configuration", text, reload.since_s, reload.words)
    elif reload is not None and reload.words:
        yield Problem("notice", "configuration", "A part of the configuration waits", reload.at_s, reload.words)


def _certificate_problems(certificates: Iterable[Certificate], now_s: float) -> Iterator[Problem]:
    for certificate in certificates:
        text = f"The certificate of {certificate.where}"
        left_s = certificate.expires_s - now_s
        if left_s <= 0:
            yield Problem("critical", "certificate", f"{text} has expired", certificate.expires_s)
        elif left_s < EXPIRES_SOON_S:
            yield Problem("warning", "certificate", f"{text} expires in {left_s / 86400:.1f} days")
