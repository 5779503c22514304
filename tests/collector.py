"""A collector of traces that stands in for a real one: OTLP over HTTP, decoded with OpenTelemetry's own messages.

Not here: what a test expects of the spans.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

WITHIN_S = 30.0
"""How long a test waits for spans."""


@dataclass(frozen=True)
class Collected:
    """A span that has come."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """Empty without a parent."""
    kind: str
    """`SERVER`, `CLIENT` or `INTERNAL`."""
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    has_failed: bool
    message: str
    state: str
    resource: dict[str, Any]


@dataclass
class Collector:
    """Keeps all that has come, until the test ends."""

    url: str
    spans: list[Collected] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each request, by their names in lower case."""
    peers: set[object] = field(default_factory=set)
    """The addresses and ports that they came from."""
    status: int = 200
    """What it answers; spans are kept with 200 only."""
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def of_kind(self, kind: str) -> list[Collected]:
        """The spans of *kind*, in the order of their starts."""
        return sorted((span for span in self.spans if span.kind == kind), key=lambda span: span.start_ns)

    def children(self, parent: Collected) -> list[Collected]:
        """The spans under *parent*, in the order of their starts."""
        inside = (span for span in self.spans if (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id))
        return sorted(inside, key=lambda span: span.start_ns)

    async def until(self, is_enough: Callable[[], bool]) -> None:
        """Wait until *is_enough*, which is asked whenever something has come."""
        async with asyncio.timeout(WITHIN_S):
            while not is_enough():
                self.came.clear()
                await self.came.wait()

    async def requests(self, count: int) -> list[Collected]:
        """The spans of *count* requests, when they have come; those under them are sent before."""
        await self.until(lambda: len(self.of_kind("SERVER")) >= count)
        return self.of_kind("SERVER")

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if self.status == 200:
            self.spans += _decoded(body)
        self.came.set()
        return web.Response(status=self.status, content_type="application/x-protobuf")


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector on a free port."""
    application = web.Application(client_max_size=64 * 2**20)
    collector = Collector("")
    application.router.add_post("/v1/traces", collector._take)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield collector
    finally:
        await runner.cleanup()


def _decoded(body: bytes) -> list[Collected]:
    message = ExportTraceServiceRequest.FromString(body)
    return [
        _collected(span, {each.key: _value(each.value) for each in of_resource.resource.attributes})
        for of_resource in message.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _collected(span: Span, resource: dict[str, Any]) -> Collected:
    return Collected(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {each.key: _value(each.value) for each in span.attributes},
        span.status.code == 2,  # STATUS_CODE_ERROR
        span.status.message,
        span.trace_state,
        resource,
    )


def _value(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")
