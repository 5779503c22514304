"""`tensor-gateway adapter`, and the types of adapters: what an owner tries before there is a server."""

import json
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from gateway.cli import main

ROOT = Path(__file__).parent.parent
SCORER = ROOT / "config" / "adapters" / "scorer.py"
SAMPLE = {
    "id": "7",
    "inputs": [{"name": "x", "datatype": "FP64", "shape": [2, 3], "data": [30, 1.5, 0.1, 40, 2, 0.2]}],
    "outputs": [{"name": "score"}],
}
ANSWER = {"rows": [{"predict": 0.25, "classes": {"gold": 0.5}}, {"predict": 1, "classes": {}}]}


def tried(folder: Path, adapter: Path, sample: object = SAMPLE, answer: object = None, *more: str) -> int:
    arguments = ["adapter", str(adapter), "--sample", str(folder / "sample.json"), *more]
    (folder / "sample.json").write_text(sample if isinstance(sample, str) else json.dumps(sample))
    if answer is not None:
        (folder / "answer.json").write_text(answer if isinstance(answer, str) else json.dumps(answer))
        arguments += ["--answer", str(folder / "answer.json")]
    return main(arguments)


def written(folder: Path, text: str) -> Path:
    file = folder / "own.py"
    file.write_text(dedent(text))
    return file


def answering(folder: Path, expression: str) -> Path:
    """An adapter whose `answer` returns *expression*."""
    return written(
        folder,
        f"""\
        import numpy as np

        def request(call):
            return "/p", [1]

        def answer(call, status, body):
            return {expression}
        """,
    )


def test_the_example_shows_what_it_sends_and_what_clients_get(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(tmp_path, SCORER, SAMPLE, ANSWER, "--model", "a b") == 0
    assert capsys.readouterr().out.splitlines() == [
        "POST /3/Predictions/a%20b",
        '{"fields":["age","income","score"],"rows":[["30.0","1.5","0.1"],["40.0","2.0","0.2"]]}',
        "score: FP64 [2] [0.25, 1.0]",
        "classes: FP32 [2, 3] [0.0, 0.0, 0.5, 0.0, 0.0, 0.0]",
    ]


def test_the_adapter_in_the_docs_does_what_they_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chapter = (ROOT / "docs/configuration.md").read_text().partition("### An adapter in Python")[2]
    (adapter,) = re.findall("^```python\n(.*?)^```", chapter, re.DOTALL | re.MULTILINE)[:1]
    (shown,) = re.findall("^```console\n[^\n]*\n(.*?)^```", chapter, re.DOTALL | re.MULTILINE)[:1]
    sample = {"inputs": SAMPLE["inputs"]}
    assert tried(tmp_path, written(tmp_path, adapter), sample, ANSWER) == 0
    assert capsys.readouterr().out == shown


def test_without_an_answer_only_the_request_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(tmp_path, SCORER) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_long_bodies_and_values_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = written(
        tmp_path,
        """\
        def request(call):
            return "/p", list(range(100_000))

        def answer(call, status, body):
            return {"y": ["a" * 100_000]}
        """,
    )
    sample = {"inputs": SAMPLE["inputs"]}
    assert tried(tmp_path, adapter, sample, {}) == 0
    assert len(capsys.readouterr().out) < 3000


def test_all_of_a_call_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = written(
        tmp_path,
        """\
        def request(call):
            return f"/{call.model}/{call.version}", [call.id, call.parameters, call.outputs, call.datatypes]

        def answer(call, status, body):
            return {}
        """,
    )
    sample = {**SAMPLE, "parameters": {"a": 1, "priority": 2}}
    assert tried(tmp_path, adapter, sample, None, "--version", "2") == 0
    assert capsys.readouterr().out.splitlines() == ["POST /model/2", '["7",{"a":1},["score"],{"x":"FP64"}]']


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("[1]", "own.py:6: expected outputs by name, {'y': array}, got a list"),
        ("{}", "own.py:6: output 'score': missing, and the sample asks for it"),
        ("{'score': np.array([1j])}", "output 'score': got an array of complex128, which the protocol doesn't have"),
        ("{'score': None}", "output 'score': expected an array, got a NoneType"),
        ("{'score': np.array([1, 'a'], object)}", "output 'score' (BYTES): expected str or bytes, got a int"),
    ],
)
def test_an_output_that_cannot_be_sent_is_exit_code_1(
    tmp_path: Path, expression: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(tmp_path, answering(tmp_path, expression), SAMPLE, ANSWER) == 1
    assert words in capsys.readouterr().err


def test_a_list_becomes_what_the_configuration_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(tmp_path, answering(tmp_path, "{'score': [1, 2]}"), SAMPLE, ANSWER) == 0
    assert "score: no array, so it becomes what `models` says: [1, 2]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("expression", "words"),
    [("body['q']", "own.py:7: the adapter's `answer` failed: KeyError: 'q'"), ("1 / 0", "own.py:7: ")],
)
def test_a_function_that_fails_is_exit_code_2_with_file_and_line(
    tmp_path: Path, expression: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(tmp_path, answering(tmp_path, expression), SAMPLE, ANSWER) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('no age')", "own.py:2: the adapter's `request` failed: ValueError: no age"),
        ("return 'p', 1", "own.py:1: what the adapter's `request` returned cannot be sent: expected a path"),
        (
            "return '/p', {1}",
            "own.py:1: what the adapter's `request` returned cannot be sent: not to be written as JSON: a set",
        ),
    ],
)
def test_a_request_that_cannot_be_sent_is_exit_code_2(
    tmp_path: Path, body: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = written(tmp_path, f"def request(call):\n    {body}\n\ndef answer(call, status, body):\n    pass\n")
    assert tried(tmp_path, adapter) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sample", "answer", "words"),
    [
        ("{", None, "sample.json: "),
        ({"inputs": [{"name": "x", "datatype": "FP64", "shape": [3], "data": [1]}]}, None, "expected 3 elements"),
        (SAMPLE, "<html>", "answer.json: no JSON: "),
    ],
)
def test_a_file_that_cannot_be_read_is_exit_code_2(
    tmp_path: Path, sample: Any, answer: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tried(tmp_path, SCORER, sample, answer) == 2
    assert words in capsys.readouterr().err


def test_files_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapter", str(SCORER), "--sample", str(tmp_path / "gone.json")]) == 2
    assert "gone.json: cannot be read: No such file or directory" in capsys.readouterr().err
    assert tried(tmp_path, tmp_path / "gone.py") == 2
    assert "gone.py:1: not imported: FileNotFoundError" in capsys.readouterr().err


WRONG = {
    "call.inptus['x']": '"AdapterCall" has no attribute "inptus"',
    "call.inputs[0]": "Invalid index type",
    "call.version.upper()": 'Item "None" of "str | None" has no attribute "upper"',
}


@pytest.mark.slow
def test_mypy_checks_an_adapter(tmp_path: Path) -> None:
    """The example is right, and what is wrong in an adapter is found in its file, as strictly as mypy can."""
    lines = "\n".join(f"    {expression}" for expression in WRONG)
    wrong = written(
        tmp_path,
        f"from gateway.adapter import AdapterCall, AdapterRequest\n\n"
        f"def request(call: AdapterCall) -> AdapterRequest:\n{lines}\n    return 1\n",
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path / "cache")]
    right = subprocess.run([*command, SCORER], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert right.returncode == 0, right.stdout + right.stderr
    found = subprocess.run([*command, wrong], cwd=tmp_path, capture_output=True, text=True, check=False)
    for line, words in enumerate([*WRONG.values(), "Incompatible return value type"], 4):
        assert any(each.startswith(f"own.py:{line}: ") and words in each for each in found.stdout.splitlines()), (
            found.stdout
        )


def test_the_types_are_imported_without_anything_else() -> None:
    """An adapter that is tested by its owner does not bring the gateway with it."""
    code = "import sys, gateway.adapter; print([name for name in sys.modules if name.startswith('gateway')])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert output.strip() == "['gateway', 'gateway.adapter']"


def test_outputs_are_judged_as_for_a_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = "\ufeff" + json.dumps(SAMPLE)  # some editors write a byte order mark
    mapping = answering(tmp_path, "__import__('collections').UserDict(score=np.zeros(1))")
    assert tried(tmp_path, mapping, sample, {}) == 0
    assert "score: FP64 [1] [0.0]" in capsys.readouterr().out
    assert tried(tmp_path, answering(tmp_path, "{1: np.zeros(1), 'score': [1]}"), SAMPLE, {}) == 1
    assert "output 1: expected a text as its name, got a int" in capsys.readouterr().err
