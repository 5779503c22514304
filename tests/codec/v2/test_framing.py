"""The header length, and the cursor over the blobs."""

import pytest

from gateway.codec.v2.framing import HEADER_LENGTH, Cursor, parse_framing
from gateway.errors import CodecError


@pytest.mark.rule("1.2")
@pytest.mark.parametrize(
    ("values", "length"),
    [
        ([], None),
        (["0"], 0),
        (["16"], 16),
        ([" 16\t"], 16),
        (["0016"], 16),
        (["16", "16"], 16),
        (["16", " 16 "], 16),
        (["99999999999"], 99999999999),
    ],
)
def test_header_length_is_read_from_decimal_digits(values: list[str], length: int | None) -> None:
    assert parse_framing(values, "").header_length == length


@pytest.mark.rule("1.2")
@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "abc",
        "-1",
        "+1",
        "1.0",
        "1e2",
        "0x10",
        "1 2",
        "1_0",
        "1,1",
        "١٦",
        "１６",
        "\xb2",
        "16\n",
        "16\x00",
        "9" * 20,
    ],
)
def test_header_length_of_anything_else_is_refused_and_shown(value: str) -> None:
    with pytest.raises(CodecError, match=f"{HEADER_LENGTH}.*decimal digits"):
        parse_framing([value], "")
    with pytest.raises(CodecError):
        parse_framing(["16", value], "")


def test_header_length_shows_only_the_beginning_of_a_long_value() -> None:
    with pytest.raises(CodecError) as caught:
        parse_framing(["x" * 100_000], "")
    assert len(str(caught.value)) < 300


@pytest.mark.rule("1.2")
def test_two_header_lengths_that_differ_are_refused_with_both() -> None:
    with pytest.raises(CodecError, match="more than once with different values: \\[16, 17\\]"):
        parse_framing(["17", "16", "17"], "")


@pytest.mark.rule("1.5")
def test_cursor_takes_blobs_in_order_as_views() -> None:
    body = bytearray(b"abcdef")
    cursor = Cursor(memoryview(body))
    first, none, second = cursor.take(2), cursor.take(0), cursor.take(4)
    body[0:1] = b"A"
    assert (bytes(first), bytes(none), bytes(second)) == (b"Ab", b"", b"cdef")
    cursor.finish()


@pytest.mark.rule("1.5")
def test_cursor_says_how_many_bytes_are_missing() -> None:
    cursor = Cursor(memoryview(b"abcdef"))
    cursor.take(4)
    with pytest.raises(CodecError, match=r"is 5, but only 2 bytes.*3 bytes missing"):
        cursor.take(5)


def test_cursor_refuses_an_absurd_size_without_allocating() -> None:
    with pytest.raises(CodecError, match="missing"):
        Cursor(memoryview(b"")).take(2**64)


@pytest.mark.rule("1.5")
def test_cursor_says_how_many_bytes_are_left_over() -> None:
    cursor = Cursor(memoryview(b"abcdef"))
    cursor.take(4)
    with pytest.raises(CodecError, match="2 bytes left over behind the binary_data_size"):
        cursor.finish()


@pytest.mark.rule("6")
@pytest.mark.parametrize("vendor", ["sagemaker", "vertex-ai"])
def test_vendors_content_types_carry_the_length_and_the_reply_says_it_alike(vendor: str) -> None:
    media_type = f"application/vnd.{vendor}-triton.binary+json"
    for content_type in (f"{media_type};json-header-size=12", f" {media_type.upper()} ; json-header-size = 12 "):
        framing = parse_framing([], content_type)
        assert framing.header_length == 12
        assert framing.content_type(34).lower() == f"{media_type};json-header-size=34"
    assert parse_framing(["5"], f"{media_type};json-header-size=12").header_length == 5
    with pytest.raises(CodecError, match="json-header-size: expected decimal digits, got 'x'"):
        parse_framing([], f"{media_type};json-header-size=x")


@pytest.mark.parametrize(
    "content_type", ["", "application/json", "application/vnd.other-triton.binary+json;json-header-size=1"]
)
def test_other_content_types_say_nothing_of_the_length(content_type: str) -> None:
    framing = parse_framing(["7"], content_type)
    assert (framing.header_length, framing.content_type(9)) == (7, "application/octet-stream")
    assert parse_framing([], content_type).header_length is None
