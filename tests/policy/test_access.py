"""Who may come in and which paths nobody may use: tables of headers and of paths."""

import random
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from urllib.parse import unquote, urlsplit

import pytest
from yarl import URL

from gateway.errors import ErrorKind, GatewayError
from gateway.headers import Headers
from gateway.policy.access import Access, digest_of
from gateway.policy.paths import find_path_fault

ACCESS = Access({digest_of("s3cret"): "one", digest_of("other+/="): "other"})
Fields = list[tuple[str, str]]


@pytest.mark.rule("8.5")
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
    assert list(ACCESS.authorize(Headers(fields))[0].pairs) == crossing


@pytest.mark.rule("8.5")
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


def test_without_tokens_and_denied_paths_everybody_may_come() -> None:
    assert not Access().needs_token
    assert Access({}).needs_token
    Access().check("/v2/repository/index")


DENYING = Access(deny=["/v2", "/v2/repository/*", "/V2/models/secret*/infer", "/metrics", "/a b/?"])


@pytest.mark.rule("8.5")
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
        "/metrics%0A",
        "/metrics%250a",
        "/metrics/%0d%0a",
        "/metrics%20",
        "/met%09rics",
        "//host/metrics",
        "//user@host:80/v2/repository/index",
        "/%2fhost/metrics",
        "/\\host\\metrics",
        "///host/metrics",
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


@pytest.mark.parametrize("path", ["/x;y", "/x//y", "/x%2f/y", "/x%23", "/%250a", "/x%20", "/%ff", "/%25252541"])
def test_a_path_that_servers_read_in_several_ways_is_denied_where_any_is(path: str) -> None:
    with pytest.raises(GatewayError, match=r"access\.deny"):
        DENYING.check(path)
    Access().check(path)


# How servers read a path. What one of them takes for a denied path must be denied, whatever the client wrote.


def uvicorn_and_starlette(path: str) -> str:
    """Decoded once, and matched by a pattern whose `$` also stands before the end of a line (as in MLServer)."""
    found = re.match("^(.*)$", unquote(path))
    return found[1] if found is not None else ""


def http_server(path: str) -> str:
    """Python's own server, and its usual next step."""
    handler = BaseHTTPRequestHandler.__new__(BaseHTTPRequestHandler)
    handler.rfile = BytesIO(b"\r\n")
    vars(handler)["raw_requestline"] = f"GET {path} HTTP/1.1\r\n".encode()
    assert handler.parse_request()
    return unquote(urlsplit(handler.path).path)


def wsgi(path: str) -> str:
    """PATH_INFO of PEP 3333, put together to a URL and split again."""
    return urlsplit(f"//host{unquote(path)}").path


def nginx(path: str) -> str:
    """Cut at a fragment, decoded once, slashes merged."""
    return re.sub("/+", "/", unquote(path.partition("#")[0]))


def behind_nginx(path: str) -> str:
    """A server that decodes what nginx has already decoded."""
    return uvicorn_and_starlette(nginx(path))


def tomcat(path: str) -> str:
    """Without the parameters of its segments, decoded, slashes merged, backslashes allowed."""
    return re.sub(r"[/\\]+", "/", unquote(re.sub(";[^/]*", "", path)))


def c_program(path: str) -> str:
    """Decoded up to the first NUL, without a slash at the end."""
    return unquote(path).partition("\0")[0].rstrip("/")


SERVERS: list[Callable[[str], str]] = [
    uvicorn_and_starlette,
    lambda path: unquote(urlsplit(path).path),
    lambda path: URL(path, encoded=True).path,
    http_server,
    wsgi,
    nginx,
    behind_nginx,
    tomcat,
    c_program,
]
TARGETS = ["/v2", "/v2/repository/index", "/v2/repository/models/m/load", "/v2/models/secret/infer", "/metrics"]
PLAIN = ["/", "//", "\\", ";", ";a=b", "?", "#", "//host", "/x", "*", "+", ":", "@", "%"]
ENCODED = ["25", "2f", "5C", "3b", "00", "09", "0a", "0D", "20", "3f", "23", "c0%af", "c2%a0", "85", "ff"]
PIECES = [*PLAIN, *(f"%{code}" for code in ENCODED)]


def rewritten(target: str, rng: random.Random) -> str:
    """*target* with one to four changes, which may or may not mean another path."""
    path = target
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        at = rng.choice([0, len(path), rng.randrange(len(path))])
        change = rng.randrange(3)
        if change == 0:
            path = path[:at] + rng.choice(PIECES) + path[at:]
        elif change == 1 and at < len(path):
            path = f"{path[:at]}%{ord(path[at]):02x}{path[at + 1 :]}"
        else:
            path = path[:at] + path[at : at + 1].swapcase() + path[at + 1 :]
    return path.partition("?")[0]


@pytest.mark.rule("8.5")
@pytest.mark.parametrize("seed", range(20))
def test_no_server_reads_as_a_denied_path_what_is_let_through(seed: int) -> None:
    rng = random.Random(seed)
    denied = 0
    for _ in range(1000):
        path = rewritten(rng.choice(TARGETS), rng)
        if not path.startswith("/") or find_path_fault(path) is not None:
            continue
        try:
            DENYING.check(path)
        except GatewayError:
            denied += 1
            continue
        for server in SERVERS:
            read = _read_by(server, path)
            assert read not in TARGETS, f"{path!r} passes and may be read as {read!r}"
    assert denied > 100


def _read_by(server: Callable[[str], str], path: str) -> str:
    try:
        return server(path)
    except ValueError:  # it refuses the path
        return ""
