"""`tensor-gateway adapter`: what an adapter makes of a sample, without a server and without a configuration.

The functions run here as they do for a client. What only a configuration knows, such as the shapes of outputs, is not
judged.
"""

import codecs
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gateway.codec.dialects.arrays import adapter_call, at_once, datatype_of, parsed_json, wire_value
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import UNKNOWN
from gateway.codec.dialects.output import Output
from gateway.codec.dialects.python import PythonDialect
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import NonFinite, TensorPolicy, shape_text
from gateway.codec.v2.error_bodies import shortened
from gateway.codec.v2.request_reading import read_request
from gateway.errors import CodecError, ConfigError
from gateway.serving.adapter_modules import AdapterFailedError, AdapterModule

PRINTED_CHARACTERS = 2000
"""How much of a body is printed; of the values of an output a tenth of it."""


def try_adapter(file: Path, sample: Path, answer: Path | None, *, model: str, version: str | None) -> int:
    """Print what the adapter in *file* makes of the request in *sample*, and of the *answer* to it, if one is given.

    *model* and *version* stand in for those of a client's path. The exit code: 1 if an output cannot be sent. Raises
    `ConfigError` for a file that cannot be read, and for a function that fails.
    """
    adapter = AdapterModule(file.absolute())
    text = _content(sample)
    try:
        request = at_once(DialectRequest.parse(read_request(memoryview(text), None), TensorPolicy()))
        request, _ = PythonDialect().fitted(request, UNKNOWN, model)
        call = adapter_call(request, UNKNOWN, model=model, version=version)
    except CodecError as error:
        raise ConfigError(f"{sample}: {error}") from None
    try:
        path, body = adapter.request(call, NonFinite.LITERAL)
        print(f"POST {path}\n{shortened(body.decode(), PRINTED_CHARACTERS)}")
        if answer is None:
            return 0
        try:
            parsed = parsed_json(_content(answer))
        except CodecError as error:
            raise ConfigError(f"{answer}: {error}") from None
        outputs = adapter.call("answer", call, 200, parsed)
        with adapter.using_result("answer"):
            return _show(outputs, call.outputs, adapter.place_of("answer"))
    except AdapterFailedError as error:
        raise ConfigError(f"{error.place}: {error}") from None


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None


def _show(outputs: Any, wanted: tuple[str, ...], place: str) -> int:
    """Print *outputs*; the exit code."""
    faults = []
    if not isinstance(outputs, Mapping):
        faults.append(f"expected outputs by name, {{'y': array}}, got a {type(outputs).__name__}")
    else:
        faults += [f"output {name!r}: missing, and the sample asks for it" for name in wanted if name not in outputs]
        for name, given in outputs.items():
            try:
                if not isinstance(name, str):
                    raise CodecError(f"output {name!r}: expected a text as its name, got a {type(name).__name__}")
                print(_line(name, given))
            except CodecError as error:
                faults.append(str(error))
    for fault in faults:
        print(f"tensor-gateway: {place}: {fault}", file=sys.stderr)
    return 1 if faults else 0


def _line(name: str, given: Any) -> str:
    """The line that shows the output *name*. Raises `CodecError` if it cannot be sent."""
    datatype = datatype_of(given)
    if datatype is None:
        if hasattr(given, "__array__"):
            raise CodecError(
                f"output {name!r}: got an array of {np.asarray(given).dtype}, which the protocol doesn't have"
            )
        if not isinstance(given, list | tuple | str | bytes | int | float):
            raise CodecError(f"output {name!r}: expected an array, got a {type(given).__name__}")
        return f"{name}: no array, so it becomes what `models` says: {shortened(repr(given), PRINTED_CHARACTERS // 10)}"
    output = Output(name, TensorDescription(datatype), datatype)
    shape = wire_value(output, given, TensorDescription(datatype)).shape
    values = shortened(repr(np.asarray(given).reshape(-1)[:PRINTED_CHARACTERS].tolist()), PRINTED_CHARACTERS // 10)
    return f"{name}: {datatype.name} {shape_text(shape)} {values}"
