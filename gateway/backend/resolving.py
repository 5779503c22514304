"""Looks up the host names of endpoints: the addresses decide which endpoints a backend has at the moment.

A name with several addresses is several endpoints. Names are looked up when the plan starts, every `dns_refresh`, and
soon after no server has answered at an address.
"""

import asyncio
import concurrent.futures
import ipaddress
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.backend.endpoints import Endpoint, EndpointSet
from gateway.backend.tasks import Tasks
from gateway.config.values import first_of

REPEAT_S = 1.0
"""How soon after a look-up a name is looked up again if that failed, or if no server answers at its addresses."""

START_WAIT_S = 0.5
"""How long the start of a plan waits for names. Slower look-ups go on while the gateway serves."""

SHOWN_ADDRESSES = 8
"""How many addresses a line of the log lists."""

AddressInfo = tuple[int, int, int, str, Any]
"""A result of `socket.getaddrinfo`: family, type, protocol, canonical name, socket address."""

_parsed: Callable[[str], Any] = ipaddress.ip_address

log = logging.getLogger("gateway")


class UnknownHostError(Exception):
    """A host name that cannot be resolved; the message names it and says why."""


@dataclass(slots=True, eq=False)
class _Name:
    """One host name, its addresses and its look-ups."""

    host: str
    addresses: tuple[str, ...] = ()
    """The addresses found last, by `usable_addresses`; empty if none were ever found."""
    error: str = ""
    """Why the last look-up failed; empty if it succeeded, or there was none."""
    is_silent: bool = False
    """Whether no server has answered at the addresses since the last look-up."""
    asked_s: float = 0.0
    """When the last look-up began, by the event loop's clock."""
    look_up: asyncio.Task[None] | None = None


class Names:
    """Keeps the endpoints of one backend at the current addresses of their names.

    It outlives the plans that name the backend; `configure` is called for each new plan.
    """

    def __init__(self, backend: str, endpoints: EndpointSet) -> None:
        """The content of *endpoints* is replaced whenever addresses change."""
        self.endpoints = endpoints
        self._backend = backend
        self._configured: tuple[Endpoint, ...] = ()
        self._names: dict[str, _Name] = {}
        self._refresh_s = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._tasks = Tasks()

    def configure(self, configured: Iterable[Endpoint], refresh_s: float) -> None:
        """Set the endpoints of the configuration; addresses of names that are known are kept."""
        self._configured = tuple(configured)
        self._refresh_s = refresh_s
        hosts = [endpoint.host for endpoint in self._configured if not endpoint.addresses]
        self._names = {host: self._names.get(host) or _Name(host) for host in hosts}
        self._replace()

    async def start(self) -> None:
        """Begin to look names up, and wait `START_WAIT_S` for unknown names; raises nothing if look-ups fail."""
        if self._names and self._watching is None:  # frequent reloads must not begin its pauses anew
            self._watching = self._tasks.begin(self._watch())
        if unknown := [self._begin(name) for name in self._names.values() if not name.addresses]:
            await asyncio.wait(unknown, timeout=START_WAIT_S)

    def stop(self) -> None:
        """Look up no more names, except for requests that still need one."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def close(self) -> None:
        """Cancel all look-ups; to be called when no request needs one any more."""
        await self._tasks.close()

    async def addresses(self, endpoint: Endpoint) -> Sequence[AddressInfo]:
        """The addresses of *endpoint*, which may be of an earlier configuration. Raises `UnknownHostError`.

        Requests that need the same name at the same time wait for one look-up.
        """
        addresses = endpoint.addresses
        if not addresses:
            name = self._names.get(endpoint.host) or _Name(endpoint.host)
            if not name.addresses:
                await asyncio.shield(self._begin(name))
            if not name.addresses:
                raise UnknownHostError(name.error)
            addresses = name.addresses
        return [_info(address, endpoint.port) for address in addresses]

    def waiting_for(self, endpoint: Endpoint) -> str:
        """Words to add to an error if the name of *endpoint* is being looked up; else an empty text."""
        name = self._names.get(endpoint.host)
        is_waiting = not endpoint.addresses and name is not None and name.look_up is not None
        return f", the host name {endpoint.host!r} is still being looked up" if is_waiting else ""

    def look_up_soon(self, endpoint: Endpoint) -> None:
        """Look the name of *endpoint* up again, because no server answers; at most once in `REPEAT_S`."""
        if self._watching is not None and (name := self._names.get(endpoint.host)) is not None:
            name.is_silent = True
            self._begin_if_due(name)

    async def _watch(self) -> None:
        """Look each name up again when its pause is over."""
        while True:
            await asyncio.sleep(min(REPEAT_S, self._refresh_s))
            for name in self._names.values():
                self._begin_if_due(name)

    def _begin_if_due(self, name: _Name) -> None:
        """Begin to look *name* up if its pause is over."""
        pause_s = min(REPEAT_S, self._refresh_s) if name.is_silent or name.error else self._refresh_s
        if asyncio.get_running_loop().time() - name.asked_s >= pause_s:
            self._begin(name)

    def _begin(self, name: _Name) -> asyncio.Task[None]:
        """Begin to look *name* up, or return the look-up that is going on."""
        if name.look_up is None:
            name.asked_s = asyncio.get_running_loop().time()
            name.is_silent = False
            name.look_up = self._tasks.begin(self._look_up(name))
        return name.look_up

    async def _look_up(self, name: _Name) -> None:
        before, had_failed = name.addresses, name.error != ""
        try:
            name.addresses, name.error = usable_addresses(await look_up(name.host)), ""
        except UnicodeError:  # an empty label, or one of more than 63 characters
            name.error = f"{name.host!r} cannot be a host name"
        except OSError as error:
            name.error = f"the host name {name.host!r} cannot be resolved: {error.strerror or error}"
        finally:
            name.look_up = None
        self._take(name, before, had_failed=had_failed)

    def _take(self, name: _Name, before: Sequence[str], *, had_failed: bool) -> None:
        """Replace the endpoints if the addresses of *name* have changed, and log what has."""
        is_change = self._names.get(name.host) is name and set(before) != set(name.addresses)
        if is_change:
            self._replace()
        shown = first_of(name.addresses, SHOWN_ADDRESSES)
        if name.error and not had_failed:
            result = f"its last addresses stay in use: {shown}" if shown else "requests to it get 503 until it resolves"
            log.warning("backend %r: %s; %s", self._backend, name.error, result)
        elif not name.error and (had_failed or (is_change and (before or _are_endpoints(name.addresses)))):
            was = f" (before: {first_of(before, SHOWN_ADDRESSES)})" if is_change and before else ""
            log.info("backend %r: the host name %r resolves to %s%s", self._backend, name.host, shown, was)

    def _replace(self) -> None:
        found = [
            each
            for endpoint in self._configured
            for each in at_addresses(endpoint, endpoint.addresses or self._names[endpoint.host].addresses)
        ]
        self.endpoints.replace(with_own_labels(found))


def usable_addresses(found: Iterable[AddressInfo]) -> tuple[str, ...]:
    """The addresses to use of those *found* for a name, which are in the operating system's order.

    A name with at most one address of each family (IPv4, IPv6) is one server that can be reached by either: `localhost`
    has 127.0.0.1 and ::1. A name with several addresses of one family is several servers; the addresses of the first
    such family are used, sorted, because name servers change the order from answer to answer.
    """
    families: dict[int, list[str]] = {}
    for address in dict.fromkeys(info[4][0] for info in found):
        families.setdefault(_parsed(address).version, []).append(address)
    for addresses in families.values():
        if len(addresses) > 1:
            return tuple(sorted(addresses, key=_parsed))
    return tuple(addresses[0] for addresses in families.values())


def at_addresses(endpoint: Endpoint, addresses: tuple[str, ...]) -> list[Endpoint]:
    """*endpoint* of the configuration at the *addresses* of its name, which `usable_addresses` has chosen.

    Several servers are labelled by their addresses, a single one by its name. `Host` and certificate use the name.
    """
    if not addresses:
        return [endpoint]
    if not _are_endpoints(addresses):
        return [replace(endpoint, addresses=addresses)]
    scheme = endpoint.url.partition("://")[0]
    port = endpoint.authority.removeprefix(endpoint.host)  # empty for the scheme's own
    return [
        replace(endpoint, url=f"{scheme}://{f'[{each}]' if ':' in each else each}{port}", addresses=(each,))
        for each in addresses
    ]


def with_own_labels(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """*endpoints* without repetition and with different labels: equal labels get the path added, then the `Host`.

    Two names may have the same address, and so may servers with different paths; they do not share their state.
    """
    labelled: dict[str, Endpoint] = {}
    for endpoint in dict.fromkeys(endpoints):
        with_path = endpoint.url + endpoint.base_path
        labels = endpoint.url, with_path, f"{with_path} ({endpoint.authority})"
        label = next((label for label in labels if label not in labelled), labels[-1])
        labelled[label] = replace(endpoint, url=label)
    return list(labelled.values())


async def look_up(host: str) -> Sequence[AddressInfo]:
    """Ask the operating system for the addresses of *host*. Raises `OSError`, and `UnicodeError` for an odd name.

    The look-up has a thread of its own, for which nobody waits: the process waits for the event loop's threads when it
    ends, and a name server that does not answer can hold a thread for half a minute.
    """
    found: concurrent.futures.Future[Sequence[AddressInfo]] = concurrent.futures.Future()

    def ask() -> None:
        if found.set_running_or_notify_cancel():
            try:
                found.set_result(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP))
            except Exception as error:
                found.set_exception(error)

    threading.Thread(target=ask, name=f"look-up of {host}", daemon=True).start()
    return await asyncio.wrap_future(found)


def _are_endpoints(addresses: tuple[str, ...]) -> bool:
    """Whether *addresses*, chosen by `usable_addresses`, are several servers."""
    return len(addresses) > 1 and len({_parsed(address).version for address in addresses}) == 1


def _info(address: str, port: int) -> AddressInfo:
    family = socket.AF_INET if _parsed(address).version == 4 else socket.AF_INET6
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))
