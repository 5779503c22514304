"""Which headers cross the gateway, and which are for one hop alone."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gateway.headers import Headers
from gateway.policy.crossing import (
    UNIX_PEER,
    BackendHeaders,
    Fields,
    changed_to_client,
    crossing_of_all,
    may_name_model,
    relayed_to_client,
    transcoded_to_client,
    went_through,
)
from gateway.policy.trace_context import Trace

CLIENT = Headers(
    [
        ("Host", "h"),
        ("traceparent", "t"),
        ("Content-Length", "3"),
        ("Content-Type", "application/octet-stream"),
        ("Content-Encoding", "gzip"),
        ("Inference-Header-Content-Length", "3"),
        ("Accept", "text/html"),
        ("Accept-Encoding", "gzip"),
        ("Range", "bytes=0-1"),
        ("If-None-Match", "x"),
        ("Expect", "100-continue"),
        ("TE", "trailers"),
        ("X-Request-Id", "1"),
        ("Authorization", "a"),
        ("X-A", "1"),
        ("x-a", "2"),
    ]
)
WHERE = [("X-Forwarded-Proto", "http"), ("X-Forwarded-Host", "h")]
HOP = [("X-Forwarded-For", "p")]
FORWARDED = WHERE + HOP
KEPT = [("Authorization", "a"), ("X-A", "1"), ("x-a", "2")]
BODY = [
    ("Content-Type", "application/octet-stream"),
    ("Content-Encoding", "gzip"),
    ("Inference-Header-Content-Length", "3"),
]
TRACE = [("traceparent", "t")]
ASKED = [("Accept", "text/html")]
PARTIAL = [("Range", "bytes=0-1"), ("If-None-Match", "x")]
CODED = [("Accept-Encoding", "gzip")]
UNCODED = [("Accept-Encoding", "identity")]
JSON = [("Content-Type", "application/json")]


@dataclass
class Asked:
    headers: Headers
    peer: str = "p"
    scheme: str = "http"
    host: str = "h"
    is_from_proxy: bool = False


def headers(set_: dict[str, str] | None = None, *remove: str) -> BackendHeaders:
    return BackendHeaders(set_ or {}, remove)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (headers().relayed, TRACE + BODY + ASKED + CODED + PARTIAL + KEPT + FORWARDED),
        (headers().relayed_uncoded, TRACE + BODY + ASKED + PARTIAL + KEPT + FORWARDED + UNCODED),
        (headers().inflated, TRACE + ASKED + CODED + PARTIAL + KEPT + FORWARDED + JSON),
        (headers().transcoded, TRACE + ASKED + PARTIAL + KEPT + FORWARDED + JSON + UNCODED),
        (headers().metadata, KEPT + FORWARDED + UNCODED),
    ],
)
def test_each_kind_of_request_carries_its_headers_in_their_order(make: Callable[..., Fields], expected: Fields) -> None:
    assert make(Asked(CLIENT)) == expected


def test_a_client_that_accepts_no_coding_gets_none() -> None:
    for make in (headers().relayed, headers().inflated):
        assert ("Accept-Encoding", "identity") in make(Asked(Headers()))


def test_the_configuration_sets_and_removes_whatever_the_client_or_the_gateway_says() -> None:
    changed = headers({"X-A": "3", "content-type": "x"}, "AUTHORIZATION", "X-Forwarded-For", "accept-encoding")
    fields = changed.transcoded(Asked(CLIENT))
    assert fields == [*TRACE, *ASKED, *PARTIAL, *WHERE, ("X-A", "3"), ("content-type", "x")]


SAID = [
    ("X-Forwarded-For", "a"),
    ("X-Forwarded-For", "b"),
    ("Forwarded", "for=a"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "o"),
]


def test_what_a_trusted_proxy_says_of_the_client_is_continued() -> None:
    asked = Asked(Headers(SAID), is_from_proxy=True)
    assert headers().relayed_uncoded(asked) == [*SAID[2:], ("X-Forwarded-For", "a, b, p"), *UNCODED]
    assert headers().transcoded(asked) == [*SAID[2:], ("X-Forwarded-For", "a, b, p"), *JSON, *UNCODED]
    assert headers().relayed_uncoded(Asked(Headers([]), is_from_proxy=True)) == [*FORWARDED, *UNCODED]


def test_what_anybody_else_says_of_the_client_is_replaced() -> None:
    others = [("x_forwarded_for", "a"), ("X_Forwarded_Proto", "https"), ("x-forwarded_host", "o")]
    for said in (SAID, others):
        assert headers().relayed_uncoded(Asked(Headers(said))) == [*FORWARDED, *UNCODED]
        assert headers().transcoded(Asked(Headers(said))) == [*FORWARDED, *JSON, *UNCODED]


def test_fields_of_which_each_attempt_has_its_own_stay_behind() -> None:
    made = BackendHeaders({}, [], ("traceparent",))
    for make in (made.relayed, made.relayed_uncoded, made.inflated, made.transcoded, made.metadata):
        assert TRACE[0] not in make(Asked(CLIENT))
    trace = Trace("a" * 32, "b" * 16, True, state="c=d")
    assert made.trace(trace) == trace
    assert headers({}, "tracestate").trace(trace) == Trace("a" * 32, "b" * 16, True)
    assert headers({"traceparent": "1"}).trace(trace) is None


@pytest.mark.parametrize("cross", [relayed_to_client, transcoded_to_client])
def test_headers_of_one_hop_and_those_that_any_connection_names_stay_behind(cross: Callable[..., Fields]) -> None:
    backend = [("Connection", "close, X-Hop"), ("X-Hop", "1"), ("Keep-Alive", "5"), ("X-A", "2")]
    assert cross(Headers(backend)) == [("X-A", "2")]
    assert cross(Headers([("Connection", "keep-alive"), *backend])) == [("X-A", "2")]
    assert cross(Headers([("connection", "Close"), ("X-Hop", "1")])) == [("X-Hop", "1")]


def test_headers_of_a_body_that_was_made_anew_stay_behind() -> None:
    backend = Headers([("ETag", "1"), ("Content-Length", "5"), ("Content-Type", "a/b"), ("X-A", "2")])
    assert transcoded_to_client(backend) == [("X-A", "2")]
    assert relayed_to_client(backend) == [("ETag", "1"), ("Content-Type", "a/b"), ("X-A", "2")]


@pytest.mark.parametrize(
    "name", ["X_Del", "x_set", "Content_Length", "Transfer_Encoding", "X_Forwarded_For", "Host", "Proxy_Authorization"]
)
def test_no_other_spelling_carries_what_stays_behind(name: str) -> None:
    client = Headers([(name, "a"), ("X_Other", "b")])
    fields = headers({"X-Set": "c"}, "X-Del").relayed(Asked(client))
    assert fields == [("X_Other", "b"), *FORWARDED, ("X-Set", "c"), ("Accept-Encoding", "identity")]


def test_no_connection_header_takes_away_what_proxies_have_said() -> None:
    said = [("X-Forwarded-Proto", "https"), ("X-Forwarded-Host", "a"), ("Forwarded", "for=b"), ("Via", "1.1 c")]
    named = ", ".join(name for name, _ in said)
    fields = headers().relayed(Asked(Headers([("Connection", named), *said]), is_from_proxy=True))
    assert fields == [*said, ("X-Forwarded-For", "p"), *UNCODED]


@pytest.mark.parametrize("name", ["X-Real-IP", "X-Forwarded-Port", "X-Forwarded-Prefix", "X_Real_IP"])
def test_what_proxies_say_crosses_from_them_alone(name: str) -> None:
    said = Headers([(name, "a"), ("Connection", name.replace("_", "-"))])
    for is_from_proxy in (True, False):
        assert ((name, "a") in headers().relayed(Asked(said, is_from_proxy=is_from_proxy))) is is_from_proxy


def test_a_client_without_an_address_is_no_hop() -> None:
    assert headers().relayed(Asked(Headers([]), peer=UNIX_PEER)) == [*WHERE, *UNCODED]
    behind_a_proxy = Headers([("X-Forwarded-For", "a"), ("X-Forwarded-For", "b")])
    assert headers().relayed(Asked(behind_a_proxy, peer=UNIX_PEER)) == [*WHERE, *UNCODED]
    fields = headers().relayed(Asked(behind_a_proxy, peer=UNIX_PEER, is_from_proxy=True))
    assert fields == [*WHERE, ("X-Forwarded-For", "a, b"), *UNCODED]


@pytest.mark.parametrize("name", ["Content-MD5", "Digest", "Content-Digest", "Repr-Digest"])
def test_digests_of_the_binary_body_do_not_cross_to_json_but_do_on_a_relay(name: str) -> None:
    client = Headers([(name, "a")])
    for make, crosses in ((headers().transcoded, False), (headers().inflated, False), (headers().relayed, True)):
        assert ((name, "a") in make(Asked(client))) is crosses


def test_nothing_computed_from_a_body_crosses_with_another_name_in_it() -> None:
    kept = [("Content-Type", "application/json"), ("X-A", "1")]
    dropped = [
        (name, "x") for name in ("ETag", "Content-MD5", "Digest", "Repr-Digest", "Accept-Ranges", "Content-Length")
    ]
    assert changed_to_client(Headers(kept + dropped)) == kept


TRACES = [
    "X-Amzn-Trace-Id",
    "X-Cloud-Trace-Context",
    "uber-trace-id",
    "sentry-trace",
    "baggage",
    "X-B3-Flags",
    "CF-Ray",
]


@pytest.mark.parametrize("name", TRACES)
def test_names_of_one_request_neither_keep_it_apart_nor_go_with_a_question_for_many(name: str) -> None:
    client = Asked(Headers([("X-A", "1"), (name, "a")]), is_from_proxy=True)
    assert (name, "a") in headers().transcoded(client)
    assert crossing_of_all(headers().transcoded(client)) == [("X-A", "1"), *WHERE, *JSON, *UNCODED]
    assert headers().metadata(client) == [("X-A", "1"), *FORWARDED, *UNCODED]


@pytest.mark.parametrize(
    ("name", "value", "of_all"),
    [
        ("X-Forwarded-For", "a, b", None),
        ("X_Real_IP", "a", None),
        ("X-Forwarded-Host", "a", "a"),
        ("Forwarded", "for=a", None),
        ("Forwarded", 'For="[::1]:80";host=h;proto=https', "host=h;proto=https"),
        ("Forwarded", 'host=h;for="a,b;c\\"d", for=b;by=c , for=d', "host=h;, by=c"),
        ("Forwarded", 'host="a;for=b";xfor=c;for=d', 'host="a;for=b";xfor=c'),
        ("Forwarded", 'host=h;for="a', "host=h"),
        ("Forwarded", "for=" + "a" * 1021, "for=" + "a" * 1021),  # too long to be read
    ],
)
def test_the_clients_address_keeps_no_request_from_others_and_is_part_of_a_question(
    name: str, value: str, of_all: str | None
) -> None:
    """A server may decide by it who sees a model's metadata, which are then kept for that address."""
    asked = Asked(Headers([(name, value)]), is_from_proxy=True)
    assert value in dict(headers().metadata(asked))[name]
    assert dict(crossing_of_all(headers().transcoded(asked))).get(name) == of_all


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        (200, [("Content-Type", "application/json; charset=utf-8")], True),
        (201, [("Content-Type", "Application/Vnd.x+JSON")], True),
        (200, [("Content-Type", "text/event-stream")], True),
        (200, [], True),
        (200, [("Content-Type", "text/html")], False),
        (200, [("Content-Length", "0")], False),
        (204, [], False),
        (206, [], False),
        (304, [], False),
        (400, [], False),
    ],
)
def test_models_are_named_in_json_and_in_events(status: int, fields: Fields, expected: bool) -> None:
    assert may_name_model(status, Headers(fields)) is expected


@pytest.mark.parametrize(
    ("via", "expected"),
    [
        ([], False),
        (["1.1 me"], True),
        (["1.0 other, HTTP/1.1 me (comment)"], True),
        (["1.1 other", "1.1 me"], True),
        (["1.1 me2", "me", "1.1 other me"], False),
    ],
)
def test_a_gateway_finds_its_own_name_in_via(via: list[str], expected: bool) -> None:
    assert went_through(via, "me") is expected
