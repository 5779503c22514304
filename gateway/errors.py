"""Every kind of error that the gateway reports, in one closed list.

There are two layers. The codec raises `CodecError`, which says what is wrong with some bytes and where; the codec does
not know whether the bytes came from the client or from the backend. `serving` knows, and turns a `CodecError` into a
`GatewayError` (`blamed`), whose `ErrorKind` adds a status, a label for metrics and logs, and a blame. Not here: the
reply that a client gets (`client.reply`).
"""

from enum import Enum

from gateway.headers import Pairs


class Blame(Enum):
    """Who caused an error, and so has to fix it."""

    CLIENT = "client"
    BACKEND = "backend"
    GATEWAY = "gateway"


class ErrorKind(Enum):
    """One row per kind of error: its label in metrics and logs, its usual status, its blame, its type in RFC 9209."""

    NO_ROUTE = ("no_route", 404, Blame.CLIENT, "destination_not_found")
    DENIED = ("denied", 403, Blame.CLIENT, "http_request_denied")  # 401 where a token is missing
    RATE_LIMITED = ("rate_limited", 429, Blame.CLIENT, "http_request_denied")
    OVERLOADED = ("overloaded", 503, Blame.GATEWAY, "connection_limit_reached")
    BODY_TOO_LARGE = ("body_too_large", 413, Blame.CLIENT, "http_request_error")
    SLOW_CLIENT = ("slow_client", 408, Blame.CLIENT, "http_request_error")
    MALFORMED_REQUEST = ("malformed_request", 400, Blame.CLIENT, "http_request_error")
    UNSUPPORTED_ENCODING = ("unsupported_encoding", 415, Blame.CLIENT, "http_request_error")
    UNREACHABLE = ("unreachable", 503, Blame.BACKEND, "destination_unavailable")
    TIMEOUT = ("timeout", 504, Blame.BACKEND, "connection_timeout")
    UPSTREAM_CLOSED = ("upstream_closed", 502, Blame.BACKEND, "connection_terminated")
    MALFORMED_RESPONSE = ("malformed_response", 502, Blame.BACKEND, "http_protocol_error")
    # the backend's own 4xx or 5xx keeps its status
    BACKEND_ERROR = ("backend_error", 502, Blame.BACKEND, "http_request_error")
    CLIENT_CLOSED = ("client_closed", 499, Blame.CLIENT, "http_response_timeout")  # sent over gRPC alone: its deadline
    INTERNAL = ("internal", 500, Blame.GATEWAY, "proxy_internal_error")

    def __init__(self, label: str, status: int, blame: Blame, proxy_error: str) -> None:
        self.label = label
        self.status = status
        self.blame = blame
        self.proxy_error = proxy_error


def blame_of(kind: ErrorKind, status: int) -> Blame:
    """Who caused an error of *kind* that the client got with *status*; a backend's own 4xx is the client's."""
    if kind is ErrorKind.BACKEND_ERROR and status < 500:
        return Blame.CLIENT
    return kind.blame


class CodecError(ValueError):
    """Bytes that break a rule. The message names the tensor, what was expected, and what was found."""


class TooLargeError(CodecError):
    """A body that is larger than its limit."""


class ForeignAnswerError(CodecError):
    """An answer whose id says that it belongs to another request."""


class FailedAnswerError(CodecError):
    """An answer of status 2xx that says that it is a failure. The message has the server's words."""


class ConfigError(ValueError):
    """A configuration that cannot be used. The message is a line for each error: file, line, key, reason."""


class GatewayError(Exception):
    """An error with its `ErrorKind`; the message is what the client gets to read."""

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
        """*headers* are added to the reply.

        *status* replaces the usual status of *kind*: a backend's own, or a more exact one (501, 505, 508). *body* is a
        backend's own body, which replaces the one made of *message*. *sent*: whether a backend may have read the
        request, so that sending it again might execute it twice.
        """
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.headers = tuple(headers)
        self.status = status or kind.status
        self.body = body
        self.sent = sent


LOOP_DETECTED = 508

MAX_DETAILS = 300
"""How many characters of a message are put in `Proxy-Status`."""


def proxy_status(error: GatewayError) -> tuple[str, str]:
    """The header that says who has refused a request, the gateway or the backend behind it (RFC 9209)."""
    if error.kind is ErrorKind.BACKEND_ERROR and error.body is not None:  # its own reply crosses
        return "Proxy-Status", f"tensor-gateway; received-status={error.status}"
    type_ = "proxy_loop_detected" if error.status == LOOP_DETECTED else error.kind.proxy_error
    details = error.message[:MAX_DETAILS].encode("ascii", "replace").decode()
    details = "".join(character if character.isprintable() else " " for character in details)
    details = details.replace("\\", "\\\\").replace('"', '\\"')
    return "Proxy-Status", f'tensor-gateway; error={type_}; details="{details}"'


def blamed(error: CodecError, kind: ErrorKind) -> GatewayError:
    """The `GatewayError` of *kind* for *error*; BODY_TOO_LARGE for a request that is too large."""
    if isinstance(error, FailedAnswerError):
        return GatewayError(ErrorKind.BACKEND_ERROR, f"the backend answered with a failure: {error}")
    if kind is ErrorKind.MALFORMED_RESPONSE:
        # the connection is closed after every refused answer; after a foreign one, operators want to know that
        closed = "; its connection was closed" if isinstance(error, ForeignAnswerError) else ""
        return GatewayError(kind, f"the backend's answer: {error}{closed}")
    return GatewayError(ErrorKind.BODY_TOO_LARGE if isinstance(error, TooLargeError) else kind, str(error))
