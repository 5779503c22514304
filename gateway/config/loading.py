"""Reading the configuration: one YAML file in, one frozen object out, or one line that says what is wrong.

Unknown keys are typing errors and stop the start, as do keys that are planned and not built yet: nothing is ignored
silently. A message never repeats credentials, and of a long value only the beginning. Not here: which keys there are
and what their values must satisfy (`schema`).
"""

import difflib
import math
import re
import types
import typing
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, Union
from urllib.parse import urlsplit

import msgspec
import yaml

from gateway.config.schema import (
    NOT_YET,
    SIZE_UNITS,
    Address,
    Backend,
    Config,
    Duration,
    Endpoint,
    Part,
    Problem,
    Size,
    shortened,
    shown,
)
from gateway.errors import ConfigError

MAX_NODES = 100_000
"""The most keys and values of a file, where each use of an alias (`*name`) counts as all that it stands for."""

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_DURATION_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_SIZE = re.compile(r"([0-9]{1,15})(B|KiB|MiB|GiB)")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[\w.:-]+):([0-9]{1,5})", re.ASCII)
_URL = re.compile(r"[\w.~:/\[\]@!$&'()*+,;=%?#-]+", re.ASCII)

S = TypeVar("S")


def load(path: Path) -> Config:
    """The configuration in the file *path*. Raises `ConfigError`: file, path of the key, reason."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(text: str) -> Config:
    """The configuration in the YAML *text*. Raises `ConfigError`: path of the key, reason."""
    tree = _read_yaml(text)
    if not isinstance(tree, dict):
        raise ConfigError("expected keys and values, such as `listen: 127.0.0.1:8080`")
    _check_keys(tree, Config, "", "")
    # each backend by itself first: msgspec's paths leave out the keys of a dict
    backends = tree.get("backends")
    for name, backend in backends.items() if isinstance(backends, dict) else ():
        _convert(backend, Backend, f"backends.{shortened(name)}")
    config = _convert(tree, Config, "")
    for path, reason in _problems(config):
        raise ConfigError(f"{path}: {reason}")
    return config


def for_backend(
    endpoint: str,
    listen: str | None = None,
    admin: str | None = None,
    access: str | None = None,
    workers: str | None = None,
) -> Config:
    """The configuration of `serve --backend`; *access* is `logging.access`. Raises `ConfigError`."""
    tree: dict[str, Any] = {"backends": {"default": {"endpoints": [endpoint]}}}
    tree |= {key: value for key, value in (("listen", listen), ("admin", admin)) if value is not None}
    if workers is not None:
        tree["workers"] = int(workers) if workers.isdecimal() else workers
    if access is not None:
        tree["logging"] = {"access": access}
    return parse(yaml.safe_dump(tree))


def encode(config: Config) -> bytes:
    """*config* as text for another process; `decode` reads exactly the same configuration from it."""
    return msgspec.json.encode(config, enc_hook=str)


def decode(text: bytes) -> Config:
    """The configuration that `encode` wrote."""
    return _convert(msgspec.json.decode(text), Config, "")


def masked(config: Config) -> dict[str, Any]:
    """The effective configuration as plain values, with the values of all headers that are set hidden."""
    tree: dict[str, Any] = msgspec.to_builtins(config, enc_hook=str)
    for name, backend in tree["backends"].items():
        backend["headers"]["set"] = dict.fromkeys(backend["headers"]["set"], "***")
        backend["max_connections"] = config.max_connections(name)
    return tree


def _read_yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506  a safe loader, see below
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise ConfigError(f"{where}not YAML: {shortened(str(error.problem))}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {shortened(str(error).partition(chr(10))[0])}") from None
    except ValueError as error:  # a date that does not exist, a number of thousands of digits
        raise ConfigError(f"not YAML: invalid value: {shortened(str(error))}") from None
    except RecursionError:
        raise ConfigError("not YAML: nested too deep") from None


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which also refuses duplicate keys and aliases that stand for too much."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._n_nodes = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Count what is read. A few lines of aliases of aliases can stand for more than fits into any memory."""
        is_alias = self.check_event(yaml.events.AliasEvent)
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        before = self._n_nodes
        node = super().compose_node(parent, index)
        # an alias inside of what it stands for has no size yet, and would have no end
        self._n_nodes += self._sizes.get(id(node), MAX_NODES) if is_alias else 1
        if self._n_nodes > MAX_NODES:
            reason = f"more than {MAX_NODES} keys and values, counting what aliases stand for"
            raise yaml.composer.ComposerError(None, None, reason, mark)
        if not is_alias:
            self._sizes[id(node)] = self._n_nodes - before
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that stands twice; PyYAML would take the last one."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                reason = f"expected a key that is text, got {shown(key)}"
                raise yaml.constructor.ConstructorError(None, None, reason, key_node.start_mark)
            if key in seen:
                reason = f"duplicate key `{shortened(key)}`"
                raise yaml.constructor.ConstructorError(None, None, reason, key_node.start_mark)
            seen.add(key)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _check_keys(tree: Any, type_: Any, path: str, pattern: str) -> None:
    """Refuse keys that *type_* does not have, with the path and the nearest name; and what is not built yet."""
    if isinstance(tree, str) and ("${" in tree or (path, tree) == ("workers", "auto")):
        what = "values from outside, `${...}`," if "${" in tree else "`auto`"
        raise ConfigError(f"{path}: {what} not available yet")
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
            _check_keys(item, typing.get_args(type_)[1], f"{prefix}{shortened(key)}", f"{pattern}*")
    elif _is_struct(type_):
        fields = {item.encode_name: item.type for item in msgspec.structs.fields(type_)}
        for key, item in tree.items():
            name = shortened(key)
            if f"{pattern}{key}" in NOT_YET:
                raise ConfigError(f"{prefix}{name}: not available yet")
            if key not in fields:
                near = difflib.get_close_matches(name, fields, n=1)
                hint = f", did you mean `{near[0]}`?" if near else f"; known are {', '.join(fields)}"
                raise ConfigError(f"{prefix}{name}: unknown key{hint}")
            _check_keys(item, fields[key], f"{prefix}{name}", f"{pattern}{key}")


def _problems(value: Any, path: str = "") -> Iterator[Problem]:
    """What the structs in *value* say about themselves, inner ones first, with the path from the top."""
    prefix = f"{path}." if path else ""
    if isinstance(value, Part):
        for key in value.__struct_fields__:
            yield from _problems(getattr(value, key), f"{prefix}{key.removesuffix('_')}")
        for key, reason in value.problems():
            yield f"{prefix}{shortened(key)}", reason
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _problems(item, f"{prefix}{shortened(key)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _problems(item, f"{path}[{index}]")


def _converted(type_: type, value: Any) -> Any:
    """Values that YAML does not have, from their text."""
    if type_ is Duration:
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        # exact in decimal, and rounded once: what `Duration.__str__` writes is read back unchanged
        seconds = float(Decimal(match[1]) * _DURATION_UNITS[match[2]]) if match is not None else math.inf
        if not math.isfinite(seconds):
            raise ValueError(f"expected a duration with a unit, such as 250ms, 2s or 5m, got {shown(value)}")
        return Duration(seconds)
    if type_ is Size:
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"expected a size with a unit, such as 64KiB, 256MiB or 1GiB, got {shown(value)}")
        return Size(int(match[1]) * SIZE_UNITS[match[2]])
    if type_ is Address:
        if isinstance(value, str) and value.startswith("unix:/"):
            return Address(value)
        match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
        if match is None or int(match[1]) > 65535:
            expected = "expected host:port, such as 127.0.0.1:8080, or unix:/path"
            raise ValueError(f"{expected}, got {shown(value)}")
        return Address(value)
    if type_ is Endpoint:
        return _endpoint(value)
    raise NotImplementedError(type_)


def _endpoint(value: Any) -> Endpoint:
    expected = "expected a URL of scheme, host and port, such as http://127.0.0.1:8000"
    try:
        url = urlsplit(value if isinstance(value, str) else "")
        is_port_valid = url.port is None or url.port > 0
    except ValueError:
        raise ValueError(f"{expected}, got {shown(value)}") from None
    if url.scheme not in ("http", "https") or not url.hostname or not is_port_valid or not _URL.fullmatch(value):
        raise ValueError(f"{expected}, got {shown(value)}")
    if url.username is not None or url.query or url.fragment:
        raise ValueError(f"{expected}, without user, query and fragment (credentials go to `headers.set`)")
    return Endpoint(value.rstrip("/"))


def _convert(tree: Any, type_: type[S], path: str) -> S:
    """*tree* as *type_*. Raises `ConfigError`: path of the key, reason, and the choices where there are some."""
    try:
        return msgspec.convert(tree, type_, dec_hook=_converted)
    except msgspec.ValidationError as error:
        reason, _, inner = str(error).partition(" - at `$")
    inner = inner.rstrip("`").lstrip(".").replace("[...]", "")
    where = ".".join(part for part in (path, inner) if part)
    value: Any = tree
    wanted: Any = type_
    for key in inner.split(".") if inner else ():
        fields = {item.encode_name: item.type for item in msgspec.structs.fields(wanted)} if _is_struct(wanted) else {}
        value, wanted = (value.get(key), fields[key]) if isinstance(value, dict) and key in fields else (None, Any)
    choices = [str(choice) for choice in _choices(wanted)]
    if choices:
        near = difflib.get_close_matches(shortened(str(value)), choices, n=1) if isinstance(value, str) else []
        hint = f", did you mean `{near[0]}`?" if near else ""
        reason = f"expected {', '.join(choices[:-1])} or {choices[-1]}, got {shown(value)}{hint}"
    raise ConfigError(f"{where}: {reason}" if where else reason)


def _choices(type_: Any) -> tuple[Any, ...]:
    if isinstance(type_, type) and issubclass(type_, Enum):
        return tuple(item.value for item in type_)
    return typing.get_args(type_) if typing.get_origin(type_) is typing.Literal else ()


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)
