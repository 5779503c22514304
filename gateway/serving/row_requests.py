"""An inference that goes to the server in several requests of some rows each, side by side.

Each request has attempts and retries of its own. The first that fails ends the inference, and cancels the others. Not
here: how a request is cut, and its answers put together (`codec.dialects.rows`).
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import msgspec

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer
from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.body import WrittenRequest
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.dialects.rows import RowCut, RowOutputs, rows_label
from gateway.codec.inference import release
from gateway.codec.v2.answer import WHOLE_BYTES
from gateway.codec.v2.error_bodies import reworded
from gateway.errors import CodecError, ErrorKind, GatewayError, blamed
from gateway.exchange import Attempt
from gateway.policy.crossing import transcoded_lines
from gateway.serving.call import Answered, Call

REQUEST_BYTES = 1024
"""What is reserved for the record of one request, and for its answer while it waits for those of earlier rows."""


class RowRequests(msgspec.Struct, frozen=True):
    """An inference that is ready to be sent in several requests."""

    cut: RowCut
    write: Callable[[DialectRequest, int], WrittenRequest]
    """Makes the body of one of the requests, whose first row has this number. Raises `CodecError`."""
    decoder: Callable[[int], DialectAnswer]
    """Makes a decoder for the answer to one attempt of a request with so many rows."""
    outputs: RowOutputs
    parallel: int
    """How many requests are under way at once, at most."""
    target: str
    """The raw path and query for the backend."""

    @property
    def request(self) -> DialectRequest:
        """The client's request, whole."""
        return self.cut.request


async def send_rows(call: Call, requests: RowRequests, body: memoryview) -> Answered:
    """Send *requests*, which are made of *body*, and put the reply together. Raises `GatewayError`."""
    call.begin_total()
    call.body.reserve(requests.cut.n_requests * REQUEST_BYTES)
    sending = _Sending(call, requests, (*requests.request.views, body, *(call.framing.blobs or ())))
    await sending.run()
    exchange, selection, whole = call.exchange, requests.request.selection, requests.decoder(requests.cut.n_rows)
    try:
        outputs = requests.outputs.finish(selection.named)
        reply = await exchange.response_codec.run(whole.reply(outputs))
    except CodecError as error:
        if not requests.cut.n_rows:  # nothing was asked
            raise
        raise blamed(error, ErrorKind.MALFORMED_RESPONSE) from error
    call.body.hold_answer(sum([output.n_bytes for output in outputs]) + whole.held_bytes)
    exchange.output_datatypes = reply.datatypes
    exchange.response_nonfinite = reply.nonfinite
    return reply, sending.lines


class _Sending:
    """The requests for one inference while they are sent, at most `parallel` at once."""

    lines = ""
    """The fields that cross, of the head of the answer to the first request."""

    def __init__(self, call: Call, requests: RowRequests, views: tuple[memoryview, ...]) -> None:
        """*views* are all that hold the client's request, beside those of the single requests.

        Raises `CodecError` for what the first request cannot say.
        """
        self._call = call
        self._requests = requests
        self._views = views
        headers = call.backend.headers.transcoded(call.request)
        self._asked = call.asked(headers, Body(), requests.target, is_read_whole=True)
        # written before anything is sent: what it cannot say, no other request can
        self._first = self._written(0) if requests.cut.n_requests else None
        self._workers: list[asyncio.Task[None]] = []
        self._is_over = False
        self._failure: BaseException | None = None
        self._next = 0
        self._n_under_way = 0
        self._n_begun = 0  # requests that are sent, and whose answers have begun
        self._ended = asyncio.Event()
        self._decoding: dict[int, int] = {}  # what answers that are being read take, by request
        self._response_bytes = 0

    async def run(self) -> None:
        """Send all. Raises `GatewayError`."""
        n_workers = min(self._requests.parallel, self._requests.cut.n_requests)
        if n_workers < 2:
            await self._work()
            return
        self._workers = [asyncio.ensure_future(self._work_beside()) for _ in range(n_workers)]
        try:
            await asyncio.wait(self._workers)
        except BaseException:
            self._stop(None)
            await asyncio.wait(self._workers)  # until none of them has a connection, or reads the client's request
            raise
        finally:
            failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else this frame and the error would hold each other, and with them the request

    async def _work_beside(self) -> None:
        """As `_work`, in a task beside others, which are cancelled if it fails; the first failure is kept.

        The task ends without an error. It would keep it, whose traceback leads to the attempt's deadlines, and these
        to the task: the request would wait for the garbage collector.
        """
        try:
            await self._work()
        except asyncio.CancelledError:
            self._stop(asyncio.CancelledError())  # if no other has failed, the backend's connections are being closed
        except Exception as error:
            self._stop(error)

    def _stop(self, failure: BaseException | None) -> None:
        """Cancel all workers but the one that runs, once, and keep the *failure* that is the reason."""
        if self._is_over:
            return
        self._is_over, self._failure = True, failure
        for worker in self._workers:
            if worker is not asyncio.current_task():
                worker.cancel()

    async def _work(self) -> None:
        """Send one request after the other, until all are sent. Raises `GatewayError`.

        While all connections are in use no request waits for one that this inference itself has: the next is sent when
        one of these has ended.
        """
        cut, connections = self._requests.cut, self._call.upstream.connections
        while self._next < cut.n_requests:
            if self._n_under_way and connections.is_full:
                self._ended.clear()
                await self._ended.wait()
                continue
            index = self._next
            self._next += 1
            self._n_under_way += 1
            try:
                await self._send(index)
            except GatewayError as error:
                if self._call.is_batch:  # its clients do not know its rows, and ask alone if one of these is at fault
                    raise
                raise _with_rows(error, *cut.rows_of(index)) from error
            except CodecError as error:
                raise CodecError(f"{rows_label(*cut.rows_of(index))}: {error}") from error
            finally:
                self._n_under_way -= 1
                self._ended.set()

    async def _send(self, index: int) -> None:
        """Send request *index*, and read its answer. Raises `GatewayError`, and `CodecError` for what it cannot say."""
        call = self._call
        part, written = self._first or self._written(index)
        self._first = None
        began_s = time.perf_counter()
        text = written.small_json
        call.exchange.request_codec.seconds += time.perf_counter() - began_s
        body = Body(whole=text) if text is not None else await call.streamed_json(written)
        del written
        asked: BackendRequest = msgspec.structs.replace(self._asked, body=body, is_continued=index > 0)
        attempts: list[Attempt] = []
        try:
            await call.send(asked, partial(self._read, index, part, attempts), attempts=attempts)
        finally:
            call.exchange.attempts += attempts
            self._decoding.pop(index, None)
        self._response_bytes += attempts[-1].response_bytes
        if self._response_bytes > call.plan.limits.response_body:
            words = f"the answers to all rows are larger than limits.response_body, {call.plan.limits.response_body:d}"
            raise GatewayError(ErrorKind.MALFORMED_RESPONSE, f"{words} bytes")

    def _written(self, index: int) -> tuple[DialectRequest, WrittenRequest]:
        """The rows of request *index*, and its body."""
        part = self._requests.cut.part(index)
        return part, self._requests.write(part, self._requests.cut.rows_of(index)[0])

    async def _read(self, index: int, part: DialectRequest, attempts: list[Attempt], answer: Answer) -> None:
        """Read the *answer* to request *index*, which has *part* of the rows. Raises `GatewayError`."""
        call, requests, pacer = self._call, self._requests, self._call.exchange.response_codec
        if answer.status >= 300:
            raise await call.backend_error(answer, json_bytes=attempts[-1].request_bytes)
        self._let_go(answer, part)
        answer.refuse_encoded()
        first_row, n_rows = requests.cut.rows_of(index)
        decoder = requests.decoder(n_rows)
        whole = chunk = await answer.next(WHOLE_BYTES)
        try:
            while chunk and not answer.is_read:
                await pacer.run(decoder.feed(chunk))
                self._hold(index, decoder.held_bytes)
                chunk = await answer.next(WHOLE_BYTES)
            if not whole:
                raise CodecError(f"{answer.status} without a body")
            outputs = await pacer.run(decoder.outputs(chunk))
            await pacer.run(requests.outputs.add(first_row, n_rows, outputs))
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_RESPONSE) from error
        self._hold(index, 0)
        if index == 0:
            self.lines = transcoded_lines(answer.headers)

    def _hold(self, index: int, n_bytes: int) -> None:
        """Count the memory of all answers; that to request *index* takes *n_bytes* beside the outputs."""
        self._decoding[index] = n_bytes
        self._call.body.hold_answer(self._requests.outputs.held_bytes + sum(self._decoding.values()))

    def _let_go(self, answer: Answer, part: DialectRequest) -> None:
        """Let go of *part*, whose *answer* has begun; with the last part the client's request is let go."""
        if not answer.is_sent or self._call.backend.settings.retry.resend_after_sent or not release(part.views):
            return
        self._n_begun += 1
        if self._n_begun == self._requests.cut.n_requests and release(self._views):
            self._call.body.let_go()


def _with_rows(error: GatewayError, first: int, n_rows: int) -> GatewayError:
    """*error* of the request with *n_rows* rows from number *first* on, which says so."""
    words = f"{rows_label(first, n_rows)}: {error.message}"
    body = reworded(error.body, words) if error.body is not None else None
    return GatewayError(error.kind, words, headers=error.headers, status=error.status, body=body, sent=error.sent)
