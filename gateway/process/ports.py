"""Explains in words that an address is taken: by which process, and what chooses another address.

The process is found in Linux's /proc, as far as this user may read it; on other systems it is not named. Not here:
listening (`client.listeners`).
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gateway.config import Address, Config

_PROC = Path("/proc")
_LISTENS = "0A"  # of TCP, in /proc/net/tcp
_TAKEN = os.strerror(errno.EADDRINUSE).lower()


def explained(error: OSError, config: Config) -> OSError:
    """*error* of a start with *config*; if addresses are taken, with an explaining line for each."""
    if error.errno != errno.EADDRINUSE:
        return error
    lines: list[str] = []
    for key, address in (("admin", config.admin), ("listen", config.listen), ("grpc", config.grpc)):
        if address is None:
            continue
        said = f"cannot listen on {address}: {_TAKEN}"
        # at the others that are taken the next start would fail
        if error.strerror == said or not (address.is_unix or is_free(address)):
            lines.append(f"{said}{user_of(address)}; to listen elsewhere: --{key} ADDRESS, or `{key}` in the file")
    return OSError(error.errno, "\n".join(lines)) if lines else error


def user_of(address: Address) -> str:
    """Words that say which process listens on *address*, of TCP; empty if that cannot be found out."""
    with suppress(OSError, ValueError, IndexError):
        inodes = set(_tcp_sockets(address))
        return f" by {_process_with(inodes)}" if inodes else ""
    return ""


def _tcp_sockets(address: Address) -> Iterator[int]:
    """The inodes of the sockets besides which *address* cannot be listened on."""
    for file, family, words in (("net/tcp", socket.AF_INET, "I"), ("net/tcp6", socket.AF_INET6, "4I")):
        with suppress(FileNotFoundError), (_PROC / file).open() as lines:
            for fields in map(str.split, lines):
                host, _, port = fields[1].partition(":")
                if fields[3] == _LISTENS:
                    # the kernel writes numbers of 32 bits, each in the machine's order
                    packed = struct.pack(f"={words}", *struct.unpack(f">{words}", bytes.fromhex(host)))
                    if address.takes(Address(f"[{socket.inet_ntop(family, packed)}]:{int(port, 16)}")):
                        yield int(fields[9])


def _process_with(inodes: set[int]) -> str:
    """Name and number of a process that has one of these sockets open."""
    links = {f"socket:[{inode}]" for inode in inodes}
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # another user's, or it has ended
            for descriptor in os.listdir(folder / "fd"):
                with suppress(FileNotFoundError):
                    if os.readlink(folder / "fd" / descriptor) in links:
                        name = (folder / "comm").read_text().strip()
                        return f"{name if name.isprintable() else repr(name)} (pid {folder.name})"
    return "a process that is not visible here"


def is_free(address: Address) -> bool:
    """Whether *address*, of TCP, could be listened on now; also if that fails for another reason than its users."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        # with SO_REUSEADDR: connections that have ended do not count
        socket.create_server(where, family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True
