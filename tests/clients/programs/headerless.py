"""Sends an image and its label in binary as many do it by hand: no header length, and JSON as the content type.

python headerless.py URL FILE [binary]: FILE holds FP32 [1, 3, 224, 224]; prints the reply's JSON and, in base64,
what follows it. With `binary` the outputs are asked for in binary.
"""

import base64
import json
import sys
import urllib.request
from typing import Any


def main(url: str, file: str, *asked: str) -> None:
    with open(file, "rb") as source:
        image = source.read()
    label = b'}{" '  # bytes that a careless search for the end of the JSON trips over
    request: dict[str, Any] = {
        "inputs": [
            described("image", "FP32", [1, 3, 224, 224], image),
            described("label", "UINT8", [4], label),
        ]
    }
    if "binary" in asked:
        request["parameters"] = {"binary_data_output": True}
    body = json.dumps(request).encode() + image + label
    posted = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(posted) as response:
        reply = response.read()
        n_header = int(response.headers.get("Inference-Header-Content-Length", len(reply)))
    blobs = base64.b64encode(reply[n_header:]).decode()
    print(json.dumps({"reply": json.loads(reply[:n_header]), "blobs": blobs}))


def described(name: str, datatype: str, shape: list[int], blob: bytes) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(blob)}}


main(*sys.argv[1:])
