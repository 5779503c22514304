"""Which backend a request goes to, and what its path asks for: a table."""

import random
import re
from urllib.parse import unquote

import pytest

from gateway.config import Route
from gateway.policy.routing import Destination, PathKind, Router

STICKIES = dict.fromkeys(("vision", "default", "other"), "none")
ROUTES = [
    Route(name="resnets", models=["resnet*", "v?t"], backend="vision"),
    Route(name="prod", path_prefix="/prod", host="api.example.com", backend="default"),
    Route(name="nested", path_prefix="/v2/models/a/", backend="other"),
    Route(name="port", host="x:81", backend="other"),
    Route(name="six", host="[::1]", backend="other"),
    Route(name="six with port", host="[2001:DB8::2]:8*", backend="other"),
    Route(name="wild", host="*.Example.ORG.", backend="other"),
    Route(name="set", host="[ab].example.net", backend="other"),
]


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("h", "/v2/models/resnet50/infer", ("resnets", "resnet50", PathKind.INFER)),
        ("h", "/v2/models/vit/versions/1/infer", ("resnets", "vit", PathKind.INFER)),
        ("h", "/v2/models/resnet%2F5/config", ("resnets", "resnet/5", PathKind.V2)),
        ("h", "/v2/models/resnet", ("resnets", "resnet", PathKind.V2)),
        ("h", "/v2/models/Resnet/infer", None),
        ("h", "/v2/models//infer", None),
        ("h", "/v2", None),
        ("api.example.com", "/prod", ("prod", None, PathKind.OTHER)),
        ("API.example.com:8080", "/prod/v2/models/m/infer", ("prod", "m", PathKind.INFER)),
        ("api.example.com", "/prod/v2", ("prod", None, PathKind.SERVER_METADATA)),
        ("api.example.com", "/production", None),
        ("other.example.com", "/prod", None),
        ("h", "/v2/models/a/infer", ("nested", "a", PathKind.INFER)),
        ("h", "/v2/models/ab/infer", None),
        ("x:81", "/", ("port", None, PathKind.OTHER)),
        ("x:82", "/", None),
        ("x", "/", None),
        ("X.:81", "/", ("port", None, PathKind.OTHER)),
        ("api.example.com.", "/prod", ("prod", None, PathKind.OTHER)),
        ("Api.Example.com.:8080", "/prod", ("prod", None, PathKind.OTHER)),
        ("api.example.com..", "/prod", None),
        ("[::1]", "/", ("six", None, PathKind.OTHER)),
        ("[::1]:8080", "/", ("six", None, PathKind.OTHER)),
        ("::1", "/", ("six", None, PathKind.OTHER)),
        ("[::2]:8080", "/", None),
        ("1", "/", None),
        ("[2001:db8::2]:8080", "/", ("six with port", None, PathKind.OTHER)),
        ("[2001:db8::2]:9090", "/", None),
        ("[2001:db8::2]", "/", None),
        ("a.b.example.org", "/", ("wild", None, PathKind.OTHER)),
        ("example.org", "/", None),
        ("b.example.net:1", "/", ("set", None, PathKind.OTHER)),
        ("c.example.net", "/", None),
        (":", "/", None),
        ("[", "/", None),
        ("", "/v2/models/m/versions/1/2/infer", None),
    ],
)
def test_first_route_that_matches_wins(host: str, path: str, expected: tuple[str, str | None, PathKind] | None) -> None:
    backends = {route.name: route.backends[0] for route in ROUTES}
    match = Router(ROUTES, STICKIES).match(host, path, "?a=b")
    if expected is None:
        assert match is None
        return
    assert match is not None
    assert (match.destination.route, match.model, match.kind) == expected
    assert match.destination.only == backends[expected[0]]
    assert (match.target, match.is_renamed) == (path + "?a=b", False)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v2", PathKind.SERVER_METADATA),
        ("/v2/", PathKind.SERVER_METADATA),
        ("/v2/models/m/infer", PathKind.INFER),
        ("/v2/models/m/versions/3/infer", PathKind.INFER),
        ("/v2/models/m/infer/", PathKind.V2),
        ("/v2/models/m/versions/infer", PathKind.V2),
        ("/v2/models/m/generate", PathKind.V2),
        ("/v2/health/live", PathKind.V2),
        ("/v1/models/m/infer", PathKind.OTHER),
        ("/v20", PathKind.OTHER),
        ("/x/v2/models/m/infer", PathKind.OTHER),
    ],
)
def test_without_routes_everything_goes_to_the_only_backend(path: str, kind: PathKind) -> None:
    match = Router([], {"only": "none"}).match("h", path, "?a=b")
    assert match is not None
    assert (match.destination.route, match.destination.only, match.kind) == ("only", "only", kind)
    assert (match.target, match.path, match.is_renamed) == (path + "?a=b", path, False)


PREFIXED = [
    Route(
        name="stripped", path_prefix="/prod/", strip_prefix=True, rename={"m": "m-v2", "a b": "é/ü"}, backend="other"
    ),
    Route(name="kept", path_prefix="/test", rename={"m": "m-v2"}, backend="other"),
    Route(name="protocol", path_prefix="/v2/models/x", strip_prefix=True, backend="other"),
    Route(name="renamed", models=["m*"], rename={"m": "n", "mx": "mx", "n": "o"}, backend="other"),
    Route(name="rest", backend="other"),
]


@pytest.mark.rule("8.1", "8.2")
@pytest.mark.parametrize(
    ("path", "route", "target", "model", "kind"),
    [
        ("/prod", "stripped", "/", None, PathKind.OTHER),
        ("/prod/", "stripped", "/", None, PathKind.OTHER),
        ("/prod/v2", "stripped", "/v2", None, PathKind.SERVER_METADATA),
        ("/prod/v2/", "stripped", "/v2/", None, PathKind.SERVER_METADATA),
        ("/prod/v2/models/x/infer", "stripped", "/v2/models/x/infer", "x", PathKind.INFER),
        ("/prod/a%20b/;c", "stripped", "/a%20b/;c", None, PathKind.OTHER),
        ("/prod/v2/models/m/versions/1/infer", "stripped", "/v2/models/m-v2/versions/1/infer", "m", PathKind.INFER),
        ("/prod/v2/models/%6d", "stripped", "/v2/models/m-v2", "m", PathKind.V2),
        ("/prod/v2/models/a%20b/ready", "stripped", "/v2/models/%C3%A9%2F%C3%BC/ready", "a b", PathKind.V2),
        ("/prod/prod/v2", "stripped", "/prod/v2", None, PathKind.OTHER),
        ("/prod//host/v2/models/m/infer", "rest", "/prod//host/v2/models/m/infer", None, PathKind.OTHER),
        ("/prod//", "rest", "/prod//", None, PathKind.OTHER),
        ("//prod/v2", "rest", "//prod/v2", None, PathKind.OTHER),
        ("/test/v2/models/m/infer", "kept", "/test/v2/models/m-v2/infer", "m", PathKind.INFER),
        ("/test", "kept", "/test", None, PathKind.OTHER),
        ("/v2/models/x/v2/models/m/infer", "protocol", "/v2/models/m/infer", "m", PathKind.INFER),
        ("/v2/models/m", "renamed", "/v2/models/n", "m", PathKind.V2),
        ("/v2/models/m/", "renamed", "/v2/models/n/", "m", PathKind.V2),
        ("/v2/models/m/config", "renamed", "/v2/models/n/config", "m", PathKind.V2),
        ("/v2/models/mx/infer", "renamed", "/v2/models/mx/infer", "mx", PathKind.INFER),
        ("/v2/repository/models/m/load", "renamed", "/v2/repository/models/n/load", "m", PathKind.V2),
        ("/v2/repository/models/n/unload", "rest", "/v2/repository/models/n/unload", "n", PathKind.V2),
        ("/v2/models/n/infer", "rest", "/v2/models/n/infer", "n", PathKind.INFER),
        ("/v2/models//m/infer", "rest", "/v2/models//m/infer", None, PathKind.V2),
    ],
)
def test_prefixes_are_stripped_and_models_renamed(
    path: str, route: str, target: str, model: str | None, kind: PathKind
) -> None:
    match = Router(PREFIXED, STICKIES).match("h", path, "?x=/prod/m")
    assert match is not None
    assert (match.destination.route, match.model, match.kind) == (route, model, kind)
    assert (match.target, match.path) == (f"{target}?x=/prod/m", target)
    assert match.is_renamed == (model in ("m", "a b") and route != "protocol")


@pytest.mark.parametrize(
    ("path", "reloaded"),
    [
        ("/prod/v2/repository/models/m/load", "/v2/models/m-v2"),
        ("/prod/v2/repository/models/x/unload", "/v2/models/x"),
        ("/test/v2/repository/models/m/load", "/test/v2/models/m-v2"),
        ("/v2/repository/models/a%20b/load", "/v2/models/a%20b"),
        ("/v2/repository/index", None),
        ("/v2/models/m/load", None),
    ],
)
def test_a_reloaded_model_is_named_as_its_backend_does(path: str, reloaded: str | None) -> None:
    match = Router(PREFIXED[:2] + PREFIXED[4:], STICKIES).match("h", path)
    assert match is not None
    assert match.reloaded_path == reloaded


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/v2", ("", None, None, "")),
        ("/v2/", ("", None, None, "")),
        ("/v2/health/live", ("", None, None, "/health/live")),
        ("/v2/models", ("", None, None, "/models")),
        ("/v2/models/", ("", None, None, "/models")),
        ("/v2/models/n", ("", "n", None, "")),
        ("/v2/models/n/", ("", "n", None, "")),
        ("/v2/models/n/ready", ("", "n", None, "/ready")),
        ("/v2/models/a%20b/versions/1%20/infer", ("", "a b", "1 ", "/infer")),
        ("/v2/models/n/versions/1", ("", "n", "1", "")),
        ("/v2/models/n/versions", ("", "n", None, "/versions")),
        ("/v2/models//n", ("", None, None, "/models//n")),
        ("/v2/models/stats", ("", None, None, "/models/stats")),
        ("/v2/models/stats/", ("", None, None, "/models/stats")),
        ("/v2/models/stats/infer", ("", "stats", None, "/infer")),
        ("/v2/models/stats2", ("", "stats2", None, "")),
        ("/v2/repository/models/n/load", ("", None, None, "/repository/models/n/load")),
        ("/test/v2/models/m/infer", ("/test", "m-v2", None, "/infer")),
        ("/prod/v2/models/m/infer", ("", "m-v2", None, "/infer")),
        ("/v2/models/n/\n", ("", "n", None, "/\n")),
    ],
)
def test_a_path_of_the_protocol_is_taken_apart_as_its_backend_gets_it(
    path: str, read: tuple[str, str | None, str | None, str]
) -> None:
    match = Router(PREFIXED, STICKIES).match("h", path, "?a")
    assert match is not None
    assert match.v2_path == read


def split(**weights: int) -> Destination:
    """The destination of a split among sticky and other backends."""
    routes = [Route(name="split", split=weights)]
    match = Router(routes, {"a": "none", "b": "sequence_id", "c": "header:X-User"}).match("h", "/")
    assert match is not None
    return match.destination


@pytest.mark.rule("8.3")
def test_weights_of_a_split_are_relative_and_0_is_none() -> None:
    destination = split(a=1, b=0, c=3)
    chosen = [destination.pick(f"key {number}") for number in range(1000)]
    assert chosen == [destination.pick(f"key {number}") for number in range(1000)]
    assert (150 < chosen.count("a") < 350, chosen.count("b")) == (True, 0)


@pytest.mark.rule("8.3")
@pytest.mark.parametrize(
    ("weights", "sticky"),
    [
        ({"a": 1}, "none"),
        ({"a": 1, "b": 1, "c": 1}, "sequence_id"),
        ({"a": 1, "c": 1, "b": 1}, "header:X-User"),
        ({"a": 1, "c": 0, "b": 1}, "sequence_id"),
    ],
)
def test_the_first_sticky_backend_of_a_split_decides(weights: dict[str, int], sticky: str) -> None:
    assert split(**weights).sticky == sticky


def test_the_header_whose_value_is_the_key_is_named_in_lower_case() -> None:
    assert split(c=1).sticky_header == "x-user"
    assert split(b=1).sticky_header == split(a=1).sticky_header == ""


def kind_of(path: str) -> tuple[str | None, PathKind]:
    """The model and the kind of *path*, as protocol section 8 says it."""
    if re.fullmatch(r"/v2/models/[^/]+(/versions/[^/]+)?/infer", path):
        return unquote(path.split("/")[3]), PathKind.INFER
    if path in ("/v2", "/v2/"):
        return None, PathKind.SERVER_METADATA
    named = re.match(r"/v2/(?:repository/)?models/([^/]+)(?:/|\Z)", path)
    kind = PathKind.V2 if path.startswith("/v2/") else PathKind.OTHER
    return (None, kind) if named is None else (unquote(named[1]), kind)


@pytest.mark.parametrize("seed", range(4))
def test_every_path_that_is_made_of_the_words_of_the_protocol_has_the_kind_that_the_protocol_gives_it(
    seed: int,
) -> None:
    rng = random.Random(seed)
    words = ["v2", "models", "repository", "versions", "infer", "m", "a.b-C_1", "x%2Fy", "%", "", "1", "a\n", "load"]
    plain = Router([], STICKIES)
    seen = set()
    for _ in range(5000):
        start = rng.choice(["", "/v2", "/v2/models/m", "/v2/repository/models/x%20y", "/v2/models/m/versions/1"])
        path = start + "".join("/" + rng.choice(words) for _ in range(rng.randrange(4)))
        match = plain.match("h", path)
        assert match is not None
        assert (match.model, match.kind) == kind_of(path), path
        if match.kind is not PathKind.OTHER:
            assert (match.v2_path.model or match.model) == match.model, path
        seen.add(match.kind)
    assert seen == set(PathKind)
