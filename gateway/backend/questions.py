"""Questions that the gateway asks a server for itself, and how it recognizes a server by its answers.

Each is a GET over a connection of its own, which takes no slot and is counted nowhere. Not here: when a server is
asked, and how long its answers are waited for (`first_look`, `speaking`), and what a request makes of them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from gateway.backend.connections import Connections
from gateway.backend.endpoints import Endpoint
from gateway.config.values import shortened

MAX_BODY_BYTES = 64 * 1024
"""How much of an answer's body is read."""

MAX_VERSION_BYTES = 100
"""The longest text that is believed to be a version."""

EXTENSION = "binary_tensor_data"
"""What a server that speaks the binary extension names among its extensions."""

ANY_MODEL = "any"
"""The name of a model that is asked for, whether there is one or not."""

T = TypeVar("T")


class Answer(NamedTuple):
    """An endpoint's answer to a GET."""

    status: int
    reason: str
    media_type: str
    """In lower case, without parameters."""
    location: str
    body: bytes

    @property
    def status_line(self) -> str:
        """Status and reason, as a log line may show them."""
        return shortened(f"{self.status} {self.reason}".strip())

    @property
    def is_html(self) -> bool:
        """Whether a person was meant to read it."""
        return "html" in self.media_type or self.body[:100].lstrip().lower().startswith((b"<!doctype", b"<html"))


Get = Callable[[str], Awaitable[Answer]]
"""Asks for a path. Raises `GatewayError`, `LostError` and `NotHttpError`."""


class Questioner:
    """Asks one endpoint."""

    def __init__(self, connections: Connections, endpoint: Endpoint, fields: Sequence[tuple[str, str]]) -> None:
        """*fields* are sent with each question, besides `Host` and `Connection`."""
        self._connections = connections
        self._endpoint = endpoint
        all_fields = [("Host", endpoint.authority), *fields, ("Connection", "close")]
        self._head_lines = [f"{name}: {value}" for name, value in all_fields]

    async def get(self, path: str) -> Answer:
        """The answer to `GET` *path*, however long it takes. Raises `GatewayError`, `LostError` and `NotHttpError`."""
        wire = await self._connections.connect(self._endpoint)
        try:
            answer = wire.begin("GET")
            lines = [f"GET {self._endpoint.base_path}{path} HTTP/1.1", *self._head_lines, "", ""]
            wire.send_first("\r\n".join(lines).encode())
            head = await answer.read_head()
            body = bytearray()
            while len(body) < MAX_BODY_BYTES and (chunk := await answer.read_body()):
                body += chunk
        finally:
            wire.abort()
        headers = {key.lower(): value.decode("latin-1") for key, value in head.raw_headers}
        media_type = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        return Answer(head.code, head.reason, media_type, headers.get(b"location", ""), bytes(body))


class Metadata(NamedTuple):
    """A V2 server's metadata, as far as it is looked at."""

    name: str
    version: str
    """Empty if it names none."""
    is_binary: bool
    """Whether the server says that it speaks the binary extension itself."""


class _Named(msgspec.Struct):
    """What makes an object the metadata of a V2 server: a name. Servers are careless with its other members."""

    name: str
    version: object = None
    extensions: object = None


class _Models(msgspec.Struct):
    """What `GET /v1/models` gets from a KServe that speaks V1; servers with OpenAI's interface list `data` instead."""

    models: list[msgspec.Raw]


class _Error(msgspec.Struct):
    """A refusal of TensorFlow Serving, or of a KServe that speaks V1; `error` is an object elsewhere."""

    error: str


def _read(answer: Answer, type_: type[T]) -> T | None:
    """The JSON of *answer*; None if it is no such object."""
    try:
        answer.body.decode()  # msgspec does not look into the strings of a Raw
        return msgspec.json.decode(answer.body, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_metadata(answer: Answer) -> Metadata | None:
    """The metadata in *answer* to `GET /v2`; None if it is none, so that this is no V2 server."""
    named = _read(answer, _Named) if answer.status == 200 else None
    if named is None:
        return None
    version, extensions = named.version, named.extensions
    is_binary = isinstance(extensions, list) and EXTENSION in extensions
    return Metadata(named.name, version if isinstance(version, str) else "", is_binary)


def is_no_answer(answer: Answer) -> bool:
    """Whether *answer* says nothing of what the server has: it is starting or busy, or its proxy does not reach it."""
    return answer.status in (429, 500, 502, 503, 504)


def lists_v1_models(answer: Answer) -> bool:
    """Whether *answer* to `GET /v1/models` is that of a KServe that speaks V1."""
    return answer.status == 200 and _read(answer, _Models) is not None


def lists_openai_models(answer: Answer) -> bool:
    """Whether *answer* to `GET /v1/models` is that of a server with OpenAI's interface."""
    return answer.status == 200 and b'"data"' in answer.body


def refuses_in_v1(answer: Answer) -> bool:
    """Whether *answer* to `GET /v1/models/any` is one of TensorFlow Serving, or of a KServe that speaks V1."""
    return answer.status in (400, 404) and _read(answer, _Error) is not None


def is_version(answer: Answer) -> bool:
    """Whether *answer* to `GET /version` is a text such as `3.17.0`, as MLflow's server gives it."""
    text = answer.body.strip()
    return answer.status == 200 and not answer.is_html and text[:1].isdigit() and len(text) <= MAX_VERSION_BYTES


class Said(NamedTuple):
    """What the answers of a server say of it."""

    dialect: str
    """A name of `dialect` in the configuration; empty if the answers fit none."""
    is_binary: bool = False
    """Whether it says that it speaks the binary extension itself."""
    answers: str = ""
    """Where they fit no dialect: what was asked, and what came."""


V2, TENSORFLOW, MLFLOW = "v2", "tensorflow", "mlflow"


async def ask_v2(get: Get) -> Said:
    """What a server says of itself as a V2 server: one question. Raises what *get* raises."""
    return _said_of_v2(await get("/v2"))


def _said_of_v2(answer: Answer) -> Said:
    metadata = read_metadata(answer)
    return Said("", answers=f"GET /v2 got {_in_words(answer)}") if metadata is None else Said(V2, metadata.is_binary)


async def ask_dialect(get: Get) -> Said:
    """Which dialect a server speaks: up to five questions, one after the other. Raises what *get* raises."""
    first = await get("/v2")
    said = _said_of_v2(first)
    if said.dialect or is_no_answer(first):
        return said
    other = await ask_other_dialect(get)
    return other if other.dialect else Said("", answers=f"{said.answers}, {other.answers}")


async def ask_other_dialect(get: Get) -> Said:
    """Which dialect a server speaks that does not speak V2: up to four questions. Raises what *get* raises."""
    came = []
    for path, fits in (("/v1/models", lists_v1_models), (f"/v1/models/{ANY_MODEL}", refuses_in_v1)):
        answer = await get(path)
        if fits(answer):
            return Said(TENSORFLOW)
        came.append(f"GET {path} {_in_words(answer)}")
    ping = await get("/ping")
    came.append(f"GET /ping {_in_words(ping)}")
    if ping.status == 200:
        version = await get("/version")
        if is_version(version):
            return Said(MLFLOW)
        came.append(f"GET /version {_in_words(version)}")
    return Said("", answers=", ".join(came))


def _in_words(answer: Answer) -> str:
    if answer.status != 200:
        return answer.status_line
    return f"{answer.status_line}, an HTML page" if answer.is_html else f"{answer.status_line} with something else"
