"""Bodies that are put together of parts."""

import json
from typing import Any

import pytest

from gateway.codec import TensorPolicy, run
from gateway.codec.dialects.body import body_of
from gateway.codec.dialects.request import DialectRequest, Writer
from gateway.codec.dialects.writing import by_name, instances, only, table
from gateway.codec.inference import Tensor
from gateway.codec.tensors.nested_printing import StringForm
from gateway.errors import CodecError

X = {"name": "x\n", "shape": [2, 1], "datatype": "INT64", "data": [1, 2]}
S = {"name": "s", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}


def written(writer: Writer, *inputs: dict[str, Any], **top: Any) -> Any:
    """What *writer* makes of a request."""
    body = json.dumps({"inputs": inputs, **top}).encode()
    request = run(DialectRequest.parse(memoryview(body), None, TensorPolicy(), recover=False))
    return json.loads(b"".join(request.bound(writer).json_pieces()))


def strings(request: DialectRequest, tensor: Tensor) -> StringForm:
    return StringForm.BASE64


def test_tensors_stand_by_name_alone_in_rows_and_in_a_table() -> None:
    coded = ["YQ==", "Yg=="]
    assert written(body_of({"v": by_name(strings)}), X, S) == {"v": {"x\n": [[1], [2]], "s": coded}}
    assert written(body_of({"v": by_name(strings)})) == {"v": {}}
    assert written(body_of({"v": only(strings)}), S) == {"v": coded}
    rows = [{"x\n": [number], "s": text} for number, text in zip((1, 2), coded, strict=True)]
    assert written(body_of({"v": instances(strings)}), X, S) == {"v": rows}
    assert written(body_of({"v": table(strings)}), X, S) == {"v": [[1, "YQ=="], [2, "Yg=="]]}


def test_what_a_part_cannot_say_is_refused_before_anything_is_made() -> None:
    for part, inputs in ((only(strings), (X, S)), (table(strings), ()), (instances(strings), ())):
        with pytest.raises(CodecError):
            written(body_of({"c": 1, "v": part}), *inputs)
