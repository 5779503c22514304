"""Questions to servers: how they are asked, and what the answers say about the server.

Health probes, the first look, `dialect: auto` and the command `doctor` all ask by this module, over connections that
take no slot and are counted nowhere.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.backend.arriving import LostError, NotHttpError
from gateway.backend.connections import Connections, Limits, NoAnswerError
from gateway.backend.endpoints import Endpoint, EndpointSet, Said
from gateway.backend.resolving import Names
from gateway.codec.v2.error_bodies import error_body
from gateway.config.values import shortened
from gateway.errors import ErrorKind

MAX_BODY_BYTES = 64 * 1024
"""How many bytes of an answer's body are read by default; also how many are looked at to recognize a server."""

MAX_WORDS = 300
"""How many characters of a server's error are repeated."""

EXTENSION = "binary_tensor_data"
"""The name of the binary extension in the list of a server's extensions."""

V2, TENSORFLOW, MLFLOW, TEMPLATE, PYTHON = "v2", "tensorflow", "mlflow", "template", "python"

TORCHSERVE = "TorchServe"

_TORCHSERVES_404 = b'"ResourceNotFoundException"'
"""A part of TorchServe's error for a path that it does not have, such as `/v2`."""

_STARTING_OR_BUSY = frozenset({429, 500, 502, 503, 504})
"""Statuses that do not tell which paths a server has; they may also come from its proxy."""

_V1_LIST, _V1_MODEL = "/v1/models", "/v1/models/any"
"""What KServe's V1 answers with the list of its models, and a model that no server has."""

_V1_REFUSALS = (
    "Could not find any versions of model any",  # TensorFlow Serving, 404
    "Malformed request: GET ",  # TensorFlow Serving before 1.9, 400
    "Missing model name in request",  # TensorFlow Serving, of `_V1_LIST`, 400
    "Model with name any does not exist",  # KServe, 404
)
"""How errors of TensorFlow Serving and KServe's V1 begin. Any other text in `error` tells nothing: Flask, Express and
Elasticsearch have that member, too."""


class Answer(NamedTuple):
    """An endpoint's answer, with its time and the size of the question."""

    status: int
    reason: str
    body: bytes
    headers: Mapping[str, str] = {}
    """The header fields by their names in lower case."""
    seconds: float = 0.0
    """The time from the opened connection to the end of the answer."""
    sent_bytes: int = 0
    """The size of the question's body."""
    certificate: Mapping[str, Any] = {}
    """The server's certificate, decoded by Python; empty without TLS, and if it was not verified."""

    @property
    def status_line(self) -> str:
        """Status and reason, made safe and short for a log line."""
        return shortened(f"{self.status:03} {self.reason}".strip())

    @property
    def is_good(self) -> bool:
        """Whether the status is a 2xx."""
        return self.status // 100 == 2

    @property
    def is_html(self) -> bool:
        """Whether the body is an HTML page, meant for a person."""
        is_said = "html" in self.headers.get("content-type", "").lower()
        return is_said or self.body[:100].lstrip().lower().startswith((b"<!doctype", b"<html"))

    @property
    def needs_credentials(self) -> bool:
        """Whether the server refuses clients without the right credentials; TorchServe does so with 400."""
        return self.status in (401, 403) or (self.status == 400 and b'"InvalidKeyException"' in self.body)

    def refused(self, sent: Iterable[str]) -> str:
        """The names of those header fields, of the *sent* ones, that say who asks, where the server refuses that."""
        names = (name for name in sent if name.lower() in ("authorization", "x-api-key"))
        return " and ".join(names) if self.needs_credentials else ""

    @property
    def json(self) -> Any:
        """The decoded JSON of the body, NaN and infinities allowed; None if it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def member(self, name: str) -> Any:
        """The member *name* of the JSON object in the body; None if there is none."""
        document = self.json
        return document.get(name) if isinstance(document, dict) else None

    @property
    def words(self) -> str:
        """The status, and the server's words if it is an error."""
        if self.status == 200:
            return "200"
        _, words = error_body(self.body[:MAX_BODY_BYTES], self.status, self.reason)
        if words.startswith("the backend answered"):
            return str(self.status)
        words = " ".join(words.split()).removeprefix(f"{self.status}: ")
        return f"{self.status}: {words if len(words) <= MAX_WORDS else f'{words[:MAX_WORDS]}...'}"


Get = Callable[[str], Awaitable[Answer]]
"""Asks for a path. Raises `NoAnswerError`; any other `GatewayError` says nothing about the server."""


def own_connections(backend: str, connect_timeout_s: float) -> Connections:
    """Connections to any endpoint, for questions only; `close` must follow."""
    return Connections(backend, Names(backend, EndpointSet()), Limits(1, connect_timeout_s))


@dataclass(eq=False)
class Asker:
    """Asks one endpoint, each question over a connection of its own."""

    connections: Connections
    """Opens the connections."""
    endpoint: Endpoint
    fields: Sequence[tuple[str, str]]
    """The fields that are sent with each question."""
    within_s: float | None = None
    """How long an answer may take; None: without limit."""
    max_bytes: int = MAX_BODY_BYTES
    """How many bytes of each answer's body are read at most."""

    async def get(self, path: str) -> Answer:
        """Ask with `GET`, see `ask`."""
        return await self.ask("GET", path)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        fields: Sequence[tuple[str, str]] = (),
        within_s: float | None = None,
    ) -> Answer:
        """Ask *method* *path* with *body*, and return the answer; *fields* describe the body and its framing.

        *within_s* replaces the usual time for this answer. Raises `NoAnswerError`; any other `GatewayError` says
        nothing about the server.
        """
        asked = f"{self.endpoint.url}: no answer to {method} {path}"
        within_s = within_s or self.within_s
        lines = [f"{method} {self.endpoint.base_path}{path} HTTP/1.1", f"Host: {self.endpoint.authority}"]
        lines += [f"{name}: {value}" for name, value in (*self.fields, *fields)]
        head = "\r\n".join([*lines, "Connection: close", "", ""]).encode()
        clock, wire = asyncio.get_running_loop(), None
        try:
            async with asyncio.timeout(within_s):
                wire = await self.connections.connect(self.endpoint)
                certificate = (wire.transport and wire.transport.get_extra_info("peercert")) or {}
                began_s = clock.time()
                wire.begin(method, head + body)
                answer = wire.answer
                assert answer is not None
                came = await answer.read_head()
                received = bytearray()
                while len(received) < self.max_bytes and (chunk := await answer.read_body()):
                    received += chunk
            took_s = clock.time() - began_s
            return Answer(came.code, came.reason, bytes(received), came.headers.first, took_s, len(body), certificate)
        except TimeoutError:
            within = f"within {within_s:g} s"
            raise NoAnswerError(ErrorKind.TIMEOUT, f"{asked} {within}", f"no answer {within}") from None
        except LostError as error:
            refused = None if wire is None else wire.why_certificate_was_refused()
            why = refused or "the connection was closed before the answer was complete"
            raise NoAnswerError(ErrorKind.UPSTREAM_CLOSED, f"{asked}: {why}", why) from error
        except NotHttpError as error:
            why = f"the answer is not HTTP: {shortened(str(error))}"
            raise NoAnswerError(ErrorKind.MALFORMED_RESPONSE, f"{asked}: {why}", why) from error
        finally:
            if wire is not None:
                wire.abort()


def said_of_v2(answer: Answer) -> Said:
    """The kind of server by *answer* to `GET /v2`. Only a name is required: servers are careless with the rest."""
    document = answer.json if answer.status == 200 else None
    metadata = document if isinstance(document, dict) else {}
    name, version, extensions = metadata.get("name"), metadata.get("version"), metadata.get("extensions")
    if not isinstance(name, str):
        return Said("", answers=f"GET /v2 got {answer.status_line}")
    title = f"{name} {version if isinstance(version, str) else ''}".strip()
    return Said(V2, isinstance(extensions, list) and EXTENSION in extensions, shortened(title))


async def recognized(first: Answer, get: Get, *of_model: str) -> Said:
    """Who answers, for people: as `said_after`, and V2 servers without metadata, which TorchServe is, too.

    *of_model*: paths of V2 that a server has whose only path is that of a model.
    """
    if first.status == 404:  # some servers answer every path with 200
        if _TORCHSERVES_404 in first.body:
            return Said(V2, title=TORCHSERVE)
        for path in ("/v2/health/live", "/v2/health/ready", *of_model):
            answer = await get(path)
            if answer.status in (200, 405) and not answer.is_html:  # 405: the path is there, for POST
                return Said(V2)
    return await said_after(first, get)


async def said_after(first: Answer, get: Get) -> Said:
    """Find the dialect of a server whose answer to `GET /v2` is *first*. Raises the errors of *get*."""
    said = said_of_v2(first)
    if said.dialect or first.status in _STARTING_OR_BUSY:
        return said
    other = await ask_other_dialect(get)
    return other if other.dialect else Said("", answers=f"{said.answers}, {other.answers}")


async def ask_other_dialect(get: Get) -> Said:
    """Find the dialect of a server that is none of V2, by up to four questions. Raises the errors of *get*."""
    came = []
    for path in (_V1_LIST, _V1_MODEL):
        answer = await get(path)
        if _is_v1(answer):
            return Said(TENSORFLOW)
        came.append(f"GET {path} {answer.status_line}")
    ping = await get("/ping")
    came.append(f"GET /ping {ping.status_line}")
    if ping.status == 200:
        version = await get("/version")
        text = version.body.decode(errors="replace").strip()
        if version.status == 200 and not version.is_html and text[:1].isdigit():
            return Said(MLFLOW, title=f"MLflow {shortened(text)}")
        came.append(f"GET /version {version.status_line}")
    return Said("", answers=", ".join(came))


def _is_v1(answer: Answer) -> bool:
    """Whether *answer*, to `_V1_LIST` or `_V1_MODEL`, is in the form of TensorFlow Serving or of KServe's V1."""
    if answer.status == 200:
        models = answer.member("models")
        return isinstance(models, list) and all(isinstance(name, str) for name in models)
    error = answer.member("error")
    return answer.status in (400, 404) and isinstance(error, str) and error.startswith(_V1_REFUSALS)
