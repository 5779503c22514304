"""One call to a backend: connections, timeouts, and what it means when they fail.

Here: everything that knows aiohttp's client. Not here: what the bodies say, and whether a failed call
is worth another.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway.config import Backend
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.headers import BackendHeaders
from gateway.policy.balancing import RoundRobin

KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn closes it."""

MAX_CONNECTIONS = 100
"""The most connections to one backend."""

Pieces = AsyncIterator[bytes | memoryview]


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body: bytes, or a stream that is opened anew for every attempt."""

    whole: bytes | None = None
    open: Callable[["Sending"], Pieces] | None = None
    can_be_repeated: bool = True
    """Whether `open` gives the same pieces again."""


class Sending:
    """What a streaming body tells of its progress, so that the right timeout runs."""

    __slots__ = ("_attempt", "_timer")

    def __init__(self, timer: "_Timer", attempt: Attempt) -> None:
        self._timer = timer
        self._attempt = attempt

    def piece(self, n_bytes: int) -> None:
        """*n_bytes* are handed to the connection now: the backend has `idle` to take them."""
        self._attempt.request_bytes += n_bytes
        self._timer.phase("idle")

    def paused(self) -> None:
        """The gateway waits for the client, for which the backend is not to blame."""
        self._timer.phase("total")

    def done(self) -> None:
        """All is sent: the backend has `first_byte` to begin its answer."""
        self._timer.phase("first_byte")


class _Timer:
    """One asyncio timeout for a call, moved as the call goes through its phases; never beyond `total`."""

    __slots__ = ("_deadline", "_limits", "_loop", "_timeout", "current")

    def __init__(self, timeout: asyncio.Timeout, limits: Mapping[str, float], deadline: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._limits = limits
        self._deadline = deadline
        self.current = "total"

    def phase(self, name: str) -> None:
        """Run the timeout *name* from now on."""
        if self._timeout.expired():
            return
        deadline = self._deadline
        self.current = "total"
        if name != "total":
            by_phase = self._loop.time() + self._limits[name]
            if by_phase < deadline:
                deadline = by_phase
                self.current = name
        self._timeout.reschedule(deadline)

    def describe(self) -> str:
        """What has run out, for the error's text."""
        words = {
            "idle": "was silent in the middle for",
            "first_byte": "did not begin to answer within",
            "total": "took longer than",
        }
        return f"{words[self.current]} {self._limits[self.current]:g} s (timeouts.{self.current})"


class Answer:
    """A backend's answer whose head has come; the body is read with `chunks`."""

    __slots__ = ("_attempt", "_loop", "_name", "_response", "_timer")

    def __init__(self, name: str, response: aiohttp.ClientResponse, timer: _Timer, attempt: Attempt) -> None:
        self._name = name
        self._response = response
        self._timer = timer
        self._attempt = attempt
        self._loop = asyncio.get_running_loop()

    @property
    def status(self) -> int:
        """The status code."""
        return self._response.status

    @property
    def reason(self) -> str:
        """The words behind the status code."""
        return self._response.reason or ""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """All headers, as they came."""
        return self._response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, not decompressed. Raises `GatewayError`."""
        content = self._response.content
        while True:
            self._timer.phase("idle")
            with _blaming_backend(self._name):
                chunk = await content.readany()
            self._timer.phase("total")
            if not chunk:
                return
            self._attempt.response_bytes += len(chunk)
            yield chunk


class Upstream:
    """One backend of the configuration: its endpoints, its connections, its timeouts."""

    def __init__(self, name: str, backend: Backend) -> None:
        """Must be called on a running event loop; `close` must be awaited."""
        self.name = name
        self.backend = backend
        self.headers = BackendHeaders(backend.headers.set, backend.headers.remove)
        timeouts = backend.timeouts
        self._limits = {"first_byte": timeouts.first_byte, "idle": timeouts.idle, "total": timeouts.total}
        self._balancer = RoundRobin(backend.endpoints)
        self._pooled = _session(
            timeouts.connect, aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_S)
        )
        self._fresh = _session(timeouts.connect, aiohttp.TCPConnector(limit=MAX_CONNECTIONS, force_close=True))

    async def close(self) -> None:
        """Close every connection."""
        await self._pooled.close()
        await self._fresh.close()

    @asynccontextmanager
    async def call(
        self, method: str, raw_path: str, headers: CIMultiDict[str], body: Body, attempts: list[Attempt]
    ) -> AsyncIterator[Answer]:
        """Send a request and give its answer. What was tried is appended to *attempts*.

        A connection that had been used before and dies before any byte of an answer is replaced once, whatever
        the method: the backend had closed it while it was idle. Raises `GatewayError`.
        """
        loop = asyncio.get_running_loop()
        url = _url(self._balancer.pick(), raw_path)
        started = loop.time()
        response: aiohttp.ClientResponse | None = None
        timer: _Timer | None = None
        finished = False
        try:
            async with asyncio.timeout_at(started + self._limits["total"]) as timeout:
                timer = _Timer(timeout, self._limits, started + self._limits["total"])
                try:
                    response = await self._send(self._pooled, method, url, headers, body, attempts, timer)
                except _StaleConnectionError:
                    response = await self._send(self._fresh, method, url, headers, body, attempts, timer)
                yield Answer(self.name, response, timer, attempts[-1])
                finished = response.content.at_eof()
        except TimeoutError:
            described = timer.describe() if timer is not None else ""
            attempts[-1].code = ErrorKind.TIMEOUT.label if response is None else attempts[-1].code
            raise GatewayError(ErrorKind.TIMEOUT, f"backend {self.name!r} {described}") from None
        finally:
            if attempts:
                attempts[-1].seconds = loop.time() - attempts[-1].started_s
            if response is not None:
                if finished:
                    response.release()
                else:
                    response.close()

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        body: Body,
        attempts: list[Attempt],
        timer: _Timer,
    ) -> aiohttp.ClientResponse:
        loop = asyncio.get_running_loop()
        attempt = Attempt(str(url.origin()), loop.time())
        attempts.append(attempt)
        sending = Sending(timer, attempt)
        data = body.open(sending) if body.open is not None else body.whole
        connection = SimpleNamespace(is_reused=False, sending=None)
        if body.open is None:
            attempt.request_bytes = len(body.whole or b"")
            connection.sending = sending
        try:
            with _blaming_backend(self.name):
                try:
                    response = await session.request(
                        method, url, headers=headers, data=data, trace_request_ctx=connection, allow_redirects=False
                    )
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                    # where a part of a head had come, aiohttp puts it in the place of the message
                    is_unanswered = isinstance(getattr(error, "message", ""), str)
                    if connection.is_reused and body.can_be_repeated and is_unanswered:
                        raise _StaleConnectionError from error
                    raise
        except GatewayError as error:
            attempt.code = error.kind.label
            raise
        except _StaleConnectionError:
            attempt.code = ErrorKind.UPSTREAM_CLOSED.label
            raise
        finally:
            attempt.seconds = loop.time() - attempt.started_s
        attempt.code = str(response.status)
        attempt.first_byte_s = attempt.seconds
        return response


class _StaleConnectionError(Exception):
    """A kept connection died before any byte of an answer."""


@contextmanager
def _blaming_backend(name: str) -> Iterator[None]:
    """Turn what aiohttp's client raises into a `GatewayError`."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        reason = str(getattr(error, "os_error", None) or error)
        raise GatewayError(ErrorKind.UNREACHABLE, f"backend {name!r} cannot be reached: {reason}") from error
    except aiohttp.ClientResponseError as error:
        raise GatewayError(
            ErrorKind.MALFORMED_RESPONSE, f"backend {name!r} does not speak HTTP: {error.message}"
        ) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise GatewayError(
            ErrorKind.UPSTREAM_CLOSED, f"backend {name!r} closed the connection before its answer was complete"
        ) from error


def _session(connect_s: float, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_mark_reused)
    trace.on_request_headers_sent.append(_mark_sent)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        trace_configs=[trace],
    )


async def _mark_reused(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.is_reused = True


async def _mark_sent(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    if context.trace_request_ctx.sending is not None:
        # a body that does not stream goes out with the head
        context.trace_request_ctx.sending.done()


@lru_cache(maxsize=1024)
def _url(endpoint: str, raw_path: str) -> URL:
    return URL(endpoint + raw_path, encoded=True)
