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
    assert "x-b" not in HEADERS.first
    assert "x-a" in HEADERS.first


def test_the_first_values_stand_by_their_names_in_order() -> None:
    assert dict(HEADERS.first) == {"host": "a", "x-a": "1"}
    single = Headers([("B", "1"), ("A", "2")])
    assert list(single.first.items()) == [("b", "1"), ("a", "2")]
    assert single.all("b") == ["1"]
    assert single.joined("b") == "1"
    assert single.joined("c") == ""
