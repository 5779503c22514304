"""What the doctor is given beside the URL, as keys of the backend: headers, such as credentials, and files for TLS.

Values may come from outside, `${NAME}` and `${file:PATH}`, as in the configuration. No header's value that was typed
is ever printed. Not here: what is asked with them.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.certificates import TlsContext
from gateway.config import Backend, parse
from gateway.doctor.report import Setting, configuration
from gateway.errors import ConfigError

TLS_OPTIONS = {"ca": "--ca", "certificate": "--certificate", "key": "--key", "server_name": "--server-name"}
"""Keys of `tls`, and the options for them."""

_REFERENCE = re.compile(r"(?<!\$)\$\{")
_AT_KEY = re.compile(r"^backends\.default\.(?:headers\.set\.([^:]+)|tls\.(\w+))(?=:)", re.MULTILINE)


class Given(NamedTuple):
    """What stands on the command line."""

    headers: Sequence[str] = ()
    """Each `NAME: VALUE`."""
    tls: Mapping[str, str] = {}
    """Keys of `tls` with their values."""
    path: str | None = None
    """Where the server takes inferences, if it speaks no protocol."""
    sample: str | None = None
    """The file of a sample for `path`; None: the example in the server's `/openapi.json`."""

    def settings(self) -> dict[str, Setting]:
        """The keys of the backend for it. Raises `ConfigError`."""
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


def backend_of(url: str, settings: Mapping[str, Setting]) -> Backend:
    """The backend at *url* with *settings*. Raises `ConfigError` with the options in the place of keys."""
    try:
        return parse(configuration(url, settings, "127.0.0.1:0", "127.0.0.1:0", "")).backends["default"]
    except ConfigError as error:
        raise _in_options(error) from None


def tls_of(backend: Backend) -> TlsContext:
    """How *backend* is asked over TLS. Raises `ConfigError` with the options in the place of keys."""
    try:
        return TlsContext("backends.default.tls", backend.tls)
    except ConfigError as error:
        raise _in_options(error) from None


def _in_options(error: ConfigError) -> ConfigError:
    """*error* with the options in the place of the configuration's keys."""

    def option(match: re.Match[str]) -> str:
        return f"--header {match[1]}" if match[1] else TLS_OPTIONS.get(match[2], match[2])

    return ConfigError(_AT_KEY.sub(option, str(error)))
