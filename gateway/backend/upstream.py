"""One call to a backend: connections, timeouts, and what it means when they fail.

Here: everything that knows aiohttp's client. Not here: what the bodies say, and whether a failed call
is worth another.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import aiohttp
import aiohttp.client_proto
import aiohttp.connector
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from gateway.config import Backend
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.policy.balancing import RoundRobin
from gateway.policy.crossing import BackendHeaders

KEEP_ALIVE_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which uvicorn closes it."""

MAX_CONNECTIONS = 100
"""The most connections to one backend."""

Pieces = AsyncIterator[bytes | bytearray | memoryview]


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body: bytes, or a stream that is opened anew for every attempt."""

    whole: bytes | None = None
    open: Callable[["Sending"], Pieces] | None = None
    can_be_repeated: bool = True
    """Whether `open` gives the same pieces again."""


class Sending:
    """What a streaming body tells of its progress, so that the right timeout runs."""

    __slots__ = ("_attempt", "_is_answered", "_timer")

    def __init__(self, timer: "_Timer", attempt: Attempt) -> None:
        self._timer = timer
        self._attempt = attempt
        self._is_answered = False

    def piece(self, n_bytes: int) -> None:
        """*n_bytes* are handed to the connection now: the backend has `idle` to take them."""
        self._attempt.request_bytes += n_bytes
        self._phase("idle")

    def paused(self) -> None:
        """The gateway waits for the client, for which the backend is not to blame."""
        self._phase("client")

    def done(self) -> None:
        """All is sent: the backend has `first_byte` to begin its answer."""
        self._phase("first_byte")

    def answered(self) -> None:
        """The answer has begun, maybe before all was sent: from now on its reading sets the timeouts."""
        self._is_answered = True

    def _phase(self, name: str) -> None:
        if not self._is_answered:
            self._timer.phase(name)


class _Timer:
    """The timeouts of one call, moved as it goes through its phases; never beyond `total`.

    Moving one is an assignment: the event loop is asked to look again after the shortest of them, and each time it
    looks, the deadline of that moment counts. Moving asyncio's own timeout several times per request costs more than
    a small tensor's codec.
    """

    __slots__ = ("_deadline", "_ended_in", "_handle", "_limits", "_loop", "_phase", "_shortest", "_timeout", "_total")

    def __init__(self, timeout: asyncio.Timeout, limits: Mapping[str, float], total_at: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._limits = limits
        self._shortest = min(limits.values())
        self._total = self._deadline = total_at
        self._phase = self._ended_in = "total"
        self._handle = self._loop.call_at(min(total_at, self._loop.time() + self._shortest), self._look)

    def phase(self, name: str) -> None:
        """Run the timeout *name* from now on: one of the configuration's, or `client`, which only `total` ends."""
        self._phase = name
        limit = self._limits.get(name)
        self._deadline = self._total if limit is None else min(self._total, self._loop.time() + limit)

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._deadline:
            self._ended_in = self._phase  # the call may move on before it is cancelled
            self._timeout.reschedule(now)
        else:
            self._handle = self._loop.call_at(min(self._deadline, now + self._shortest), self._look)

    def stop(self) -> None:
        """The call is over."""
        self._handle.cancel()

    def expired(self, backend: str) -> GatewayError:
        """What to say when time has run out."""
        total = f"{self._limits['total']:g} s (timeouts.total)"
        if self._ended_in not in ("idle", "first_byte") or self._loop.time() >= self._total:
            if self._ended_in == "client":
                return GatewayError(ErrorKind.SLOW_CLIENT, f"the client kept the request open for more than {total}")
            return GatewayError(ErrorKind.TIMEOUT, f"backend {backend!r} took longer than {total}")
        words = {"idle": "was silent in the middle for", "first_byte": "did not begin to answer within"}
        limit = f"{self._limits[self._ended_in]:g} s (timeouts.{self._ended_in})"
        return GatewayError(ErrorKind.TIMEOUT, f"backend {backend!r} {words[self._ended_in]} {limit}")


class _BrokenFramingError(aiohttp.ClientPayloadError):
    """The chunks of an answer's body are not sound."""

    message = "broken chunks"


class _Wire(aiohttp.client_proto.ResponseHandler):
    """aiohttp's client protocol, which also counts what came."""

    received_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Count and parse. A body whose framing breaks later than its head fails at once, not by silence."""
        self.received_bytes += len(data)
        super().data_received(data)
        payload = self._payload
        if payload is not None and not payload.is_eof() and isinstance(self.exception(), HttpProcessingError):
            payload.set_exception(_BrokenFramingError())


class _Lease:
    """The connection that a call has got."""

    __slots__ = ("on_connected", "received_before", "transport", "wire")

    def __init__(self, on_connected: Callable[[], None]) -> None:
        self.wire: _Wire | None = None
        self.transport: asyncio.Transport | None = None
        self.received_before = 0
        self.on_connected = on_connected

    @property
    def was_dead(self) -> bool:
        """Whether it had been used before, and not one byte came over it this time."""
        return self.wire is not None and 0 < self.received_before == self.wire.received_bytes

    def abort(self) -> None:
        """Close the connection without waiting for what is still to be sent."""
        if self.transport is not None:
            self.transport.abort()


_lease: ContextVar[_Lease] = ContextVar("lease")


class _Connector(aiohttp.TCPConnector):
    """aiohttp's connector, which tells the call what connection it has got."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(_Wire, loop=self._loop)  # type: ignore[assignment]

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  aiohttp's signature
    ) -> aiohttp.connector.Connection:
        """See aiohttp."""
        connection = await super().connect(req, traces, timeout)
        lease = _lease.get()
        assert isinstance(connection.protocol, _Wire)
        lease.wire = connection.protocol
        # kept here, because the protocol lets go of it as soon as it is told to close
        lease.transport = lease.wire.transport
        lease.received_before = lease.wire.received_bytes
        lease.on_connected()
        return connection


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
            try:
                chunk = await content.readany()
            except _FAILURES as error:
                # aiohttp keeps the error, and with its traceback it would keep the last chunk
                raise _blamed(self._name, error) from error.with_traceback(None)
            self._timer.phase("client")
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
        pool = _Connector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE_S)
        self._pooled = _session(timeouts.connect, pool)
        self._fresh = _session(timeouts.connect, _Connector(limit=MAX_CONNECTIONS, force_close=True))

    async def close(self) -> None:
        """Close every connection."""
        await self._pooled.close()
        await self._fresh.close()

    @asynccontextmanager
    async def call(
        self,
        method: str,
        raw_path: str,
        headers: CIMultiDict[str],
        body: Body,
        attempts: list[Attempt],
        total_at: float | None = None,
    ) -> AsyncIterator[Answer]:
        """Send a request and give its answer. What was tried is appended to *attempts*.

        *total_at*: when `timeouts.total` is over, by the event loop's clock, if it began before this call.

        A connection that had been used before and dies before any byte of an answer is replaced once, whatever
        the method: the backend had closed it while it was idle. Raises `GatewayError`.
        """
        loop = asyncio.get_running_loop()
        url = _url(self._balancer.pick(), raw_path)
        request = _Request(method, url, headers, body)
        if total_at is None:
            total_at = loop.time() + self._limits["total"]
        response: aiohttp.ClientResponse | None = None
        is_finished = False
        try:
            async with asyncio.timeout(None) as timeout:
                timer = _Timer(timeout, self._limits, total_at)
                try:
                    response = await self._send(self._pooled, request, attempts, timer)
                except _StaleConnectionError:
                    response = await self._send(self._fresh, request, attempts, timer)
                yield Answer(self.name, response, timer, attempts[-1])
                is_finished = response.content.at_eof()
        except TimeoutError:
            error = timer.expired(self.name)
            if response is None:
                attempts[-1].code = error.kind.label
            raise error from None
        finally:
            timer.stop()
            attempts[-1].seconds = loop.time() - attempts[-1].started_s
            if response is not None:
                if is_finished:
                    response.release()
                else:
                    response.close()
            if not is_finished:
                _lease.get().abort()

    async def _send(
        self, session: aiohttp.ClientSession, request: "_Request", attempts: list[Attempt], timer: _Timer
    ) -> aiohttp.ClientResponse:
        loop = asyncio.get_running_loop()
        attempt = Attempt(str(request.url.origin()), loop.time())
        attempts.append(attempt)
        timer.phase("total")
        sending = Sending(timer, attempt)
        body = request.body
        if body.open is not None:
            lease = _Lease(_do_nothing)
        else:
            attempt.request_bytes = len(body.whole or b"")
            lease = _Lease(sending.done)  # a body that does not stream goes out with the head
        _lease.set(lease)
        try:
            response = await session.request(
                request.method,
                request.url,
                headers=request.headers,
                data=body.open(sending) if body.open is not None else body.whole,
                allow_redirects=False,
            )
        except _FAILURES as error:
            blamed = _blamed(self.name, error)
            attempt.code = blamed.kind.label
            is_lost = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
            if is_lost and lease.was_dead and body.can_be_repeated:
                raise _StaleConnectionError from error
            raise blamed from error
        finally:
            sending.answered()
            attempt.seconds = loop.time() - attempt.started_s
        if response.status < 200:
            response.close()
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"backend {self.name!r} answered {response.status}")
        attempt.code = str(response.status)
        attempt.first_byte_s = attempt.seconds
        return response


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: URL
    headers: CIMultiDict[str]
    body: Body


def _do_nothing() -> None:
    pass


class _StaleConnectionError(Exception):
    """A kept connection died before any byte of an answer."""


_FAILURES = (aiohttp.ClientError, HttpProcessingError, ConnectionError)


def _blamed(name: str, error: Exception) -> GatewayError:
    """What aiohttp's client raised, as an error of the backend *name*."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        reason = str(getattr(error, "os_error", None) or error)
        return GatewayError(ErrorKind.UNREACHABLE, f"backend {name!r} cannot be reached: {reason}")
    if isinstance(error, aiohttp.ClientResponseError | HttpProcessingError | _BrokenFramingError):
        return GatewayError(ErrorKind.MALFORMED_RESPONSE, f"backend {name!r} does not speak HTTP: {error.message}")
    return GatewayError(
        ErrorKind.UPSTREAM_CLOSED, f"backend {name!r} closed the connection before its answer was complete"
    )


def _session(connect_s: float, connector: _Connector) -> aiohttp.ClientSession:
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
    )
    # aiohttp sends idempotent methods again by itself, which nobody would count
    session._retry_connection = False
    return session


@lru_cache(maxsize=1024)
def _url(endpoint: str, raw_path: str) -> URL:
    return URL(endpoint + raw_path, encoded=True)
