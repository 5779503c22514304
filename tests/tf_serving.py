"""A strict stand-in for TensorFlow Serving's REST API, which cannot be installed everywhere: no TensorFlow is in it.

It follows the documentation (`g3doc/api_rest.md`) and the source of TensorFlow Serving (`http_rest_api_util.cc`,
`json_tensor.cc`, commit 9d981c5) in what it accepts, in the words and statuses of its errors, and in how it writes
JSON: numbers in six digits if these are exact, one on a line in columnar form, NaN and infinities as literals, strings
without a check of their UTF-8. Where it differs, it is stricter: shapes of fixed size are checked, integers that do not
fit their datatype are refused, and so are floats, and integers for floats, that lose precision: versions before 2.5 did
that, later ones make them infinite or round them. FP64 is read exactly; TensorFlow Serving's parser (RapidJSON without
`kParseFullPrecisionFlag`) may be wrong by three units in the last place.

`with tf_serving() as url` runs it as a process of its own, `python -m tests.tf_serving` in the foreground. The models
are in `MODELS`.
"""

import asyncio
import base64
import binascii
import json
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
from aiohttp import web

Array = npt.NDArray[Any]
Arrays = dict[str, Array]

PLAIN_ERRORS = web.AppKey("plain_errors", bool)
ROOT = Path(__file__).parent.parent
MAX_BODY_BYTES = 1024**3
STOP_S = 10

NUMPY = {
    "bool": np.bool_,
    "uint8": np.uint8,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float": np.float32,
    "double": np.float64,
    "string": np.object_,
}
"""The datatypes that its JSON knows, by TensorFlow's names."""

ONLY_DESCRIBED = ("half", "bfloat16", "uint16")
"""Datatypes of models that it loads and describes, but reads and writes no JSON of."""

_PREDICT = re.compile(r"(?i)/v1/models/([^/:]+)(?:/versions/(\d+))?:(classify|regress|predict)")
_STATUS = re.compile(r"(?i)/v1/models(?:/([^/:]+))?(?:/versions/(\d+))?(?:/(metadata))?")
_INTEGERS = {"uint8", "uint32", "uint64", "int8", "int16", "int32", "int64"}
_EXACT_IN = {"float": 2**24 - 1, "double": 2**53 - 1}


CODES = {400: "INVALID_ARGUMENT", 501: "UNIMPLEMENTED"}
"""What TensorFlow calls the errors that have these statuses."""


class RefusedError(Exception):
    """An error, with the HTTP status that TensorFlow Serving has for its code."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def invalid(words: str) -> RefusedError:
    return RefusedError(400, words)


@dataclass(frozen=True)
class Tensor:
    """An input or output; a shape of None has an unknown rank."""

    dtype: str
    shape: tuple[int, ...] | None = (-1,)


@dataclass(frozen=True)
class Signature:
    """What a model computes under one name."""

    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    compute: Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Model:
    """The versions of a model, of which the highest that is available is the usual one."""

    versions: Mapping[int, Mapping[str, Signature]]
    state: str = "AVAILABLE"


def identity(inputs: Arrays) -> Arrays:
    return inputs


def half_plus(constant: float) -> Mapping[str, Signature]:
    x, y = {"x": Tensor("float", (-1, 1))}, {"y": Tensor("float", (-1, 1))}
    return {
        "serving_default": Signature(x, y, lambda inputs: {"y": inputs["x"] / np.float32(2) + np.float32(constant)}),
        "triple": Signature(x, y, lambda inputs: {"y": inputs["x"] * np.float32(3)}),
    }


def default(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], compute: Callable[[Arrays], Arrays]) -> Model:
    return Model({1: {"serving_default": Signature(inputs, outputs, compute)}})


def broken(inputs: Arrays) -> Arrays:
    raise RefusedError(500, "boom: the kernel has failed\n\t [[{{node y}}]]")


def same(tensor: Tensor, name: str = "x") -> Model:
    return default({name: tensor}, {name: tensor}, identity)


MODELS: dict[str, Model] = {
    # x / 2 + 2, in its older version + 3; the signature `triple` is 3 x
    "half_plus_two": Model({122: half_plus(3), 123: half_plus(2)}),
    # two inputs, two outputs
    "pair": default(
        {"a": Tensor("float", (-1, 2)), "b": Tensor("int64")},
        {"sum": Tensor("float", (-1, 2)), "twice": Tensor("int64")},
        lambda inputs: {
            "sum": inputs["a"] + inputs["b"].astype(np.float32)[:, np.newaxis],
            "twice": inputs["b"] * 2,
        },
    ),
    # inputs of different first dimensions, and a scalar among the outputs: for the columnar form only
    "weighted": default(
        {"rows": Tensor("float", (-1, 2)), "weights": Tensor("float", (2,))},
        {"weighted": Tensor("float", (-1, 2)), "total": Tensor("float", ())},
        lambda inputs: {
            "weighted": inputs["rows"] * inputs["weights"],
            "total": (inputs["rows"] * inputs["weights"]).sum(dtype=np.float32),
        },
    ),
    # strings as they are, and in base64 where the name ends in _bytes
    "text": default(
        {"text": Tensor("string")},
        {"text": Tensor("string"), "raw_bytes": Tensor("string")},
        lambda inputs: {"text": inputs["text"], "raw_bytes": inputs["text"]},
    ),
    "only_bytes": default({"image_bytes": Tensor("string")}, {"image_bytes": Tensor("string")}, identity),
    "image": same(Tensor("float", (-1, 3, 224, 224)), "image"),
    "scalar": same(Tensor("float", ())),
    "any_rank": same(Tensor("float", None)),
    # the first half of its rows
    "filter": default(
        {"x": Tensor("float", (-1, 2))}, {"x": Tensor("float", (-1, 2))}, lambda inputs: {"x": inputs["x"][:0]}
    ),
    "broken": default({"x": Tensor("float")}, {"y": Tensor("float")}, broken),
    "loading": Model({7: half_plus(2)}, state="LOADING"),
    "no_default": Model({1: {"custom": half_plus(2)["serving_default"]}}),
    **{dtype: same(Tensor(dtype)) for dtype in (*NUMPY, *ONLY_DESCRIBED)},
}


# Requests


def found(name: str, version: str | None) -> tuple[Model, int]:
    """The model and the number of its version. Raises `RefusedError` unless it can be used."""
    model = MODELS.get(name)
    if model is not None and model.state == "AVAILABLE":
        number = max(model.versions) if version is None else int(version)
        if number in model.versions:
            return model, number
    asked = f"Latest({name})" if version is None else f"Specific({name}, {int(version)})"
    raise RefusedError(404, f"Servable not found for request: {asked}")


def predict(name: str, version: str | None, body: bytes) -> bytes:
    if not body:
        raise invalid("JSON Parse error: The document is empty")
    try:
        document = json.loads(body.decode(errors="surrogateescape"))
    except json.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: Invalid value. at offset: {error.pos}") from None
    if not isinstance(document, dict):
        raise invalid(f"JSON Value: {json.dumps(document)[:64]} Is not object")
    signature_name = document.get("signature_name", "")
    if not isinstance(signature_name, str):
        raise invalid("JSON Value: ... not formatted correctly. 'signature_name' key must be a string value.")
    model, number = found(name, version)
    signature_name = signature_name or "serving_default"
    signature = model.versions[number].get(signature_name)
    if signature is None:
        raise invalid(f'Serving signature name: "{signature_name}" not found in signature def')
    if "instances" in document and "inputs" in document:
        raise invalid("Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ")
    if "instances" in document:
        return row_text(signature.outputs, signature.compute(row_inputs(document["instances"], signature.inputs)))
    if "inputs" in document:
        inputs = columnar_inputs(document["inputs"], signature.inputs)
        return columnar_text(signature.outputs, signature.compute(inputs))
    raise invalid("Missing 'inputs' or 'instances' key")


def row_inputs(instances: Any, described: Mapping[str, Tensor]) -> Arrays:
    if not isinstance(instances, list):
        raise invalid("JSON Value: ... Expecting 'instances' to be an list/array")
    if not instances:
        raise invalid("JSON Value: ... No values in 'instances' array")
    if not isinstance(instances[0], dict) and len(described) > 1:
        raise invalid(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
            "tensorinfo_map"
        )
    are_objects = is_named(instances[0])
    rows: dict[str, list[Array]] = {name: [] for name in described}
    for index, row in enumerate(instances):
        if are_objects != is_named(row):
            words = "object but got list" if are_objects else "value/list but got object"
            raise invalid(f"Expecting {words} at item {index} of input list")
        named = row if are_objects else {next(iter(described)): row}
        for name, value in named.items():
            key = f" key: {name}" if are_objects else ""
            try:
                add_row(rows, name, value, described)
            except RefusedError as error:
                code = CODES[error.status]
                words = f"Failed to process element: {index}{key} of 'instances' list. Error: {code}: {error}"
                raise invalid(words) from None
        if named.keys() != described.keys():
            raise invalid(
                f"Failed to process element: {index} of 'instances' list. JSON object: {json.dumps(row)[:256]} keys "
                f"must be equal to: {','.join(sorted(described))}"
            )
    return {name: checked(np.stack(values), name, described[name]) for name, values in rows.items()}


def add_row(rows: dict[str, list[Array]], name: str, value: Any, described: Mapping[str, Tensor]) -> None:
    """Read *value* as the next row of input *name*."""
    if name not in rows:
        raise invalid(f"JSON object: does not have named input: {name}")
    row = array_of(value, described[name])
    rows[name].append(row)
    first = rows[name][0]
    if row.size != first.size:
        raise invalid(f"Expecting tensor size: {first.size} but got: {row.size}")
    if row.shape != first.shape:
        shapes = [f"[{','.join(map(str, each.shape))}]" for each in (first, row)]
        raise invalid(f"Expecting shape {shapes[0]} but got: {shapes[1]}")


def columnar_inputs(inputs: Any, described: Mapping[str, Tensor]) -> Arrays:
    if not is_named(inputs):
        if len(described) > 1:
            raise invalid(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            )
        name = next(iter(described))
        return {name: checked(array_of(inputs, described[name]), name, described[name])}
    for name in described:
        if name not in inputs:
            raise invalid(f"Missing named input: {name} in 'inputs' object.")
    return {name: checked(array_of(inputs[name], tensor), name, tensor) for name, tensor in described.items()}


def is_named(value: Any) -> bool:
    """Whether *value* holds tensors by name, and is no string in base64."""
    return isinstance(value, dict) and not is_base64(value)


def is_base64(value: dict[str, Any]) -> bool:
    return value.keys() == {"b64"} and isinstance(value["b64"], str)


def shape_of(value: Any) -> list[int]:
    """The shape along the first items."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return shape


def array_of(value: Any, tensor: Tensor) -> Array:
    shape = shape_of(value)
    values: list[Any] = []
    read(value, 0, shape, tensor.dtype, values)
    array: Array = np.empty(len(values), NUMPY.get(tensor.dtype, np.object_))
    array[:] = values
    return array.reshape(shape)


def checked(array: Array, name: str, tensor: Tensor) -> Array:
    """*array*, if the model takes its shape."""
    if tensor.shape is not None and any(size > 1 for size in tensor.shape) and not fits(array.shape, tensor.shape):
        words = f"Cannot feed value of shape {list(array.shape)} for Tensor {name}:0, which has shape "
        raise invalid(f"{words}{list(tensor.shape)}")
    return array


def fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(size in (-1, got) for size, got in zip(expected, shape, strict=True))


def read(value: Any, level: int, shape: list[int], dtype: str, values: list[Any]) -> None:
    """Append the elements of *value* to *values*, which must be nested as *shape* says."""
    if not isinstance(value, list):
        if level != len(shape):
            raise invalid(
                f"JSON Value: {json.dumps(value)} found at incorrect level: {level + 1} in the JSON DOM. Expected at "
                f"level: {len(shape)}"
            )
        values.append(element(value, dtype))
        return
    if level >= len(shape):
        raise invalid(f"Encountered list at unexpected level: {level} expected < {len(shape)}")
    if len(value) != shape[level]:
        raise invalid(
            f"Encountered list at unexpected size: {len(value)} at level: {level} expected size: {shape[level]}"
        )
    for item in value:
        read(item, level + 1, shape, dtype, values)


def element(value: Any, dtype: str) -> Any:
    kinds = {bool: "False" if value is False else "True", str: "String", dict: "Object", type(None): "Null"}
    mismatch = invalid(
        f"JSON Value: {json.dumps(value)} Type: {kinds.get(type(value), 'Number')} is not of expected type: {dtype}"
    )
    if dtype in ONLY_DESCRIBED:
        raise RefusedError(501, f"Conversion of JSON Value: {json.dumps(value)} to type: {dtype}")
    if dtype == "string" and isinstance(value, dict):
        if not is_base64(value):
            raise invalid(f"JSON Value: {json.dumps(value)} not formatted correctly for base64 data")
        try:
            return base64.b64decode(value["b64"], validate=True)
        except binascii.Error:
            raise invalid("Unable to base64 decode") from None
    if dtype == "string":
        if not isinstance(value, str):
            raise mismatch
        return value.encode(errors="surrogateescape")
    if dtype == "bool":
        if not isinstance(value, bool):
            raise mismatch
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise mismatch
    if dtype in _INTEGERS:
        bounds = np.iinfo(NUMPY[dtype])
        if not isinstance(value, int) or not bounds.min <= value <= bounds.max:
            raise mismatch
        return value
    too_much = abs(value) > (_EXACT_IN[dtype] if isinstance(value, int) else float(np.finfo(NUMPY[dtype]).max))
    if too_much and math.isfinite(value):
        raise invalid(f"Cannot convert JSON value: {value} to {dtype} without loss of precision.")
    return value


# Answers


def columnar_text(described: Mapping[str, Tensor], outputs: Arrays) -> bytes:
    if len(described) == 1:
        (name,) = described
        return b'{\n    "outputs": %b\n}' % nested(texts_of(outputs[name], name), outputs[name].shape, 4)
    members = [
        b'        "%b": %b' % (name.encode(), nested(texts_of(outputs[name], name), outputs[name].shape, 8))
        for name in described
    ]
    return b'{\n    "outputs": {\n%b\n    }\n}' % b",\n".join(members)


def row_text(described: Mapping[str, Tensor], outputs: Arrays) -> bytes:
    for name in described:
        if not outputs[name].shape:
            raise invalid(f"Tensor name: {name} has no shape information ")
    sizes = {len(outputs[name]) for name in described}
    if len(sizes) > 1:
        raise invalid(f"Tensor name: {name} has inconsistent batch size: {max(sizes)} expecting: {min(sizes)}")
    rows: list[bytes] = []
    for index in range(sizes.pop()):
        values = {name: row_value(outputs[name][index : index + 1], name) for name in described}
        if len(values) == 1:
            rows += values.values()
        else:
            members = b",\n".join(b'            "%b": %b' % (name.encode(), text) for name, text in values.items())
            rows.append(b"{\n%b\n        }" % members)
    text = b"[\n        %b\n    ]" % b",\n        ".join(rows) if rows else b"[]"
    return b'{\n    "predictions": %b\n}' % text


def row_value(row: Array, name: str) -> bytes:
    return in_one_line(texts_of(row, name), row.shape[1:])


def texts_of(array: Array, name: str) -> list[bytes]:
    """Each element of *array* as JSON."""
    flat = np.asarray(array).ravel()
    if flat.dtype == np.object_:
        return [string_text(value, name.endswith("_bytes")) for value in flat.tolist()]
    if flat.dtype == np.bool_:
        return [b"true" if value else b"false" for value in flat.tolist()]
    if flat.dtype.kind != "f":
        return [b"%d" % value for value in flat.tolist()]
    values = flat.tolist()
    short = np.array([f"{value:.6g}" for value in values], dtype=str)
    exact = (short.astype(flat.dtype) == flat) | np.isnan(flat)
    digits = 9 if flat.dtype == np.float32 else 17
    return [
        decimal(text if is_exact else f"{value:.{digits}g}")
        for text, is_exact, value in zip(short.tolist(), exact.tolist(), values, strict=True)
    ]


def decimal(text: str) -> bytes:
    named = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}.get(text)
    return named or (text if "." in text or "e" in text else f"{text}.0").encode()


def string_text(value: bytes, is_base64: bool) -> bytes:
    if is_base64:
        return b'{\n            "b64": "%b"\n        }' % base64.b64encode(value)
    # bytes that are no UTF-8 go out as they are
    return json.dumps(value.decode("latin-1"), ensure_ascii=False).encode("latin-1")


def nested(texts: list[bytes], shape: tuple[int, ...], indent: int) -> bytes:
    if not shape:
        return texts[0]
    if not shape[0]:
        return b"[]"
    size = len(texts) // shape[0]
    items = [nested(texts[start : start + size], shape[1:], indent + 4) for start in starts(shape[0], size)]
    blanks = b"\n" + b" " * indent
    return b"[" + b",".join(blanks + b"    " + item for item in items) + blanks + b"]"


def in_one_line(texts: list[bytes], shape: tuple[int, ...]) -> bytes:
    if not shape:
        return texts[0]
    size = len(texts) // shape[0] if shape[0] else 0
    return b"[%b]" % b", ".join(in_one_line(texts[start : start + size], shape[1:]) for start in starts(shape[0], size))


def starts(count: int, size: int) -> Iterator[int]:
    return (index * size for index in range(count))


# Status and metadata


def status_text(name: str, version: str | None) -> bytes:
    model = MODELS.get(name)
    if model is None:
        raise RefusedError(404, f"Could not find any versions of model {name}")
    if version is not None and int(version) not in model.versions:
        raise RefusedError(404, f"Could not find version {int(version)} of model {name}")
    rows = [
        {"version": str(number), "state": model.state, "status": {"error_code": "OK", "error_message": ""}}
        for number in sorted(model.versions, reverse=True)
        if version is None or number == int(version)
    ]
    return json.dumps({"model_version_status": rows}, indent=1).encode()


def metadata_text(name: str, version: str | None) -> bytes:
    model, number = found(name, version)
    signatures = {
        signature_name: {
            "inputs": {each: tensor_info(each, tensor) for each, tensor in signature.inputs.items()},
            "outputs": {each: tensor_info(each, tensor) for each, tensor in signature.outputs.items()},
            "method_name": "tensorflow/serving/predict",
            "defaults": {},
        }
        for signature_name, signature in model.versions[number].items()
    }
    # what TensorFlow 2 saves beside the model's own signatures
    started = {"dtype": "DT_INVALID", "tensor_shape": {"dim": [], "unknown_rank": True}, "name": "NoOp"}
    signatures["__saved_model_init_op"] = {
        "inputs": {},
        "outputs": {"__saved_model_init_op": started},
        "method_name": "",
        "defaults": {},
    }
    spec = {"name": name, "signature_name": "", "version": str(number)}
    return b'{\n"model_spec":%b,\n"metadata": {"signature_def": %b}\n}\n' % (
        json.dumps(spec, indent=1).encode(),
        json.dumps({"signature_def": signatures}, indent=1).encode(),
    )


def tensor_info(name: str, tensor: Tensor) -> dict[str, Any]:
    dimensions = [{"size": str(size), "name": ""} for size in tensor.shape or ()]
    return {
        "dtype": f"DT_{tensor.dtype.upper()}",
        "tensor_shape": {"dim": dimensions, "unknown_rank": tensor.shape is None},
        "name": f"{name}:0",
    }


# HTTP


async def handle(request: web.Request) -> web.Response:
    path = request.raw_path.partition("?")[0]
    if not path.lower().startswith("/v1/"):
        return web.Response(status=404)
    status, text = 200, b""
    try:
        text = answer(request.method, path, await request.read())
    except RefusedError as refusal:
        status, text = refusal.status, json.dumps({"error": str(refusal)}, indent=4).encode()
    # errors of some of its versions, and of proxies before it, have no type of their own
    content_type = "text/plain" if status != 200 and request.app[PLAIN_ERRORS] else "application/json"
    return web.Response(status=status, body=text, content_type=content_type)


def answer(method: str, path: str, body: bytes) -> bytes:
    asked = _PREDICT.fullmatch(path) if method == "POST" else _STATUS.fullmatch(path) if method == "GET" else None
    if asked is None:
        raise invalid(f"Malformed request: {method} {path}")
    name, version, last = asked.groups()
    if not name:
        raise invalid("Missing model name in request.")
    if method == "POST":
        if last != "predict":
            raise RefusedError(501, f"this stand-in knows no {last}")
        return predict(unquote(name), version, body)
    return (metadata_text if last else status_text)(unquote(name), version)


@contextmanager
def tf_serving(*options: str) -> Iterator[str]:
    """The stand-in as a process of its own, with these *options* of `main`; its URL."""
    command = [sys.executable, "-m", "tests.tf_serving", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), "it says its address when it is ready"
            yield url
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


async def main(options: list[str]) -> None:
    """Serve on a free port until SIGTERM; the first line of standard output is the address.

    With `--plain-errors` errors have the content type text/plain.
    """
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app[PLAIN_ERRORS] = "--plain-errors" in options
    app.router.add_route("*", "/{path:.*}", handle)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, shutdown_timeout=1)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await ended.wait()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
