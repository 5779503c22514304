"""Makes the spans of a request from its finished exchange, for a collector (OTLP over HTTP).

The request has a span of kind server; below it each attempt has a span of kind client, and the codec's work on the
request and on the answer one each. Attributes follow OpenTelemetry's conventions for HTTP, or for gRPC; those of the
gateway's own begin with `tensor_gateway.`. A request over HTTP is called by its method and its route in the
configuration, which have few values. Queries of URLs are left out, since they may hold secrets.
Imported only where tracing is configured (`tracing`). Not here: ids, and which traces are sampled.
"""

import os
import time
from collections.abc import Iterator
from typing import Any
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
from gateway.telemetry.access_log import DETAIL_CHARACTERS

QUEUE_SPANS = 8192
"""How many spans wait for the collector, about four to a request; beyond it the oldest are dropped."""

BATCH_SPANS = 512
"""How many are sent at once."""

SEND_EVERY_S = 1.0
"""How long spans wait for others."""

EXPORT_S = 5.0
"""How long the collector may take for a batch, repeated tries included; after that the batch is dropped."""

PATH_CHARACTERS = 1024
"""How many characters of a path a span has, so that spans that wait for a lost collector take 50 MiB at most."""

_SCOPE = InstrumentationScope("tensor-gateway", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status()

Described = tuple[str, dict[str, Any], Status]
"""A span's name, its attributes (None for what does not apply to it), and its status."""


def processor_of(settings: config.Tracing) -> BatchSpanProcessor:
    """Sends spans to a collector, from a thread of its own; connects only when there are spans."""
    endpoint = settings.endpoint if urlsplit(settings.endpoint).path else f"{settings.endpoint}/v1/traces"
    session = requests.Session()
    session.max_redirects = 0  # a POST that follows one becomes a GET, and its success that of the spans
    exporter = OTLPSpanExporter(endpoint, headers=settings.headers, timeout=EXPORT_S, session=session)
    return BatchSpanProcessor(exporter, QUEUE_SPANS, SEND_EVERY_S * 1000, BATCH_SPANS)


def resource_of(service_name: str) -> Resource:
    """What all spans say of this process."""
    return Resource.create({"service.name": service_name, "service.version": __version__, "process.pid": os.getpid()})


def spans_of(resource: Resource, exchange: Exchange, trace: Trace) -> list[ReadableSpan]:
    """All spans of *exchange*, made at its end: spans started by the SDK would get other ids.

    The request's own is the last, so that a collector that has it has the others, too. Others are cut to its time,
    which rounding and a second clock may exceed a little.
    """
    trace_id, state = int(trace.trace_id, 16), TraceState.from_header([trace.state]) if trace.state else None
    now_ns = time.time_ns()
    loop_ns, codec_ns = now_ns - time.monotonic_ns(), now_ns - time.perf_counter_ns()
    first_ns = loop_ns + int(exchange.started_s * 1e9)
    last_ns = first_ns + int(exchange.seconds * 1e9)

    def context(span_id: str, *, is_remote: bool = False) -> SpanContext:
        return SpanContext(trace_id, int(span_id, 16), is_remote, _SAMPLED, state)

    def span(
        described: Described, kind: SpanKind, own: SpanContext, parent: SpanContext | None, start_ns: int, end_ns: int
    ) -> ReadableSpan:
        name, attributes, status = described
        start_ns = min(max(start_ns, first_ns), last_ns)
        return ReadableSpan(
            name,
            own,
            parent,
            resource,
            {key: value for key, value in attributes.items() if value is not None},
            kind=kind,
            status=status,
            start_time=start_ns,
            end_time=min(max(end_ns, start_ns), last_ns),
            instrumentation_scope=_SCOPE,
        )

    own = context(trace.span_id)
    spans = []
    n_earlier = 0
    for attempt in exchange.attempts:
        if not attempt.is_joined:  # else its span is in the trace of another request of the batch
            start_ns = loop_ns + int(attempt.started_s * 1e9)
            described, child = _attempt(exchange.backend, attempt, n_earlier), context(attempt.span_id or new_span_id())
            spans.append(span(described, SpanKind.CLIENT, child, own, start_ns, start_ns + int(attempt.seconds * 1e9)))
            if not attempt.is_metadata:  # after an attempt that was not repeated comes one for other rows
                n_earlier = n_earlier + 1 if attempt.repeated_for else 0
    for described, at_s, until_s in _codec(exchange):
        start_ns, end_ns = codec_ns + int(at_s * 1e9), codec_ns + int(until_s * 1e9)
        spans.append(span(described, SpanKind.INTERNAL, context(new_span_id()), own, start_ns, end_ns))
    parent = context(trace.parent_id, is_remote=True) if trace.parent_id else None
    spans.append(span(_request(exchange), SpanKind.SERVER, own, parent, first_ns, last_ns))
    return spans


def _request(exchange: Exchange) -> Described:
    path, is_routed, error = exchange.path.partition("?")[0], exchange.route != "none", exchange.error
    if exchange.protocol == "grpc":
        name = path.removeprefix("/") if is_routed else "_OTHER"
        attributes: dict[str, Any] = {
            "rpc.system.name": "grpc",
            "rpc.system": "grpc",  # its older name
            "rpc.method": name,
            "rpc.response.status_code": exchange.rpc_status or None,
        }
    else:
        name = f"{exchange.method} {exchange.route}" if is_routed else exchange.method
        attributes = {
            "http.request.method": exchange.method,
            "url.scheme": exchange.scheme,
            "url.path": path[:PATH_CHARACTERS],
            "http.response.status_code": exchange.status or None,
        }
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
    if error is not None:
        blame = blame_of(error, exchange.status)
        attributes |= {"error.type": error.label, "tensor_gateway.reason": error.label}
        attributes["tensor_gateway.blame"] = blame.value
        if blame is not Blame.CLIENT:
            status = Status(StatusCode.ERROR, exchange.detail[:DETAIL_CHARACTERS] or None)
    return name, attributes, status


def _attempt(backend: str, attempt: Attempt, n_earlier: int) -> Described:
    endpoint = urlsplit(attempt.endpoint)
    failure = attempt.repeated_for or attempt.code
    if failure == "none":  # given up because the client has left, which is not the endpoint's fault
        failure = ErrorKind.CLIENT_CLOSED.label
    elif failure.isdecimal() and failure < "400":
        failure = ""
    attributes = {
        "http.request.method": attempt.method,
        "url.full": f"{endpoint.scheme}://{endpoint.netloc}{attempt.target.partition('?')[0][:PATH_CHARACTERS]}",
        "server.address": endpoint.hostname or "",
        "server.port": endpoint.port or (443 if endpoint.scheme == "https" else 80),
        "http.request.body.size": attempt.request_bytes,
        "http.response.body.size": attempt.response_bytes,
        "http.request.resend_count": n_earlier if n_earlier and not attempt.is_metadata else None,
        "http.response.status_code": int(attempt.code) if attempt.code.isdecimal() else None,
        "error.type": failure or None,
        "tensor_gateway.backend": backend,
        "tensor_gateway.endpoint": attempt.endpoint,
        "tensor_gateway.queue_seconds": attempt.queue_s or None,
        "tensor_gateway.first_byte_seconds": attempt.first_byte_s,
        "tensor_gateway.connection": attempt.connection,
    }
    status = _UNSET if failure in ("", ErrorKind.CLIENT_CLOSED.label) else Status(StatusCode.ERROR)
    return attempt.method, attributes, status


def _codec(exchange: Exchange) -> Iterator[tuple[Described, float, float]]:
    """The spans of the codec's work, with begin and end by `time.perf_counter`."""
    for name, work, datatypes in (
        ("codec request", exchange.request_codec, exchange.input_datatypes),
        ("codec response", exchange.response_codec, exchange.output_datatypes),
    ):
        if work.began_s:
            attributes = {"tensor_gateway.codec_seconds": work.seconds, "tensor_gateway.tensors": len(datatypes)}
            yield (name, attributes, _UNSET), work.began_s, max(work.ended_s, work.began_s + work.seconds)
