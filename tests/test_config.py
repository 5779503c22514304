"""The configuration file: what is read, and what is refused with path, reason and the nearest name."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gateway import config
from gateway.config import NOT_YET, Config, for_backend, load, parse
from gateway.errors import ConfigError

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "config").glob("*.yaml"), ROOT / "deploy" / "gateway.yaml"])
MINIMAL = "backends: {a: {endpoints: ['http://x:1']}}\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_in_the_project_loads(path: Path) -> None:
    assert load(path).backends


def keys(type_: Any, prefix: str = "") -> set[str]:
    """Every key of a type, `*` for any name."""
    found = set()
    for item in msgspec.structs.fields(type_):
        path = f"{prefix}{item.encode_name}"
        found.add(path)
        if item.name == "backends":
            found |= keys(config.Backend, f"{path}.*.")
        elif isinstance(item.type, type) and issubclass(item.type, msgspec.Struct):
            found |= keys(item.type, f"{path}.")
    return found


def keys_in(tree: Any, prefix: str = "") -> set[str]:
    found = set()
    for key, value in tree.items():
        path = f"{prefix}{'*' if prefix == 'backends.' else key}"
        found.add(path)
        if isinstance(value, dict):
            found |= keys_in(value, f"{path}.")
    return found


def test_the_documented_file_has_every_key_with_its_default() -> None:
    path = ROOT / "config" / "gateway.yaml"
    assert keys_in(yaml.safe_load(path.read_text())) - {"backends.*"} == keys(Config)
    minimal = parse("backends: {default: {endpoints: ['http://127.0.0.1:8000']}}")
    assert load(path) == minimal


def test_keys_that_are_not_built_yet_are_keys_that_do_not_exist() -> None:
    assert not NOT_YET & keys(Config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listn: 1\n" + MINIMAL, "listn: unknown key, did you mean `listen`?"),
        ("backends: {a: {endpoints: ['http://x'], nonfinit: 1}}", "backends.a.nonfinit: unknown key, did you mean"),
        ("backends: {a: {endpoints: ['http://x'], timeouts: {idel: 1s}}}", "did you mean `idle`?"),
        ("zzz: 1\n" + MINIMAL, "zzz: unknown key; known are backends, listen"),
        ("tls: {}\n" + MINIMAL, "tls: not available yet"),
        ("workers: 0\n" + MINIMAL, "workers: expected at least 1"),
        ("workers: 10\n" + MINIMAL, "limits.in_flight_bytes: expected at least `limits.request_body` for each worker"),
        ("limits: {body_timeout: 1s}\n" + MINIMAL, "limits.body_timeout: not available yet"),
        (
            "limits: {in_flight_bytes: 1MiB}\n" + MINIMAL,
            "limits.in_flight_bytes: expected at least `limits.request_body`",
        ),
        ("limits: {concurrent_requests: 0}\n" + MINIMAL, "limits.concurrent_requests: expected at least 1"),
        ("backends: {a: {endpoints: ['http://x'], retry: {attempts: 2}}}", "backends.a.retry: not available yet"),
        (
            "backends: {a: {endpoints: ['http://x'], nonfinite: asnull}}",
            "backends.a.nonfinite: expected reject, as_null or literal, got 'asnull', did you mean `as_null`?",
        ),
        ("logging: {access: xml}\n" + MINIMAL, "logging.access: expected json, text or none, got 'xml'"),
        ("limits: {request_body: 5}\n" + MINIMAL, "limits.request_body: expected a size with a unit"),
        ("limits: {request_body: 5MB}\n" + MINIMAL, "limits.request_body: expected a size with a unit"),
        ("limits: {request_body: 0B}\n" + MINIMAL, "limits.request_body: expected more than 0B"),
        ("shutdown: {grace: 5}\n" + MINIMAL, "shutdown.grace: expected a duration with a unit"),
        ("backends: {a: {endpoints: ['http://x'], timeouts: {idle: 0s}}}", "backends.a.timeouts.idle: expected more"),
        ("backends: {a: {endpoints: [x]}}", "backends.a.endpoints[0]: expected a URL"),
        ("backends: {a: {endpoints: ['ftp://x']}}", "expected a URL"),
        ("backends: {a: {endpoints: ['http://x:99999']}}", "expected a URL"),
        ("backends: {a: {endpoints: ['http://u:p@x']}}", "without user"),
        ("backends: {a: {endpoints: []}}", "backends.a.endpoints: at least one"),
        ("backends: {a: {endpoints: ['http://x', 'http://x/']}}", "one stands twice"),
        ("backends: {a: {endpoints: ['http://x'], headers: {set: {'a b': c}}}}", "backends.a.headers.set.a b: not a"),
        ("backends: {}", "backends: at least one"),
        ("backends: {a: {endpoints: ['http://x']}, b: {endpoints: ['http://y']}}", "routes: needed"),
        ("routes: [{name: r, backend: b}]\n" + MINIMAL, "routes[0].backend: no backend `b`; there are a"),
        ("routes: [{name: r, backend: a}, {name: r, backend: a}]\n" + MINIMAL, "routes[1].name: `r` stands twice"),
        ("routes: [{name: r, backend: a, path_prefix: x}]\n" + MINIMAL, "routes[0].path_prefix: expected a path"),
        ("routes: [{name: r, bakend: a}]\n" + MINIMAL, "routes[0].bakend: unknown key, did you mean `backend`?"),
        ("listen: 8080\n" + MINIMAL, "listen: expected host:port"),
        ("listen: a:b\n" + MINIMAL, "listen: expected host:port"),
        ("admin: 127.0.0.1:8080\n" + MINIMAL, "admin: the same address"),
        ("recover_header_length: 1\n" + MINIMAL, "recover_header_length: Expected `bool`"),
        ("backends: {a: {endpoints: ['http://x']}, a: {endpoints: ['http://y']}}", "key `a` stands twice"),
        ("a: [", "line 1"),
        ("", "expected keys and values"),
        ("[1]", "expected keys and values"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_units_are_read() -> None:
    text = "limits: {request_body: 3MiB}\nshutdown: {delay: 250ms, grace: 1.5m}\n" + MINIMAL
    read = parse(text)
    assert (read.limits.request_body, read.shutdown.delay, read.shutdown.grace) == (3 * 1024**2, 0.25, 90.0)


def test_serve_with_a_backend_is_the_minimal_file() -> None:
    assert for_backend("http://x:1/", None, None).backends["default"].endpoints == ["http://x:1"]
    assert for_backend("http://x:1", "[::1]:5", None).listen.host == "::1"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match="none.yaml: cannot be read: No such file"):
        load(missing)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"listen: \xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load(latin)
