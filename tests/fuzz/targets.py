"""What is fuzzed, and the invariant of each target in its first line."""

import base64
import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import numpy as np

from gateway.codec import values
from gateway.codec.compression import Coding, Inflater
from gateway.codec.dialects.answer import DialectAnswer
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.paths import AnswerForm, find, form_of, members_with_all, steps_of, tree_of
from gateway.codec.dialects.walk import Walk
from gateway.codec.inference import BytesPolicy, NonFinite, OutputSelection, TensorPolicy
from gateway.codec.tensors.datatypes import DATATYPES, Kind
from gateway.codec.v2.answer import InferAnswer
from gateway.codec.v2.reply import Reply
from gateway.codec.v2.request import InferRequest
from gateway.errors import CodecError
from tests.codec.walk import parsing
from tests.fuzz import grpc_targets
from tests.steps import run

POLICIES = [TensorPolicy(nonfinite, bytes_) for nonfinite in NonFinite for bytes_ in BytesPolicy]
WORDS = (b"binary_data_size", b"binary_data_output")
LIMIT = 1 << 20


class Provider(Protocol):
    """What is used of atheris's data provider."""

    def ConsumeIntInRange(self, low: int, high: int) -> int: ...  # noqa: N802
    def ConsumeBytes(self, count: int) -> bytes: ...  # noqa: N802
    def ConsumeBool(self) -> bool: ...  # noqa: N802
    def remaining_bytes(self) -> int: ...


def rest(data: Provider) -> bytes:
    return data.ConsumeBytes(data.remaining_bytes())


def fuzz_request(data: Provider) -> None:
    """Any body with any header length is a request, pure JSON or a CodecError; its JSON is whole, unbinary."""
    policy = POLICIES[data.ConsumeIntInRange(0, len(POLICIES) - 1)]
    with_length = data.ConsumeBool()
    length = data.ConsumeIntInRange(0, 4096)
    body = rest(data)
    if with_length and length > len(body):
        length = len(body)
    try:
        request = run(parsing(memoryview(body), length if with_length else None, policy, recover=True))
    except CodecError as error:
        assert str(error)
        return
    if request is None:
        assert not with_length
        return
    check_request(request)


def fuzz_tensors(data: Provider) -> None:
    """A request with well-formed header and any blobs is a CodecError, or its JSON says the values of the blobs."""
    policy = POLICIES[data.ConsumeIntInRange(0, len(POLICIES) - 1)]
    entries, blobs = [], []
    for index in range(data.ConsumeIntInRange(1, 3)):
        datatype = list(DATATYPES.values())[data.ConsumeIntInRange(0, len(DATATYPES) - 1)]
        shape = [data.ConsumeIntInRange(0, 5) for _ in range(data.ConsumeIntInRange(0, 3))]
        wanted = int(np.prod(shape)) * (datatype.item_bytes or 6)
        blob = data.ConsumeBytes(wanted)
        entries.append(
            {
                "name": str(index),
                "shape": shape,
                "datatype": datatype.name,
                "parameters": {"binary_data_size": len(blob)},
            }
        )
        blobs.append(blob)
    header = json.dumps({"inputs": entries}).encode()
    try:
        request = run(parsing(memoryview(header + b"".join(blobs)), len(header), policy, recover=True))
    except CodecError as error:
        assert "input '" in str(error)
        return
    assert request is not None
    sent = check_request(request)
    for entry, tensor in zip(sent["inputs"], request.inputs, strict=True):
        if tensor.datatype.kind in (Kind.INTEGER, Kind.BOOL):
            expected = tensor.datatype.widen(tensor.datatype.view(tensor.blob)).tolist()
            assert entry["data"] == expected
        elif tensor.datatype.kind is Kind.FLOAT and policy.nonfinite is not NonFinite.AS_NULL:
            exact = tensor.datatype.widen(tensor.datatype.view(tensor.blob))
            values = np.array(entry["data"], np.float64).astype(exact.dtype)
            number = ~np.isnan(exact)  # a literal NaN has no payload
            assert np.isnan(values[~number]).all()
            assert values[number].tobytes() == exact[number].tobytes()


def check_request(request: InferRequest) -> Any:
    """The backend's JSON of *request*, which must parse and have no word of the extension as a key."""
    text = b"".join(request.json_pieces())
    assert text == b"".join(request.json_pieces())
    try:
        sent = json.loads(text.decode("utf-8", "surrogatepass"))
    except ValueError:
        # the text of JSON inputs crosses unjudged: only then may the whole be no JSON
        assert any(isinstance(segment, memoryview) for segment in request._segments)
        return None
    for entry in sent["inputs"]:
        parameters = entry.get("parameters") or {}
        assert "binary_data_size" not in parameters
        assert "data" in entry or "shared_memory_region" in parameters
    for entry in sent.get("outputs") or []:
        assert "binary_data" not in (entry.get("parameters") or {})
    return sent


def fuzz_answer(data: Provider) -> None:
    """Any answer is a reply or a CodecError, in whatever pieces it comes; a reply is what Python's parser reads."""
    by_default = data.ConsumeBool()
    selection = OutputSelection(by_default, {"y": data.ConsumeBool()} if data.ConsumeBool() else {})
    cuts = [data.ConsumeIntInRange(1, 40) for _ in range(3)]
    text = rest(data)
    whole = decode(selection, text, [len(text) or 1])
    pieces = decode(selection, text, cuts)
    assert (whole is None) == (pieces is None), (text, cuts)
    if whole is None or pieces is None:
        return
    assert whole == pieces
    answer = json.loads(text)
    blobs = whole[1]
    header = json.loads(whole[0])
    expected = [item for item in answer["outputs"] if selection.is_wanted(item["name"])]
    assert [item["name"] for item in header["outputs"]] == [item["name"] for item in expected]
    sizes = [item.get("parameters", {}).get("binary_data_size") for item in header["outputs"]]
    assert sum(size or 0 for size in sizes) == len(blobs)


def decode(selection: OutputSelection, text: bytes, cuts: list[int]) -> tuple[bytes, bytes] | None:
    """Header and blobs of the reply, None if the answer is refused; *text* is fed in pieces of *cuts*, in turn."""
    decoder = InferAnswer(selection, model="m", request_id=b"", max_bytes=LIMIT)
    try:
        start = turn = 0
        while start < len(text):
            size = cuts[turn % len(cuts)]
            for _ in decoder.feed(text[start : start + size]):
                pass
            start += size
            turn += 1
        reply = run(decoder.finish())
    except CodecError as error:
        assert str(error)
        return None
    return header_and_blobs(reply)


def fuzz_dialects(data: Provider) -> None:
    """Any answer of a dialect is a reply or a CodecError, however it is cut; a reply has what Python reads in it.

    Short values come to the same where a sink reads them.
    """
    form = FORMS[data.ConsumeIntInRange(0, len(FORMS) - 1)]
    description = DESCRIPTIONS[data.ConsumeIntInRange(0, len(DESCRIPTIONS) - 1)]
    selection = OutputSelection(data.ConsumeBool(), {"y": True} if data.ConsumeBool() else {})
    cuts = [data.ConsumeIntInRange(1, 40) for _ in range(3)]
    text = rest(data)
    whole = read_dialect(form, description, selection, text, [len(text) or 1])
    with mock.patch.object(values, "SHORT_BYTES", 0):
        pieces = read_dialect(form, description, selection, text, cuts)
    assert whole == pieces, (text, cuts)
    if whole is None:
        return
    header, octets = json.loads(whole[0]), whole[1]
    expected = values_by_name(text, form, description)
    for entry in header["outputs"]:
        name, shape = entry["name"], entry["shape"]
        datatype = DATATYPES[entry["datatype"]]
        value = expected.pop(name)
        leaves: list[Any] = list(leaves_of(value))
        is_packed = description.outputs[name].encoding == "base64"
        if is_packed:
            rows = [base64.b64decode(leaf.translate({10: None, 13: None}), validate=True) for leaf in leaves]
            leaves = np.frombuffer(b"".join(rows), datatype.wire).tolist()
            value = np.zeros((*shape_of(value), len(leaves) // len(rows)) if rows else shape_of(value)).tolist()
        assert shape == shape_of(value), (shape, value)
        assert len(leaves) == math.prod(shape)
        if "data" in entry:
            assert len(entry["data"]) == len(leaves)
            continue
        size = entry["parameters"]["binary_data_size"]
        blob, octets = octets[:size], octets[size:]
        if datatype.kind is Kind.BYTES:
            elements = [base64.b64decode(leaf["b64"]) if isinstance(leaf, dict) else leaf.encode() for leaf in leaves]
            assert blob == b"".join(len(element).to_bytes(4, "little") + element for element in elements)
        else:
            is_integer = datatype.kind is Kind.INTEGER
            numbers = [math.nan if leaf is None else number_in(leaf, is_integer=is_integer) for leaf in leaves]
            assert size == len(leaves) * datatype.item_bytes
            if datatype.name != "FP32":  # which numpy would round twice
                assert np.array(numbers).astype(datatype.wire).tobytes() == blob
    assert not octets
    assert not [name for name in expected if selection.is_wanted(name)]


def number_in(leaf: Any, *, is_integer: bool) -> Any:
    """The number that *leaf* is, or has in it as a text."""
    if not isinstance(leaf, str):
        return leaf
    return int(Decimal(leaf)) if is_integer else float(leaf)


FORMS = [
    AnswerForm(members_with_all("outputs", "predictions"), b64_objects=True),
    AnswerForm(members_with_all("predictions")),
    AnswerForm(members_with_all("predictions"), b64_objects=True, in_rows=True),
    *(
        AnswerForm(tree_of(paths))
        for paths in (
            {"y": "$.outputs"},
            {"y": "$[*].y", "s": "$[*].s"},
            {"y": "$.outputs[0]", "s": "$.predictions[*].s"},
            {"y": "$.predictions[*][1]", "s": "$.outputs[*]"},
            {"y": "$.predictions[*].y[*].v", "s": "$.predictions[*].s"},
            {"y": "$[*][*].y"},
        )
    ),
    form_of({"y": "$.predictions[*].y", "s": "$.s"}, {"$.ok": True}, "$.why", "$.predictions[*].i"),
]
DESCRIPTIONS = [
    ModelDescription(
        outputs={
            name: TensorDescription(DATATYPES[datatype], encoding="".join(encoding))
            for name, (datatype, *encoding) in ((name, said.split()) for name, said in outputs.items())
        },
        has_output_order=True,
        is_complete=True,
    )
    for outputs in (
        {"y": "FP32"},
        {"y": "INT64", "s": "BYTES"},
        {"y": "BYTES"},
        {"y": "FP64", "b64": "UINT8"},
        {"y": "FP64 text", "s": "UINT64 text"},
        {"y": "INT16 base64", "s": "INT8 text"},
    )
]


def read_dialect(
    form: AnswerForm, description: ModelDescription, selection: OutputSelection, text: bytes, cuts: list[int]
) -> tuple[bytes, bytes] | None:
    """Header and blobs of the reply, None if the answer is refused; *text* is fed in pieces of *cuts*, in turn."""
    answer = DialectAnswer(Walk(form, description, selection), model="m", request_id=b"")
    try:
        start = turn = 0
        while start < len(text):
            size = cuts[turn % len(cuts)]
            for _ in answer.feed(text[start : start + size]):
                pass
            start += size
            turn += 1
        reply = run(answer.finish())
    except CodecError as error:
        assert str(error)
        return None
    return header_and_blobs(reply)


def header_and_blobs(reply: Reply) -> tuple[bytes, bytes]:
    return b"".join(reply.header), b"".join(bytes(blob) for blob in reply.blobs)


def values_by_name(text: bytes, form: AnswerForm, description: ModelDescription) -> dict[str, Any]:
    """The outputs in an answer, as Python's parser reads it."""
    if form.tree.outputs:
        document = json.loads(text)
        known = description.outputs  # a configuration has no paths of others
        if form.order:
            assert document["ok"] is True
            rows = document["predictions"]
            document["predictions"] = sorted(rows, key=lambda row: row["i"])
            assert [row["i"] for row in document["predictions"]] == list(range(len(rows)))
        return {name: at_path(path, document) for name, path in form.tree.outputs.items() if name in known}
    value = [value for name, value in json.loads(text, object_pairs_hook=list_of_pairs) if name in form.tree.inside][-1]
    value = with_objects(value)
    rows = value if isinstance(value, list) else [value]
    is_by_name = bool(rows) and isinstance(rows[0], dict) and not is_element(rows[0], form, description)
    if not is_by_name:
        names = list(description.outputs)
        if len(names) == 1 or value == []:
            return dict.fromkeys(names, value)
        columns = zip(*value, strict=True) if form.in_rows else value
        return {name: list(column) if form.in_rows else column for name, column in zip(names, columns, strict=True)}
    if value is not rows:
        return dict(value)
    return {name: [row[name] for row in rows] for name in rows[0] if all(name in row for row in rows)}


def at_path(path: str, document: Any) -> Any:
    """What is at *path*, in all rows if it has some; None if nothing."""
    before, every, inside = path.partition("[*]")
    rows = find(steps_of(before), document)
    return [at_path(f"${inside}", row) for row in rows] if every and isinstance(rows, list) else rows


class list_of_pairs(list[Any]):  # noqa: N801  a hook of the parser: the members of an object in their order
    pass


def with_objects(value: Any) -> Any:
    if isinstance(value, list_of_pairs):
        return {name: with_objects(item) for name, item in value}
    return [with_objects(item) for item in value] if isinstance(value, list) else value


def is_element(value: dict[str, Any], form: AnswerForm, description: ModelDescription) -> bool:
    return form.b64_objects and next(iter(value), "") == "b64" and "b64" not in description.outputs


def shape_of(value: Any) -> list[int]:
    if not isinstance(value, list):
        return []
    return [len(value), *(shape_of(value[0]) if value else [])]


def leaves_of(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def fuzz_inflate(data: Provider) -> None:
    """Any bytes are inflated within the limit or are a CodecError, the same in whatever pieces they come."""
    coding = Coding.GZIP if data.ConsumeBool() else Coding.DEFLATE
    chunk = data.ConsumeIntInRange(1, 30)
    body = rest(data)
    results: list[bytes | None] = []
    for size in (chunk, len(body) or 1):
        inflater = Inflater(coding, LIMIT)
        try:
            pieces = [
                piece for start in range(0, len(body), size) for piece in inflater.feed(body[start : start + size])
            ]
            inflater.finish()
            results.append(b"".join(pieces))
        except CodecError:
            results.append(None)
    assert results[0] == results[1]


TARGETS: dict[str, Callable[[Provider], None]] = {
    "request": fuzz_request,
    "tensors": fuzz_tensors,
    "answer": fuzz_answer,
    "dialects": fuzz_dialects,
    "inflate": fuzz_inflate,
    "message": grpc_targets.fuzz_message,
    "frames": grpc_targets.fuzz_frames,
}

DIALECT_ANSWERS = [
    '{"predictions":[[0.1,2],[3,4e0]]}',
    '{"outputs":0.5}',
    '{"outputs":{"y":[1,2],"s":["a"]}}',
    '{"predictions":[{"y":1,"s":"a"},{"s":{"b64":"YWI="},"y":2}]}',
    '{"predictions":["a",{"b64":"YWI="}]}',
    '{"outputs":[],"outputs":[[1]]}',
    '{"predictions":[[1,2],["a","b"]]}',
    '{"predictions":[[1,"a"],[2,{"b64":"YWI="}]]}',
    '{"predictions":[[[1],[2]],[[3],[4]]]}',
    '[{"y":1,"s":"a"},{"s":"b","y":2}]',
    '{"outputs":[[1,2],3],"predictions":[{"s":"a"}]}',
    '{"predictions":[[0,[1]],["x",[2]]],"outputs":["a"]}',
    '{"outputs":["1.5","-2","1e5"]}',
    '[{"y":"1","s":"18446744073709551615"},{"s":"0","y":"nan"}]',
    '{"predictions":[{"s":"5"},{"s":"6"}],"outputs":[["AAA=","AQE="]]}',
    '{"predictions":[{"y":[{"v":1},{"v":2}],"s":"a"},{"s":"b","y":[{"v":3},{"v":4}]}]}',
    '[[{"y":1},{"y":2}],[{"y":3},{"y":4}]]',
    '{"ok":true,"predictions":[{"i":1,"y":2},{"i":0,"y":1}],"s":"a"}',
]

_TOKENS = {
    "request": [
        '"inputs":[', '"outputs":[', '"parameters":{', '"binary_data_size":', '"binary_data":true', '"data":[',
        '"shape":[',
        '"datatype":"FP32"', '"datatype":"BYTES"', '"name":"x"', '"binary_data_output":true', "NaN", "null", '"id":"a"',
        '{"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","parameters":{"binary_data_size":1}}]}',
        '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"parameters":{"binary_data_output":true}}',
    ],
    "answer": [
        '{"outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[1,2.5]}]}', '"data":[', '"shape":[2]', "[[",
        "]]",
        '{"outputs":[{"name":"y","datatype":"BYTES","shape":[2],"data":["a","\\u00e9"]}]}', '"parameters":null', "NaN",
        '{"outputs":[{"data":[[1],[0]],"shape":[2,1],"datatype":"BOOL","name":"y"}]}', '"Infinity"', "-0", "1e39",
        "true",
        '"content_type":"base64"', '"datatype":"INT64"', '"datatype":"UINT8"', '"datatype":"BF16"', "\\ud83d\\ude00",
    ],
    "dialects": [
        *DIALECT_ANSWERS, '"predictions":[',
        '"ok":true,', '"i":0', '"i":1', '"v":', '"why":"no"', '"error":null',
        '{"b64":"YWI="}', '"b64":', '"error":"no"', '{"y":', ',"y":', ',"s":',
        "[{", "},{", "}]", "[[", "]]", "NaN", "-Infinity", "null", "true", "-0", "1e39", '"NaN"', "\\u0079",
        "\\ud83d\\ude00", " ", "9007199254740993", '","', '"1.5"', '"inf"', "AAA=",
    ],
}  # fmt: skip


def options(name: str) -> list[str]:
    """libFuzzer's options for a target: a dictionary of its words."""
    if name not in _TOKENS:
        return []
    with tempfile.NamedTemporaryFile("w", suffix=".dict", delete=False) as file:
        for token in _TOKENS[name]:
            file.write('"' + token.replace("\\", "\\\\").replace('"', '\\"') + '"\n')
    return [f"-dict={file.name}", "-max_len=2048"]


def seeds(name: str, folder: Path) -> None:
    """Fill *folder* with the small ones of the codec's pairs; atheris takes the choices from the end of an input."""
    if name == "message":
        for number, message in enumerate(grpc_targets.message_seeds()):
            for choice in (b"\0", b"\1"):
                (folder / f"{number}-{choice[0]}").write_bytes(message + choice)
    if name == "dialects":
        for number, text in enumerate(DIALECT_ANSWERS):
            for description, form in itertools.product(range(len(DESCRIPTIONS)), range(len(FORMS))):
                choices = bytes((5, 7, 9, 0, 1, description, form))
                (folder / f"{number}-{description}-{form}").write_bytes(text.encode() + choices)
    patterns = {
        "request": {"requests/*.bin": b"\x01\x00"},
        "answer": {"answers/*.json": b"\x05\x07\x09\x00\x01"},
    }
    for pattern, choices in patterns.get(name, {}).items():
        for path in (Path(__file__).parent.parent / "codec" / "pairs").glob(pattern):
            body = path.read_bytes()
            if len(body) < 1500:
                header = max(body.rfind(b"}") + 1, 0).to_bytes(2, "little") if path.suffix == ".bin" else b""
                (folder / path.name).write_bytes(body + header + choices)
