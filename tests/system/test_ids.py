"""An answer says whose it is: servers that answer another request than the one that was sent (protocol 4.10)."""

import asyncio
import json
from collections import Counter
from typing import Any

import numpy as np
import orjson
import pytest

from tests.conftest import HEADER_LENGTH, Client, running
from tests.system.scripted import CountingBackend, Seen, counting, many_connections, total

pytestmark = pytest.mark.rule("4.10")

SMALL, LARGE = 4, 12_000
"""Elements of INT64: one is read and written in one go, the other in pieces."""

LATE_S = 0.002
PATH = "/v2/models/m/infer"
ONE_CONNECTION = "max_connections: 1\nqueue: {length: 200, timeout: 20s}\neject: {failures: 0}\n"


def answer_of(seen: Seen) -> bytes:
    """The inputs as outputs, with the id of the request if it has one."""
    asked = orjson.loads(seen.body)
    outputs = [{key: item[key] for key in ("name", "datatype", "shape", "data")} for item in asked["inputs"]]
    return orjson.dumps({"model_name": "m", **({"id": asked["id"]} if "id" in asked else {}), "outputs": outputs})


class Twice:
    """Answers every *share*-th request twice, the second time `LATE_S` late."""

    def __init__(self, share: int = 10) -> None:
        self.share = share
        self.n_requests = 0
        self.n_twice = 0
        self.backend: CountingBackend

    async def behave(self, seen: Seen) -> bool:
        self.n_requests += 1
        text = answer_of(seen)
        await seen.answer(text)
        if self.n_requests % self.share == 0:
            self.n_twice += 1
            await asyncio.sleep(LATE_S)
            await seen.answer(text)
        return True


def array_of(number: int, n_elements: int) -> np.ndarray:
    return np.arange(number, number + n_elements, dtype=np.int64)


async def infer(client: Client, number: int, n_elements: int, *, is_binary: bool, has_id: bool) -> tuple[int, str]:
    """The status of the reply, and whose it is: `own`, `foreign`, or `error`."""
    array = array_of(number, n_elements)
    entry: dict[str, Any] = {"name": "x", "shape": [n_elements], "datatype": "INT64"}
    header: dict[str, Any] = {"inputs": [entry], **({"id": f"request {number}"} if has_id else {})}
    if is_binary:
        entry["parameters"] = {"binary_data_size": array.nbytes}
        header["parameters"] = {"binary_data_output": True}
        text = json.dumps(header).encode()
        reply = await client.request("POST", PATH, data=text + array.tobytes(), headers={HEADER_LENGTH: str(len(text))})
    else:
        entry["data"] = array.tolist()
        reply = await client.request("POST", PATH, data=json.dumps(header).encode())
    if reply.status != 200:
        return reply.status, "error"
    found = reply.json
    got = reply.binary if is_binary else np.array(found["outputs"][0]["data"], np.int64).tobytes()
    is_own = got == array.tobytes() and found.get("id") == header.get("id")
    return 200, "own" if is_own else "foreign"


@pytest.mark.parametrize("n_elements", [SMALL, LARGE])
@pytest.mark.parametrize(
    ("ids", "is_binary", "has_id"),
    [("client", True, True), ("always", True, True), ("always", True, False), ("always", False, False)],
)
async def test_an_answer_too_many_reaches_no_client(ids: str, is_binary: bool, has_id: bool, n_elements: int) -> None:
    server = Twice()
    async with counting(server.behave) as backend:
        async with running(backend.url, "", f"{ONE_CONNECTION}ids: {ids}") as plain, many_connections(plain) as client:
            asked = (infer(client, n, n_elements, is_binary=is_binary, has_id=has_id) for n in range(1, 121))
            outcomes = Counter(await asyncio.gather(*asked))
            metrics = await client.metrics()
    assert server.n_twice >= 5
    assert {whose for _, whose in outcomes} <= {"own", "error"}
    assert outcomes[200, "own"] >= 60
    assert {status for status, _ in outcomes} <= {200, 502}
    refused = total(metrics, "errors_total", reason="malformed_response", blame="backend")
    assert refused == outcomes[502, "error"] > 0


async def one_reply(id_: Any, answered: Any, backend: str = "", **options: Any) -> tuple[Any, Seen, int]:
    """The reply to a request with *id_* whose answer has the id *answered*; what the server got; its connections."""

    async def behave(seen: Seen) -> bool:
        answer = orjson.loads(answer_of(seen))
        answer.pop("id", None)
        await seen.answer(orjson.dumps(answer if answered is None else {**answer, "id": answered}))
        return True

    entry = {"name": "x", "shape": [1], "datatype": "UINT8", "parameters": {"binary_data_size": 1}}
    members = {} if id_ is None else {"id": id_}
    async with counting(behave) as server, running(server.url, "", backend) as client:
        reply = await client.infer_binary({**members, "inputs": [entry]}, b"\1", **options)
        await client.infer_binary({"inputs": [entry]}, b"\1")
        return reply, server.seen[0], len(server.peers)


async def test_the_error_names_both_ids_and_what_became_of_the_connection() -> None:
    reply, seen, _ = await one_reply("mine", "another's" + "x" * 1000)
    assert reply.status == 502
    assert '"mine"' in reply.error
    assert "\"another's" in reply.error
    assert "x" * 300 not in reply.error
    assert "its connection was closed" in reply.error
    assert "`leave_out: [id]`" in reply.error
    assert orjson.loads(seen.body)["id"] == "mine"


async def test_the_connection_of_a_foreign_answer_is_closed() -> None:
    reply, _, n_connections = await one_reply("mine", "another's")
    assert (reply.status, n_connections) == (502, 2)


async def test_the_connection_of_an_own_answer_is_kept() -> None:
    reply, _, n_connections = await one_reply("mine", "mine")
    assert (reply.status, n_connections) == (200, 1)


@pytest.mark.parametrize("answered", [None, "", "r-7"])
async def test_the_gateways_id_is_that_of_the_log_and_does_not_reach_the_client(answered: str | None) -> None:
    reply, seen, _ = await one_reply(None, answered, "ids: always", headers={"X-Request-Id": "r-7"})
    assert (reply.status, reply.json.get("id"), reply.headers["X-Request-Id"]) == (200, None, "r-7")
    assert orjson.loads(seen.body)["id"] == "r-7"
    assert seen.values("X-Request-Id") == ["r-7"]


async def test_an_id_that_the_gateway_did_not_send_is_not_the_answers() -> None:
    reply, _, _ = await one_reply(None, "server's", "ids: always")
    assert reply.status == 502
    assert "`ids: client`" in reply.error


async def test_by_default_a_request_without_an_id_gets_none_and_the_servers_stays() -> None:
    reply, seen, _ = await one_reply(None, "server's")
    assert (reply.status, reply.json["id"]) == (200, "server's")
    assert "id" not in orjson.loads(seen.body)


async def test_an_id_that_is_left_out_is_given_back_and_not_compared() -> None:
    for answered, got in ((None, "mine"), ("server's", "server's")):
        reply, seen, _ = await one_reply("mine", answered, "leave_out: [id]")
        assert (reply.status, reply.json["id"]) == (200, got)
        assert "id" not in orjson.loads(seen.body)


async def test_with_ids_always_json_is_judged() -> None:
    async with counting() as server, running(server.url, "", "ids: always") as client:
        reply = await client.request("POST", PATH, data=b'{"inputs": 7}')
        assert reply.status == 400
        assert "inputs" in reply.error
        assert server.seen == []
