"""The configuration from a file or text, for other processes, and as it may be shown.

Not here: how text is read (`reading`), which keys there are and what their values must satisfy (`schema`).
"""

import os
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.config.findings import HIDDEN, Finding, Inspected
from gateway.config.reading import MAX_FINDINGS, inspected
from gateway.config.rules import check
from gateway.config.schema import Config
from gateway.config.structure import walk
from gateway.config.values import FilePath, plain, read, shortened
from gateway.config.warnings import WARNINGS
from gateway.config.yaml_nodes import MAX_FILE_BYTES
from gateway.errors import ConfigError


def inspect(path: Path) -> Inspected:
    """All that is right and wrong with the file *path*, and whether the files that its keys name can be read."""
    return _looked_closer_at(_read_file(path))


def inspect_bytes(content: bytes, file: str) -> Inspected:
    """`inspect` for *content* that came from elsewhere, *file* in messages; relative to the working directory."""
    return _looked_closer_at(inspected(content, file, Path.cwd()))


def load(path: Path) -> Config:
    """The configuration in the file *path*. Raises `ConfigError`: for each error a line of file, line, key, reason.

    Files that keys name are not looked for: whoever reads them says what is wrong with them.
    """
    return _sound(_read_file(path))


def parse(text: str) -> Config:
    """The configuration in the YAML *text*; paths are relative to the working directory.

    Raises `ConfigError`: for each error a line of key and reason. Files that keys name are not looked for.
    """
    return _sound(inspected(text.encode(errors="surrogatepass"), "", Path.cwd()))


def _sound(found: Inspected) -> Config:
    if found.config is None:
        raise ConfigError("\n".join(error.text(found.file) for error in found.errors))
    return found.config


def for_backend(endpoint: str, access: str = "json", **given: str | None) -> Config:
    """The configuration of `serve --backend`; *access* is `logging.access`. Raises `ConfigError`.

    *given* are keys of the file with their values; None where there is none.
    """
    tree = {key: value for key, value in given.items() if value is not None}
    backend = {"endpoints": [endpoint], "health": {}}
    return parse(yaml.safe_dump({"backends": {"default": backend}, "logging": {"access": access}, **tree}))


def encode(config: Config) -> bytes:
    """*config* as text for another process; `decode` reads exactly the same configuration from it."""
    return msgspec.json.encode(config, enc_hook=str)


def decode(text: bytes) -> Config:
    """The configuration that `encode` wrote."""
    return msgspec.json.decode(text, type=Config, dec_hook=lambda type_, value: read(type_, value, Path("/")))


def masked(config: Config) -> dict[str, Any]:
    """The effective configuration as plain values; values from outside and of all headers that are set are hidden."""
    tree: dict[str, Any] = msgspec.to_builtins(config, enc_hook=plain)
    del tree["hidden"]
    hidden = set(config.hidden)
    if config.tracing is not None:
        tree["tracing"]["headers"] = dict.fromkeys(config.tracing.headers, HIDDEN)
    for name, backend in tree["backends"].items():
        backend["headers"]["set"] = dict.fromkeys(backend["headers"]["set"], HIDDEN)
        if backend["max_connections"] is None:
            is_hidden = "limits.concurrent_requests" in hidden
            backend["max_connections"] = HIDDEN if is_hidden else config.max_connections(name)
    return {key: _masked(value, shortened(key), hidden) for key, value in tree.items()}


def _masked(value: Any, path: str, hidden: set[str]) -> Any:
    if path in hidden:
        return HIDDEN
    if isinstance(value, dict):
        return {key: _masked(item, f"{path}.{shortened(key)}", hidden) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, f"{path}[{index}]", hidden) for index, item in enumerate(value)]
    return value


def _read_file(path: Path) -> Inspected:
    try:
        with path.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return Inspected(str(path), errors=[Finding(0, "", f"cannot be read: {error.strerror}")])
    return inspected(content, str(path), path.absolute().parent)


def _looked_closer_at(found: Inspected) -> Inspected:
    """Add warnings, and an error for each file that a key names and that is not there.

    What such a file holds is judged by whoever reads it.
    """
    for key, reason in check(WARNINGS, found.read):
        if key in found.lines and len(found.warnings) < MAX_FINDINGS:  # a default is not warned of
            found.add(found.warnings, key, reason)
    for key, value in walk(found.read):
        if isinstance(value, FilePath) and not os.path.isfile(value):
            found.add(found.errors, key, f"no such file: {value}")
    return found
