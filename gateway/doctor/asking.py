"""One request of the doctor at a time: to the server, and to the gateway started for the trial.

It asks as the gateway itself does (`backend.questions`), and waits longer. Not here: what is asked, and what the
answers mean.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from gateway import __version__
from gateway.backend import questions
from gateway.backend.arriving import LostError, NotHttpError
from gateway.backend.connections import UnreachableError
from gateway.backend.endpoints import Endpoint
from gateway.backend.questions import Answer, own_connections
from gateway.codec import HEADER_LENGTH
from gateway.errors import GatewayError
from gateway.policy.crossing import BackendHeaders

ASK_S = 5.0
"""How long one question may take."""

TRIAL_S = 30.0
"""How long one trial inference may take: a model's first one often takes long."""

MAX_ANSWER_BYTES = 64 * 1024**2
"""How much of one answer is read; what is longer is no answer."""

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
    """There was no answer, or none in HTTP; the message says why. Its cause is an error of the connection, if any."""


class Asker:
    """Asks one server."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str] | None = None, *, keeps: bool = False) -> None:
        """*headers* are sent with each question besides its own. Needs a running event loop.

        Each question has a connection of its own, because servers close them after an error without saying so; with
        *keeps* they share one, as those of a client do.
        """
        self.endpoint = endpoint
        self.headers = headers or {}
        self._connections = own_connections("default", TRIAL_S)
        fields = BackendHeaders(self.headers, ()).probing(USER_AGENT)
        self._asker = questions.Asker(self._connections, endpoint, fields, max_bytes=MAX_ANSWER_BYTES, keeps=keeps)

    @asynccontextmanager
    async def keeping(self) -> AsyncIterator["Asker"]:
        """What asks the same server over one connection."""
        kept = Asker(self.endpoint, self.headers, keeps=True)
        try:
            yield kept
        finally:
            await kept._connections.close()

    def why_unauthorized(self, answer: Answer) -> str:
        """In words that *answer* refuses for the want of credentials, and what to do; empty if it does not."""
        if not answer.needs_credentials:
            return ""
        if not self.headers:
            return f"it needs credentials ({answer.words}): {HOW_TO_GIVE}"
        given = ", ".join(self.headers)
        if answer.status == 403:
            return f"it does not allow this with the headers that were given, {given} ({answer.words})"
        return f"it does not accept the credentials that were given, {given} ({answer.words}): wrong, or expired?"

    async def get(self, path: str) -> Answer:
        """The answer to `GET` *path*, which is raw. Raises `NoAnswerError`."""
        return await self._ask(ASK_S, "GET", path)

    async def post(
        self, path: str, body: bytes, *, header_length: int | None = None, is_chunked: bool = False
    ) -> Answer:
        """The answer to `POST` of *body*; *header_length* is that of the binary extension. Raises `NoAnswerError`."""
        fields = [("Content-Type", "application/json")]
        if header_length is not None:
            fields = [("Content-Type", "application/octet-stream"), (HEADER_LENGTH, str(header_length))]
        if is_chunked:
            pieces = [body[begin : begin + CHUNK_BYTES] for begin in range(0, len(body), CHUNK_BYTES)]
            body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in [*pieces, b""])
            return await self._ask(TRIAL_S, "POST", path, body, [*fields, ("Transfer-Encoding", "chunked")])
        return await self._ask(TRIAL_S, "POST", path, body, [*fields, ("Content-Length", str(len(body)))])

    async def _ask(
        self, timeout_s: float, method: str, path: str, body: bytes = b"", fields: Sequence[tuple[str, str]] = ()
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._asker.ask(method, path, body, fields)
        except TimeoutError:
            raise NoAnswerError(f"no answer to {method} {path} within {timeout_s:g} s") from None
        except (GatewayError, LostError, NotHttpError) as error:
            why = error.reason if isinstance(error, UnreachableError) else str(error)
            raise NoAnswerError(f"no answer to {method} {path}: {why or 'the connection was closed'}") from error
        if len(answer.body) >= MAX_ANSWER_BYTES:
            raise NoAnswerError(f"no answer to {method} {path}: it is longer than {MAX_ANSWER_BYTES} bytes")
        return answer
