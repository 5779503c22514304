"""The doctor's options beside the URL: headers, such as credentials, files for TLS, and a sample.

Values may come from outside, `${NAME}` and `${file:PATH}`, as in the configuration. The value of a header that was
typed is never printed: it becomes a variable of this process's environment.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway.backend.endpoints import Endpoint
from gateway.certificates import TlsContext
from gateway.config import parse
from gateway.doctor.report import Setting, configuration
from gateway.errors import ConfigError

TLS_OPTIONS = {"ca": "--ca", "certificate": "--certificate", "key": "--key", "server_name": "--server-name"}
"""Keys of `tls`, and the options for them."""

_REFERENCE = re.compile(r"(?<!\$)\$\{")
_AT_KEY = re.compile(r"^backends\.default\.(?:headers\.set\.([^:]+)|tls\.(\w+))(?=:)", re.MULTILINE)


class Given(NamedTuple):
    """The options on the command line."""

    headers: Sequence[str] = ()
    """Each `NAME: VALUE`."""
    tls: Mapping[str, str] = {}
    """Keys of `tls` with their values."""
    path: str | None = None
    """Where the server takes inferences, if it speaks no protocol."""
    sample: str | None = None
    """The file of a sample for `path`; None: the example in the server's `/openapi.json`."""

    def settings(self) -> dict[str, Setting]:
        """The backend's keys for these options. Raises `ConfigError`."""
        found = {}
        if self.headers:
            found["headers"] = _headers(self.headers)
        if self.tls:
            found["tls"] = Setting(dict(self.tls), "as it was given; paths are relative to this file")
        return found

    def document(self) -> Any:
        """The JSON in the file of the sample; None without a file. Raises `ConfigError`."""
        if self.path is not None and not self.path.startswith("/"):
            raise ConfigError(f"--path {self.path}: expected a path that starts with /, such as /predict")
        if self.sample is None:
            return None
        if self.path is None:
            raise ConfigError("--sample: goes with --path, the path that the sample is posted to")
        try:
            document = json.loads(Path(self.sample).read_bytes())
            json.dumps(document, ensure_ascii=False).encode()  # raises for half a surrogate pair, which is no text
            return document
        except OSError as error:
            raise ConfigError(f"--sample {self.sample}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"--sample {self.sample}: not JSON: {error}") from None


def _headers(lines: Sequence[str]) -> Setting:
    values, typed = {}, []
    for line in lines:
        name, value = (part.strip() for part in (*line.split(":", 1), "")[:2])
        if not name or not value:
            raise ConfigError("--header: expected 'NAME: VALUE', such as 'Authorization: Bearer ${TOKEN}'")
        if not _REFERENCE.search(value):
            typed.append(re.sub(r"\W", "_", name).upper())
            os.environ[typed[-1]] = value
            value = f"${{{typed[-1]}}}"
        values[name] = value
    why = "what was given: the gateway sends it for all clients. Without this key each client sends its own"
    if typed:
        why += f". The environment of the gateway must have {', '.join(typed)}: the whole value"
    return Setting({"set": values}, why)


def endpoint_of(url: str, settings: Mapping[str, Setting]) -> tuple[Endpoint, Mapping[str, str]]:
    """The endpoint for *url* and the headers for it, by *settings*.

    Raises `ConfigError` where `check` would refuse the configuration, with options named in place of keys.
    """
    try:
        backend = parse(configuration(url, settings)).backends["default"]
        tls = TlsContext("backends.default.tls", backend.tls) if url.startswith("https:") else None
    except ConfigError as error:
        raise ConfigError(_AT_KEY.sub(_option, str(error))) from None
    return Endpoint.parse(url, tls), backend.headers.set


def _option(key: re.Match[str]) -> str:
    return f"--header {key[1]}" if key[1] else TLS_OPTIONS.get(key[2], key[2])
