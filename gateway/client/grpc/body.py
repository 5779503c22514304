"""A message as the body of a request: read within the limits, and turned into what the corridor serves.

Not here: how the bytes come (`stream`).
"""

import asyncio

from google.protobuf.message import DecodeError

from gateway.client.body import ClientBody
from gateway.client.grpc.calls import Call
from gateway.client.grpc.inference import InferMessage, check_fields, read_request
from gateway.client.grpc.stream import DEADLINE_WORDS, Message
from gateway.client.request import ClientRequest
from gateway.codec import Coding, Framing, parse_content_encoding
from gateway.errors import CodecError, ErrorKind, GatewayError, TooLargeError, blamed
from gateway.exchange import Exchange
from gateway.pacing import Pacer
from gateway.plan import Plan
from gateway.policy.admission import Admission

SMALL_BYTES = 64 * 1024
"""A message of a call without tensors that is no longer needs no admission, as a request of HTTP without a body."""


CALL_COPIES = 5
"""How often a message of a call without tensors is in memory, beside itself, while it becomes JSON with base64."""


class HeaderTooLargeError(GatewayError):
    """More beside the tensors' data than `limits.header` allows: no matter of the message's size."""


class GrpcBody(ClientBody):
    """The body of one call."""

    __slots__ = ("_asked", "_before", "_call", "_encoding", "_limits", "infer", "message")

    def __init__(
        self,
        request: ClientRequest,
        exchange: Exchange,
        admission: Admission,
        plan: Plan,
        pacer: Pacer,
        *,
        call: Call | None,
        encoding: str,
        before: asyncio.Task[None] | None,
    ) -> None:
        """*call* is None for an inference. *encoding* is that of compressed messages (`grpc-encoding`).

        *before* serves the message before in the same stream, if there is one.
        """
        super().__init__(request, exchange, admission, plan.limits.request_body, pacer)
        assert isinstance(request.connection, Message)
        self.message = request.connection
        self._call = call
        self._limits = plan.header_limits
        self._encoding = encoding
        self._before = before
        self._asked = b""
        self.infer: InferMessage | None = None
        """What an inference asks for, once it was read."""

    @property
    def is_too_late(self) -> bool:
        """Whether the client has given up by now."""
        deadline_s = self._request.deadline_s
        return deadline_s is not None and asyncio.get_running_loop().time() >= deadline_s

    async def find_target(self) -> None:
        """Read the message, and say in the request what it asks for. Raises `GatewayError`."""
        request, call = self._request, self._call
        if self.message.length is None and not await self.message.begin():
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, "the call has no message")
        length = request.content_length = self.message.length
        assert length is not None
        if call is not None and length <= SMALL_BYTES and not self.message.is_compressed:
            message = memoryview(b"".join([chunk async for chunk in super().chunks()]))
        else:
            message = await super().read()
        self.message.check_alone()
        try:
            if call is None:
                await self._find_inference(message)
            else:
                self._find_call(call, message)
        except CodecError as error:
            raise blamed(error, ErrorKind.MALFORMED_REQUEST) from error
        except DecodeError as error:
            raise GatewayError(ErrorKind.MALFORMED_REQUEST, f"malformed message: {error}") from None
        if self.is_too_late:
            raise GatewayError(ErrorKind.TIMEOUT, DEADLINE_WORDS)

    def _find_call(self, call: Call, message: memoryview) -> None:
        """Read the *message* of a call without tensors. Raises `CodecError` and `DecodeError`."""
        request = self._request
        check_fields(message)
        if len(message) > SMALL_BYTES:
            self.reserve(len(message) * CALL_COPIES)
        asked = call.ask(call.request.FromString(bytes(message)))
        request.method, request.path = asked.method, asked.target
        request.has_body = asked.body is not None
        self._asked = asked.body or b""
        request.content_length = len(self._asked) if request.has_body else None

    async def _find_inference(self, message: memoryview) -> None:
        steps = read_request(message, self._limits, self.reserve)
        try:
            self.infer = infer = await self._pacer.run(steps)
        except TooLargeError as error:
            raise HeaderTooLargeError(ErrorKind.BODY_TOO_LARGE, str(error)) from error
        self._request.path = infer.target
        if infer.is_of_sequence and self._before is not None:
            await asyncio.wait((self._before,))  # two connections to the server would not keep their order

    def _find_coding(self) -> Coding | None:
        if not self.message.is_compressed:
            return None
        encoding = self._encoding
        try:
            return parse_content_encoding(encoding)
        except CodecError:
            words = f"grpc-encoding {encoding[:64]!r} is not supported: expected one of gzip, deflate, identity"
            raise GatewayError(ErrorKind.UNSUPPORTED_ENCODING, words, status=501) from None

    # What the corridor reads: the JSON of the request, behind which the blobs are in buffers of their own

    def framing(self) -> Framing:
        """Where the JSON ends, and the blobs."""
        assert self.infer is not None
        return Framing(len(self.infer.header), blobs=self.infer.blobs)

    async def read(self) -> memoryview:
        """The JSON of an inference."""
        assert self.infer is not None
        return memoryview(self.infer.header)

    async def read_first(self, n_bytes: int) -> bytes:
        """All of a request without tensors."""
        return self._asked

    def release(self) -> None:
        """Give back everything that was reserved, and let go of it: the request and its body refer to each other."""
        super().release()
        self.infer = self._request.begin = None
        self._asked = b""

    async def admit(self, n_bytes: int) -> None:
        """Reserve *n_bytes*, unless the message was admitted."""
        if not self._reservation.n_slots:
            await super().admit(n_bytes)
