"""Errors of backends, in the shape in which clients read them (protocol 4.9)."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from gateway.codec.v2.error_bodies import MAX_WORDS, error_body, reworded, shortened, words_of
from tests.codec.v2.test_header_steps import lines_of

pytestmark = pytest.mark.rule("4.9")

TITLE = "<html><head><title>502 Bad Gateway</title></head>"


def answered(text: bytes, status: int, reason: str, json_bytes: int | None = None) -> tuple[bytes, str]:
    return error_body(text, status, reason, json_bytes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"Internal Server Error", "Internal Server Error"),
        (b'"quoted \\u00e9"', "quoted é"),
        (b"[1, 2]", "[1, 2]"),
        (b"404", "404"),
        (b"\xff", "\ufffd"),
        (b"a\xe9b", "a\ufffdb"),
        (b"", "the backend answered 500: Oops"),
        (b" \r\n", "the backend answered 500: Oops"),
        (b"null", "the backend answered 500: Oops"),
        (b"{}", "the backend answered 500: Oops"),
        (b"[]", "the backend answered 500: Oops"),
        (b'""', "the backend answered 500: Oops"),
        (b"[" * 60_000, "[" * 60_000),
        (b'{"error": "cut o', '{"error": "cut o'),
        (b'{"error": "a"} and more', '{"error": "a"} and more'),
        (b"<class 'ValueError'>: no", "<class 'ValueError'>: no"),
    ],
)
def test_body_without_members_becomes_the_text_of_an_error(text: bytes, words: str) -> None:
    body, said = answered(text, 500, "Oops")
    assert said == words
    assert json.loads(body) == {"error": words}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"detail": "no"}, "no"),
        ({"detail": [{"msg": "field required"}]}, '[{"msg":"field required"}]'),
        ({"code": 503, "type": "InternalServerException", "message": "Prediction failed"}, "Prediction failed"),
        ({"error_code": "BAD_REQUEST", "message": "no such column\n", "stack_trace": "x"}, "no such column"),
        ({"detail": "first", "message": "second"}, "first"),
        ({"detail": None, "message": "second"}, "second"),
        ({"detail": " ", "message": "second"}, "second"),
        ({"detail": False}, "false"),
        ({"reason": "x"}, '{"reason":"x"}'),
        ({"message": "null"}, "null"),
    ],
)
def test_object_without_an_error_gets_one_and_keeps_its_other_members(text: dict[str, Any], words: str) -> None:
    body, said = answered(json.dumps(text, separators=(",", ":")).encode(), 422, "")
    assert said == words
    assert json.loads(body) == {"error": words, **text}


def test_values_of_other_members_stay_as_they_came() -> None:
    body, _ = answered(b'{"detail": "no", "limit": 1.50, "scores": [NaN, -Infinity]}', 422, "")
    assert body == b'{"error":"no","detail":"no","limit":1.50,"scores":[NaN, -Infinity]}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{ "error" : "a", "more": 1 }', "a"),
        (b'{"error":{"code":7}}\n', '{"code":7}'),
        (b'{"error":"a","x":NaN}', "a"),
        (b'{"error":"","message":"b"}', "b"),
        (b'{"error":null}', '{"error":null}'),
    ],
)
def test_body_with_an_error_goes_through_byte_for_byte(text: bytes, words: str) -> None:
    assert answered(text, 503, "") == (text, words)


def test_body_with_an_error_that_is_not_utf8_has_the_wrong_bytes_replaced() -> None:
    assert answered(b'{ "error": "caf\xe9" }', 500, "") == (b'{ "error": "caf\xef\xbf\xbd" }', "caf\ufffd")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"Internal Server Error", 'backend "vision" answered 500: Internal Server Error'),
        (b"<html><h1>no</h1></html>", 'backend "vision" answered 500: no'),
        (b"", 'backend "vision" answered 500: Oops'),
        (b"{}", 'backend "vision" answered 500: Oops'),
        (b'"quoted"', "quoted"),
        (b"[1, 2]", "[1, 2]"),
        (b'{"detail": "no"}', "no"),
    ],
)
def test_words_that_are_no_json_say_whose_they_are(text: bytes, words: str) -> None:
    _, said = error_body(text, 500, "Oops", backend="vision")
    assert said == words


@pytest.mark.parametrize("status", [400, 413, 415])
@pytest.mark.parametrize(
    ("text", "words", "others"),
    [
        (b'{"error":"too long","code":1}', "too long", {"code": 1}),
        (b'{"detail":"too long"}', "too long", {"detail": "too long"}),
        (b'{"error":{"a":1}}', '{"a":1}', {}),
        (b"too long", "too long", {}),
        (b"", "the backend answered", {}),
    ],
)
def test_transcoded_request_that_may_have_grown_too_long_is_told_its_length(
    status: int, text: bytes, words: str, others: dict[str, Any]
) -> None:
    body, said = answered(text, status, "", json_bytes=1234567)
    assert said.startswith(words)
    assert said.endswith("1234567 bytes of JSON of this request)")
    assert json.loads(body) == {"error": said, **others}


@pytest.mark.parametrize(
    ("status", "json_bytes"),
    [(401, 2**21), (404, 2**21), (422, 2**21), (500, 2**21), (503, 2**21), (400, 2**20), (415, 9)],
)
def test_length_is_told_only_where_it_may_be_the_cause(status: int, json_bytes: int) -> None:
    text = b'{"error":"no"}'
    assert answered(text, status, "", json_bytes=json_bytes) == (text, "no")


def test_length_is_told_of_every_413() -> None:
    assert answered(b'{"error":"no"}', 413, "", json_bytes=9)[1].startswith("no (the gateway had made 9 bytes")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("<html>boom</html>", "boom"),
        (
            f"{TITLE}\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx/1.27</center></html>",
            "502 Bad Gateway nginx/1.27",
        ),
        (f"{TITLE}<body><p>no <b>upstream</b>\n  here</p></body></html>", "no upstream here"),
        (f"<!DOCTYPE html>{TITLE}</html>", ""),
        ("<html><style>p {color: red}</style><script>if (a<b) x()</script><p>a &lt; b</p></html>", "a < b"),
        ("<html><style>p</style", ""),
        ("<h1>Error<!-- hidden --></h1>", "Error"),
    ],
)
def test_html_becomes_its_text_without_tags(page: str, words: str) -> None:
    _, said = answered(page.encode(), 502, "Bad Gateway")
    assert said == (words or "the backend answered 502: Bad Gateway")


@pytest.mark.parametrize(
    "page", ["<p>" * 20_000 + "</", "<" * 60_000 + "</", "<script>" * 8_000 + "</p>", "</" * 30_000]
)
def test_page_of_nothing_but_tags_is_read_in_one_pass(page: str) -> None:
    body, _ = answered(page.encode(), 502, "")
    assert list(json.loads(body)) == ["error"]


def test_reason_that_is_no_text_is_no_trouble() -> None:
    assert answered(b"", 520, "")[1] == "the backend answered 520"
    assert answered(b"", 400, "Err\udce9ur")[1] == "the backend answered 400: Err?ur"


def test_long_words_keep_their_beginning_and_their_end() -> None:
    words = "b" + "x" * 100_000 + "e"
    assert len(shortened(words)) <= MAX_WORDS + 5
    assert shortened(words)[0] + shortened(words)[-1] == "be"
    assert shortened("short") == "short"


def test_object_that_does_not_say_what_went_wrong_has_no_words() -> None:
    assert words_of({"outputs": b"[]"}) == ""


def test_text_of_a_long_page_is_cut() -> None:
    page = f"{TITLE}<body>{'<p>word</p>' * 5000}</body></html>"
    _, said = answered(page.encode(), 502, "")
    assert said.startswith("word word")
    assert MAX_WORDS - 10 < len(said) <= 2 * MAX_WORDS


# Bodies of 64 KiB, which is as much as is read of one, that cost most
LONG_JSON = {
    "members": b"{%b}" % b",".join([b'"%x":1' % number for number in range(7000)]),
    "members that are NaN": b"{%b}" % b",".join([b'"%x":NaN' % number for number in range(6000)]),
    "members beside an error": b'{"error":"no",%b}' % b",".join([b'"%x":1' % number for number in range(7000)]),
    "elements that are NaN": b'{"detail":"no","x":[%b]}' % b",".join([b"NaN"] * 16_000),
    "detail of NaN": b'{"detail":[%b]}' % b",".join([b"NaN"] * 16_000),
    "empty objects": b'{"detail":[%b]}' % b",".join([b"{}"] * 21_000),
}
LONG_PAGES = {
    "tags": b"<p></p>" + b"<>" * 32_000,
    "styles": b"<style></style>" * 4300,
    "titles": b"<title></title>" * 4300,
    "open tags": b"<" * 64_000 + b"</",
}


@pytest.mark.parametrize("name", LONG_JSON)
def test_long_json_is_read_in_one_step_of_few_lines(name: str) -> None:
    """With Python's work on each token, 16,000 NaN took 23 ms and 6,500 members 8 ms."""
    assert lines_of(in_steps(LONG_JSON[name])) < 5 * 7000
    body, _ = error_body(LONG_JSON[name], 400, "", json_bytes=1)
    members = json.loads(LONG_JSON[name])
    assert json.loads(body).keys() == {"error", *members}


@pytest.mark.parametrize("name", LONG_PAGES)
def test_long_page_is_read_up_to_its_limit(name: str) -> None:
    """All tags of 64 KiB took 7 ms."""
    page = LONG_PAGES[name]
    body, said = error_body(page + b"behind", 400, "", backend="b")
    assert list(json.loads(body)) == ["error"]
    assert ("behind" in said) == (name in ("styles", "titles"))
    assert lines_of(in_steps(page)) < 200


def test_scripts_and_styles_do_not_count_as_read() -> None:
    page = f"<html><script>{'x' * 30_000}</script><STYLE>{'y' * 30_000}</STYLE>boom</html>"
    assert answered(page.encode(), 502, "")[1] == "boom"


def in_steps(text: bytes) -> Generator[None, None, object]:
    return error_body(text, 400, "", json_bytes=1)
    yield


def test_reason_that_the_caller_has_found_takes_the_place_of_the_servers_error() -> None:
    text = b'{"error": "see the trace", "trace": ["a", "b"]}'
    body, said = error_body(text, 500, "", own_words="paper")
    assert (json.loads(body), said) == ({"error": "paper", "trace": ["a", "b"]}, "paper")
    body, said = error_body(text, 413, "", json_bytes=9, own_words="paper")
    assert said.startswith("paper (")
    assert json.loads(body)["error"] == said


def test_hint_is_added_to_words_that_are_not_in_the_protocols_shape() -> None:
    body, said = error_body(b'{"detail": "Not Found"}', 404, "", hint=" (it has none)")
    assert (json.loads(body)["error"], said) == ("Not Found (it has none)", "Not Found (it has none)")
    text = b'{"error": "no such model"}'
    assert error_body(text, 404, "", hint=" (it has none)") == (text, "no such model")


@pytest.mark.parametrize("text", [b'{"error": {"code": 3}, "trace": ["a"]}', b"<h1>Oops</h1>", b'{"detail": "no"}'])
def test_other_words_take_the_place_of_those_of_a_body(text: bytes) -> None:
    body, said = error_body(text, 500, "Oops")
    assert json.loads(reworded(body, f"row 3: {said}")) == {**json.loads(body), "error": f"row 3: {said}"}
