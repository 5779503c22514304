"""One request of the doctor at a time: to the server, and to gateways in front of it that are started for that.

It asks as the gateway itself does (`backend.questions`), but waits longer.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from gateway.app import DataPlane, new_name
from gateway.backend import questions
from gateway.backend.endpoints import Endpoint
from gateway.backend.questions import Answer, own_connections
from gateway.codec import HEADER_LENGTH
from gateway.config import parse
from gateway.doctor.report import Setting, configuration
from gateway.policy.crossing import BackendHeaders

ASK_S = 5.0
"""How long one question may take."""

TRIAL_S = 30.0
"""How long one trial inference may take: a model's first one often takes long."""

MAX_ANSWER_BYTES = 64 * 1024**2
"""How many bytes of an answer are read; a longer one cannot be understood."""


class Asker(questions.Asker):
    """Asks one server, with long timeouts."""

    def __init__(self, endpoint: Endpoint, headers: Mapping[str, str] | None = None) -> None:
        """*headers* are sent with each question besides its own. Needs a running event loop."""
        self.headers = headers or {}
        fields = BackendHeaders(self.headers, ()).probing("doctor")
        connections = own_connections("default", TRIAL_S)
        super().__init__(connections, endpoint, fields, ASK_S, MAX_ANSWER_BYTES)

    def why_unauthorized(self, answer: Answer) -> str:
        """Words that say that *answer* requires credentials, and what to do; empty if it does not."""
        if not answer.needs_credentials:
            return ""
        if not self.headers:
            return (
                f"it needs credentials ({answer.words}): give them with --header 'Authorization: Bearer ${{TOKEN}}', "
                "which takes TOKEN from the environment; ${file:PATH} takes a file"
            )
        return f"it refuses the credentials that were given, {', '.join(self.headers)} ({answer.words})"

    async def post(
        self, path: str, body: bytes, header_length: int | None = None, *, is_chunked: bool = False
    ) -> Answer:
        """The answer to `POST` of *body*; *header_length* is that of the binary extension. Raises `NoAnswerError`."""
        fields = [("Content-Type", "application/json")]
        if header_length is not None:
            fields = [("Content-Type", "application/octet-stream"), (HEADER_LENGTH, str(header_length))]
        if is_chunked:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
            fields.append(("Transfer-Encoding", "chunked"))
        else:
            fields.append(("Content-Length", str(len(body))))
        return await self.ask("POST", path, body, fields, self.within_s and TRIAL_S)


@asynccontextmanager
async def gateway(url: str, settings: Mapping[str, Setting]) -> AsyncIterator[Asker]:
    """An asker for a gateway in front of *url*, with *settings*, that is started for this."""
    text = configuration(url, {**settings, "timeouts": Setting({"total": f"{TRIAL_S:g}s"}, "")})
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
