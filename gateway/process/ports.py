"""Explains in words that addresses are taken: which ones, and what chooses others.

Not here: listening (`client.listeners`).
"""

import errno
import os
import socket

from gateway.config import Address, Config


def explained(error: OSError, config: Config) -> OSError:
    """*error* of a start with *config*; if addresses are taken, with an explaining line for each."""
    if error.errno != errno.EADDRINUSE:
        return error
    lines: list[str] = []
    for key, address in (("admin", config.admin), ("listen", config.listen), ("grpc", config.grpc)):
        if address is None:
            continue
        said = f"cannot listen on {address}: {os.strerror(errno.EADDRINUSE).lower()}"
        # at the others that are taken the next start would fail
        if error.strerror == said or not (address.is_unix or is_free(address)):
            lines.append(f"{said}; to listen elsewhere: --{key} ADDRESS, or `{key}` in the file")
    return OSError(error.errno, "\n".join(lines)) if lines else error


def is_free(address: Address) -> bool:
    """Whether *address*, of TCP, could be listened on now; also if that fails for another reason than its users."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        # with SO_REUSEADDR: connections that have ended do not count
        socket.create_server(where, family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True
