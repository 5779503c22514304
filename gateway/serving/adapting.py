"""How an inference is put to a server by an adapter (`dialect: python`): its functions run in threads.

All other questions about such a server are answered as for other dialects (`foreign`).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from gateway.adapter import AdapterCall
from gateway.backend.asking import PIECE_BYTES
from gateway.codec.dialects.arrays import adapter_call, array_bytes, at_once
from gateway.codec.dialects.description import check_known, v2_metadata
from gateway.codec.dialects.dialect import Dialect
from gateway.codec.dialects.python import PARSED_PER_BYTE, AdapterAnswer, PythonDialect, WholeJson
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import NonFinite
from gateway.codec.v2.reply import Reply as InferReply
from gateway.errors import CodecError, ErrorKind, GatewayError
from gateway.pacing import Pacer
from gateway.policy.paths import find_path_fault
from gateway.serving.adapter_modules import AdapterFailedError, AdapterModule
from gateway.serving.adapter_threads import MAX_THREADS
from gateway.serving.call import Call
from gateway.serving.foreign import Foreign
from gateway.serving.speech import Prepared, reading

T = TypeVar("T")


def foreign_to(call: Call, dialect: Dialect) -> Foreign:
    """The client's request to a backend that speaks *dialect*. Raises `GatewayError` for an unknown model."""
    return (Adapted if isinstance(dialect, PythonDialect) else Foreign)(call, dialect)


class Adapted(Foreign):
    """A client's request to a backend with an adapter."""

    async def prepare(self, body: memoryview) -> Prepared:
        """See `Foreign.prepare`."""
        call, described, policy = self.call, self._configured, self.call.backend.tensor_policy
        adapter = call.serving.adapters[call.backend.name]
        metadata = v2_metadata(self.model, described) if call.framing.header_length == 0 else b""
        steps = DialectRequest.parse(reading(call, body, metadata), policy, call.body.reserve)
        request = await call.exchange.request_codec.run(steps)
        check_known(described, request.inputs, request.selection, model=self.name)
        request, sizes = self.dialect.fitted(request, described, self.name)
        call.body.reserve(array_bytes(request.inputs))
        make = partial(_made, adapter, request, self, policy.nonfinite)
        try:
            asked, path, text = await self._made_in_time(adapter, make)
        except AdapterFailedError as error:
            call.exchange.failed_at = error.place
            if error.refusal is not None:
                raise GatewayError(ErrorKind.MALFORMED_REQUEST, error.refusal, sent=False) from None
            raise GatewayError(ErrorKind.INTERNAL, str(error), sent=False) from None
        call.body.reserve(len(text))
        decoder = partial(self._adapter_decoder, adapter, request, asked, sizes)
        small = text if len(text) <= PIECE_BYTES else None
        finish = partial(self._finish, adapter)
        return Prepared(request, WholeJson(text), small, decoder, target=self._target(path, adapter), finish=finish)

    async def _made_in_time(
        self, adapter: AdapterModule, make: Callable[[], tuple[AdapterCall, str, bytes]]
    ) -> tuple[AdapterCall, str, bytes]:
        """What *make* returns in a thread. Raises `AdapterFailedError`, and `GatewayError` (TIMEOUT)."""
        call = self.call
        try:
            return await call.within_total(_run(adapter, make, call, call.exchange.request_codec))
        except GatewayError as error:
            if error.kind is not ErrorKind.TIMEOUT:
                raise
            call.exchange.failed_at = adapter.place_of("request")
            total = f"{call.backend.settings.timeouts.total:g} s (timeouts.total)"
            words = f"the adapter of backend {call.backend.name!r} took longer than {total}, and nothing was sent"
            if adapter.threads.are_all_in_use:
                words += f"; all of its {MAX_THREADS} threads are in use"
            raise GatewayError(ErrorKind.TIMEOUT, words, sent=False) from None

    def call_of(self, request: DialectRequest) -> AdapterCall:
        """What the adapter gets for *request*. Raises `CodecError` for arrays that numpy cannot have."""
        return adapter_call(request, self._configured, model=self.model, version=self.version)

    def _target(self, path: str, adapter: AdapterModule) -> str:
        """The path and query for the backend: the adapter's *path* after the part that the route keeps.

        Raises `GatewayError` (500) for a path that no client may use.
        """
        call = self.call
        path, mark, own_query = path.partition("?")
        path = self.path.before + path
        fault = find_path_fault(path)
        try:
            if fault is None:
                call.plan.check_path(path, call.backend)
        except GatewayError as error:
            fault = error.message
        if fault is not None:
            call.exchange.failed_at = adapter.place_of("request")
            words = f"the adapter's `request` returned the path {path[:200]!r}, which is refused: {fault}"
            raise GatewayError(ErrorKind.INTERNAL, words, sent=False)
        query = call.match.target[len(call.match.path) :]
        return path + (f"{mark}{own_query}{query.replace('?', '&', 1)}" if mark else query)

    def _adapter_decoder(
        self, adapter: AdapterModule, request: DialectRequest, asked: AdapterCall, sizes: Mapping[str, int]
    ) -> AdapterAnswer:
        exchange = self.call.exchange
        exchange.failed_at = ""  # of an attempt before
        answer = partial(adapter.call, "answer", asked, int(exchange.attempts[-1].code))
        return AdapterAnswer(
            self._configured,
            request.selection,
            sizes,
            answer,
            model=self.name,
            request_id=request.id,
            version=self.version,
        )

    async def _finish(self, adapter: AdapterModule, decoder: AdapterAnswer, last: bytes) -> InferReply:
        """Finish *decoder* in a thread. Raises `CodecError`."""
        call = self.call
        call.body.hold_answer(decoder.held_bytes + len(last) * (1 + PARSED_PER_BYTE))
        try:
            return await _run(adapter, partial(_answered, adapter, decoder, last), call, call.exchange.response_codec)
        except asyncio.CancelledError:
            call.exchange.failed_at = adapter.place_of("answer")
            raise
        except AdapterFailedError as error:
            call.exchange.failed_at = error.place
            raise
        except CodecError:  # of what it has returned
            call.exchange.failed_at = adapter.place_of("answer")
            raise


def _made(
    adapter: AdapterModule, request: DialectRequest, adapted: Adapted, nonfinite: NonFinite
) -> tuple[AdapterCall, str, bytes]:
    """What the adapter gets, and the path and body that it makes. Raises `AdapterFailedError`; for a thread."""
    asked = adapted.call_of(request)
    return asked, *adapter.request(asked, nonfinite)


def _answered(adapter: AdapterModule, decoder: AdapterAnswer, last: bytes) -> InferReply:
    """Finish *decoder*. Raises `CodecError`; for a thread."""
    with adapter.using_result("answer"):
        return at_once(decoder.finish(last))


async def _run(adapter: AdapterModule, function: Callable[[], T], call: Call, codec: Pacer) -> T:
    """Run *function* in a thread of *adapter*'s; its time is counted as that of *codec*.

    If *call* ends before the thread does, its bytes stay reserved until then.
    """

    def timed() -> tuple[T, float]:
        began_s = time.perf_counter()
        result = function()
        return result, time.perf_counter() - began_s

    result, seconds = await adapter.threads.run(timed, call.body.leave)
    codec.seconds += seconds
    return result
