"""The short way of a small answer in its common form: the reply in a few calls, without a walk through the text.

The counterpart of `short_request`, under the same rules: None for whatever is not common, which `InferAnswer` then
judges from its beginning, and otherwise the very bytes that `InferAnswer` makes.

Common are answers of any length up to `SHORT_ANSWER_BYTES`, whose outputs have name, datatype, shape and data, each
once, in any order. Of a member that comes twice the last counts, but `InferAnswer` looks at both; so the words are
counted: each output has one of each at least, so as many words as outputs are the members themselves. For that the
text is cut at its `"data"`, and the others are only looked for beside the data, which is most of the text. An escape
could hide one, so backslashes may only be inside the strings of BYTES.

Not here: what needs a look at each value: NaN, nesting that is not that of the shape.
"""

import base64
from math import prod
from operator import add

import msgspec
import orjson
from msgspec import UNSET, Raw, UnsetType

from gateway.codec.inference import HeaderLimits, OutputSelection
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.tensors.elements import LENGTH
from gateway.codec.tensors.number_reading import read_few, read_flat
from gateway.codec.v2.answer import Reply
from gateway.codec.v2.declarations import parse_shape
from gateway.codec.v2.ids import is_absent
from gateway.codec.v2.short_request import has_many_brackets, members_text

SHORT_ANSWER_BYTES = 64 * 1024
"""The longest answer that takes the short way: one piece, about a quarter of a millisecond."""

MAX_SHORT_STRINGS = 256
"""The most elements of BYTES that are made one by one, at a fifth of a microsecond each."""

_BESIDE_LISTS = bytes(sorted(set(range(256)) - set(b"[],")))


class _Output(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    datatype: str
    shape: Raw
    data: Raw
    parameters: dict[str, Raw] | None = None


class _Answer(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    outputs: list[_Output]
    model_name: Raw | UnsetType = UNSET
    model_version: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    parameters: Raw | UnsetType = UNSET


_ANSWER = msgspec.json.Decoder(_Answer)
_STRINGS = msgspec.json.Decoder(list[str])


class _UncommonError(Exception):
    """The answer is for the long way."""


def read_short_answer(
    text: bytes,
    selection: OutputSelection,
    request_id: bytes,
    sent_id: bytes = b"",
    *,
    model: str,
    is_renamed: bool,
    limits: HeaderLimits,
) -> Reply | None:
    """The reply to the whole answer *text*, if it is small and in the common form; None: `InferAnswer` is to judge.

    The arguments are those of `InferAnswer`, the reply is byte for byte its reply.
    """
    if len(text) > SHORT_ANSWER_BYTES or len(text) > limits.max_header_bytes:
        return None
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into the strings of a Raw
        answer = _ANSWER.decode(text)
        pieces = text.split(b'"data"')
        n_outputs = len(answer.outputs)
        if n_outputs > limits.max_tensors or len(pieces) != n_outputs + 1:
            return None
        n_escapes = text.count(b"\\") if b"\\" in text else 0
        beside = [pieces.pop(0)]
        named, by_default = selection.named, selection.binary_by_default
        found = set()
        outputs: list[bytes] = []
        blobs: list[memoryview] = []
        datatypes: list[str] = []
        for output, piece in zip(answer.outputs, pieces, strict=True):
            data = bytes(output.data)
            beside.append(piece[piece.find(data[:1]) + len(data) :])
            if n_escapes:
                n_escapes -= data.count(b"\\")
            name = output.name
            if named:
                if name not in named:  # protocol 4.5
                    continue
                found.add(name)
            if named.get(name, by_default):
                blob = _blob(output, data)
                outputs.append(_output_text(output, b'"binary_data_size":%d' % len(blob)))
                blobs.append(blob)
                datatypes.append(output.datatype)
            elif data[:1] == b"[" and not has_many_brackets(data):
                outputs.append(_output_text(output, b"", b',"data":' + data))
            else:
                return None
        if n_escapes or len(found) != len(named) or not _is_each_once(b"".join(beside), n_outputs):
            return None
        answered_id = b"" if answer.id is UNSET else bytes(answer.id)
        if sent_id and answered_id != sent_id and not is_absent(answered_id):  # protocol 4.10
            return None
        if request_id and is_absent(answered_id):  # protocol 4.6
            answered_id = request_id
        elif (sent_id and not request_id) or answered_id == b"null":
            answered_id = b""
        header = _header_text(answer, outputs, answered_id, model, is_renamed=is_renamed)
    except (_UncommonError, KeyError, ValueError, RecursionError):
        return None
    return Reply([header], blobs, datatypes, 0)


def _is_each_once(beside: bytes, n_outputs: int) -> bool:
    """Whether *beside*, an answer without its data, has no more words that could be members than outputs need."""
    return (
        beside.count(b'"name"') == n_outputs
        and beside.count(b'"shape"') == n_outputs
        and beside.count(b'"datatype"') == n_outputs
        and beside.count(b'"outputs"') == 1
        and not has_many_brackets(beside)
    )


def _header_text(answer: _Answer, outputs: list[bytes], id_: bytes, model: str, *, is_renamed: bool) -> bytes:
    """The JSON of the reply; *id_* is the client's or the server's, or empty."""
    name = b"null" if is_renamed or answer.model_name is UNSET else bytes(answer.model_name)
    text = b'{"model_name":' + (orjson.dumps(model) if name == b"null" else name)  # protocol 4.6
    if answer.model_version is not UNSET:
        text += b',"model_version":%b' % answer.model_version
    if id_:
        text += b',"id":' + id_
    if answer.parameters is not UNSET:
        parameters = bytes(answer.parameters)
        if parameters != b"null":  # protocol 4.4
            text += b',"parameters":' + parameters
    return b'%b,"outputs":[%b]}' % (text, b",".join(outputs))


def _output_text(output: _Output, size_member: bytes, data_member: bytes = b"") -> bytes:
    """What the client gets of an output; *size_member* is added to its parameters (protocol 4.4)."""
    parameters = output.parameters
    if parameters:
        parameters.pop("binary_data_size", None)
    members = [members_text(parameters)] if parameters else []
    if size_member:
        members.append(size_member)
    said = b',"parameters":{%b}' % b",".join(members) if members else b""
    return b'{"name":"%b","shape":%b,"datatype":"%b"%b%b}' % (
        output.name.encode(),
        output.shape,
        output.datatype.encode(),
        said,
        data_member,
    )


def _blob(output: _Output, data: bytes) -> memoryview:
    """The bytes of a binary output."""
    datatype = DATATYPES[output.datatype]
    shape = parse_shape(bytes(output.shape))
    if shape is None or data[:1] != b"[":
        raise _UncommonError
    if data.startswith(b"[[") and _has_lists_of_one(data, shape):
        data, shape = data[len(shape) - 1 : 1 - len(shape)], shape[-1:]
    if datatype.item_bytes == 0:
        content_type = (output.parameters or {}).get("content_type", b"")
        return _elements(data, prod(shape), is_base64=bytes(content_type) == b'"base64"')  # protocol 4.8
    is_nested = data.find(b"[", 1) > 0
    n_elements = prod(shape)
    blob = None if is_nested else read_few(data, datatype, n_elements)
    if blob is None:
        blob = read_flat(data, datatype, n_elements)
        if blob is None or (is_nested and not _is_nested_like(shape, data)):
            raise _UncommonError
    return memoryview(blob)


def _has_lists_of_one(data: bytes, shape: tuple[int, ...]) -> bool:
    """Whether *data* has lists around its innermost that only have the next one, as for shape [1, n]."""
    depth = len(shape) - 1
    return depth > 0 and prod(shape[:-1]) == 1 and data.startswith(b"[" * (depth + 1)) and data.endswith(b"]" * depth)


def _is_nested_like(shape: tuple[int, ...], data: bytes) -> bool:
    """Whether *data*, JSON of as many numbers as *shape* has, is nested in full as *shape* says."""
    n_lists = 1
    n_opened = 1
    for dimension in shape[:-1]:
        n_lists *= dimension
        n_opened += n_lists
    if data.count(b"[") != n_opened:
        return False
    lists = b"," * (shape[-1] - 1) if shape else b""
    lists = b"[%b]" % lists
    for dimension in reversed(shape[:-1]):
        lists = b"[%b]" % b",".join([lists] * dimension)
    return data.translate(None, _BESIDE_LISTS) == lists


def _elements(data: bytes, n_elements: int, *, is_base64: bool) -> memoryview:
    """The strings in *data* as elements of BYTES. Raises `ValueError` for what is no such list."""
    if n_elements > MAX_SHORT_STRINGS:
        raise _UncommonError
    strings = _STRINGS.decode(data)
    if len(strings) != n_elements:
        raise _UncommonError
    elements = [base64.b64decode(s, validate=True) for s in strings] if is_base64 else list(map(str.encode, strings))
    prefixes = map(LENGTH.pack, map(len, elements))
    return memoryview(b"".join(map(add, prefixes, elements)))
