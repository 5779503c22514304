"""Small clients in Python, Go and JavaScript that send header and blobs, and never say how long the header is.

They write their requests as hand-made clients do: `Content-Type: application/json` for a body that is not JSON
alone. Node is on most machines; Go is Debian's `golang-go`, and nothing is downloaded to build the program.
"""

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gateway.demo import JsonServer
from tests.clients.processes import output_of
from tests.conftest import Client, require_tool, running

pytestmark = pytest.mark.rule("9")

PROGRAMS = Path(__file__).parent / "programs"
SHAPE = (1, 3, 224, 224)
LABEL = b'}{" '

COMMANDS: dict[str, Callable[[], list[str | Path]]] = {
    "python": lambda: [sys.executable, PROGRAMS / "headerless.py"],
    "go": lambda: [require_tool("go", "apt-get install golang-go"), "run", PROGRAMS / "headerless.go"],
    "javascript": lambda: [require_tool("node", "apt-get install nodejs, 18 or later"), PROGRAMS / "headerless.mjs"],
}


def make_image(path: Path) -> bytes:
    """Every kind of finite FP32 in one image: random bit patterns without the exponent of NaN and infinity."""
    bits = np.random.default_rng(5).integers(0, 2**32, np.prod(SHAPE), np.uint32)
    bits[(bits & 0x7F800000) == 0x7F800000] = 0x80000001
    path.write_bytes(bits.tobytes())
    return bits.tobytes()


def floats(data: list[float]) -> bytes:
    return np.array(data, np.float64).astype(np.float32).tobytes()


@pytest.mark.parametrize("language", COMMANDS)
async def test_headerless_program_gets_json_back(
    language: str, client: Client, server: JsonServer, tmp_path: Path
) -> None:
    image = make_image(tmp_path / "image")
    url = f"{client.url}/v2/models/identity/infer"
    printed = json.loads(await output_of(*COMMANDS[language](), url, tmp_path / "image"))
    assert printed["blobs"] == ""
    got, label = printed["reply"]["outputs"]
    assert (got["name"], got["datatype"], got["shape"]) == ("image", "FP32", list(SHAPE))
    assert floats(got["data"]) == image
    assert (label["datatype"], label["data"]) == ("UINT8", list(LABEL))
    sent = server.last_request["inputs"]
    assert floats(sent[0]["data"]) == image
    assert sent[1] == {"name": "label", "datatype": "UINT8", "shape": [4], "data": list(LABEL)}
    assert (await client.metrics())["tensor_gateway_header_recovered_total"] == 1


@pytest.mark.parametrize("language", COMMANDS)
async def test_headerless_program_gets_binary_back_when_it_asks(language: str, client: Client, tmp_path: Path) -> None:
    image = make_image(tmp_path / "image")
    url = f"{client.url}/v2/models/identity/infer"
    printed = json.loads(await output_of(*COMMANDS[language](), url, tmp_path / "image", "binary"))
    assert base64.b64decode(printed["blobs"]) == image + LABEL
    sizes = [output["parameters"]["binary_data_size"] for output in printed["reply"]["outputs"]]
    assert sizes == [len(image), len(LABEL)]


@pytest.mark.parametrize("language", ["go", "javascript"])
async def test_program_that_unpacks_unasked_reads_a_compressed_binary_reply(
    language: str, server: JsonServer, tmp_path: Path
) -> None:
    # Go and fetch both ask for gzip by themselves, and hide that they have unpacked it
    image = make_image(tmp_path / "image")
    async with running(server.url, "compression: {responses: true, min_size: 1KiB}\n") as client:
        url = f"{client.url}/v2/models/identity/infer"
        printed = json.loads(await output_of(*COMMANDS[language](), url, tmp_path / "image", "binary"))
    assert base64.b64decode(printed["blobs"]) == image + LABEL
