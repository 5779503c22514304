"""What `check` tells of a file: every error and warning in one run, each with its line, and the schema for editors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from gateway.cli import main
from gateway.config import Address, Endpoint, Workers, inspect, inspect_bytes, json_schema, parse
from gateway.config.reading import overlap
from gateway.config.values import usable_cores
from tests.conftest import require_tool
from tests.test_cli import run_inside
from tests.test_config import one_backend

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "config").glob("*.yaml"))
MINIMAL = "backends: {a: {endpoints: ['http://x:1']}}\n"

FULL_OF_MISTAKES = """\
debug: true
admin: 0.0.0.0:90
workers: 0
limits:
  request_body: 5
  tensors: 0
backends:
  a:
    endpoints:
      - http://x:1
      - ftp://x
      - http://localhost:8080
    nonfinite: asnull
    headers: {set: {Host: x}}
  b: {endpoint: ["http://y"]}
  c:
    timeouts: {idle: 0s, first_byte: 3m, total: 2m}
    endpoints: ["http://z"]
routes:
  - {name: r, backend: d}
  - name: r
    split: {a: -1}
    path_prefix: x
tracing: {}
tracing: {}
"""


def test_all_that_is_wrong_is_told_in_one_run_in_the_order_of_the_lines() -> None:
    found = inspect_bytes(FULL_OF_MISTAKES.encode(), "f.yaml")
    assert found.config is None
    assert [text.partition(", did")[0].partition("; known")[0] for text in found.texts()] == [
        "f.yaml:1: debug: unknown key",
        "f.yaml:2: warning: admin: a port below 1024 needs a privilege, such as CAP_NET_BIND_SERVICE",
        "f.yaml:2: warning: admin: open to other machines, without TLS and tokens: it shows metrics and the "
        "configuration",
        "f.yaml:3: workers: expected at least 1",
        "f.yaml:5: limits.request_body: expected a size with a unit, such as 64KiB, 256MiB or 1GiB, got 5",
        "f.yaml:6: limits.tensors: expected at least 1",
        "f.yaml:11: backends.a.endpoints[1]: expected a URL of scheme, host and port, such as http://127.0.0.1:8000, "
        "got 'ftp://x'",
        "f.yaml:12: backends.a.endpoints[2]: this is the gateway's own listener, `listen`, an endless loop: name the "
        "inference server, or listen on another port",
        "f.yaml:13: backends.a.nonfinite: expected reject, as_null or literal, got 'asnull'",
        "f.yaml:14: backends.a.headers.set.Host: the gateway sets this header itself",
        "f.yaml:15: backends.b.endpoint: unknown key",
        "f.yaml:17: backends.c.timeouts.idle: expected more than 0s",
        "f.yaml:17: warning: backends.c.timeouts.first_byte: longer than `total`, which ends the call first",
        "f.yaml:20: routes[0].backend: there is no such backend; there are a, b, c",
        "f.yaml:21: routes[1].name: duplicate name, as in routes[0]",
        "f.yaml:22: routes[1].split: expected backends and their weights, such as {stable: 95, next: 5}",
        "f.yaml:23: routes[1].path_prefix: never matches: expected a path as in a URL, which starts with /, "
        "percent-encoded and without a query",
        "f.yaml:24: tracing.endpoint: missing; expected a URL of scheme, host and port, such as http://127.0.0.1:8000",
        "f.yaml:25: not YAML: duplicate key `tracing`",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: [", "f:2: not YAML: "),
        ("listen: a:1\nadmin: *x\n", "f:2: not YAML: found undefined alias 'x'"),
        ("listen: a:1\n\nadmin: \x01\n", "f:3: not YAML: special characters are not allowed"),
        ("", "f:1: expected keys and values"),
        ("# nothing\n\n- 1\n", "f:3: expected keys and values"),
        ("workers: 1\n", "f:1: backends: missing; expected keys and values"),
        ("workers: 1\nbackends:\n  a:\n    framing: chunked\n", "f:3: backends.a.endpoints: missing; expected a list"),
        ("workers: 1\nbackends: {}\n", "f:2: backends: expected at least one"),
        # what does not go with a default is found where it stands
        (MINIMAL + "listen: 0.0.0.0:9090\n", "f:2: admin: the same address as `listen`"),
        (
            MINIMAL + "workers: 1000\n",
            "f:2: limits.concurrent_requests: expected at least as many as `workers`",
        ),
    ],
)
def test_lines_are_those_of_the_key_or_of_what_is_around_it(text: str, expected: str) -> None:
    (message,) = inspect_bytes(text.encode(), "f").texts()
    assert message.startswith(expected)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("listen: 8080", "0.0.0.0:8080"),
        ("listen: :8080", "0.0.0.0:8080"),
        ("listen: '8080'", "0.0.0.0:8080"),
        ("grpc: 8001", "0.0.0.0:8001"),
        ("admin: 9090", "127.0.0.1:9090"),  # never for clients
        ("listen: 80800", None),
        ("listen: true", None),
        ("limits: {request_body: 1GB}", "1GiB"),
        ("limits: {request_body: 256M}", "256MiB"),
        ("limits: {request_body: 256 MiB}", "256MiB"),
        ("limits: {request_body: 256mib}", "256MiB"),
        ("limits: {request_body: 64 kilobytes}", "64KiB"),
        ("limits: {request_body: 100 bytes}", "100B"),
        ("limits: {request_body: 1.5GB}", None),
        ("limits: {request_body: 1TB}", None),
        ("limits: {request_body: 1000}", None),
        ("shutdown: {grace: 2 s}", "2s"),
        ("shutdown: {grace: 2sec}", "2s"),
        ("shutdown: {grace: 1.5 Seconds}", "1.5s"),
        ("shutdown: {grace: 5min}", "5m"),
        ("shutdown: {grace: 100 msec}", "100ms"),
        ("shutdown: {grace: 100 milliseconds}", "100ms"),
        ("shutdown: {grace: 2 hours}", "2h"),
        ("shutdown: {grace: 1d}", None),
        ("shutdown: {grace: 1.2.3s}", None),
    ],
)
def test_addresses_sizes_and_durations_that_are_nearly_right_are_guessed(line: str, meant: str | None) -> None:
    (message,) = inspect_bytes(f"{line}\n{MINIMAL}".encode(), "f").texts()
    assert message.partition(", did you mean ")[2] == ("" if meant is None else f"`{meant}`?")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("listen: x\nbackends: {a: {endpoints: ['http://127.0.0.1:8080']}}", ["1: listen"]),
        ("limits: {request_body: 5, in_flight_bytes: 100MiB}\n" + MINIMAL, ["1: limits.request_body"]),
        ("workers: x\nlimits: {tensors: 0}\n" + MINIMAL, ["1: workers", "2: limits.tensors"]),
        ("backends:\n  a: {}\nroutes:\n- {name: r, backend: a}\n", ["2: backends.a.endpoints"]),
        ("backends:\n  a: 5\nroutes:\n- {name: r, backend: a}\n", ["2: backends.a"]),
        (
            "backends: 5\nroutes:\n- {name: r, backend: a}\n- 7\n",
            ["1: backends", "3: routes[0].backend", "4: routes[1]"],
        ),
        (
            MINIMAL + "routes:\n- {name: r, bakend: a}\n- {nam: r, backend: a}\n",
            ["3: routes[0].bakend", "4: routes[1].nam"],
        ),
        ("backends: {1: {endpoints: ['http://x']}}", ["1: "]),
        ("backends: {a: {endpoints: ['http://x']}}\nroutes: [<<: {name: r}]", ["2: "]),
        (
            "backends: {a: {endpoints: [x, y, 'http://z:0', 'http://z', 'http://z']}}",
            [
                "1: backends.a.endpoints[0]",
                "1: backends.a.endpoints[1]",
                "1: backends.a.endpoints[2]",
                "1: backends.a.endpoints[4]",
            ],
        ),
    ],
)
def test_one_mistake_does_not_bring_others_with_it(text: str, expected: list[str]) -> None:
    found = inspect_bytes(text.encode(), "f")
    assert [f"{error.line}: {error.key}" for error in found.errors] == expected
    assert not found.warnings


def test_a_route_without_any_backends_says_so() -> None:
    *_, last = inspect_bytes(b"routes: [{name: r, backend: b}]", "f").texts()
    assert last == "f:1: routes[0].backend: there is no such backend; there are none"


def test_bytes_that_are_not_text_and_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert inspect_bytes(b"a: 1\nb: \xff", "f").texts() == ["f:2: not UTF-8"]
    assert inspect(tmp_path / "none").texts() == [f"{tmp_path / 'none'}: cannot be read: No such file or directory"]
    assert inspect(tmp_path).texts() == [f"{tmp_path}: cannot be read: Is a directory"]
    assert inspect_bytes("\ufeff".encode() + MINIMAL.encode(), "f").config is not None


def warnings(text: str) -> list[str]:
    found = inspect_bytes(text.encode(), "")
    assert not found.errors
    assert found.config is not None
    return [f"{warning.key}: {warning.reason}" for warning in found.warnings]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("dialect: mlflow", "backends.a.dialect: every inference gets 502: set the datatypes of the outputs"),
        ("dialect: template", "backends.a.dialect: every inference gets 404: describe the models"),
        ("dialect: mlflow, models: {m: {format: inputs}}", "backends.a.dialect: every inference gets 502"),
    ],
)
def test_what_does_nothing_for_servers_of_a_dialect_is_warned_of(extra: str, expected: str) -> None:
    (warning,) = warnings(f"backends: {{a: {{endpoints: ['http://x:1'], {extra}}}}}\n")
    assert expected in warning


def test_what_does_something_is_not_warned_of() -> None:
    models = "{m: {outputs: {y: {datatype: FP32}}}, '*': {outputs: {y: {datatype: FP32}}}}"
    assert warnings(one_backend(f"dialect: mlflow, health: {{}}, models: {models}")) == []


def test_a_sound_file_has_no_warnings() -> None:
    assert warnings(MINIMAL) == []
    assert warnings("listen: 0.0.0.0:8080\nadmin: localhost:9090\n" + MINIMAL) == []
    assert warnings("listen: 127.0.0.1:0\nadmin: '[::1]:0'\n" + MINIMAL) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("admin: 0.0.0.0:9090\n" + MINIMAL, "admin: open to other machines"),
        ("admin: '[::]:9090'\n" + MINIMAL, "admin: open to other machines"),
        ("admin: metrics.example.com:9090\n" + MINIMAL, "admin: open to other machines"),
        ("listen: 127.0.0.1:443\n" + MINIMAL, "listen: a port below 1024"),
        ("admin: 127.0.0.1:1\n" + MINIMAL, "admin: a port below 1024"),
        ("backends: {a: {endpoints: [http://x], timeouts: {connect: 3m}}}", "a.timeouts.connect: longer than `total`"),
        ("backends: {a: {endpoints: [http://x], timeouts: {first_byte: 2s, total: 1s}}}", "first_byte: longer than"),
        (
            "backends: {a: {endpoints: [https://x], tls: {verify: false}}}",
            "a.tls.verify: false accepts any certificate",
        ),
        (
            "backends: {a: {endpoints: [http://x]}, b: {endpoints: [http://y]}}\nroutes: [{name: r, backend: a}]",
            "backends.b: unused: no route leads to it",
        ),
        ("trusted_proxies: [10.0.0.0/8, '::/0']\n" + MINIMAL, "trusted_proxies[1]: every client may say that it is"),
        (one_backend("tls: {server_name: y}"), "backends.a.tls: no effect: no endpoint begins with https://"),
        (
            one_backend("binary: always, batch: {max_size: 2}"),
            "backends.a.batch: no effect, because `binary` is always",
        ),
        (one_backend("binary: always, models: {m: {batch: {max_size: 2}}}"), "backends.a.models.m.batch: no effect"),
        (one_backend("headers: {set: {Authorization: Bearer $TOKEN}}"), "headers.set.Authorization: sent as it stands"),
        (
            one_backend(
                "dialect: template, health: {path: /p}, models: {m: {inputs: {x: {datatype: FP32}}, "
                "outputs: {y: {datatype: FP32}}, request: {path: /p, body: {n: {$rows: x}}}, answer: {y: $.y}}}"
            ),
            "only the shapes of the inputs ['x'] stand in it",
        ),
        (one_backend("headers: {set: {X-Key: $KEY}}"), "a value from the environment is written ${NAME}, with braces"),
        ("access: {deny: [/v2/repository]}\n" + MINIMAL, "access.deny[0]: closes only this very path: those below it"),
        ("access: {deny: ['/a*', /v2/models/]}\n" + MINIMAL, "access.deny[1]: closes only this very path"),
        ("access: {deny: [/v2/repository, /v2/repository/index]}\n" + MINIMAL, "access.deny[0]: closes only this very"),
        (
            f"grpc: 127.0.0.1:8001\n{MINIMAL}routes: [{{name: r, path_prefix: /prod, backend: a}}]",
            "routes[0].path_prefix: matches over HTTP only: the paths of `grpc` begin with /v2",
        ),
        (f"grpc: 127.0.0.1:8001\n{MINIMAL}routes: [{{name: r, path_prefix: /v2x, backend: a}}]", "over HTTP only"),
        (
            f"{MINIMAL}routes: [{{name: r, models: [a, 'b*'], rename: {{b1: x, c: y}}, backend: a}}]",
            "routes[0].rename.c: no request is renamed: the route's `models` do not match this name",
        ),
    ],
)
def test_what_is_hardly_meant_is_warned_of(text: str, expected: str) -> None:
    (warning,) = warnings(text)
    assert expected in warning


@pytest.mark.parametrize(
    "text",
    [
        # the file says nothing about first_byte
        "backends: {a: {endpoints: [http://x], timeouts: {total: 1s, connect: 1s}}}",
        "backends: {a: {endpoints: [http://x]}, b: {endpoints: [http://y]}}\nroutes: [{name: r, split: {a: 1, b: 0}}]",
        "backends: {a: {endpoints: ['http://x/v22', 'http://v2']}}",
        # an address that `unix:` does not take, and ports that the kernel chooses
        "listen: unix:/run/x.sock\nadmin: 127.0.0.1:8080\n" + MINIMAL,
        "listen: unix:/run/x.sock\ntrusted_proxies: [unix, 10.0.0.0/8]\n" + MINIMAL,
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n" + MINIMAL,
        "listen: 127.0.0.2:9090\n" + MINIMAL,
        "backends: {a: {endpoints: [http://x, https://y], tls: {server_name: y}}}",
        one_backend("tls: {ca: null, verify: true}"),
        one_backend("binary: auto, batch: {max_size: 2}"),
        one_backend("binary: always, batch: {max_size: 1}"),
        one_backend("headers: {set: {X-Price: 5$ or $$, X-Key: '$${KEY}', X-Hash: '$2b$12$abc'}}"),
        "access: {deny: ['/v2/repository/*', '*/', /v2/repository/index]}\n" + MINIMAL,
        "access: {deny: [/v2/repository, '/v2/repository/*']}\n" + MINIMAL,
        "access: {deny: [/v2/repository, /v2/models/, '/v2/*']}\n" + MINIMAL,
        f"{MINIMAL}routes: [{{name: r, path_prefix: /prod, backend: a}}]",
        *(
            f"grpc: 127.0.0.1:8001\n{MINIMAL}routes: [{{name: r, path_prefix: {prefix}, backend: a}}]"
            for prefix in ("/", "/v2", "/v2/", "/v2/models/m")
        ),
        f"{MINIMAL}routes: [{{name: r, rename: {{c: y}}, backend: a}}]",
    ],
)
def test_what_may_well_be_meant_is_not_warned_of(text: str) -> None:
    assert warnings(text) == []


def test_tokens_that_cross_the_network_in_the_clear_are_warned_of(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.touch()
    access = f"access: {{tokens_file: {tokens}}}\n"
    (warning,) = warnings(f"listen: 0.0.0.0:8080\n{access}{MINIMAL}")
    assert warning.startswith("access.tokens_file: without `tls`")
    assert warnings(access + MINIMAL) == []
    assert warnings(f"listen: unix:/run/x.sock\n{access}{MINIMAL}") == []
    assert warnings(f"listen: 0.0.0.0:8080\ntls: {{certificate: {tokens}, key: {tokens}}}\n{access}{MINIMAL}") == []


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("", ""),
        ("", "models: [a], host: h, path_prefix: /p"),
        ("host: '*'", "path_prefix: /p"),
        ("path_prefix: /", "models: [a]"),
        ("path_prefix: /p", "path_prefix: /p/"),
        ("path_prefix: /p", "path_prefix: /p/q"),
        ("path_prefix: /p/", "path_prefix: /p, host: h"),
        ("models: ['*']", "models: [a]"),
        ("models: [a, b]", "models: [b]"),
        ("models: ['res*']", "models: [resnet]"),
        ("models: ['res*']", "models: ['resnet-[12]*']"),
        ("models: ['resnet-?']", "models: [resnet-1]"),
        ("models: [a], path_prefix: /p", "models: [a], path_prefix: /p/"),
        ("host: API.example.com", "host: api.example.com"),
        ("host: '[::1]'", "host: '[::1]', models: [a]"),
    ],
)
def test_a_route_after_one_that_takes_all_it_matches_is_warned_of(earlier: str, later: str) -> None:
    routes = f"routes: [{{name: x, backend: a, {earlier}}}, {{name: y, backend: a, {later}}}]\n"
    assert warnings(routes + MINIMAL) == ["routes[1]: never matches: `routes[0]` before it takes all its requests"]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("models: [a]", ""),
        ("models: [a]", "models: [a, b]"),
        ("models: ['*']", "host: h"),  # paths without a model
        ("host: h", "path_prefix: /p"),
        ("path_prefix: /p", "path_prefix: /pq"),
        ("path_prefix: /p/q", "path_prefix: /p"),
        ("models: [a]", "models: [a], path_prefix: /p"),  # another part of the path is the model
        ("models: ['*t']", "models: ['res*']"),
        ("models: ['resnet-?']", "models: ['resnet-*']"),
        ("models: ['resnet']", "models: ['Resnet']"),
        ("host: '*.example.com:80'", "host: api.example.com"),
        ("host: '*.example.com'", "host: example.com"),
        ("host: '*1*'", "host: '[::1]'"),
    ],
)
def test_a_route_that_may_match_something_is_not_warned_of(earlier: str, later: str) -> None:
    routes = f"routes: [{{name: x, backend: a, {earlier}}}, {{name: y, backend: a, {later}}}]\n"
    assert warnings(routes + MINIMAL) == []


def test_paths_are_relative_to_the_file_and_absolute_when_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("c.pem", "k.pem", "tokens"):
        (tmp_path / name).touch()
    (tmp_path / "sub").mkdir()
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "listen: unix:run/gateway.sock\ntls: {certificate: c.pem, key: ./k.pem, client_ca: /etc/hosts}\n"
        "access: {tokens_file: tokens}\nbackends: {a: {endpoints: [https://x], tls: {ca: sub/../c.pem}}}\n"
    )
    monkeypatch.chdir(tmp_path.parent)
    for named in (path, Path(tmp_path.name) / "gateway.yaml"):
        config = inspect(named).config
        assert config is not None
        assert config.tls is not None
        assert config.tls.certificate == f"{tmp_path}/c.pem"
        assert config.tls.key == f"{tmp_path}/k.pem"
        assert config.tls.client_ca == "/etc/hosts"
        assert config.access.tokens_file == f"{tmp_path}/tokens"
        assert config.listen == f"unix:{tmp_path}/run/gateway.sock"
        assert config.backends["a"].tls.ca == f"{tmp_path}/sub/../c.pem"
    monkeypatch.chdir(tmp_path)
    assert parse("access: {tokens_file: tokens}\n" + MINIMAL).access.tokens_file == f"{tmp_path}/tokens"


def test_files_that_are_not_there_are_errors_with_the_line_of_their_key(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "gateway.yaml"
    path.write_text("tls:\n  certificate: c.pem\n  key: folder\n" + MINIMAL)
    assert inspect(path).texts() == [
        f"{path}:2: tls.certificate: no such file: {tmp_path}/c.pem",
        f"{path}:3: tls.key: no such file: {tmp_path}/folder",
    ]


def test_more_errors_can_be_added_by_who_knows_what_the_files_mean() -> None:
    found = inspect_bytes(b"workers: 1\naccess:\n  deny: []\n" + MINIMAL.encode(), "f")
    found.add(found.errors, "access.tokens_file", "line 3: expected `name: token`")
    assert found.texts() == ["f:2: access.tokens_file: line 3: expected `name: token`"]
    assert found.config is None


def test_keys_are_parts_of_other_keys_by_their_names_alone() -> None:
    assert overlap(["x", "a.b"], ["a"])
    assert overlap(["a"], ["x", "a[0].b"])
    assert not overlap(["ab"], ["a"])
    assert not overlap(["a"], [""])


def test_an_address_is_of_the_network_or_a_path() -> None:
    unix = parse("listen: unix:/run/gateway.sock\n" + MINIMAL).listen
    assert (unix.is_unix, unix.path, unix.host, unix.port, unix.is_local) == (True, "/run/gateway.sock", "", 0, True)
    assert not unix.is_reached_by(Endpoint("http://127.0.0.1"))
    address = Address("[::1]:80")
    assert (address.is_unix, address.path, address.host, address.port, address.is_local) == (False, "", "::1", 80, True)
    assert not Address("10.0.0.1:80").is_local


def test_workers_auto_is_the_number_of_cores_that_may_be_used() -> None:
    config = parse("workers: auto\n" + MINIMAL)
    assert config.workers == usable_cores() >= 1
    assert isinstance(config.workers, Workers)


@pytest.mark.parametrize(
    ("own", "quotas", "expected"),
    [
        ("0::/a/b\n", {}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "100000 100000"}, 1),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 1),
        ("0::/\n", {"cpu.max": "20000 100000"}, 1),
        ("0::/a\n", {"a/cpu.max": "rubbish"}, None),
        ("0::/a\n", {"a/cpu.max": "100000 0"}, None),
    ],
)
def test_a_quota_of_the_control_group_counts(
    own: str, quotas: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "own").write_text(own)
    for name, text in quotas.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert usable_cores(tmp_path, tmp_path / "own") == (8 if expected is None else expected)


def test_a_quota_of_several_cores_is_rounded_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu.max").write_text("390000 100000\n")
    assert usable_cores(tmp_path, tmp_path / "none") == 8
    (tmp_path / "own").write_text("0::/\n")
    assert usable_cores(tmp_path, tmp_path / "own") == 3


def test_the_schema_beside_the_examples_is_the_one_that_is_printed() -> None:
    printed = run_inside("schema").stdout
    assert printed == (ROOT / "config" / "schema.json").read_text()
    assert msgspec.json.decode(printed) == json_schema()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_begins_with_the_line_that_editors_look_for(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=./schema.json\n")


def validated(*paths: Path) -> subprocess.CompletedProcess[str]:
    checker = require_tool("check-jsonschema", "pip install check-jsonschema")
    schema = ROOT / "config" / "schema.json"
    command = [checker, "--schemafile", str(schema), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_schema_accepts_every_example_and_values_from_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text(
        "listen: unix:/run/x\nworkers: auto\nlimits: {tensors: '${N}', header: '${file:size}'}\ntls: null\n"
        "recover_header_length: ${YES}\n"
        "backends: {a: {endpoints: ['${URL}'], nonfinite: '${X}', sticky: '${S}', max_connections: '${N}'}}\n"
    )
    result = validated(*EXAMPLES, ROOT / "deploy" / "gateway.yaml", outside)
    assert result.returncode == 0, result.stdout


def test_the_schema_refuses_what_check_refuses(tmp_path: Path) -> None:
    texts = [
        "listn: a:1\n" + MINIMAL,
        "backends: {a: {endpoints: ['http://x'], nonfinit: reject}}",
        "backends: {a: {endpoints: ['http://x'], nonfinite: asnull}}",
        "limits: {header: 5}\n" + MINIMAL,
        "backends: {a: {}}",
    ]
    paths = [tmp_path / f"bad{number}.yaml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
        assert inspect(path).errors
    result = validated(*paths)
    assert result.returncode == 1
    for path in paths:
        assert f"{path}::" in result.stdout


def test_every_default_in_the_schema_is_that_of_the_type() -> None:
    schema = json_schema()
    assert schema["properties"]["workers"]["default"] == 1
    assert schema["properties"]["limits"]["properties"]["header"]["default"] == "128KiB"
    eject = schema["properties"]["backends"]["additionalProperties"]["properties"]["eject"]
    assert eject["properties"]["for"]["default"] == "30s"
    assert "hidden" not in schema["properties"]


WITH_FILES = ROOT / "config" / "tls.yaml"


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path != WITH_FILES], ids=lambda path: path.name)
def test_examples_pass_without_warnings(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "make its files" not in path.read_text()
    code = main(["check", str(path)])
    printed, complained = capsys.readouterr()
    assert code == 0, printed + complained
    assert printed.startswith(f"{path}: valid; ")
    assert "warning" not in complained


def test_the_example_that_needs_files_says_how_to_make_them_and_then_passes(tmp_path: Path) -> None:
    text = WITH_FILES.read_text()
    (tmp_path / WITH_FILES.name).write_text(text)
    assert "make its files" in text
    commands = re.findall(r"^#   (.*)$", text, re.MULTILINE)
    script = "\n".join([*commands, f'"{sys.executable}" -m gateway check {WITH_FILES.name}'])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"{WITH_FILES.name}: valid; ")
    assert "warning" not in done.stderr
    assert commands
