"""The doctor's options beside the URL: headers, such as credentials, files for TLS, and a sample.

Values may come from outside, `${NAME}` and `${file:PATH}`, as in the configuration. The value of a header has to: the
doctor prints it, and what is typed stands in every list of processes.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gateway.backend.endpoints import Endpoint
from gateway.certificates import TlsContext
from gateway.config import parse
from gateway.doctor.report import Setting, configuration
from gateway.errors import ConfigError


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
        values = {}
        for line in self.headers:
            name, _, value = line.partition(":")
            if not name or "${" not in value:
                raise ConfigError(
                    "--header: expected 'NAME: VALUE' with a value from outside, such as 'Authorization: Bearer "
                    "${TOKEN}' or 'Authorization: Bearer ${file:PATH}'"
                )
            values[name.strip()] = value.strip()
        if values:
            why = "what was given: the gateway sends it for all clients. Without this key each client sends its own"
            found["headers"] = Setting({"set": values}, why)
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


def endpoint_of(url: str, settings: Mapping[str, Setting]) -> tuple[Endpoint, Mapping[str, str]]:
    """The endpoint for *url* and the headers for it, by *settings*.

    Raises `ConfigError` where `check` would refuse the configuration.
    """
    backend = parse(configuration(url, settings)).backends["default"]
    tls = TlsContext("tls", backend.tls) if url.startswith("https:") else None
    return Endpoint.parse(url, tls), backend.headers.set
