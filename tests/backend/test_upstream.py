"""Several endpoints, some of which fail: which requests are tried again, and that nothing is executed twice."""

import asyncio
import errno
import socket
from collections import Counter
from collections.abc import AsyncIterator
from hashlib import sha256

import pytest

from gateway.backend.asking import BackendRequest, Body
from gateway.backend.attempt import Answer
from gateway.backend.upstream import Upstream
from gateway.config import parse
from gateway.errors import ErrorKind, GatewayError
from gateway.exchange import Attempt
from gateway.plan import Plan
from gateway.policy.retry import BUDGET_S, RETRIES_PER_S
from tests.backend.endpoints import (
    IN_TURN,
    Gate,
    Streamed,
    answering,
    assert_nothing_is_left,
    babbling,
    breaking_chunks,
    call,
    closing,
    codes,
    cutting,
    falling_silent,
    hanging,
    nobody,
    own_answer,
    read_as_malformed,
    resetting,
    upstream_with,
    well,
)
from tests.backend.sockets import Backend, read_whole, upstream_of
from tests.system.scripted import Behaviour, counting

FAILING: list[tuple[Behaviour, ErrorKind, str]] = [
    (hanging, ErrorKind.TIMEOUT, "timeout"),
    (closing, ErrorKind.UPSTREAM_CLOSED, "upstream_closed"),
    (resetting, ErrorKind.UPSTREAM_CLOSED, "upstream_closed"),
    (babbling, ErrorKind.MALFORMED_RESPONSE, "malformed_response"),
    (cutting, ErrorKind.UPSTREAM_CLOSED, "200"),
    (falling_silent, ErrorKind.TIMEOUT, "200"),
    (breaking_chunks, ErrorKind.MALFORMED_RESPONSE, "200"),
]
EACH_FAILURE = pytest.mark.parametrize(
    ("behave", "kind", "code"), FAILING, ids=[behave.__name__ for behave, _, _ in FAILING]
)
METHODS = pytest.mark.parametrize("method", ["POST", "GET"])


def bodies() -> dict[str, Body]:
    return {"whole": Body(whole=b"body"), "streamed": Streamed(100_000).body}


async def test_an_endpoint_that_nobody_serves_costs_no_client_an_error() -> None:
    with nobody() as dead:
        async with counting(well) as backend:
            upstream = upstream_of([dead, backend.url])
            attempts: list[Attempt] = []
            for number in range(50):
                assert await call(upstream, number, attempts=attempts) == own_answer(str(number), b"body")
            assert backend.executed == {str(number): 1 for number in range(50)}
            # it is tried until it is ejected, and then no more
            assert Counter(attempt.endpoint for attempt in attempts) == {dead: 5, backend.url: 50}
            assert {(each.code, each.repeated_for) for each in attempts if each.endpoint == dead} == {
                ("unreachable", "unreachable")
            }
            assert {each.repeated_for for each in attempts if each.endpoint != dead} == {""}
            assert_nothing_is_left(upstream)
            await upstream.close()


@EACH_FAILURE
@METHODS
@pytest.mark.parametrize("form", ["whole", "streamed"])
async def test_what_a_backend_may_have_read_is_not_sent_again(
    behave: Behaviour, kind: ErrorKind, code: str, method: str, form: str
) -> None:
    async with upstream_with(well, behave, settings=IN_TURN) as (upstream, (good, bad)):
        attempts: list[Attempt] = []
        with pytest.raises(GatewayError) as caught:
            await call(upstream, method=method, body=bodies()[form], attempts=attempts)
        assert caught.value.kind is kind
        assert caught.value.sent
        assert (codes(attempts), attempts[0].repeated_for) == ([code], "")
        assert (bad.executed, good.executed) == ({"1": 1}, {})


@EACH_FAILURE
@METHODS
@pytest.mark.parametrize("form", ["whole", "streamed"])
async def test_with_resend_after_sent_another_endpoint_gets_it(
    behave: Behaviour, kind: ErrorKind, code: str, method: str, form: str
) -> None:
    settings = f"{IN_TURN}, retry: {{resend_after_sent: true}}"
    async with upstream_with(well, behave, settings=settings) as (upstream, (good, bad)):
        attempts: list[Attempt] = []
        body = bodies()[form]
        answer = await call(upstream, method=method, body=body, attempts=attempts)
        assert answer == own_answer("1", good.seen[0].body)
        assert good.seen[0].body == bad.seen[0].body
        assert codes(attempts) == [code, "200"]
        assert [attempt.repeated_for for attempt in attempts] == [kind.label, ""]
        assert [attempt.endpoint for attempt in attempts] == [bad.url, good.url]
        assert attempts[0].request_bytes == attempts[1].request_bytes == len(good.seen[0].body)
        assert (bad.executed, good.executed) == ({"1": 1}, {"1": 1})


@pytest.mark.parametrize("status", ["500 Internal Server Error", "503 Service Unavailable", "429 Too Many Requests"])
async def test_statuses_are_answers_and_not_failures(status: str) -> None:
    settings = f"{IN_TURN}, retry: {{resend_after_sent: true}}, eject: {{failures: 1}}"
    async with upstream_with(well, answering(status), settings=settings) as (upstream, (good, bad)):
        attempts: list[Attempt] = []
        for number in range(10):
            await call(upstream, number, attempts=attempts)
        assert Counter(codes(attempts)) == {status[:3]: 5, "200": 5}
        assert not any(state.ejection.is_ejected for state in upstream.endpoints.states)
        assert sum(good.executed.values()) == sum(bad.executed.values()) == 5


async def test_what_the_reader_finds_malformed_is_asked_of_another_endpoint() -> None:
    settings = f"{IN_TURN}, retry: {{resend_after_sent: true}}, max_connections: 1"
    async with upstream_with(well, answering("200 Whatever"), settings=settings) as (upstream, (good, bad)):
        attempts: list[Attempt] = []

        async def read(answer: Answer) -> bytes:
            # it is read to its end, so its connection is given back, and its place is free, when this is found
            return await (read_as_malformed if answer.head.reason == "Whatever" else read_whole)(answer)

        assert await call(upstream, read=read, attempts=attempts) == own_answer("1", b"body")
        assert [attempt.repeated_for for attempt in attempts] == ["malformed_response", ""]
        assert (bad.executed, good.executed) == ({"1": 1}, {"1": 1})


async def test_when_the_reply_has_begun_nothing_is_tried_again() -> None:
    settings = f"{IN_TURN}, retry: {{resend_after_sent: true}}"
    async with upstream_with(well, cutting, settings=settings) as (upstream, (good, _)):
        sent_on = bytearray()

        async def pass_on(answer: Answer) -> None:
            async for chunk in answer.chunks_for_client():
                sent_on.extend(chunk)

        request = BackendRequest("POST", "/x?id=1", [], Body(whole=b"body"))
        with pytest.raises(GatewayError) as caught:
            await upstream.call(request, [], pass_on, is_settled=lambda: bool(sent_on))
        assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED
        assert sent_on == b"part"
        assert good.executed == {}


async def test_a_redirect_that_is_refused_is_no_failure_of_the_endpoint() -> None:
    settings = f"{IN_TURN}, retry: {{resend_after_sent: true}}, eject: {{failures: 1}}"
    async with upstream_with(well, answering("302 Found"), settings=settings) as (upstream, (good, bad)):
        with pytest.raises(GatewayError):
            await call(upstream, read=read_as_malformed)
        assert (bad.executed, good.executed) == ({"1": 1}, {})
        assert not any(state.ejection.is_ejected for state in upstream.endpoints.states)


async def test_attempts_count_the_first_and_go_to_an_endpoint_each() -> None:
    settings = f"{IN_TURN}, retry: {{attempts: 3, resend_after_sent: true}}"
    async with upstream_with(*[closing] * 5, settings=settings) as (upstream, backends):
        attempts: list[Attempt] = []
        with pytest.raises(GatewayError):
            await call(upstream, attempts=attempts)
        assert len({attempt.endpoint for attempt in attempts}) == len(attempts) == 3
        assert [attempt.repeated_for for attempt in attempts] == ["upstream_closed", "upstream_closed", ""]
        assert sum((backend.executed for backend in backends), Counter()) == {"1": 3}


async def test_requests_of_64_mebibytes_are_made_again_for_another_endpoint() -> None:
    large = Streamed(64 * 1024 * 1024 + 12345)
    digest = sha256()
    for piece in large.pieces():
        digest.update(piece)
    settings = "balance: round_robin, retry: {resend_after_sent: true}"
    async with upstream_with(well, closing, settings=settings) as (upstream, (_, bad)):
        attempts: list[Attempt] = []
        answer = await call(upstream, body=large.body, attempts=attempts)
        assert answer == f"1 {digest.hexdigest()}".encode()
        assert sha256(bad.seen[0].body).digest() == digest.digest()
        assert large.n_opened == 2
        assert [attempt.request_bytes for attempt in attempts] == [64 * 1024 * 1024 + 12345] * 2


async def test_an_upload_of_which_nothing_was_taken_goes_to_another_endpoint() -> None:
    upload = Streamed(1_000_000, can_be_repeated=False)
    with nobody() as dead:
        async with counting(well) as backend:
            upstream = upstream_of([backend.url, dead], IN_TURN)
            attempts: list[Attempt] = []
            assert await call(upstream, body=upload.body, attempts=attempts)
            assert codes(attempts) == ["unreachable", "200"]
            assert upload.n_opened == 1
            assert backend.seen[0].body == b"".join(upload.pieces())
            await upstream.close()


@EACH_FAILURE
async def test_an_upload_that_was_taken_cannot_be_sent_again(behave: Behaviour, kind: ErrorKind, code: str) -> None:
    upload = Streamed(100_000, can_be_repeated=False)
    settings = f"{IN_TURN}, retry: {{resend_after_sent: true}}"
    async with upstream_with(well, behave, settings=settings) as (upstream, (good, bad)):
        attempts: list[Attempt] = []
        with pytest.raises(GatewayError) as caught:
            await call(upstream, body=upload.body, attempts=attempts)
        assert (caught.value.kind, codes(attempts), upload.n_opened) == (kind, [code], 1)
        assert (bad.executed, good.executed) == ({"1": 1}, {})


async def test_an_endpoint_that_does_not_accept_is_given_up_after_connect_and_another_gets_the_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.socket() as first, socket.socket() as second:
        for waiting in (first, second):  # more than the kernel keeps for a listener that does not accept
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        async with counting(well) as backend:
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            settings = "balance: round_robin, timeouts: {connect: 100ms}, eject: {failures: 2}"
            upstream = upstream_of([backend.url, url], settings)
            attempts: list[Attempt] = []
            for number in range(6):
                assert await call(upstream, number, attempts=attempts) == own_answer(str(number), b"body")
            assert Counter(codes(attempts)) == {"unreachable": 2, "200": 6}
            (ejected,) = caplog.messages
            assert "timeouts.connect" in ejected
            await upstream.close()


async def test_one_endpoint_that_restarts_is_waited_for() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # refuses connections until it listens
        upstream = upstream_of([f"http://127.0.0.1:{listener.getsockname()[1]}"])
        attempts: list[Attempt] = []
        asked = asyncio.ensure_future(call(upstream, attempts=attempts))
        while not (attempts and attempts[0].repeated_for):
            await asyncio.sleep(0)
        server = await asyncio.start_server(serve_ok, sock=listener)
        async with server:
            assert await asked == b"ok"
            assert codes(attempts) == ["unreachable", "200"]
            await upstream.close()


async def serve_ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    writer.close()


async def test_other_endpoints_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleep(delay_s: float) -> None:
        raise AssertionError(f"slept {delay_s} s")

    with nobody() as dead, nobody() as also_dead:
        async with counting(well) as backend:
            upstream = upstream_of([backend.url, dead, also_dead], f"{IN_TURN}, retry: {{attempts: 3}}")
            monkeypatch.setattr("gateway.backend.upstream.asyncio.sleep", sleep)
            assert await call(upstream) == own_answer("1", b"body")
            monkeypatch.undo()
            await upstream.close()


async def test_without_a_budget_there_are_no_retries() -> None:
    with nobody() as dead:
        async with counting(well) as backend:
            upstream = upstream_of([backend.url, dead], f"{IN_TURN}, retry: {{budget: 0}}")
            with pytest.raises(GatewayError) as caught:
                await call(upstream)
            assert caught.value.kind is ErrorKind.UNREACHABLE
            await upstream.close()


async def test_retries_end_when_the_budget_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    most = RETRIES_PER_S * BUDGET_S
    with nobody() as dead:
        async with counting(well) as backend:
            # never ejected, so that every second request fails at first
            upstream = upstream_of([backend.url, dead], f"{IN_TURN}, retry: {{budget: 0.01}}, eject: {{failures: 0}}")
            started = loop.time()
            monkeypatch.setattr(loop, "time", lambda: started)
            statuses = [await outcome(upstream, number) for number in range(2 * most + 20)]
            assert statuses.count("unreachable") == 10
            assert statuses.index("unreachable") == 2 * most
            # ten seconds later there is a new one
            monkeypatch.setattr(loop, "time", lambda: started + BUDGET_S)
            assert [await outcome(upstream, number) for number in range(10)] == ["ok"] * 10
            monkeypatch.undo()
            await upstream.close()


async def outcome(upstream: Upstream, number: int) -> str:
    try:
        await call(upstream, number)
    except GatewayError as error:
        return error.kind.label
    return "ok"


async def test_each_worker_holds_its_share_of_the_retries_that_are_always_allowed() -> None:
    config = parse("workers: 4\nbackends: {main: {endpoints: ['http://127.0.0.1:9']}}").share()
    upstream = Upstream(Plan(config, "test").backends["main"])
    n_retries = 0
    while upstream.retry.is_within_budget(0, n_retries, config.workers):
        n_retries += 1
    assert n_retries == 8  # of 30 in ten seconds, rounded up
    await upstream.close()


@pytest.mark.parametrize("behave", [hanging, falling_silent])
async def test_total_ends_all_attempts_together(behave: Behaviour) -> None:
    settings = (
        "timeouts: {first_byte: 200ms, idle: 200ms, total: 500ms}, "
        "retry: {attempts: 100, resend_after_sent: true}, eject: {failures: 0}"
    )
    async with upstream_with(behave, behave, settings=settings) as (upstream, _):
        attempts: list[Attempt] = []
        with pytest.raises(GatewayError) as caught:
            await call(upstream, attempts=attempts)
        assert caught.value.kind is ErrorKind.TIMEOUT
        assert 2 <= len(attempts) <= 3


async def test_the_wait_before_an_attempt_ends_with_total() -> None:
    with nobody() as dead:
        upstream = upstream_of([dead], "timeouts: {total: 50ms}, retry: {attempts: 100}")
        attempts: list[Attempt] = []
        with pytest.raises(GatewayError) as caught:
            await call(upstream, attempts=attempts)
        # waiting 100 ms would be too long, so nobody does
        assert (caught.value.kind, codes(attempts)) == (ErrorKind.UNREACHABLE, ["unreachable"])
        await upstream.close()


async def test_another_attempt_keeps_the_place_of_the_first_although_others_wait() -> None:
    gate = Gate()
    settings = "balance: round_robin, max_connections: 1, queue: {length: 1}"
    with nobody() as dead:
        async with counting(gate) as backend:
            upstream = upstream_of([dead, backend.url], settings)
            first = asyncio.ensure_future(call(upstream, 1))
            await gate.until_waiting(1)
            attempts: list[Attempt] = []
            second = asyncio.ensure_future(call(upstream, 2, attempts=attempts))
            while not attempts:
                await asyncio.sleep(0)
            gate.open.set()
            assert await first == own_answer("1", b"body")
            third = asyncio.ensure_future(call(upstream, 3))  # waits, and would get the place if the second left it
            assert await second == own_answer("2", b"body")
            assert codes(attempts) == ["unreachable", "200"]
            assert await third == own_answer("3", b"body")
            assert [seen.id for seen in backend.seen] == ["1", "2", "3"]
            assert_nothing_is_left(upstream)
            await upstream.close()


@pytest.mark.parametrize("n_turns", range(0, 60, 2))
async def test_a_client_that_leaves_between_attempts_leaves_nothing_behind(n_turns: int) -> None:
    settings = f"{IN_TURN}, retry: {{attempts: 4, resend_after_sent: true}}, max_connections: 1"
    async with upstream_with(well, closing, closing, resetting, settings=settings) as (upstream, _):
        asked = asyncio.ensure_future(call(upstream, body=Streamed(100).body))
        for _ in range(n_turns):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        assert_nothing_is_left(upstream)


class Broken:
    """An upload that its client breaks off after a first piece."""

    async def pieces(self) -> AsyncIterator[bytes]:
        yield b"begin"
        raise GatewayError(ErrorKind.MALFORMED_REQUEST, "the upload is broken")


async def test_what_the_client_causes_is_neither_tried_again_nor_counted_against_the_endpoint() -> None:
    settings = f"{IN_TURN}, retry: {{resend_after_sent: true}}, eject: {{failures: 1}}"
    async with upstream_with(well, well, settings=settings) as (upstream, (one, other)):
        attempts: list[Attempt] = []
        with pytest.raises(GatewayError, match="the upload is broken"):
            await call(upstream, body=Body(open=Broken().pieces), attempts=attempts)
        assert len(attempts) == 1

        async def read(answer: Answer) -> bytes:
            raise ConnectionResetError  # the client left while its reply was written

        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                await call(upstream, read=read, attempts=attempts)
        assert len(attempts) == 3
        assert not any(state.ejection.is_ejected for state in upstream.endpoints.states)
        assert one.executed + other.executed == {"1": 2}


async def test_a_backend_that_tires_of_a_slow_client_has_not_failed() -> None:
    go_on = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"begin"
        await go_on.wait()

    backend = Backend()
    upstream = upstream_of([backend.url, "http://127.0.0.1:9"], f"{IN_TURN}, eject: {{failures: 1}}")
    upstream.endpoints.states[1].is_up = False
    asked = asyncio.ensure_future(call(upstream, body=Body(open=pieces, can_be_repeated=False)))
    connection = await backend.accept()
    await asyncio.get_running_loop().sock_recv(connection, 65536)
    connection.close()
    with pytest.raises(GatewayError) as caught:
        await asked
    assert caught.value.kind is ErrorKind.UPSTREAM_CLOSED
    assert not upstream.endpoints.states[0].ejection.is_ejected
    await upstream.close()
    backend.listener.close()


async def test_running_out_of_descriptors_is_overload_and_no_failure_of_the_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start_connection(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    async with upstream_with(well, well, settings="eject: {failures: 1}") as (upstream, _):
        with monkeypatch.context() as full:
            full.setattr("gateway.backend.connections.aiohappyeyeballs.start_connection", start_connection)
            with pytest.raises(GatewayError, match="Too many open files") as caught:
                await call(upstream)
        assert (caught.value.kind, caught.value.sent) == (ErrorKind.OVERLOADED, False)
        assert not any(state.ejection.is_ejected for state in upstream.endpoints.states)
        await call(upstream)


async def test_nothing_is_executed_twice_and_every_answer_is_its_own_among_endpoints_that_fail() -> None:
    """Without resend_after_sent; most requests succeed, because what fails is ejected."""
    with nobody() as dead:
        async with (
            counting(well) as good,
            counting(well) as better,
            counting(resetting) as bad,
            counting(cutting) as worse,
        ):
            upstream = upstream_of([dead, bad.url, good.url, worse.url, better.url])
            outcomes: Counter[str] = Counter()

            async def client(first: int) -> None:
                for number in range(first, first + 100):
                    try:
                        answer = await call(upstream, number)
                    except GatewayError as error:
                        outcomes[error.kind.label] += 1
                    else:
                        assert answer == own_answer(str(number), b"body")
                        outcomes["ok"] += 1

            await asyncio.gather(*(client(1000 * number) for number in range(8)))
            executed = good.executed + better.executed + bad.executed + worse.executed
            assert len(executed) == 800
            assert set(executed.values()) == {1}
            # each of the two is ejected by its fifth failure; what was on its way then fails too
            assert outcomes["ok"] == 800 - outcomes["upstream_closed"] >= 800 - 2 * (5 + 8)
            assert set(outcomes) == {"ok", "upstream_closed"}
            assert_nothing_is_left(upstream)
            await upstream.close()
