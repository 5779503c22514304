"""Names to addresses: asked for once, for a short time, and failures only for those who asked."""

import asyncio
import gc
import socket
from typing import Any

import pytest

from gateway.backend.resolving import LIFE_S, REPEAT_S, Resolver, UnknownHostError

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 80))]


class LookUps:
    """Takes the place of the operating system's resolver; each look-up waits until it is told how it ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[asyncio.Future[Any]] = []
        self.asked: list[tuple[str, int]] = []
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self._look_up)

    async def _look_up(self, host: str, port: int, **options: int) -> Any:
        assert options == {"type": socket.SOCK_STREAM, "proto": socket.IPPROTO_TCP}
        self.asked.append((host, port))
        self.started.append(asyncio.get_running_loop().create_future())
        return await self.started[-1]

    async def next(self) -> asyncio.Future[Any]:
        while not self.started:
            await asyncio.sleep(0)
        return self.started.pop(0)


async def test_calls_at_the_same_time_wait_for_one_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    resolver = Resolver()
    asked = [asyncio.ensure_future(resolver.addresses("models.example", 80)) for _ in range(5)]
    (await look_ups.next()).set_result(FOUND)
    assert await asyncio.gather(*asked) == [FOUND] * 5
    assert await resolver.addresses("models.example", 80) == FOUND
    assert look_ups.asked == [("models.example", 80)]


async def test_another_name_or_port_is_another_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    resolver = Resolver()
    for host, port in [("a.example", 80), ("a.example", 81), ("b.example", 80)]:
        asked = asyncio.ensure_future(resolver.addresses(host, port))
        (await look_ups.next()).set_result(FOUND)
        await asked
    assert look_ups.asked == [("a.example", 80), ("a.example", 81), ("b.example", 80)]


async def test_addresses_are_looked_up_again_when_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    resolver = Resolver()
    loop = asyncio.get_running_loop()
    now = loop.time()
    for n_look_ups in (1, 2):
        asked = asyncio.ensure_future(resolver.addresses("models.example", 80))
        (await look_ups.next()).set_result(FOUND)
        await asked
        assert len(look_ups.asked) == n_look_ups
        monkeypatch.setattr(loop, "time", lambda: now + LIFE_S + 1)


async def test_a_failure_names_the_host_and_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    resolver = Resolver()
    asked = [asyncio.ensure_future(resolver.addresses("models.example", 80)) for _ in range(2)]
    (await look_ups.next()).set_exception(socket.gaierror(-2, "Name or service not known"))
    for error in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(error, UnknownHostError)
        assert str(error) == "the host name 'models.example' cannot be resolved: Name or service not known"
    again = asyncio.ensure_future(resolver.addresses("models.example", 80))
    (await look_ups.next()).set_result(FOUND)
    assert await again == FOUND


async def test_a_name_that_no_host_can_have_is_an_unknown_host() -> None:
    with pytest.raises(UnknownHostError, match=r"'a\.\.b'"):
        await Resolver().addresses("a..b", 80)


async def test_a_failure_after_everybody_has_left_is_neither_remembered_nor_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # a resolver takes 5 s to give up, timeouts.connect is 2 s
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))
    look_ups = LookUps(monkeypatch)
    resolver = Resolver()
    asked = asyncio.ensure_future(resolver.addresses("models.example", 80))
    look_up = await look_ups.next()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    look_up.set_exception(socket.gaierror(-3, "Temporary failure in name resolution"))
    del look_up, asked
    for _ in range(3):
        await asyncio.sleep(0)
    again = asyncio.ensure_future(resolver.addresses("models.example", 80))
    (await look_ups.next()).set_result(FOUND)
    assert await again == FOUND
    del again
    gc.collect()
    assert unseen == []


async def test_one_caller_that_leaves_takes_nothing_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    look_ups = LookUps(monkeypatch)
    resolver = Resolver()
    leaving, staying = (asyncio.ensure_future(resolver.addresses("models.example", 80)) for _ in range(2))
    look_up = await look_ups.next()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    look_up.set_result(FOUND)
    assert await staying == FOUND
    assert len(look_ups.asked) == 1


@pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6), ("10.0.0.7", socket.AF_INET)]
)
async def test_an_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch, host: str, family: int) -> None:
    look_ups = LookUps(monkeypatch)
    assert await Resolver().addresses(host, 8000) == [
        (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, 8000))
    ]
    assert look_ups.asked == []


async def test_a_real_name_is_found() -> None:
    addresses = await Resolver().addresses("localhost", 8000)
    assert {info[4][:2] for info in addresses} <= {("127.0.0.1", 8000), ("::1", 8000)}
    assert addresses


async def test_a_name_whose_addresses_do_not_answer_is_looked_up_again_soon_but_not_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_ups = LookUps(monkeypatch)
    resolver = Resolver()
    loop = asyncio.get_running_loop()
    now = loop.time()
    asked = asyncio.ensure_future(resolver.addresses("a.example", 80))
    (await look_ups.next()).set_result(FOUND)
    await asked
    for _ in range(3):
        resolver.forget("a.example", 80)
        assert await resolver.addresses("a.example", 80) == FOUND
    assert len(look_ups.asked) == 1
    monkeypatch.setattr(loop, "time", lambda: now + REPEAT_S + 1)
    asked = asyncio.ensure_future(resolver.addresses("a.example", 80))
    (await look_ups.next()).set_result(FOUND)
    await asked
    assert len(look_ups.asked) == 2
