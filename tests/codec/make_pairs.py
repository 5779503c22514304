"""Makes the files of `pairs/` with numpy and ml_dtypes: nothing here knows the gateway.

A request pair is `requests/NAME.bin`, the whole body that a client sends, and `requests/NAME.json`, what the
backend is to get. An answer pair is `answers/NAME.json`, what the backend says, and `answers/NAME.bin`, the
whole body that the client is to get. `index.toml` has a table per pair: what it shows, the length of the JSON
at the front of the `.bin`, and the settings under which it holds.

Run `python tests/codec/make_pairs.py` to write them again.
"""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

PAIRS = Path(__file__).parent / "pairs"

WIRE: dict[str, Any] = {
    "BOOL": np.dtype("u1"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}

TEXTS = ["a", "", "é", "nul\0inside", "日本語 😀", 'quote " backslash \\ tab \t newline \n', "[1,2],{}"]


def edges(datatype: str) -> Any:
    """The values of *datatype* at which conversions go wrong."""
    wire = WIRE[datatype]
    if datatype == "BOOL":
        return np.array([0, 1, 2, 255], wire)
    if wire.kind in "iu":
        limits = np.iinfo(wire)
        values = [int(limits.min), int(limits.max), 0, 1, int(limits.max) - 1, int(limits.max) // 2 + 1]
        if wire.itemsize == 8:
            values += [2**53 + 1, 2**53 - 1]
            values += [-(2**53) - 1, -1] if wire.kind == "i" else [2**63, 2**63 + 1]
        return np.array(values, wire)
    info: Any = ml_dtypes.finfo(wire)  # type: ignore[no-untyped-call]
    tiny, least = float(info.tiny), float(info.smallest_subnormal)
    floats = [0.0, -0.0, 0.1, -1 / 3, 1.0, float(info.max), float(info.min), tiny, -tiny, least, -least, tiny - least]
    return np.array(floats, "f8").astype(wire)


def blob_of(values: Any) -> bytes:
    """The bytes of a tensor on the wire."""
    if isinstance(values, list):
        elements = [value if isinstance(value, bytes) else value.encode() for value in values]
        return b"".join([len(element).to_bytes(4, "little") + element for element in elements])
    return bytes(values.tobytes())


def json_of(values: Any, datatype: str) -> list[Any]:
    """The values of a tensor as a flat list for `json`."""
    if isinstance(values, list):
        return values
    flat = values.reshape(-1)
    if datatype == "BOOL":
        return [bool(value) for value in flat]
    if flat.dtype.kind in "iu":
        return [int(value) for value in flat]
    # the shortest decimal that reads back to the same FP32 (or FP64)
    wide = flat if datatype == "FP64" else flat.astype("f4")
    return [float(np.format_float_scientific(value, unique=True)) for value in wide]


def compact(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass
class Pair:
    """One pair, and its table in the index."""

    about: str
    header: bytes
    blobs: bytes
    json: bytes
    settings: dict[str, str] = field(default_factory=dict)


def binary_input(name: str, datatype: str, values: Any, shape: list[int] | None = None, **parameters: Any) -> Any:
    shape = [len(values)] if shape is None else shape
    members = {"binary_data_size": len(blob_of(values)), **parameters}
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": members}


def json_input(name: str, datatype: str, data: Any, shape: list[int], parameters: Any = None) -> Any:
    entry = {"name": name, "shape": shape, "datatype": datatype, "data": data}
    return entry if parameters is None else {**entry, "parameters": parameters}


def edge_values(datatype: str) -> Any:
    return TEXTS if datatype == "BYTES" else edges(datatype)


def requests() -> dict[str, Pair]:
    """Every request pair by its name."""
    pairs: dict[str, Pair] = {}
    for datatype in [*WIRE, "BYTES"]:
        values = edge_values(datatype)
        pairs[f"edges_{datatype.lower()}"] = Pair(
            f"{datatype}: limits, negative zero, denormals, or the difficult strings",
            compact({"inputs": [binary_input("x", datatype, values)]}),
            blob_of(values),
            compact({"inputs": [json_input("x", datatype, json_of(values, datatype), [len(values)])]}),
        )
    halves = {name: edges(name) for name in ("FP16", "BF16")}
    pairs["promoted_halves"] = Pair(
        "FP16 and BF16 for a backend that knows neither",
        compact({"inputs": [binary_input(name, name, values) for name, values in halves.items()]}),
        b"".join(blob_of(values) for values in halves.values()),
        compact({"inputs": [json_input(n, "FP32", json_of(v, n), [len(v)]) for n, v in halves.items()]}),
        {"half_precision": "promote"},
    )
    pixels = np.arange(6, dtype="<f4").reshape(1, 2, 3) / 8
    pairs["scalars_and_empty_tensors"] = Pair(
        "shape [] is one element, a dimension 0 makes none; kserve sends `data: null` beside size 0",
        compact(
            {
                "inputs": [
                    binary_input("scalar", "INT32", np.array([7], "<i4"), []),
                    binary_input("text", "BYTES", ["one"], []),
                    binary_input("none", "FP32", np.array([], "<f4"), [2, 0, 3]),
                    {**binary_input("null", "FP64", np.array([], "<f8"), [0]), "data": None},
                    binary_input("no_text", "BYTES", [], [0]),
                    binary_input("last", "UINT8", np.array([9], "u1"), [1]),
                ]
            }
        ),
        blob_of(np.array([7], "<i4")) + blob_of(["one"]) + b"\x09",
        compact(
            {
                "inputs": [
                    json_input("scalar", "INT32", [7], []),
                    json_input("text", "BYTES", ["one"], []),
                    json_input("none", "FP32", [], [2, 0, 3]),
                    json_input("null", "FP64", [], [0]),
                    json_input("no_text", "BYTES", [], [0]),
                    json_input("last", "UINT8", [9], [1]),
                ]
            }
        ),
    )
    mixed_json = json_input("ids", "UINT32", [[1, 2], [3, 4294967295]], [2, 2], {"unit": "px"})
    mixed_json["parameters"]["nested"] = {"deep": [1, {"data": [2]}]}
    flags = np.array([1, 0], "u1")
    pairs["mixed_binary_and_json"] = Pair(
        "binary FP16 and BOOL around a nested JSON input; ids and custom parameters stay",
        compact(
            {
                "id": "r-1",
                "parameters": {"sequence_id": 7, "priority": 2, "binary_data_output": True},
                "inputs": [
                    binary_input("a", "FP16", np.array([[1, 2], [3, 4]], "<f2"), [2, 2], scale=0.5),
                    mixed_json,
                    binary_input("c", "BOOL", flags),
                ],
                "outputs": [
                    {"name": "y", "parameters": {"binary_data": True, "classification": 3}},
                    {"name": "z", "parameters": {"binary_data": False}},
                    {"name": "w"},
                ],
                "custom": {"keep": [None, 1.50, "x"]},
            }
        ),
        blob_of(np.array([1, 2, 3, 4], "<f2")) + blob_of(flags),
        compact(
            {
                "id": "r-1",
                "parameters": {"sequence_id": 7, "priority": 2},
                "inputs": [
                    json_input("a", "FP16", [1.0, 2.0, 3.0, 4.0], [2, 2], {"scale": 0.5}),
                    mixed_json,
                    json_input("c", "BOOL", [True, False], [2]),
                ],
                "outputs": [{"name": "y", "parameters": {"classification": 3}}, {"name": "z"}, {"name": "w"}],
                "custom": {"keep": [None, 1.50, "x"]},
            }
        ),
    )
    pairs["reversed_keys_pretty_printed"] = Pair(
        "keys in reverse and white space everywhere, also behind the JSON",
        b'\r\n{\n\t"outputs" : null ,\n "parameters" : null,\n "inputs" : [ {\n'
        b'  "data" : [ [ 1 , -2 ] ,\n [ 3 , 4 ] ] ,\n  "shape" : [ 2 , 2 ] , "datatype" : "INT8" , "name" : "j" } ,\n'
        b' { "parameters" : { "binary_data_size" : 24 } ,\n  "shape" : [ 1 , 2 , 3 ] , "datatype" : "FP32" ,\n'
        b'  "name" : "b" } ] , "id" : "" }\n  ',
        blob_of(pixels),
        compact(
            {
                "outputs": None,
                "parameters": None,
                "inputs": [
                    json_input("j", "INT8", [[1, -2], [3, 4]], [2, 2]),
                    json_input("b", "FP32", json_of(pixels, "FP32"), [1, 2, 3]),
                ],
                "id": "",
            }
        ),
    )
    pairs["nan_in_a_json_input"] = Pair(
        "literals that are no JSON are forwarded as they came, in data and elsewhere",
        b'{"inputs":[{"name":"j","datatype":"FP32","shape":[4],"data":[NaN,Infinity,-Infinity,"NaN"]},'
        b'{"name":"b","datatype":"INT16","shape":[1],"parameters":{"binary_data_size":2,"pad":NaN}}]}',
        b"\x01\x80",
        b'{"inputs":[{"name":"j","datatype":"FP32","shape":[4],"data":[NaN,Infinity,-Infinity,"NaN"]},'
        b'{"name":"b","datatype":"INT16","shape":[1],"parameters":{"pad":NaN},"data":[-32767]}]}',
    )
    specials = np.array([1.5, np.nan, -np.inf, np.inf], "<f4")
    pairs["literal_nonfinite"] = Pair(
        "NaN and infinities for a backend that reads the literals",
        compact({"inputs": [binary_input("x", "FP32", specials)]}),
        blob_of(specials),
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[4],"data":[1.5,NaN,-Infinity,Infinity]}]}',
        {"nonfinite": "literal"},
    )
    holes = np.array([1.5, np.nan], "<f8")
    pairs["nan_as_null"] = Pair(
        "NaN for a backend that reads null",
        compact({"inputs": [binary_input("x", "FP64", holes)]}),
        blob_of(holes),
        compact({"inputs": [json_input("x", "FP64", [1.5, None], [2])]}),
        {"nonfinite": "as_null"},
    )
    octets = [b"\xff\xfe", b"", b"plain"]
    pairs["base64"] = Pair(
        "BYTES that are no text, for a backend that reads base64",
        compact({"inputs": [binary_input("x", "BYTES", octets, codec="jpeg")]}),
        blob_of(octets),
        compact(
            {
                "inputs": [
                    json_input(
                        "x",
                        "BYTES",
                        [base64.b64encode(octet).decode() for octet in octets],
                        [3],
                        {"codec": "jpeg", "content_type": "base64"},
                    )
                ]
            }
        ),
        {"bytes": "base64"},
    )
    pairs["shared_memory_beside_binary"] = Pair(
        "an input in shared memory takes no blob",
        compact(
            {
                "inputs": [
                    {
                        "name": "s",
                        "datatype": "FP32",
                        "shape": [2],
                        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8},
                    },
                    binary_input("b", "UINT16", np.array([1, 65535], "<u2")),
                ]
            }
        ),
        b"\x01\x00\xff\xff",
        compact(
            {
                "inputs": [
                    {
                        "name": "s",
                        "datatype": "FP32",
                        "shape": [2],
                        "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8},
                    },
                    json_input("b", "UINT16", [1, 65535], [2]),
                ]
            }
        ),
    )
    only_json = {"id": "only", "inputs": [json_input("x", "INT32", [1, 2], [2], {})], "parameters": {}}
    pairs["json_only_under_a_header_length"] = Pair(
        "the C++ client sends the header length with pure JSON too", compact(only_json), b"", compact(only_json)
    )
    escaped = b'{"inp\\u0075ts":[{"d\\u0061ta":[[1]],"name":"\\u0064ata","datatype":"INT8","shape":[1]}]}'
    pairs["escaped_keys"] = Pair("escapes in keys change nothing", escaped, b"", escaped)
    return pairs


def reply(outputs: list[Any], **top: Any) -> bytes:
    return compact({**top, "outputs": outputs})


def binary_output(name: str, datatype: str, values: Any, shape: list[int] | None = None, **parameters: Any) -> Any:
    return binary_input(name, datatype, values, shape, **parameters)


def nested(values: list[Any], shape: list[int]) -> Any:
    """A flat list as lists in lists."""
    if len(shape) < 2:
        return values
    size = len(values) // shape[0] if shape[0] else 0
    return [nested(values[i * size : (i + 1) * size], shape[1:]) for i in range(shape[0])]


def answers() -> dict[str, Pair]:
    """Every answer pair by its name; the settings say which outputs the client wants in binary."""
    pairs: dict[str, Pair] = {}
    top = {"model_name": "m", "id": "r-1"}
    for datatype in [*WIRE, "BYTES"]:
        values = edge_values(datatype)
        data = json_of(values, datatype)
        if datatype == "BOOL":
            values = (values != 0).astype("u1")
        if datatype in ("FP16", "FP32", "BF16"):
            data = [float(value) for value in values]  # 0.10000000149011612, as servers print it
        shape = [len(data)] if len(data) % 2 else [len(data) // 2, 2]
        pairs[f"edges_{datatype.lower()}"] = Pair(
            f"{datatype}: limits, negative zero, denormals, or the difficult strings",
            reply([binary_output("y", datatype, values, shape)], **top),
            blob_of(values),
            json.dumps(
                {**top, "outputs": [{"name": "y", "datatype": datatype, "shape": shape, "data": nested(data, shape)}]}
            ).encode(),
            {"default": "binary"},
        )
    pairs["reversed_keys_pretty_printed"] = Pair(
        "data before datatype and name, a line per number, `parameters: null`",
        reply(
            [
                binary_output("y", "FP32", np.array([0.1, -0.0, 3], "<f4"), [3]),
                binary_output("t", "BYTES", ["a", "", "é"], [3, 1]),
            ],
            **top,
        ),
        blob_of(np.array([0.1, -0.0, 3], "<f4")) + blob_of(["a", "", "é"]),
        json.dumps(
            {
                "outputs": [
                    {"data": [0.1, -0.0, 3], "parameters": None, "shape": [3], "datatype": "FP32", "name": "y"},
                    {"data": [["a"], [""], ["é"]], "shape": [3, 1], "datatype": "BYTES", "parameters": {}, "name": "t"},
                ],
                "model_name": "m",
                "id": "r-1",
            },
            indent=2,
        ).encode()
        + b"\n",
        {"default": "binary"},
    )
    kept = {"name": "j", "datatype": "INT32", "shape": [2, 2], "data": [[1, 2], [3, 4]], "parameters": {"unit": "px"}}
    pairs["mixed_json_and_binary"] = Pair(
        "out0 binary, out1 JSON and nested as it came; the backend's order and parameters stay",
        reply([kept, binary_output("y", "UINT8", np.array([1, 2], "u1"), [2], label="cat")], **top, custom=[1, None]),
        b"\x01\x02",
        json.dumps(
            {
                **top,
                "outputs": [
                    kept,
                    {"name": "y", "datatype": "UINT8", "shape": [2], "parameters": {"label": "cat"}, "data": [1, 2]},
                ],
                "custom": [1, None],
            }
        ).encode(),
        {"y": "binary", "j": "json"},
    )
    pairs["extra_outputs_are_dropped"] = Pair(
        "the client named one output, the backend sent three; id and model name are added",
        reply([binary_output("y", "INT64", np.array([-1], "<i8"), [1])], model_name="path-model", id="client-id"),
        b"\xff" * 8,
        b'{"id":null,"outputs":[{"name":"extra","datatype":"FP32","shape":[1],"data":[1]},'
        b'{"data":[-1],"name":"y","shape":[1],"datatype":"INT64"},'
        b'{"data":["data","outputs"],"name":"data","datatype":"BYTES","shape":[2]}]}',
        {"y": "binary", "id": '"client-id"', "model": "path-model"},
    )
    pairs["nothing_binary"] = Pair(
        "nobody asked for binary: the data stays as it came",
        b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[2,2],"data":[[1.50,2e0],[NaN,-0]]},'
        b'{"name":"z","datatype":"BYTES","shape":[1],"data":["]\\u00e9,[\\""]}]}',
        b"",
        b'{"model_name":"m","outputs":[{"name":"y","datatype":"FP32","shape":[2,2],"data":[[1.50,2e0],[NaN,-0]]},'
        b'{"name":"z","datatype":"BYTES","shape":[1],"data":["]\\u00e9,[\\""],"parameters":null}]}',
        {"default": "json"},
    )
    pairs["scalars_and_empty_tensors"] = Pair(
        "shape [] is one element; an empty tensor has a size of 0",
        reply(
            [
                binary_output("s", "FP64", np.array([2.5], "<f8"), []),
                binary_output("e", "FP32", np.array([], "<f4"), [2, 0]),
                binary_output("t", "BYTES", [], [0]),
                binary_output("n", "INT8", np.array([-1], "i1"), [1]),
            ],
            **top,
        ),
        blob_of(np.array([2.5], "<f8")) + b"\xff",
        json.dumps(
            {
                **top,
                "outputs": [
                    {"name": "s", "datatype": "FP64", "shape": [], "data": [2.5]},
                    {"name": "e", "datatype": "FP32", "shape": [2, 0], "data": [[], []]},
                    {"name": "t", "datatype": "BYTES", "shape": [0], "data": []},
                    {"name": "n", "datatype": "INT8", "shape": [1], "data": [-1]},
                ],
            }
        ).encode(),
        {"default": "binary"},
    )
    odd = np.array([np.nan, np.inf, -np.inf, np.nan, np.inf, -np.inf, np.nan, 1.0], "<f4")
    pairs["nonfinite_in_every_spelling"] = Pair(
        "NaN and infinities as literals, as strings, as null",
        reply([binary_output("NaN", "FP32", odd, [8], NaN="NaN")], **top),
        blob_of(odd),
        b'{"model_name":"m","id":"r-1","outputs":[{"name":"NaN","datatype":"FP32","shape":[8],"data":'
        b'[NaN,Infinity,-Infinity,"NaN","Infinity" , "-Infinity",null,1],"parameters":{"NaN":"NaN"}}]}',
        {"default": "binary"},
    )
    octets = [b"\xff\xfe", b"", b"plain"]
    pairs["base64"] = Pair(
        "BYTES in base64, which their parameters say",
        reply([binary_output("y", "BYTES", octets, [3], content_type="base64")], **top),
        blob_of(octets),
        json.dumps(
            {
                **top,
                "outputs": [
                    {
                        "name": "y",
                        "datatype": "BYTES",
                        "shape": [3],
                        "data": [base64.b64encode(octet).decode() for octet in octets],
                        "parameters": {"content_type": "base64"},
                    }
                ],
            }
        ).encode(),
        {"default": "binary"},
    )
    numbers = np.array([1, 0, 1], "<f4")
    pairs["other_spellings_of_numbers"] = Pair(
        "1 for FP32, 1.0 for INT32, 0 and 1 for BOOL, exponents for integers",
        reply(
            [
                binary_output("f", "FP32", numbers, [3]),
                binary_output("i", "INT32", np.array([1, -2, 100], "<i4"), [3]),
                binary_output("b", "BOOL", np.array([1, 0, 1, 0], "u1"), [4]),
            ],
            **top,
        ),
        blob_of(numbers) + blob_of(np.array([1, -2, 100], "<i4")) + b"\x01\x00\x01\x00",
        b'{"model_name":"m","id":"r-1","outputs":[{"name":"f","datatype":"FP32","shape":[3],"data":[1,0,1]},'
        b'{"name":"i","datatype":"INT32","shape":[3],"data":[1.0,-2.0,1e2]},'
        b'{"name":"b","datatype":"BOOL","shape":[4],"data":[1,0,true,false]}]}',
        {"default": "binary"},
    )
    return pairs


def files() -> dict[str, bytes]:
    """Every file of `pairs/` by its path in there."""
    made: dict[str, bytes] = {}
    index = ["# What each pair shows, and how many bytes of its .bin are JSON; see make_pairs.py.", ""]
    for folder, pairs in (("requests", requests()), ("answers", answers())):
        for name, pair in pairs.items():
            made[f"{folder}/{name}.bin"] = pair.header + pair.blobs
            made[f"{folder}/{name}.json"] = pair.json
            index += [f"[{folder}.{name}]", f"about = {json.dumps(pair.about)}", f"header_bytes = {len(pair.header)}"]
            if pair.settings:
                listed = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in pair.settings.items())
                index.append(f"settings = {{ {listed} }}")
            index.append("")
    made["index.toml"] = "\n".join(index).encode()
    return made


if __name__ == "__main__":
    for path, content in files().items():
        (PAIRS / path).parent.mkdir(parents=True, exist_ok=True)
        (PAIRS / path).write_bytes(content)
    print(f"{len(files())} files written to {PAIRS.name}/")
