"""Clients of V2 before servers that want numbers as texts, or in base64, and answer so: `encoding` in `models`."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tritonclient.http.aio as aio_http
import yaml
from tritonclient.utils import InferenceServerException

from tests.conftest import running
from tests.system.scripted import Seen, counting

ROWS: Mapping[str, Any] = {
    "inputs": {"amount": {"datatype": "INT64", "shape": [-1, 2], "encoding": "text"}},
    "outputs": {"score": {"datatype": "FP64", "shape": [-1], "encoding": "text"}},
    "request": {"path": "/score", "body": {"rows": {"$each": {"amount": "$amount"}}}},
    "answer": {"score": "$.rows[*].score"},
}
EMBED: Mapping[str, Any] = {
    "inputs": {"x": {"datatype": "FP32", "shape": [-1, -1], "encoding": "base64"}},
    "outputs": {"embedding": {"datatype": "FP32", "shape": [-1, -1], "encoding": "base64"}},
    "request": {"path": "/embed", "body": {"encoding_format": "base64", "input": "$x"}},
    "answer": {"embedding": "$.data[*].embedding"},
}


@dataclass
class Bank:
    """A server that answers in its own way; *answer* instead of it."""

    answer: bytes = b""
    seen: list[Any] = field(default_factory=list)

    async def behave(self, seen: Seen) -> bool:
        """Answer: the sum of a row's amounts, as a text; or twice each number, in base64."""
        if seen.method != "POST":
            await seen.answer(b"pong")
            return True
        body = json.loads(seen.body)
        self.seen.append(body)
        if seen.target == "/score":
            rows = [{"index": 1, "score": str(float(sum(map(int, row["amount"]))))} for row in body["rows"]]
            answer = json.dumps({"rows": rows}).encode()
        else:
            rows = [{"embedding": doubled(text), "object": "embedding"} for text in body["input"]]
            answer = json.dumps({"data": rows}).encode()
        await seen.answer(self.answer or answer, "200 OK", "Content-Type: application/json\r\n")
        return True


def doubled(text: str) -> str:
    return base64.b64encode((np.frombuffer(base64.b64decode(text), "<f4") * 2).tobytes()).decode()


@asynccontextmanager
async def before(server: Bank) -> AsyncIterator[aio_http.InferenceServerClient]:
    """A real client of a gateway before *server*."""
    settings = {"dialect": "template", "health": {"path": "/ping"}, "models": {"rows": ROWS, "embed": EMBED}}
    async with (
        counting(server.behave) as backend,
        running(backend.url, "", yaml.safe_dump(settings, default_flow_style=None, sort_keys=False)) as client,
        aio_http.InferenceServerClient(client.url.removeprefix("http://")) as triton,
    ):
        yield triton


async def infer(
    triton: aio_http.InferenceServerClient, model: str, name: str, array: Any, datatype: str, output: str
) -> Any:
    sent = aio_http.InferInput(name, array.shape, datatype)
    sent.set_data_from_numpy(array)
    result = await triton.infer(model, [sent], outputs=[aio_http.InferRequestedOutput(output)])
    return result.as_numpy(output)


@pytest.mark.rule("11.7")
async def test_numbers_go_and_come_as_texts_without_losing_a_digit() -> None:
    server = Bank()
    async with before(server) as triton:
        amounts = np.array([[2**53 + 1, 0], [-(2**63), 2**63 - 1]])
        score = await infer(triton, "rows", "amount", amounts, "INT64", "score")
        assert server.seen == [{"rows": [{"amount": [str(n) for n in row]} for row in amounts.tolist()]}]
        assert score.tolist() == [9007199254740992.0, -1.0]
        assert score.dtype == np.float64


@pytest.mark.rule("11.7")
@pytest.mark.parametrize("shape", [(2, 3), (1, 200_000), (3000, 8)])
async def test_embeddings_go_and_come_in_base64(shape: tuple[int, int]) -> None:
    server = Bank()
    async with before(server) as triton:
        values = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
        values[0, :3] = np.array([0.1, -0.0, 1e-42], np.float32)
        embedding = await infer(triton, "embed", "x", values, "FP32", "embedding")
        texts = [base64.b64encode(row.tobytes()).decode() for row in values]
        assert server.seen == [{"encoding_format": "base64", "input": texts}]
        assert embedding.shape == shape
        assert embedding.tobytes() == (values * 2).tobytes()


@pytest.mark.rule("11.7")
@pytest.mark.parametrize(
    ("model", "answer", "words"),
    [
        ("rows", {"rows": [{"score": "1"}, {"score": "1,5"}]}, 'element 1: FP64 cannot hold "1,5"'),
        ("rows", {"rows": [{"score": "n/a"}]}, 'element 0: FP64 cannot hold "n/a"'),
        ("embed", {"data": [{"embedding": [0.5, 1]}]}, "element 0: expected a text in base64, got 0.5"),
        ("embed", {"data": [{"embedding": "AAAA"}]}, "element 0: expected whole elements of FP32, 4 bytes each"),
        ("embed", {"data": [{"embedding": "AACAPw"}]}, "element 0 is not base64"),
    ],
)
async def test_answers_that_are_no_numbers_in_that_encoding_are_told(model: str, answer: object, words: str) -> None:
    async with before(Bank(json.dumps(answer).encode())) as triton:
        name, datatype = ("amount", "INT64") if model == "rows" else ("x", "FP32")
        output = "score" if model == "rows" else "embedding"
        array = np.ones((1, 2), np.int64 if model == "rows" else np.float32)
        with pytest.raises(InferenceServerException) as raised:
            await infer(triton, model, name, array, datatype, output)
        assert f"output '{output}'" in str(raised.value)
        assert words in str(raised.value)
