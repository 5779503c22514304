"""Name, datatype, shape and parameters of a tensor, as both directions read them."""

import pytest
from msgspec import Raw

from gateway.codec.tensors.datatypes import DATATYPES
from gateway.codec.v2.messages import MAX_RANK, Entry, declaration, name_of, text_of
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
        (b"[-0]", (0,)),
        (b"[1.0]", None),
        (b'["1"]', None),
        (b"[true]", None),
        (b"[null]", None),
        (b"4", None),
        (b"null", None),
        (b"[" + b"9" * 5000 + b"]", None),
    ],
)
def test_shape_is_a_short_list_of_integers(raw: bytes, shape: tuple[int, ...] | None) -> None:
    entry = Entry(name=Raw(b'"y"'), datatype=Raw(b'"BF16"'), shape=Raw(raw))
    if shape is not None:
        assert declaration(entry, "input", 0) == ("y", DATATYPES["BF16"], shape)
        return
    with pytest.raises(
        CodecError, match=r"^output 'y': shape must be a list of at most 64 integers >= 0, got "
    ) as caught:
        declaration(entry, "output", 0)
    assert len(str(caught.value)) < 200


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
    entry = Entry(name=Raw(b'"x"'), shape=Raw(b"[]"))
    if raw is not None:
        entry["datatype"] = Raw(raw)
    with pytest.raises(CodecError, match=r"^input 'x': datatype must be one of BOOL .* BYTES, in upper case, got "):
        declaration(entry, "input", 0)
