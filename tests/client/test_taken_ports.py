"""An address that is taken: nobody shares a port with another gateway in silence."""

import asyncio
import errno
import itertools
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.client.listeners import ACCEPTS_AT_ONCE, bind, release, reserve
from gateway.config import Address
from gateway.demo import JsonServer
from tests.test_cli import process, url_in_line

Take = Callable[[Address], Awaitable[list[socket.socket]]]


async def as_one_process(address: Address) -> list[socket.socket]:
    bound = await bind(address)
    bound.listen()
    return [bound]


async def before_workers_listen(address: Address) -> list[socket.socket]:
    return [await reserve(address)]


async def with_workers(address: Address) -> list[socket.socket]:
    workers = [await reserve(address)]
    for _ in range(2):
        workers.append(await bind(address, is_shared=True))
        workers[-1].listen()
    return workers


GATEWAYS = [as_one_process, before_workers_listen, with_workers]
OVERLAPPING = [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1"), ("[::]", "0.0.0.0")]


@pytest.fixture
def port(unused_tcp_port: int) -> int:
    return unused_tcp_port


@pytest.mark.parametrize(("first", "second"), list(itertools.product(GATEWAYS, GATEWAYS)))
@pytest.mark.parametrize(("host", "other_host"), OVERLAPPING)
async def test_a_second_gateway_is_refused(first: Take, second: Take, host: str, other_host: str, port: int) -> None:
    held = await first(Address(f"{host}:{port}"))
    try:
        for _ in range(2):
            with pytest.raises(OSError, match=f"cannot listen on .*:{port}: address already in use$") as caught:
                await second(Address(f"{other_host}:{port}"))
            assert caught.value.errno == errno.EADDRINUSE
    finally:
        for each in held:
            release(each)
    for each in await second(Address(f"{other_host}:{port}")):
        release(each)


async def test_of_gateways_that_start_at_the_same_time_one_gets_the_port(port: int) -> None:
    address = Address(f"127.0.0.1:{port}")
    taken = await asyncio.gather(*(reserve(address) for _ in range(20)), return_exceptions=True)
    (winner,) = (each for each in taken if isinstance(each, socket.socket))
    release(winner)
    assert {each.errno for each in taken if isinstance(each, OSError)} == {errno.EADDRINUSE}


async def test_the_reserved_socket_gets_no_connections_and_workers_get_all(port: int) -> None:
    address = Address(f"127.0.0.1:{port}")
    reserved = await reserve(address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    worker = await bind(address, is_shared=True)
    worker.listen()
    worker.setblocking(False)
    for _ in range(ACCEPTS_AT_ONCE):
        with socket.create_connection(("127.0.0.1", port)):
            worker.accept()[0].close()
    worker.close()
    release(await bind(address, is_shared=True))  # one that replaces it
    release(reserved)


async def test_a_port_is_free_again_at_once_although_connections_to_it_were_closed(port: int) -> None:
    address = Address(f"127.0.0.1:{port}")
    for take in GATEWAYS * 2:
        held = await take(address)
        if take is not before_workers_listen:
            with socket.create_connection(("127.0.0.1", port)) as client:
                for each in held:
                    each.setblocking(False)
                    try:
                        each.accept()[0].close()  # first, so that this side has to wait (TIME_WAIT)
                    except OSError:
                        continue
                assert client.recv(1) == b""
        for each in held:
            release(each)


async def test_a_port_that_the_kernel_chooses_can_be_shared_by_workers() -> None:
    reserved = await reserve(Address("127.0.0.1:0"))
    port = reserved.getsockname()[1]
    workers = [await bind(Address(f"127.0.0.1:{port}"), is_shared=True) for _ in range(2)]
    assert {each.getsockname() for each in workers} == {("127.0.0.1", port)}
    for each in (*workers, reserved):
        release(each)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "more"), [(1, 2), (2, 1), (2, 2)])
async def test_a_second_process_says_so_and_exits_with_1(
    tmp_path: Path, server: JsonServer, port: int, workers: int, more: int
) -> None:
    config = tmp_path / "gateway.yaml"

    def write(count: int) -> None:
        config.write_text(
            f"workers: {count}\nlisten: 127.0.0.1:{port}\nadmin: 127.0.0.1:0\n"
            f"backends: {{a: {{endpoints: ['{server.url}']}}}}\n"
        )

    write(workers)
    async with process("serve", "--config", str(config)) as first:
        await url_in_line(first.stderr)
        write(more)
        async with process("serve", "--config", str(config)) as second:
            _, errors = await second.communicate()
            assert second.returncode == 1
            assert f"cannot listen on 127.0.0.1:{port}: address already in use" in errors.decode()
        with socket.create_connection(("127.0.0.1", port)):
            pass
