"""Who may come in and which paths nobody may use: tables of headers and of paths."""

import pytest

from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Headers
from gateway.policy import access
from gateway.policy.access import Access, digest_of

ACCESS = Access({digest_of("s3cret"), digest_of("other+/=")})
Fields = list[tuple[str, str]]


@pytest.mark.parametrize(
    ("fields", "crossing"),
    [
        ([("Authorization", "Bearer s3cret"), ("X", "1")], [("X", "1")]),
        ([("authorization", " bearer \t other+/= ")], []),
        ([("X-Api-Key", " s3cret ")], []),
        ([("X-API-KEY", "s3cret"), ("Authorization", "Bearer backend's")], [("Authorization", "Bearer backend's")]),
        ([("Authorization", "Bearer s3cret"), ("X-Api-Key", "backend's")], [("X-Api-Key", "backend's")]),
        ([("Authorization", "Basic x"), ("Authorization", "Bearer s3cret")], [("Authorization", "Basic x")]),
        ([("X-Api-Key", "s3cret"), ("Authorization", "Bearer other+/=")], []),
    ],
)
def test_one_right_header_is_enough_and_no_token_crosses(fields: Fields, crossing: Fields) -> None:
    assert list(ACCESS.authorize(Headers(fields)).pairs) == crossing


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [("Authorization", "s3cret")],
        [("Authorization", "Basic s3cret")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer S3CRET")],
        [("Authorization", "Bearer s3cret x")],
        [("Authorization", "Bearers3cret")],
        [("Authorization", "Bearer s3cret, Bearer other")],
        [("X-Api-Key", "")],
        [("X-Api-Key", "Bearer s3cret")],
        [("X-Api-Key", "s3cre")],
        [("X_Api_Key", "s3cret")],
        [("Proxy-Authorization", "Bearer s3cret")],
        [("Cookie", "X-Api-Key=s3cret")],
        [("X-Api-Key", "\udcff")],
    ],
)
def test_without_a_right_header_it_is_a_401_that_repeats_nothing(fields: Fields) -> None:
    with pytest.raises(GatewayError) as refused:
        ACCESS.authorize(Headers(fields))
    error = refused.value
    assert (error.kind, error.status) == (ErrorKind.DENIED, 401)
    assert list(error.headers) == [("WWW-Authenticate", "Bearer")]
    assert "s3cre" not in error.message.lower()


def test_without_tokens_everybody_may_come_and_all_headers_cross() -> None:
    headers = Headers([("Authorization", "Bearer x")])
    assert Access().authorize(headers) is headers
    Access().check("/v2/repository/index")


DENYING = Access(deny=["/v2", "/v2/repository/*", "/V2/models/secret*/infer", "/metrics", "/a b/?"])


@pytest.mark.parametrize(
    "path",
    [
        "/v2/repository/index",
        "/v2/repository/models/m/load",
        "/v2/repository/",
        "/V2/Repository/INDEX",
        "//v2///repository//index",
        "/v2\\repository\\index",
        "/v2/%72epository/index",
        "/v2/%2572epository/index",
        "/v2/repository%2Findex",
        "/v2%2frepository/index",
        "/v2%5crepository/index",
        "/v2;x=1/repository;jsessionid=2/index",
        "/v2/;x/repository/index",
        "/v2%3bx/repository/index",
        "/v2/models;%2Fx/%73ecret/infer",
        "/v2/models;%2Fx;%2Fy/%73ecret/infer",
        "/v2;x\\y/repository/index",
        "/v2;x\\repository\\index",
        "/v2;?/repository/index",
        "/v2%3Fx",
        "/v2/r%c1%a5pository/index",
        "/v2%c0%afrepository/index",
        "/v2/models/secret-1/infer",
        "/v2/models/secret/versions/1/infer",
        "/v2/models/%73ecret/infer",
        "/metrics",
        "/metrics/",
        "/metrics;x",
        "/metrics%3fx",
        "/metrics%23x",
        "/metrics%00x",
        "/a%20b/c",
        "/METRICS",
    ],
)
def test_a_denied_path_is_denied_however_it_is_written(path: str) -> None:
    with pytest.raises(GatewayError) as refused:
        DENYING.check(path)
    assert (refused.value.kind, refused.value.status) == (ErrorKind.DENIED, 403)
    assert list(refused.value.headers) == []


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v2/repository",
        "/v2/models/m/infer",
        "/v2/models/secret",
        "/metricsx",
        "/x/metrics",
        "/a%20b/",
        "/%zz",
    ],
)
def test_other_paths_are_not_denied(path: str) -> None:
    DENYING.check(path)


@pytest.mark.parametrize(
    ("path", "count"),
    [
        ("/a", 1),
        ("/a%20b", 2),
        ("/a/", 2),
        ("/a;b" * 500, 2),
        ("/%3b%2f" * 800, 10),
        ("//" * 2000, 2),
        ("/v2;x//a%2fb", 8),
    ],
)
def test_readings_of_a_path_are_few(path: str, count: int) -> None:
    texts = list(access._readings(path))
    assert len(set(texts)) == len(texts) == count


def test_a_path_that_can_be_read_in_very_many_ways_is_denied() -> None:
    path = "/%25253b%25252f%25255c%25253f;%253b%2f%3f\\//" * 200
    with pytest.raises(GatewayError, match=r"access\.deny"):
        DENYING.check(path)
    Access().check(path)
