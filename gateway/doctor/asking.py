"""What is asked, and with what: the server of the URL, and gateways in front of it that are started for that.

The doctor asks as the gateway itself does (`backend.questions`), but waits longer. Its options beside the URL are
headers, such as credentials, files for TLS, and a sample. Their values may come from outside, `${NAME}` and
`${file:PATH}`, as in the configuration. The value of a header has to: the doctor prints it, and what is typed stands in
every list of processes.
"""

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gateway.app import DataPlane, new_name
from gateway.backend import questions
from gateway.backend.arriving import LostError, NotHttpError
from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Endpoint
from gateway.backend.questions import Answer, own_connections
from gateway.backend.wire import Wire
from gateway.certificates import TlsContext
from gateway.codec.v2.framing import HEADER_LENGTH
from gateway.config import parse
from gateway.doctor.report import ProblemError, configuration
from gateway.errors import ConfigError, ErrorKind
from gateway.policy.crossing import BackendHeaders

ASK_S = 5.0
"""How long one question may take."""

TRIAL_S = 30.0
"""How long one trial inference may take: a model's first one often takes long."""

MAX_ANSWER_BYTES = 64 * 1024**2
"""How many bytes of an answer are read; a longer one cannot be understood."""

TOO_MANY = 429
"""The status of a server that limits how many requests it gets."""

MAX_RETRY_AFTER_S = 5.0
"""For so long doctor waits for a server that limits requests, if it says when to come again."""

REASONS = {
    "headers": "what was given: the gateway sends it for all clients. Without this key each client sends its own",
    "tls": "as it was given; paths are relative to this file",
}
"""Why the keys of `Given` are set."""


class Given(NamedTuple):
    """The options on the command line."""

    headers: Sequence[str] = ()
    """Each `NAME: VALUE`."""
    tls: Mapping[str, str] = {}
    """Keys of `tls` with their values."""
    path: str | None = None
    """Where the server takes inferences, if it speaks no protocol."""
    samples: Sequence[str] = ()
    """The files of samples for `path`; none: what the server's `/openapi.json` says of it."""

    def settings(self) -> dict[str, Any]:
        """The backend's keys for these options. Raises `ConfigError`."""
        values = {}
        for line in self.headers:
            name, _, value = line.partition(":")
            if not name or "${" not in value:
                raise ConfigError(
                    "--header: expected 'NAME: VALUE' with a value from outside, such as 'Authorization: Bearer "
                    "${TOKEN}' or 'Authorization: Bearer ${file:PATH}'"
                )
            values[name.strip()] = value.strip()
        found = {"headers": {"set": values} if values else {}, "tls": dict(self.tls)}
        return {key: value for key, value in found.items() if value}

    def documents(self) -> list[Any]:
        """The JSON in the files of the samples. Raises `ConfigError`."""
        if self.path is not None and not self.path.startswith("/"):
            raise ConfigError(f"--path {self.path}: expected a path that starts with /, such as /predict")
        if self.samples and self.path is None:
            raise ConfigError("--sample: goes with --path, the path that the sample is posted to")
        return [_document(name) for name in self.samples]


def _document(name: str) -> Any:
    """The JSON in the file called *name*. Raises `ConfigError`."""
    try:
        document = json.loads(Path(name).read_bytes())
        json.dumps(document, ensure_ascii=False).encode()  # raises for half a surrogate pair, which is no text
        return document
    except OSError as error:
        raise ConfigError(f"--sample {name}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--sample {name}: not JSON: {error}") from None


def endpoint_of(url: str, settings: Mapping[str, Any]) -> tuple[Endpoint, Mapping[str, str]]:
    """The endpoint for *url*, and headers, by *settings*. Raises `ConfigError` for what `check` would refuse."""
    backend = parse(configuration(url, settings)).backends["default"]
    tls = TlsContext("tls", backend.tls) if url.startswith("https:") else None
    return Endpoint.parse(url, tls), backend.headers.set


class Asker(questions.Asker):
    """Asks one server, with long timeouts."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str] | None = None) -> None:
        """*headers* are sent with each question besides its own. Needs a running event loop."""
        self.headers = headers or {}
        fields = BackendHeaders(self.headers, ()).probing("doctor")
        connections = own_connections("default", TRIAL_S)
        super().__init__(connections, endpoint, fields, ASK_S, MAX_ANSWER_BYTES)

    def judge_credentials(self, answer: Answer) -> None:
        """Raise `ProblemError`, which says what to do, if *answer* requires credentials."""
        if refused := answer.refused(self.headers):
            raise ProblemError(f"it refuses the {refused} of --header ({answer.words}): is it right, and not expired?")
        if answer.needs_credentials:
            raise ProblemError(
                f"it needs credentials ({answer.words}): give them with --header 'Authorization: Bearer ${{TOKEN}}', "
                "which takes TOKEN from the environment; ${file:PATH} takes a file"
            )

    async def post(self, path: str, body: bytes, header_length: int | None = None) -> Answer:
        """The answer to `POST` of *body*; *header_length* is that of the binary extension. Raises `NoAnswerError`."""
        fields = [("Content-Type", "application/json")]
        if header_length is not None:
            fields = [("Content-Type", "application/octet-stream"), (HEADER_LENGTH, str(header_length))]
        fields.append(("Content-Length", str(len(body))))
        answer = await self.ask("POST", path, body, fields, self.within_s and TRIAL_S)
        if answer.status == TOO_MANY and (wait_s := _retry_after_s(answer)) <= MAX_RETRY_AFTER_S:
            await asyncio.sleep(wait_s)
            answer = await self.ask("POST", path, body, fields, self.within_s and TRIAL_S)
        return answer

    async def keep(self, method: str, path: str, body: bytes, within_s: float) -> Wire:
        """Ask, read the answer, and return the connection, which the caller ends with `abort`. Raises `NoAnswerError`.

        The server may have closed it.
        """
        fields = [*self.fields, ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        lines = [f"{method} {self.endpoint.base_path}{path} HTTP/1.1", f"Host: {self.endpoint.authority}"]
        head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in fields), "", ""]).encode()
        wire = await self.connections.connect(self.endpoint)
        try:
            async with asyncio.timeout(within_s):
                wire.begin(method, head + body)
                answer = wire.answer
                assert answer is not None
                await answer.read_head()
                while await answer.read_body():
                    pass
            return wire
        except (TimeoutError, LostError, NotHttpError) as error:
            wire.abort()
            raise NoAnswerError(ErrorKind.UPSTREAM_CLOSED, f"no answer to {method} {path}", str(error)) from None


def _retry_after_s(answer: Answer) -> float:
    """When the server wants to be asked again, in seconds; infinity if it does not say."""
    said = answer.headers.get("retry-after", "")
    return float(said) if said.isdecimal() else math.inf


@asynccontextmanager
async def gateway(url: str, settings: Mapping[str, Any]) -> AsyncIterator[Asker]:
    """An asker for a gateway in front of *url*, with *settings*, that is started for this."""
    text = configuration(url, {**settings, "timeouts": {"total": f"{TRIAL_S:g}s"}})
    log = logging.getLogger("gateway")
    quiet = logging.NullHandler()
    log.addHandler(quiet)  # the findings say what the gateway would log
    plane = DataPlane(parse(f"{text}logging: {{access: none}}\n"), new_name())
    try:
        await plane.start()
        asker = Asker(Endpoint.parse(plane.urls[0], None))
        asker.within_s = None  # a gateway always answers; its own timeouts say when
        yield asker
    finally:
        await plane.stop()
        log.removeHandler(quiet)
