"""The short way of a small request in its common form: its JSON in a few calls, without steps.

Most requests are small and alike: binary inputs, or JSON ones, outputs by name, perhaps an id and parameters. For
these `InferRequest.parse` costs many times what their bytes cost. Here typed structs of msgspec prove the header, and
a few calls print the values. Whatever is not the common form, right or wrong, is None: then `InferRequest.parse` judges
it from its beginning and words the error. So nothing here raises, and both ways must come to the same bytes
(tests/codec/v2/test_short.py).

A header with a backslash is not common. So a name is what stands between its quotes, and no key is hidden by escapes.

Not here: answers (`short_answer`), errors, and what large bodies need: pieces, views of the body, steps.
"""

import struct
from math import prod

import msgspec
import numpy as np
import orjson
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
from gateway.codec.tensors.datatypes import DATATYPES, Datatype
from gateway.codec.tensors.elements import LENGTH, PREFIX_BYTES, RUN_ELEMENTS, check_elements
from gateway.codec.tensors.number_printing import array_text
from gateway.codec.tensors.string_printing import base64_pieces, text_pieces
from gateway.codec.v2.declarations import parse_shape
from gateway.codec.v2.ids import is_absent
from gateway.errors import CodecError

SHORT_BODY_BYTES = 16 * 1024
"""The longest body that takes the short way: its JSON is made in one go, in well under half a millisecond."""

MAX_SHORT_BRACKETS = MAX_TEXT_DEPTH
"""How many brackets may open in JSON that takes the short way; so nothing is nested too deep for the long way."""

_BASE64 = b'"parameters":{"content_type":"base64"},'  # protocol 3.5

FLAGS = {b"true": True, b"false": False}
"""What a flag may be."""


class _InputParameters(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    binary_data_size: int


class Input(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One of its inputs."""

    name: str
    datatype: str
    shape: Raw
    parameters: _InputParameters | UnsetType = UNSET
    data: Raw | UnsetType = UNSET


class _OutputParameters(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    binary_data: bool


class _Output(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    parameters: _OutputParameters | UnsetType = UNSET


class Header(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The JSON of a request in its common form."""

    inputs: list[Input]
    outputs: list[_Output] | UnsetType = UNSET
    parameters: dict[str, Raw] | UnsetType = UNSET
    id: Raw | UnsetType = UNSET


_HEADER = msgspec.json.Decoder(Header)

UNLISTED = {by_default: OutputSelection(by_default) for by_default in (False, True)}
"""What is selected by a request that lists no outputs."""


class ShortRequest(msgspec.Struct, frozen=True, gc=False):
    """A request in its common form, proved right, and the whole JSON that it becomes."""

    json: bytes
    """What the backend gets."""
    selection: OutputSelection
    id: bytes
    """The client's id as JSON text; empty if it sent none."""
    sent_id: bytes
    """The id that the backend gets; empty if it gets none."""
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
    body: bytes | memoryview,
    header_length: int | None,
    policy: TensorPolicy,
    limits: HeaderLimits,
    own_id: bytes = b"",
) -> ShortRequest | None:
    """The request in *body*, if it is small and in the common form; None means that `InferRequest.parse` is to judge.

    *own_id* is that of `InferRequest.parse`. The JSON is byte for byte what `InferRequest` makes.
    """
    header_bytes = len(body) if header_length is None else header_length
    if not 0 < header_bytes <= len(body) <= SHORT_BODY_BYTES:
        return None
    body = bytes(body)
    text = body[:header_bytes]
    if header_length is None and not own_id and b'"binary_data' not in text:
        return None
    try:
        header = read_header(text, limits)
        if header is None:
            return None
        members = []
        request_id = said_id = b"" if header.id is UNSET else bytes(header.id)
        leave_out = policy.leave_out
        if is_absent(said_id):
            request_id, said_id = b"", own_id or said_id
        if said_id and "id" not in leave_out:
            members.append(b'"id":' + said_id)
        by_default = False
        is_extended = header_length is not None or bool(own_id)
        parameters = header.parameters
        if parameters is not UNSET:
            flag = parameters.pop("binary_data_output", None)
            if flag is not None:
                by_default = FLAGS[bytes(flag)]
                is_extended = True
            if (flag is None or parameters) and "parameters" not in leave_out:  # protocol 3.2
                members.append(b'"parameters":{%b}' % members_text(parameters))
        members.append(_inputs_text(header.inputs, body, header_bytes, policy))
        selection = UNLISTED[by_default]
        if header.outputs is not UNSET:
            named = {}
            texts = []
            for output in header.outputs:
                name = output.name
                if output.parameters is UNSET:
                    named[name] = by_default
                else:
                    named[name] = output.parameters.binary_data
                    is_extended = True
                texts.append(b'{"name":"%b"}' % name.encode())
            if len(named) != len(texts):
                return None
            selection = OutputSelection(by_default, named)
            if "outputs" not in leave_out:
                members.append(b'"outputs":[%b]' % b",".join(texts))
    except (_UncommonError, CodecError, KeyError, ValueError, RecursionError, struct.error):
        return None
    if not is_extended:  # protocol 1.6: pure JSON, which nobody judges
        return None
    return ShortRequest(
        b"{%b}" % b",".join(members),
        selection,
        request_id,
        b"" if "id" in leave_out else request_id or own_id,
        [entry.datatype for entry in header.inputs if entry.data is UNSET],
    )


def read_header(text: bytes, limits: HeaderLimits) -> Header | None:
    """The JSON of a request, if it is in its common form. Raises `ValueError` or `RecursionError` if it is not JSON."""
    if b"\\" in text or has_many_brackets(text):
        return None
    if not text.isascii():
        text.decode()  # msgspec does not look into the strings of a Raw
    header = _HEADER.decode(text)
    n_outputs = 0 if header.outputs is UNSET else len(header.outputs)
    if len(text) > limits.max_header_bytes or max(len(header.inputs), n_outputs) > limits.max_tensors:
        return None
    return header


def has_many_brackets(text: bytes) -> bool:
    """Whether *text* could be nested too deep."""
    return len(text) > MAX_SHORT_BRACKETS and text.count(b"{") + text.count(b"[") > MAX_SHORT_BRACKETS


def members_text(members: dict[str, Raw]) -> bytes:
    """The inside of an object in JSON, each value as it came; names have come without escapes, and need none."""
    return b",".join([b'"%b":%b' % (name.encode(), value) for name, value in members.items()])


class _UncommonError(Exception):
    """The request is for the long way."""


def _inputs_text(entries: list[Input], body: bytes, offset: int, policy: TensorPolicy) -> bytes:
    """`inputs` with the values of the blobs, which begin at *offset* and fill the body."""
    texts = []
    for entry in entries:
        shape_text = bytes(entry.shape)
        if entry.parameters is UNSET:
            texts.append(_json_input_text(entry, shape_text))
            continue
        datatype = DATATYPES[entry.datatype]
        shape = parse_shape(shape_text)
        n_bytes = entry.parameters.binary_data_size
        # msgspec reads -0 as 0, which the long way refuses, so empty tensors are not common
        if shape is None or not 0 < n_bytes <= len(body) - offset or entry.data is not UNSET:
            raise _UncommonError
        said = b""
        if datatype.item_bytes == 0:
            if policy.bytes is BytesPolicy.BASE64:
                said = _BASE64
            data = _strings_text(body[offset : offset + n_bytes], prod(shape), policy)
        elif n_bytes == prod(shape) * datatype.item_bytes:
            data = _numbers_text(body, offset, n_bytes, datatype, policy)
        else:
            raise _UncommonError
        offset += n_bytes
        texts.append(
            b'{"name":"%b","shape":%b,"datatype":"%b",%b"data":%b}'
            % (entry.name.encode(), shape_text, entry.datatype.encode(), said, data)
        )
    if offset != len(body) or (len(entries) > 1 and len({entry.name for entry in entries}) != len(entries)):
        raise _UncommonError
    return b'"inputs":[%b]' % b",".join(texts)


def _json_input_text(entry: Input, shape_text: bytes) -> bytes:
    """An input whose `data` is JSON, which crosses as it came (protocol 2.7)."""
    if entry.data is UNSET:
        raise _UncommonError
    data = bytes(entry.data)
    if data[:1] != b"[":
        raise _UncommonError
    return b'{"name":"%b","shape":%b,"datatype":"%b","data":%b}' % (
        entry.name.encode(),
        shape_text,
        entry.datatype.encode(),
        data,
    )


def _numbers_text(body: bytes, offset: int, n_bytes: int, datatype: Datatype, policy: TensorPolicy) -> bytes:
    if datatype.item_bytes == 2 and policy.half_precision is HalfPrecision.PROMOTE and is_half_precision(datatype):
        raise _UncommonError
    text = array_text(np.frombuffer(body, datatype.wire, n_bytes // datatype.item_bytes, offset), datatype)
    if b"n" in text:  # null: NaN or an infinity
        raise _UncommonError
    return text


def _strings_text(blob: bytes, n_elements: int, policy: TensorPolicy) -> bytes:
    is_text = policy.bytes is BytesPolicy.UTF8
    if n_elements >= RUN_ELEMENTS or not is_text:
        view = memoryview(blob)
        for _ in check_elements(view, n_elements, "", utf8=is_text):
            pass
        return b"[%b]" % b"".join(text_pieces(view) if is_text else base64_pieces(view))
    elements = []
    unpack = LENGTH.unpack_from
    end = 0
    for _ in range(n_elements):
        (size,) = unpack(blob, end)
        start = end + PREFIX_BYTES
        end = start + size
        elements.append(blob[start:end])
    if end != len(blob):
        raise _UncommonError
    return orjson.dumps(list(map(bytes.decode, elements)))
