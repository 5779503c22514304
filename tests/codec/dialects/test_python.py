"""What the gateway knows of a server behind an adapter, and the reading of one answer."""

from typing import Any

import numpy as np
import pytest

from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.python import PARSED_PER_BYTE, AdapterAnswer, PythonDialect, WholeJson
from gateway.codec.inference import OutputSelection
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.v2.reply import Reply
from gateway.errors import CodecError
from tests.steps import run

Y = ModelDescription(outputs={"y": TensorDescription(DATATYPES["FP32"], ("n",))})


def reader(answer: Any, selection: OutputSelection | None = None, request_id: bytes = b"") -> AdapterAnswer:
    selection = selection or OutputSelection(binary_by_default=True)
    return AdapterAnswer(Y, selection, {"n": 2}, answer, model="m", request_id=request_id, version="3")


def test_a_model_has_paths_if_it_is_described_whatever_its_version() -> None:
    dialect = PythonDialect()
    assert dialect.paths("m", None, Y).infer == dialect.paths("m", "1", Y).infer == "/"
    assert dialect.paths("m", None).infer == ""
    assert dialect.parameters(Y) is None


@pytest.mark.parametrize("cut", [0, 1, 5, 11])
def test_an_answer_is_collected_and_given_to_the_adapter_once(cut: int) -> None:
    bodies = []

    def answer(body: Any) -> Any:
        bodies.append(body)
        return {"y": np.array(body["y"], np.float32)}

    text = b'{"y": [1, 2]}'
    decoder = reader(answer, request_id=b'"7"')
    run(decoder.feed(text[:cut]))
    assert decoder.held_bytes == cut * (1 + PARSED_PER_BYTE)
    reply = run(decoder.finish(text[cut:]))
    assert isinstance(reply, Reply)
    assert bodies == [{"y": [1, 2]}]
    assert b"".join(reply.blobs) == np.array([1, 2], np.float32).tobytes()
    assert b'"model_version":"3"' in b"".join(reply.header)
    assert b'"id":"7"' in b"".join(reply.header)
    assert decoder.held_bytes == 8


def test_an_output_in_json_is_printed() -> None:
    reply = run(reader(lambda body: {"y": body}, OutputSelection()).finish(b"[0.5, NaN]"))
    assert reply.blobs == []
    assert b'"data":[0.5,NaN]' in b"".join(reply.header)
    assert reply.nonfinite == 1


def test_what_is_no_json_is_not_given_to_the_adapter() -> None:
    with pytest.raises(CodecError, match="no JSON"):
        run(reader(lambda body: pytest.fail("it is no JSON")).finish(b'{"y":'))


def test_a_body_is_sent_in_pieces_as_often_as_it_is_asked_for() -> None:
    text = bytes(range(256)) * 3000
    whole = WholeJson(text)
    for _ in range(2):
        pieces = list(whole.texts())
        assert b"".join(pieces) == text
        assert max(map(len, pieces)) == PIECE_BYTES
    assert run(whole.json_bytes()) == len(text)
