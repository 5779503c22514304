"""The way to the server: the meaning of the URL, names, connection, TLS, and whether the server answers in HTTP.

If a request does not get through, `first_look` explains why, in the same words as the gateway's log. Not here: what the
server speaks (`recognizing`).
"""

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Endpoint
from gateway.backend.first_look import BAD, SPEAKS_TLS, judge, resolved, speaks_tls, why_no_answer
from gateway.backend.questions import Answer
from gateway.backend.resolving import at_addresses
from gateway.certificates import expiry_of
from gateway.config import for_backend
from gateway.config.values import first_of, shortened
from gateway.doctor.asking import ASK_S, Asker
from gateway.doctor.given import endpoint_of
from gateway.doctor.report import Report, UnusableServerError
from gateway.errors import ConfigError, ErrorKind
from gateway.policy.paths import find_path_fault

EXPIRES_SOON_DAYS = 30
"""A certificate that expires within this time is pointed out."""

MAX_SHOWN = 4
"""How many addresses a line names."""

_OF_A_SERVER = re.compile(r"(?P<base>.*?)/(?:v2(?=/|$)|v1/models(?=/|$)|invocations$|ping$|predictions(?=/|$)).*")
"""A URL's path that ends with a path of some protocol; `base` is the part before it, where the server is."""

_MODEL = re.compile(r"/v[12]/models/([^/:]+)")

_HOW_TO_TRUST = "--ca FILE gives the doctor the authority that has signed it, --server-name NAME the name that it has"

_REFUSED_BY_A_GATEWAY = "/v2/models/a%2Fb"
"""A path that the gateway refuses in its own words, by which a gateway is recognized."""


class Meant(NamedTuple):
    """The meaning of a URL that a user has typed."""

    url: str
    """Scheme, host, port, and maybe a path."""
    model: str
    """The model that the URL names; mostly empty."""
    left_out: str
    """The end of its path, which belongs to the protocol."""


def meant_by(url: str) -> Meant:
    """The meaning of *url*. Raises `ConfigError` if it is not a server's URL."""
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"{shortened(url)}: not a URL, such as http://127.0.0.1:8000") from None
    if not parts.netloc:
        raise ConfigError("expected the URL of a server, such as http://127.0.0.1:8000")
    match = _OF_A_SERVER.fullmatch(parts.path)
    model = _MODEL.search(parts.path)
    base = match["base"] if match else parts.path
    meant = parts._replace(path=base).geturl().rstrip("/")
    try:
        for_backend(meant, "127.0.0.1:0", "127.0.0.1:0")
    except ConfigError as error:
        reason = str(error).partition(": ")[2].replace("`headers.set`", "--header")
        raise ConfigError(f"{shortened(url)}: {reason}") from None
    return Meant(meant, unquote(model[1]) if model else "", parts.path[len(base) :] if match else "")


async def reach(url: str, endpoint: Endpoint, headers: Mapping[str, str], report: Report) -> tuple[Asker, Answer]:
    """Reach the server at *url*: returns an asker for it, which sends *headers*, and its answer to `GET /v2`.

    Raises `UnusableServerError`.
    """
    endpoint = await _looked_up(endpoint, report)
    asker = Asker(endpoint, headers)
    try:
        answer = await asker.get("/v2")
    except NoAnswerError as error:
        why = await _why_no_answer(endpoint, error)
        if not _is_certificate(error):
            raise UnusableServerError(why) from None
        is_expired = "has expired" in why
        how = "it has to be renewed" if is_expired else _HOW_TO_TRUST
        if headers:
            unsent = "The headers that were given were not sent, because this may be another server"
            raise UnusableServerError(f"{why}. {unsent}: {how}") from None
        report.problem(f"{why}. For the rest of this examination its certificate is not judged: {how}")
        given = report.settings["tls"].value if "tls" in report.settings else {}
        better = "that the server renews its own" if is_expired else "ca, the file of its authority"
        report.set("tls", {**given, "verify": False}, f"any certificate is taken: better is {better}")
        asker = Asker(replace(endpoint, tls=endpoint_of(url, report.settings)[0].tls))
        try:
            answer = await asker.get("/v2")
        except NoAnswerError as again:
            raise UnusableServerError(await _why_no_answer(asker.endpoint, again)) from None
    await _judge(asker, answer)
    report.ok(f"{urlsplit(url).netloc} answers in HTTP, the first time within {answer.seconds * 1000:.0f} ms")
    expires_at = expiry_of(dict(answer.certificate))
    if expires_at is not None:
        days = (expires_at - datetime.now(UTC)).days
        words = f"its certificate is accepted, and valid until {expires_at:%Y-%m-%d}"
        if days < EXPIRES_SOON_DAYS:
            report.note(f"{words}, which is in {days} days: renew it soon")
        else:
            report.ok(words)
    return asker, answer


async def _why_no_answer(endpoint: Endpoint, error: NoAnswerError) -> str:
    return str(error) if error.kind is ErrorKind.TIMEOUT else await why_no_answer(endpoint, error)


def _is_certificate(error: BaseException | None) -> bool:
    """Whether *error* was caused by a server's certificate that was not accepted."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__context__
    return error is not None


async def _looked_up(endpoint: Endpoint, report: Report) -> Endpoint:
    """*endpoint* with the addresses of its name, which are reported. Raises `UnusableServerError`."""
    if endpoint.addresses:
        return endpoint
    host = endpoint.host
    try:
        async with asyncio.timeout(ASK_S):
            found = await resolved(endpoint)
    except TimeoutError:
        raise UnusableServerError(f"the name {host} could not be looked up within {ASK_S:g} s") from None
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name for a host"
        raise UnusableServerError(f"the name {host} cannot be looked up: {reason}") from None
    report.ok(f"{host} is {first_of(found.addresses, MAX_SHOWN)}")
    endpoints = at_addresses(endpoint, found.addresses)
    if len(endpoints) > 1:
        report.note(
            f"to the gateway these are {len(endpoints)} servers, each with connections and probes of its own. It is "
            "one of them that is examined here"
        )
        dead: dict[str, list[str]] = {}
        reasons = await asyncio.gather(*map(_why_unreachable, endpoints))
        for address, reason in zip(found.addresses, reasons, strict=True):
            dead.setdefault(reason, []).append(address)
        if dead.pop("", None):  # if no address answers, the next question says why
            for reason, those in dead.items():
                to = first_of(those, MAX_SHOWN)
                report.problem(f"no connection to {to}: {reason}. As long as that lasts, the gateway asks the others")
    return found


async def _why_unreachable(endpoint: Endpoint) -> str:
    """Why there is no connection to the address of *endpoint*; empty if there is one."""
    try:
        await Asker(endpoint).get("/v2")
    except NoAnswerError as error:
        return error.why if error.kind in (ErrorKind.UNREACHABLE, ErrorKind.TIMEOUT) else ""
    return ""


async def _judge(asker: Asker, answer: Answer) -> None:
    """Raise `UnusableServerError` if *answer* to `GET /v2` comes from what can be no inference server."""
    with suppress(NoAnswerError):
        refusal = await asker.get(_REFUSED_BY_A_GATEWAY)
        if refusal.status == 400 and str(find_path_fault(_REFUSED_BY_A_GATEWAY)) in refusal.words:
            raise UnusableServerError("this is a tensor-gateway: name the inference server behind it")
    if unauthorized := asker.why_unauthorized(answer):
        raise UnusableServerError(unauthorized)
    if answer.status == 400 and asker.endpoint.tls is None and await speaks_tls(asker.endpoint):
        raise UnusableServerError(SPEAKS_TLS)
    finding = judge(answer, asker.endpoint.base_path)
    # any other server that answers 200 may still speak another dialect
    if finding is not None and finding.level is BAD and (answer.status != 200 or answer.is_html):
        raise UnusableServerError(f"it {finding.words}" if finding.words.startswith("answers") else finding.words)
