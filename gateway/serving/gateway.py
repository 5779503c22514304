"""Every request of a process, from its head to its record.

`Gateway.handle` finds out where a request goes. Then `infer`, `relay` or `own_answers` serve it.
"""

import asyncio
import logging
import math
from collections.abc import Callable

from gateway.backend.metadata import ModelMetadata
from gateway.client.request import ClientRequest, request_id
from gateway.errors import CodecError, ErrorKind, GatewayError, blamed
from gateway.exchange import Exchange
from gateway.headers import Headers
from gateway.policy.admission import Admission
from gateway.policy.clients import Clients
from gateway.policy.routing import Match, PathKind
from gateway.policy.trace_context import Trace
from gateway.serving import own_answers
from gateway.serving.call import Call, Serving
from gateway.serving.foreign import Foreign, dialect_of
from gateway.serving.inference import infer
from gateway.serving.relaying import relay

_INFER = PathKind.INFER  # looked up once, as `exchange.JSON` is

_CUT_OFF = "the gateway is stopping, and the request did not end within shutdown.grace; the backend may have served it"

log = logging.getLogger("gateway")


class Gateway:
    """Serves all requests of a process. The plan can be replaced while it runs; its state stays."""

    def __init__(self, serving: Serving, record: Callable[[Exchange], None]) -> None:
        """*record* is called once with each finished exchange. Must be made on a running event loop."""
        self._loop = asyncio.get_running_loop()
        self.serving = serving
        self.begin_trace: Callable[[Headers], Trace] | None = None
        """Begins the trace of a request; None if requests are not traced. A reload may replace it."""
        plan = serving.plan
        self.admission = Admission(plan.in_flight_bytes, plan.limits.concurrent_requests)
        self.metadata = ModelMetadata()
        self.clients = Clients()
        self.in_flight = 0
        self.is_draining = False
        self.is_ending = False
        """Whether `shutdown.grace` is over, so that requests are cancelled by the gateway and not by their clients."""
        self._record = record

    def replace(self, serving: Serving) -> None:
        """Serve new requests by *serving*; requests in flight keep the one that they began with."""
        self.serving = serving
        self.admission.max_bytes = serving.plan.in_flight_bytes
        self.admission.max_requests = serving.plan.limits.concurrent_requests

    async def handle(self, request: ClientRequest) -> None:
        """Serve one request of a client to its end, and record it. Raises `CancelledError` if the client leaves."""
        loop, serving = self._loop, self.serving
        exchange = Exchange(request.peer, request.method, request.path, request_id(request.headers), loop.time())
        exchange.protocol = request.protocol
        if self.begin_trace is not None:
            exchange.trace, exchange.scheme = self.begin_trace(request.headers), request.scheme
        proxies = serving.plan.proxies
        if proxies is not None and proxies.trusts(request.peer):
            request.is_from_proxy = True
            exchange.client = proxies.client_of(request.peer, request.headers.joined("x-forwarded-for"))
        call = Call(self, serving, request, exchange)
        self.in_flight += 1
        try:
            try:
                match = await self._admit(call)
                if match is None:
                    await own_answers.answer_for_all(call)
                elif match.kind is _INFER and request.method == "POST":
                    await infer(call)
                else:
                    await _serve_other(call)
            except GatewayError as error:
                await call.reply.error(error)
            except CodecError as error:  # of the client's bytes; whoever reads a backend's blames the backend
                await call.reply.error(blamed(error, ErrorKind.MALFORMED_REQUEST))
        except (asyncio.CancelledError, ConnectionError):
            if self.is_ending:
                await call.reply.error(GatewayError(ErrorKind.OVERLOADED, _CUT_OFF))
            call.reply.client_left()
            raise
        except Exception as error:
            log.exception("request %s failed", exchange.request_id)
            await call.reply.error(GatewayError(ErrorKind.INTERNAL, f"internal error: {type(error).__name__}"))
        finally:
            self.in_flight -= 1
            call.body.release()
            if call.counted_for is not None:
                self.clients.end(call.counted_for)
            exchange.seconds = loop.time() - exchange.started_s
            self._record(exchange)

    async def _admit(self, call: Call) -> Match | None:
        """Check the request's token and its client's limits, and find its route.

        None if no route matches, and the gateway answers for all backends (`own_answers`). Raises `GatewayError`.
        Over gRPC the route is only known from the message, so the limits are checked first, before it is read.
        """
        request, exchange, plan = call.request, call.exchange, call.plan
        if plan.access.needs_token and request.path:  # else what came is no HTTP, and has no headers
            request.headers, exchange.client_name = plan.access.authorize(request.headers)
        if request.fault is not None:
            # requests of a stream may share one error, which would collect and keep the frames of all of them
            raise request.fault.with_traceback(None)
        if request.begin is not None:
            if plan.limits_clients:
                self._count(call)
            await request.begin()
        try:
            match: Match | None = plan.route(request.method, request.host, request.path, request.headers)
        except GatewayError as error:
            if error.status != ErrorKind.NO_ROUTE.status or not own_answers.is_for_all(request):
                raise
            match = None
        if match is not None:
            call.match, destination = match, match.destination
            exchange.route, exchange.backend = destination.route, destination.only or "none"
            exchange.model = match.model
        if request.begin is None and plan.limits_clients:
            self._count(call)
        return match

    def _count(self, call: Call) -> None:
        """Count the request for its client. Raises `GatewayError` (429) above the client's limits."""
        exchange, limits = call.exchange, call.plan.limits.per_client
        name = exchange.client_name or exchange.client
        wait_s = self.clients.begin(name, exchange.started_s, limits.concurrent, limits.rate, limits.burst)
        if wait_s is None:
            call.counted_for = name
            return
        seconds = max(1, math.ceil(wait_s))
        words = f"client {name!r} asks for more than limits.per_client allows; try again in {seconds} s"
        raise GatewayError(ErrorKind.RATE_LIMITED, words, headers=[("Retry-After", str(seconds))])


async def _serve_other(call: Call) -> None:
    """Serve a request that is no inference. Raises `GatewayError`."""
    call.choose()
    dialect = None if call.match.kind is PathKind.OTHER else await dialect_of(call)
    if dialect is None:
        await relay(call)
    else:
        await own_answers.answer(Foreign(call, dialect))
