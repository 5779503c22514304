"""Reading the configuration: one YAML file in, one frozen object out, or one line that says what is wrong.

Unknown keys are typing errors and stop the start, as do keys of the contract that are not built yet: nothing is
swallowed. Not here: which keys there are (`schema`).
"""

import difflib
import re
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, Union
from urllib.parse import urlsplit

import msgspec
import yaml

from gateway.config.schema import NOT_YET, SIZE_UNITS, Address, Backend, Config, Duration, Endpoint, Size
from gateway.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB)")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_URL = re.compile(r"[\w.~:/\[\]@!$&'()*+,;=%?#-]+", re.ASCII)
_FRAMING_HEADERS = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "te", "transfer-encoding", "upgrade"}
)

S = TypeVar("S")


def load(path: Path) -> Config:
    """The configuration in the file *path*. Raises `ConfigError`: file, path of the key, reason."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(text: str) -> Config:
    """The configuration in the YAML *text*. Raises `ConfigError`: path of the key, reason."""
    try:
        tree = yaml.load(text, Loader=_StrictLoader)  # noqa: S506  a safe loader, see below
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ConfigError(f"{where}not YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise ConfigError("nested too deep to be read") from None
    if not isinstance(tree, dict):
        raise ConfigError("expected keys and values, such as `listen: 127.0.0.1:8080`")
    _check_keys(tree, Config, "", "")
    # each backend by itself first: msgspec's paths leave out the keys of a dict
    backends = tree.get("backends")
    for name, backend in backends.items() if isinstance(backends, dict) else ():
        _convert(backend, Backend, f"backends.{name}")
    config = _convert(tree, Config, "")
    _check_sense(config)
    return config


def for_backend(endpoint: str, listen: str | None, admin: str | None) -> Config:
    """The configuration of `serve --backend`. Raises `ConfigError`."""
    tree: dict[str, Any] = {"backends": {"default": {"endpoints": [endpoint]}}}
    tree |= {key: value for key, value in (("listen", listen), ("admin", admin)) if value is not None}
    return parse(yaml.safe_dump(tree))


def encode(config: Config) -> bytes:
    """*config* as text for another process; `decode` reads it."""
    return msgspec.json.encode(_as_written(msgspec.to_builtins(config, enc_hook=str), config))


def decode(text: bytes) -> Config:
    """The configuration that `encode` wrote."""
    return _convert(msgspec.json.decode(text), Config, "")


def masked(config: Config) -> dict[str, Any]:
    """The effective configuration as plain values, with every header that is set hidden."""
    tree: dict[str, Any] = _as_written(msgspec.to_builtins(config, enc_hook=str), config)
    for backend in tree["backends"].values():
        backend["headers"]["set"] = dict.fromkeys(backend["headers"]["set"], "***")
    return tree


def _as_written(tree: Any, value: Any) -> Any:
    """*tree* with durations and sizes in the units in which people write them."""
    if isinstance(value, (Duration, Size)):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return {key: _as_written(item, getattr(value, key)) for key, item in tree.items()}
    if isinstance(value, dict) and isinstance(tree, dict):
        return {key: _as_written(item, value[key]) for key, item in tree.items()}
    return tree


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader; a key that stands twice is an error instead of a silent last word."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is no text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key `{key}` stands twice", key_node.start_mark)
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _check_keys(tree: Any, type_: Any, path: str, pattern: str) -> None:
    """Refuse keys that *type_* does not have, with the path and the nearest name."""
    if typing.get_origin(type_) in (Union, types.UnionType):
        type_ = next(option for option in typing.get_args(type_) if option is not type(None))
    if typing.get_origin(type_) is list and isinstance(tree, list):
        for index, item in enumerate(tree):
            _check_keys(item, typing.get_args(type_)[0], f"{path}[{index}]", f"{pattern}[]")
    if not isinstance(tree, dict):
        return
    prefix = f"{path}." if path else ""
    pattern = f"{pattern}." if pattern else ""
    if typing.get_origin(type_) is dict:
        for key, item in tree.items():
            _check_keys(item, typing.get_args(type_)[1], f"{prefix}{key}", f"{pattern}*")
    elif _is_struct(type_):
        fields = {item.name: item.type for item in msgspec.structs.fields(type_)}
        for key, item in tree.items():
            if f"{pattern}{key}" in NOT_YET:
                raise ConfigError(f"{prefix}{key}: not available yet")
            if key not in fields:
                near = difflib.get_close_matches(str(key), fields, n=1)
                hint = f", did you mean `{near[0]}`?" if near else f"; known are {', '.join(fields)}"
                raise ConfigError(f"{prefix}{key}: unknown key{hint}")
            _check_keys(item, fields[key], f"{prefix}{key}", f"{pattern}{key}")


def _decode(type_: type, value: Any) -> Any:
    """Values that YAML does not have, from their text."""
    if type_ is Duration:
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected a duration with a unit, such as 250ms, 2s or 5m, got {value!r}")
        return Duration(float(match[1]) * _DURATION_UNITS[match[2]])
    if type_ is Size:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected a size with a unit, such as 64KiB, 256MiB or 1GiB, got {value!r}")
        return Size(int(match[1]) * SIZE_UNITS[match[2]])
    if type_ is Address:
        host, _, port = str(value).rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"expected host:port, such as 127.0.0.1:8080, got {value!r}")
        return Address(value)
    if type_ is Endpoint:
        return _endpoint(value)
    raise NotImplementedError(type_)


def _endpoint(value: Any) -> Endpoint:
    expected = "expected a URL of scheme, host and port, such as http://127.0.0.1:8000"
    try:
        url = urlsplit(value if isinstance(value, str) else "")
        port_is_sound = url.port is None or url.port > 0
    except ValueError:
        raise ValueError(f"{expected}, got {value!r}") from None
    if url.scheme not in ("http", "https") or not url.hostname or not port_is_sound or not _URL.fullmatch(value):
        raise ValueError(f"{expected}, got {value!r}")
    if url.username is not None or url.query or url.fragment:
        raise ValueError(f"{expected}, without user, query and fragment (credentials go to `headers.set`)")
    return Endpoint(value.rstrip("/"))


def _check_sense(config: Config) -> None:
    """Refuse what every single key allows and all together do not."""
    if not config.backends:
        raise ConfigError("backends: at least one is needed")
    for name, backend in config.backends.items():
        path = f"backends.{name}"
        if not backend.endpoints:
            raise ConfigError(f"{path}.endpoints: at least one is needed")
        if len(set(backend.endpoints)) < len(backend.endpoints):
            raise ConfigError(f"{path}.endpoints: one stands twice")
        for header, text in backend.headers.set.items():
            if not _HEADER_NAME.fullmatch(header) or not text.isprintable() or not text.isascii():
                raise ConfigError(f"{path}.headers.set.{header}: not a header")
            if header.lower() in _FRAMING_HEADERS:
                raise ConfigError(f"{path}.headers.set.{header}: the gateway sets this itself")
        for key in ("connect", "first_byte", "idle", "total"):
            if getattr(backend.timeouts, key) <= 0:
                raise ConfigError(f"{path}.timeouts.{key}: expected more than 0s")
    for key in ("request_body", "response_body"):
        if getattr(config.limits, key) <= 0:
            raise ConfigError(f"limits.{key}: expected more than 0B")
    if config.limits.concurrent_requests < 1:
        raise ConfigError("limits.concurrent_requests: expected at least 1")
    if config.workers < 1:
        raise ConfigError("workers: expected at least 1")
    if config.limits.request_body > config.limits.in_flight_bytes // config.workers:
        share = " for each worker" if config.workers > 1 else ""
        raise ConfigError(f"limits.in_flight_bytes: expected at least `limits.request_body`{share}")
    if config.listen == config.admin and config.listen.port:
        raise ConfigError("admin: the same address as `listen`")
    if not config.routes and len(config.backends) > 1:
        raise ConfigError("routes: needed as soon as there is more than one backend")
    names = set()
    for index, route in enumerate(config.routes):
        if route.backend not in config.backends:
            near = difflib.get_close_matches(route.backend, config.backends, n=1)
            hint = f", did you mean `{near[0]}`?" if near else f"; there are {', '.join(config.backends)}"
            raise ConfigError(f"routes[{index}].backend: no backend `{route.backend}`{hint}")
        if route.name in names:
            raise ConfigError(f"routes[{index}].name: `{route.name}` stands twice")
        if route.path_prefix is not None and not route.path_prefix.startswith("/"):
            raise ConfigError(f"routes[{index}].path_prefix: expected a path that starts with /")
        if route.models is not None and not route.models:
            raise ConfigError(
                f"routes[{index}].models: an empty list matches nothing; leave it out to match everything"
            )
        names.add(route.name)
    if "none" in names or (not config.routes and "none" in config.backends):
        raise ConfigError("the name `none` is what metrics call requests that match no route")


def _convert(tree: Any, type_: type[S], path: str) -> S:
    """*tree* as *type_*. Raises `ConfigError`: path of the key, reason, and the choices where there are some."""
    try:
        return msgspec.convert(tree, type_, dec_hook=_decode)
    except msgspec.ValidationError as error:
        reason, _, inner = str(error).partition(" - at `$")
    inner = inner.rstrip("`").lstrip(".").replace("[...]", "")
    where = ".".join(part for part in (path, inner) if part)
    value: Any = tree
    wanted: Any = type_
    for key in inner.split(".") if inner else ():
        fields = {item.name: item.type for item in msgspec.structs.fields(wanted)} if _is_struct(wanted) else {}
        value, wanted = (value.get(key), fields[key]) if isinstance(value, dict) and key in fields else (None, Any)
    choices = [str(choice) for choice in _choices(wanted)]
    if choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f", did you mean `{near[0]}`?" if near else ""
        reason = f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}{hint}"
    raise ConfigError(f"{where}: {reason}" if where else reason)


def _choices(type_: Any) -> tuple[Any, ...]:
    if isinstance(type_, type) and issubclass(type_, Enum):
        return tuple(item.value for item in type_)
    return typing.get_args(type_) if typing.get_origin(type_) is typing.Literal else ()


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)
