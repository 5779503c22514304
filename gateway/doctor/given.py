"""The doctor's options beside the URL, as keys of a backend: headers, such as credentials, and files for TLS.

Values may come from outside, `${NAME}` and `${file:PATH}`, as in the configuration. The value of a header that was
typed is never printed.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


def _headers(lines: Sequence[str]) -> Setting:
    values, printed, needed = {}, {}, []
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not name or not value:
            raise ConfigError("--header: expected 'NAME: VALUE', such as 'Authorization: Bearer ${TOKEN}'")
        values[name] = printed[name] = value
        if not _REFERENCE.search(value):
            needed.append(re.sub(r"\W", "_", name).upper())
            printed[name] = f"${{{needed[-1]}}}"
    why = "what was given: the gateway sends it for all clients. Without this key each client sends its own"
    if needed:
        why += f". The environment of the gateway must have {', '.join(needed)}: the whole value"
    return Setting({"set": values}, why, printed={"set": printed})


def endpoint_of(url: str, settings: Mapping[str, Setting]) -> tuple[Endpoint, Mapping[str, str]]:
    """The endpoint for *url* and the headers for it, by *settings*.

    Raises `ConfigError` where `check` would refuse the configuration, with options named in place of keys.
    """
    try:
        backend = parse(configuration(url, settings, "127.0.0.1:0", "127.0.0.1:0", "")).backends["default"]
        tls = TlsContext("backends.default.tls", backend.tls) if url.startswith("https:") else None
    except ConfigError as error:
        raise ConfigError(_AT_KEY.sub(_option, str(error))) from None
    return Endpoint.parse(url, tls), backend.headers.set


def _option(key: re.Match[str]) -> str:
    return f"--header {key[1]}" if key[1] else TLS_OPTIONS.get(key[2], key[2])
