"""Header fields as a value."""

from gateway.headers import Headers

HEADERS = Headers([("Host", "a"), ("X-A", "1"), ("x-a", "2")])


def test_fields_are_found_in_any_case_and_keep_their_order() -> None:
    assert HEADERS.get("host") == "a"
    assert HEADERS.get("x-a") == "1"
    assert HEADERS.all("x-a") == ["1", "2"]
    assert HEADERS.joined("x-a") == "1, 2"
    assert HEADERS.pairs == (("Host", "a"), ("X-A", "1"), ("x-a", "2"))


def test_a_field_that_is_absent_gives_the_default() -> None:
    assert HEADERS.get("x-b") == ""
    assert HEADERS.get("x-b", "none") == "none"
    assert HEADERS.all("x-b") == []
    assert "x-b" not in HEADERS
    assert "x-a" in HEADERS
