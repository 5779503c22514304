"""The first look at backends: when `serve` starts, each endpoint is asked `GET /v2`, and the log says who answers.

The look finds the usual mistakes of a newcomer: a server that is not up, another server, a gRPC port, http and https
exchanged, the gateway itself. It only logs: requests are served whatever it finds. If the answer to the one request
needs an explanation, a few more are sent. All of them take `LOOK_S` at most, over connections of their own, which take
no slot and are counted nowhere. A host name that cannot be resolved is reported by `resolving`.

Not here: whether an endpoint gets requests (`health`, `policy`).
"""

import asyncio
import errno
import logging
import os
import ssl
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Endpoint, Said
from gateway.backend.questions import (
    EXTENSION,
    MLFLOW,
    PYTHON,
    TEMPLATE,
    TENSORFLOW,
    Answer,
    Asker,
    Get,
    ask_other_dialect,
    own_connections,
    recognized,
)
from gateway.backend.resolving import look_up, usable_addresses
from gateway.backend.speaking import AUTO
from gateway.certificates import TlsContext, uses_tls
from gateway.config import Backend, Config
from gateway.config.values import shortened
from gateway.errors import ConfigError, ErrorKind, GatewayError
from gateway.policy.crossing import BackendHeaders, Fields

LOOK_S = 5.0
"""How long the look at one endpoint may take, with all of its requests."""

TRY_S = 1.0
"""How long a try of another protocol may take, within `LOOK_S`: most servers close if they do not understand it."""

# The preface of an HTTP/2 client, followed by an empty SETTINGS frame (RFC 9113 section 3.4).
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))

_TLS_ALERT, _TLS_HANDSHAKE = b"\x15\x03", b"\x16\x03"  # the first bytes of records (RFC 8446 section 5.1)

_AS = {TENSORFLOW: "TensorFlow Serving and KServe's V1 protocol do", MLFLOW: "MLflow's scoring server does"}
"""Words for messages: which servers answer in each dialect."""

AT_ONCE = 8
"""How many endpoints are looked at at the same time: each look may be a handshake."""

_SPEAKS_TLS = "it speaks TLS there: write https:// in the endpoint"

_CLIENT_CERTIFICATE = "set `tls.certificate` and `tls.key` to one that it accepts"

log = logging.getLogger("gateway")

GOOD, BAD = logging.INFO, logging.WARNING
"""The levels at which findings are logged."""


class Finding(NamedTuple):
    """The result of the look at one endpoint, in words."""

    level: int
    """`GOOD` or `BAD`."""
    words: str


async def look_at(config: Config, gateway: str) -> None:
    """Look at all endpoints of *config*, and log each finding. *gateway* is this gateway's name in `Via`."""
    free = asyncio.Semaphore(AT_ONCE)
    await asyncio.gather(*(_look_at(name, backend, gateway, free) for name, backend in config.backends.items()))


async def _look_at(name: str, backend: Backend, gateway: str, free: asyncio.Semaphore) -> None:
    urls = backend.endpoints
    with suppress(ConfigError):  # files have changed since the start; requests report this
        # in a thread, because loading the system's authorities takes 20 ms
        tls = await asyncio.to_thread(TlsContext, f"backends.{name}.tls", backend.tls) if uses_tls(urls) else None
        fields = BackendHeaders(backend.headers.set, backend.headers.remove).probing("first look")
        fields.append(("Via", f"1.1 {gateway}"))
        await asyncio.gather(*(_look(name, backend, Endpoint.parse(url, tls), fields, free) for url in urls))


async def _look(name: str, backend: Backend, endpoint: Endpoint, fields: Fields, free: asyncio.Semaphore) -> None:
    """Look at *endpoint*, and log the finding."""
    connections = own_connections(name, backend.timeouts.connect)
    try:
        async with free, asyncio.timeout(LOOK_S):
            endpoint = endpoint if endpoint.addresses else await resolved(endpoint)
            finding = await _find(name, backend, endpoint, Asker(connections, endpoint, fields).get)
    except TimeoutError:
        finding = Finding(BAD, f"no answer to GET {endpoint.base_path}/v2 within {LOOK_S:g} s")
    except (GatewayError, OSError, UnicodeError):  # this machine is at its limits, or `resolving` reports it
        return
    finally:
        await connections.close()
    log.log(finding.level, "backend %r: %s%s: %s", name, endpoint.url, endpoint.base_path, finding.words)


async def resolved(endpoint: Endpoint) -> Endpoint:
    """*endpoint* with the addresses of its host. Raises `OSError` and `UnicodeError`."""
    return replace(endpoint, addresses=usable_addresses(await look_up(endpoint.host)))


async def _find(name: str, backend: Backend, endpoint: Endpoint, get: Get) -> Finding:
    """Look at *endpoint*: one question, and more if its answer needs an explanation.

    Raises `GatewayError` if this machine cannot ask.
    """
    try:
        answer = await get("/v2")
    except NoAnswerError as error:
        return Finding(BAD, await why_no_answer(endpoint, error))
    if backend.dialect in (TEMPLATE, PYTHON):
        return Finding(GOOD, f"answers HTTP ({answer.status_line})")
    said = Said("", answers=_said(endpoint, answer))
    with suppress(NoAnswerError):
        # a server of KServe's V1 protocol may say V2 of itself
        said = await (ask_other_dialect(get) if backend.dialect in _AS else recognized(answer, get))
    if said.dialect and backend.dialect in (AUTO, said.dialect):
        words = f"{said.title or f'a server with `dialect: {said.dialect}`'} answers"
        if said.is_binary:
            words += f", and says that it has {EXTENSION}: with `binary: auto` inferences pass through as they come"
        return Finding(GOOD, words)
    if said.dialect:
        words = f"{_said(endpoint, answer)}, and otherwise as {_AS[said.dialect]}: set `dialect: {said.dialect}`"
    elif refused := answer.refused(backend.headers.set):  # it replaces the clients' own, which might be accepted
        words = f"the {refused} of `backends.{shortened(name)}.headers.set` is refused; is it right, and not expired?"
        return Finding(BAD, f"{_said(endpoint, answer)}: {words}")
    elif finding := await judge(endpoint, answer):
        return finding
    else:
        words = f"{said.answers}: not a server of a protocol that the gateway knows? If only its metadata is missing, "
        words += "inferences pass all the same"
    return Finding(BAD, f"{words}; `tensor-gateway doctor URL` tells more")


# Why there is no answer


async def why_no_answer(endpoint: Endpoint, error: NoAnswerError) -> str:
    """Why `GET /v2` at *endpoint*, whose addresses must be known, ended with *error*, in words."""
    path = f"{endpoint.base_path}/v2"
    if error.why == os.strerror(errno.ECONNREFUSED):
        return f"nothing listens on port {endpoint.port} there; is the server up?"
    if error.kind is ErrorKind.UNREACHABLE:
        return f"cannot be reached: {error.why}"
    if endpoint.tls is None:
        head = await _first_bytes(endpoint, _HTTP2_PREFACE, 9)
        if head[3:4] == b"\x04" and not any(head[5:]):  # SETTINGS of stream 0, which every server of HTTP/2 sends first
            return (
                "this is a gRPC port, and the gateway needs the server's HTTP port: of Triton 8000 instead of 8001, of "
                "MLServer 8080 instead of 8081"
            )
        if await _speaks_tls(endpoint):
            return _SPEAKS_TLS
    if error.kind is ErrorKind.MALFORMED_RESPONSE:
        return f"GET {path}: {error.why}"
    closed = f"it closed the connection without an answer to GET {path}"
    # many servers end a handshake without saying why
    return closed if endpoint.tls is None else f"{closed}; if it wants a client certificate, {_CLIENT_CERTIFICATE}"


async def _speaks_tls(endpoint: Endpoint) -> bool:
    """Whether the server answers the beginning of a TLS handshake, even if only with an alert."""
    hello = ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), hello, server_hostname=endpoint.name)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return await _first_bytes(endpoint, hello.read(), 2) in (_TLS_HANDSHAKE, _TLS_ALERT)


async def _first_bytes(endpoint: Endpoint, sent: bytes, n_bytes: int) -> bytes:
    """The first *n_bytes* that the server sends after *sent* on a new connection; empty if it sends fewer."""
    with suppress(OSError, EOFError):
        async with asyncio.timeout(TRY_S):
            reader, writer = await asyncio.open_connection(endpoint.addresses[0], endpoint.port)
            try:
                writer.write(sent)
                return await reader.readexactly(n_bytes)
            finally:
                writer.transport.abort()
    return b""


# What an answer says


_SIGNS: tuple[tuple[int, int, bytes, int, str], ...] = (
    # nginx's, if no certificate was sent, or one that it does not accept
    (400, 400, b"SSL certificate", BAD, "{says}, since it wants a client certificate: " + _CLIENT_CERTIFICATE),
    (400, 400, b"this port speaks gRPC", BAD, "this is the gRPC port of a tensor-gateway: name the inference server"),
    (404, 404, b"/-/live", BAD, "this is the admin listener of a tensor-gateway: name the inference server"),
    (508, 508, b"passed through this gateway", BAD, "this is the gateway's own listener, an endless loop: name the "
     "inference server"),
    (300, 399, b"", BAD, "{says}, a redirect to {location}, which the gateway does not follow: name that place"),
    (500, 999, b"", BAD, "{says}: is it still starting, or is this a proxy without a server behind it?"),
)  # fmt: skip
"""What an answer to `GET /v2` says of a server that has no metadata: lowest and highest status, a part of the body, the
level, the words. The first row that fits counts."""


async def judge(endpoint: Endpoint, answer: Answer) -> Finding | None:
    """The finding by *answer* to `GET /v2` alone, which has no metadata; None if it tells nothing."""
    says = _said(endpoint, answer)
    if answer.needs_credentials:
        return Finding(GOOD, f"answers, and needs credentials ({answer.status_line}): clients send theirs")
    if answer.is_html and answer.status == 200:
        return Finding(BAD, f"{says}, which is an HTML page, meant for people")
    location = answer.headers.get("location", "nowhere")
    for lowest, highest, sign, level, words in _SIGNS:
        if lowest <= answer.status <= highest and sign in answer.body:
            return Finding(level, words.format(says=says, location=shortened(location)))
    is_of_tls = answer.status == 400 and endpoint.tls is None and await _speaks_tls(endpoint)
    return Finding(BAD, _SPEAKS_TLS) if is_of_tls else None


def _said(endpoint: Endpoint, answer: Answer) -> str:
    return f"answers GET {endpoint.base_path}/v2 with {answer.status_line}"
