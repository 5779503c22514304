"""The configuration file: what is read, and what is refused with path, reason and the nearest name."""

import re
import socket
from pathlib import Path
from string import Formatter
from typing import Any, get_args

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway import config
from gateway.codec.dialects.declared import TensorDescription
from gateway.codec.dialects.description import ModelDescription
from gateway.codec.tensors.datatypes import DATATYPES
from gateway.config import (
    Config,
    Duration,
    Size,
    decode,
    encode,
    for_backend,
    load,
    parse,
)
from gateway.config.rules import ERRORS, SET_BY_GATEWAY, WARNINGS, Rule
from gateway.config.schema import Model, ModelInput, ModelOutput, ModelRequest, ModelTensor, Shutdown
from gateway.config.structure import choices_of, without_none
from gateway.config.values import FORMATS
from gateway.errors import ConfigError

ROOT = Path(__file__).parent.parent
FILES = sorted([*(ROOT / "config").glob("*.yaml"), ROOT / "deploy" / "gateway.yaml"])
MINIMAL = "backends: {a: {endpoints: ['http://x:1']}}\n"


def one_backend(extra: str, endpoint: str = "http://x:1") -> str:
    """A file whose backend `a` has *extra* beside its endpoint."""
    return f"backends: {{a: {{endpoints: ['{endpoint}'], {extra}}}}}\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_in_the_project_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELS_TOKEN", "abc")
    assert load(path).backends


def keys(type_: Any, prefix: str = "") -> set[str]:
    """Every key of a type, `*` for any name."""
    found = set()
    for item in msgspec.structs.fields(type_):
        path = f"{prefix}{item.encode_name}"
        if path == "hidden":  # no key of the file, see `Config`
            continue
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


@pytest.mark.parametrize(
    "type_",
    [config.Health, config.ListenerTls, Model, ModelInput, ModelOutput, ModelRequest, config.Route, config.Tracing],
)
def test_the_documented_file_names_the_keys_of_what_it_leaves_out(type_: Any) -> None:
    text = (ROOT / "config" / "gateway.yaml").read_text()
    for item in msgspec.structs.fields(type_):
        assert re.search(rf"[{{ ]{item.encode_name}: ", text) or f"`{item.encode_name}: " in text, item.encode_name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listn: 1\n" + MINIMAL, "listn: unknown key, did you mean `listen`?"),
        ("backends: {a: {endpoints: ['http://x'], nonfinit: 1}}", "backends.a.nonfinit: unknown key, did you mean"),
        ("backends: {a: {endpoints: ['http://x'], timeouts: {idel: 1s}}}", "did you mean `idle`?"),
        (one_backend("models: {m: {request: {path: /}}}"), "a.models.m.request.body: missing; expected a value"),
        ("zzz: 1\n" + MINIMAL, "zzz: unknown key; known are backends, listen"),
        ("tracing: {}\n" + MINIMAL, "tracing.endpoint: missing"),
        ("tracing: {endpoint: 'x:4318'}\n" + MINIMAL, "tracing.endpoint: expected a URL"),
        ("tracing: {endpoint: 'http://x', sample: 2}\n" + MINIMAL, "tracing.sample: expected a share from 0 to 1"),
        ("tracing: {endpoint: 'http://x', service_name: ''}\n" + MINIMAL, "tracing.service_name: expected a name"),
        ("tracing: {endpoint: 'http://x', headers: {a b: c}}\n" + MINIMAL, "tracing.headers.a b: invalid header name"),
        ("tracing: {endpoint: 'http://x', headers: {a: é}}\n" + MINIMAL, "tracing.headers.a: invalid header value"),
        ("trusted_proxies: [10.0.0.1/8]\n" + MINIMAL, "trusted_proxies[0]: expected an address, a network"),
        ("trusted_proxies: [proxy.local]\n" + MINIMAL, "got 'proxy.local'"),
        ("trusted_proxies: [1]\n" + MINIMAL, "trusted_proxies[0]: expected an address"),
        ("workers: 0\n" + MINIMAL, "workers: expected at least 1"),
        (
            "backends: {a: {endpoints: ['http://$HOST:8000']}}",
            "expected `${NAME}`, with braces, for a value from the environment, got 'http://$HOST:8000'",
        ),
        ("backends: {a: {endpoints: ['http://a:$PORT/p']}}", "expected `${NAME}`, with braces, for a value from"),
        (
            f"{MINIMAL}routes: [{{name: r, backend: a, strip_prefix: true}}]",
            "routes[0].strip_prefix: expected together with `path_prefix`, the prefix that is stripped",
        ),
        (
            "workers: 10\nlimits: {in_flight_bytes: 2GiB}\n" + MINIMAL,
            "limits.in_flight_bytes: expected `limits.request_body` for each of the `workers`, at least 2560MiB; or",
        ),
        (
            "workers: 4\nlimits: {request_body: 2GiB, in_flight_bytes: 7GiB}\n" + MINIMAL,
            "expected `limits.request_body` for each of the `workers`, at least 8GiB; or leave this key out",
        ),
        ("logging: {sample: -0.1}\n" + MINIMAL, "logging.sample: expected a share from 0 to 1"),
        ("logging: {sampel: 1}\n" + MINIMAL, "logging.sampel: unknown key, did you mean `sample`?"),
        (
            "limits: {in_flight_bytes: 1MiB}\n" + MINIMAL,
            "limits.in_flight_bytes: expected `limits.request_body` for each of the `workers`, at least 256MiB; or",
        ),
        (
            "limits: {request_body: 3GiB}\n" + MINIMAL,
            "limits.request_body: expected at most 2GiB, or `limits.in_flight",
        ),
        ("limits: {concurrent_requests: 0}\n" + MINIMAL, "limits.concurrent_requests: expected at least 1"),
        (
            one_backend("dialect: tensorfow"),
            "backends.a.dialect: expected v2, tensorflow, mlflow, template, python or auto, got 'tensorfow', did",
        ),
        (one_backend("dialect: tensorflow, leave_out: [id]"), "backends.a.leave_out: this is for servers of V2, and"),
        (one_backend("dialect: mlflow, binary: auto"), "a.binary: this is for servers of V2, and `dialect` is mlflow"),
        (
            one_backend("leave_out: [ids]"),
            "a.leave_out[0]: expected id, outputs or parameters, got 'ids', did",
        ),
        (one_backend("ids: always, leave_out: [outputs, id]"), "backends.a.ids: expected client, because `leave_out`"),
        (one_backend("dialect: tensorflow, ids: always"), "backends.a.ids: this is for servers of V2, and"),
        (one_backend("ids: alway"), "a.ids: expected client or always, got 'alway', did you mean `always`?"),
        (one_backend("models: {m: {outputs: {y: {datatype: fp32}}}}"), "got 'fp32', did you mean `FP32`?"),
        (
            one_backend("models: {m: {outputs: {y: {datatyp: FP32}}}}"),
            "y.datatyp: unknown key, did you mean `data",
        ),
        (one_backend("models: {m: {output: {y: {datatype: FP32}}}}"), "a.models.m.output: unknown key, did you mean"),
        (one_backend("models: {m: {inputs: {x: {shape: [-2, 1]}}}}"), "x.shape[0]: expected a size of at least 0, -1"),
        (one_backend("models: {m: {outputs: {x: {shape: [n, n m]}}}}"), "x.shape[1]: expected a size of at least 0"),
        (one_backend("models: {m: {inputs: {x: {shape: [1.5]}}}}"), "or a name such as n, got 1.5"),
        (one_backend("models: {m: {inputs: {x: {shape: 4}}}}"), "models.m.inputs.x.shape: expected a list, got 4"),
        (
            one_backend(f"models: {{m: {{inputs: {{x: {{shape: {[1] * 65}}}}}}}}}"),
            "x.shape: expected at most 64",
        ),
        (one_backend("models: {a/b: {}}"), "backends.a.models.a/b: never matches: a model's name is not empty"),
        (one_backend("models: {'': {}}"), "backends.a.models.: never matches"),
        (
            one_backend("models: {m: {format: row}}"),
            "m.format: expected none, because `dialect` is v2",
        ),
        (
            one_backend("dialect: mlflow, models: {m: {format: row}}"),
            "models.m.format: expected inputs, instances or dataframe_split, because `dialect` is mlflow",
        ),
        (
            one_backend("dialect: tensorflow, models: {m: {format: inputs}}"),
            "models.m.format: expected columnar or row, because `dialect` is tensorflow",
        ),
        (
            one_backend("dialect: auto, models: {m: {format: cols}}"),
            "m.format: expected columnar, row, inputs, ",
        ),
        (one_backend("dialect: mlflow, models: {m: {signature: s}}"), "m.signature: only models of TensorFlow have"),
        (one_backend("models: {m: {signature: s}}"), "m.signature: only models of TensorFlow have signatures, and"),
        (one_backend("dialect: tensorflow, models: {m: {signature: ''}}"), "models.m.signature: expected a name"),
        (
            one_backend("dialect: mlflow, models: {m: {inputs: {'': {}, x: {}}}}"),
            "m.inputs: expected a name for each of them: only a single input may have none",
        ),
        (
            one_backend(
                'dialect: template, models: {m: {outputs: {"\\0o": {datatype: FP32}}, '
                'request: {path: /p, body: {}}, answer: {"\\0o": $.y}}}'
            ),
            "expected a name without NUL characters",
        ),
        (one_backend("dialect: auto, models: {m: {outputs: {'': {}}}}"), "m.outputs: expected a name for each of them"),
        (
            one_backend("dialect: mlflow, models: {m: {outputs: {y: {shape: [1]}}}}"),
            "a.models.m.outputs.y: expected its `datatype`: neither the server nor its answers say it",
        ),
        (
            one_backend("dialect: mlflow, models: {m: {outputs: {y: {datatype: FP32, missing: ''}}}}"),
            "a.models.m.outputs.y.missing: this is for strings: expected `datatype: BYTES` beside it",
        ),
        (
            one_backend("dialect: tensorflow, models: {m: {inputs: {x: {encoding: text}}}}"),
            "a.models.m.inputs.x.encoding: expected `datatype` beside it, BYTES or one of numbers",
        ),
        (
            one_backend("dialect: mlflow, models: {m: {outputs: {y: {datatype: BOOL, encoding: base64}}}}"),
            "a.models.m.outputs.y.encoding: expected `datatype` beside it, BYTES or one of numbers",
        ),
        (
            one_backend("models: {m: {inputs: {x: {datatype: BYTES, encoding: base64}}}}"),
            "a.models.m.inputs.x.encoding: this is for other dialects, and `dialect` is v2",
        ),
        (
            "backends: {a: {endpoints: ['http://x'], nonfinite: asnull}}",
            "backends.a.nonfinite: expected reject, as_null or literal, got 'asnull', did you mean `as_null`?",
        ),
        ("logging: {access: xml}\n" + MINIMAL, "logging.access: expected json, text or none, got 'xml'"),
        (
            "limits: {per_client: {concurrent: -1}}\n" + MINIMAL,
            "limits.per_client.concurrent: expected at least 0",
        ),
        ("limits: {per_client: {rate: -1}}\n" + MINIMAL, "limits.per_client.rate: expected at least 0"),
        ("limits: {per_client: {rate: 1.0e-310}}\n" + MINIMAL, "limits.per_client.rate: expected at least 0.0003"),
        ("limits: {per_client: {burst: 3}}\n" + MINIMAL, "limits.per_client.burst: expected together with `rate`"),
        ("limits: {request_body: 5}\n" + MINIMAL, "limits.request_body: expected a size with a unit"),
        ("limits: {request_body: 5MB}\n" + MINIMAL, "limits.request_body: expected a size with a unit"),
        ("limits: {request_body: 0B}\n" + MINIMAL, "limits.request_body: expected more than 0B"),
        ("shutdown: {grace: 5}\n" + MINIMAL, "shutdown.grace: expected a duration with a unit"),
        ("backends: {a: {endpoints: ['http://x'], timeouts: {idle: 0s}}}", "backends.a.timeouts.idle: expected more"),
        ("backends: {a: {endpoints: [x]}}", "backends.a.endpoints[0]: expected a URL"),
        ("backends: {a: {endpoints: ['ftp://x']}}", "expected a URL"),
        ("backends: {a: {endpoints: ['grpc://x:8001']}}", "not of its gRPC port"),
        ("backends: {a: {endpoints: ['http://x:99999']}}", "expected a URL"),
        ("backends: {a: {endpoints: ['http://u:p@x']}}", "without user"),
        ("backends: {a: {endpoints: []}}", "backends.a.endpoints: expected at least one"),
        ("backends: {a: {endpoints: ['http://x', 'http://x/']}}", "duplicate endpoint"),
        (
            "backends: {a: {endpoints: ['http://x'], headers: {set: {'a b': c}}}}",
            "backends.a.headers.set.a b: invalid header name",
        ),
        ("backends: {}", "backends: expected at least one"),
        ("backends: {a: {endpoints: ['http://x']}, b: {endpoints: ['http://y']}}", "routes: needed"),
        ("routes: [{name: r, backend: b}]\n" + MINIMAL, "routes[0].backend: there is no such backend; there are a"),
        (
            "routes: [{name: r, backend: ab}]\n" + MINIMAL,
            "routes[0].backend: there is no such backend, did you mean `a`?",
        ),
        (
            "routes: [{name: r, split: {ab: 1}}]\n" + MINIMAL,
            "routes[0].split.ab: there is no such backend, did you mean",
        ),
        ("routes: [{name: r, split: {a: 0}}]\n" + MINIMAL, "routes[0].split: expected backends and their weights"),
        ("routes: [{name: r, split: {a: -1}}]\n" + MINIMAL, "routes[0].split: expected backends and their weights"),
        ("routes: [{name: r, split: {}}]\n" + MINIMAL, "routes[0].split: expected backends and their weights"),
        ("routes: [{name: r}]\n" + MINIMAL, "routes[0].backend: expected either `backend` or `split`"),
        ("routes: [{name: r, backend: a, split: {a: 1}}]\n" + MINIMAL, "expected either `backend` or `split`"),
        ("routes: [{name: '', backend: a}]\n" + MINIMAL, "routes[0].name: expected a name"),
        ("routes: [{name: none, backend: a}]\n" + MINIMAL, "routes[0].name: the name `none` is reserved"),
        ("backends: {none: {endpoints: ['http://x:1']}}", "backends.none: the name `none` is reserved"),
        ("routes: [{backend: a}]\n" + MINIMAL, "routes[0].name: missing; expected text"),
        ("routes: [{name: r, backend: a}, {name: r, backend: a}]\n" + MINIMAL, "routes[1].name: duplicate name, as in"),
        ("routes: [{name: r, backend: a, models: []}]\n" + MINIMAL, "routes[0].models: an empty list matches nothing"),
        (
            "routes: [{name: r, backend: a, path_prefix: /v2/models/, strip_prefix: true}]\n" + MINIMAL,
            "routes[0].strip_prefix: `path_prefix` is part of the protocol's own paths",
        ),
        (
            "routes: [{name: r, backend: a, path_prefix: /v2, strip_prefix: true}]\n" + MINIMAL,
            "routes[0].strip_prefix: `path_prefix` is part of the protocol's own paths",
        ),
        (
            "routes: [{name: r, backend: a, rename: {m: ''}}]\n" + MINIMAL,
            "routes[0].rename.m: expected names of models",
        ),
        ("routes: [{name: r, backend: a, rename: {'': m}}]\n" + MINIMAL, "routes[0].rename.: expected names of models"),
        ("routes: [{name: r, backend: a, models: [m/n]}]\n" + MINIMAL, "routes[0].models[0]: never matches: a model's"),
        (
            "routes: [{name: r, backend: a, models: [m, '']}]\n" + MINIMAL,
            "routes[0].models[1]: never matches: a model's",
        ),
        (
            "routes: [{name: r, backend: a, host: 'https://h'}]\n" + MINIMAL,
            "routes[0].host: expected the name of a host",
        ),
        ("routes: [{name: r, backend: a, host: ''}]\n" + MINIMAL, "routes[0].host: expected the name of a host"),
        ("routes: [{name: r, backend: a, path_prefix: /p q}]\n" + MINIMAL, "routes[0].path_prefix: never matches: "),
        ("routes: [{name: r, backend: a, path_prefix: '/p?q'}]\n" + MINIMAL, "routes[0].path_prefix: never matches: "),
        (
            "routes: [{name: r, backend: a, path_prefix: '/p/../q'}]\n" + MINIMAL,
            "routes[0].path_prefix: never matches, ",
        ),
        ("backends: {'': {endpoints: [http://x]}}", "backends: expected a name for each of them"),
        ("listen: 0.0.0.0:9090\n" + MINIMAL, "admin: the same address as `listen`"),
        ("listen: localhost:9090\n" + MINIMAL, "admin: the same address as `listen`"),
        ("listen: h:9\nadmin: '[::]:9'\n" + MINIMAL, "admin: the same address as `listen`"),
        (
            "routes: [{name: r, backend: a, rename: {m: a/b}}]\n" + MINIMAL,
            "routes[0].rename.m: expected names of models",
        ),
        ("access: {deny: [/a, '*/b', v2/c]}\n" + MINIMAL, "access.deny[2]: expected a pattern of paths, which begins"),
        ("access: {tokens_file: ''}\n" + MINIMAL, "access.tokens_file: expected the path of a file, got ''"),
        ("tls: {certificate: a.pem}\n" + MINIMAL, "tls.key: missing; expected the path of a file"),
        ("tls: {certificate: 5, key: a}\n" + MINIMAL, "tls.certificate: expected the path of a file, got 5"),
        ("admin: unix:/run/x\n" + MINIMAL, "admin: expected host:port; `unix:` is for `listen` only"),
        ("listen: 'unix:'\n" + MINIMAL, "listen: expected host:port"),
        ("backends: {a: {}}", "backends.a.endpoints: missing; expected a list"),
        ("backends: {a: {endpoints: http://x}}", "backends.a.endpoints: expected a list, got 'http://x'"),
        ("backends: {a: {endpoints: [5]}}", "backends.a.endpoints[0]: expected a URL of scheme, host and port"),
        ("backends: [a]", "backends: expected keys and values, such as `{default: {endpoints: ["),
        ("backends: {a: b}", "backends.a: expected keys and values, got 'b'"),
        ("shutdown:\n" + MINIMAL, "shutdown: expected keys and values, got nothing"),
        (one_backend("headers: {set: {A: 1}}"), "headers.set.A: expected text in quotes, got 1"),
        (one_backend("headers: {remove: ['a b']}"), "backends.a.headers.remove[0]: invalid header name"),
        (one_backend("sticky: sequnce_id"), "backends.a.sticky: expected none, sequence_id or header:NAME"),
        (one_backend("sticky: 'header:'"), "backends.a.sticky: expected none, sequence_id or header:NAME"),
        (one_backend("sticky: 'header:a b'"), "backends.a.sticky: expected none, sequence_id or header:NAME"),
        (one_backend("sticky: [a]"), "header:X-Session, got a list"),
        (one_backend("dns_refresh: 0s"), "backends.a.dns_refresh: expected more than 0s"),
        (one_backend("eject: {panic_below: 1.5}"), "backends.a.eject.panic_below: expected a share from 0 to 1"),
        (one_backend("eject: {for: 0s}"), "backends.a.eject.for: expected more than 0s"),
        (one_backend("retry: {attempts: 0}"), "backends.a.retry.attempts: expected at least 1"),
        (one_backend("retry: {budget: .nan}"), "backends.a.retry.budget: expected a number of at most"),
        (one_backend("retry: {budget: many}"), "backends.a.retry.budget: expected a number, got 'many'"),
        (one_backend("retry: {attempts: 1.5}"), "backends.a.retry.attempts: expected a whole number, got 1.5"),
        (one_backend("retry: {attempts: true}"), "backends.a.retry.attempts: expected a whole number, got true"),
        (one_backend("health: {path: v2}"), "backends.a.health.path: expected a path that starts with /"),
        (one_backend('health: {path: "/a\\r\\nb"}'), "backends.a.health.path: expected a path that starts with /"),
        (one_backend('health: {path: "/a#b"}'), "backends.a.health.path: expected a path that starts with /"),
        (one_backend("health: {path: /a/../b}"), "backends.a.health.path: a segment of the path is '.' or '..'"),
        (one_backend("health: {path: /a/%2e%2e/b}"), "backends.a.health.path: a segment of the path is '.' or '..'"),
        (one_backend("tls: {server_name: 'http://x'}"), "backends.a.tls.server_name: expected the name of a host"),
        (one_backend("tls: {server_name: .x}"), "backends.a.tls.server_name: expected the name of a host"),
        (one_backend(f"tls: {{server_name: {'x' * 64}.com}}"), "backends.a.tls.server_name: expected the name of a"),
        (one_backend("tls: {certificate: a}"), "backends.a.tls.certificate: expected together with `key`"),
        (one_backend("tls: {key: a}"), "backends.a.tls.key: expected together with `certificate`"),
        ("limits: {tensors: 99999999999999999999}\n" + MINIMAL, "limits.tensors: expected a number of at most"),
        ("workers: many\n" + MINIMAL, "workers: expected a whole number or auto, got 'many'"),
        ("hidden: [listen]\n" + MINIMAL, "hidden: unknown key"),
        ("5: 1\n" + MINIMAL, "line 1: expected a key that is text, got 5; write it in quotes"),
        ("<<: {workers: 2}\n" + MINIMAL, "merging with `<<` is not supported"),
        ("a: 1\n---\nb: 1", "line 2: not YAML: expected a single document in the stream, but found another document"),
        (
            "routes: [{name: r, backend: a, path_prefix: x}]\n" + MINIMAL,
            "routes[0].path_prefix: never matches: ",
        ),
        ("routes: [{name: r, bakend: a}]\n" + MINIMAL, "routes[0].bakend: unknown key, did you mean `backend`?"),
        ("limits: {connections: 0}\n" + MINIMAL, "limits.connections: expected at least 1"),
        ("limits: {tensors: 0}\n" + MINIMAL, "limits.tensors: expected at least 1"),
        ("limits: {header: 0B}\n" + MINIMAL, "limits.header: expected more than 0B"),
        ("limits: {header: 257KiB}\n" + MINIMAL, "limits.header: expected at most 256KiB"),
        (
            "workers: 2\nlimits: {connections: 1}\n" + MINIMAL,
            "limits.connections: expected at least as many as `workers`",
        ),
        (one_backend("keep_alive: 0s"), "backends.a.keep_alive: expected more than 0s"),
        (one_backend("max_connections: 0"), "backends.a.max_connections: expected at least 1"),
        (
            "workers: 2\n" + one_backend("max_connections: 1"),
            "a.max_connections: expected at least as many as `workers`",
        ),
        (
            "workers: 2\n" + one_backend("queue: {length: 1}"),
            "a.queue.length: expected at least as many as `workers`",
        ),
        (one_backend("queue: {length: -1}"), "backends.a.queue.length: expected at least 0"),
        (one_backend("queue: {timeout: 0s}"), "backends.a.queue.timeout: expected more than 0s"),
        (one_backend("queue: {lenght: 1}"), "backends.a.queue.lenght: unknown key, did you mean `length`?"),
        (one_backend("headers: {set: {X-A: é}}"), "headers.set.X-A: invalid header value"),
        ("listen: 8080\n" + MINIMAL, "listen: expected host:port"),
        ("listen: http://127.0.0.1:8080\n" + MINIMAL, "listen: expected host:port"),
        ("listen: a:b\n" + MINIMAL, "listen: expected host:port"),
        ("admin: 127.0.0.1:8080\n" + MINIMAL, "admin: the same address"),
        ("recover_header_length: 1\n" + MINIMAL, "recover_header_length: expected true or false, got 1"),
        ("backends: {a: {endpoints: ['http://x']}, a: {endpoints: ['http://y']}}", "duplicate key `a`"),
        ("a: [", "line 1"),
        ("", "expected keys and values"),
        ("[1]", "expected keys and values"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value), "one mistake, one line"


@pytest.mark.parametrize("sticky", ["header", "header:", "header:a b"])
def test_nothing_is_guessed_where_a_header_has_no_name(sticky: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(one_backend(f"sticky: '{sticky}'"))
    assert str(caught.value).endswith(f"such as header:X-Session, got '{sticky}'")


def test_what_is_said_of_models_reaches_the_codec() -> None:
    text = (
        "dialect: auto, models: {m: {inputs: {x: {datatype: BF16, shape: [-1, 4]}}, outputs: {y: {}, z: {shape: []}}, "
    )
    backend = parse(one_backend(f"{text} format: row, signature: s}}, '*': {{}}}}")).backends["a"]
    assert {pattern: model.description for pattern, model in backend.models.items()} == {
        "m": ModelDescription(
            inputs={"x": TensorDescription(DATATYPES["BF16"], (-1, 4))},
            outputs={"y": TensorDescription(), "z": TensorDescription(None, ())},
            format="row",
            signature="s",
            has_output_order=True,
        ),
        "*": ModelDescription(has_output_order=True),
    }


def test_datatypes_of_models_are_those_of_the_protocol() -> None:
    assert choices_of(without_none(msgspec.structs.fields(ModelTensor)[0].type)[0]) == list(DATATYPES)


def test_forms_of_requests_are_those_of_some_dialect() -> None:
    formats = next(item for item in msgspec.structs.fields(Model) if item.name == "format")
    assert choices_of(without_none(formats.type)[0]) == [each for forms in FORMATS.values() for each in forms]


def test_members_that_are_left_out_are_a_policy_of_the_codec() -> None:
    assert parse(one_backend("leave_out: [id, outputs]")).backends["a"].tensor_policy.leave_out == {"id", "outputs"}


@pytest.mark.parametrize("rule", [*ERRORS, *WARNINGS], ids=lambda rule: f"{rule.part.__name__} {rule.keys}")
def test_every_rule_is_about_keys_that_exist_and_its_words_can_be_said(rule: Rule) -> None:
    for key in rule.keys.split():
        type_: Any = rule.part
        for step in filter(None, key.partition(":")[0].split(".")):
            type_, _ = without_none(type_)
            args = get_args(type_)
            type_ = args[-1] if step == "*" else {item.name: item.type for item in msgspec.structs.fields(type_)}[step]
    fields = {field for _, field, _, _ in Formatter().parse(rule.words) if field is not None}
    assert fields <= ({"found", "part.dialect"} if rule.part is config.Backend else {"found"})


def test_units_are_read() -> None:
    text = "limits: {request_body: 3MiB}\nshutdown: {delay: 250ms, grace: 1.5m}\n" + MINIMAL
    read = parse(text)
    assert [read.limits.request_body, read.shutdown.delay, read.shutdown.grace] == [Size(3 * 1024**2), 0.25, 90.0]


@pytest.mark.parametrize("text", ["300h", "1ms", "0.001ms", "333.333ms", "9ms", "0.3s", "1.1m", "99999999999s", "0s"])
def test_durations_are_written_so_that_they_are_read_back_exactly(text: str) -> None:
    config = parse(one_backend("queue: {timeout: 1s}, timeouts: {total: 2s}") + f"shutdown: {{grace: {text}}}\n")
    assert decode(encode(config)) == config
    assert parse(MINIMAL + f"shutdown: {{grace: {config.shutdown.grace}}}\n").shutdown == config.shutdown


@given(st.floats(0, 1e15, exclude_max=True))
def test_every_duration_is_written_exactly(seconds: float) -> None:
    config = msgspec.structs.replace(parse(MINIMAL), shutdown=Shutdown(grace=Duration(seconds)))
    assert decode(encode(config)) == config


def test_what_is_encoded_for_a_worker_is_decoded_to_the_same() -> None:
    text = (ROOT / "config" / "routes.yaml").read_text()
    text += "workers: 3\nlimits: {header: 1B}\ntrusted_proxies: [10.0.0.0/8, '::1', unix]\n"
    config = parse(text + "tracing: {endpoint: 'http://x:4318', headers: {a: b}}\n")
    assert decode(encode(config)) == config


@pytest.mark.parametrize(
    "text",
    [
        one_backend("", "http://user:secret@x:1"),
        one_backend("", "http://user:secret@x:99999"),
        one_backend("", "ftp://user:secret@x"),
        one_backend("", "user:secret@x:1"),
        one_backend("", "http://user:sec//secret@x y"),
        one_backend("", "http://x y?token=secret"),
        one_backend("nonfinite: 'http://user:secret@x'"),
        one_backend("nonfinite: {a: secret}"),
        "listen: user:secret@x\n" + MINIMAL,
        "limits: {request_body: 'http://user:secret@x'}\n" + MINIMAL,
        "shutdown: {grace: 'http://user:secret@x'}\n" + MINIMAL,
        "'http://user:secret@x': 1\n" + MINIMAL,
        "backends: {'http://user:secret@x': 1}\n",
        "workers: !!int 'http://user:secret@x'\n" + MINIMAL,
        MINIMAL + "routes: [{name: r, backend: 'http://user:secret@x'}]\n",
    ],
)
def test_messages_repeat_no_credentials(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        f"listen: {'x' * 10_000}\n" + MINIMAL,
        f"{'x' * 10_000}: 1\n" + MINIMAL,
        f"limits: {{request_body: {'1' * 4_000}}}\n" + MINIMAL,
        f"workers: {'1' * 10_000}\n" + MINIMAL,
        f"shutdown: {{grace: {'9' * 10_000}s}}\n" + MINIMAL,
        f"backends: {{{'x' * 10_000}: {{endpoints: []}}}}\n",
        one_backend(f"nonfinite: {'x' * 10_000}"),
        one_backend("nonfinite: [" + "x, " * 10_000 + "]"),
        MINIMAL + f"routes: [{{name: r, backend: {'x' * 10_000}}}]\n",
        f"workers: *{'x' * 10_000}\n",
        f"workers: !{'x' * 10_000} 1\n",
        "[" * 5_000,
    ],
)
def test_messages_repeat_only_the_beginning_of_what_is_long(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert len(str(caught.value)) < 400


def test_aliases_are_read_and_one_of_itself_is_refused() -> None:
    shared = (
        "backends: {a: {endpoints: ['http://x'], timeouts: &t {total: 9s}}, b: {endpoints: ['http://y'], timeouts: *t}}"
    )
    config = parse(shared + "\nroutes: [{name: r, backend: a}]")
    assert config.backends["b"].timeouts.total == Duration(9)
    with pytest.raises(ConfigError, match="not YAML: nested too deep"):
        parse(one_backend("models: {m: {request: {path: /, body: &x [*x]}}}"))


@pytest.mark.parametrize(
    "value",
    ["2024-13-45", "!!int x", "1" * 5000, "\x01", "!!float q", "!x y", '"\\ud800"', '"\\UFFFFFFFF"'],
)
def test_values_that_yaml_itself_cannot_read_are_named_in_one_line(value: str) -> None:
    with pytest.raises(ConfigError, match="not YAML: ") as caught:
        parse(f"listen: {value}\n{MINIMAL}")
    assert "\n" not in str(caught.value)


def test_headers_that_the_gateway_sets_itself_cannot_be_set() -> None:
    for name in (spelt for header in SET_BY_GATEWAY for spelt in (header, header.title())):
        with pytest.raises(ConfigError, match=f"backends.a.headers.set.{name}: the gateway sets this header itself"):
            parse(one_backend(f"headers: {{set: {{{name}: x}}}}"))


def test_the_headers_of_framing_and_of_the_gateway_are_among_them() -> None:
    assert {"host", "accept-encoding", "inference-header-content-length", "via", "x-request-id"} <= SET_BY_GATEWAY
    assert {"content-length", "transfer-encoding", "connection", "te", "trailer", "upgrade"} <= SET_BY_GATEWAY


@pytest.mark.parametrize(
    ("listen", "endpoint", "is_loop"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080", True),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/prefix", True),
        ("127.0.0.1:8080", "http://LOCALHOST:8080", True),
        ("127.0.0.1:8080", "http://0.0.0.0:8080", True),
        ("127.0.0.1:80", "http://127.0.0.1", True),
        ("127.0.0.1:443", "https://127.0.0.1", True),
        ("localhost:8080", "http://127.0.0.1:8080", True),
        ("[::1]:8080", "http://[::1]:8080", True),
        ("0.0.0.0:8080", "http://127.0.0.1:8080", True),
        ("0.0.0.0:8080", "http://127.9.9.9:8080", True),
        ("0.0.0.0:8080", "http://localhost:8080", True),
        ("0.0.0.0:8080", "http://0.0.0.0:8080", True),
        ("[::]:8080", "http://[::1]:8080", True),
        ("[::]:8080", "http://127.0.0.1:8080", True),
        ("0.0.0.0:8080", f"http://{socket.gethostname()}:8080", True),
        ("api.example.com:8080", "http://API.example.com:8080", True),
        ("127.0.0.1:8080", "http://127.0.0.1:8081", False),
        ("127.0.0.1:8080", "http://127.0.0.2:8080", False),
        ("127.0.0.1:8080", "http://10.0.0.1:8080", False),
        ("10.0.0.2:8080", "http://127.0.0.1:8080", False),
        ("0.0.0.0:8080", "http://mlserver:8080", False),
        ("0.0.0.0:8080", "http://10.0.0.1:8080", False),
        ("127.0.0.1:0", "http://127.0.0.1:8080", False),
    ],
)
def test_a_backend_that_is_the_gateway_itself_is_refused(listen: str, endpoint: str, is_loop: bool) -> None:
    text = f"listen: '{listen}'\nbackends: {{a: {{endpoints: ['http://y', '{endpoint}']}}}}\n"
    if not is_loop:
        assert parse(text).listen == listen
        return
    with pytest.raises(
        ConfigError, match=r"backends.a.endpoints\[1\]: this is the gateway's own listener, `listen`, an endless"
    ):
        parse(text)


def test_in_flight_bytes_may_be_left_out_up_to_its_default_only() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("workers: 4\nlimits: {request_body: 3GiB, in_flight_bytes: 11GiB}\n" + MINIMAL)
    words = "limits.in_flight_bytes: expected `limits.request_body` for each of the `workers`, at least 12GiB"
    assert str(caught.value) == words


def test_a_backend_that_is_the_gateways_own_port_for_grpc_is_refused() -> None:
    text = "grpc: 127.0.0.1:8001\nbackends: {a: {endpoints: ['http://localhost:8001']}}\n"
    with pytest.raises(ConfigError, match=r"endpoints\[0\]: this is the gateway's own `grpc`, where HTTP/1.1 is not"):
        parse(text)


def test_each_worker_has_its_share_of_every_limit_that_counts_what_is_held() -> None:
    text = "workers: 2\nlimits: {connections: 101, concurrent_requests: 21, in_flight_bytes: 1GiB}\n"
    config = parse(text + one_backend("max_connections: 9, queue: {length: 7}"))
    share = config.share()
    limits = share.limits
    assert (limits.connections, limits.concurrent_requests, limits.in_flight_bytes) == (50, 10, 512 * 1024**2)
    assert (share.max_connections("a"), share.backends["a"].queue.length) == (4, 3)
    assert limits.request_body == config.limits.request_body
    config = parse("workers: 2\n" + MINIMAL)
    assert (config.max_connections("a"), config.share().max_connections("a")) == (512 + 16, 256 + 16)
    assert config.share().backends["a"].queue.length == 0
    alone = parse(MINIMAL + "limits: {in_flight_bytes: 2GiB}\n")
    assert alone.share() == parse(MINIMAL).share() == alone


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", "2GiB"),
        ("workers: 8\n", "2GiB"),
        ("workers: 9\n", "2304MiB"),
        ("workers: 16\n", "4GiB"),
        ("workers: 16\nlimits: {request_body: 1GiB}\n", "16GiB"),
        ("workers: 16\nlimits: {request_body: 64MiB}\n", "2GiB"),
        ("limits: {request_body: 2GiB}\n", "2GiB"),
        ("workers: 16\nlimits: {in_flight_bytes: 8GiB}\n", "8GiB"),
    ],
)
def test_the_bytes_in_flight_grow_with_the_workers_where_the_file_does_not_say_how_many(text: str, size: str) -> None:
    config = parse(text + MINIMAL)
    assert str(config.in_flight_bytes) == size
    assert config.share().in_flight_bytes == config.in_flight_bytes // config.workers >= config.limits.request_body
    assert decode(encode(config)).in_flight_bytes == config.in_flight_bytes


def test_serve_with_a_backend_is_the_minimal_file() -> None:
    assert for_backend("http://x:1/").backends["default"].endpoints == ["http://x:1"]
    assert for_backend("http://x:1", listen="[::1]:5").listen.host == "::1"
    assert for_backend("http://x:1", workers="16").workers == 16


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match="none.yaml: cannot be read: No such file"):
        load(missing)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"listen: \xff")
    with pytest.raises(ConfigError, match=": not UTF-8"):
        load(latin)
