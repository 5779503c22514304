"""The benchmark runs, and notices wrong bytes. What it measures is no test's business: machines differ."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.bench import plots, steps, svg, traffic
from tests.bench.cases import WrongBytesError, create, numbers
from tests.bench.client import Connection, check_reply
from tests.bench.grpc_client import GrpcConnection
from tests.bench.processes import start_backend, start_gateway, start_grpc_gateway, start_grpc_relay, start_relay
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_numbers_that_change_on_either_side_of_the_gateway_are_noticed_by_grpc(tmp_path: Path) -> None:
    cases = tmp_path / "cases"
    cases.mkdir()
    right = create(cases, "right", numbers("INT32", (100_000,)))  # longer than the windows at first
    wrong_answer = create(cases, "wrong_answer", numbers("INT32", (4,)))
    wrong_request = create(cases, "wrong_request", numbers("INT32", (4,)))
    for case, file in ((wrong_answer, "client_reply"), (wrong_request, "client_request")):
        body = bytearray((case.folder / file).read_bytes())
        body[-1] ^= 1
        (case.folder / file).write_bytes(body)
    one, other = traffic.exchanges("life-fp32-0")[:2]
    with start_backend(cases, tmp_path) as backend:
        with (
            start_grpc_gateway([backend.url], tmp_path) as gateway,
            GrpcConnection(gateway.url) as connection,
        ):
            connection.infer_and_check(right)
            connection.send_and_check(one, b"q1")
            with pytest.raises(WrongBytesError, match="not those of the backend"):
                connection.infer_and_check(wrong_answer)
            with pytest.raises(WrongBytesError, match="the backend got other numbers"):
                connection.infer_and_check(wrong_request)
            with pytest.raises(WrongBytesError, match="the values are not those that were sent"):
                connection.send_and_check(dataclasses.replace(one, outputs=other.outputs), b"q2")
            with pytest.raises(WrongBytesError, match="the backend got other numbers"):
                connection.send_and_check(dataclasses.replace(one, index=other.index), b"q3")
        with start_grpc_relay(cases, backend.url, tmp_path) as relay, GrpcConnection(relay.url) as connection:
            connection.infer_and_check(right)
            connection.send(one, b"q4")


def test_a_reply_without_blobs_is_wrong(tmp_path: Path) -> None:
    case = create(tmp_path, "case", numbers("FP32", (2,)))
    with pytest.raises(WrongBytesError, match="not binary"):
        check_reply(case, b"HTTP/1.1 200 OK\r\nContent-Length: 2", memoryview(b"{}"))


def test_a_row_that_does_not_exist_is_a_wrong_command() -> None:
    command = [sys.executable, "-m", "tests.bench", "--rows", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no row '10'" in done.stderr


@pytest.mark.parametrize("kind", traffic.KINDS)
def test_requests_as_in_life_differ_and_half_of_them_have_an_id_of_their_own(kind: str) -> None:
    loads = traffic.load(traffic.names(kind))
    requests = [exchange.request(identity, "h") for exchange, identity in itertools.islice(loads, 1024)]
    ids = [identity for _, identity in itertools.islice(traffic.load(traffic.names(kind)), 1024) if identity]
    assert 400 < len(ids) < 624
    assert len(set(ids)) == len(ids)
    assert len(set(requests)) >= len(ids) + traffic.MODELS * traffic.TENSORS // 4
    bodies = {exchange.answered(b"id") for model in traffic.names(kind) for exchange in traffic.exchanges(model)}
    assert len(bodies) == traffic.MODELS * traffic.TENSORS


@pytest.mark.parametrize("kind", traffic.KINDS)
def test_traffic_checks_itself(kind: str) -> None:
    for model in traffic.names(kind):
        for exchange in traffic.exchanges(model):
            exchange.check_sent_on(exchange.sent_on(b"q"))
            reply, header_bytes = exchange.replied(b"q")
            exchange.check_reply(b"q", header_bytes, memoryview(reply))
            with pytest.raises(WrongBytesError, match="id b'other' came back as 'q'"):
                exchange.check_reply(b"other", header_bytes, memoryview(reply))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_wrong_values_in_traffic_are_noticed_on_either_side_of_the_gateway(tmp_path: Path) -> None:
    with start_backend(tmp_path, tmp_path) as backend, start_gateway([backend.url], tmp_path) as gateway:
        for kind in traffic.KINDS:
            right, other = traffic.exchanges(traffic.names(kind)[0])[:2]
            with Connection(gateway.url) as connection:
                connection.send_and_check(right, b"q1")
                connection.send_and_check(other, b"")
                with pytest.raises(WrongBytesError, match="the values are not those that were sent"):
                    connection.send_and_check(dataclasses.replace(right, outputs=other.outputs), b"q2")
                with pytest.raises(WrongBytesError, match="the backend got other numbers"):
                    connection.send_and_check(dataclasses.replace(right, index=other.index), b"q3")


@pytest.mark.parametrize(
    ("stack", "step"),
    [
        ("Handle._run (asyncio/events.py:78)", steps.LOOP),
        ("ClientConnection.data_received (gateway/client/connection.py:1);feed (gateway/http1.py:2)", steps.LOOP),
        ("Reply.whole (gateway/client/reply.py:1);Outgoing.write (gateway/client/peers.py:2)", steps.CLIENT),
        ("Gateway.handle (gateway/serving/gateway.py:1);pick (gateway/policy/routing.py:2)", steps.ROUTING),
        (
            "infer (gateway/serving/inference.py:1);check (gateway/codec/v2/request.py:2);dumps (orjson.py:3)",
            steps.REQUEST,
        ),
        ("Wire.data_received (gateway/backend/wire.py:1);feed (gateway/http1.py:2)", steps.BACKEND),
        ("feed (gateway/codec/v2/answer.py:1);size (gateway/codec/tensors/datatypes.py:2)", steps.ANSWER),
        ("Sent.start (gateway/backend/attempt.py:1);write (asyncio/selector_events.py:2)", steps.BACKEND),
        ("Gateway.handle (gateway/serving/gateway.py:1);add (gateway/telemetry/metrics.py:2)", steps.TELEMETRY),
    ],
)
def test_a_sample_belongs_to_the_step_of_the_innermost_function_of_the_gateway(stack: str, step: str) -> None:
    assert steps.step_of_gateway(stack.split(";")) == step


def test_plots_and_tables_are_made_from_the_json(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "performance.md"
    page.write_text("".join(f"<!-- bench: {name} -->\n<!-- end of {name} -->\nkept\n" for name in plots.TABLES))
    (tmp_path / "README.md").write_text("none here\n")
    before, after, rows = tmp_path / "before.json", tmp_path / "after.json", tmp_path / "rows.json"
    before.write_text(json.dumps(_report(profile=_profile(gateway_us=400.0))))
    after.write_text(json.dumps(_report(profile=_profile(gateway_us=200.0))))
    sizes = [_result("sizes", elements, {"gateway": elements / 10, "P": 0.2}) for elements in (16, 4096)]
    image = _result("9", 0, {"gateway": 20.0, "JSON straight": 150.0}, median=7.5)
    rows.write_text(json.dumps(_report(results=[*sizes, image])))

    written = plots.write(plots.read([rows, before, after]), tmp_path)

    drawings = [file for file in written if file.suffix == ".svg"]
    assert [file.name for file in drawings] == ["steps.svg", "sizes.svg"]
    texts = [" ".join(ElementTree.fromstring(file.read_text()).itertext()) for file in drawings]
    assert "before, 200 in all" in texts[0] and "now, 100 in all" in texts[0]
    assert "gateway" in texts[1] and "4 Ki" in texts[1]
    text = page.read_text()
    assert text.count("kept") == len(plots.TABLES)
    assert "**150 ms** as JSON, **20 ms** in binary through the gateway, **7.5 times faster**" in text
    assert "| 4 Ki | 410 ms | 200 us |" in text
    assert f"| {steps.LOOP} | 29 | 14 | 14 |" in text
    assert (tmp_path / "README.md").read_text() == "none here\n"


def _report(**content: Any) -> dict[str, Any]:
    return {"quick": False, "machine": {"machine": "x86_64", "processors": 2, "python": "3.11"}, **content}


def _profile(gateway_us: float) -> dict[str, Any]:
    shares = dict.fromkeys(steps.STEPS, 1 / len(steps.STEPS))
    return {"row": "1", "gateway_us": gateway_us, "p_us": 200.0, "gateway_steps": shares, "p_steps": shares}


def _result(row: str, elements: int, points: dict[str, float], median: float = 1.0) -> dict[str, Any]:
    figures = {"samples": [median], "min": median, "median": median, "max": median}
    aims = {"unit": "ratio", "target": 7.0, "at_least": True, "is_held": True, "missing": "", "absolute": ""}
    return {"row": row, "what": "something", "elements": elements, "points": points, **figures, **aims}


def test_every_mark_in_the_documents_has_a_table() -> None:
    for file in ("README.md", "docs/performance.md"):
        text = (ROOT / file).read_text()
        names = re.findall(r"<!-- bench: (\w+) -->", text)
        assert names
        assert set(names) <= set(plots.TABLES)
        assert names == re.findall(r"<!-- end of (\w+) -->", text)


def test_names_at_the_ends_of_lines_do_not_overlap() -> None:
    points: svg.Points = [(16.0, 1.0), (256.0, 2.0)]
    drawing = svg.lines("t", "x", "y", {"a": points, "b": points, "c": points}, str, str)
    places = sorted(float(y) for y in re.findall(r'y="([\d.]+)" class="name', drawing))
    assert all(lower - upper >= svg.NAME_GAP for upper, lower in itertools.pairwise(places))
    assert len(places) == 3
