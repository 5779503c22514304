"""Real tritonclient, unmodified, through `config/legacy.yaml` to stand-ins for servers that cannot be had here."""

import asyncio
import re
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.conftest import running
from tests.servers.stand_ins import STAND_INS, chances, embed, relevance, stand_in
from tests.system.test_dialect_servers import ask, infer
from tests.system.test_template_servers import CONFIG, X, settings_of, strings, texts

WORDS = ["help", "yellow", "abc", "é", "hello", "x" * 300]
EMBEDDED = np.array([embed(word) for word in WORDS], np.float32)


def test_every_model_of_the_file_is_tried() -> None:
    """By a test here, or by one with the real server."""
    modules = (Path(__file__), Path(__file__).with_name("test_template_servers.py"))
    tried = re.findall(r'infer\(\s*client, "([\w.-]+)"', "".join(module.read_text() for module in modules))
    models = [model for backend in CONFIG["backends"].values() for model in backend["models"]]
    assert [model for model in models if not any(fnmatchcase(name, model) for name in tried)] == []
    assert set(STAND_INS) <= set(CONFIG["backends"])


@pytest.mark.parametrize("backend", STAND_INS)
async def test_its_health_is_where_the_file_says(backend: str) -> None:
    async with stand_in(backend) as url, running(url, "", settings_of(backend)) as client:
        (model, *_) = CONFIG["backends"][backend]["models"]
        assert await ask(client, lambda real: real.is_server_ready() and real.is_model_ready(model))


async def test_openais_embeddings_come_in_the_order_of_the_texts() -> None:
    async with stand_in("openai") as url, running(url, "", settings_of("openai")) as client:
        for model in ("minilm", "minilm-base64"):
            found = await infer(client, model, {"text": strings(*WORDS)})
            assert np.array_equal(found["embedding"], EMBEDDED)
        assert np.array_equal((await infer(client, "minilm", {"text": strings("é")}))["embedding"], EMBEDDED[3:4])
        assert (await infer(client, "minilm-base64", {"text": strings("é")}))["embedding"].shape == (1, 3)
        with pytest.raises(InferenceServerException, match="expected a list of texts"):
            await infer(client, "minilm", {"text": strings("a", "")})


async def test_openais_batches_give_each_client_its_own_rows() -> None:
    settings = settings_of("openai") + "batch: {max_size: 16, max_delay: 50ms}\n"
    async with stand_in("openai") as url, running(url, "", settings) as client:
        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(infer(client, "minilm", {"text": strings(word)})) for word in WORDS]
            assert np.array_equal(np.concatenate([task.result()["embedding"] for task in tasks]), EMBEDDED)


async def test_text_embeddings_inference() -> None:
    words = [f"{word} {number}" for number in range(12) for word in WORDS]  # three requests of 32 texts at most
    async with stand_in("tei") as url, running(url, "", settings_of("tei")) as client:
        found = (await infer(client, "tei-embed", {"text": strings(*words)}))["embedding"]
        assert np.array_equal(found, np.array([embed(word) for word in words], np.float32))
        plain = await infer(client, "tei-embed", {"text": strings("é")}, parameters={"normalize": False})
        assert np.array_equal(plain["embedding"], 2 * EMBEDDED[3:4])
        with pytest.raises(InferenceServerException, match="normalise"):
            await infer(client, "tei-embed", {"text": strings("é")}, parameters={"normalise": False})

        query = strings("hello")
        score = (await infer(client, "tei-rerank", {"query": query, "texts": strings(*words)}))["score"]
        assert np.array_equal(score, np.array([relevance("hello", word) for word in words], np.float32))
        with pytest.raises(InferenceServerException, match="query"):
            await infer(client, "tei-rerank", {"query": strings("a", "b"), "texts": strings("a", "b")})

        found_both = await infer(client, "tei-predict", {"text": strings(*words)})
        assert texts(found_both["label"]) == [[label for label, _ in chances(word)] for word in words]
        expected = np.array([[share for _, share in chances(word)] for word in words], np.float32)
        assert np.array_equal(found_both["score"], expected)


async def test_ollama() -> None:
    async with stand_in("ollama") as url, running(url, "", settings_of("ollama")) as client:
        assert np.array_equal((await infer(client, "all-minilm", {"text": strings(*WORDS)}))["embedding"], EMBEDDED)
        found = await infer(client, "llama3.2", {"prompt": strings(*WORDS)}, parameters={"num_predict": 3})
        assert texts(found["text"]) == [word.upper()[:3] for word in WORDS]
        with pytest.raises(InferenceServerException, match="expected a list of texts"):
            await infer(client, "all-minilm", {"text": strings("")})


async def test_llama_cpp() -> None:
    async with stand_in("llama_cpp") as url, running(url, "", settings_of("llama_cpp")) as client:
        assert np.array_equal((await infer(client, "llama-embed", {"text": strings(*WORDS)}))["embedding"], EMBEDDED)
        found = await infer(client, "llama-complete", {"prompt": strings(*WORDS)}, parameters={"n_predict": 2})
        assert texts(found["text"]) == [word.upper()[:2] for word in WORDS]
        ranked = await infer(client, "llama-rerank", {"query": strings("hello"), "texts": strings(*WORDS)})
        assert np.array_equal(ranked["score"], np.array([relevance("hello", word) for word in WORDS], np.float32))


async def test_a_container_of_sagemaker() -> None:
    async with stand_in("sagemaker") as url, running(url, "", settings_of("sagemaker")) as client:
        found = await infer(client, "linear-learner", {"features": X})
        assert found["label"].tolist() == X.argmax(axis=1).tolist()
        assert found["score"].tolist() == [float(row.mean()) for row in X]


async def test_a_container_of_vertex_ai() -> None:
    async with stand_in("vertex") as url, running(url, "", settings_of("vertex")) as client:
        assert np.array_equal((await infer(client, "vertex", {"x": X}))["y"], X)
        scaled = await infer(client, "vertex", {"x": X}, parameters={"scale": 3})
        assert np.array_equal(scaled["y"], 3 * X)
        with pytest.raises(InferenceServerException, match="unknown field `size`"):
            await infer(client, "vertex", {"x": X}, parameters={"size": 3})


async def test_h2os_numbers_are_texts() -> None:
    x = np.array([[0.1, 1e22], [-0.0, 2**53 + 2], [5e-324, 1 / 3]])
    async with stand_in("h2o") as url, running(url, "", settings_of("h2o")) as client:
        found = await infer(client, "h2o", {"x": x})
        assert np.array_equal(found["y"], np.stack([x.mean(axis=1), x.sum(axis=1)], axis=1))
