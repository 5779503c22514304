"""The configuration from a file or text, for other processes, and as it may be shown."""

import os
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gateway.config.reading import HIDDEN, Inspected
from gateway.config.rules import ERRORS, WARNINGS
from gateway.config.schema import Config
from gateway.config.structure import join, walk
from gateway.config.values import FilePath, plain, read, shortened
from gateway.errors import ConfigError

_HEADER_VALUE = re.compile(r"(backends\..*\.headers\.set|tracing\.headers)\..*", re.DOTALL)


def inspect(path: Path) -> Inspected:
    """All that is right and wrong with the file *path*, and whether the files that its keys name can be read."""
    return _looked_closer_at(_read_file(path))


def inspect_bytes(content: bytes, file: str) -> Inspected:
    """`inspect` for *content* that came from elsewhere, *file* in messages; relative to the working directory."""
    return _looked_closer_at(_inspected(content, file, Path.cwd()))


def load(path: Path) -> Config:
    """The configuration in the file *path*. Raises `ConfigError`: for each error a line of file, line, key, reason.

    Files that keys name are not looked for: whoever reads them says what is wrong with them.
    """
    return _sound(_read_file(path))


def parse(text: str) -> Config:
    """The configuration in the YAML *text*; paths are relative to the working directory.

    Raises `ConfigError`: for each error a line of key and reason. Files that keys name are not looked for.
    """
    return _sound(_inspected(text.encode(errors="surrogatepass"), "", Path.cwd()))


def _sound(found: Inspected) -> Config:
    if found.config is None:
        raise ConfigError("\n".join(error.text(found.file) for error in found.errors))
    return found.config


def for_backend(endpoint: str, access: str = "json", **given: str | None) -> Config:
    """The configuration of `serve --backend`; *access* is `logging.access`.

    *given* are keys of the file with their values; None where there is none. Raises `ConfigError`, which names the
    options in place of keys.
    """
    tree = {key: value for key, value in given.items() if value is not None}
    backend = {"endpoints": [endpoint], "health": {}}
    try:
        return parse(yaml.safe_dump({"backends": {"default": backend}, "logging": {"access": access}, **tree}))
    except ConfigError as error:
        text = str(error).replace("backends.default.endpoints[0]: ", "backend: ")
        raise ConfigError(re.sub(r"^(?=(backend|listen|admin|grpc|workers): )", "--", text, flags=re.M)) from None


def encode(config: Config) -> bytes:
    """*config* as text for another process; `decode` reads exactly the same configuration from it."""
    return msgspec.json.encode(config, enc_hook=str)


def decode(text: bytes) -> Config:
    """The configuration that `encode` wrote."""
    return msgspec.json.decode(text, type=Config, dec_hook=lambda type_, value: read(type_, value, Path("/")))


def masked(config: Config) -> dict[str, Any]:
    """The configuration as plain values; values from outside and of all headers that are set are hidden."""
    tree: dict[str, Any] = msgspec.to_builtins(config, enc_hook=plain)
    del tree["hidden"]
    of_headers = (path for path, _ in walk(config) if _HEADER_VALUE.fullmatch(path))
    shown: dict[str, Any] = _masked(tree, "", {*config.hidden, *of_headers})
    return shown


def _masked(value: Any, path: str, hidden: set[str]) -> Any:
    if path in hidden:
        return HIDDEN
    if isinstance(value, dict):
        return {key: _masked(item, join(path, shortened(key)), hidden) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, f"{path}[{index}]", hidden) for index, item in enumerate(value)]
    return value


def _read_file(path: Path) -> Inspected:
    base = path.absolute().parent
    try:
        return _inspected(path.read_bytes(), str(path), base)
    except OSError as error:
        found = Inspected(str(path), base)
        found.fail("", f"cannot be read: {error.strerror}", 0)
        return found


def _inspected(content: bytes, file: str, base: Path) -> Inspected:
    """What *content* says and what is wrong with it, without warnings; paths are relative to the folder *base*."""
    found = Inspected(file, base)
    found.take(content)
    found.judge(ERRORS, found.errors, of_defaults=True)
    found.errors.sort(key=lambda error: error.line)
    return found


def _looked_closer_at(found: Inspected) -> Inspected:
    """Add warnings, and an error for each file that a key names and that is not there."""
    found.judge(WARNINGS, found.warnings, of_defaults=False)
    for key, value in walk(found.read):
        if isinstance(value, FilePath) and not os.path.isfile(value):
            found.add(found.errors, key, f"no such file: {value}")
    return found
