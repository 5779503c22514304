"""BYTES from JSON strings and back, cut wherever they can be cut."""

import base64
import json
import random
from itertools import chain

import pytest
from tritonclient.utils import deserialize_bytes_tensor

from gateway.codec.inference import BytesPolicy, TensorPolicy
from gateway.codec.json.pieces import PIECE_BYTES
from gateway.codec.tensors import string_reading
from gateway.codec.tensors.base64_reading import from_base64
from gateway.codec.tensors.elements import WINDOW_BYTES, append_strings, joined_blobs
from gateway.codec.tensors.string_printing import StringForm, string_pieces
from gateway.codec.tensors.string_reading import BLOB_BYTES, BytesSink
from gateway.errors import CodecError
from tests.codec.make_pairs import blob_of
from tests.codec.walk import (
    MANY_TEXTS,
    ODD_TEXTS,
    backend_json,
    bytes_header,
    cut,
    one_output,
    only_blob,
    parse_request,
    read_answer,
    with_odd_text,
)
from tests.steps import run


def strings_sent(blob: bytes, n_elements: int) -> list[str]:
    data: list[str] = json.loads(backend_json(bytes_header(n_elements, len(blob)), blob))["inputs"][0]["data"]
    return data


@pytest.mark.rule("3.5", "4.8")
@pytest.mark.parametrize(
    "texts",
    [
        ["a", "", "é", "nul\0inside"],
        ["\x00", "\x1f", "\x7f", "\u2028", "\ufeff", "\uffff", "😀", "\U0010ffff"],
        ['"', "\\", '\\"', "\\u0041", "]", ",", "[1,2],{"],
        ["x" * 100 * 1024],
        ["é" * 70_000, "", "😀" * 50_000],
        ["\x01" * 200_000],
        [""] * 10_000,
        [str(i) for i in range(30_000)],
        ["a" * (PIECE_BYTES - 1) + "😀" + "b"],
        ["a" * PIECE_BYTES, "b", "c" * (PIECE_BYTES + 1), "d"],
    ],
)
def test_text_crosses_both_ways(texts: list[str]) -> None:
    blob = blob_of(texts)
    assert strings_sent(blob, len(texts)) == texts
    for ascii_only in (True, False):
        answer = one_output(json.dumps(texts, ensure_ascii=ascii_only), "BYTES", f"[{len(texts)}]")
        for chunk_bytes in (None, 1000, 65536):
            assert only_blob(answer, chunk_bytes) == blob


@pytest.mark.parametrize("n_bytes", [10 * 1024 * 1024])
@pytest.mark.parametrize("unit", ["x", "\\n", "é", "\\u00e9", "\\ud83d\\ude00"])
def test_one_very_long_string_crosses_back(n_bytes: int, unit: str) -> None:
    data = '["' + unit * (n_bytes // len(unit.encode())) + '"]'
    assert only_blob(one_output(data, "BYTES"), 65536) == blob_of(json.loads(data))


@pytest.mark.parametrize("unit", ["\\ud83d\\ude00", "\\u00e9\\\\", '\\"]', "😀", "é", "],[,"])
def test_escapes_and_characters_are_cut_at_every_place(unit: str) -> None:
    """The end of a piece falls on every byte of the unit, in long strings and between short ones."""
    for shift in range(14):
        for strings in ([unit * (PIECE_BYTES // 3)], [unit] * (PIECE_BYTES // 6)):
            data = "[" + ",".join(f'"{"a" * shift}{string}"' for string in strings) + "]"
            assert only_blob(one_output(data, "BYTES", f"[{len(strings)}]"), 50_001) == blob_of(json.loads(data))


def test_every_cut_in_two_of_strings_with_escapes_reads_the_same() -> None:
    data = '[["\\ud83d\\ude00","\\u00e9\\"\\\\"],["é😀\\/\\b\\f\\n\\r\\t","]\\u0000,["]]'
    answer = one_output(data, "BYTES", "[2,2]")
    expected = blob_of([text for row in json.loads(data) for text in row])
    for first in range(len(answer)):
        (blob,) = read_answer([answer[:first], answer[first:]]).blobs
        assert bytes(blob) == expected


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'["\\ud800"]', ""),
        (b'["\\udc00"]', ""),
        (b'["\\ud800\\u0041"]', ""),
        (b'["\\udc00\\ud800"]', ""),
        (b'["\\ud800\\ud800"]', ""),
        (b'["\\ud8"]', ""),
        (b'["\\u12"]', ""),
        (b'["\\x41"]', ""),
        (b'["\\"]', ""),
        (b'["\x01"]', ""),
        (b'["\n"]', ""),
        (b'["\xff"]', ""),
        (b'["\xc3"]', ""),
        (b'["\xed\xa0\x80"]', ""),
        (b'["\xc0\x80"]', ""),
        (b'["\xf4\x90\x80\x80"]', ""),
        (b"[1]", "element 0: expected a string, got 1"),
        (b'["a",1]', "element 1: expected a string, got 1"),
        (b'["a",null]', "element 1: expected a string, got null"),
        (b"[true]", "expected a string"),
        (b"[{}]", "expected a string"),
        (b"[NaN]", "expected a string"),
        (b'["a",]', "not JSON|not UTF-8"),
        (b'[,"a"]', "not JSON|not UTF-8"),
        (b'["a",,"b"]', "not JSON|not UTF-8"),
        (b'["a" "b"]', "element 0, or one behind it, is not JSON: Expecting ',' delimiter"),
        (b'["a"["b"]]', "not JSON|not UTF-8"),
        (b'[["a",],["b"]]', "not JSON|not UTF-8"),
        (b'["a"}', "brackets do not match"),
        (b'"a"', "data must be an array"),
        (b"null", "data must be an array"),
        (b"5", "data must be an array"),
        (b"{}", "data must be an array"),
        (b'["a"', ""),
    ],
)
def test_strings_that_are_broken_are_refused_by_output(data: bytes, words: str) -> None:
    for shape in ("[1]", "[2]"):
        for chunk_bytes in (None, 1):
            with pytest.raises(CodecError, match=f"output 'y'.*{words}"):
                only_blob(one_output(data, "BYTES", shape), chunk_bytes)


@pytest.mark.parametrize("data", [b'["a"],["b"]', b'["a","b"]]', b'["a","b"]"c"', b'["a","b"],'])
def test_strings_behind_the_array_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        only_blob(one_output(data, "BYTES", "[2]"))


@pytest.mark.parametrize(
    "tail",
    [
        b'\\ud800"]',
        b'\\udc00"]',
        b'\\ud800\\u0041"]',
        b'\\x"]',
        b'\x01"]',
        b'\xff"]',
        b'\xc3"]',
        b'\xed\xa0\x80"]',
        b'\\u12"]',
        b'\\ud83d"]',
    ],
)
def test_broken_end_of_a_long_string_is_refused_like_that_of_a_short_one(tail: bytes) -> None:
    for shift in range(0, 14, 2):
        for n_bytes in (PIECE_BYTES - 7, 2 * PIECE_BYTES):
            with pytest.raises(CodecError, match="output 'y'"):
                only_blob(one_output(b'["' + b"x" * (n_bytes + shift) + tail, "BYTES"), 65536)


@pytest.mark.parametrize(
    ("data", "n_elements", "words"),
    [
        ('["a"]', 2, "expected 2 elements, got 1"),
        ('["a","b","c"]', 2, "expected 2 elements, got more"),
        ("[]", 1, "expected 1 elements, got 0"),
        ('[""]', 0, "expected 0 elements, got more"),
    ],
)
def test_wrong_number_of_strings_is_refused_with_both_numbers(data: str, n_elements: int, words: str) -> None:
    with pytest.raises(CodecError, match=f"output 'y'.*{words}"):
        only_blob(one_output(data, "BYTES", f"[{n_elements}]"))


@pytest.mark.parametrize("data", ["[]", "[[],[]]", "[ [ ] ]"])
def test_no_strings_are_an_empty_blob(data: str) -> None:
    assert only_blob(one_output(data, "BYTES", "[0]"), 1) == b""


def test_brackets_without_end_around_strings_are_refused() -> None:
    for text in ("[" * 100_000, "[" * 65 + '"a"' + "]" * 65):
        with pytest.raises(CodecError, match="nested deeper than 64"):
            only_blob(one_output(text, "BYTES"))


@pytest.mark.rule("3.5", "4.8")
@pytest.mark.parametrize(
    "octets",
    [[b"\xff\xfe", b"", b"a"], [bytes(range(256)) * 1000], [b"x" * (PIECE_BYTES + 1), b"\0", b"y" * PIECE_BYTES]],
)
def test_octets_cross_both_ways_in_base64(octets: list[bytes]) -> None:
    blob = blob_of(octets)
    request = parse_request(
        bytes_header(len(octets), len(blob)) + blob,
        len(bytes_header(len(octets), len(blob))),
        TensorPolicy(bytes=BytesPolicy.BASE64),
    )
    assert request is not None
    (entry,) = json.loads(b"".join(request.json_pieces()))["inputs"]
    assert entry["data"] == [base64.b64encode(octet).decode() for octet in octets]
    answer = {"outputs": [{"name": "y", "shape": [len(octets)], **entry}]}
    (blob_back,) = read_answer(cut(json.dumps(answer).encode(), 1000)).blobs
    assert bytes(blob_back) == blob


def test_base64_is_decoded_also_where_its_name_is_written_with_an_escape() -> None:
    answer = one_output('["YQ=="]', "BYTES", "[1]").replace(b"}]}", rb',"parameters":{"content_type":"base\u00364"}}]}')
    assert bytes(only_blob(answer, 1)) == blob_of(["a"])


@pytest.mark.rule("4.7")
@pytest.mark.parametrize(
    "text", ["=", "a", "ab", "abc", "ab=c", "YQ==YQ==", "Y Q==", "YQ==\\n", "é", "-_-_", "YQ=", "YWI"]
)
def test_broken_base64_is_refused_by_output_and_element(text: str) -> None:
    answer = one_output(f'["","{text}"]', "BYTES", "[2]").replace(b"}]}", b',"parameters":{"content_type":"base64"}}]}')
    with pytest.raises(CodecError, match="output 'y'.*element 1 is not base64"):
        read_answer([answer])


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("separator", [",", ", ", ",\n"])
@pytest.mark.parametrize("text", ["", ",", "]", '"', "a\n", "é\x7f", '","', "x" * 100 + "\n"])
def test_short_strings_that_must_be_parsed_are_few_in_each_step(
    text: str, separator: str, is_nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def counted(elements: bytearray, strings: list[str]) -> None:
        append_strings(elements, strings)
        parsed.extend(strings)

    monkeypatch.setattr(string_reading, "append_strings", counted)
    texts = [text, text + "b"] * 12_000
    data = json.dumps(texts, separators=(separator, ":"))
    buffer = bytearray((f"[{data}]" if is_nested else data).encode())
    sink = BytesSink("y", (1, len(texts)) if is_nested else (len(texts),))
    most = before = 0
    while not sink.done:
        del buffer[: sink.step(buffer)]
        most = max(most, len(parsed) - before)
        before = len(parsed)
    assert b"".join(sink.blobs()) == blob_of(texts)
    assert most <= 32 * 1024 // len('"",')


@pytest.mark.parametrize(
    "sizes", [pytest.param([10], marks=pytest.mark.slow), [50, 100, 150], [1000, 300_000], [3 * BLOB_BYTES, 3]]
)
def test_large_tensor_is_several_blobs_of_whole_elements(sizes: list[int]) -> None:
    """As one that grows, it would be copied in a step that takes 2 ms."""
    n_rounds = 3 * BLOB_BYTES // sum(sizes) + 1
    texts = [bytes([97 + index % 26]) * size for index in range(n_rounds) for size in sizes]
    in_base64 = [base64.b64encode(text).decode() for text in texts]
    buffer = bytearray(json.dumps(in_base64).encode())
    sink = BytesSink("y", None)
    while not sink.done:
        del buffer[: sink.step(buffer)]
    blobs = sink.blobs()
    decoded = run(from_base64(blobs, "y"))
    for found, expected in ((blobs, in_base64), (decoded, texts)):
        assert len(found) >= 2
        elements = [deserialize_bytes_tensor(bytes(blob)).tolist() for blob in found]  # raises if one is cut
        assert blob_of(list(chain.from_iterable(elements))) == blob_of(expected)
        assert all(len(blob) < BLOB_BYTES + 2 * WINDOW_BYTES + 4 * max(sizes) for blob in found)
    assert sink.held_bytes == len(blob_of(in_base64))
    whole = run(joined_blobs(blobs))
    assert whole == blob_of(in_base64)
    assert not blobs


@pytest.mark.parametrize("odd", ODD_TEXTS)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_run_of_strings_with_an_odd_one_is_read_like_others(odd: str, is_ascii: bool) -> None:
    elements = with_odd_text(odd)
    expected = blob_of(elements)
    for separator in (",", ", ", ",\n", " ,", ",\n  "):
        data = json.dumps(elements, ensure_ascii=is_ascii, separators=(separator, ":"))
        assert only_blob(one_output(data, "BYTES", f"[{len(elements)}]"), 100_000) == expected


@pytest.mark.parametrize("odd", ODD_TEXTS)
def test_run_that_is_all_odd_is_read_and_written_like_others(odd: str) -> None:
    elements = [odd] * 20_000
    answer = one_output(json.dumps(elements, separators=(",", ":")), "BYTES", "[20000]")
    assert only_blob(answer, 50_000) == blob_of(elements)
    assert json.loads(b"[" + b"".join(string_pieces(memoryview(blob_of(elements)), StringForm.TEXT)) + b"]") == elements


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (b'"\\ud800"', "not JSON|not UTF-8"),
        (b'"a\nb"', "not JSON|not UTF-8"),
        (b'"\xff"', "not JSON|not UTF-8"),
        (b'"\xc3","\xa9"', "not JSON|not UTF-8"),
        (b'"\\x"', "not JSON|not UTF-8"),
        (b"1", "expected a string, got 1$"),
        (b"null", "expected a string, got null$"),
        (b'"a" "b"', "not JSON|not UTF-8"),
        (b'"a";"b"', "not JSON|not UTF-8"),
        (b'"a"""', "not JSON|not UTF-8"),
        (b'"a",,"b"', "not JSON|not UTF-8"),
        (b'["a"]', "nested"),
    ],
)
def test_broken_string_in_a_long_run_is_refused(odd: bytes, words: str) -> None:
    texts = [json.dumps(element).encode() for element in MANY_TEXTS]
    data = b"[" + b",".join([*texts[:5000], odd, *texts[5000:]]) + b"]"
    with pytest.raises(CodecError, match=f"output 'y'.*{words}"):
        only_blob(one_output(data, "BYTES", f"[{len(MANY_TEXTS) + 1}]"), 100_000)


def random_texts(dice: random.Random) -> list[str]:
    """Strings that are alike long or not, among them such that look like separators, marks and lengths."""
    alphabet = dice.choice(["ab c", 'ab",', "a\\\n", "a\x7f_", "é😀a", 'é\x7f"', ", :"])
    sizes = dice.choice([[0], [1], [6], [50], [0, 1, 2, 3], list(range(60))])
    texts = [
        "".join(dice.choices(alphabet, k=dice.choice(sizes))) for _ in range(dice.choice([1, 31, 32, 33, 40, 300]))
    ]
    for _ in range(dice.choice([0, 0, 1, 3])):
        texts[dice.randrange(len(texts))] = dice.choice(
            ['","', '", "', "", "\x7f___", ",", '"', "\\", "\\\\", "\0", "é"]
        )
    return texts


def as_json_reads(text: bytes) -> list[str] | None:
    """What Python's own parser makes of *text*: a list of strings, or None."""
    try:
        data = json.loads(text.decode())
    except ValueError:
        return None
    if not isinstance(data, list) or not all(isinstance(element, str) for element in data):
        return None
    try:
        "".join(data).encode()
    except UnicodeEncodeError:
        return None  # a lone surrogate
    return data


@pytest.mark.parametrize("seed", range(20))
def test_strings_are_read_as_by_another_parser_also_when_damaged(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(30):
        texts = random_texts(dice)
        separator = dice.choice([",", ",", ", ", ",\n", " , "])
        is_ascii = dice.random() < 0.5
        whole = ("[" + separator.join(json.dumps(text, ensure_ascii=is_ascii) for text in texts) + "]").encode()
        for n_damages in (0, 1, 1, 2):
            data = bytearray(whole)
            for _ in range(n_damages):
                place = dice.randrange(len(data))
                damage = dice.choice([b'"', b'"', b",", b"\\", b" ", b"", b"\0", b"\x7f", b"\xc3", b"a", b'",', b'","'])
                data[place : place + dice.choice([0, 1, 1, 3])] = damage
            expected = as_json_reads(bytes(data))
            sink = BytesSink("y", (len(texts) if expected is None else len(expected),))
            buffer = bytearray()
            try:
                for chunk in cut(bytes(data), dice.choice([None, 100, 1000])):
                    buffer += chunk
                    while buffer and not sink.done and (taken := sink.step(buffer)):
                        del buffer[:taken]
            except CodecError:
                assert expected is None
            else:
                assert (sink.done and not bytes(buffer).strip()) == (expected is not None)
                if expected is not None:
                    assert b"".join(sink.blobs()) == blob_of(expected)
