"""One request of the doctor at a time, with what it took: to the server, and to the gateway started for the trial.

The doctor is a client, so it asks with a client's library, as the demonstration does. Not here: what is asked, and
what the answers mean.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import aiohttp
import multidict
import yarl

from gateway import __version__
from gateway.backend import questions
from gateway.backend.first_look import needs_credentials
from gateway.certificates import TlsContext
from gateway.codec import HEADER_LENGTH, error_body, run
from gateway.config.values import shortened

ASK_S = 5.0
"""How long one question may take."""

TRIAL_S = 30.0
"""How long one trial inference may take: a model's first one often takes long."""

MAX_ANSWER_BYTES = 64 * 1024**2
"""How much of one answer is read; what is longer is no answer."""

MAX_WORDS = 300
"""The most characters of a server's error that are repeated."""

CHUNK_BYTES = 1024
"""The size of the pieces of a body that is sent chunked."""

HOW_TO_GIVE = (
    "give them with --header 'Authorization: Bearer ${TOKEN}', which takes TOKEN from the environment; ${file:PATH} "
    "takes a file"
)
"""What a user does about credentials that are missing."""

USER_AGENT = f"tensor-gateway/{__version__} (doctor)"
"""How servers and their logs recognize it."""


class NoAnswerError(Exception):
    """There was no answer, or none in HTTP; the message says why."""

    def __init__(self, words: str, *, is_certificate: bool = False) -> None:
        """*is_certificate*: a TLS handshake failed since the server's certificate was not accepted."""
        super().__init__(words)
        self.is_certificate = is_certificate


class Reply(NamedTuple):
    """An answer, and what it took."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    seconds: float
    sent_bytes: int

    @property
    def json(self) -> Any:
        """The body as JSON, with NaN and infinities; None if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    @property
    def words(self) -> str:
        """Status and, of an error, what the server says went wrong."""
        if self.status == 200:
            return "200"
        _, words = run(error_body(self.body[: questions.MAX_BODY_BYTES], self.status, self.reason))
        if words.startswith("the backend answered"):
            return str(self.status)
        words = " ".join(words.split())
        return f"{self.status}: {words if len(words) <= MAX_WORDS else f'{words[:MAX_WORDS]}...'}"

    @property
    def as_answer(self) -> questions.Answer:
        """The answer in the form in which servers are recognized."""
        media_type = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        location = self.headers.get("Location", "")
        return questions.Answer(self.status, self.reason, media_type, location, self.body[: questions.MAX_BODY_BYTES])


class Asker:
    """Asks one server. Must be closed."""

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, tls: TlsContext | None = None, *, keeps: bool = False
    ) -> None:
        """*url* is scheme, host, port and maybe a path; *tls* is used for https. Needs a running event loop.

        Each question has a connection of its own, because servers close them after an error without saying so; with
        *keeps* they share one, as those of a client do.
        """
        self.url = url
        self.headers = headers or {}
        """What each question has besides its own."""
        self.tls = tls
        own = multidict.CIMultiDict({"User-Agent": USER_AGENT, "Accept-Encoding": "identity"})
        own.update(self.headers)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=True if tls is None else tls.context, limit=1, force_close=not keeps),
            headers=own,
            skip_auto_headers=["Content-Type"],
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def keeping(self) -> "Asker":
        """What asks the same server over one connection. Must be closed, too."""
        return Asker(self.url, self.headers, self.tls, keeps=True)

    async def close(self) -> None:
        """Close what is open."""
        await self._session.close()

    def why_unauthorized(self, reply: Reply) -> str:
        """In words that *reply* refuses for the want of credentials, and what to do; empty if it does not."""
        if not needs_credentials(reply.as_answer):
            return ""
        if not self.headers:
            return f"it needs credentials ({reply.words}): {HOW_TO_GIVE}"
        given = ", ".join(self.headers)
        if reply.status == 403:
            return f"it does not allow this with the headers that were given, {given} ({reply.words})"
        return f"it does not accept the credentials that were given, {given} ({reply.words}): wrong, or expired?"

    async def get(self, path: str) -> Reply:
        """The answer to `GET` *path*, which is raw. Raises `NoAnswerError`."""
        return await self._ask("GET", path, None, {}, ASK_S)

    async def post(
        self, path: str, body: bytes, *, header_length: int | None = None, is_chunked: bool = False
    ) -> Reply:
        """The answer to `POST` of *body*; *header_length* is that of the binary extension. Raises `NoAnswerError`."""
        headers = {"Content-Type": "application/json"}
        if header_length is not None:
            headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(header_length)}
        return await self._ask("POST", path, _in_chunks(body) if is_chunked else body, headers, TRIAL_S, len(body))

    async def _ask(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], timeout_s: float, sent_bytes: int = 0
    ) -> Reply:
        url = yarl.URL(self.url + path, encoded=True)
        began_s = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.request(
                    method,
                    url,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    server_hostname=self.tls.server_name if self.tls is not None else None,
                ) as response:
                    text = await _read(response)
                    took_s = time.perf_counter() - began_s
                    return Reply(response.status, response.reason or "", response.headers, text, took_s, sent_bytes)
        except TimeoutError:
            raise NoAnswerError(f"no answer to {method} {path} within {timeout_s:g} s") from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            is_certificate = isinstance(error, aiohttp.ClientConnectorCertificateError)
            raise NoAnswerError(str(error), is_certificate=is_certificate) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoAnswerError(f"no answer to {method} {path}: {shortened(str(error))}") from None


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


async def _in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), CHUNK_BYTES):
        yield body[begin : begin + CHUNK_BYTES]
