"""The gRPC status of each error that a client may get. Not here: the words, which are those of HTTP."""

from enum import IntEnum

from gateway.errors import ErrorKind


class Status(IntEnum):
    """gRPC's statuses that the gateway sends."""

    OK = 0
    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    UNAUTHENTICATED = 16


_OF_HTTP = {
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.NOT_FOUND,
    405: Status.UNIMPLEMENTED,
    408: Status.DEADLINE_EXCEEDED,
    429: Status.RESOURCE_EXHAUSTED,
    499: Status.CANCELLED,
    501: Status.UNIMPLEMENTED,
    503: Status.UNAVAILABLE,
    504: Status.DEADLINE_EXCEEDED,
}


def status_of(kind: ErrorKind | None, http_status: int) -> Status:
    """The status that is paired with *http_status*; *kind* is the error's where the gateway has made it."""
    if kind is ErrorKind.UPSTREAM_CLOSED:
        return Status.UNAVAILABLE
    if kind is ErrorKind.BODY_TOO_LARGE:
        return Status.RESOURCE_EXHAUSTED
    found = _OF_HTTP.get(http_status)
    if found is not None:
        return found
    return Status.INVALID_ARGUMENT if http_status < 500 else Status.INTERNAL
