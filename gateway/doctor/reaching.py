"""The way to the server: what was meant by the URL, names, connection, TLS, and whether it is HTTP that answers.

What stops a request there is explained by `first_look`, in the words that the gateway's log has for it. Not here: what
the server speaks (`recognizing`).
"""

import asyncio
import re
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from gateway.backend import first_look
from gateway.certificates import TlsContext, expiry_of
from gateway.config import BackendTls, for_backend
from gateway.config.values import shortened
from gateway.doctor.asking import ASK_S, Asker, NoAnswerError, Reply
from gateway.doctor.report import Report, UnusableServerError
from gateway.errors import ConfigError
from gateway.policy.paths import find_path_fault

EXPIRES_SOON_DAYS = 30
"""A certificate that expires earlier is pointed out."""

MAX_SHOWN = 4
"""The most addresses that a line names."""

_OF_A_SERVER = re.compile(r"(?P<base>.*?)/(?:v2(?=/|$)|v1/models(?=/|$)|invocations$|ping$|predictions(?=/|$)).*")
"""A URL's path up to what belongs to a server's protocol and not to where the server is."""

_MODEL = re.compile(r"/v[12]/models/([^/:]+)")

_REFUSED_BY_A_GATEWAY = "/v2/models/a%2Fb"
"""No other server refuses this path in the words of the gateway."""


class Meant(NamedTuple):
    """What a URL that a user has typed stands for."""

    url: str
    """Scheme, host, port, and maybe a path."""
    model: str
    """The model that the URL names; mostly empty."""
    left_out: str
    """The end of its path, which belongs to the protocol."""


def meant_by(url: str) -> Meant:
    """What *url* stands for. Raises `ConfigError` if that is not a server's URL."""
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    match = _OF_A_SERVER.fullmatch(parts.path)
    model = _MODEL.search(parts.path)
    base = match["base"] if match else parts.path
    meant = parts._replace(path=base).geturl().rstrip("/")
    try:
        for_backend(meant, "127.0.0.1:0", "127.0.0.1:0")
    except ConfigError as error:
        raise ConfigError(f"{shortened(url)}: {str(error).partition(': ')[2]}") from None
    return Meant(meant, unquote(model[1]) if model else "", parts.path[len(base) :] if match else "")


async def reach(url: str, report: Report) -> tuple[Asker, Reply]:
    """What asks the server at *url* from now on, and its answer to `GET /v2`. Raises `UnusableServerError`."""
    report.heading("The way to it")
    parts = urlsplit(url)
    assert parts.hostname is not None
    await _resolve(parts.hostname, report)
    context = TlsContext("backends.default.tls", BackendTls()).context if parts.scheme == "https" else None
    asker = Asker(url, context)
    try:
        answer = await asker.get("/v2")
    except NoAnswerError as error:
        await asker.close()
        why = await _why_none(url) or str(error)
        if not error.is_certificate:
            raise UnusableServerError(why) from None
        report.problem(
            f"{why}. For the rest of this examination its certificate is not judged; in operation, set `tls.ca` to the "
            "file of the authority that has signed it, or `tls.server_name` if it has another name"
        )
        report.set("tls", {"verify": False}, "any certificate is taken: better is ca, the file of its authority")
        asker = Asker(url, TlsContext("backends.default.tls", BackendTls(verify=False)).context)
        try:
            answer = await asker.get("/v2")
        except NoAnswerError as again:
            await asker.close()
            raise UnusableServerError(str(again)) from None
    try:
        await _judge(asker, answer)
    except BaseException:
        await asker.close()
        raise
    report.ok(f"{parts.netloc} answers in HTTP, the first time within {answer.seconds * 1000:.0f} ms")
    if context is not None and "tls" not in report.settings:
        await _look_at_certificate(parts.hostname, parts.port or 443, context, report)
    return asker, answer


async def _resolve(host: str, report: Report) -> None:
    """Look *host* up and say so, if it is a name."""
    with suppress(OSError):
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)
        return
    try:
        async with asyncio.timeout(ASK_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise UnusableServerError(f"the name {host} could not be looked up within {ASK_S:g} s") from None
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no name for a host"
        raise UnusableServerError(f"the name {host} cannot be looked up: {reason}") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    more = f" and {len(addresses) - MAX_SHOWN} more" if len(addresses) > MAX_SHOWN else ""
    report.ok(f"{host} is {', '.join(addresses[:MAX_SHOWN])}{more}")


async def _why_none(url: str) -> str | None:
    """In the words of the first look, why there is no answer."""
    config = for_backend(url, "127.0.0.1:0", "127.0.0.1:0")
    finding = await first_look.look_once("default", config.backends["default"], url)
    return finding.words if finding is not None and finding.level is first_look.Level.BAD else None


async def _judge(asker: Asker, answer: Reply) -> None:
    """Raise `UnusableServerError` if *answer* to `GET /v2` comes from what can be no inference server."""
    refusal = None
    with suppress(NoAnswerError):
        refusal = await asker.get(_REFUSED_BY_A_GATEWAY)
    fault = find_path_fault(_REFUSED_BY_A_GATEWAY)
    if refusal is not None and fault is not None and refusal.status == 400 and fault in refusal.words:
        raise UnusableServerError("this is a tensor-gateway: name the inference server behind it")
    if answer.status in (401, 403):
        raise UnusableServerError(
            f"it answers, and needs credentials ({answer.words}), without which nothing can be found out. Clients send "
            "theirs through the gateway; or the gateway sends them all the same ones: `headers.set`"
        )
    finding = first_look.judge(answer.as_answer, urlsplit(asker.url).path)
    is_other = (answer.status >= 300 and answer.status not in (400, 404, 405)) or answer.as_answer.is_html
    if finding is not None and finding.level is first_look.Level.BAD and (is_other or b"/-/live" in answer.body):
        raise UnusableServerError(f"it {finding.words}" if finding.words.startswith("answers") else finding.words)


async def _look_at_certificate(host: str, port: int, context: ssl.SSLContext, report: Report) -> None:
    """Say until when the server's certificate, which was accepted, is valid."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(ASK_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
            certificate = writer.get_extra_info("peercert") or {}
            writer.transport.abort()
        expires_at = expiry_of(certificate)
        if expires_at is None:
            return
        days = (expires_at - datetime.now(UTC)).days
        words = f"its certificate is accepted, and valid until {expires_at:%Y-%m-%d}"
        if days < EXPIRES_SOON_DAYS:
            report.note(f"{words}, which is in {days} days: renew it soon")
        else:
            report.ok(words)
