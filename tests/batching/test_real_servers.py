"""Batches before real servers: MLServer, and a FastAPI with a model of scikit-learn, which know nothing of them."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.batching.test_batching import post
from tests.conftest import Client, running, tensor
from tests.servers import Legacy, serving
from tests.system.programs import MlServer

CLIENTS = 24
BATCH = {"max_size": 8, "max_delay": "50ms"}


async def all_at_once(client: Client, model: str, columns: int) -> list[Any]:
    """What clients get that ask at the same time, each for two rows of its own; and that some went together."""

    async def one(number: int) -> Any:
        array = np.full((2, columns), number / 4, "f4")
        header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}, "id": str(number)}
        reply = await post(client, header, array.tobytes(), path=f"/v2/models/{model}/infer")
        assert reply.status == 200, reply.body
        assert reply.json["id"] == str(number)
        assert {each["shape"][0] for each in reply.json["outputs"]} == {2}
        return reply

    replies = await asyncio.gather(*map(one, range(CLIENTS)))
    samples = await client.metrics()
    label = f'{{backend="main",model="{model}"}}'
    assert samples[f"tensor_gateway_batch_rows_sum{label}"] == 2 * CLIENTS
    assert samples[f"tensor_gateway_batch_rows_count{label}"] < CLIENTS
    return replies


async def test_mlserver(tmp_path: Path) -> None:
    with serving(MlServer(tmp_path)) as server:
        async with running(server.url, backend=yaml.safe_dump({"batch": BATCH})) as client:
            for number, reply in enumerate(await all_at_once(client, "identity", 4)):
                assert np.frombuffer(reply.binary, "<f4").tolist() == [number / 4] * 8


@pytest.mark.slow
async def test_a_model_of_scikit_learn_behind_fastapi(tmp_path: Path) -> None:
    """With every answer the same as when each asks alone."""
    configured = yaml.safe_load((Path(__file__).parents[2] / "config/legacy.yaml").read_text())["backends"]["predict"]
    del configured["endpoints"]
    with serving(Legacy(tmp_path, "predict")) as server:
        async with running(server.url, backend=yaml.safe_dump(configured)) as client:
            array = np.full((2, 4), 1.25, "f4")
            header = {"inputs": [tensor("x", array, "FP32")], "parameters": {"binary_data_output": True}}
            alone = await post(client, header, array.tobytes(), path="/v2/models/iris/infer")
        configured["batch"] = BATCH
        async with running(server.url, backend=yaml.safe_dump(configured)) as client:
            replies = await all_at_once(client, "iris", 4)
        assert replies[5].binary == alone.binary
