"""The customer's own clients, in Python, Go and JavaScript, run as their document prints them.

The document is not part of the repository; where it lies beside the checkout, its programs are taken from it here
and run with no more around them than a program needs: an address, an image, and a line that prints the outcome.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.demo import JsonServer
from tests.clients.processes import output_of
from tests.clients.test_programs import SHAPE, floats, make_image
from tests.conftest import Client, require_tool

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"

AROUND_GO = """package main

import (
	"encoding/binary"
	"os"
)

func image() []float32 {
	file, err := os.Open(os.Args[2])
	if err != nil {
		panic(err)
	}
	values := make([]float32, %d)
	if err := binary.Read(file, binary.LittleEndian, values); err != nil {
		panic(err)
	}
	return values
}

func url() string { return os.Args[1] }
"""

CALL_GO = """
func main() {
	tensors := map[string][]float32{"image_input": image()}
	shapes := map[string][]int{"image_input": {%s}}
	fmt.Println(sendBinaryRequest(url(), tensors, shapes))
}
"""

CALL_JAVASCRIPT = """
const bytes = require("node:fs").readFileSync(process.argv[3]);
const image = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
sendBinaryRequest(process.argv[2], { image_input: { data: image, shape: %s, dtype: "FP32" } })
    .then((reply) => console.log(JSON.stringify(reply)));
"""

CALL_PYTHON = """
import sys
image.tofile(sys.argv[1])
print(json.dumps(result))
"""


def program(language: str) -> str:
    """The document's client in *language*."""
    found = sorted(SEEDS.glob("002_*"))
    if not found:
        pytest.skip("the customer's document is not beside this checkout")
    # the document has a second, shorter example in Python; each client is the first in its language
    block = re.search(rf"^```{language}\n(.*?)^```$", found[0].read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None, language
    return block[1]


async def assert_arrived(client: Client, server: JsonServer, image: bytes) -> None:
    (sent,) = server.last_request["inputs"]
    assert (sent["name"], sent["datatype"], sent["shape"]) == ("image_input", "FP32", list(SHAPE))
    assert floats(sent["data"]) == image
    assert set(server.last_request) == {"inputs"}
    assert (await client.metrics())["tensor_gateway_header_recovered_total"] == 1


def assert_came_back(reply: dict[str, Any], image: bytes) -> None:
    (output,) = reply["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("image_input", "FP32", list(SHAPE))
    assert floats(output["data"]) == image


async def test_python(client: Client, server: JsonServer, tmp_path: Path) -> None:
    address = f'"{client.url}/v2/models/identity/infer"'
    text, n_replaced = re.subn(r'"https://[^"]*/infer"', address, program("python"))
    assert n_replaced == 1
    (tmp_path / "client.py").write_text(text + CALL_PYTHON)
    pytest.importorskip("requests")
    # the program makes its image itself, and so hands it out
    printed = await output_of(sys.executable, tmp_path / "client.py", tmp_path / "image")
    image = (tmp_path / "image").read_bytes()
    await assert_arrived(client, server, image)
    assert_came_back(json.loads(printed), image)


async def test_go(client: Client, server: JsonServer, tmp_path: Path) -> None:
    shape = ", ".join(map(str, SHAPE))
    (tmp_path / "client.go").write_text(program("go") + CALL_GO % shape)
    (tmp_path / "around.go").write_text(AROUND_GO % np.prod(SHAPE))
    image = make_image(tmp_path / "image")
    go = require_tool("go", "apt-get install golang-go")
    url = f"{client.url}/v2/models/identity/infer"
    files = [tmp_path / "client.go", tmp_path / "around.go"]
    printed = await output_of(go, "run", *files, url, tmp_path / "image", folder=tmp_path)
    assert printed == b"<nil>\n"  # the program does not read the reply
    await assert_arrived(client, server, image)


async def test_javascript(client: Client, server: JsonServer, tmp_path: Path) -> None:
    (tmp_path / "client.cjs").write_text(program("javascript") + CALL_JAVASCRIPT % list(SHAPE))
    image = make_image(tmp_path / "image")
    node = require_tool("node", "apt-get install nodejs, 18 or later")
    url = f"{client.url}/v2/models/identity/infer"
    printed = await output_of(node, tmp_path / "client.cjs", url, tmp_path / "image")
    await assert_arrived(client, server, image)
    assert_came_back(json.loads(printed), image)
