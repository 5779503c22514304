"""Values from outside: where they may stand, what is said when they are missing, and that they are never shown."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Config, Duration, decode, encode, inspect, inspect_bytes, load, masked, parse
from gateway.config.outside import MAX_FILE_BYTES
from gateway.errors import ConfigError
from tests.test_config import FILES, MINIMAL, one_backend


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


def test_a_value_from_outside_stands_wherever_text_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"N": "3", "SHARE": "0.5", "YES": "true", "TIME": "1500ms", "SIZE": "2MiB", "WORD": "as_null"}
    values |= {"HOST": "backend.internal", "TOKEN": "a b", "WHERE": "127.0.0.1:8081", "EMPTY": ""}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    config = parse(
        "workers: ${N}\nlisten: ${WHERE}\nlimits: {head: '${SIZE}', tensors: '${N}'}\n"
        "compression: {responses: '${YES}'}\nshutdown: {grace: '${TIME}'}\n"
        "backends: {a: {endpoints: ['http://${HOST}:80/x', 'http://${HOST}:8${N}'], nonfinite: '${WORD}', "
        "retry: {budget: '${SHARE}'}, max_connections: '${N}', sticky: 'header:X-${HOST}', "
        "headers: {set: {A: 'Bearer ${TOKEN} ${TOKEN}', B: '$${TOKEN}', C: '${EMPTY}', D: '$${${TOKEN}$'}}}}\n"
    )
    backend = config.backends["a"]
    assert (config.workers, config.listen, config.limits.head, config.limits.tensors) == (
        3,
        "127.0.0.1:8081",
        2 * 1024**2,
        3,
    )
    assert (config.compression.responses, config.shutdown.grace) == (True, Duration(1.5))
    assert backend.endpoints == ["http://backend.internal:80/x", "http://backend.internal:83"]
    assert (backend.nonfinite.value, backend.retry.budget, backend.max_connections) == ("as_null", 0.5, 3)
    assert backend.sticky == "header:X-backend.internal"
    assert backend.headers.set == {"A": "Bearer a b a b", "B": "${TOKEN}", "C": "", "D": "${a b$"}
    assert decode(encode(config)) == config
    assert decode(encode(config.share())).hidden == config.hidden


def test_a_file_is_read_relative_to_the_configuration_without_its_end_of_line(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    for name, content in {"a": b"abc\n", "b": b"abc\r\n", "c": b"abc", "d": b"abc\n\n", "e": b" a\nb \n"}.items():
        (tmp_path / "secrets" / name).write_bytes(content)
    path = tmp_path / "gateway.yaml"
    names = {name: f"${{file:secrets/{name}}}" for name in "abc"} | {"d": f"${{file:{tmp_path}/secrets/a}}"}
    path.write_text(yaml.safe_dump({"backends": {"a": {"endpoints": ["http://x"], "headers": {"set": names}}}}))
    assert load(path).backends["a"].headers.set == dict.fromkeys("abcd", "abc")
    for name in "de":  # only the last end of line is removed, and a header has one line
        path.write_text(one_backend(f"headers: {{set: {{A: '${{file:secrets/{name}}}'}}}}"))
        with pytest.raises(ConfigError, match="backends.a.headers.set.A: invalid header value"):
            load(path)


def test_what_is_missing_is_named_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING", raising=False)
    monkeypatch.setenv("LATIN", "\udcff")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    (tmp_path / "latin").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    for value, reason in {
        "${MISSING}": "the environment variable `MISSING` is not set",
        "${LATIN}": "the environment variable `LATIN` is not UTF-8",
        "${file:none}": "the file `none` cannot be read: No such file or directory",
        "${file:.}": "the file `.` cannot be read: not a regular file",
        "${file:pipe}": "the file `pipe` cannot be read: not a regular file",
        "${file:large}": f"the file `large` cannot be read: more than {MAX_FILE_BYTES} bytes",
        "${file:latin}": "the file `latin` is not UTF-8",
        "${A B}": "expected ${NAME} or ${file:PATH}",
        "${}": "expected ${NAME} or ${file:PATH}",
        "${MISSING": "expected ${NAME} or ${file:PATH}",
    }.items():
        assert refused(f"listen: '{value}'\n{MINIMAL}").startswith(f"listen: {reason}")
    found = inspect_bytes(("workers: 1\nlisten: ${MISSING}\n" + MINIMAL).encode(), "f")
    assert found.texts() == ["f:2: listen: the environment variable `MISSING` is not set"]


def test_a_value_is_not_looked_into_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTER", "${INNER}")
    config = parse(one_backend("headers: {set: {A: '${OUTER}'}}"))
    assert config.backends["a"].headers.set["A"] == "${INNER}"


def test_an_endpoint_from_outside_has_its_path_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics and logs show endpoints; a path may hold a secret, scheme, host and port cannot be hidden there."""
    monkeypatch.setenv("URL", "http://x:1/secret")
    monkeypatch.setenv("BASE", "http://x:1/")
    monkeypatch.setenv("SECRET", "secret")
    for endpoint in ("${URL}", "${BASE}${SECRET}", "http://x/${SECRET}", "http://x/${SECRET}/a"):
        message = refused(one_backend("", endpoint))
        assert "expected no path in what comes from outside" in message
        assert "/secret" not in message
    for endpoint in ("${BASE}", "${BASE}v", "http://${SECRET}/v/"):
        config = parse(one_backend("", endpoint))
        assert masked(config)["backends"]["a"]["endpoints"] == ["***"]


def test_what_came_from_outside_is_masked_and_the_rest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("N", "40")
    text = "limits: {concurrent_requests: '${N}', tensors: 7}\n" + one_backend("headers: {set: {A: b}}").replace(
        "backends: {a", "backends: {a.b"
    )
    for config in (parse(text), decode(encode(parse(text)))):
        shown = masked(config)
        assert "hidden" not in shown
        assert (shown["limits"]["concurrent_requests"], shown["limits"]["tensors"]) == ("***", 7)
        backend = shown["backends"]["a.b"]
        assert backend["headers"]["set"] == {"A": "***"}
    assert masked(parse("workers: 2\n" + MINIMAL))["workers"] == 2
    monkeypatch.setenv("LIST", "/v2/repository/*")
    assert masked(parse("access: {deny: [/a, '${LIST}']}\n" + MINIMAL))["access"]["deny"] == ["/a", "***"]


def test_the_path_of_a_file_that_came_from_outside_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", str(tmp_path / "secret"))
    path = tmp_path / "gateway.yaml"
    path.write_text("access: {tokens_file: '${WHERE}'}\n" + MINIMAL)
    found = inspect(path)
    found.add(found.warnings, "listen", f"{tmp_path}/secret is not said here either")
    assert found.texts() == [
        f"{path}:1: access.tokens_file: no such file: ***",
        f"{path}:1: warning: listen: *** is not said here either",
    ]


def test_an_empty_path_from_outside_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY", "")
    text = "access: {tokens_file: none}\ntls: {certificate: '${EMPTY}', key: /etc/hosts}\n" + MINIMAL
    assert inspect_bytes(text.encode(), "f").texts() == [
        f"f:1: access.tokens_file: no such file: {Path.cwd()}/none",
        "f:2: tls.certificate: expected the path of a file, got a value from outside",
    ]


SECRET = "Zq7secretZq7"


def scalars(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a tree that are neither lists nor mappings."""
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return [inner for key, value in items for inner in scalars(value, (*path, key))]
    return [path]


EVERYTHING: Any = {
    **yaml.safe_load(FILES[[file.name for file in FILES].index("gateway.yaml")].read_text()),
    "tls": {"certificate": "c", "key": "k", "client_ca": "a"},
    "access": {"tokens_file": "t", "deny": ["/x"]},
    "routes": [
        {"name": "r", "backend": "default", "models": ["a"], "host": "h", "path_prefix": "/p", "rename": {"a": "b"}},
        {"name": "s", "split": {"default": 5}, "strip_prefix": False},
    ],
}
EVERYTHING["backends"]["default"]["health"] = {"path": "/h", "interval": "1s", "unhealthy_after": 1}
EVERYTHING["backends"]["default"]["headers"] = {"set": {"X-A": "b"}, "remove": ["X-B"]}


@pytest.mark.parametrize("path", scalars(EVERYTHING), ids=lambda path: ".".join(map(str, path)))
def test_no_key_shows_a_value_from_outside(path: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    default = EVERYTHING["backends"]["default"]
    needed = {key: default[key] for key in default if key == "endpoints" or key in path}
    tree: Any = json.loads(json.dumps({path[0]: EVERYTHING[path[0]], "backends": {"default": needed}}))
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "${OUTSIDE}"
    text = json.dumps(tree)
    for value in (SECRET, f"http://{SECRET}.example:1", f"http://x/{SECRET}?{SECRET}", f"header:{SECRET}", "1", "2s"):
        monkeypatch.setenv("OUTSIDE", value)
        try:
            config = parse(text)
        except ConfigError as error:
            assert SECRET not in str(error)
        else:
            assert len(config.hidden) == 1
            assert SECRET not in json.dumps(masked(config))
            shown: Any = masked(config)
            for key in path:
                shown = shown[key]
            assert shown == "***"


KEYS = sorted({str(key) for path in scalars(EVERYTHING) for key in path} | {"<<", "hidden", "tracing"})
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["2s", "1MiB", "127.0.0.1:8080", "http://x:1", "auto", "unix:/x", "header:X", "${OUTSIDE}", "$${"]),
)
TREES = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text()), inner, max_size=6)
    ),
    max_leaves=30,
)


def is_read_or_refused(text: str) -> None:
    """Whatever *text* is, it is a configuration that can be passed on, or a `ConfigError` of printable lines."""
    os.environ["OUTSIDE"] = SECRET
    try:
        config: Config | None = parse(text)
    except ConfigError as error:
        config = None
        assert str(error)
        assert all(line.isprintable() for line in str(error).split("\n"))
        assert SECRET not in str(error)
    finally:
        del os.environ["OUTSIDE"]
    if config is not None:
        assert decode(encode(config)) == config
        assert SECRET not in json.dumps(masked(config))


@given(st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text()), TREES, max_size=8))
def test_any_tree_is_read_or_refused_in_words(tree: dict[str, Any]) -> None:
    is_read_or_refused(yaml.safe_dump(tree))


@given(TREES, st.sampled_from(scalars(EVERYTHING)), st.integers(0, 5))
def test_any_value_in_the_place_of_a_part_is_read_or_refused_in_words(
    value: Any, path: tuple[Any, ...], n_left_out: int
) -> None:
    tree: Any = json.loads(json.dumps(EVERYTHING))
    inner = tree
    path = path[: max(1, len(path) - n_left_out)]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    is_read_or_refused(yaml.safe_dump(tree))


WHOLE = yaml.safe_dump(EVERYTHING)


@given(
    st.one_of(
        st.text(),
        st.text(alphabet="{}[]:,-&*!|>'\"%@`#?<~ \n\tax019.$\\"),
        st.tuples(st.integers(0, len(WHOLE)), st.integers(0, 20), st.text(max_size=5)).map(
            lambda cut: WHOLE[: cut[0]] + cut[2] + WHOLE[cut[0] + cut[1] :]
        ),
    )
)
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    is_read_or_refused(text)


@given(st.binary())
def test_any_bytes_are_inspected(content: bytes) -> None:
    found = inspect_bytes(content, "f")
    assert found.config is not None or found.errors
    assert all(text.isprintable() for text in found.texts())
