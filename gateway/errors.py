"""Everything that can go wrong, as one closed list.

Two layers, on purpose. The codec raises `CodecError`: these bytes are wrong, and here.
It does not know whose bytes they are. The corridor turns it into a `GatewayError`, which
carries an `ErrorKind` and therefore a status, a metric label and a blame.

Nothing here does I/O, and nothing in the gateway invents a status of its own.
"""

from enum import Enum

from gateway.headers import Pairs


class Blame(Enum):
    """Whose fault an error is: it decides who has to look at it."""

    CLIENT = "client"
    BACKEND = "backend"
    GATEWAY = "gateway"


class ErrorKind(Enum):
    """One row per failure: label in metrics and logs, status, blame."""

    NO_ROUTE = ("no_route", 404, Blame.CLIENT)
    OVERLOADED = ("overloaded", 503, Blame.GATEWAY)
    BODY_TOO_LARGE = ("body_too_large", 413, Blame.CLIENT)
    SLOW_CLIENT = ("slow_client", 408, Blame.CLIENT)
    MALFORMED_REQUEST = ("malformed_request", 400, Blame.CLIENT)
    UNSUPPORTED_ENCODING = ("unsupported_encoding", 415, Blame.CLIENT)
    UNREACHABLE = ("unreachable", 503, Blame.BACKEND)
    TIMEOUT = ("timeout", 504, Blame.BACKEND)
    UPSTREAM_CLOSED = ("upstream_closed", 502, Blame.BACKEND)
    MALFORMED_RESPONSE = ("malformed_response", 502, Blame.BACKEND)
    BACKEND_ERROR = ("backend_error", 502, Blame.BACKEND)  # the backend's own 4xx or 5xx keeps its status
    CLIENT_CLOSED = ("client_closed", 499, Blame.CLIENT)  # never sent: nobody is there to read it
    INTERNAL = ("internal", 500, Blame.GATEWAY)

    def __init__(self, label: str, status: int, blame: Blame) -> None:
        self.label = label
        self.status = status
        self.blame = blame


class CodecError(ValueError):
    """Bytes that break a rule of the wire.

    The message names the tensor where one is concerned, what was expected and what came.
    """


class TooLargeError(CodecError):
    """A body that outgrew its limit while it was read."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message is one line: path and reason."""


class GatewayError(Exception):
    """A failure with its `ErrorKind`; the message is what the client gets to read."""

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        headers: Pairs = (),
        status: int | None = None,
        body: bytes | None = None,
        sent: bool = True,
    ) -> None:
        """*headers* go out with the refusal; *status* and *body* are a backend's own, instead of the gateway's.

        *sent*: whether a backend may have read the request, so that sending it again might execute it twice.
        """
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = tuple(headers)
        self.status = status or kind.status
        self.body = body
        self.sent = sent


class blaming:  # noqa: N801  reads as a verb: with blaming(...)
    """Turn a `CodecError` raised inside into a `GatewayError` of *kind*; a request that is too large has its own.

    A class, because a generator as context manager costs three times as much, several times per request.
    """

    __slots__ = ("_kind",)

    def __init__(self, kind: ErrorKind) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, type_: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, CodecError):
            is_too_large = isinstance(error, TooLargeError) and self._kind is ErrorKind.MALFORMED_REQUEST
            raise GatewayError(ErrorKind.BODY_TOO_LARGE if is_too_large else self._kind, str(error)) from error
