"""Names to addresses, and addresses to endpoints: which of them are used, and what stays when they change."""

import asyncio
import fcntl
import gc
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.backend import resolving
from gateway.backend.endpoints import Endpoint, EndpointSet
from gateway.backend.resolving import (
    REPEAT_S,
    Names,
    UnknownHostError,
    at_addresses,
    look_up,
    usable_addresses,
    with_own_labels,
)
from gateway.backend.upstream import Upstream
from gateway.config import parse
from gateway.errors import ErrorKind, GatewayError
from gateway.plan import Plan
from tests.backend.sockets import ANSWER, ask, upstream_to, whole
from tests.backend.waiting import BOUND_S, lines, turns, until

URL = "http://models.example:8000"
FAILURE = socket.gaierror(-3, "Temporary failure in name resolution")


def found(*addresses: str) -> list[Any]:
    """As the operating system gives *addresses*."""
    return [
        (
            socket.AF_INET6 if ":" in address else socket.AF_INET,
            socket.SOCK_STREAM,
            socket.IPPROTO_TCP,
            "",
            (address, 0, 0, 0) if ":" in address else (address, 0),
        )
        for address in addresses
    ]


class LookUps:
    """Takes the place of the operating system's resolver; each look-up waits until it is told how it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[asyncio.Future[Any]] = []
        self.asked: list[str] = []
        monkeypatch.setattr(resolving, "look_up", self._look_up)

    async def _look_up(self, host: str) -> Any:
        self.asked.append(host)
        self.started.append(asyncio.get_running_loop().create_future())
        return await self.started[-1]

    async def next(self) -> asyncio.Future[Any]:
        await until(lambda: bool(self.started))
        return self.started.pop(0)


class Zone:
    """Takes the place of the operating system's resolver: answers at once with what is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
        self.addresses = addresses
        self.n_asked = 0
        monkeypatch.setattr(resolving, "look_up", self._look_up)

    async def _look_up(self, host: str) -> Any:
        self.n_asked += 1
        if not self.addresses:
            raise FAILURE
        return found(*self.addresses)


def endpoint(url: str = URL) -> Endpoint:
    return Endpoint.parse(url, None)


def names_of(*urls: str, refresh_s: float = 3600.0) -> tuple[Names, EndpointSet]:
    endpoints = EndpointSet()
    names = Names("main", endpoints)
    names.configure(map(endpoint, urls), refresh_s)
    return names, endpoints


def urls_of(endpoints: EndpointSet) -> list[str]:
    return [state.url for state in endpoints.states]


# Which addresses, and what they are called


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ((), ()),
        (("10.0.0.1",), ("10.0.0.1",)),
        (("10.0.0.1", "10.0.0.1"), ("10.0.0.1",)),
        # one server that is reached by both families
        (("127.0.0.1", "::1"), ("127.0.0.1", "::1")),
        (("::1", "127.0.0.1"), ("::1", "127.0.0.1")),
        # several servers, in an order that does not depend on the answer's
        (("10.0.0.10", "10.0.0.9", "10.0.0.9"), ("10.0.0.9", "10.0.0.10")),
        (("fd00::10", "fd00::9"), ("fd00::9", "fd00::10")),
        # several servers that have both families: the first of the operating system's order
        (("10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"), ("10.0.0.1", "10.0.0.2")),
        (("fd00::1", "10.0.0.1", "fd00::2", "10.0.0.2"), ("fd00::1", "fd00::2")),
        (("fd00::1", "10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.2")),
    ],
)
def test_the_addresses_of_one_family_are_used_where_one_has_several(
    given: tuple[str, ...], used: tuple[str, ...]
) -> None:
    assert usable_addresses(found(*given)) == used


@pytest.mark.parametrize(
    ("url", "addresses", "urls"),
    [
        (URL, (), [URL]),
        (URL, ("10.0.0.1",), [URL]),
        (URL, ("127.0.0.1", "::1"), [URL]),
        (URL, ("10.0.0.1", "10.0.0.2"), ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]),
        ("http://a.example", ("10.0.0.1", "10.0.0.2"), ["http://10.0.0.1", "http://10.0.0.2"]),
        ("http://a.example:443/x", ("fd00::1", "fd00::2"), ["http://[fd00::1]:443", "http://[fd00::2]:443"]),
        ("http://10.0.0.1:8000", (), ["http://10.0.0.1:8000"]),
        ("http://[fd00::1]:8000", (), ["http://[fd00::1]:8000"]),
    ],
)
def test_several_servers_are_labelled_by_their_addresses_and_asked_by_their_name(
    url: str, addresses: tuple[str, ...], urls: list[str]
) -> None:
    configured = endpoint(url)
    endpoints = at_addresses(configured, addresses)
    assert [each.url for each in endpoints] == urls
    for each in endpoints:
        assert (each.host, each.port, each.authority, each.base_path, each.tls) == (
            configured.host,
            configured.port,
            configured.authority,
            configured.base_path,
            configured.tls,
        )
    if len(urls) > 1:
        assert [each.addresses for each in endpoints] == [(address,) for address in addresses]


def test_endpoints_that_are_the_same_are_one_and_those_that_are_not_have_labels_of_their_own() -> None:
    pair = ("10.0.0.1", "10.0.0.2")
    endpoints = [
        *at_addresses(endpoint("http://a.example:8000"), pair),
        *at_addresses(endpoint("http://A.example:8000"), pair),
        *at_addresses(endpoint("http://b.example:8000"), pair),
        endpoint("http://10.0.0.1:8000"),
        endpoint("http://10.0.0.1:8000/x"),
        endpoint("http://10.0.0.9/x"),
        endpoint("http://10.0.0.9/y"),
    ]
    assert [each.url for each in with_own_labels(endpoints)] == [
        "http://10.0.0.1:8000",
        "http://10.0.0.2:8000",
        "http://10.0.0.1:8000 (b.example:8000)",
        "http://10.0.0.2:8000 (b.example:8000)",
        "http://10.0.0.1:8000 (10.0.0.1:8000)",
        "http://10.0.0.1:8000/x",
        "http://10.0.0.9",
        "http://10.0.0.9/y",
    ]


# Looking up for a request


async def test_calls_at_the_same_time_wait_for_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    names, endpoints = names_of(URL, "http://models.example:9000")
    first, second = (state.endpoint for state in endpoints.states)
    asked = [asyncio.ensure_future(names.addresses(each)) for each in (first, first, second)]
    (await look_ups.next()).set_result(found("10.0.0.1"))
    assert [[info[4] for info in infos] for infos in await asyncio.gather(*asked)] == [
        [("10.0.0.1", 8000)],
        [("10.0.0.1", 8000)],
        [("10.0.0.1", 9000)],
    ]
    assert look_ups.asked == ["models.example"]
    # what was found is known from now on
    assert urls_of(endpoints) == [URL, "http://models.example:9000"]
    assert await names.addresses(endpoints.states[0].endpoint)
    assert await names.addresses(first)
    assert look_ups.asked == ["models.example"]


async def test_another_name_is_another_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    names, endpoints = names_of("http://a.example", "http://b.example")
    for state in endpoints.states:
        asked = asyncio.ensure_future(names.addresses(state.endpoint))
        (await look_ups.next()).set_result(found("10.0.0.1"))
        await asked
    assert look_ups.asked == ["a.example", "b.example"]


async def test_a_failure_names_the_host_and_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    names, _ = names_of(URL)
    asked = [asyncio.ensure_future(names.addresses(endpoint())) for _ in range(2)]
    (await look_ups.next()).set_exception(FAILURE)
    for error in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(error, UnknownHostError)
        assert str(error) == "the host name 'models.example' cannot be resolved: Temporary failure in name resolution"
    again = asyncio.ensure_future(names.addresses(endpoint()))
    (await look_ups.next()).set_result(found("10.0.0.1"))
    assert [info[4] for info in await again] == [("10.0.0.1", 8000)]


async def test_a_name_that_no_host_can_have_is_an_unknown_host() -> None:
    names, _ = names_of("http://a..b")
    with pytest.raises(UnknownHostError, match=r"'a\.\.b' cannot be a host name"):
        await names.addresses(endpoint("http://a..b"))


async def test_a_failure_after_everybody_has_left_is_neither_remembered_nor_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a resolver takes 5 s to give up, timeouts.connect is 2 s
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    look_ups = LookUps(monkeypatch)
    names, _ = names_of(URL)
    asked = asyncio.ensure_future(names.addresses(endpoint()))
    look_up = await look_ups.next()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    look_up.set_exception(FAILURE)
    del look_up, asked
    await turns()
    again = asyncio.ensure_future(names.addresses(endpoint()))
    (await look_ups.next()).set_result(found("10.0.0.1"))
    assert await again
    del again
    gc.collect()
    assert unseen == []


async def test_one_caller_that_leaves_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    names, _ = names_of(URL)
    leaving, staying = (asyncio.ensure_future(names.addresses(endpoint())) for _ in range(2))
    look_up = await look_ups.next()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    look_up.set_result(found("10.0.0.1"))
    assert await staying
    assert len(look_ups.asked) == 1


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("10.0.0.7", socket.AF_INET)]
)
async def test_an_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch, host: str, family: int) -> None:
    zone = Zone(monkeypatch)
    names, endpoints = names_of(f"http://{f'[{host}]' if ':' in host else host}:8000", refresh_s=0.001)
    await names.start()
    assert await names.addresses(endpoints.states[0].endpoint) == [
        (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, 8000))
    ]
    names.look_up_soon(endpoints.states[0].endpoint)
    await turns()
    assert zone.n_asked == 0
    await names.close()


async def test_a_real_name_is_found() -> None:
    names, endpoints = names_of("http://localhost:8000")
    await names.start()
    # one server, although many systems have two addresses for it
    assert urls_of(endpoints) == ["http://localhost:8000"]
    state = endpoints.states[0]
    assert state.endpoint.addresses
    assert {info[4] for info in await names.addresses(state.endpoint)} <= {("127.0.0.1", 8000), ("::1", 8000)}
    await names.close()


async def test_the_systems_reasons_reach_the_caller() -> None:
    with pytest.raises(OSError, match=r"."):
        await look_up("no-such-name.invalid")


# The start


async def test_the_start_waits_for_names_so_that_the_first_request_finds_all_endpoints(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    Zone(monkeypatch, "10.0.0.2", "10.0.0.1")
    names, endpoints = names_of(URL, "http://10.0.0.7:8000")
    assert urls_of(endpoints) == [URL, "http://10.0.0.7:8000"]
    await names.start()
    assert urls_of(endpoints) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://10.0.0.7:8000"]
    assert lines(caplog) == ["backend 'main': the host name 'models.example' resolves to 10.0.0.1, 10.0.0.2"]
    await names.close()


async def test_the_start_neither_fails_nor_hangs_when_no_name_server_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resolving, "START_WAIT_S", 0.01)
    look_ups = LookUps(monkeypatch)
    upstream = upstream_to(URL, "timeouts: {connect: 20ms}")
    await upstream.start()
    assert urls_of(upstream.endpoints) == [URL]
    with pytest.raises(GatewayError) as caught:
        await ask(upstream, "GET", whole(b""))
    assert (caught.value.kind, caught.value.sent) == (ErrorKind.UNREACHABLE, False)
    assert caught.value.message == (
        f"backend 'main' cannot be reached at {URL}: no connection within 0.02 s (timeouts.connect), "
        "the host name 'models.example' is still being looked up"
    )
    # the same look-up goes on, and heals it when it ends
    assert len(look_ups.asked) == 1
    (await look_ups.next()).set_result(found("10.0.0.1", "10.0.0.2"))
    await until(lambda: urls_of(upstream.endpoints) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"])
    await upstream.close()


@pytest.mark.slow
async def test_a_name_that_cannot_be_resolved_is_503_with_the_resolvers_words_and_heals_without_requests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    monkeypatch.setattr(resolving, "REPEAT_S", 0.001)
    zone = Zone(monkeypatch)
    upstream = upstream_to(URL)
    await upstream.start()
    with pytest.raises(GatewayError) as caught:
        await ask(upstream, "GET", whole(b""))
    assert caught.value.kind is ErrorKind.UNREACHABLE
    assert caught.value.message == (
        f"backend 'main' cannot be reached at {URL}: the host name 'models.example' cannot be resolved: "
        "Temporary failure in name resolution"
    )
    n_asked = zone.n_asked
    await until(lambda: zone.n_asked > n_asked + 2)
    zone.addresses = ("10.0.0.1", "10.0.0.2")
    await until(lambda: len(upstream.endpoints.states) == 2)
    await upstream.close()
    assert lines(caplog) == [
        "backend 'main': the host name 'models.example' cannot be resolved: Temporary failure in name resolution; "
        "requests to it get 503 until it resolves",
        "backend 'main': the host name 'models.example' resolves to 10.0.0.1, 10.0.0.2",
    ]


# When the addresses change


async def test_a_changed_set_keeps_the_state_of_those_that_stay_and_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    zone = Zone(monkeypatch, "10.0.0.1", "10.0.0.2")
    names, endpoints = names_of(URL, refresh_s=0.001)
    changes: list[list[str]] = []
    replace = endpoints.replace

    def noting(found: Iterable[Endpoint]) -> None:
        replace(found)
        changes.append(urls_of(endpoints))

    monkeypatch.setattr(endpoints, "replace", noting)
    await names.start()
    _, second = endpoints.states
    second.in_flight = 7
    second.is_up = False
    n_asked = zone.n_asked
    zone.addresses = ("10.0.0.2", "10.0.0.1")  # another order is no change
    await until(lambda: zone.n_asked > n_asked + 3)
    zone.addresses = ("10.0.0.3", "10.0.0.2")
    await until(lambda: len(changes) > 1)
    await names.close()
    assert changes == [
        ["http://10.0.0.1:8000", "http://10.0.0.2:8000"],
        ["http://10.0.0.2:8000", "http://10.0.0.3:8000"],
    ]
    kept, new = endpoints.states
    assert kept is second
    assert (new.in_flight, new.is_up) == (0, True)
    assert lines(caplog)[1:] == [
        "backend 'main': the host name 'models.example' resolves to 10.0.0.2, 10.0.0.3 (before: 10.0.0.1, 10.0.0.2)"
    ]


async def test_one_server_of_both_families_stays_as_it_is_when_their_order_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    zone = Zone(monkeypatch, "127.0.0.1", "::1")
    names, endpoints = names_of(URL, refresh_s=0.001)
    await names.start()
    before = endpoints.states[0].endpoint
    zone.addresses = ("::1", "127.0.0.1")
    n_asked = zone.n_asked
    await until(lambda: zone.n_asked > n_asked + 3)
    assert endpoints.states[0].endpoint is before
    assert lines(caplog) == []
    await names.close()


async def test_state_belongs_to_the_address_also_from_one_to_several_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    zone = Zone(monkeypatch, "10.0.0.1")
    names, endpoints = names_of(URL, refresh_s=0.001)
    await names.start()
    (state,) = endpoints.states
    state.is_up = False
    assert state.url == URL
    zone.addresses = ("10.0.0.1", "10.0.0.2")
    await until(lambda: len(endpoints.states) == 2)
    first, second = endpoints.states
    assert first is state
    assert first.url == "http://10.0.0.1:8000"
    assert second.is_up
    zone.addresses = ("10.0.0.2",)
    await until(lambda: endpoints.states == (second,))
    assert second.url == URL
    zone.addresses = ("10.0.0.9",)
    await until(lambda: endpoints.states[0].endpoint.addresses == ("10.0.0.9",))
    assert endpoints.states[0] is not second
    await names.close()


def test_connections_stay_where_only_the_label_changes() -> None:
    (by_name,) = at_addresses(endpoint(), ("10.0.0.1",))
    by_address = at_addresses(endpoint(), ("10.0.0.1", "10.0.0.2"))[0]
    assert by_name.url != by_address.url
    assert by_name == by_address


async def test_a_name_that_cannot_be_resolved_any_more_keeps_what_was_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gateway")
    monkeypatch.setattr(resolving, "REPEAT_S", 0.001)
    zone = Zone(monkeypatch, "10.0.0.1", "10.0.0.2")
    names, endpoints = names_of(URL, refresh_s=0.001)
    await names.start()
    states = endpoints.states
    zone.addresses = ()
    n_asked = zone.n_asked
    await until(lambda: zone.n_asked > n_asked + 3)
    assert endpoints.states == states
    zone.addresses = ("10.0.0.1", "10.0.0.2")
    n_asked = zone.n_asked
    await until(lambda: zone.n_asked > n_asked + 3)
    assert endpoints.states == states
    await names.close()
    assert lines(caplog)[1:] == [
        "backend 'main': the host name 'models.example' cannot be resolved: Temporary failure in name resolution; "
        "its last addresses stay in use: 10.0.0.1, 10.0.0.2",
        "backend 'main': the host name 'models.example' resolves to 10.0.0.1, 10.0.0.2",
    ]


async def test_a_name_whose_addresses_do_not_answer_is_looked_up_again_soon_but_not_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolving, "REPEAT_S", 0.4)
    zone = Zone(monkeypatch, "127.0.0.1")
    upstream = upstream_to("http://models.example:1", "dns_refresh: 1h, retry: {attempts: 1}")
    await upstream.start()
    for _ in range(3):
        with pytest.raises(GatewayError, match="Connection refused"):
            await ask(upstream, "GET", whole(b""))
    assert zone.n_asked == 1
    zone.addresses = ("127.0.0.1", "127.0.0.2")
    await until(lambda: zone.n_asked == 2)
    assert urls_of(upstream.endpoints) == ["http://127.0.0.1:1", "http://127.0.0.2:1"]
    await upstream.close()


async def test_a_name_whose_server_has_moved_is_looked_up_at_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    zone = Zone(monkeypatch, "127.0.0.1")
    upstream = upstream_to("http://models.example:1", "dns_refresh: 1h")
    await upstream.start()
    upstream.names._names["models.example"].asked_s -= REPEAT_S
    zone.addresses = ("127.0.0.2",)
    with pytest.raises(GatewayError, match="Connection refused"):
        await ask(upstream, "GET", whole(b""))
    await turns()
    assert zone.n_asked == 2
    assert upstream.endpoints.states[0].endpoint.addresses == ("127.0.0.2",)
    await upstream.close()


async def test_a_name_whose_addresses_are_silent_is_looked_up_again_soon_too(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    Zone(monkeypatch, "10.0.0.1")

    async def start_connection(*_: object, **__: object) -> None:
        await loop.create_future()

    monkeypatch.setattr("aiohappyeyeballs.start_connection", start_connection)
    upstream = upstream_to(URL, "dns_refresh: 1h, timeouts: {connect: 5ms}")
    await upstream.start()
    name = upstream.names._names["models.example"]
    assert not name.is_silent
    with pytest.raises(GatewayError) as caught:
        await ask(upstream, "GET", whole(b""))
    assert caught.value.message.endswith(f"{URL}: no connection within 0.005 s (timeouts.connect)")
    assert name.is_silent
    await upstream.close()


# The end of a plan, and the next one


async def test_look_ups_end_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    zone = Zone(monkeypatch, "10.0.0.1")
    upstream = upstream_to(URL, "dns_refresh: 1ms")
    before = asyncio.all_tasks()
    await upstream.start()
    await until(lambda: zone.n_asked >= 3)
    upstream.retire()
    await until(lambda: asyncio.all_tasks() <= before)
    n_asked = zone.n_asked
    upstream.names.look_up_soon(upstream.endpoints.states[0].endpoint)
    await turns()
    assert zone.n_asked == n_asked
    await upstream.close()


async def test_a_look_up_that_ends_after_the_plan_brings_no_endpoint_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "START_WAIT_S", 0.01)
    look_ups = LookUps(monkeypatch)
    upstream = upstream_to(URL)
    await upstream.start()
    upstream.retire()
    (await look_ups.next()).set_result(found("10.0.0.1", "10.0.0.2"))
    await until(lambda: len(upstream.endpoints.states) == 2)  # for requests that have begun
    await asyncio.sleep(0)
    assert not upstream.connections._open
    await upstream.close()


async def test_a_look_up_that_hangs_does_not_hold_the_end_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "START_WAIT_S", 0.01)
    before = asyncio.all_tasks()
    look_ups = LookUps(monkeypatch)
    upstream = upstream_to(URL)
    await upstream.start()
    assert look_ups.asked
    await upstream.close()
    assert asyncio.all_tasks() == before


def test_a_look_up_that_hangs_does_not_hold_the_process_up() -> None:
    program = """
import asyncio, socket, time
socket.getaddrinfo = lambda *_, **__: time.sleep(3600)
from gateway.backend import resolving
async def main():
    task = asyncio.ensure_future(resolving.look_up("models.example"))
    await asyncio.sleep(0.05)
    task.cancel()
asyncio.run(main())
print("ended")
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True, cwd=Path.cwd()
    )
    assert (ended.stdout, ended.stderr) == ("ended\n", "")


async def test_a_look_up_that_ends_after_its_event_loop_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found("10.0.0.1"))

    async def leave() -> None:
        asyncio.ensure_future(look_up("models.example"))  # noqa: RUF006
        await asyncio.sleep(0)

    await asyncio.to_thread(asyncio.run, leave())
    assert [info[4] for info in await look_up("models.example")] == [("10.0.0.1", 0)]


async def test_a_look_up_that_ends_after_it_was_given_up_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    may_end, has_ended = threading.Event(), threading.Event()

    def getaddrinfo(*_: object, **__: object) -> list[Any]:
        may_end.wait(BOUND_S)
        has_ended.set()
        return found("10.0.0.1")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    asked = asyncio.ensure_future(look_up("models.example"))
    await turns()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    may_end.set()
    await asyncio.to_thread(has_ended.wait, BOUND_S)
    assert await look_up("models.example")  # what the first thread has brought has been dropped by now
    assert unseen == []


async def test_a_reload_keeps_names_that_stay_and_forgets_those_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    zone = Zone(monkeypatch, "10.0.0.1", "10.0.0.2")

    def plan_of(*urls: str) -> Any:
        config = parse(f"backends: {{main: {{endpoints: {list(urls)}, dns_refresh: 1h}}}}")
        return Plan(config, "test").backends["main"]

    first = Upstream(plan_of(URL, "http://old.example:8000"))
    await first.start()
    assert zone.n_asked == 2
    states = first.endpoints.states
    second = Upstream(plan_of("http://10.0.0.7:8000", URL), first)
    assert first.endpoints.states == states
    await second.start()
    assert second.endpoints.states[1:] == states[:2]
    assert zone.n_asked == 2
    assert set(second.names._names) == {"models.example"}
    # requests that began with the first plan still find their endpoint
    assert await second.names.addresses(endpoint("http://old.example:8000"))
    assert len(second.endpoints.states) == 3
    await second.close()


async def test_a_shorter_dns_refresh_holds_from_the_reload_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "REPEAT_S", 0.01)
    zone = Zone(monkeypatch, "10.0.0.1")
    names, _ = names_of(URL, refresh_s=3600.0)
    await names.start()
    names.configure([endpoint()], 0.001)
    await until(lambda: zone.n_asked > 3)
    await names.close()


async def test_reloads_that_follow_each_other_put_no_look_up_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolving, "REPEAT_S", 0.2)
    zone = Zone(monkeypatch, "10.0.0.1")
    names, _ = names_of(URL, refresh_s=0.2)
    for _ in range(60):
        await names.start()
        await asyncio.sleep(0.01)
    assert zone.n_asked > 1
    await names.close()


# With a real resolver and real servers


HOSTS = Path("/etc/hosts")


def edit_hosts(edit: Callable[[str], str]) -> None:
    """Change the file in one step that other test runs on this machine do not break. Raises `OSError`."""
    with HOSTS.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = edit(file.read())
        file.seek(0)
        file.write(text)
        file.truncate()


@pytest.fixture
def names_in_hosts() -> Iterator[str]:
    """A name that resolves to 127.0.0.2 and 127.0.0.3 while the test runs."""
    name = f"several-{os.getpid()}.tensor-gateway.test"
    entries = f"127.0.0.2 {name}\n127.0.0.3 {name}\n"
    try:
        edit_hosts(lambda text: text + entries if text.endswith("\n") else f"{text}\n{entries}")
    except OSError as error:
        pytest.skip(f"/etc/hosts cannot be written, so that no name of several addresses can be had: {error}")
    try:
        yield name
    finally:
        edit_hosts(lambda text: text.replace(entries, ""))


class Servers:
    """Servers at the same port of several addresses, which answer every request and note its head."""

    def __init__(self) -> None:
        self.heads: dict[str, list[str]] = {}
        self.port = 0
        self._servers: dict[str, asyncio.Server] = {}
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, address: str) -> None:
        self.heads[address] = []
        server = self._servers[address] = await asyncio.start_server(self._serve, address, self.port)
        self.port = server.sockets[0].getsockname()[1]

    async def close(self, address: str) -> None:
        server = self._servers.pop(address)
        server.close()
        for writer in self._writers:
            if writer.get_extra_info("sockname")[0] == address:
                writer.close()
        await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        address = writer.get_extra_info("sockname")[0]
        try:
            while True:
                self.heads[address].append((await reader.readuntil(b"\r\n\r\n")).decode())
                writer.write(ANSWER)
        except (EOFError, OSError):
            pass
        finally:
            writer.close()


async def test_requests_reach_every_address_of_a_real_name_and_the_others_when_one_dies(names_in_hosts: str) -> None:
    servers = Servers()
    await servers.open("127.0.0.2")
    await servers.open("127.0.0.3")
    upstream = upstream_to(f"http://{names_in_hosts}:{servers.port}", "balance: round_robin")
    try:
        await upstream.start()
        assert urls_of(upstream.endpoints) == [f"http://{each}:{servers.port}" for each in servers.heads]
        for _ in range(6):
            assert await ask(upstream, "GET", whole(b"")) == (b"ok", ["200"])
        assert [len(each) for each in servers.heads.values()] == [3, 3]
        host = f"\r\nHost: {names_in_hosts}:{servers.port}\r\n"
        assert all(host in head for each in servers.heads.values() for head in each)
        await servers.close("127.0.0.2")
        for _ in range(6):
            text, codes = await ask(upstream, "GET", whole(b""))
            assert (text, codes[-1]) == (b"ok", "200")
        assert len(servers.heads["127.0.0.3"]) == 9
    finally:
        await upstream.close()
        for address in list(servers._servers):
            await servers.close(address)
