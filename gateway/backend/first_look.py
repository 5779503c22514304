"""The first look at backends: when `serve` starts, each endpoint is asked `GET /v2`, and the log says who answers.

The look finds the usual mistakes of a newcomer: a server that is not up, another server, a gRPC port, http and https
exchanged, the gateway itself. It only logs: requests are served whatever it finds. If the answer to the one request
needs an explanation, a few more are sent. All of them take `LOOK_S` at most, over connections of their own, which take
no slot and are counted nowhere. A host name that cannot be resolved is reported by `resolving`.

Not here: whether an endpoint gets requests (`health`, `policy`).
"""

import asyncio
import errno
import ipaddress
import logging
import os
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from gateway import __version__
from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Endpoint
from gateway.backend.questions import (
    EXTENSION,
    MLFLOW,
    TEMPLATE,
    TENSORFLOW,
    Answer,
    Asker,
    Get,
    ask_other_dialect,
    lists_openai_models,
    own_connections,
    said_of_v2,
)
from gateway.backend.resolving import look_up, usable_addresses
from gateway.backend.speaking import AUTO, NEVER
from gateway.certificates import TlsContext, uses_tls
from gateway.config import Backend, Config
from gateway.config.values import first_of, shortened
from gateway.errors import ConfigError, ErrorKind, GatewayError
from gateway.policy.crossing import BackendHeaders

LOOK_S = 5.0
"""How long the look at one endpoint may take, with all of its requests."""

TRY_S = 1.0
"""How long a try of another protocol may take, within `LOOK_S`: most servers close if they do not understand it."""

AT_ONCE = 8
"""How many endpoints are looked at at the same time."""

MAX_SHOWN = 3
"""The most endpoints that one line names."""

USER_AGENT = f"tensor-gateway/{__version__} (first look)"
"""The User-Agent of these requests, unless the backend's `headers` set another."""

_CONTAINER = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman put into every container."""

# The preface of an HTTP/2 client, followed by an empty SETTINGS frame (RFC 9113 section 3.4).
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
_FRAME_HEAD_BYTES = 9
_SETTINGS = 4

_AS = {TENSORFLOW: "TensorFlow Serving and KServe's V1 protocol do", MLFLOW: "MLflow's scoring server does"}
"""Words for messages: which servers answer in each dialect."""

_MORE = "`tensor-gateway doctor URL` tells more"

SPEAKS_TLS = "it speaks TLS there: write https:// in the endpoint"

_CLIENT_CERTIFICATE = "set `tls.certificate` and `tls.key` to one that it accepts"

_TLS_ALERT, _TLS_HANDSHAKE = b"\x15\x03", b"\x16\x03"  # the first bytes of records (RFC 8446 section 5.1)

log = logging.getLogger("gateway")

GOOD, BAD = logging.INFO, logging.WARNING
"""The levels at which findings are logged."""


class Finding(NamedTuple):
    """The result of the look at one endpoint, in words."""

    level: int
    """`GOOD` or `BAD`."""
    words: str


class FirstLook:
    """Looks at endpoints in the background, once at each."""

    def __init__(self, gateway: str) -> None:
        """*gateway* is this gateway's name in `Via`. Nothing is asked before `look_at`."""
        self._via = f"1.1 {gateway}"
        self._known: set[tuple[str, str]] = set()
        self._free = asyncio.Semaphore(AT_ONCE)
        self._looks: set[asyncio.Task[None]] = set()

    def look_at(self, config: Config) -> None:
        """Begin to look at the endpoints of *config* that the previous configuration did not have; does not wait."""
        known, self._known = self._known, {(name, url) for name, of in config.backends.items() for url in of.endpoints}
        if not log.isEnabledFor(BAD):
            return
        for name, backend in config.backends.items():
            if new := [url for url in backend.endpoints if (name, url) not in known]:
                look = asyncio.ensure_future(self._look_at_backend(name, backend, new))
                self._looks.add(look)
                look.add_done_callback(self._looks.discard)

    async def stop(self) -> None:
        """Cancel all looks."""
        for look in self._looks:
            look.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)

    async def _look_at_backend(self, name: str, backend: Backend, urls: Iterable[str]) -> None:
        """Look at *urls*, and log a line for each finding."""
        try:
            # in a thread, because loading the system's authorities takes 20 ms
            tls = await asyncio.to_thread(TlsContext, f"backends.{name}.tls", backend.tls) if uses_tls(urls) else None
        except ConfigError:  # files have changed since the start; requests report this
            return
        try:
            endpoints = [Endpoint.parse(url, tls) for url in urls]
            found = await asyncio.gather(*(self._look(name, backend, endpoint) for endpoint in endpoints))
        except Exception:
            log.exception("backend %r: the first look failed inside the gateway", name)
            return
        urls_by_finding: dict[Finding, list[str]] = {}
        for endpoint, finding in zip(endpoints, found, strict=True):
            if finding is not None:
                urls_by_finding.setdefault(finding, []).append(f"{endpoint.url}{endpoint.base_path}")
        for finding, where in urls_by_finding.items():
            log.log(finding.level, "backend %r: %s: %s", name, first_of(where, MAX_SHOWN), finding.words)

    async def _look(self, name: str, backend: Backend, endpoint: Endpoint) -> Finding | None:
        """The finding at *endpoint*; None if there is nothing to say."""
        headers = BackendHeaders(backend.headers.set, backend.headers.remove).probing(USER_AGENT)
        async with self._free:
            connections = own_connections(name, backend.timeouts.connect)
            try:
                async with asyncio.timeout(LOOK_S):
                    with suppress(OSError, UnicodeError):
                        endpoint = endpoint if endpoint.addresses else await resolved(endpoint)
                    if not endpoint.addresses:  # which `resolving` reports
                        return None
                    asker = Asker(connections, endpoint, [*headers, ("Via", self._via)])
                    return await _Look(backend, endpoint, asker.get).finding()
            except TimeoutError:
                if not endpoint.addresses:
                    return _bad(f"its host name could not be looked up within {LOOK_S:g} s")
                return _bad(f"no answer to GET {endpoint.base_path}/v2 within {LOOK_S:g} s")
            finally:
                await connections.close()


def _bad(words: str) -> Finding:
    return Finding(BAD, words)


async def resolved(endpoint: Endpoint) -> Endpoint:
    """*endpoint* with the addresses of its host. Raises `OSError` and `UnicodeError`."""
    infos = await look_up(endpoint.host)
    return replace(endpoint, addresses=usable_addresses(str(info[4][0]) for info in infos))


class _Look(NamedTuple):
    """The look at one endpoint: one question, and more if its answer needs an explanation."""

    backend: Backend
    endpoint: Endpoint
    get: Get

    async def finding(self) -> Finding | None:
        """The finding; None if there is nothing to say."""
        try:
            answer = await self.get("/v2")
        except NoAnswerError as error:
            until_then = " Until then requests get 503" if _is_refused(error) else ""
            return _bad(f"{await why_no_answer(self.endpoint, error)}{until_then}")
        except GatewayError:  # this machine is at its limits
            return None
        configured = self.backend.dialect
        if configured in (TENSORFLOW, MLFLOW):
            return await self._as_configured(configured, answer)
        if configured == TEMPLATE:
            return await self._as_described(answer)
        finding = judge(answer, self.endpoint.base_path, self.backend.binary)
        if finding is not None:
            return finding
        if answer.status == 400 and await speaks_tls(self.endpoint):
            return _bad(SPEAKS_TLS)
        return await self._why_no_metadata(answer)

    async def _as_configured(self, dialect: str, answer: Answer) -> Finding:
        """The finding if *dialect*, another than V2, is configured; *answer* is the server's to `GET /v2`."""
        with suppress(GatewayError):
            said = await ask_other_dialect(self.get)
            if said.dialect == dialect:
                return Finding(GOOD, f"answers as a server with `dialect: {dialect}` does")
            if not said.dialect and answer.status == 404:
                return _bad(
                    f"does not answer as a server with `dialect: {dialect}` does ({said.answers}); inferences may pass "
                    f"all the same; {_MORE}"
                )
        finding = judge(answer, self.endpoint.base_path) or await self._why_no_metadata(answer)
        return _bad(f"{finding.words}; its `dialect` is {dialect}")

    async def _as_described(self, answer: Answer) -> Finding:
        """The finding for a server that only the configuration describes; *answer* is the server's to `GET /v2`."""
        health = self.backend.health
        path = health.path if health is not None else None
        if path is None:
            return Finding(GOOD, f"answers HTTP ({answer.status_line}); with `health.path` more could be said")
        with suppress(GatewayError):
            answer = await self.get(path)
        says = f"answers probes of {self.endpoint.base_path}{path}"
        if answer.is_good:
            return Finding(GOOD, says)
        return _bad(f"{says} with {answer.status_line}: `health.path` has to get a 2xx")

    async def _why_no_metadata(self, answer: Answer) -> Finding:
        """Why `GET /v2` got *answer*, which is not a V2 server's."""
        base_path = self.endpoint.base_path
        path = f"{base_path}/v2"
        says = f"answers GET {path} with {answer.status_line}"
        health = self.backend.health
        probed = health.path if health is not None and health.path is not None else "/v2/health/live"
        with suppress(GatewayError):
            if (await self.get(probed)).is_good:
                return Finding(GOOD, f"answers probes of {base_path}{probed}, but GET {path} with {answer.status}")
            if dialect := (await ask_other_dialect(self.get)).dialect:
                if self.backend.dialect == AUTO:
                    return Finding(GOOD, f"answers as {_AS[dialect]}: `dialect: auto` finds {dialect}")
                return _bad(f"{says}, and otherwise as {_AS[dialect]}: set `dialect: {dialect}`; {_MORE}")
            if lists_openai_models(await self.get("/v1/models")):
                return _bad(f"{says}; it has /v1/models, as servers with OpenAI's interface do, which is another")
        where = f"; `{base_path}` of its URL is put before every path" if base_path else ""
        return _bad(
            f"{says}: not a server of the V2 (Open Inference) protocol? If only its metadata is missing, inferences "
            f"pass{where}; {_MORE}"
        )


# Why there is no answer


async def why_no_answer(endpoint: Endpoint, error: NoAnswerError) -> str:
    """Why `GET /v2` at *endpoint*, whose addresses must be known, ended with *error*, in words."""
    path = f"{endpoint.base_path}/v2"
    if error.kind is ErrorKind.UNREACHABLE:
        if not _is_refused(error):
            return f"cannot be reached: {error.why}"
        is_own = ipaddress.ip_address(endpoint.addresses[0].partition("%")[0]).is_loopback
        is_inside = is_own and any(map(os.path.exists, _CONTAINER))
        where = ", which inside of a container is the container itself" if is_inside else ""
        return f"nothing listens on port {endpoint.port} there{where}; is the server up?"
    if endpoint.tls is None:
        if await _speaks_http2(endpoint):
            return (
                "this is a gRPC port, and the gateway needs the server's HTTP port: of Triton 8000 instead of 8001, of "
                "MLServer 8080 instead of 8081"
            )
        if await speaks_tls(endpoint):
            return SPEAKS_TLS
    if error.kind is ErrorKind.MALFORMED_RESPONSE:
        return f"GET {path}: {error.why}"
    closed = f"it closed the connection without an answer to GET {path}"
    # many servers end a handshake without saying why
    return closed if endpoint.tls is None else f"{closed}; if it wants a client certificate, {_CLIENT_CERTIFICATE}"


def _is_refused(error: NoAnswerError) -> bool:
    """Whether nothing listens at an endpoint whose question has ended with *error*."""
    return error.why == os.strerror(errno.ECONNREFUSED)


async def _speaks_http2(endpoint: Endpoint) -> bool:
    """Whether the server sends a SETTINGS frame first, as on every connection of HTTP/2, which gRPC uses."""
    head = await _first_bytes(endpoint, _HTTP2_PREFACE, _FRAME_HEAD_BYTES)
    return head[3:4] == bytes((_SETTINGS,)) and not any(head[5:])


async def speaks_tls(endpoint: Endpoint) -> bool:
    """Whether the server answers the beginning of a TLS handshake, even if only with an alert."""
    return await _first_bytes(endpoint, _client_hello(endpoint.name), 2) in (_TLS_HANDSHAKE, _TLS_ALERT)


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


def _client_hello(server_name: str) -> bytes:
    """The first message of a TLS client."""
    sent = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=server_name).do_handshake()
    return sent.read()


# What an answer says


def judge(answer: Answer, base_path: str = "", binary: str = NEVER) -> Finding | None:
    """The finding by *answer* to `GET /v2` alone; None if more has to be asked.

    *binary* is the backend's key.
    """
    says = f"answers GET {base_path}/v2 with"
    if answer.needs_credentials:
        return Finding(GOOD, f"answers, and needs credentials ({answer.status_line}): clients send theirs")
    if answer.status == 400 and b"SSL certificate" in answer.body:  # nginx's, to one that is missing or not accepted
        return _bad(f"{says} {answer.status_line}, since it wants a client certificate: {_CLIENT_CERTIFICATE}")
    if answer.status == 508 and b"passed through this gateway" in answer.body:
        return _bad("this is the gateway's own listener, an endless loop: name the inference server")
    if answer.status == 404 and b"/-/live" in answer.body:
        return _bad("this is the admin listener of a tensor-gateway: name the inference server")
    if answer.status == 404 and answer.is_of_torchserve:
        reads = "reads its inferences with service_envelope=kservev2"
        return Finding(GOOD, f"TorchServe answers; it has no metadata of the V2 protocol, and {reads}")
    if 300 <= answer.status < 400:
        location = answer.headers.get("location")
        target = f" to {shortened(location)}" if location else ""
        return _bad(f"{says} a redirect{target}, which the gateway does not follow: name the place that it leads to")
    if answer.status >= 500:
        why = "is it still starting, or is this a proxy without a server behind it?"
        return _bad(f"{says} {answer.status_line}: {why}")
    return _judge_metadata(answer, says, binary) if answer.status == 200 else None


def _judge_metadata(answer: Answer, says: str, binary: str) -> Finding:
    if answer.is_html:
        return _bad(f"{says} an HTML page: this is a web site, or a server's page for people")
    said = said_of_v2(answer)
    if not said.dialect:
        why = "not a server of the V2 (Open Inference) protocol?"
        return _bad(f"{says} something else than a server's metadata: {why}")
    named = said.title or "a server without a name"
    if not said.is_binary:
        also = f", and does not say {EXTENSION}: it gets JSON" if binary == AUTO else ""
        return Finding(GOOD, f"{named} answers{also}")
    meant = "with `binary: auto` its inferences would pass" if binary == NEVER else "its inferences pass"
    says = f"says that it speaks the binary extension itself ({EXTENSION})"
    return Finding(GOOD, f"{named} answers, and {says}: {meant} through as they come")
