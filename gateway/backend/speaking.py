"""Finds out what a backend's servers speak: their dialect (`dialect: auto`) and the binary extension (`binary: auto`).

Each endpoint is asked when a request needs to know. It is asked again after it was down or a request to it has failed;
for the binary extension also every half minute. All endpoints that may get the next request must agree: binary bodies
pass through only while each of these endpoints says that it reads them. Otherwise all get JSON, which all can read.

Not here: the questions and the meaning of their answers (`questions`).
"""

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

from gateway.backend.connections import Connections
from gateway.backend.endpoints import Change, EndpointSet, EndpointState
from gateway.backend.questions import EXTENSION, V2, Asker, Said, ask_dialect, ask_v2
from gateway.errors import ErrorKind, GatewayError
from gateway.policy.balancing import candidates
from gateway.policy.crossing import Fields

ASK_S = 3.0
"""How long one endpoint may take for all questions, and how long a request waits for all endpoints at most."""

AGAIN_S = 1.0
"""An endpoint that gave no usable answer is asked again after this time."""

DUE_S = 20.0
"""When an answer about the binary extension is this old, the endpoint is asked again, beside the requests."""

BELIEVED_S = 30.0
"""When an answer about the binary extension is this old, it is not believed any more, and requests wait."""

DOUBT_S = 0.1
"""The shortest time between questions because of failed requests, so that one client cannot cause a flood of them."""

TRUSTED_S = 30.0
"""After a doubted endpoint has given the same answer again, new doubts within this time do not make requests wait.

The failed requests were probably wrong themselves. The endpoint is still asked, but beside the requests.
"""

AT_ONCE = 8
"""How many endpoints of a backend are asked at the same time."""

NEVER_S = -math.inf
"""A time before all others."""

AUTO, ALWAYS, NEVER = "auto", "always", "never"

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


class _Speech:
    """The answers of one endpoint."""

    def __init__(self, state: EndpointState) -> None:
        self.state = state
        self.said = Said("")
        self.heard_s = NEVER_S
        """When the endpoint has answered; `NEVER_S` also if another server may run there since."""
        self.failure: tuple[ErrorKind, str] | None = None
        """Why the last questions got no usable answer; None if they did, or if there were none."""
        self.failed_s = NEVER_S
        self.asking: asyncio.Task[None] | None = None
        self.is_doubted = False
        """Whether a request to the endpoint has failed since its last answer."""
        self._change: Change | None = None
        self._doubted_s = self._trusted_s = NEVER_S

    def is_binary(self, now_s: float) -> bool:
        """Whether the endpoint has said, less than `BELIEVED_S` ago, that it has the binary extension."""
        return self.said.is_binary and now_s - self.heard_s < BELIEVED_S

    def hear(self, said: Said, now_s: float) -> None:
        """Take the endpoint's answer."""
        if self.is_doubted:
            self._trusted_s = now_s if said == self.said else NEVER_S
        self.said, self.heard_s, self.failure, self.is_doubted = said, now_s, None, False

    def doubt(self, now_s: float) -> None:
        """Doubt the answer, because a request to the endpoint has failed; at most once in `DOUBT_S`."""
        if now_s - self._doubted_s >= DOUBT_S:
            self._doubted_s = now_s
            self.is_doubted = True
            if now_s - self._trusted_s >= TRUSTED_S:
                self.heard_s = NEVER_S

    def notice(self) -> None:
        """Doubt the answer's time if the endpoint was down or ejected since (`forget`)."""
        change = self.state.last_change
        if change is not self._change:
            self._change = change
            self.forget()

    def forget(self) -> None:
        """Let the endpoint be asked again before the next request: another server may run there now."""
        self.heard_s = self._trusted_s = NEVER_S


class Speaking:
    """Asks the endpoints of one backend, and keeps their answers. It outlives the plans that name the backend."""

    def __init__(self, backend: str, endpoints: EndpointSet) -> None:
        """`configure` must be called before `spoken`."""
        self._backend = backend
        self._endpoints = endpoints
        self._dialect, self._binary = AUTO, AUTO
        self._fields: Fields = []
        self._connections: Connections
        self._wait_s = ASK_S
        self._speeches: dict[EndpointState, _Speech] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(AT_ONCE)
        self.last: Spoken | None = None
        """The result of the last call of `spoken`; None before the first."""

    def configure(
        self, dialect: str, binary: str, fields: Fields, connections: Connections, total_s: float = math.inf
    ) -> None:
        """Set the plan's *dialect* and *binary*, and ask with header *fields* over new connections of *connections*.

        *total_s*: the longest that a request may take.
        """
        self._dialect, self._binary = dialect, binary
        self._fields = fields
        self._wait_s = min(ASK_S, total_s)
        self._connections = connections
        for speech in self._speeches.values():
            speech.heard_s, speech.failure = NEVER_S, None

    async def spoken(self) -> Spoken:
        """What the backend speaks. Waits for `ASK_S` at most if endpoints have to be asked first.

        Raises `GatewayError` if the answers fit no dialect, or different ones, or if there are none.
        """
        now_s = asyncio.get_running_loop().time()
        speeches = self._counted(now_s)
        if waited := [task for speech in speeches if (task := self._asked(speech, now_s)) is not None]:
            await asyncio.wait(waited, timeout=self._wait_s)  # the questions go on if this request ends
            now_s = asyncio.get_running_loop().time()
            speeches = self._counted(now_s)
        spoken = self._agreed(speeches, now_s)
        if spoken != self.last:
            self.last = spoken
            self._tell(spoken, speeches, now_s)
        return spoken

    def doubt(self, url: str) -> None:
        """Doubt the endpoints at *url*, because a request to it has failed: another server may run there."""
        now_s = asyncio.get_running_loop().time()
        for state, speech in self._speeches.items():
            if state.url == url:
                speech.doubt(now_s)

    def forget(self, url: str) -> None:
        """Forget the answers of *url*, where no server was found: the next one is asked before it gets binary."""
        for state, speech in self._speeches.items():
            if state.url == url:
                speech.forget()

    def may_get_binary(self, state: EndpointState) -> bool:
        """Whether the endpoint reads binary bodies by its last answer, of any age; False if that was forgotten."""
        if self._binary != AUTO:
            return True
        speech = self._speeches.get(state)
        if speech is None:
            return False
        speech.notice()
        return speech.said.is_binary and speech.heard_s > NEVER_S

    async def close(self) -> None:
        """Cancel all questions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _counted(self, now_s: float) -> Sequence[_Speech]:
        """The answers of all endpoints that may get the next request, trials of ejected ones included."""
        states = self._endpoints.states
        if self._speeches.keys() != set(states):
            self._speeches = {state: self._speeches.get(state) or _Speech(state) for state in states}
        for speech in self._speeches.values():
            speech.notice()
        return [self._speeches[state] for state in candidates(states, (), now_s)]

    def _asked(self, speech: _Speech, now_s: float) -> "asyncio.Task[None] | None":
        """Ask an endpoint if it is time; the running questions, if a request has to wait for them, else None."""
        believed_s, due_s = (BELIEVED_S, DUE_S) if self._binary == AUTO else (math.inf, math.inf)
        age_s = now_s - speech.heard_s
        if age_s < due_s and not speech.is_doubted:
            return None
        if speech.asking is None and (speech.failure is None or now_s - speech.failed_s >= AGAIN_S):
            speech.asking = asyncio.ensure_future(self._ask(speech))
            self._tasks.add(speech.asking)
            speech.asking.add_done_callback(self._tasks.discard)
        if age_s < believed_s:
            return None
        # an endpoint that did not answer makes no request wait, as long as another has told the dialect
        is_known = self._dialect != AUTO or any(each.said.dialect for each in self._speeches.values())
        return None if is_known and speech.failure is not None else speech.asking

    async def _ask(self, speech: _Speech) -> None:
        """Ask one endpoint, and keep its answer or the failure."""
        loop = asyncio.get_running_loop()
        url = speech.state.url
        try:
            async with self._free, asyncio.timeout(ASK_S):
                asker = Asker(self._connections, speech.state.endpoint, self._fields)
                said = await (ask_dialect if self._dialect == AUTO else ask_v2)(asker.get)
            if said.dialect:
                speech.hear(said, loop.time())
                return
            failure = ErrorKind.MALFORMED_RESPONSE, f"{url}: {said.answers}"
        except TimeoutError:
            failure = ErrorKind.TIMEOUT, f"{url} gave no answer within {ASK_S:g} s"
        except GatewayError as error:
            failure = error.kind, error.message
        except Exception:
            log.exception("backend %r: asking %s failed inside the gateway", self._backend, url)
            failure = ErrorKind.INTERNAL, f"{url} could not be asked"
        finally:
            speech.asking = None
        speech.failure, speech.failed_s = failure, loop.time()

    def _agreed(self, speeches: Sequence[_Speech], now_s: float) -> Spoken:
        """The common answer of all endpoints. Raises `GatewayError` if there is none."""
        dialect = self._dialect
        if dialect == AUTO:
            urls = {speech.said.dialect: speech.state.url for speech in speeches if speech.said.dialect}
            if not urls:
                raise self._unknown(speeches)
            if len(urls) > 1:
                differing = ", ".join(f"{url} {name}" for name, url in urls.items())
                words = f"the endpoints of backend {self._backend!r} speak different dialects: {differing}"
                raise GatewayError(ErrorKind.MALFORMED_RESPONSE, words, sent=False)
            (dialect,) = urls
        if dialect != V2 or self._binary != AUTO:
            return Spoken(dialect, dialect == V2 and self._binary == ALWAYS)
        return Spoken(dialect, all(each.is_binary(now_s) for each in speeches))

    def _unknown(self, speeches: Sequence[_Speech]) -> GatewayError:
        """Why no dialect is known. An answer that fits no dialect is reported before a missing answer."""
        failures = [speech.failure for speech in speeches if speech.failure is not None]
        within = f"within {self._wait_s:g} s"
        silent = f"backend {self._backend!r}: no endpoint has said {within} what it speaks (`dialect: auto`)"
        kind, words = next(iter(failures), (ErrorKind.TIMEOUT, silent))
        if not_fitting := [words for kind, words in failures if kind is ErrorKind.MALFORMED_RESPONSE]:
            kind = ErrorKind.MALFORMED_RESPONSE
            words = f"what backend {self._backend!r} speaks could not be found out (`dialect: auto`): {not_fitting[0]}"
        return GatewayError(kind, words, sent=False)

    def _tell(self, spoken: Spoken, speeches: Sequence[_Speech], now_s: float) -> None:
        """Log what the backend speaks, because this has changed."""
        if self._binary != AUTO or spoken.dialect != V2:
            log.info("backend %r speaks the dialect %s", self._backend, spoken.dialect)
        elif spoken.binary:
            log.info("backend %r: all endpoints say %s: inferences pass through", self._backend, EXTENSION)
        else:
            other = next(each for each in speeches if not each.is_binary(now_s))
            why = f"{other.state.url} does not say {EXTENSION}" if other.failure is None else other.failure[1]
            log.info("backend %r: inferences become JSON: %s", self._backend, why)
