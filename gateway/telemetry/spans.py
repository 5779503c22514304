"""Makes the spans of a request from its finished exchange, and sends them to a collector (OTLP over HTTP).

The request has a span of kind server; below it each attempt has a span of kind client, and the codec's work on the
request and on the answer one each. Names follow OpenTelemetry's conventions for HTTP, or for gRPC; names of the
gateway's own begin with `tensor_gateway.`. Queries of URLs are left out, since they may hold secrets.
Imported only where tracing is configured (`tracing`). Not here: ids, and which traces are sampled.
"""

import os
import re
import time
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from gateway import __version__, config
from gateway.errors import Blame, ErrorKind, blame_of
from gateway.exchange import Attempt, Exchange, new_span_id
from gateway.policy.trace_context import Trace

QUEUE_SPANS = 8192
"""How many spans wait for the collector, about four to a request; beyond it the oldest are dropped."""

BATCH_SPANS = 512
"""How many are sent at once."""

SEND_EVERY_S = 1.0
"""How long spans wait for others."""

EXPORT_S = 5.0
"""How long the collector may take for a batch, repeated tries included; after that the batch is dropped."""

ANSWER_BYTES = 4096
"""How many bytes of a collector's answer are read; after a longer answer the connection is closed."""

DETAIL_CHARACTERS = 512
"""How many characters of an error's text a span's status has."""

PATH_CHARACTERS = 1024
"""How many characters of a path a span has, so that spans that wait for a lost collector take 50 MiB at most."""

_SCOPE = InstrumentationScope("tensor-gateway", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status()
# Paths of the protocol. Models and versions become placeholders, because `http.route` must have few values.
_MODEL_PATH = re.compile(
    r"(.*/models)/[^/]+(/versions/[^/]+)?(/(?:infer|generate|generate_stream|ready|stats|config))?"
)
_OTHER_PATHS = frozenset({"/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/repository/index"})

Attributes = dict[str, str | int | float | None]
"""Of a span; None for what does not apply to it."""


class SpanExport:
    """Sends spans of requests to a collector, from a thread of its own."""

    def __init__(self, settings: config.Tracing) -> None:
        """Connects only when there are spans."""
        endpoint = settings.endpoint if urlsplit(settings.endpoint).path else f"{settings.endpoint}/v1/traces"
        session = requests.Session()
        session.stream = True
        session.hooks["response"].append(_take_answer)
        exporter = OTLPSpanExporter(endpoint, headers=settings.headers, timeout=EXPORT_S, session=session)
        self._processor = BatchSpanProcessor(exporter, QUEUE_SPANS, SEND_EVERY_S * 1000, BATCH_SPANS)
        self._resource = Resource.create(
            {"service.name": settings.service_name, "service.version": __version__, "process.pid": os.getpid()}
        )

    def add(self, exchange: Exchange) -> None:
        """Queue the spans of a finished *exchange* that has a trace."""
        trace = exchange.trace
        assert trace is not None
        spans = _Spans(exchange, trace, self._resource)
        for span in spans.all():
            self._processor.on_end(span)

    def close(self) -> None:
        """Send the spans that wait, and wait until they are sent."""
        self._processor.shutdown()  # type: ignore[no-untyped-call]


def _take_answer(response: requests.Response, **_: object) -> None:
    """Read a collector's answer, if it is short. Raises `HTTPError` for a redirect, which would count as a success."""
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) <= ANSWER_BYTES:
        response.raw.read(ANSWER_BYTES)
    response.close()
    if 300 <= response.status_code < 400:
        target = response.headers.get("Location", "nowhere")
        raise requests.HTTPError(f"it answered {response.status_code}, a redirect to {target}")


class _Spans:
    """The spans of one exchange, made as `ReadableSpan`: a span started by the SDK would get other ids and times."""

    def __init__(self, exchange: Exchange, trace: Trace, resource: Resource) -> None:
        self._exchange = exchange
        self._resource = resource
        self._trace_id = int(trace.trace_id, 16)
        self._state = TraceState.from_header([trace.state]) if trace.state else None
        self._own = self._context(trace.span_id)
        self._parent = self._context(trace.parent_id, is_remote=True) if trace.parent_id else None
        # the differences between the wall clock and the two clocks of the exchange's times
        now_ns = time.time_ns()
        self._loop_ns = now_ns - time.monotonic_ns()
        self._codec_ns = now_ns - time.perf_counter_ns()
        self._start_ns = self._at(exchange.started_s)
        self._end_ns = self._at(exchange.started_s + exchange.seconds)

    def all(self) -> list[ReadableSpan]:
        """All spans. The request's own is the last, so that a collector that has it has the others, too."""
        exchange = self._exchange
        spans = []
        n_earlier = 0
        for attempt in exchange.attempts:
            if attempt.is_joined:  # its span is in the trace of another request of the batch
                continue
            spans.append(self._attempt(attempt, n_earlier))
            n_earlier += not attempt.is_metadata
        for direction, work_s, at_s, until_s in (
            ("request", exchange.request_codec_s, exchange.request_codec_at_s, exchange.request_codec_until_s),
            ("response", exchange.response_codec_s, exchange.response_codec_at_s, exchange.response_codec_until_s),
        ):
            if at_s:
                spans.append(self._codec(direction, work_s, at_s, max(until_s, at_s + work_s)))
        spans.append(self._request())
        return spans

    def _request(self) -> ReadableSpan:
        exchange = self._exchange
        name, attributes = self._of_grpc() if exchange.protocol == "grpc" else self._of_http()
        attributes |= {
            "client.address": exchange.client,
            "http.request.body.size": exchange.client_request_bytes,
            "http.response.body.size": exchange.client_response_bytes,
            "tensor_gateway.request_id": exchange.request_id,
            "tensor_gateway.route": exchange.route,
            "tensor_gateway.backend": exchange.backend,
            "tensor_gateway.model": exchange.model,
        }
        status = _UNSET
        if (error := exchange.error) is not None:
            blame = blame_of(error, exchange.status)
            attributes |= {"error.type": error.label, "tensor_gateway.reason": error.label}
            attributes["tensor_gateway.blame"] = blame.value
            if blame is not Blame.CLIENT:
                status = Status(StatusCode.ERROR, exchange.detail[:DETAIL_CHARACTERS] or None)
        return self._span(name, SpanKind.SERVER, attributes, self._start_ns, self._end_ns, status)

    def _of_http(self) -> tuple[str, Attributes]:
        """The name of the request's span, and the attributes of requests over HTTP alone."""
        exchange = self._exchange
        path = exchange.path.partition("?")[0]
        route = _route_of(path) if exchange.route != "none" else None
        return exchange.method if route is None else f"{exchange.method} {route}", {
            "http.request.method": exchange.method,
            "url.scheme": exchange.scheme,
            "url.path": path[:PATH_CHARACTERS],
            "http.response.status_code": exchange.status or None,
            "http.route": route,
        }

    def _of_grpc(self) -> tuple[str, Attributes]:
        """The name of the request's span, and the attributes for gRPC alone, with the older name of `rpc.system`."""
        exchange = self._exchange
        call = exchange.path.removeprefix("/") if exchange.route != "none" else "_OTHER"
        return call, {
            "rpc.system.name": "grpc",
            "rpc.system": "grpc",
            "rpc.method": call,
            "rpc.response.status_code": exchange.rpc_status or None,
        }

    def _attempt(self, attempt: Attempt, n_earlier: int) -> ReadableSpan:
        exchange = self._exchange
        endpoint = urlsplit(attempt.endpoint)
        failure = _failure(attempt)
        attributes: Attributes = {
            "http.request.method": attempt.method,
            "url.full": f"{endpoint.scheme}://{endpoint.netloc}{attempt.target.partition('?')[0][:PATH_CHARACTERS]}",
            "server.address": endpoint.hostname or "",
            "server.port": endpoint.port or (443 if endpoint.scheme == "https" else 80),
            "http.request.body.size": attempt.request_bytes,
            "http.response.body.size": attempt.response_bytes,
            "http.request.resend_count": n_earlier if n_earlier and not attempt.is_metadata else None,
            "http.response.status_code": int(attempt.code) if attempt.code.isdecimal() else None,
            "error.type": failure or None,
            "tensor_gateway.backend": exchange.backend,
            "tensor_gateway.endpoint": attempt.endpoint,
            "tensor_gateway.queue_seconds": attempt.queue_s or None,
            "tensor_gateway.first_byte_seconds": attempt.first_byte_s,
            "tensor_gateway.connection": attempt.connection,
        }
        start_ns, end_ns = self._at(attempt.started_s), self._at(attempt.started_s + attempt.seconds)
        status = _UNSET if failure in ("", ErrorKind.CLIENT_CLOSED.label) else Status(StatusCode.ERROR)
        span_id = attempt.span_id or new_span_id()
        return self._span(attempt.method, SpanKind.CLIENT, attributes, start_ns, end_ns, status, span_id)

    def _codec(self, direction: str, work_s: float, at_s: float, until_s: float) -> ReadableSpan:
        exchange = self._exchange
        datatypes = exchange.input_datatypes if direction == "request" else exchange.output_datatypes
        attributes: Attributes = {"tensor_gateway.codec_seconds": work_s, "tensor_gateway.tensors": len(datatypes)}
        start_ns, end_ns = self._codec_ns + int(at_s * 1e9), self._codec_ns + int(until_s * 1e9)
        return self._span(f"codec {direction}", SpanKind.INTERNAL, attributes, start_ns, end_ns, _UNSET, new_span_id())

    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        start_ns: int,
        end_ns: int,
        status: Status,
        child_id: str = "",
    ) -> ReadableSpan:
        """The request's own span, or a child of it that has *child_id*.

        A child is cut to the request's time, which rounding and a second clock may exceed a little.
        """
        start_ns = min(max(start_ns, self._start_ns), self._end_ns)
        return ReadableSpan(
            name,
            self._context(child_id) if child_id else self._own,
            self._own if child_id else self._parent,
            self._resource,
            {key: value for key, value in attributes.items() if value is not None},
            kind=kind,
            status=status,
            start_time=start_ns,
            end_time=min(max(end_ns, start_ns), self._end_ns),
            instrumentation_scope=_SCOPE,
        )

    def _context(self, span_id: str, *, is_remote: bool = False) -> SpanContext:
        return SpanContext(self._trace_id, int(span_id, 16), is_remote, _SAMPLED, self._state)

    def _at(self, loop_s: float) -> int:
        """Nanoseconds since 1970 of a time of the event loop's clock, which is `time.monotonic`."""
        return self._loop_ns + int(loop_s * 1e9)


def _failure(attempt: Attempt) -> str:
    """The status or the label of the error with which *attempt* failed; empty if it did not."""
    if attempt.repeated_for:
        return attempt.repeated_for
    if attempt.code == "none":  # given up because the client has left, which is not the endpoint's fault
        return ErrorKind.CLIENT_CLOSED.label
    return "" if attempt.code.isdecimal() and attempt.code < "400" else attempt.code


def _route_of(path: str) -> str | None:
    """*path* with the names in it left out; None if it is none of the protocol."""
    if path in _OTHER_PATHS:
        return path
    found = _MODEL_PATH.fullmatch(path)
    if found is None:
        return None
    return f"{found[1]}/{{model}}{'/versions/{version}' if found[2] else ''}{found[3] or ''}"
