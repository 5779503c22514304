"""Questions to servers: how one is asked, and what its answers say of it.

The health probes, the first look, `dialect: auto` and the command `doctor` all ask here, over connections that take no
slot and are counted nowhere. Not here: when a server is asked, and how long its answers are waited for (`health`,
`first_look`, `speaking`), and what a request makes of them.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.backend.arriving import LostError, NotHttpError
from gateway.backend.connections import Connections, UnreachableError
from gateway.backend.endpoints import Endpoint, EndpointSet
from gateway.backend.resolving import Names
from gateway.codec import error_body
from gateway.config.values import shortened
from gateway.errors import ErrorKind, GatewayError

MAX_BODY_BYTES = 64 * 1024
"""How much of an answer's body is read, unless more is asked for; no more of it decides what a server is."""

MAX_VERSION_BYTES = 100
"""The longest text that is believed to be a version."""

MAX_WORDS = 300
"""The most characters of a server's error that are repeated."""

EXTENSION = "binary_tensor_data"
"""What a server that speaks the binary extension names among its extensions."""

V2, TENSORFLOW, MLFLOW, TEMPLATE = "v2", "tensorflow", "mlflow", "template"

_STARTING_OR_BUSY = frozenset({429, 500, 502, 503, 504})
"""Statuses that say nothing of what a server has, which may also be its proxy's."""

_SIGNS_OF_V1 = (("/v1/models", (200,), "models", list), ("/v1/models/any", (400, 404), "error", str))
"""Paths, and the statuses and members of the answers by which TensorFlow Serving and KServe's V1 are known.

The first is KServe's; servers with OpenAI's interface list `data`. The second refuses a model that is not there, where
`error` is an object elsewhere.
"""


class Answer(NamedTuple):
    """An endpoint's answer, and what it took."""

    status: int
    reason: str
    body: bytes
    headers: Mapping[str, str] = {}
    """By their names in lower case."""
    seconds: float = 0.0
    """Since there was a connection."""
    sent_bytes: int = 0
    """Of the question's body."""
    certificate: Mapping[str, Any] = {}
    """The server's, as Python decodes it; empty without TLS, and if it was not verified."""

    @property
    def status_line(self) -> str:
        """Status and reason, as a log line may show them."""
        return shortened(f"{self.status} {self.reason}".strip())

    @property
    def is_html(self) -> bool:
        """Whether a person was meant to read it."""
        is_said = "html" in self.headers.get("content-type", "").lower()
        return is_said or self.body[:100].lstrip().lower().startswith((b"<!doctype", b"<html"))

    @property
    def needs_credentials(self) -> bool:
        """Whether it refuses whoever has no credentials, or the wrong ones; TorchServe does so with 400."""
        return self.status in (401, 403) or (self.status == 400 and b'"InvalidKeyException"' in self.body)

    @property
    def is_of_torchserve(self) -> bool:
        """Whether TorchServe says so that it does not have what was asked for."""
        return b'"ResourceNotFoundException"' in self.body

    @property
    def json(self) -> Any:
        """The body as JSON, with NaN and infinities; None if it is none."""
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
        """Status and, of an error, what the server says went wrong."""
        if self.status == 200:
            return "200"
        _, words = error_body(self.body[:MAX_BODY_BYTES], self.status, self.reason)
        if words.startswith("the backend answered"):
            return str(self.status)
        words = " ".join(words.split())
        return f"{self.status}: {words if len(words) <= MAX_WORDS else f'{words[:MAX_WORDS]}...'}"


class NoAnswerError(GatewayError):
    """A server gave no answer, or none in HTTP; the cause is the connection's error, if there is one."""

    def __init__(self, kind: ErrorKind, message: str, why: str) -> None:
        """*why* there is no answer, without the names of the server and of the question, which *message* has."""
        super().__init__(kind, message, sent=False)
        self.why = why


Get = Callable[[str], Awaitable[Answer]]
"""Asks for a path. Raises `NoAnswerError`; another `GatewayError` says nothing about the server."""


def own_connections(backend: str, connect_timeout_s: float) -> Connections:
    """Connections for questions alone, to whatever endpoint; `close` ends what is still open."""
    connections = Connections(backend, Names(backend, EndpointSet()))
    connections.configure(
        max_connections=1,
        queue_length=0,
        queue_timeout_s=0.0,
        connect_timeout_s=connect_timeout_s,
        keep_alive_s=0.0,
    )
    return connections


class Asker:
    """Asks one endpoint, each question over a connection of its own."""

    def __init__(
        self,
        connections: Connections,
        endpoint: Endpoint,
        fields: Sequence[tuple[str, str]],
        *,
        within_s: float | None = None,
        max_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """*fields* are sent with each question, and of each answer's body at most *max_bytes* are read.

        *within_s* is how long an answer may take; None: however long. *connections* opens the connections.
        """
        self.endpoint = endpoint
        self._connections = connections
        self._fields = [("Host", endpoint.authority), *fields, ("Connection", "close")]
        self._within_s = within_s
        self._max_bytes = max_bytes

    async def get(self, path: str) -> Answer:
        """The answer to `GET` *path*, see `ask`."""
        return await self.ask("GET", path)

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        fields: Sequence[tuple[str, str]] = (),
        within_s: float | None = None,
    ) -> Answer:
        """The answer to *method* *path*; *fields* say what *body* is, and how it is framed.

        *within_s* is how long this one may take, where it is not the usual time. Raises `NoAnswerError`; another
        `GatewayError` says nothing about the server.
        """
        asked = f"{self.endpoint.url}: no answer to {method} {path}"
        within_s = within_s or self._within_s
        try:
            async with asyncio.timeout(within_s):
                return await self._ask(method, path, body, fields)
        except TimeoutError:
            within = f"within {within_s:g} s"
            raise NoAnswerError(ErrorKind.TIMEOUT, f"{asked} {within}", f"no answer {within}") from None
        except UnreachableError as error:
            raise NoAnswerError(error.kind, error.message, error.reason) from error
        except LostError as error:
            why = str(error) or "the connection was closed before the answer was complete"
            raise NoAnswerError(ErrorKind.UPSTREAM_CLOSED, f"{asked}: {why}", why) from error
        except NotHttpError as error:
            why = f"the answer is not HTTP: {shortened(str(error))}"
            raise NoAnswerError(ErrorKind.MALFORMED_RESPONSE, f"{asked}: {why}", why) from error

    async def _ask(self, method: str, path: str, body: bytes, fields: Sequence[tuple[str, str]]) -> Answer:
        lines = [f"{method} {self.endpoint.base_path}{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in (*self._fields, *fields)]
        clock = asyncio.get_running_loop()
        wire = await self._connections.connect(self.endpoint)
        certificate = (wire.transport and wire.transport.get_extra_info("peercert")) or {}
        began_s = clock.time()
        try:
            answer = wire.begin(method)
            wire.send_first("\r\n".join([*lines, "", ""]).encode() + body)
            head = await answer.read_head()
            received = bytearray()
            while len(received) < self._max_bytes and (chunk := await answer.read_body()):
                received += chunk
        except LostError:
            tls = self.endpoint.tls
            raise LostError((tls and wire.why_certificate_was_refused(tls.where)) or "") from None
        finally:
            wire.abort()
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in head.raw_headers}
        took_s = clock.time() - began_s
        return Answer(head.code, head.reason, bytes(received), headers, took_s, len(body), certificate)


@dataclass(frozen=True)
class Said:
    """What the answers of a server say of it."""

    dialect: str
    """A name of `dialect` in the configuration; empty if the answers fit none."""
    is_binary: bool = False
    """Whether it says that it speaks the binary extension itself."""
    title: str = field(default="", compare=False)
    """Name and version, as a log line may show them; empty if it says neither."""
    answers: str = ""
    """Where they fit no dialect: what was asked, and what came."""


def said_of_v2(answer: Answer) -> Said:
    """What *answer* to `GET /v2` says. A name makes it a V2 server's; servers are careless with other members."""
    document = answer.json if answer.status == 200 else None
    metadata = document if isinstance(document, dict) else {}
    name, version, extensions = metadata.get("name"), metadata.get("version"), metadata.get("extensions")
    if not isinstance(name, str):
        return Said("", answers=f"GET /v2 got {_in_words(answer)}")
    title = f"{name} {version if isinstance(version, str) else ''}".strip()
    return Said(V2, isinstance(extensions, list) and EXTENSION in extensions, shortened(title))


def lists_openai_models(answer: Answer) -> bool:
    """Whether *answer* to `GET /v1/models` is that of a server with OpenAI's interface."""
    return answer.status == 200 and b'"data"' in answer.body


def _is_version(answer: Answer) -> bool:
    """Whether *answer* to `GET /version` is a text such as `3.17.0`, as MLflow's server gives it."""
    text = answer.body.strip()
    return answer.status == 200 and not answer.is_html and text[:1].isdigit() and len(text) <= MAX_VERSION_BYTES


async def ask_v2(get: Get) -> Said:
    """What a server says of itself as a V2 server: one question. Raises what *get* raises."""
    return said_of_v2(await get("/v2"))


async def ask_dialect(get: Get) -> Said:
    """Which dialect a server speaks: up to five questions, one after the other. Raises what *get* raises."""
    return await said_after(await get("/v2"), get)


async def said_after(first: Answer, get: Get) -> Said:
    """Which dialect a server speaks whose answer to `GET /v2` is *first*. Raises what *get* raises."""
    said = said_of_v2(first)
    if said.dialect or first.status in _STARTING_OR_BUSY:
        return said
    other = await ask_other_dialect(get)
    return other if other.dialect else Said("", answers=f"{said.answers}, {other.answers}")


async def ask_other_dialect(get: Get) -> Said:
    """Which dialect a server speaks that does not speak V2: up to four questions. Raises what *get* raises."""
    came = []
    for path, statuses, member, type_ in _SIGNS_OF_V1:
        answer = await get(path)
        if answer.status in statuses and isinstance(answer.member(member), type_):
            return Said(TENSORFLOW)
        came.append(f"GET {path} {_in_words(answer)}")
    ping = await get("/ping")
    came.append(f"GET /ping {_in_words(ping)}")
    if ping.status == 200:
        version = await get("/version")
        if _is_version(version):
            return Said(MLFLOW, title=f"MLflow {shortened(version.body.decode(errors='replace').strip())}")
        came.append(f"GET /version {_in_words(version)}")
    return Said("", answers=", ".join(came))


def _in_words(answer: Answer) -> str:
    if answer.status != 200:
        return answer.status_line
    return f"{answer.status_line}, an HTML page" if answer.is_html else f"{answer.status_line} with something else"
