"""The benchmark runs, and notices wrong bytes. What it measures is no test's business: machines differ."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.cases import WrongBytesError, create, numbers
from tests.bench.client import Connection, check_reply
from tests.bench.processes import start_backend, start_gateway, start_relay
from tests.bench.rows import ROWS

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_every_row_runs_and_every_byte_is_right(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(report.read_text())["results"]
    assert {result["row"] for result in results} == set(ROWS)
    assert all(result["samples"] or result["missing"] for result in results)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_numbers_that_change_on_either_side_of_the_gateway_are_noticed(tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    cases.mkdir()
    right = create(cases, "right", numbers("INT32", (4,)))
    wrong_answer = create(cases, "wrong_answer", numbers("INT32", (4,)))
    wrong_request = create(cases, "wrong_request", numbers("INT32", (4,)))
    for case, file in ((wrong_answer, "client_reply"), (wrong_request, "client_request")):
        body = bytearray((case.folder / file).read_bytes())
        body[-1] ^= 1
        (case.folder / file).write_bytes(body)
    with start_backend(cases, tmp_path) as backend, start_gateway([backend.url], tmp_path) as gateway:
        with Connection(gateway.url) as connection:
            connection.infer_and_check(right)
            with pytest.raises(WrongBytesError, match="not those of the backend"):
                connection.infer_and_check(wrong_answer)
            with pytest.raises(WrongBytesError, match="the backend got other numbers"):
                connection.infer_and_check(wrong_request)
        with start_relay(cases, backend.url, tmp_path) as relay, Connection(relay.url) as connection:
            connection.infer_and_check(right)


def test_a_reply_without_blobs_is_wrong(tmp_path: Path) -> None:
    case = create(tmp_path, "case", numbers("FP32", (2,)))
    with pytest.raises(WrongBytesError, match="not binary"):
        check_reply(case, b"HTTP/1.1 200 OK\r\nContent-Length: 2", memoryview(b"{}"))


def test_a_row_that_does_not_exist_is_a_wrong_command() -> None:
    command = [sys.executable, "-m", "tests.bench", "--rows", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no row '10'" in done.stderr
