"""Values of outputs while they are read: the text that waits is bounded, and so is each step."""

import gc
import tracemalloc
import weakref
from collections.abc import Iterator

import pytest

from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.output import Output, Text
from gateway.codec.dialects.paths import AnswerForm, members_with_all
from gateway.codec.dialects.walk import WAITING_BYTES, Walk
from gateway.codec.inference import HeaderLimits, OutputSelection
from gateway.codec.json.arriving import RUN_BYTES, Reading
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.values import Value
from tests.codec.v2.test_header_steps import check_steps
from tests.codec.walk import cut
from tests.steps import run

FORM = AnswerForm(members_with_all("outputs", "predictions"), b64_objects=True)
ROWS = AnswerForm(members_with_all("predictions"), b64_objects=True, in_rows=True)
CHUNK_BYTES = 64 * 1024


def described(names: dict[str, str]) -> ModelDescription:
    outputs = {name: TensorDescription(DATATYPES[names[name]]) for name in names}
    return ModelDescription(outputs=outputs, has_output_order=True)


def answer_for(description: ModelDescription, text: bytes, *, binary: bool = True) -> DialectAnswer:
    """For an answer that begins as *text*: `predictions` are rows."""
    form = ROWS if text.startswith(b'{"predictions"') else FORM
    limits = HeaderLimits(1024 * 1024)
    return DialectAnswer(Walk(form, description, OutputSelection(binary), limits=limits), model="m", request_id=b"")


def wide_rows(count: int, item: str, rows: int) -> bytes:
    row = ",".join(f'"o{number}":{item}' for number in range(count))
    return f'{{"predictions":[{",".join([f"{{{row}}}"] * rows)}]}}'.encode()


def rows_of_lists(count: int, item: str, rows: int) -> bytes:
    row = ",".join([item] * count)
    return f'{{"predictions":[{",".join([f"[{row}]"] * rows)}]}}'.encode()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param(
            wide_rows(1000, "12345678", 400),
            {f"o{number}": "INT8" for number in range(1000)},
            id="a thousand numbers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            rows_of_lists(1000, "12345678", 400),
            {f"o{number}": "INT8" for number in range(1000)},
            id="a thousand numbers without names",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            rows_of_lists(2, "[%s1]" % ("1," * 20_000), 60),
            {"o0": "FP32", "o1": "INT8"},
            id="huge rows without names",
        ),
        pytest.param(
            rows_of_lists(2, "1.5", 300_000),
            {"o0": "FP32", "o1": "FP64"},
            id="tiny rows without names",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            b'{"outputs":[[%b1],[%b1]]}' % (b"1," * 1_000_000, b"1," * 1_000_000),
            {"o0": "FP32", "o1": "INT8"},
            id="without names",
        ),
        pytest.param(
            wide_rows(1000, '"%s"' % ("x" * 700), 10),
            {f"o{number}": "BYTES" for number in range(1000)},
            id="a thousand strings",
        ),
        pytest.param(wide_rows(1, "1.5", 400_000), {"o0": "FP32"}, id="tiny rows", marks=pytest.mark.slow),
        pytest.param(wide_rows(2, "[%s1]" % ("1," * 20_000), 60), {"o0": "FP32", "o1": "INT8"}, id="huge rows"),
        pytest.param(
            b'{"predictions":[%b]}' % b",".join([b"[%b1]" % (b"1," * 500)] * 4000), {"y": "INT8"}, id="nested"
        ),
        pytest.param(b'{"outputs":{"y":"%b"}}' % (b"x" * 4_000_000), {"y": "BYTES"}, id="a string"),
        pytest.param(b'{"outputs":{"b64":"%b"}}' % (b"YWJj" * 1_000_000), {"y": "BYTES"}, id="base64"),
    ],
)
def test_memory_is_the_tensors_and_a_bounded_text(text: bytes, names: dict[str, str]) -> None:
    text = text.replace(b"12345678", b"1" + b" " * 7)
    chunks = cut(text, CHUNK_BYTES)
    answer = answer_for(described(names), text)
    tracemalloc.start()
    try:
        most_waiting = most_held = 0
        for chunk in chunks:
            for _ in answer.feed(chunk):
                pass
            most_held = max(most_held, answer.held_bytes)
            most_waiting = max(most_waiting, sum(len(output.waiting) for output in answer._walk.found.values()))
        reply = run(answer.finish())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tensor_bytes = sum(map(len, reply.blobs))
    assert most_waiting <= WAITING_BYTES + 1000 * RUN_BYTES
    assert answer.held_bytes == tensor_bytes
    assert most_held < 1.3 * tensor_bytes + WAITING_BYTES + 1000 * RUN_BYTES
    assert peak_bytes < 1.3 * tensor_bytes + 2 * WAITING_BYTES + len(names) * 2500


def test_names_of_outputs_that_nobody_wants_are_not_kept() -> None:
    text = b'{"outputs":{%b,"y":1}}' % b",".join(b'"%d":1' % number for number in range(20_000))
    walk = Walk(FORM, described({"y": "INT8"}), OutputSelection(True, {"y": True}))
    answer = DialectAnswer(walk, model="m", request_id=b"")
    tracemalloc.start()
    try:
        for chunk in cut(text, CHUNK_BYTES):
            for _ in answer.feed(chunk):
                pass
        reply = run(answer.finish())
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [bytes(blob) for blob in reply.blobs] == [b"\1"]
    assert peak_bytes < 1024 * 1024


def test_nothing_of_a_finished_or_an_abandoned_answer_waits_for_the_garbage_collector() -> None:
    texts = [
        '{"outputs":{"y":[1,2]}}',
        '{"predictions":[{"y":1},{"y":2}]}',
        '{"predictions":[{"y":1},{"y":',
        '{"outputs":[1,',
        '{"outputs":[[1],[2]]}',
        '{"outputs":[[1],[2,',
        '{"predictions":[[1,2],[3,4]]}',
        '{"predictions":[[1,2],[3,',
    ]
    gc.collect()
    gc.disable()
    try:
        for text in texts:
            names = {"y": "FP32", "n": "INT8"} if "[2" in text or "[1,2]," in text else {"y": "FP32"}
            answer = answer_for(described(names), text.encode())
            for _ in answer.feed(text.encode()):
                pass
            walk = weakref.ref(answer._walk)
            if text.endswith("}"):
                run(answer.finish())
            assert walk() is not None
            del answer
            assert walk() is None, text
    finally:
        gc.enable()


def test_short_values_of_long_rows_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    read_alone = Output.read

    def counted(output: Output, text: Text) -> Reading[Value]:
        read.append(output.name)
        return read_alone(output, text)

    monkeypatch.setattr(Output, "read", counted)
    outputs = {f"o{number}": "INT8" for number in range(1000)}
    text = wide_rows(1000, "7", 30)
    answer = answer_for(described(outputs), text)
    for _ in answer.feed(text):
        pass
    reply = run(answer.finish())
    assert read == list(outputs)
    assert [bytes(blob) for blob in reply.blobs] == [b"\7" * 30] * 1000


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (wide_rows(1000, "1", 10), {f"o{number}": "INT8" for number in range(1000)}),
        (rows_of_lists(1000, "1", 30), {f"o{number}": "INT8" for number in range(1000)}),
        (rows_of_lists(2, "1", 20_000), {"o0": "FP32", "o1": "INT8"}),
        (rows_of_lists(2, "NaN", 20_000), {"o0": "FP32", "o1": "FP64"}),
        (b'{"outputs":[%b]}' % b",".join([b"[%b1]" % (b"1," * 2100)] * 1000), {f"o{n}": "INT8" for n in range(1000)}),
        (b'{"outputs":[%b]}' % b",".join([b"1"] * 1000), {f"o{n}": "INT8" for n in range(1000)}),
        (b'{"predictions":[%b[1,nul]]}' % (b"[1,2]," * 1000), {"o0": "INT8", "y": "FP32"}),
        (b'{"predictions":[%b]}' % b",".join([b'{"y":1}'] * 60_000), {"y": "FP32"}),
        (b'{"predictions":[%b]}' % b",".join([b'{"y":NaN}'] * 20_000), {"y": "FP32"}),
        (b'{"predictions":[%b]}' % b",".join([b"{}"] * 60_000), {"y": "FP32"}),
        (
            b'{"outputs":{%b}}' % b",".join(b'"o%d":[%b1]' % (number, b"1," * 2100) for number in range(1000)),
            {f"o{n}": "INT8" for n in range(1000)},
        ),
        (b'{"outputs":[1],%b}' % b",".join(b'"%x":1' % number for number in range(20_000)), {"y": "FP32"}),
        (b'{"outputs":[%b{"b64":"YQ=="}]}' % (b'{"b64":"YQ=="},' * 15_000), {"y": "BYTES"}),
        (
            b'{"outputs":{%b"y":nul}}' % b"".join(b'"o%d":1,' % number for number in range(900)),
            {**{f"o{number}": "INT8" for number in range(900)}, "y": "FP32"},
        ),
        (b'{"predictions":[%b{"y":nul}]}' % (b'{"y":1},' * 1000), {"y": "FP32"}),
    ],
    ids=[
        "wide",
        "wide without names",
        "tiny rows without names",
        "NaN without names",
        "without names",
        "numbers without names",
        "malformed without names",
        "tiny rows",
        "NaN",
        "empty rows",
        "named",
        "beside",
        "base64",
        "malformed member",
        "malformed row",
    ],
)
@pytest.mark.parametrize("binary", [True, False])
def test_answer_is_read_in_short_steps(text: bytes, names: dict[str, str], binary: bool) -> None:
    answer = answer_for(described(names), text, binary=binary)

    def steps() -> Iterator[None]:
        for chunk in cut(text, CHUNK_BYTES):
            yield from answer.feed(chunk)
        yield from answer.finish()

    refusal = "output 'y'" if b"[{}" in text or b"nul" in text else None
    check_steps(steps(), refusal)  # type: ignore[arg-type]
