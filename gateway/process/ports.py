"""Explains in words that an address is taken: by which process, and how to choose another address.

The process is found in Linux's /proc, as far as this user may read it; on other systems it is not named. Not here:
listening (`client.listeners`).
"""

import errno
import ipaddress
import os
import re
import socket
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gateway.config import Address, Config

TRIED_PORTS = 20
"""How many ports after a taken one are tried, to suggest a free one."""

MAX_NAME = 60
"""How many characters of a process's name are shown."""

_PROC = Path("/proc")
_LISTENS = "0A"  # of TCP, in /proc/net/tcp
_ACCEPTS = 0x10000  # __SO_ACCEPTCON, in /proc/net/unix
_TAKEN = os.strerror(errno.EADDRINUSE).lower()
_COMMANDS = ("serve", "demo")
_INTERPRETER = re.compile(r"(python|pypy|node|ruby|perl)[\d.]*")

COMMAND_LINE, FILE = "--{} ", "{}: "
"""The words before an address with which a user says where to listen, on the command line and in a file."""


def explained(error: OSError, config: Config, said_by: str) -> OSError:
    """*error* of a start with *config*; if addresses are taken, with an explaining line for each.

    *said_by*: `COMMAND_LINE` or `FILE`.
    """
    if error.errno != errno.EADDRINUSE:
        return error
    lines: list[str] = []
    suggested: set[int] = set()
    for key, address in (("admin", config.admin), ("listen", config.listen), ("grpc", config.grpc)):
        if address is None:
            continue
        said, user = f"cannot listen on {address}: {_TAKEN}", user_of(address)
        if error.strerror == said or user:  # the others that are taken, too: the next start would fail there
            hint = f"to listen elsewhere: {said_by.format(key)}{_another(address, suggested)}"
            lines.insert(0 if error.strerror == said else len(lines), f"{said}{user}; {hint}")
    return OSError(error.errno, "\n".join(lines)) if lines else error


def user_of(address: Address) -> str:
    """Words that say which process listens on *address*; empty if that cannot be found out."""
    with suppress(OSError, ValueError, IndexError):
        inodes = set(_unix_sockets(address.path) if address.is_unix else _tcp_sockets(address))
        return f" by {_process_with(inodes)}" if inodes else ""
    return ""


def _tcp_sockets(address: Address) -> Iterator[int]:
    """The inodes of the sockets that listen on *address*."""
    infos = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    wanted = {ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in infos}
    for file in ("net/tcp", "net/tcp6"):
        with suppress(FileNotFoundError), (_PROC / file).open() as lines:
            for fields in map(str.split, lines):
                if fields[3] == _LISTENS and int(fields[1][-4:], 16) == address.port:
                    listens = _address(fields[1][:-5])
                    if listens.is_unspecified or listens in wanted or any(each.is_unspecified for each in wanted):
                        yield int(fields[9])


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address that the kernel has written in words of 32 bits, each in the machine's order."""
    words = array("I", bytes.fromhex(text))
    address = ipaddress.ip_address(b"".join(word.to_bytes(4, "big") for word in words))
    return getattr(address, "ipv4_mapped", None) or address


def _unix_sockets(path: str) -> Iterator[int]:
    """The inodes of the sockets that listen at *path*."""
    with (_PROC / "net/unix").open() as lines:
        next(lines)
        for line in lines:
            fields = line.rstrip("\n").split(maxsplit=7)
            if fields[7:] == [path] and int(fields[3], 16) & _ACCEPTS:
                yield int(fields[6])


def _process_with(inodes: set[int]) -> str:
    """Name and number of a process that has one of these sockets open."""
    links = {f"socket:[{inode}]" for inode in inodes}
    for folder in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # another user's, or it has ended
            for descriptor in os.listdir(folder / "fd"):
                with suppress(FileNotFoundError):
                    if os.readlink(folder / "fd" / descriptor) in links:
                        return f"{_name(folder)} (pid {folder.name})"
    return "a process that is not visible here"


def _name(folder: Path) -> str:
    """The name of a process: its program, and of an interpreter also the script; no other argument."""
    program = (folder / "comm").read_text().strip()
    words = (folder / "cmdline").read_text(errors="replace").split("\0")
    # arguments may hold secrets; the name of a module or of a script, and a command of this program, do not
    if _INTERPRETER.fullmatch(program) and len(words) > 2:
        if words[1] == "-m":
            program += f" -m {words[2]}"
        elif not words[1].startswith("-"):
            program += f" {os.path.basename(words[1])}"
    if program.endswith("gateway"):
        program += "".join(f" {word}" for word in words[2:4] if word in _COMMANDS)
    program = program[:MAX_NAME]
    return program if program.isprintable() else repr(program)


def _another(address: Address, suggested: set[int]) -> str:
    """An address like *address* that seems to be free at this moment; its port is added to *suggested*."""
    if address.is_unix:
        return f"{address}.2"
    host, _, _ = address.rpartition(":")
    ports = range(address.port + 1, min(address.port + 1 + TRIED_PORTS, 65536))
    port = next((each for each in ports if each not in suggested and is_free(Address(f"{host}:{each}"))), 0)
    suggested.add(port)
    return f"{host}:{port}"


def is_free(address: Address) -> bool:
    """Whether *address*, of TCP, could be listened on now; also if that fails for another reason than its users."""
    try:
        family, _, _, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        # with SO_REUSEADDR: connections that have ended do not count
        socket.create_server(where, family=family).close()
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True
