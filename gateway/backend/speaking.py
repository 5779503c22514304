"""Finds out what a backend's servers speak: their dialect (`dialect: auto`) and the binary extension (`binary: auto`).

Each endpoint is asked when a request needs to know. It is asked again after it was down or a request to it has failed;
for the binary extension also every half minute. All endpoints that may get the next request must agree: binary bodies
pass through only while each of these endpoints says that it reads them. Otherwise all get JSON, which all can read.
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

from gateway.backend.connections import Connections
from gateway.backend.endpoints import NEVER_S, EndpointSet, EndpointState
from gateway.backend.questions import EXTENSION, V2, Asker, said_after, said_of_v2
from gateway.backend.tasks import Tasks
from gateway.errors import ErrorKind, GatewayError
from gateway.policy.balancing import candidates
from gateway.policy.crossing import Fields

ASK_S = 3.0
"""How long an endpoint may take for an answer, and how long a request waits for all endpoints at most."""

AGAIN_S = 1.0
"""An endpoint that gave no usable answer is asked again after this time."""

DUE_S = 20.0
"""When an answer about the binary extension is this old, the endpoint is asked again, beside the requests."""

BELIEVED_S = 30.0
"""When an answer about the binary extension is this old, it is not believed any more, and requests wait."""

AUTO, ALWAYS = "auto", "always"

log = logging.getLogger("gateway")


class Spoken(NamedTuple):
    """The dialect of a backend, and whether it gets binary bodies."""

    dialect: str
    """`v2`, `tensorflow` or `mlflow`."""
    binary: bool
    """Whether inferences pass through unchanged, because the servers have the binary extension."""

    def __str__(self) -> str:
        """Words for operators."""
        if self.dialect != V2:
            return self.dialect
        return "V2 in binary" if self.binary else "V2 in JSON"


def configured(dialect: str, binary: str) -> Spoken | None:
    """What a backend speaks by its configuration; None if its servers have to be asked."""
    if dialect == AUTO or (binary == AUTO and dialect == V2):
        return None
    return Spoken(dialect, binary == ALWAYS and dialect == V2)


class Speaking:
    """Asks the endpoints of one backend; their states keep the answers. It outlives the plans that name the backend."""

    def __init__(self, backend: str, endpoints: EndpointSet, connections: Connections) -> None:
        """`configure` must be called before `spoken`. Each question has a new connection of *connections*."""
        self._backend = backend
        self._endpoints = endpoints
        self._connections = connections
        self._dialect, self._binary = AUTO, AUTO
        self._fields: Fields = []
        self._wait_s = ASK_S
        self.tasks = Tasks()  # closing them ends all questions
        self.last: Spoken | None = None
        """The result of the last call of `spoken`; None before the first."""

    def configure(self, dialect: str, binary: str, fields: Fields, total_s: float = math.inf) -> None:
        """Set the plan's *dialect* and *binary*, and the header *fields* of questions.

        *total_s*: the longest that a request may take.
        """
        self._wait_s = min(ASK_S, total_s)
        before = self._dialect, self._binary, self._fields
        self._dialect, self._binary, self._fields = dialect, binary, fields
        if before != (dialect, binary, fields):  # a reload may have changed nothing of it
            for state in self._endpoints.states:
                state.speech.forget()
                state.speech.failure = None

    async def spoken(self) -> Spoken:
        """What the backend speaks. Waits for `ASK_S` at most if endpoints have to be asked first.

        Raises `GatewayError` if the answers fit no dialect, or different ones, or if there are none.
        """
        loop = asyncio.get_running_loop()
        states = candidates(self._endpoints.states, (), loop.time())
        if waited := [task for state in states if (task := self._asked(state, loop.time())) is not None]:
            await asyncio.wait(waited, timeout=self._wait_s)  # the questions go on if this request ends
            states = candidates(self._endpoints.states, (), loop.time())
        spoken = self._agreed(states, loop.time())
        if spoken != self.last:
            self.last = spoken
            self._tell(spoken, states)
        return spoken

    def may_get_binary(self, state: EndpointState) -> bool:
        """Whether the endpoint reads binary bodies by its last answer, of any age; False if that was forgotten."""
        return self._binary != AUTO or (state.speech.said.is_binary and state.speech.heard_s > NEVER_S)

    def _asked(self, state: EndpointState, now_s: float) -> "asyncio.Task[None] | None":
        """Ask an endpoint if it is time; the running questions, if a request has to wait for them, else None."""
        speech = state.speech
        believed_s, due_s = (BELIEVED_S, DUE_S) if self._binary == AUTO else (math.inf, math.inf)
        age_s = now_s - speech.heard_s
        if age_s < due_s and not speech.is_doubted:
            return None
        if speech.asking is None and (speech.failure is None or now_s - speech.failed_s >= AGAIN_S):
            speech.asking = self.tasks.begin(self._ask(state))
        if age_s < believed_s:
            return None
        # an endpoint that did not answer makes no request wait, as long as another has told the dialect
        is_known = self._dialect != AUTO or any(each.speech.said.dialect for each in self._endpoints.states)
        return None if is_known and speech.failure is not None else speech.asking

    async def _ask(self, state: EndpointState) -> None:
        """Ask one endpoint, and keep its answer or the failure."""
        loop, speech = asyncio.get_running_loop(), state.speech
        asker = Asker(self._connections, state.endpoint, self._fields, within_s=ASK_S)
        try:
            first = await asker.get("/v2")
            said = await said_after(first, asker.get) if self._dialect == AUTO else said_of_v2(first)
            if said.dialect:
                speech.hear(said, loop.time())
                return
            failure = GatewayError(ErrorKind.MALFORMED_RESPONSE, f"{state.url}: {said.answers}")
        except GatewayError as error:
            failure = error
        finally:
            speech.asking = None
        speech.failure, speech.failed_s = failure, loop.time()

    def _agreed(self, states: Sequence[EndpointState], now_s: float) -> Spoken:
        """The common answer of all endpoints. Raises `GatewayError` if there is none."""
        dialect = self._dialect
        if dialect == AUTO:
            urls = {state.speech.said.dialect: state.url for state in states if state.speech.said.dialect}
            if not urls:
                raise self._unknown(states)
            if len(urls) > 1:
                differing = ", ".join(f"{url} {name}" for name, url in urls.items())
                words = f"the endpoints of backend {self._backend!r} speak different dialects: {differing}"
                raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words, sent=False)
            (dialect,) = urls
        if (known := configured(dialect, self._binary)) is not None:
            return known
        spoken = [state.speech for state in states]
        return Spoken(dialect, all(each.said.is_binary and now_s - each.heard_s < BELIEVED_S for each in spoken))

    def _unknown(self, states: Sequence[EndpointState]) -> GatewayError:
        """Why no dialect is known. An answer that fits no dialect is reported before a missing answer."""
        silence = GatewayError(ErrorKind.TIMEOUT, f"no endpoint has answered within {self._wait_s:g} s")
        failures = [state.speech.failure for state in states if state.speech.failure is not None]
        first = min(failures, key=lambda each: each.kind is not ErrorKind.MALFORMED_RESPONSE, default=silence)
        words = f"what backend {self._backend!r} speaks could not be found out (`dialect: auto`): {first.message}"
        return GatewayError(first.kind, words, sent=False)

    def _tell(self, spoken: Spoken, states: Sequence[EndpointState]) -> None:
        """Log what the backend speaks, because this has changed."""
        why = ""
        if self._binary == AUTO and spoken == Spoken(V2, binary=False):
            other = next((state for state in states if not state.speech.said.is_binary), states[0])
            failure = other.speech.failure
            why = f": {other.url} does not say {EXTENSION}" if failure is None else f": {failure.message}"
        log.info("backend %r speaks %s%s", self._backend, spoken, why)
