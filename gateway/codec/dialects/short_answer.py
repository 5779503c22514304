"""The short way of a small answer in its common form, of servers of other dialects: the reply in a few calls.

The counterpart of `v2.short_answer`, under the same rules: None for whatever is not common, which `DialectAnswer` then
judges from its beginning, and otherwise the very bytes that it makes (tests/codec/dialects/both_ways.py).

Common are all forms of answers. Of a member that comes twice the last counts, but `DialectAnswer` may look at both; so
the names of the members are counted in the text, where no escape may hide one.

Not here: which values are read in a few calls (`outputs.short_value`), and errors.
"""

import re
from collections.abc import Iterable

import msgspec
from msgspec import Raw

from gateway.codec.dialects import outputs
from gateway.codec.dialects.answer import AnswerForm, entry_text, json_pieces, missing_output, reply_beginning
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.dialects.outputs import Output, short_value
from gateway.codec.inference import HeaderLimits, OutputSelection
from gateway.codec.v2.answer import Reply
from gateway.codec.v2.short_request import has_many_brackets
from gateway.errors import CodecError

MAX_OUTPUTS = 64
"""The most outputs of an answer that takes the short way: each costs a microsecond or two. So an answer of
`SHORT_BYTES`, which may also be many rows, takes a quarter of a millisecond."""

_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_ROWS = msgspec.json.Decoder(list[dict[str, Raw]])
_ROWS_BEGIN = re.compile(rb"\[[ \t\r\n]*\{")


class _UncommonError(Exception):
    """The answer is for the long way."""


def read_short_answer(
    text: bytes,
    form: AnswerForm,
    description: ModelDescription,
    selection: OutputSelection,
    *,
    model: str,
    request_id: bytes,
    version: str | None = None,
    limits: HeaderLimits,
) -> Reply | None:
    """The reply to the whole answer *text*, if it is small and in the common form; None: `DialectAnswer` is to judge.

    The arguments are those of `DialectAnswer`, the reply is byte for byte its reply.
    """
    if len(text) > min(outputs.SHORT_BYTES, limits.max_header_bytes) or b"\\" in text:
        return None
    try:
        if not text.isascii():
            text.decode()  # msgspec does not look into the strings of a Raw
        values = _values(text, form, description)
        if len(values) > min(MAX_OUTPUTS, limits.max_tensors) or missing_output(values, selection, description):
            return None
        blobs: list[memoryview] = []
        datatypes: list[str] = []
        texts = []
        for name, value in values.items():
            if not selection.is_wanted(name):
                if has_many_brackets(value):
                    return None
                continue
            output = _output(name, value, description)
            if selection.is_binary(name):
                texts.append(entry_text(output, {"binary_data_size": output.n_bytes}))
                blobs += output.blobs()
                datatypes.append(output.datatype.name)
            else:
                texts.append(b"".join(json_pieces(output, output.blobs(), form)))
    except (_UncommonError, CodecError, ValueError, RecursionError):
        return None
    header = b"%b%b]}" % (reply_beginning(model, version, request_id), b",".join(texts))
    return Reply([header], blobs, datatypes, 0)


def _values(text: bytes, form: AnswerForm, description: ModelDescription) -> dict[str, bytes]:
    """The text of each output's value. Raises `ValueError` for what is no JSON."""
    members = _MEMBERS.decode(text)
    found = [name for name in form.members if name in members]
    if len(found) != 1:
        raise _UncommonError
    value = bytes(members.pop(found[0]))
    _check_each(found, text, 1)
    if members and has_many_brackets(b"".join(map(bytes, members.values()))):
        raise _UncommonError
    is_by_name = value[:1] == b"{"
    if not is_by_name and _ROWS_BEGIN.match(value) is None:
        if len(description.outputs) != 1:
            raise _UncommonError
        return {description.outputs[0].name: value}
    if form.b64_objects and b'"b64"' in value:
        raise _UncommonError
    if is_by_name:
        values = {name: bytes(member) for name, member in _MEMBERS.decode(value).items()}
        _check_each(values, value, 1)
        return values
    rows = _ROWS.decode(value)
    names = rows[0].keys()
    if any(row.keys() != names for row in rows):
        raise _UncommonError
    _check_each(names, value, len(rows))
    return {name: b"[%b]" % b",".join([row[name] for row in rows]) for name in names}


def _check_each(names: Iterable[str], text: bytes, times: int) -> None:
    """Raise `_UncommonError` unless each of *names* is in *text* so many *times*."""
    for name in names:
        if text.count(b'"%b"' % name.encode()) != times:
            raise _UncommonError


def _output(name: str, text: bytes, description: ModelDescription) -> Output:
    """The output called *name*, whose value is *text*."""
    described = description.output(name)
    if described is None or described.datatype is None:
        raise _UncommonError
    value = short_value(text, described.datatype)
    if value is None:
        raise _UncommonError
    output = Output(name, described.datatype, described.shape)
    output.take(value)
    return output
