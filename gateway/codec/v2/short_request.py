"""The short way of a small request in its common form: its JSON in a few calls, without steps.

Most requests are small and alike: a header length, binary inputs, outputs by name, perhaps an id and parameters. For
these `InferRequest.parse` costs many times what their bytes cost. Here typed structs of msgspec prove the header, and
a few calls print the values. Whatever is not the common form, right or wrong, is None: then `InferRequest.parse` judges
it from its beginning and words the error. So nothing here raises, and both ways must come to the same bytes
(tests/codec/v2/test_short.py).

A header with a backslash is not common. So a name is what stands between its quotes, and no key is hidden by escapes.

Not here: answers (`short_answer`), errors, and what large bodies need: pieces, views of the body, steps.
"""

from math import prod

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gateway.codec.inference import (
    BytesPolicy,
    HalfPrecision,
    HeaderLimits,
    OutputSelection,
    TensorPolicy,
    is_half_precision,
)
from gateway.codec.json.brackets import MAX_TEXT_DEPTH
from gateway.codec.json.members import object_text
from gateway.codec.tensors import elements, number_printing, string_printing
from gateway.codec.tensors.datatypes import DATATYPES, Datatype, Kind
from gateway.codec.v2.declarations import parse_shape
from gateway.errors import CodecError

SHORT_BODY_BYTES = 16 * 1024
"""The longest body that takes the short way: its JSON is made in one go, in well under half a millisecond."""

MAX_SHORT_BRACKETS = MAX_TEXT_DEPTH
"""How many brackets may open in JSON that takes the short way; so nothing is nested too deep for the long way."""

DATATYPES_BY_TEXT = {b'"%b"' % name.encode(): datatype for name, datatype in DATATYPES.items()}
"""The datatypes by the JSON text of their names."""

_FLAGS = {b"true": True, b"false": False}


class _InputParameters(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    binary_data_size: int


class _Input(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: Raw
    datatype: Raw
    shape: Raw
    parameters: _InputParameters


class _OutputParameters(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    binary_data: bool


class _Output(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: Raw
    parameters: _OutputParameters | UnsetType = UNSET


class _Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    inputs: list[_Input]
    outputs: list[_Output] | UnsetType = UNSET
    parameters: dict[str, Raw] | UnsetType = UNSET
    id: Raw | UnsetType = UNSET


_HEADER = msgspec.json.Decoder(_Header)
_UNLISTED = {by_default: OutputSelection(by_default) for by_default in (False, True)}


class ShortRequest(msgspec.Struct, frozen=True, gc=False):
    """A request in its common form, proved right, and the whole JSON that it becomes."""

    json: bytes
    """What the backend gets."""
    selection: OutputSelection
    id: bytes
    """The client's id as JSON text; empty if it sent none."""
    datatypes: list[str]
    """The datatype of each binary input."""

    @property
    def header_recovered(self) -> bool:
        """Never: it has a header length."""
        return False

    @property
    def nonfinite(self) -> int:
        """None: NaN and infinities go the long way."""
        return 0

    @property
    def promotes(self) -> bool:
        """Never: FP16 and BF16 that go out as FP32 go the long way."""
        return False


def read_short_request(
    body: bytes | memoryview, header_length: int | None, policy: TensorPolicy, limits: HeaderLimits
) -> ShortRequest | None:
    """The request in *body*, if it is small and in the common form; None means that `InferRequest.parse` is to judge.

    The JSON is byte for byte what `InferRequest` makes.
    """
    if not header_length or not header_length <= len(body) <= SHORT_BODY_BYTES:
        return None
    body = bytes(body)
    text = body[:header_length]
    try:
        if b"\\" in text or text.count(b"{") + text.count(b"[") > MAX_SHORT_BRACKETS:
            return None
        if not text.isascii():
            text.decode()  # msgspec does not look into the strings of a Raw
        header = _HEADER.decode(text)
        if header_length > limits.max_header_bytes or len(header.inputs) > limits.max_tensors:
            return None
        members = []
        request_id = b""
        if header.id is not UNSET:
            request_id = bytes(header.id)
            members.append(b'"id":' + request_id)
        by_default = False
        parameters = header.parameters
        if parameters is not UNSET:
            flag = parameters.pop("binary_data_output", None)
            if flag is not None:
                by_default = _FLAGS[bytes(flag)]
            if flag is None or parameters:  # protocol 3.2
                members.append(b'"parameters":' + object_text(parameters))  # type: ignore[arg-type]
        members.append(_inputs(header.inputs, body, header_length, policy))
        if header.outputs is UNSET:
            selection = _UNLISTED[by_default]
        else:
            if len(header.outputs) > limits.max_tensors:
                return None
            selection = _selection(header.outputs, by_default)
            members.append(b'"outputs":[' + b",".join([b'{"name":%b}' % o.name for o in header.outputs]) + b"]")
        return ShortRequest(
            b"{%b}" % b",".join(members),
            selection,
            b"" if request_id in (b"null", b'""') else request_id,
            [DATATYPES_BY_TEXT[bytes(entry.datatype)].name for entry in header.inputs],
        )
    except (_UncommonError, CodecError, KeyError, ValueError, RecursionError):
        return None


class _UncommonError(Exception):
    """The request is for the long way."""


def _inputs(entries: list[_Input], body: bytes, offset: int, policy: TensorPolicy) -> bytes:
    """`inputs` with the values of the blobs, which begin at *offset* and fill the body."""
    texts = []
    names = set()
    for entry in entries:
        names.add(name_of(entry.name))
        datatype = DATATYPES_BY_TEXT[bytes(entry.datatype)]
        shape = parse_shape(bytes(entry.shape))
        n_bytes = entry.parameters.binary_data_size
        if shape is None or n_bytes < 0 or n_bytes > len(body) - offset:
            raise _UncommonError
        data = _data(body[offset : offset + n_bytes], datatype, prod(shape), policy)
        offset += n_bytes
        texts.append(
            b'{"name":%b,"shape":%b,"datatype":%b,"data":[%b]}' % (entry.name, entry.shape, entry.datatype, data)
        )
    if offset != len(body) or len(names) != len(entries):
        raise _UncommonError
    return b'"inputs":[%b]' % b",".join(texts)


def _data(blob: bytes, datatype: Datatype, n_elements: int, policy: TensorPolicy) -> bytes:
    """The values in *blob* as the inside of a JSON array."""
    if datatype.kind is Kind.BYTES:
        if policy.bytes is not BytesPolicy.UTF8:
            raise _UncommonError
        view = memoryview(blob)
        for _ in elements.check_elements(view, n_elements, "", utf8=True):
            pass
        return b"".join(string_printing.text_pieces(view))
    if len(blob) != n_elements * datatype.item_bytes:
        raise _UncommonError
    if is_half_precision(datatype) and policy.half_precision is not HalfPrecision.NATIVE:
        raise _UncommonError
    text = b"".join(number_printing.text_pieces(datatype.view(memoryview(blob)), datatype))
    if datatype.kind is Kind.FLOAT and b"null" in text:  # NaN or an infinity
        raise _UncommonError
    return text


def _selection(outputs: list[_Output], by_default: bool) -> OutputSelection:
    named = {
        name_of(output.name): by_default if output.parameters is UNSET else output.parameters.binary_data
        for output in outputs
    }
    if len(named) != len(outputs):
        raise _UncommonError
    return OutputSelection(by_default, named)


def name_of(raw: Raw) -> str:
    """The string between the quotes of *raw*, a JSON value without a backslash. Raises `ValueError` for others."""
    text = bytes(raw)
    if text[:1] != b'"' or b"\\" in text:
        raise ValueError("not a string without escapes")
    return str(text[1:-1], "utf-8")
