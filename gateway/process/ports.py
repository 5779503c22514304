"""Explains in words that addresses are taken: which ones, by which processes, and what chooses others."""

import errno
import os
import re
import socket
import subprocess
from contextlib import suppress

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
            user = "" if address.is_unix else _user_of(address.port)
            lines.append(f"{said}{user}; to listen elsewhere: --{key} ADDRESS, or `{key}` in the file")
    return OSError(error.errno, "\n".join(lines)) if lines else error


def _user_of(port: int) -> str:
    """Words that name the process that listens on *port*; empty where `ss` is missing, or may not see it."""
    with suppress(OSError, subprocess.SubprocessError):
        asked = ["ss", "-Hltnp", f"sport = :{port}"]
        said = subprocess.check_output(asked, text=True, errors="replace", timeout=2)  # noqa: S603  no client's words
        if (found := re.search(r'\("([ -~]+)",pid=([0-9]+)', said)) is not None:
            return f" by {found[1]} (pid {found[2]})"
    return ""


def is_free(address: Address) -> bool:
    """Whether *address*, of TCP, could be listened on now; also if that fails for another reason than its users."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        # with SO_REUSEADDR: connections that have ended do not count
        socket.create_server(where, family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True
