"""The calls of MLServer's own tests of gRPC: to MLServer itself, and through the gateway to its JSON.

`programs/mlserver_client.py` makes them in MLServer's environment, with its stubs and converters.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.clients.processes import output_of
from tests.grpc.conftest import address_of
from tests.grpc.conftest import serving as gateway_before
from tests.servers import serving
from tests.system.programs import MlServer

# it starts an MLServer of its own
pytestmark = [pytest.mark.slow, pytest.mark.rule("12")]

PROGRAM = Path(__file__).parent / "programs" / "mlserver_client.py"
MODELS = Path(__file__).parent.parent / "servers" / "programs" / "mlserver"

Outcomes = dict[str, Any]


@pytest.fixture(scope="module")
def outcomes() -> tuple[Outcomes, Outcomes]:
    """What comes of each call at MLServer itself, and through the gateway."""
    with tempfile.TemporaryDirectory() as folder:
        with serving(MlServer(Path(folder), MODELS, "sum")) as server:
            return asyncio.run(_judged(server))


async def _judged(server: MlServer) -> tuple[Outcomes, Outcomes]:
    own = await output_of(server.python, PROGRAM, server.grpc)
    async with gateway_before(server.url) as (client, _):
        through = await output_of(server.python, PROGRAM, address_of(client))
    return json.loads(own), json.loads(through)


SAME = {
    "live": True,
    "ready": True,
    "model_ready": True,
    "model_metadata": {
        "name": "sum",
        "versions": ["v1"],
        "platform": "arithmetic",
        "inputs": [{"name": "x", "datatype": "INT32", "shape": ["-1", "3"]}],
        "outputs": [{"name": "total", "datatype": "INT64", "shape": ["-1", "1"]}],
    },
    "infer": (
        answer := {
            "model_name": "sum",
            "model_version": "v1",
            "id": "17",
            "outputs": [
                {
                    "name": "total",
                    "shape": [2, 1],
                    "datatype": "INT64",
                    "parameters": {"content_type": "np"},
                    "data": [6, 15],
                }
            ],
        }
    ),
    "infer_a_version": answer,
    "infer_typed_contents_are_answered_in_kind": [{"int64Contents": ["6", "15"]}, 0],
    "infer_raw_contents": [6, 15],
    "infer_raw_contents_packed_by_hand": [6, 15],
    "infer_an_unknown_model": ["NOT_FOUND", "Model nobody with version v1 not found"],
    "stream_of_an_unknown_model_that_asks_for_a_status": ["NOT_FOUND", "Model nobody with version v1 not found"],
    "repository_unload": [["NOT_FOUND", "Model sum with version v1 not found"]] * 2,
    "repository_load_an_unknown_model": ["NOT_FOUND", "Model nobody not found"],
}
SAME["repository_load"] = [SAME["model_metadata"], answer]

DIFFERENT: dict[str, tuple[object, object]] = {
    # the gateway names what it adds
    "server_metadata": (
        {"name": "mlserver", "version": "1.7.1"},
        {"name": "mlserver", "version": "1.7.1", "extensions": ["binary_tensor_data"]},
    ),
    # the headers of an answer over HTTP come before it
    "infer_with_metadata": (
        {"initial": {}, "trailing": {"x-foo": "bar", "ce-specversion": "0.3"}},
        {"initial": {"x-foo": "bar", "ce-specversion": "0.3"}, "trailing": {}},
    ),
    # the client's fault, in the words that clients of HTTP get
    "infer_an_unknown_datatype": (
        ["INTERNAL", "'INT322' is not a valid Datatype"],
        [
            "INVALID_ARGUMENT",
            "input 'x': datatype must be one of BOOL UINT8 UINT16 UINT32 UINT64 INT8 INT16 INT32 INT64 FP16 FP32 FP64 "
            'BF16 BYTES, in upper case, got "INT322"',
        ],
    ),
    # the `error_message` of Triton's streams has the number of the model's name in MLServer's
    "stream_of_an_unknown_model": (
        ["NOT_FOUND", "Model nobody with version v1 not found"],
        ["Model nobody with version v1 not found"],
    ),
    # MLServer writes how Python prints its own enumeration
    "repository_index": (
        [["sum", "State.READY"], ["words", "State.READY"]],
        [["sum", "READY"], ["words", "READY"]],
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_outcome_is_mlservers(outcomes: tuple[Outcomes, Outcomes], name: str) -> None:
    own, through = outcomes
    assert own[name] == SAME[name]
    assert through[name] == SAME[name]


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_outcome_differs_on_purpose(outcomes: tuple[Outcomes, Outcomes], name: str) -> None:
    assert tuple(each[name] for each in outcomes) == DIFFERENT[name]


def test_many_responses_to_one_request_are_not_in_mlservers_json(outcomes: tuple[Outcomes, Outcomes]) -> None:
    own, through = (each["stream_of_a_generative_model"] for each in outcomes)
    assert own == [["to"], ["be"], ["or"], ["not"]]
    (words,) = through
    assert words.startswith('backend "main" answered 500')
    assert words.endswith("NotImplementedError: predict() method not implemented")


def test_no_call_is_left_out(outcomes: tuple[Outcomes, Outcomes]) -> None:
    for each in outcomes:
        assert each.keys() == SAME.keys() | DIFFERENT.keys() | {"stream_of_a_generative_model"}
