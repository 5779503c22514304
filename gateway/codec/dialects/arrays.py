"""Tensors as numpy arrays, for adapters (`dialect: python`), and what these give back: JSON, and arrays as outputs.

Everything is exact. An array is only an output of the datatype that its dtype is: numpy would convert FP64 to FP32, or
cut fractions off, without a word. Not here: who calls an adapter, and in which thread.
"""

import codecs
import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

import numpy as np
import orjson

from gateway.adapter import AdapterCall
from gateway.codec.dialects.declared import TensorDescription, declared_text, fits
from gateway.codec.dialects.description import ModelDescription, listed
from gateway.codec.dialects.output import SETTING, Output
from gateway.codec.dialects.request import DialectRequest
from gateway.codec.inference import NonFinite, OutputSelection, Tensor, label_of, shape_text
from gateway.codec.json.members import excerpt
from gateway.codec.tensors import number_printing
from gateway.codec.tensors.datatypes import BYTES, DATATYPES, FLOAT, Array, Datatype, element_count
from gateway.codec.tensors.elements import LENGTH, PREFIX_BYTES, append_octets
from gateway.codec.v2.messages import MAX_RANK
from gateway.codec.values import Value
from gateway.errors import CodecError

T = TypeVar("T")

OBJECT_BYTES = 48
"""About how much memory a `bytes` takes in an array of objects, beside its octets."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_BOOL, _BF16 = DATATYPES["BOOL"], DATATYPES["BF16"]
_DTYPES = {name: datatype.wire for name, datatype in DATATYPES.items() if datatype.kind is not BYTES}
_DTYPES |= {"BOOL": np.dtype(np.bool_), "BF16": np.dtype("<f4")}
"""The dtypes of arrays by datatype."""
_BY_DTYPE = {dtype: name for name, dtype in _DTYPES.items() if name != "BF16"}
_DIGITS = bytes.maketrans(b"-123456789", b"0" * 10)
_LONG_INTEGER = b"0" * 20
"""What every integer that 64 bits cannot hold has after translation by `_DIGITS`: 20 digits, or a sign and 19.

To look for it takes a third of the time of parsing; a regular expression takes up to ten times that of parsing.
"""
_OTHER_ENDIAN = "native-endianness"  # in orjson's words
_TEXTS = "OSUT"  # kinds of dtypes: objects, bytes, texts, and numpy's strings of any length


def at_once(steps: Generator[Any, None, T]) -> T:
    """Do all *steps* in one go and return their result. For threads: it holds the event loop otherwise."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


# What an adapter gets


def adapter_call(
    request: DialectRequest, description: ModelDescription, *, model: str, version: str | None
) -> AdapterCall:
    """What an adapter gets for *request*; *model* is the name at the backend."""
    selection = request.selection
    return AdapterCall(
        model,
        version,
        {tensor.name: array_of(tensor) for tensor in request.inputs},
        {tensor.name: tensor.datatype.name for tensor in request.inputs},
        {name: parsed_json(text) for name, text in request.parameters.items()},
        tuple(selection.named or description.outputs),
        parsed_json(request.id) if request.id else None,
    )


def array_of(tensor: Tensor) -> Array:
    """The values of *tensor*, whose blob was proved right, as a read-only array: a view of the blob where possible."""
    datatype, shape = tensor.datatype, tensor.shape
    if datatype.kind is BYTES:
        array: Array = np.empty(element_count(shape), object)
        array[:] = _octets(bytes(tensor.blob), len(array))
    else:
        array = datatype.view(tensor.blob)
        if datatype is _BOOL:
            # any byte but zero is true, and only 0 and 1 are so for numpy
            array = array.view(np.bool_) if not array.size or array.max() <= 1 else datatype.widen(array)
        elif datatype is _BF16:
            array = datatype.widen(array)
        if not array.flags.aligned:  # the client's JSON may have any length, and libraries in C want aligned arrays
            array = array.copy()
    try:
        array = array.reshape(shape)
    except ValueError as error:
        raise CodecError(f"{tensor}: no array of numpy's: {error}") from None
    array.flags.writeable = False
    return array


def _octets(blob: bytes, n_elements: int) -> list[bytes]:
    elements: list[bytes] = []
    end = 0
    for _ in range(n_elements):
        start = end + PREFIX_BYTES
        end = start + LENGTH.unpack_from(blob, end)[0]
        elements.append(blob[start:end])
    return elements


def array_bytes(inputs: Iterable[Tensor]) -> int:
    """How much memory the arrays of *inputs* take beside these, at most."""
    n_bytes = 0
    for tensor in inputs:
        n_bytes += len(tensor.blob) * (2 if tensor.datatype is _BF16 else 1)
        if tensor.datatype.kind is BYTES:
            n_bytes += OBJECT_BYTES * element_count(tensor.shape)
    return n_bytes


# JSON, whole


def parsed_json(text: bytes) -> Any:
    """The value of *text*, in which NaN and the infinities may stand, as Python writes them. Raises `CodecError`.

    Integers of any size are exact: orjson would make floats of those that 64 bits cannot hold.
    """
    text = text.removeprefix(codecs.BOM_UTF8)
    if text.translate(_DIGITS).find(_LONG_INTEGER) >= 0:
        with suppress(ValueError, RecursionError):  # orjson has the better words
            return json.loads(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if text.find(b"NaN") >= 0 or text.find(b"Infinity") >= 0:
            with suppress(ValueError, RecursionError):
                return json.loads(text)
        raise CodecError(f"no JSON: {error}; it begins with {excerpt(text)!r}") from None


def json_text(body: object, nonfinite: NonFinite) -> bytes:
    """*body* as JSON, with arrays in it as nested lists. Raises `CodecError` for values that JSON doesn't have.

    *nonfinite* decides about NaN and the infinities, which orjson would write as null without a word.
    """
    try:
        text = orjson.dumps(body, _plain, _OPTIONS)
        if text.find(b"null") < 0:
            return text
    except orjson.JSONEncodeError as error:
        if _OTHER_ENDIAN not in str(error):
            raise _not_json(error) from None
    try:
        return orjson.dumps(_judged(body, nonfinite, ()), _plain, _OPTIONS)
    except orjson.JSONEncodeError as error:
        raise _not_json(error) from None


def _not_json(error: orjson.JSONEncodeError) -> CodecError:
    return CodecError(f"not to be written as JSON: {error.__cause__ or error}")


def _plain(value: Any) -> Any:
    """Turn *value*, which orjson cannot write, into something that it can. Raises `TypeError`."""
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return str(value, "utf-8")
        except UnicodeDecodeError as error:
            hint = "base64.b64encode(...).decode() makes text of any octets"
            raise TypeError(f"octets that are not UTF-8 (byte {error.start}); {hint}") from None
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("a masked array; `.filled(...)` says what the missing values become")
        if value.dtype.kind in _TEXTS:
            return value.tolist()
        if value.dtype.newbyteorder("=") in _BY_DTYPE:
            native = value.astype(value.dtype.newbyteorder("="), copy=False)
            return native[()] if not native.ndim else np.ascontiguousarray(native)
        raise TypeError(f"an array of {value.dtype}, which JSON doesn't have")
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__}")


def _judged(value: Any, policy: NonFinite, at: tuple[Any, ...]) -> Any:
    """Apply *policy* to the NaN and infinities in *value*, which stands *at* these keys of a body.

    Arrays get the machine's own byte order: orjson refuses others before it calls `_plain`.
    """
    if isinstance(value, Mapping):
        return {key: _judged(item, policy, (*at, key)) for key, item in value.items()}
    if isinstance(value, Enum):  # orjson writes its value
        return _judged(value.value, policy, at)
    if isinstance(value, list | tuple):
        return [_judged(item, policy, (*at, index)) for index, item in enumerate(value)]
    if isinstance(value, float | np.floating):
        return value if np.isfinite(value) else _literal(np.asarray(value), policy, at)
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            return _judged(value.tolist(), policy, at)
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return _literal(value, policy, at)
        return value.astype(value.dtype.newbyteorder("="), copy=False)
    return value


def _literal(array: Array, policy: NonFinite, at: tuple[Any, ...]) -> Any:
    """Write *array*, which has numbers that are not finite, as *policy* says. Raises `CodecError` if it refuses one."""
    if policy is NonFinite.LITERAL:
        datatype = DATATYPES[_BY_DTYPE[array.dtype.newbyteorder("=")]]
        wire = np.atleast_1d(np.ascontiguousarray(array, datatype.wire))
        text = number_printing.array_text(wire, datatype, literals=True)
        return orjson.Fragment(text if array.ndim else text[1:-1])
    refused = ~np.isfinite(array) if policy is NonFinite.REJECT else np.isinf(array)
    if not refused.any():
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    where = np.unravel_index(int(np.argmax(refused)), array.shape)
    path = "".join(f"[{key if isinstance(key, int) else repr(key)}]" for key in (*at, *map(int, where)))
    raise CodecError(
        f"the number at {path or 'its top'} is {float(array[where])}, which JSON cannot carry; "
        f"this backend's `nonfinite` is {policy.value}"
    )


# What an adapter returns


def request_of(made: Any, nonfinite: NonFinite) -> tuple[str, bytes]:
    """The path and the JSON of what `request` has *made*. Raises `CodecError`."""
    if not (isinstance(made, tuple | list) and len(made) == 2):
        raise CodecError(f"expected a path and a body, got {_kind_of(made)}")
    path, body = made
    if not isinstance(path, str) or not path.startswith("/"):
        raise CodecError(f"expected a path that starts with /, got {path!r:.200}")
    if not (path.isascii() and path.isprintable()) or " " in path or "#" in path:
        hint = 'urllib.parse.quote(text, safe="") makes one of any text'
        raise CodecError(f"expected a path of printable ASCII without spaces and #, got {path!r:.200}; {hint}")
    return str(path), json_text(body, nonfinite)


def made_outputs(
    made: Any, description: ModelDescription, selection: OutputSelection, sizes: Mapping[str, int]
) -> list[Output]:
    """The outputs that the client wants of what `answer` has *made*; *sizes* are those that named dimensions have.

    Raises `CodecError` for an output that is missing, unknown, or none of what the *description* says of it.
    """
    if not isinstance(made, Mapping):
        raise CodecError(f"expected outputs by name, {{'y': array}}, got {_kind_of(made)}")
    for name in made:
        if name not in description.outputs:
            label, there = label_of("output", str(name)), listed(description.outputs)
            raise CodecError(f"{label}: there is no such output in {SETTING}, which has {there}")
    known = dict(sizes)
    found = []
    for name in selection.named or description.outputs:
        described = description.outputs[name]
        assert described.datatype is not None, "the configuration says it"
        output = Output(name, described, described.datatype, sizes=known)
        given = made.get(name)
        if given is None:
            raise CodecError(f"{output.label}: missing among the outputs, which are {listed(map(str, made))}")
        output.take(wire_value(output, given, described))
        shape = output.whole_shape  # `np.array([])` of no rows is [0], whatever a row would be
        if described.shape is not None and not fits(described.shape, shape, known):
            expected = declared_text(described.shape, known)
            raise CodecError(f"{output.label}: got the shape {shape_text(shape)}, and {SETTING} says {expected}")
        found.append(output)
    return found


def wire_value(output: Output, given: Any, described: TensorDescription) -> Value:
    """What an adapter has *given* for *output*, on the wire: a copy, since the adapter may go on with its own array.

    Raises `CodecError` unless it is of the output's datatype.
    """
    datatype = output.datatype
    if datatype.kind is BYTES:
        return _strings(output.label, given, described.missing)
    if not hasattr(given, "__array__"):
        return _numbers(output, given)
    array = _as_array(output.label, given)
    if datatype is _BF16 and array.dtype.name == "bfloat16":
        return Value(array.shape, [memoryview(array.tobytes())], _count_nonfinite(array.astype("<f4")))
    wanted = _DTYPES[datatype.name]
    if array.dtype.newbyteorder("=") != wanted:
        also = " for BF16" if datatype is _BF16 else ""
        raise CodecError(
            f"{output.label}: got an array of {array.dtype}, and {SETTING} says {datatype.name}; "
            f"write `.astype(np.{wanted.name})`{also} if that is meant"
        )
    nonfinite = _count_nonfinite(array) if datatype.kind is FLOAT else 0
    if datatype is _BF16:
        with np.errstate(over="ignore"):
            wire = datatype.narrow(array.astype("<f8").reshape(-1))
        if int(np.count_nonzero(~np.isfinite(datatype.widen(wire)))) != nonfinite:
            raise CodecError(f"{output.label}: got a number that is too large for it")
    else:
        wire = array.astype(datatype.wire, copy=False)
    return Value(array.shape, [memoryview(wire.tobytes())], nonfinite)


def _count_nonfinite(array: Array) -> int:
    return int(array.size - np.count_nonzero(np.isfinite(array)))


def _numbers(output: Output, given: Any) -> Value:
    """Numbers in lists, or one number: they become the output's datatype as those of a server's JSON do."""
    if not isinstance(given, list | tuple | int | float):
        raise CodecError(f"{output.label}: expected an array, got {_kind_of(given)}")
    try:
        text = json_text(given, NonFinite.LITERAL)
    except CodecError as error:
        raise CodecError(f"{output.label}: {error}") from None
    return at_once(output.read(text))


def _strings(label: str, given: Any, missing: str | None) -> Value:
    """Texts or octets as elements of BYTES; None becomes *missing*, if there is such a text."""
    array = _as_array(label, given, None if hasattr(given, "__array__") else object)
    if array.dtype.kind not in _TEXTS:
        raise CodecError(f"{label}: got an array of {array.dtype}, and {SETTING} says BYTES; write `.astype(str)`")
    if array.ndim > MAX_RANK:
        raise CodecError(f"{label}: more than {MAX_RANK} dimensions")
    elements: list[bytes] = []
    for index, element in enumerate(array.reshape(-1).tolist()):
        said = missing if element is None else element
        if isinstance(said, str):
            try:
                said = said.encode()
            except UnicodeEncodeError:
                words = "contains half of a surrogate pair, which UTF-8 cannot encode"
                raise CodecError(f"{label}: element {index} {words}") from None
        if not isinstance(said, bytes):
            hint = "; lists of different lengths are no tensor" if isinstance(said, list | tuple | np.ndarray) else ""
            raise CodecError(f"{label}: expected str or bytes, got {_kind_of(said)} as element {index}{hint}")
        elements.append(said)
    blob = bytearray()
    append_octets(blob, elements)
    return Value(array.shape, [memoryview(blob)])


def _as_array(label: str, given: Any, dtype: Any = None) -> Array:
    """*given* as an array of numpy, which arrays of other libraries know to become. Raises `CodecError`."""
    if isinstance(given, np.ma.MaskedArray):
        raise CodecError(f"{label}: got a masked array; `.filled(...)` says what the missing values become")
    try:
        return np.asarray(given, dtype)
    except Exception as error:  # other libraries' own errors
        raise CodecError(f"{label}: no array: {type(error).__name__}: {error}") from None


def datatype_of(given: Any) -> Datatype | None:
    """The datatype that an array of an adapter has by itself; None if it has none, or *given* is no array."""
    if not hasattr(given, "__array__"):
        return None
    array = np.asarray(given)
    if array.dtype.kind in _TEXTS:
        return DATATYPES["BYTES"]
    name = _BY_DTYPE.get(array.dtype.newbyteorder("="))
    return DATATYPES[name] if name is not None else None


def _kind_of(value: Any) -> str:
    """What *value* is, for errors."""
    return "None" if value is None else f"a {type(value).__name__}"
