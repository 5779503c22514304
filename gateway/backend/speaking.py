"""What a backend's servers speak: their dialect, for `dialect: auto`, and the binary extension, for `binary: auto`.

Each endpoint is asked when a request needs to know. It is asked again after it was down or a request to it has failed,
and, whether it speaks the binary extension, every half minute. What a backend speaks is what all its endpoints say that
may get the next request: binary bodies pass through only while each of them says that it takes them, since all of them
can read JSON.

Not here: the questions and what their answers mean (`questions`), and what a request makes of it (`passing`).
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
"""How long one endpoint may take for all questions, and the longest that a request waits for those to all of them."""

AGAIN_S = 1.0
"""An endpoint without an answer that can be used is asked again after this time."""

DUE_S = 20.0
"""What an endpoint has said of the binary extension is asked again, beside the requests, from this age on."""

BELIEVED_S = 30.0
"""From this age on it is believed no more, and requests wait for the answer."""

DOUBT_S = 0.1
"""Failed requests lead to new questions no more often than this: those of one client shall not make a flood of them."""

TRUSTED_S = 30.0
"""For so long after an endpoint was doubted and said the same again, doubts are settled beside the requests.

The requests that failed were probably wrong themselves, and others shall not wait for questions because of them.
"""

AT_ONCE = 8
"""How many endpoints of a backend are asked at the same time."""

NEVER_S = -math.inf
"""Longer ago than any time that counts."""

AUTO, ALWAYS, NEVER = "auto", "always", "never"

log = logging.getLogger("gateway")


class Spoken(NamedTuple):
    """What a backend speaks."""

    dialect: str
    """`v2`, `tensorflow` or `mlflow`."""
    binary: bool
    """Whether infer requests pass through as they come, since the servers speak the binary extension themselves."""

    def __str__(self) -> str:
        """In words, for operators."""
        if self.dialect != V2:
            return self.dialect
        return "V2 in binary" if self.binary else "V2 in JSON"


def configured(dialect: str, binary: str) -> Spoken | None:
    """What the configuration says that a backend speaks; None if its servers have to be asked."""
    if dialect == AUTO or (binary == AUTO and dialect == V2):
        return None
    return Spoken(dialect, binary == ALWAYS and dialect == V2)


class _Speech:
    """What one endpoint has said."""

    def __init__(self, state: EndpointState) -> None:
        self.state = state
        self.said = Said("")
        self.heard_s = NEVER_S
        """When it said so; `NEVER_S` also if it may have changed since."""
        self.failure: tuple[ErrorKind, str] | None = None
        """Why the last questions got no answer that can be used; None if they did, or if there were none."""
        self.failed_s = NEVER_S
        self.asking: asyncio.Task[None] | None = None
        self.is_doubted = False
        """Whether a request to it has failed since it has said so."""
        self._change: Change | None = None
        self._doubted_s = self._trusted_s = NEVER_S

    def is_binary(self, now_s: float) -> bool:
        """Whether it has said that it speaks the binary extension, and is believed."""
        return self.said.is_binary and now_s - self.heard_s < BELIEVED_S

    def hear(self, said: Said, now_s: float) -> None:
        """It has answered."""
        if self.is_doubted:
            self._trusted_s = now_s if said == self.said else NEVER_S
        self.said, self.heard_s, self.failure, self.is_doubted = said, now_s, None, False

    def doubt(self, now_s: float) -> None:
        """A request to it has failed."""
        if now_s - self._doubted_s >= DOUBT_S:
            self._doubted_s = now_s
            self.is_doubted = True
            if now_s - self._trusted_s >= TRUSTED_S:
                self.heard_s = NEVER_S

    def notice(self) -> None:
        """Forget when it has said so if it was down or ejected since."""
        change = self.state.last_change
        if change is not self._change:
            self._change = change
            self.forget()

    def forget(self) -> None:
        """Another server may have taken its place, of which nothing is known."""
        self.heard_s = self._trusted_s = NEVER_S


class Speaking:
    """Asks the endpoints of one backend, and keeps what they say. It outlives the plans that name the backend."""

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
        """What it spoke when a request asked the last time; None if none has."""

    def configure(
        self, dialect: str, binary: str, fields: Fields, connections: Connections, total_s: float = math.inf
    ) -> None:
        """Ask what a plan wants to know from now on, with header *fields*, over new connections of *connections*.

        *total_s*: the longest that a request may take.
        """
        self._dialect, self._binary = dialect, binary
        self._fields = fields
        self._wait_s = min(ASK_S, total_s)
        self._connections = connections
        for speech in self._speeches.values():
            speech.heard_s, speech.failure = NEVER_S, None

    async def spoken(self) -> Spoken:
        """What the backend speaks. Waits `ASK_S` at most, if its endpoints have to be asked first.

        Raises `GatewayError` if their answers fit no dialect, or several, or if there are none.
        """
        now_s = asyncio.get_running_loop().time()
        speeches = self._counted(now_s)
        if waited := [task for speech in speeches if (task := self._asked(speech, now_s)) is not None]:
            await asyncio.wait(waited, timeout=self._wait_s)  # they go on if this request ends
            now_s = asyncio.get_running_loop().time()
            speeches = self._counted(now_s)
        spoken = self._agreed(speeches, now_s)
        if spoken != self.last:
            self.last = spoken
            self._tell(spoken, speeches, now_s)
        return spoken

    def doubt(self, url: str) -> None:
        """A request to *url* has failed: the endpoints there may have changed."""
        now_s = asyncio.get_running_loop().time()
        for state, speech in self._speeches.items():
            if state.url == url:
                speech.doubt(now_s)

    def forget(self, url: str) -> None:
        """Nobody was at *url*: whoever comes up there has to be asked before it gets anything but JSON."""
        for state, speech in self._speeches.items():
            if state.url == url:
                speech.forget()

    def may_get_binary(self, state: EndpointState) -> bool:
        """Whether the endpoint takes binary bodies, as far as is known now: it may have changed since it was asked."""
        if self._binary != AUTO:
            return True
        speech = self._speeches.get(state)
        if speech is None:
            return False
        speech.notice()
        return speech.said.is_binary and speech.heard_s > NEVER_S

    async def close(self) -> None:
        """Give up what is being asked."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _counted(self, now_s: float) -> Sequence[_Speech]:
        """Of the endpoints that may get a request, also to find out whether they work again."""
        states = self._endpoints.states
        if self._speeches.keys() != set(states):
            self._speeches = {state: self._speeches.get(state) or _Speech(state) for state in states}
        for speech in self._speeches.values():
            speech.notice()
        return [self._speeches[state] for state in candidates(states, (), now_s)]

    def _asked(self, speech: _Speech, now_s: float) -> "asyncio.Task[None] | None":
        """The questions to an endpoint, if a request has to wait for the answers. They begin here when it is time."""
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
        # one that did not answer holds up nobody, as long as something is known without it
        is_known = self._dialect != AUTO or any(each.said.dialect for each in self._speeches.values())
        return None if is_known and speech.failure is not None else speech.asking

    async def _ask(self, speech: _Speech) -> None:
        """Ask one endpoint what there is to know."""
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
        """What all of them say. Raises `GatewayError`."""
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
        """Why no dialect is known: an answer that fits none says more than none at all."""
        failures = [speech.failure for speech in speeches if speech.failure is not None]
        within = f"within {self._wait_s:g} s"
        silent = f"backend {self._backend!r}: no endpoint has said {within} what it speaks (`dialect: auto`)"
        kind, words = next(iter(failures), (ErrorKind.TIMEOUT, silent))
        if not_fitting := [words for kind, words in failures if kind is ErrorKind.MALFORMED_RESPONSE]:
            kind = ErrorKind.MALFORMED_RESPONSE
            words = f"what backend {self._backend!r} speaks could not be found out (`dialect: auto`): {not_fitting[0]}"
        return GatewayError(kind, words, sent=False)

    def _tell(self, spoken: Spoken, speeches: Sequence[_Speech], now_s: float) -> None:
        """Log what the backend speaks from now on."""
        if self._binary != AUTO or spoken.dialect != V2:
            log.info("backend %r speaks the dialect %s", self._backend, spoken.dialect)
        elif spoken.binary:
            log.info("backend %r: all endpoints say %s: inferences pass through", self._backend, EXTENSION)
        else:
            other = next(each for each in speeches if not each.is_binary(now_s))
            why = f"{other.state.url} does not say {EXTENSION}" if other.failure is None else other.failure[1]
            log.info("backend %r: inferences become JSON: %s", self._backend, why)
