"""The language of templates in docs/configuration.md is what the gateway does, and docs/servers.md shows what is tried.

Each example of the language is a model's block and what crosses:

    client sends    [to MODEL[/versions/V]: ]x = JSON; y = JSON; parameter p = JSON; request id = JSON
    server gets     PATH JSON             for each request, in any order; none: the gateway refuses by itself
    server answers  [STATUS] JSON         what the server answers to the request before
    client gets     y = JSON; z = JSON    or STATUS: WORDS, of which the error has WORDS in it

A line that begins with blanks goes on with the one before.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tritonclient.http as triton
import yaml
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.conftest import Client, running
from tests.system.scripted import Seen, counting
from tests.test_docs import Block, blocks_of, served
from tests.test_doctor import doctor, missing_from

ROOT = Path(__file__).parent.parent
LEGACY = yaml.safe_load((ROOT / "config/legacy.yaml").read_text())
NAME = re.compile(r"\s*(?:(parameter|request) )?([\w-]+) = ")


@dataclass
class Crossing:
    """One inference of an example."""

    sends: str = ""
    expected: list[tuple[str, Any]] = field(default_factory=list)
    """The path and the JSON of each request that the server gets."""
    answers: list[tuple[str, bytes]] = field(default_factory=list)
    """The status and the body of the answer to each of them."""
    gets: str = ""


def crossings(text: str) -> Iterator[Crossing]:
    """The inferences of an example's *text*."""
    for part in re.sub(r"\n +", " ", text).strip().split("\n\n"):
        crossing = Crossing()
        for line in part.split("\n"):
            who, what = re.fullmatch(r"(client sends|server gets|server answers|client gets) +(.+)", line).groups()  # type: ignore[union-attr]
            if who == "client sends":
                crossing.sends = what
            elif who == "client gets":
                crossing.gets = what
            elif who == "server gets":
                path, _, body = what.partition(" ")
                crossing.expected.append((path, json.loads(body)))
            else:
                status, body = re.fullmatch(r"(\d{3} )?(.*)", what).groups()  # type: ignore[union-attr]
                crossing.answers.append((status or "200", body.encode()))
        assert crossing.sends
        assert crossing.gets
        assert len(crossing.expected) == len(crossing.answers)
        yield crossing


def named(text: str) -> Iterator[tuple[str | None, str, Any]]:
    """Kind, name and value of each `NAME = JSON` in *text*."""
    at = 0
    while at < len(text):
        match = NAME.match(text, at)
        assert match is not None, text[at:]
        value, at = json.JSONDecoder().raw_decode(text, match.end())
        yield match[1], match[2], value
        assert text[at : at + 1] in ("", ";"), text[at:]
        at += 1


def array_of(value: Any, datatype: str) -> npt.NDArray[Any]:
    """*value*, nested lists of numbers or texts, as tritonclient has a tensor of *datatype*."""
    if datatype != "BYTES":
        return np.array(value, triton_to_np_dtype(datatype))
    array = np.array(value, object)
    return np.array([text.encode() for text in array.ravel()], object).reshape(array.shape)


@dataclass
class Script:
    """A server that answers as the example says."""

    crossing: Crossing
    got: list[tuple[str, Any]] = field(default_factory=list)

    async def behave(self, seen: Seen) -> bool:
        """Answer a request that the example has."""
        if seen.method == "POST":
            asked = (seen.target, json.loads(seen.body))
            self.got.append(asked)
            if asked in self.crossing.expected:
                status, body = self.crossing.answers[self.crossing.expected.index(asked)]
                await seen.answer(body, f"{status} Said")
                return True
        await seen.answer(b'{"error": "this request is not in the example"}', "404 Not Found")
        return True


async def reply_to(client: Client, sends: str, inputs: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The outputs that a real tritonclient gets for what an example *sends*."""
    to = re.match(r"to ([\w-]+)(?:/versions/(\w+))?: ", sends)
    tensors, parameters, options = [], {}, {}
    for kind, name, value in named(sends[to.end() :] if to else sends):
        if kind == "parameter":
            parameters[name] = value
        elif kind == "request":
            options[f"request_{name}"] = value
        else:
            array = array_of(value, inputs[name]["datatype"])
            tensors.append(triton.InferInput(name, list(array.shape), inputs[name]["datatype"]))
            tensors[-1].set_data_from_numpy(array)

    def call() -> dict[str, npt.NDArray[Any]]:
        with triton.InferenceServerClient(client.url.removeprefix("http://")) as real:
            version = to[2] or "" if to else ""
            result = real.infer(to[1] if to else "m", tensors, version, parameters=parameters or None, **options)
            return {each["name"]: result.as_numpy(each["name"]) for each in result.get_response()["outputs"]}

    return await asyncio.to_thread(call)


def examples() -> list[Any]:
    """Each example as a parameter: the model's block and the block of what crosses."""
    found: list[Any] = []
    model: Block | None = None
    for block in blocks_of(ROOT / "docs/configuration.md"):
        if "model" in block.notes:
            assert model is None, f"{block.name}: the example before has no block of what crosses"
            model = block
        elif "crosses" in block.notes:
            assert model is not None, block.name
            found.append(pytest.param(model, block, id=model.name))
            model = None
    return found


@pytest.mark.parametrize(("model", "crosses"), examples())
async def test_each_example_of_the_language_is_true(model: Block, crosses: Block) -> None:
    described = yaml.safe_load(model.text)
    settings = yaml.safe_dump({"dialect": "template", "models": {"*": described}}, sort_keys=False)
    for crossing in crossings(crosses.text):
        script = Script(crossing)
        async with counting(script.behave) as backend, running(backend.url, "", settings) as client:
            refusal = re.fullmatch(r"(\d{3}): (.+)", crossing.gets)
            if refusal is None:
                outputs = await reply_to(client, crossing.sends, described["inputs"])
                expected = {name: value for _, name, value in named(crossing.gets)}
                assert set(outputs) == set(expected)
                for name, value in expected.items():
                    array = array_of(value, described["outputs"][name]["datatype"])
                    assert (outputs[name].dtype, outputs[name].shape) == (array.dtype, array.shape)
                    # assert_array_equal takes two NaN for equal
                    np.testing.assert_array_equal(outputs[name], array)
            else:
                with pytest.raises(InferenceServerException) as caught:
                    await reply_to(client, crossing.sends, described["inputs"])
                assert refusal[2] in str(caught.value.message())
                assert str(caught.value.status()) == refusal[1], caught.value.message()
        assert sorted(script.got, key=str) == sorted(crossing.expected, key=str)


def test_the_page_has_an_example_of_each_construct() -> None:
    yaml_texts = "".join(example.values[0].text for example in examples())
    constructs = ["$x", "$$", "$flat", "$shape", "$rows", "$b64", "$each", "$row", "$model", "$version", "$id"]
    constructs += ["$parameters: {", "{model}", "{version}", "rows: 1", "rows: 2", "parallel:", "optional: true"]
    constructs += ["[0]", "[*]", "['", "success:", "order:", "error:", "missing:", "encoding: text", "encoding: base64"]
    assert [construct for construct in constructs if construct not in yaml_texts] == []


def test_servers_page_shows_what_is_tried() -> None:
    """Under the heading of a server stands what `config/legacy.yaml`, which the tests try, says of it."""
    shown: dict[str, Any] = {}
    for block in blocks_of(ROOT / "docs/servers.md"):
        document = yaml.safe_load(block.text) if block.language == "yaml" else {}
        shown |= {name: said for name, said in document.get("backends", {}).items() if name in LEGACY["backends"]}
    assert list(shown) == list(LEGACY["backends"])
    for name, said in shown.items():
        tried = LEGACY["backends"][name]
        assert {**said, "endpoints": []} == {**tried, "endpoints": []}, name


async def test_doctor_says_of_the_page_s_own_server_what_the_page_shows(tmp_path: Path) -> None:
    (program,) = (each for each in blocks_of(ROOT / "docs/servers.md") if each.notes.get("file") == "predict.py")
    (tmp_path / "predict.py").write_text(program.text)
    sample = tmp_path / "sample.json"
    sample.write_text('{"features": [[1, 2, 1]], "user": "web"}')
    async with served(tmp_path / "predict.py") as url:
        found = await doctor(url, "--path", "/predict", "--sample", str(sample))
    assert missing_from(found, "TEMPLATE") == set()
    assert found.table["infer in JSON"] == "yes"
