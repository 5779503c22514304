"""Requests that go to the server together: each client its own rows, id and error, whatever the others do."""

import asyncio
import gc
import io
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from aiohttp import web
from multidict import CIMultiDict

from gateway.serving.batching import MAX_UNBATCHED, Member
from tests.conftest import HEADER_LENGTH, Client, Connection, Reply, access_lines, lying, running, tensor
from tests.system.scripted import total

ON = "batch: {max_size: 8, max_delay: 60s}"
"""So long that no test depends on it, but for those that say `SOON`."""

SOON = "batch: {max_size: 8, max_delay: 50ms}"

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def doubled(request: dict[str, Any]) -> dict[str, Any]:
    """An answer with two times every input, as a model that takes any number of rows."""
    outputs = []
    for each in request["inputs"]:
        data = [value * 2 for value in each["data"]]
        outputs.append({"name": each["name"], "datatype": each["datatype"], "shape": each["shape"], "data": data})
    answer = {"model_name": "m", "outputs": outputs}
    return answer | ({"id": request["id"]} if "id" in request else {})


class Server:
    """A V2 server that computes one request after the other, and says what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.heads: list[dict[str, str]] = []
        self.headers: list[tuple[str, str]] = []
        """What its answers have in their heads beside what is needed."""
        self.may_go = asyncio.Event()
        self.may_go.set()
        self._turn = asyncio.Lock()

    @property
    def rows(self) -> list[int]:
        """How many rows each request had."""
        return [request["inputs"][0]["shape"][0] for request in self.asked]

    async def serve(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.heads.append(dict(request.headers))
        async with self._turn:
            await self.may_go.wait()
            try:
                return web.json_response(self.answer(body), headers=CIMultiDict(self.headers))
            except ValueError as error:
                return web.json_response({"error": str(error)}, status=400)


@asynccontextmanager
async def serving(answer: Answer = doubled) -> AsyncIterator[Server]:
    """A server that answers as *answer* says."""
    server = Server(answer)
    application = web.Application(client_max_size=2**30)
    application.router.add_post("/{path:.*}", server.serve)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.may_go.set()
        await runner.cleanup()


async def ask(client: Client, value: float, rows: int = 1, **more: Any) -> Reply:
    """An inference of *rows* rows of four numbers, of which each is *value*."""
    array = np.full((rows, 4), value, "f4")
    headers = more.pop("headers", {})
    path = more.pop("path", "/v2/models/m/infer")
    header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}} | more
    return await post(client, header, array.tobytes(), path=path, headers=headers)


async def post(
    client: Client, header: dict[str, Any], blob: bytes, path: str = "/v2/models/m/infer", **more: Any
) -> Reply:
    """An inference of one input."""
    text = json.dumps(header).encode()
    headers = {HEADER_LENGTH: str(len(text)), **more.get("headers", {})}
    return await client.request("POST", path, data=io.BytesIO(text + blob), headers=headers)


async def together(server: Server, client: Client, *asked: Callable[[], Awaitable[Reply]]) -> list[Reply]:
    """What *asked* get that come while the server is busy with another request, which is the first that it gets."""
    server.may_go.clear()
    n_before = len(server.asked)
    first = asyncio.ensure_future(asked[0]())
    while len(server.asked) == n_before:
        await asyncio.sleep(0.001)
    others = [asyncio.ensure_future(each()) for each in asked[1:]]
    await arrived(client, len(asked))
    server.may_go.set()
    return list(await asyncio.gather(first, *others))


async def waiting_behind_one(server: Server, client: Client) -> tuple[list[asyncio.Task[Reply]], Any, list[Any]]:
    """Four that ask: one that the server has, and three that wait for it; the lane, and what it has of the three."""
    server.may_go.clear()
    asked = [asyncio.create_task(ask(client, value)) for value in range(4)]
    await arrived(client, 4)
    (lane,) = client.gateway.gateway.serving.lanes.values()
    (waiting,) = lane._waiting.values()
    return asked, lane, waiting


async def arrived(client: Client, n_requests: int) -> None:
    """Wait until so many requests have come to the gateway, with their bodies."""
    async with asyncio.timeout(30):
        while client.gateway.gateway.in_flight < n_requests:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)


def values(reply: Reply) -> list[float]:
    """The numbers that *reply* holds."""
    assert reply.status == 200, reply.body
    return list(map(float, np.frombuffer(reply.binary, "<f4")))


@pytest.fixture
async def both() -> AsyncIterator[tuple[Server, Client]]:
    """A server, and a client of a gateway that batches in front of it."""
    async with serving() as server, running(server.url, backend=ON) as client:
        yield server, client


@pytest.fixture
async def soon() -> AsyncIterator[tuple[Server, Client]]:
    """The same, where no request waits for more than 50 ms."""
    async with serving() as server, running(server.url, backend=SOON) as client:
        yield server, client


Both = tuple[Server, Client]


async def test_what_comes_while_the_server_is_busy_goes_together(both: Both) -> None:
    server, client = both
    replies = await together(
        server, client, *[lambda value=value: ask(client, value, rows=value % 2 + 1) for value in range(5)]
    )
    assert server.rows == [1, 6]
    for value, reply in enumerate(replies):
        assert reply.json["outputs"][0]["shape"] == [value % 2 + 1, 4]
        assert values(reply) == [value * 2.0] * 4 * (value % 2 + 1)


async def test_a_request_that_is_alone_does_not_wait() -> None:
    async with serving() as server, running(server.url, backend="batch: {max_size: 8, max_delay: 50s}") as client:
        for value in range(3):
            assert values(await asyncio.wait_for(ask(client, value), 10)) == [value * 2.0] * 4
        assert server.rows == [1, 1, 1]


async def test_no_more_rows_than_max_size(both: Both) -> None:
    server, client = both
    replies = await together(server, client, *[lambda value=value: ask(client, value, rows=3) for value in range(8)])
    assert [values(reply)[0] for reply in replies] == [value * 2.0 for value in range(8)]
    assert max(server.rows) == 6
    await ask(client, 1, rows=9)
    assert server.rows[-1] == 9  # it has company in nothing


async def test_each_has_its_own_id(both: Both) -> None:
    server, client = both
    asked = [
        lambda: ask(client, 0),
        lambda: ask(client, 1, id="a"),
        lambda: ask(client, 2),
        lambda: ask(client, 3, id=""),
    ]
    replies = await together(server, client, *asked)
    assert server.rows == [1, 3]
    assert [reply.json.get("id") for reply in replies] == [None, "a", None, None]  # an empty one is none
    assert server.asked[1]["id"] not in ("a", "")  # one of the gateway's, by which it knows the answer


DIFFERENT: dict[str, dict[str, Any]] = {
    "parameters": {"parameters": {"binary_data_output": True, "temperature": 1}},
    "outputs": {"outputs": [{"name": "x", "parameters": {"binary_data": True}}]},
    "a header": {"headers": {"Authorization": "Bearer b"}},
    "model": {"path": "/v2/models/n/infer"},
    "version": {"path": "/v2/models/m/versions/1/infer"},
    "query": {"path": "/v2/models/m/infer?a=b"},
}


@pytest.mark.parametrize("what", DIFFERENT)
async def test_those_that_differ_never_go_together(both: Both, what: str) -> None:
    server, client = both
    other = DIFFERENT[what]
    asked = [lambda: ask(client, 0), lambda: ask(client, 1), lambda: ask(client, 2, **other), lambda: ask(client, 3)]
    replies = await together(server, client, *asked)
    assert sorted(server.rows) == [1, 1, 2]
    assert [values(reply)[0] for reply in replies] == [0, 2, 4, 6]


async def test_inner_shapes_and_datatypes_never_go_together(both: Both) -> None:
    server, client = both

    async def other(shape: tuple[int, ...], datatype: str, dtype: str) -> Reply:
        array = np.ones(shape, dtype)
        header = {"inputs": [tensor("x", array, datatype)], "parameters": {"binary_data_output": True}}
        return await post(client, header, array.tobytes())

    asked = [
        lambda: ask(client, 0),
        lambda: ask(client, 1),
        lambda: other((1, 2, 2), "FP32", "f4"),
        lambda: other((1, 4), "INT32", "i4"),
        lambda: ask(client, 1),
    ]
    replies = await together(server, client, *asked)
    assert {reply.status for reply in replies} == {200}
    assert sorted(server.rows) == [1, 1, 1, 2]
    assert replies[2].json["outputs"][0]["shape"] == [1, 2, 2]
    assert np.frombuffer(replies[3].binary, "<i4").tolist() == [2] * 4


async def test_bytes_are_cut_between_elements(both: Both) -> None:
    server, client = both
    server.answer = lambda request: {"model_name": "m", "outputs": request["inputs"]}

    async def words(*texts: bytes) -> Reply:
        blob = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        entry: dict[str, Any] = {"name": "t", "datatype": "BYTES", "shape": [len(texts) // 2, 2]}
        entry["parameters"] = {"binary_data_size": len(blob)}
        header = {"inputs": [entry], "parameters": {"binary_data_output": True}}
        reply = await post(client, header, blob)
        assert reply.binary == blob
        return reply

    many = [bytes([97 + n % 26]) * (n % 50) for n in range(8)]
    await together(
        server, client, lambda: words(b"", b"a"), lambda: words(b"x" * 1_100_000, b"", b"y", b"z"), lambda: words(*many)
    )
    assert server.rows == [1, 6]


async def test_a_poisoned_request_alone_gets_its_refusal(both: Both) -> None:
    server, client = both

    def refuse(request: dict[str, Any]) -> dict[str, Any]:
        if 13.0 in request["inputs"][0]["data"]:
            raise ValueError("unlucky")
        return doubled(request)

    server.answer = refuse
    replies = await together(server, client, *[lambda value=value: ask(client, value) for value in (0, 1, 13, 3)])
    assert server.rows == [1, 3, 1, 1, 1]
    assert [reply.status for reply in replies] == [200, 200, 400, 200]
    assert replies[2].error == "unlucky"


async def test_what_the_gateway_refuses_harms_no_other(both: Both) -> None:
    server, client = both
    nan = float("nan")
    replies = await together(server, client, *[lambda value=value: ask(client, value) for value in (0, 1, nan, 3)])
    assert [reply.status for reply in replies] == [200, 200, 400, 200]
    assert "nonfinite" in replies[2].error
    assert sorted(server.rows) == [1, 1, 1]


@pytest.mark.parametrize("shape", [[1, 4], [2, 6], [4, 4], []])
async def test_a_model_that_does_not_batch_is_batched_no_more(
    caplog: pytest.LogCaptureFixture, shape: list[int]
) -> None:
    """Outputs whose first dimension is not the sum: one by one from then on, which is said once."""

    def single(request: dict[str, Any]) -> dict[str, Any]:
        answer = doubled(request)
        if request["inputs"][0]["shape"][0] > 1:
            answer["outputs"][0]["shape"] = shape
            answer["outputs"][0]["data"] = [0.0] * int(np.prod(shape))
        return answer

    async with serving(single) as server, running(server.url, backend=ON) as client:
        for _ in range(2):
            replies = await together(server, client, *[lambda value=value: ask(client, value) for value in range(4)])
            assert [values(reply)[0] for reply in replies] == [0, 2, 4, 6]
        assert server.rows.count(3) == 1
        assert server.rows.count(1) == len(server.rows) - 1
    assert len([line for line in caplog.messages if "batched no more" in line]) == 1


async def test_large_requests_go_alone_after_a_batch_whose_answer_could_not_be_divided() -> None:
    """The batch was let go when its answer began; what the clients sent was not."""

    def single(request: dict[str, Any]) -> dict[str, Any]:
        answer = doubled(request)
        if request["inputs"][0]["shape"][0] > 5000:
            answer["outputs"][0]["shape"] = [len(answer["outputs"][0]["data"])]
        return answer

    batch = "batch: {max_size: 100000, max_delay: 60s}"
    async with serving(single) as server, running(server.url, backend=batch) as client:
        asked = [lambda value=value: ask(client, value, rows=5000) for value in range(4)]
        replies = await together(server, client, *asked)
        assert [set(values(reply)) for reply in replies] == [{0.0}, {2.0}, {4.0}, {6.0}]
        assert server.rows == [5000, 15000, 5000, 5000, 5000]
        assert client.gateway.gateway.admission.reserved_bytes == 0


def with_classes(request: dict[str, Any]) -> dict[str, Any]:
    """An answer with four names of classes beside its rows, unless the request names its outputs."""
    classes = {"name": "classes", "datatype": "BYTES", "shape": [4], "data": ["cat", "dog", "cow", "bee"]}
    answer = doubled(request)
    answer["outputs"] += [] if "outputs" in request else [classes]
    return answer


CLASSES = b"".join(len(name).to_bytes(4, "little") + name for name in (b"cat", b"dog", b"cow", b"bee"))


@pytest.mark.parametrize("rows", [1, 2])
async def test_an_output_that_is_no_batch_is_told_by_a_request_alone(
    caplog: pytest.LogCaptureFixture, rows: int
) -> None:
    """Although it has four elements, as many as the two requests behind it have rows."""
    async with serving(with_classes) as server, running(server.url, backend=ON) as client:
        for _ in range(2):
            asked = [lambda n=n: ask(client, n, rows=n) for n in (rows, 2, 2)]
            replies = await together(server, client, *asked)
            assert {reply.status for reply in replies} == {200}
            assert {reply.binary.endswith(CLASSES) for reply in replies} == {True}
            assert [reply.json["outputs"][1]["shape"] for reply in replies] == [[4]] * 3
        assert server.rows == [rows, 2, 2] * 2
    (line,) = [line for line in caplog.messages if "batched no more" in line]
    assert f"output 'classes' has shape [4] in the answer to {min(rows, 2)} rows" in line


async def test_a_batch_whose_model_has_shown_meanwhile_that_it_does_not_batch() -> None:
    """Its answer has as many elements as rows, but that was chance."""
    async with serving(with_classes) as server, running(server.url, backend=SOON) as client:
        server.may_go.clear()
        asked = [asyncio.ensure_future(ask(client, n, rows=2)) for n in range(3)]
        while len(server.asked) < 2:
            await asyncio.sleep(0.001)
        assert server.rows == [2, 4]
        unbatched = client.gateway.gateway.serving.unbatched
        server.may_go.set()
        replies = await asyncio.gather(*asked)
        assert len(unbatched) == 1
    assert {reply.binary.endswith(CLASSES) for reply in replies} == {True}
    assert server.rows == [2, 4, 2, 2]


async def test_requests_whose_inputs_differ_in_rows_say_nothing_of_their_model(both: Both) -> None:
    server, client = both

    async def mixed() -> Reply:
        inputs = [tensor("x", np.ones((2, 4), "f4"), "FP32"), tensor("k", np.ones(1, "f4"), "FP32")]
        header = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        return await post(client, header, np.ones(9, "f4").tobytes())

    assert (await mixed()).status == 200
    await together(server, client, *[lambda value=value: ask(client, value) for value in range(3)])
    assert server.rows == [2, 1, 2]


def poisoned(request: dict[str, Any]) -> dict[str, Any]:
    """An answer that cannot be read if one of its rows is 13."""
    answer = doubled(request)
    if 26.0 in answer["outputs"][0]["data"]:
        answer["outputs"][0]["data"][-1] = "x"
    return answer


async def test_one_request_whose_answer_cannot_be_read_does_not_end_batching(caplog: pytest.LogCaptureFixture) -> None:
    """Else one client could end it for all others: by an input for which the model overflows."""
    async with serving(poisoned) as server, running(server.url, backend=ON) as client:
        for _ in range(2):
            server.asked.clear()
            replies = await together(
                server, client, *[lambda value=value: ask(client, value) for value in (0, 1, 13, 3)]
            )
            assert [reply.status for reply in replies] == [200, 200, 502, 200]
            assert [values(replies[number])[0] for number in (0, 1, 3)] == [0, 2, 6]
            assert server.rows == [1, 3, 1, 1, 1]
    assert not [line for line in caplog.messages if "batched no more" in line]


async def test_a_model_whose_batches_alone_cannot_be_read_is_batched_no_more(caplog: pytest.LogCaptureFixture) -> None:
    def single(request: dict[str, Any]) -> dict[str, Any]:
        answer = doubled(request)
        if request["inputs"][0]["shape"][0] > 1:
            del answer["outputs"][0]["data"][4:]
        return answer

    async with serving(single) as server, running(server.url, backend=ON) as client:
        for _ in range(3):
            replies = await together(server, client, *[lambda value=value: ask(client, value) for value in range(4)])
            assert [values(reply)[0] for reply in replies] == [0, 2, 4, 6]
        assert server.rows.count(3) == 1
    assert len([line for line in caplog.messages if "batched no more" in line]) == 1


FIXED = f"""
{ON}
dialect: template
models:
  m:
    inputs: {{x: {{datatype: FP32, shape: [1, 4]}}}}
    outputs: {{y: {{datatype: FP32, shape: [1, 4]}}}}
    request: {{path: /v2/models/m/infer, body: {{inputs: [{{shape: {{$shape: x}}, data: $x}}]}}}}
    answer: {{y: "$.outputs[0].data"}}
"""


async def test_a_model_whose_file_states_another_number_of_rows_is_batched_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two requests of one row would be refused as one of two rows: each goes alone, and none waits for others."""

    def one_row(request: dict[str, Any]) -> dict[str, Any]:
        return {"outputs": [{"data": [[value * 2 for value in row] for row in request["inputs"][0]["data"]]}]}

    async with serving(one_row) as server, running(server.url, backend=FIXED) as client:
        for _ in range(2):
            replies = await together(server, client, *[lambda value=value: ask(client, value) for value in range(4)])
            assert [values(reply)[0] for reply in replies] == [0, 2, 4, 6]
        assert server.rows == [1] * 8
    (line,) = [line for line in caplog.messages if "batched no more" in line]
    assert "by `models` not every first dimension of its inputs and outputs is that of the rows" in line


async def test_two_batches_at_once_that_cannot_be_divided(caplog: pytest.LogCaptureFixture) -> None:
    def single(request: dict[str, Any]) -> dict[str, Any]:
        return doubled(request) | ({"strange": 1} if request["inputs"][0]["shape"][0] > 1 else {})

    async with serving(single) as server, running(server.url, backend=ON) as client:
        other = DIFFERENT["parameters"]
        asked = [lambda value=value: ask(client, value, **(other if value > 2 else {})) for value in range(5)]
        replies = await together(server, client, *asked)
        assert [values(reply)[0] for reply in replies] == [0, 2, 4, 6, 8]
        assert sorted(server.rows) == [1, 1, 1, 1, 1, 2, 2]
    assert len([line for line in caplog.messages if "batched no more" in line]) == 1


async def test_a_model_that_does_not_batch_is_one_under_all_its_paths(caplog: pytest.LogCaptureFixture) -> None:
    """However often it is asked, under whatever versions and spellings: others are batched all the same."""

    def single(request: dict[str, Any]) -> dict[str, Any]:
        answer = doubled(request)
        answer["outputs"][0]["shape"] = [1, len(answer["outputs"][0]["data"])]
        return answer

    paths = ["/v2/models/m/infer", "/v2/models/%6d/infer", "/v2/models/m/versions/1/infer", "/v2/models/m/infer?a=b"]
    async with serving(single) as server, running(server.url, backend=ON) as client:
        for path in paths:
            asked = [lambda value=value, path=path: ask(client, value, path=path) for value in range(3)]
            replies = await together(server, client, *asked)
            assert [values(reply)[0] for reply in replies] == [0, 2, 4]
        assert sorted(server.rows) == [1] * 12 + [2]
        assert client.gateway.gateway.serving.lanes == {}
        server.answer = doubled
        other = [lambda: ask(client, 1, path="/v2/models/n/infer")] * 3
        await together(server, client, *other)
        assert server.rows[-1] == 2
    assert len([line for line in caplog.messages if "batched no more" in line]) == 1


async def test_a_fault_of_the_gateway_itself_is_told_to_all_of_a_batch(
    both: Both, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next batch is one again: nothing is executed twice for it, and nothing is stuck."""

    def breaks(*_: object) -> None:
        raise KeyError("why")

    server, client = both
    with monkeypatch.context() as patched:
        patched.setattr("gateway.serving.batching.divided", breaks)
        replies = await together(server, client, *[lambda value=value: ask(client, value) for value in range(3)])
    assert [reply.status for reply in replies] == [200, 500, 500]
    assert server.rows == [1, 2]
    assert "a batch of 2 requests failed" in caplog.messages
    replies = await together(server, client, *[lambda value=value: ask(client, value) for value in range(3)])
    assert [values(reply)[0] for reply in replies] == [0, 2, 4]
    assert server.rows == [1, 2, 1, 2]
    assert client.gateway.gateway.serving.lanes == {}


async def test_only_so_many_models_that_do_not_batch_are_remembered(both: Both) -> None:
    """Clients may make up names, and servers that answer under any of them exist."""
    server, client = both
    unbatched = client.gateway.gateway.serving.unbatched
    unbatched.update({("main", f"made-up-{number}"): None for number in range(MAX_UNBATCHED)})
    server.answer = lambda request: doubled(request) | {"strange": 1}
    await together(server, client, *[lambda value=value: ask(client, value) for value in range(3)])
    assert server.rows == [1, 2, 1, 1]
    assert len(unbatched) == MAX_UNBATCHED
    assert ("main", "made-up-0") not in unbatched
    assert ("main", "m") in unbatched


async def test_cookies_are_given_to_nobody_where_several_would_get_them(both: Both) -> None:
    """A session belongs to one client. What else the answer's head says is for all."""
    server, client = both
    server.headers = [("Set-Cookie", "session=1"), ("X-Node", "7"), ("set-cookie", "b=2")]
    replies = await together(server, client, *[lambda value=value: ask(client, value) for value in range(3)])
    assert server.rows == [1, 2]
    assert [reply.headers.getall("Set-Cookie", []) for reply in replies] == [["session=1", "b=2"], [], []]
    assert [reply.headers.getall("X-Node") for reply in replies] == [["7"]] * 3
    server.headers = server.headers[:1]
    replies = await together(server, client, *[lambda value=value: ask(client, value) for value in range(3)])
    assert [reply.headers.getall("Set-Cookie", []) for reply in replies] == [["session=1"], [], []]


async def test_a_client_that_leaves_takes_only_its_rows(both: Both) -> None:
    server, client = both
    server.may_go.clear()
    asked = [asyncio.ensure_future(ask(client, 0))]
    while not server.asked:
        await asyncio.sleep(0.001)
    asked += [asyncio.ensure_future(ask(client, value)) for value in range(1, 4)]
    await arrived(client, 4)
    asked[1].cancel()
    while client.gateway.gateway.in_flight > 3:
        await asyncio.sleep(0.001)
    server.may_go.set()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert [values(reply)[0] for reply in done if isinstance(reply, Reply)] == [0, 4, 6]
    assert server.rows == [1, 2]
    assert client.gateway.gateway.admission.reserved_bytes == 0


async def test_nothing_is_kept_of_clients_that_leave_while_they_wait(both: Both) -> None:
    server, client = both
    asked, _, waiting = await waiting_behind_one(server, client)
    number = int(server.asked[0]["inputs"][0]["data"][0])
    first = asked.pop(number)
    for each in asked:
        each.cancel()
    while client.gateway.gateway.in_flight > 1:
        await asyncio.sleep(0.001)
    assert waiting == []
    server.may_go.set()
    assert values(await first) == [2.0 * number] * 4
    assert client.gateway.gateway.serving.lanes == {}


async def test_clients_that_leave_while_their_batch_is_computed(soon: Both) -> None:
    server, client = soon
    server.may_go.clear()
    asked = [asyncio.ensure_future(ask(client, value)) for value in range(4)]
    while len(server.asked) < 2:  # the second goes when its first request has waited for 50 ms
        await asyncio.sleep(0.001)
    asked[1].cancel()
    await asyncio.sleep(0.02)
    server.may_go.set()
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert [values(reply)[0] for reply in done if isinstance(reply, Reply)] == [0, 4, 6]
    assert values(await ask(client, 5)) == [10.0] * 4
    samples = await client.metrics()
    assert total(samples, "upstream_requests_total") == len(server.asked) == 3


async def test_a_client_that_leaves_in_the_moment_in_which_its_batch_goes(both: Both) -> None:
    """Its request is cancelled, but it has not run since then, when the timer looks at who waits."""
    server, client = both
    asked, lane, waiting = await waiting_behind_one(server, client)
    other = [asyncio.ensure_future(ask(client, 4, **DIFFERENT["parameters"]))]
    await arrived(client, 5)
    for one in waiting[:2]:
        one.verdict.cancel()
    for kind in list(lane._waiting):
        lane._send(kind)
    server.may_go.set()
    done = await asyncio.gather(*asked, *other, return_exceptions=True)
    replies = [reply for reply in done if isinstance(reply, Reply) and reply.status == 200]
    assert len(replies) >= 3
    assert values(replies[-1]) == [8.0] * 4
    while client.gateway.gateway.in_flight:
        await asyncio.sleep(0.001)
    assert client.gateway.gateway.serving.lanes == {}
    assert client.gateway.gateway.admission.reserved_bytes == 0


async def test_a_part_is_in_memory_of_its_own_and_its_nonfinite_are_counted() -> None:
    """So that one client that reads slowly does not hold what the others got."""

    def with_nan(request: dict[str, Any]) -> dict[str, Any]:
        answer = doubled(request)
        answer["outputs"][0]["data"][-1] = None
        return answer

    async with serving(with_nan) as server, running(server.url, backend=f"{ON}\nnonfinite: as_null") as client:
        replies = await together(server, client, *[lambda value=value: ask(client, value) for value in range(4)])
        samples = await client.metrics()
    assert server.rows == [1, 3]
    assert [np.isnan(values(reply)).sum() for reply in replies].count(1) == 2
    found = [value for name, value in samples.items() if "nonfinite" in name and "response" in name]
    assert sum(found) == 2, samples


async def test_all_clients_of_a_batch_leave(soon: Both) -> None:
    server, client = soon
    server.may_go.clear()
    asked = [asyncio.ensure_future(ask(client, value)) for value in range(4)]
    while len(server.asked) < 2:
        await asyncio.sleep(0.001)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    server.may_go.set()
    assert values(await ask(client, 5)) == [10.0] * 4
    while client.gateway.gateway.in_flight:
        await asyncio.sleep(0.001)
    assert client.gateway.gateway.admission.reserved_bytes == 0
    assert client.gateway.gateway.serving.lanes == {}
    samples = await client.metrics()
    assert total(samples, "upstream_requests_total") == len(server.asked) == 3
    assert total(samples, "batch_rows_sum") == sum(server.rows) == 1 + 3 + 1


async def test_a_batch_that_is_served_leaves_nothing_for_the_garbage_collector(soon: Both) -> None:
    server, client = soon
    gc.collect()
    gc.disable()
    try:
        asked = [partial(ask, client, value) for value in range(4)]
        assert [reply.status for reply in await together(server, client, *asked)] == [200] * 4
        for _ in range(200):  # a timer holds them for `max_delay`
            if not any(isinstance(each, Member) for each in gc.get_objects()):
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("members of a batch are still there")
    finally:
        gc.enable()


async def test_paths_that_clients_make_up_are_not_kept(both: Both) -> None:
    _, client = both
    for number in range(5):
        await ask(client, 1, path=f"/v2/models/m-{number}/infer?a={number}")
        await ask(client, 1, rows=9, path=f"/v2/models/n-{number}/infer")
    assert client.gateway.gateway.serving.lanes == {}


async def test_nothing_of_a_client_crosses_for_others() -> None:
    """Behind a trusted proxy either, which names each client's address and gives each request a trace of its own."""
    names = [
        {
            "X-Request-Id": f"own-{n}",
            "traceparent": f"00-{n:032x}-{n:016x}-01",
            "X-Amzn-Trace-Id": f"Root=1-{n}",
            "X-Forwarded-For": f"10.0.0.{n}",
            "X-Real-IP": f"10.0.0.{n}",
            "Forwarded": f"for=10.0.0.{n};host=h",
        }
        for n in range(1, 4)
    ]
    trusted = "trusted_proxies: [127.0.0.1]\n"
    async with serving() as server, running(server.url, trusted, ON) as client:
        await together(server, client, *[lambda more=more: ask(client, 1, headers=more) for more in names])
    assert server.rows == [1, 2]
    head = {name.lower(): value for name, value in server.heads[1].items()}
    assert not {"traceparent", "x-amzn-trace-id", "x-forwarded-for", "x-real-ip"} & head.keys()
    assert head["forwarded"] == "host=h"
    assert not head["x-request-id"].startswith("own")


async def test_what_is_said_of_batches(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "gateway.access")
    async with serving() as batched, running(batched.url, "logging: {access: json}", ON) as client:
        await together(batched, client, *[lambda value=value: ask(client, value) for value in range(4)])
        samples = await client.metrics()
        async with client.session.get(f"{client.admin}/-/status") as response:
            (backend,) = (await response.json())["backends"]
    assert backend["rows_per_batch"] == 2
    assert 0.005 < backend["batch_wait_s"] < 10
    lines = [json.loads(line) for line in access_lines(caplog)]
    assert sorted(line["batch_rows"] for line in lines) == [1, 3, 3, 3]
    assert {line["batch_wait_seconds"] > 0.005 for line in lines if line["batch_rows"] == 3} == {True}
    label = '{backend="main",model="m"}'
    assert samples[f"tensor_gateway_batch_rows_count{label}"] == 2
    assert samples[f"tensor_gateway_batch_rows_sum{label}"] == 4
    assert samples[f"tensor_gateway_batch_wait_seconds_count{label}"] == 4
    sent = [value for name, value in samples.items() if name.startswith("tensor_gateway_upstream_requests_total")]
    assert sum(sent) == 2


async def test_clients_of_grpc_and_http_go_together() -> None:
    async with serving() as server, running(server.url, "grpc: 127.0.0.1:0\n", ON) as client:
        (url,) = client.gateway.grpc_urls
        async with triton.InferenceServerClient(url.rpartition("/")[2]) as channel:

            async def over_grpc(value: float) -> Any:
                tensor_in = triton.InferInput("x", [1, 4], "FP32")
                tensor_in.set_data_from_numpy(np.full((1, 4), value, "f4"))
                return await channel.infer("m", [tensor_in], request_id=f"id-{value}")

            server.may_go.clear()
            first = asyncio.ensure_future(over_grpc(0))
            while not server.asked:
                await asyncio.sleep(0.001)
            others = [asyncio.ensure_future(over_grpc(value)) for value in (1, 2, 3)]
            await arrived(client, 4)
            server.may_go.set()
            for value, result in enumerate(await asyncio.gather(first, *others)):
                assert result.as_numpy("x").tolist() == [[value * 2.0] * 4]
                assert result.get_response().id == f"id-{value}"
    assert server.rows == [1, 3]


TENSORFLOW = f"""{ON}
dialect: tensorflow
models:
  m:
    inputs: {{x: {{datatype: FP32, shape: [-1, 4]}}}}
    outputs: {{y: {{datatype: FP32, shape: [-1, 4]}}}}
    format: row
"""
TEMPLATE = f"""{ON}
dialect: template
models:
  m:
    inputs: {{x: {{datatype: FP32, shape: [-1, 4]}}}}
    outputs: {{y: {{datatype: FP32}}}}
    request: {{path: /predict, body: {{instances: $x}}}}
    answer: {{y: "$.predictions"}}
"""


MLFLOW = f"""{ON}
dialect: mlflow
models:
  m:
    inputs: {{x: {{datatype: FP32, shape: [-1, 4]}}}}
    outputs: {{y: {{datatype: FP32, shape: [-1, 4]}}}}
    format: inputs
"""


def rows_of(request: dict[str, Any]) -> list[list[float]]:
    """The rows that a request of another dialect has."""
    if "inputs" in request:
        return list(request["inputs"]["x"])
    return [each["x"] if isinstance(each, dict) else each for each in request["instances"]]


@pytest.mark.parametrize("backend", [TENSORFLOW, MLFLOW, TEMPLATE], ids=["tensorflow", "mlflow", "template"])
async def test_servers_of_other_dialects(backend: str) -> None:
    def predict(request: dict[str, Any]) -> dict[str, Any]:
        return {"predictions": [[value * 2 for value in row] for row in rows_of(request)]}

    async with serving(predict) as server, running(server.url, backend=backend) as client:
        replies = await together(
            server, client, *[lambda value=value: ask(client, value, rows=2) for value in range(4)]
        )
    assert [values(reply) for reply in replies] == [[value * 2.0] * 8 for value in range(4)]
    assert [len(rows_of(request)) for request in server.asked] == [2, 6]


@pytest.mark.parametrize(
    ("weights", "scores"), [('["m"]', '["n"]'), ("[2]", '["n"]'), ("[-1]", '["k"]'), ("[-1]", "[8]")]
)
async def test_inputs_whose_first_dimension_is_not_that_of_the_rows_go_alone(weights: str, scores: str) -> None:
    """They have as many items as there are rows by chance; of two clients together they would be one longer list."""

    def predict(request: dict[str, Any]) -> dict[str, Any]:
        (n_rows, total_weight) = len(request["x"]), sum(request["w"])
        return {"y": [row[0] * total_weight for row in request["x"]] if scores != "[8]" else [n_rows] * 8}

    backend = f"""{ON}
dialect: template
models:
  m:
    inputs: {{x: {{datatype: FP32, shape: ["n", 4]}}, w: {{datatype: FP32, shape: {weights}}}}}
    outputs: {{y: {{datatype: FP32, shape: {scores}}}}}
    request: {{path: /predict, body: {{x: $x, w: $w}}}}
    answer: {{y: "$.y"}}
"""

    async def both(value: float) -> Reply:
        x, w = np.full((2, 4), value, "f4"), np.full(2, value, "f4")
        inputs = [tensor("x", x, "FP32"), tensor("w", w, "FP32")]
        header = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        return await post(client, header, x.tobytes() + w.tobytes())

    async with serving(predict) as server, running(server.url, backend=backend) as client:
        replies = await together(server, client, *[lambda value=value: both(value) for value in range(4)])
    assert [values(reply) for reply in replies] == [
        [value * value * 2.0] * 2 if scores != "[8]" else [2] * 8 for value in range(4)
    ]
    assert [len(request["w"]) for request in server.asked] == [2] * 4


async def test_clients_with_other_tokens_never_go_together(tmp_path: Path) -> None:
    """Although the backend gets no token, and so nothing that differs."""
    tokens = {"one": "first-of-32-characters-at-least-x", "two": "other-of-32-characters-at-least-x"}
    (tmp_path / "tokens").write_text("".join(f"{name}: {token}\n" for name, token in tokens.items()))
    access = f"access: {{tokens_file: {tmp_path}/tokens}}\n"
    async with serving() as server, running(server.url, access, ON) as client:

        def by(name: str, value: float) -> Callable[[], Awaitable[Reply]]:
            return lambda: ask(client, value, headers={"Authorization": f"Bearer {tokens[name]}"})

        replies = await together(
            server, client, *[by(name, value) for value, name in enumerate(("one", "two", "one", "two"))]
        )
    assert [values(reply)[0] for reply in replies] == [0, 2, 4, 6]
    assert not any("Authorization" in head for head in server.heads)
    assert sorted(server.rows) == [1, 1, 2]


async def test_a_batch_whose_connection_dies_is_executed_once() -> None:
    """The server has read it, so nothing is sent again: each client gets the error."""
    asked = 0

    async def dies(connection: Connection) -> None:
        nonlocal asked
        await connection.read_request()
        asked += 1
        if asked == 1:
            await arrived(client, 4)
            await connection.answer(json.dumps(doubled(json.loads(connection.body))).encode())
        # else the connection is closed

    async with lying(dies) as liar, running(liar.url, backend=ON) as client:
        asks = [asyncio.ensure_future(ask(client, value)) for value in range(4)]
        replies = await asyncio.gather(*asks)
    assert sorted(reply.status for reply in replies) == [200, 502, 502, 502]
    assert asked == 2


async def test_what_takes_too_long_while_it_waits_for_others() -> None:
    never = asyncio.Event()

    async def hangs(connection: Connection) -> None:
        await connection.read_request()
        await never.wait()

    backend = f"{ON}\ntimeouts: {{total: 300ms}}"
    async with lying(hangs) as liar, running(liar.url, backend=backend) as client:
        replies = await asyncio.gather(*[ask(client, value) for value in range(4)])
        assert {reply.status for reply in replies} == {504}
        assert client.gateway.gateway.admission.reserved_bytes == 0
        never.set()


async def test_a_batch_that_takes_too_long_is_a_failure_of_its_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    """Although the time of its requests began before that of the batch, and ends before `first_byte`."""
    caplog.set_level("INFO", "gateway.access")
    backend = f"{ON}\ntimeouts: {{total: 500ms}}\nsticky: header:x-s\neject: {{failures: 1}}"
    async with (
        serving() as well,
        serving() as bad,
        running(f"{well.url}', '{bad.url}", "logging: {access: json}", backend) as client,
    ):

        def stuck_to(name: str, value: float = 0) -> Callable[[], Awaitable[Reply]]:
            return lambda: ask(client, value, headers={"x-s": name})

        names: dict[bool, str] = {}
        while len(names) < 2:
            n_before = len(well.asked)
            name = str(len(well.asked) + len(bad.asked))
            await stuck_to(name)()
            names[len(well.asked) > n_before] = name
        bad.may_go.clear()
        replies = await together(well, client, stuck_to(names[True]), *[stuck_to(names[False], n) for n in range(3)])
        assert [reply.status for reply in replies] == [200, 504, 504, 504]
        assert bad.rows[-1] == 3
        upstream = client.gateway.gateway.serving.upstreams["main"]
        assert [state.url for state in upstream.endpoints.states if state.ejection.is_ejected] == [bad.url]
        assert client.gateway.gateway.admission.reserved_bytes == 0
        assert client.gateway.gateway.serving.lanes == {}
        samples = await client.metrics()
    lines = [line for line in map(json.loads, access_lines(caplog)) if line["status"] == 504]
    assert [(line["endpoint"], line["attempts"], line["batch_rows"]) for line in lines] == [(bad.url, 1, 3)] * 3
    assert min(line["upstream_seconds"] for line in lines) > 0.1
    timeouts = [value for name, value in samples.items() if "upstream_requests" in name and 'code="timeout"' in name]
    assert sum(timeouts) == 1


@pytest.mark.parametrize("leaves", [False, True])
async def test_the_log_of_requests_whose_batch_goes_on_says_where(
    leaves: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of one whose client leaves, and of those that began later than the first, whose time the batch has."""
    caplog.set_level("INFO", "gateway.access")
    backend = f"{ON}\ntimeouts: {{total: 1s}}"
    async with serving() as server, running(server.url, "logging: {access: json}", backend) as client:
        await ask(client, 0)
        server.may_go.clear()
        asked = []
        for number in range(3):
            asked.append(asyncio.ensure_future(ask(client, number)))
            await arrived(client, number + 1)
            await asyncio.sleep(0.1)
        (lane,) = client.gateway.gateway.serving.lanes.values()
        (kind,) = lane._waiting
        lane._send(kind)
        while len(server.asked) < 3:
            await asyncio.sleep(0.001)
        if leaves:
            asked[-1].cancel()
        replies = await asyncio.gather(*asked, return_exceptions=True)
        assert [reply.status for reply in replies if isinstance(reply, Reply)] == [504] * (2 if leaves else 3)
        samples = await client.metrics()
    lines = [line for line in map(json.loads, access_lines(caplog)) if line["status"] != 200]
    assert sorted(line["status"] for line in lines) == [499 if leaves else 504, 504, 504]
    assert [(line["endpoint"], line["attempts"]) for line in lines] == [(server.url, 1)] * 3
    assert min(line["upstream_seconds"] for line in lines) > 0
    timeouts = [value for name, value in samples.items() if "upstream_requests" in name and 'code="timeout"' in name]
    assert sum(timeouts) == 2


async def test_a_batch_that_gets_no_connection_waits_once(caplog: pytest.LogCaptureFixture) -> None:
    """In the queue its requests have waited as long as they may: none of them waits there again, alone."""
    caplog.set_level("INFO", "gateway.access")
    backend = f"{SOON}\nmax_connections: 1\nqueue: {{length: 10, timeout: 300ms}}"
    async with serving() as server, running(server.url, "logging: {access: json}", backend) as client:
        await ask(client, 0)
        server.may_go.clear()
        first = asyncio.ensure_future(ask(client, 1))
        while len(server.asked) < 2:
            await asyncio.sleep(0.001)
        replies = await asyncio.gather(*[ask(client, value) for value in range(3)])
        server.may_go.set()
        await first
    assert {(reply.status, "queue.timeout" in reply.error) for reply in replies} == {(503, True)}
    lines = [json.loads(line) for line in access_lines(caplog)]
    refused = [line for line in lines if line["status"] == 503]
    assert [(line["attempts"], line["batch_rows"]) for line in refused] == [(1, 3)] * 3


async def test_a_batch_needs_no_room_beside_its_requests() -> None:
    """What clients have sent is let go when it is joined."""
    n_rows = 2304
    async with (
        serving() as server,
        running(
            server.url,
            "limits: {request_body: 40KiB, in_flight_bytes: 200KiB}\n",
            "batch: {max_size: 8000, max_delay: 60s}",
        ) as client,
    ):
        asked = [lambda value=value: ask(client, value, rows=n_rows) for value in range(3)]
        replies = await together(server, client, lambda: ask(client, 9), *asked)
        assert [values(reply)[-1] for reply in replies] == [18, 0, 2, 4]
        assert server.rows == [1, 3 * n_rows]
        assert client.gateway.gateway.admission.reserved_bytes == 0


async def test_what_clients_have_sent_is_let_go_when_it_is_joined(both: Both) -> None:
    server, client = both
    await ask(client, 0)
    asked, lane, waiting = await waiting_behind_one(server, client)
    sent = [one.body for one in waiting]
    lane._send(waiting[0].kind)
    while len(server.asked) < 3:
        await asyncio.sleep(0.001)
    for body in sent:
        with pytest.raises(ValueError, match="released"):
            body.tobytes()
    server.may_go.set()
    assert [values(reply)[0] for reply in await asyncio.gather(*asked)] == [0, 2, 4, 6]


async def test_compressed_and_vendor_framed_replies_stay_each_clients_own(both: Both) -> None:
    server, client = both
    array = np.ones((1, 4), "f4")
    text = json.dumps({"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}).encode()
    kind = f"application/vnd.sagemaker-triton.binary+json;json-header-size={len(text)}"

    async def vendor() -> Reply:
        body = io.BytesIO(text + array.tobytes())
        return await client.request("POST", "/v2/models/m/infer", data=body, headers={"Content-Type": kind})

    replies = await together(server, client, lambda: ask(client, 0), vendor, lambda: ask(client, 2))
    assert server.rows == [1, 2]
    assert (
        replies[1].headers["Content-Type"].startswith("application/vnd.sagemaker-triton.binary+json;json-header-size=")
    )
    assert replies[2].headers["Content-Type"] == "application/octet-stream"


async def test_a_model_has_its_own_limits_and_a_reload_begins_anew() -> None:
    backend = "models: {'big-*': {batch: {max_size: 8, max_delay: 60s}}}"
    async with serving() as server, running(server.url, backend=backend) as client:
        for model, rows in (("m", [1, 1, 1, 1]), ("big-1", [1, 3])):
            server.asked.clear()
            path = f"/v2/models/{model}/infer"
            await together(server, client, *[lambda path=path: ask(client, 1, path=path) for _ in range(4)])
            assert server.rows == rows


async def test_many_clients_for_a_while(both: Both) -> None:
    """Each gets its own numbers, whoever comes, goes and errs beside it."""
    server, client = both

    def refuse(request: dict[str, Any]) -> dict[str, Any]:
        if any(value == 13 for value in request["inputs"][0]["data"]):
            raise ValueError("unlucky")
        return doubled(request)

    server.answer = refuse
    dice = random.Random(5)

    async def one(number: int) -> None:
        for turn in range(10):
            value = float(number * 100 + turn)
            if dice.random() < 0.05:
                assert (await ask(client, 13)).status == 400
            elif dice.random() < 0.1:
                with suppress(TimeoutError):
                    await asyncio.wait_for(ask(client, value), 0.002)
            else:
                rows = dice.randrange(1, 10)
                reply = await ask(client, value, rows, id=str(value))
                assert values(reply) == [value * 2] * 4 * rows
                assert reply.json["id"] == str(value)

    await asyncio.gather(*map(one, range(40)))
    assert max(server.rows) <= 9
    while client.gateway.gateway.in_flight:
        await asyncio.sleep(0.001)
    assert client.gateway.gateway.admission.reserved_bytes == 0


async def test_an_answer_that_belongs_to_another_batch_reaches_nobody() -> None:
    """And is not asked for again: the server has executed something."""

    def foreign(request: dict[str, Any]) -> dict[str, Any]:
        answer = doubled(request)
        return answer | ({"id": "of another"} if len(answer["outputs"][0]["data"]) > 4 else {})

    async with serving(foreign) as server, running(server.url, backend=ON) as client:
        asked = [lambda value=value: ask(client, value, id=str(value)) for value in range(4)]
        replies = await together(server, client, *asked)
    assert [reply.status for reply in replies] == [200, 502, 502, 502]
    assert server.rows == [1, 3]


@pytest.mark.parametrize(("more", "ids"), [("ids: always", [None, "a"]), ("leave_out: [id, parameters]", [None, "a"])])
async def test_ids_where_the_backend_has_its_own_way(more: str, ids: list[str | None]) -> None:
    async with serving() as server, running(server.url, backend=f"{ON}\n{more}") as client:
        asked = [lambda: ask(client, 0), lambda: ask(client, 1), lambda: ask(client, 2, id="a")]
        replies = await together(server, client, *asked)
    assert [reply.json.get("id") for reply in replies[1:]] == ids
    assert server.rows == [1, 2]
    assert ("id" in server.asked[1]) == more.startswith("ids")


async def test_names_of_models_that_only_clients_have() -> None:
    routes = "routes: [{name: r, backend: main, rename: {m: inner, k: inner}}]\n"
    async with serving() as server, running(server.url, routes, ON) as client:
        asked = [lambda name=name: ask(client, 1, path=f"/v2/models/{name}/infer") for name in "mmkkm"]
        replies = await together(server, client, *asked)
    assert [reply.json["model_name"] for reply in replies] == list("mmkkm")
    assert sorted(server.rows) == [1, 2, 2]


async def test_several_inputs_and_outputs_in_any_order(both: Both) -> None:
    server, client = both

    def more(request: dict[str, Any]) -> dict[str, Any]:
        answer = doubled(request)
        n_rows = request["inputs"][0]["shape"][0]
        words = {"name": "w", "datatype": "BYTES", "shape": [n_rows], "data": [f"row {n}" for n in range(n_rows)]}
        answer["outputs"] = [words, *reversed(answer["outputs"])]
        return answer

    server.answer = more

    async def two(value: int) -> Reply:
        numbers, counts = np.full((2, 2), value, "f4"), np.full(2, value, "i8")
        inputs = [tensor("a", numbers, "FP32"), tensor("b", counts, "INT64")]
        header = {"inputs": inputs, "parameters": {"binary_data_output": True}}
        return await post(client, header, numbers.tobytes() + counts.tobytes())

    replies = await together(server, client, *[lambda value=value: two(value) for value in range(4)])
    assert server.rows == [2, 6]
    for value, reply in enumerate(replies):
        assert [each["name"] for each in reply.json["outputs"]] == ["w", "b", "a"]
        assert reply.binary[18:34] == np.full(2, value * 2, "i8").tobytes()
        assert reply.binary[34:] == np.full(4, value * 2, "f4").tobytes()
    assert {bytes(reply.binary[4:9]) for reply in replies} == {b"row 0", b"row 2", b"row 4"}
