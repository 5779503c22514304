"""Which backend a request goes to, and what its path asks for: a table."""

import pytest

from gateway.config import Route
from gateway.policy.routing import Match, PathKind, Router

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
    match = Router(ROUTES, "unused").match(host, path)
    assert match == (Match(expected[0], backends[expected[0]], *expected[1:]) if expected else None)


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
    match = Router([], "only").match("h", path)
    assert match is not None
    assert (match.route, match.backend, match.kind) == ("only", "only", kind)
