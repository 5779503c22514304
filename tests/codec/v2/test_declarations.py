"""Name, datatype, shape and parameters of a tensor, as both directions read them."""

import pytest
from msgspec import Raw

from gateway.codec.v2.declarations import (
    MAX_RANK,
    MAX_SHAPE_BYTES,
    datatype_of,
    name_of,
    parse_shape,
    shape_of,
)
from gateway.codec.v2.messages import Entry, text_of
from gateway.errors import CodecError


@pytest.mark.rule("2.2")
@pytest.mark.parametrize(
    ("raw", "shape"),
    [
        (b"[]", ()),
        (b"[0]", (0,)),
        (b"[ 1 ,\n2]", (1, 2)),
        (b"[9223372036854775807]", (2**63 - 1,)),
        (b"[" + b",".join([b"1"] * MAX_RANK) + b"]", (1,) * MAX_RANK),
        (b"[" + b",".join([b"1"] * (MAX_RANK + 1)) + b"]", None),
        (b"[9223372036854775808]", None),
        (b"[-1]", None),
        (b"[-0]", None),
        (b"[1.0]", None),
        (b'["1"]', None),
        (b"[true]", None),
        (b"[null]", None),
        (b"4", None),
        (b"null", None),
        (b"", None),
        (b"[1" + b" " * MAX_SHAPE_BYTES + b"]", None),
        (b"[" + b"9" * 5000 + b"]", None),
    ],
)
def test_shape_is_a_short_list_of_integers(raw: bytes, shape: tuple[int, ...] | None) -> None:
    assert parse_shape(raw) == shape
    if shape is not None:
        assert shape_of(Entry(shape=Raw(raw)), "input", "x") == shape
        return
    with pytest.raises(
        CodecError, match=r"^output 'y': shape must be a list of at most 64 integers >= 0, got "
    ) as caught:
        shape_of(Entry(shape=Raw(raw)), "output", "y")
    assert len(str(caught.value)) < 200


def test_shape_of_a_models_metadata_may_have_variable_dimensions() -> None:
    assert parse_shape(b"[-1,3]", lowest=-1) == (-1, 3)
    assert parse_shape(b"[-2,3]", lowest=-1) is None


@pytest.mark.rule("2.2")
@pytest.mark.parametrize("entry", [Entry(), *(Entry(name=Raw(text)) for text in (b"7", b"null", b'["x"]', b"NaN"))])
def test_name_has_to_be_a_string(entry: Entry) -> None:
    assert text_of(entry.get("name")) is None
    with pytest.raises(CodecError, match=r"^output 3: name must be a string, got "):
        name_of(entry, "output", 3)


def test_name_is_the_string_it_stands_for() -> None:
    assert name_of(Entry(name=Raw(b'"\\u00e9 \\""')), "input", 0) == 'é "'


@pytest.mark.rule("2.2")
@pytest.mark.parametrize("raw", [b'"FOO"', b"7", b'"fp32"', None, b'["FP32"]'])
def test_datatype_has_to_be_one_of_the_fourteen(raw: bytes | None) -> None:
    entry = Entry(datatype=Raw(raw)) if raw is not None else Entry()
    with pytest.raises(CodecError, match=r"^input 'x': datatype must be one of BOOL .* BYTES, got ") as caught:
        datatype_of(entry, "input", "x")
    assert ('upper case, "FP32"' in str(caught.value)) == (raw == b'"fp32"')
    assert datatype_of(Entry(datatype=Raw(b'"BF16"')), "input", "x").name == "BF16"
