"""What a backend speaks, of the answers of its endpoints. With requests: `tests.system.test_passing`."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from gateway.backend import speaking
from gateway.backend.connections import Connections, Limits
from gateway.backend.endpoints import Endpoint, EndpointSet
from gateway.backend.resolving import Names
from gateway.backend.speaking import Speaking, Spoken, configured
from gateway.errors import ErrorKind, GatewayError
from tests.conftest import Connection, lying

DEADLINE_S = 20


@pytest.mark.parametrize(
    ("dialect", "binary", "spoken"),
    [
        ("v2", "never", Spoken("v2", binary=False)),
        ("v2", "always", Spoken("v2", binary=True)),
        ("tensorflow", "never", Spoken("tensorflow", binary=False)),
        ("mlflow", "auto", Spoken("mlflow", binary=False)),
        ("v2", "auto", None),
        ("auto", "never", None),
        ("auto", "always", None),
    ],
)
def test_what_the_configuration_says_is_not_asked(dialect: str, binary: str, spoken: Spoken | None) -> None:
    assert configured(dialect, binary) == spoken


class Server:
    """Says what it is told to."""

    def __init__(self, *, is_binary: bool = True) -> None:
        self.is_binary = is_binary
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def serve(self, connection: Connection) -> None:
        await connection.read_request()
        self.asked += 1
        await self.may_answer.wait()
        said = b'["binary_tensor_data"]' if self.is_binary else b"[]"
        await connection.answer(b'{"name": "x", "extensions": %b}' % said)


@asynccontextmanager
async def asking(
    servers: Sequence[Server], dialect: str = "v2", binary: str = "auto"
) -> AsyncIterator[tuple[Speaking, EndpointSet]]:
    """What asks *servers*, and their endpoints."""
    endpoints = EndpointSet()
    connections = Connections("main", Names("main", endpoints), Limits(1, 5.0))
    asker = Speaking("main", endpoints, connections)
    asker.configure(dialect, binary, [])
    async with AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(lying(server.serve))).url for server in servers]
        endpoints.replace([Endpoint.parse(url, None) for url in urls])
        try:
            yield asker, endpoints
        finally:
            await asker.tasks.close()
            await connections.close()


async def test_an_endpoint_that_is_down_has_no_say_and_is_asked_anew_when_it_is_up() -> None:
    servers = [Server(), Server()]
    async with asking(servers) as (asker, endpoints):
        assert (await asker.spoken()).binary
        down = endpoints.states[1]
        servers[1].is_binary = False
        down.is_up = False
        down.note("503")
        assert (await asker.spoken()).binary
        assert servers[1].asked == 1
        down.is_up = True
        down.note("200")
        assert not (await asker.spoken()).binary
        assert [server.asked for server in servers] == [1, 2]


async def test_an_ejected_endpoint_has_a_say_again_when_a_request_may_try_it() -> None:
    servers = [Server(), Server(is_binary=False)]
    async with asking(servers) as (asker, endpoints):
        now_s = asyncio.get_running_loop().time()
        ejection = endpoints.states[1].ejection
        for for_s, has_a_say in ((60.0, False), (-60.0, True)):
            ejection.clear()
            assert ejection.fail(now_s, None, failures=1, window_s=60, for_s=for_s, may_eject=True)
            assert (await asker.spoken()).binary is not has_a_say
        assert ejection.begin_trial(now_s) is not None  # by the request that tries it; others go elsewhere
        assert (await asker.spoken()).binary


async def test_binary_may_go_to_endpoints_that_have_said_so_since_something_failed_there() -> None:
    async with asking([Server(), Server(is_binary=False), Server()]) as (asker, endpoints):
        speaks, does_not, failed = endpoints.states
        assert not any(map(asker.may_get_binary, endpoints.states))  # none is asked yet
        await asker.spoken()
        assert list(map(asker.may_get_binary, endpoints.states)) == [True, False, True]
        does_not.is_up = False
        failed.is_up = False
        failed.note("503")
        assert (await asker.spoken()).binary
        failed.is_up = True  # between the question and the choice of an endpoint
        failed.note("200")
        assert list(map(asker.may_get_binary, endpoints.states)) == [True, False, False]
        assert (await asker.spoken()).binary
        assert asker.may_get_binary(failed)
        speaks.speech.doubt(asyncio.get_running_loop().time())
        assert not asker.may_get_binary(speaks)


async def test_binary_that_the_configuration_says_may_go_everywhere() -> None:
    async with asking([Server(is_binary=False)], "v2", "always") as (asker, endpoints):
        assert all(map(asker.may_get_binary, endpoints.states))


async def test_if_all_are_down_all_have_a_say() -> None:
    async with asking([Server(), Server(is_binary=False)]) as (asker, endpoints):
        for state in endpoints.states:
            state.is_up = False
        assert not (await asker.spoken()).binary


async def test_endpoints_that_come_are_asked_and_those_that_go_are_forgotten() -> None:
    servers = [Server(), Server(is_binary=False)]
    async with asking(servers) as (asker, endpoints):
        one, other = (state.endpoint for state in endpoints.states)
        assert not (await asker.spoken()).binary
        endpoints.replace([one])
        assert (await asker.spoken()).binary
        endpoints.replace([one, other])
        assert not (await asker.spoken()).binary
        assert [server.asked for server in servers] == [1, 2]


async def test_a_request_that_ends_does_not_end_the_question() -> None:
    server = Server()
    server.may_answer.clear()
    async with asking([server]) as (asker, _), asyncio.timeout(DEADLINE_S):
        leaving = asyncio.ensure_future(asker.spoken())
        while not server.asked:
            await asyncio.sleep(0.01)
        leaving.cancel()
        staying = asyncio.ensure_future(asker.spoken())
        await asyncio.sleep(0)
        server.may_answer.set()
        assert (await staying).binary
        assert server.asked == 1


async def test_a_dialect_is_asked_once_and_again_after_a_failure() -> None:
    server = Server()
    async with asking([server], "auto", "never") as (asker, endpoints):
        for _ in range(3):
            assert await asker.spoken() == Spoken("v2", binary=False)
        assert server.asked == 1
        endpoints.states[0].speech.doubt(asyncio.get_running_loop().time())
        await asker.spoken()
        assert server.asked == 2


async def test_a_reload_forgets_what_was_said_only_where_the_question_changes() -> None:
    server = Server()
    async with asking([server], "auto", "never") as (asker, _):
        for binary, n_asked in (("never", 1), ("never", 1), ("auto", 2), ("auto", 2)):
            asker.configure("auto", binary, [])
            await asker.spoken()
            assert server.asked == n_asked


async def test_requests_wait_for_one_answer_of_a_server_that_is_doubted_without_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client whose requests are wrong does not make all others wait."""
    monkeypatch.setattr("gateway.backend.endpoints.DOUBT_S", 0.0)
    server = Server()
    async with asking([server]) as (asker, endpoints), asyncio.timeout(DEADLINE_S):
        (state,) = endpoints.states

        async def doubted_while_it_is_slow() -> "asyncio.Task[Spoken]":
            server.may_answer.clear()
            state.speech.doubt(asyncio.get_running_loop().time())
            asked = server.asked
            waiting = asyncio.ensure_future(asker.spoken())
            while server.asked == asked:
                await asyncio.sleep(0.01)
            return waiting

        assert (await asker.spoken()).binary
        waiting = await doubted_while_it_is_slow()
        assert not waiting.done()
        server.may_answer.set()
        assert (await waiting).binary
        for _ in range(2):  # it has said the same again: from now on it is asked beside the requests
            assert (await doubted_while_it_is_slow()).done()
            server.may_answer.set()
            while state.speech.is_doubted:
                await asyncio.sleep(0.01)
        server.is_binary = False
        assert (await doubted_while_it_is_slow()).done()
        server.may_answer.set()
        while (await asker.spoken()).binary:
            await asyncio.sleep(0.01)
        assert not (await doubted_while_it_is_slow()).done()  # it has changed, and may change again
        server.may_answer.set()


async def test_a_dialect_that_was_known_is_kept_while_the_server_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "ASK_S", 0.2)
    server = Server()
    async with asking([server], "auto", "always") as (asker, endpoints):
        assert await asker.spoken() == Spoken("v2", binary=True)
        server.may_answer.clear()
        endpoints.states[0].speech.doubt(asyncio.get_running_loop().time())
        assert await asker.spoken() == Spoken("v2", binary=True)


async def test_a_dialect_that_was_never_known_is_an_error_with_the_reason(unused_tcp_port: int) -> None:
    async with asking([], "auto") as (asker, endpoints):
        endpoints.replace([Endpoint.parse(f"http://127.0.0.1:{unused_tcp_port}", None)])
        for _ in range(2):
            with pytest.raises(GatewayError, match="cannot be reached") as raised:
                await asker.spoken()
            assert (raised.value.kind, raised.value.sent) == (ErrorKind.UNREACHABLE, False)
