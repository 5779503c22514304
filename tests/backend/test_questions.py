"""What servers are asked, and how they are recognized by their answers."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.backend.connections import NoAnswerError
from gateway.backend.endpoints import Endpoint, Said
from gateway.backend.questions import Answer, Asker, own_connections, said_after, said_of_v2
from tests.conftest import Connection, Liar, Script, answering, lying

JSON, TEXT, HTML = "application/json", "text/plain", "text/html"
NOTHING = Answer(404, "Not Found", b'{"detail": "Not Found"}', {"content-type": JSON})


def answer(body: bytes, status: int = 200, media_type: str = JSON) -> Answer:
    return Answer(status, "OK" if status == 200 else "No", body, {"content-type": media_type})


class Server:
    """Answers by path, and everything else with 404."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def get(self, path: str) -> Answer:
        self.asked.append(path)
        return self._answers.get(path, NOTHING)


V2 = answer(b'{"name": "triton", "version": "2", "extensions": ["a", "binary_tensor_data"]}')
BINARY = Said("v2", is_binary=True)
V1_MODELS = answer(b'{"models": ["m"]}')
TF_REFUSAL = answer(b'{\n "error": "Could not find any versions of model any"\n}', 404, TEXT)
PING, VERSION = answer(b"\n", media_type=TEXT), answer(b"3.17.0\n", media_type=TEXT)


async def ask_dialect(server: Server) -> Said:
    return await said_after(await server.get("/v2"), server.get)


@pytest.mark.parametrize(
    ("answers", "said", "n_asked"),
    [
        ({"/v2": V2}, Said("v2", is_binary=True), 1),
        ({"/v2": answer(b'{"name": "own"}')}, Said("v2"), 1),
        ({"/v2": answer(b'{"name": "own", "extensions": null}')}, Said("v2"), 1),
        ({"/v2": answer(b'{"name": "own", "extensions": "binary_tensor_data"}')}, Said("v2"), 1),
        ({"/v2": answer(b'{"name": "own", "version": null, "extensions": {}}')}, Said("v2"), 1),
        ({"/v2": answer(b'{"name": "own", "version": 2, "extensions": [null, "binary_tensor_data"]}')}, BINARY, 1),
        ({"/v2": V2, "/v1/models": V1_MODELS}, Said("v2", is_binary=True), 1),
        ({"/v1/models": V1_MODELS}, Said("tensorflow"), 2),
        ({"/v1/models": answer(b'{"models": []}')}, Said("tensorflow"), 2),
        ({"/v1/models/any": TF_REFUSAL}, Said("tensorflow"), 3),
        ({"/v1/models/any": answer(b'{"error": "Malformed request: GET /v1/models/any"}', 400)}, Said("tensorflow"), 3),
        ({"/v1/models": answer(b'{"error": "Missing model name in request."}', 400)}, Said("tensorflow"), 2),
        ({"/v1/models/any": answer(b'{"error": "Model with name any does not exist."}', 404)}, Said("tensorflow"), 3),
        ({"/ping": PING, "/version": VERSION}, Said("mlflow"), 5),
    ],
)
async def test_a_server_is_recognized(answers: dict[str, Answer], said: Said, n_asked: int) -> None:
    server = Server(answers)
    assert await ask_dialect(server) == said
    assert len(server.asked) == n_asked


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"/v2": answer(b'{"name": "own"}', 404)},
        {"/v2": answer(b'{"name": 7}')},
        {"/v2": answer(b'["name"]')},
        {"/v2": answer(b'{"name": "\xff"}')},
        {"/v2": answer(b"[" * 60_000)},
        {"/v2": answer(b"<html>", media_type=HTML)},
        {"/v1/models": answer(b'{"object": "list", "data": []}')},  # OpenAI's interface
        {"/v1/models": answer(b'{"models": [{"id": "m"}]}')},
        {"/v1/models/any": answer(b'{"error": {"message": "no such model"}}', 404)},
        {"/v1/models/any": answer(b'{"error": "Not Found"}', 404)},  # Flask, Express
        {"/v1/models/any": answer(b'{"error": "no handler found for uri [/v1/models/any]"}', 400)},  # Elasticsearch
        {"/v1/models/any": answer(b'{"error": "who are you?"}', 401)},
        {"/v1/models/any": answer(b'{"error": "no route"}', 503)},
        {"/ping": answer(b'{"status": "Healthy"}')},  # TorchServe
        {"/ping": PING, "/version": answer(b"<html>", media_type=HTML)},
        {"/ping": PING, "/version": answer(b'{"version": "1"}')},
        {"/version": VERSION},
    ],
)
async def test_an_answer_that_only_looks_like_one_fits_nothing(answers: dict[str, Answer]) -> None:
    said = await ask_dialect(Server(answers))
    assert said.dialect == ""
    assert not said.is_binary
    for path in ("/v2 got", "/v1/models", "/v1/models/any", "/ping"):
        assert f"GET {path} " in said.answers


@pytest.mark.parametrize(
    ("answers", "title"),
    [
        ({"/v2": V2}, "triton 2"),
        ({"/v2": answer(b'{"name": "own", "version": 2}')}, "own"),
        ({"/v1/models": V1_MODELS}, ""),
        ({"/ping": PING, "/version": VERSION}, "MLflow 3.17.0"),
    ],
)
async def test_a_server_is_called_what_it_says_of_itself(answers: dict[str, Answer], title: str) -> None:
    assert (await ask_dialect(Server(answers))).title == title


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_nothing_is_concluded_while_a_server_starts_or_its_proxy_does_not_reach_it(status: int) -> None:
    refused = answer(b'{"error": "starting"}', status)
    server = Server({"/v2": refused, "/v1/models/any": answer(b'{"error": "Not Found"}', 404)})
    assert await ask_dialect(server) == Said("", answers=f"GET /v2 got {status} No")
    assert server.asked == ["/v2"]


async def test_for_the_binary_extension_one_question_is_enough() -> None:
    server = Server({"/v1/models": V1_MODELS})
    assert said_of_v2(await server.get("/v2")) == Said("", answers="GET /v2 got 404 Not Found")
    assert server.asked == ["/v2"]


@contextlib.asynccontextmanager
async def asking(script: Script, path: str = "", **options: Any) -> AsyncIterator[tuple[Asker, Liar]]:
    """What asks a server that follows *script*, below *path*."""
    async with lying(script) as liar:
        connections = own_connections("main", 5.0)
        try:
            yield Asker(connections, Endpoint.parse(f"{liar.url}{path}", None), [("X-A", "1")], **options), liar
        finally:
            await connections.close()


async def test_each_question_has_a_connection_of_its_own() -> None:
    async with asking(answering(b"{}")) as (asker, liar):
        for _ in range(3):
            assert (await asker.get("/v2")).json == {}
    assert len(liar.connections) == 3


async def test_a_question_with_a_body_below_a_path_is_sent_and_measured() -> None:
    async with asking(answering(b"{}", "201 Created", "Content-Type: Text/X; a=b\r\n"), "/team") as (asker, liar):
        came = await asker.ask("POST", "/v2/a", b"abc", [("Content-Length", "3")])
    (connection,) = liar.connections
    assert connection.head.startswith(b"POST /team/v2/a HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nX-A: 1\r\n" in connection.head
    assert connection.body == b"abc"
    assert (came.status, came.reason, came.sent_bytes) == (201, "Created", 3)
    assert came.headers["content-type"] == "Text/X; a=b"
    assert came.headers["content-length"] == "2"
    assert came.seconds > 0


async def test_of_an_answer_so_much_is_read_as_is_wanted() -> None:
    async with asking(answering(b"x" * 500_000), max_bytes=100_000) as (asker, _):
        assert 100_000 <= len((await asker.get("/v2")).body) < 500_000


async def test_a_server_that_closes_in_the_middle_of_its_answer_has_not_answered() -> None:
    async def cut(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    async with asking(cut) as (asker, _):
        with pytest.raises(NoAnswerError, match="closed before the answer was complete"):
            await asker.get("/v2")


@pytest.mark.parametrize(
    ("came", "words"),
    [
        (answer(b"anything"), "200"),
        (answer(b'{"error": "no such\\n model"}', 404), "404: no such model"),
        (answer(b'{"error": "%b"}' % (b"x" * 400), 400), f"400: {'x' * 300}..."),
        (answer(b"", 500), "500"),
    ],
)
def test_an_answer_in_words_is_its_status_and_what_the_server_says(came: Answer, words: str) -> None:
    assert came.words == words
