"""Names of endpoints to addresses, remembered for a short time. Not here: connecting to them (`connections`)."""

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

REPEAT_S = 1.0
"""How soon a name is looked up again when nobody answers at its addresses."""

LIFE_S = 10.0
"""How long the addresses of a name are used before it is looked up again."""

AddressInfo = tuple[int, int, int, str, Any]
"""As `socket.getaddrinfo` gives it: family, type, protocol, canonical name, socket address."""


class UnknownHostError(Exception):
    """A host name that cannot be resolved; the message names it and says why."""


class Resolver:
    """The addresses of the hosts of one backend; concurrent calls for one name wait for one look-up."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, asyncio.Task[Sequence[AddressInfo]]]] = {}

    async def addresses(self, host: str, port: int) -> Sequence[AddressInfo]:
        """The addresses of *host* with *port*. Raises `UnknownHostError`."""
        loop = asyncio.get_running_loop()
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            family = socket.AF_INET if address.version == 4 else socket.AF_INET6
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]
        known = self._known.get((host, port))
        if known is None or known[0] <= loop.time():
            task = asyncio.ensure_future(_look_up(host, port))
            task.add_done_callback(lambda done: self._forget_if_failed((host, port), done))
            known = self._known[host, port] = (loop.time() + LIFE_S, task)
        try:
            return await asyncio.shield(known[1])
        except UnicodeError:  # an empty label, or one of more than 63 characters
            raise UnknownHostError(f"{host!r} cannot be a host name") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnknownHostError(f"the host name {host!r} cannot be resolved: {reason}") from None

    def _forget_if_failed(self, key: tuple[str, int], task: asyncio.Task[Sequence[AddressInfo]]) -> None:
        """Forget a failure at once, also where everybody who waited for it has left."""
        has_failed = task.cancelled() or task.exception() is not None
        if has_failed and self._known.get(key, (0, None))[1] is task:
            del self._known[key]

    def forget(self, host: str, port: int) -> None:
        """Look the name up again soon, because nobody answers at its addresses."""
        known = self._known.get((host, port))
        if known is not None:
            soon = asyncio.get_running_loop().time() + REPEAT_S
            self._known[host, port] = (min(known[0], soon), known[1])


async def _look_up(host: str, port: int) -> Sequence[AddressInfo]:
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
