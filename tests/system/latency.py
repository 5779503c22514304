"""Two networks on this machine with latency between them: what is sent in one arrives in the other after a time.

Each is a network namespace with a loopback interface and a TUN device; a thread carries packets between the two devices
and keeps each for the latency. So the kernels' acknowledgements take their time as well, which no proxy of TCP can do.
(`tc netem` would do the same, where the kernel has it.)

Needs Linux, root, `/dev/net/tun` and iproute2. Not here: what a test expects of a gateway.
"""

import ctypes
import fcntl
import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

PREFIX = "10.231.77"
"""Addresses that exist in the two namespaces alone."""

PACKET_BYTES = 2**16

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of <linux/sched.h>
_TUNSETIFF = 0x400454CA
_TUN, _NO_PACKET_INFORMATION = 0x0001, 0x1000

T = TypeVar("T")


class Place:
    """One of the two networks."""

    def __init__(self, name: str, address: str) -> None:
        self.address = address
        self.command = ["ip", "netns", "exec", name]
        """What runs a program there, as the beginning of its command."""
        self._name = name

    def connect(self, url: str) -> socket.socket:
        """A connection from there to *url*."""
        host, port = url.partition("://")[2].split(":")
        return self.do(lambda: socket.create_connection((host, int(port)), 10))

    def listen(self) -> socket.socket:
        """A socket that accepts connections there."""
        return self.do(lambda: socket.create_server((self.address, 0), backlog=512))

    def do(self, action: Callable[[], T]) -> T:
        """Run *action* in a thread that is there; a socket or device stays where it was made."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                descriptor = os.open(f"/run/netns/{self._name}", os.O_RDONLY)
                try:
                    if _LIBC.setns(descriptor, _NEW_NETWORK):
                        raise OSError(ctypes.get_errno(), "setns")
                finally:
                    os.close(descriptor)
                results.append(action())
            except BaseException as error:  # raised again below
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]


@contextmanager
def two_places(latency_s: float) -> Iterator[tuple[Place, Place]]:
    """Two networks, *latency_s* apart. Skips the test where they cannot be made; nothing of them remains."""
    with ExitStack() as stack:
        devices = []
        places = []
        for number in (1, 2):
            name = f"latency-{os.getpid()}-{number}"
            place = Place(name, f"{PREFIX}.{number}")
            try:
                _ip("netns", "add", name)
                stack.callback(_ip, "netns", "del", name)
                device = place.do(_open_device)
                stack.callback(os.close, device)
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "addr", "add", f"{place.address}/24", "dev", "delayed")
                _ip("-n", name, "link", "set", "delayed", "up")
            except (OSError, subprocess.CalledProcessError) as error:
                detail = getattr(error, "stderr", b"") or str(error).encode()
                pytest.skip(f"no network with latency can be made here: {detail.decode().strip()}")
            devices.append(device)
            places.append(place)
        stack.enter_context(_carrying(devices[0], devices[1], latency_s))
        yield places[0], places[1]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, check=True, timeout=10)


def _open_device() -> int:
    """A TUN device in the network of this thread."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"delayed", _TUN | _NO_PACKET_INFORMATION))
    except OSError:
        os.close(device)
        raise
    return device


@contextmanager
def _carrying(one: int, other: int, latency_s: float) -> Iterator[None]:
    """Packets are carried between the two devices meanwhile."""
    ends, ending = os.pipe()
    thread = threading.Thread(target=_carry, args=(one, other, ends, latency_s))
    thread.start()
    try:
        yield
    finally:
        os.close(ending)
        thread.join()
        os.close(ends)


def _carry(one: int, other: int, ends: int, latency_s: float) -> None:
    under_way: deque[tuple[float, int, bytes]] = deque()  # when it arrives, where, what
    to = {one: other, other: one}
    while True:
        wait_s = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        readable = select.select([one, other, ends], [], [], wait_s)[0]
        if ends in readable:
            return
        for device in readable:
            under_way.append((time.monotonic() + latency_s, to[device], os.read(device, PACKET_BYTES)))
        while under_way and under_way[0][0] <= time.monotonic():
            _, device, packet = under_way.popleft()
            os.write(device, packet)


def remaining() -> list[str]:
    """Namespaces of this process that are still there."""
    folder = Path("/run/netns")
    return [path.name for path in folder.glob(f"latency-{os.getpid()}-*")] if folder.exists() else []
