"""TLS contexts from PEM files, made anew when the files change.

The configuration's certificates and keys are read here, with an explanation in words for each that cannot be used. Not
here: handshakes and connections (`tls`), and which connection uses which context (`client`, `backend`).
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from gateway.config import BackendTls, Config, ListenerTls
from gateway.config.outside import read_file
from gateway.errors import ConfigError

LOOK_S = 3.0
"""How often the files are checked. A changed file is read once it has stayed the same until the next check, so that a
certificate is not read before its key is written, too: within ten seconds."""

MAX_PEM_BYTES = 16 * 1024**2
"""The largest file that is read; a system's collection of authorities has some 200 KiB."""

HTTP1, HTTP2 = "http/1.1", "h2"
"""The protocols above TLS, by their names in the handshake (ALPN)."""

_NO_CERTIFICATE = "holds no certificate in PEM form, or a damaged one"

log = logging.getLogger("gateway")

Settings = ListenerTls | BackendTls
Stamp = tuple[int, int, int, int] | None
"""Device, inode, time of change and size of a file, with links followed; None if it cannot be found."""


class TlsContext:
    """The TLS of one place in the configuration: `tls`, or `backends.NAME.tls`.

    New connections take one of `contexts`; open connections keep the context that they began with.
    """

    contexts: dict[str, ssl.SSLContext]
    """The contexts for handshakes that begin now, by the protocol above TLS."""
    expires_at: datetime | None
    """When the gateway's own certificate expires; None if it has none."""

    def __init__(self, where: str, settings: Settings) -> None:
        """*where* is the path of *settings* in the configuration. Raises `ConfigError`."""
        self.where = where
        self.settings = settings
        self._last_seen = self._stamps()
        self._load()

    @property
    def server_name(self) -> str | None:
        """The server's name for the handshake and in its certificate, if the configuration sets it."""
        return self.settings.server_name if isinstance(self.settings, BackendTls) else None

    @classmethod
    def following(cls, before: "TlsContext | None", where: str, settings: Settings | None) -> "TlsContext | None":
        """For a reload: *before*, with changed files read again, if the settings are the same; else a new context.

        None without *settings*. Raises `ConfigError`.
        """
        if settings is None:
            return None
        if before is None or before.settings != settings:
            return cls(where, settings)
        if before._stamps() != before._loaded:
            before._load()
        return before

    def look(self) -> None:
        """Read files that have changed, and have stayed the same since the last look; blocks while it reads.

        If they cannot be used, the certificates read before stay in use, and one error is logged.
        """
        stamps = self._stamps()
        before, self._last_seen = self._last_seen, stamps
        if stamps == self._judged or stamps != before:
            return
        try:
            self._load()
        except ConfigError as error:
            log.error("%s; the certificates that were read before stay in use", error)
            return
        until = f", valid until {self.expires_at:%Y-%m-%d}" if self.expires_at is not None else ""
        log.info("%s: changed files were read again%s", self.where, until)

    def _load(self) -> None:
        """Read the files. Raises `ConfigError`, and the contexts stay as they were."""
        # stamps are taken before reading: a file that changes meanwhile is seen at the next look
        self._judged = stamps = self._stamps()
        protocols = (HTTP1, HTTP2) if isinstance(self.settings, ListenerTls) else (HTTP1,)
        self.contexts = {protocol: _context(self.where, self.settings, protocol) for protocol in protocols}
        self.expires_at = _expiry(self.settings)
        self._loaded = stamps

    def _stamps(self) -> list[Stamp]:
        paths = [getattr(self.settings, key, None) for key in ("certificate", "key", "ca", "client_ca")]
        return [_stamp(path) for path in paths if path is not None]


async def watch(contexts: Callable[[], Iterable[TlsContext | None]]) -> None:
    """Every `LOOK_S` look at the files of all current *contexts*, until this is cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        for context in list(contexts()):
            if context is not None:
                try:
                    # in a thread: disks can be slow, and reading the system's authorities takes tens of milliseconds
                    await asyncio.to_thread(context.look)
                except Exception:  # must not end the task: all files are looked at again in `LOOK_S`
                    log.exception("%s: the files could not be looked at", context.where)


def tls_settings(config: Config) -> Iterator[tuple[str, Settings]]:
    """The path and the settings of each use of TLS in *config*. A backend without https uses none."""
    if config.tls is not None:
        yield "tls", config.tls
    for name, backend in config.backends.items():
        if uses_tls(backend.endpoints):
            yield f"backends.{name}.tls", backend.tls


def uses_tls(endpoints: Iterable[str]) -> bool:
    """Whether one of the *endpoints* is reached with https."""
    return any(endpoint.startswith("https:") for endpoint in endpoints)


def tls_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Read all TLS files of *config*; for each that cannot be used the path of its key, and the reason."""
    for where, settings in tls_settings(config):
        try:
            _context(where, settings)
        except ConfigError as error:
            path, _, reason = str(error).partition(": ")
            yield path, reason


def tls_warnings(config: Config, now: datetime | None = None) -> Iterator[tuple[str, str]]:
    """The gateway's own certificates that have expired by *now* (with a zone): the path of the key, and the reason."""
    for where, settings in tls_settings(config):
        expires_at = _expiry(settings)
        if expires_at is not None and expires_at <= (now or datetime.now(UTC)):
            yield f"{where}.certificate", f"{settings.certificate}: the certificate expired on {expires_at:%Y-%m-%d}"


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _context(where: str, settings: Settings, protocol: str = HTTP1) -> ssl.SSLContext:
    """The context for *settings*. Raises `ConfigError` with the path of the key, the file, and the reason."""
    is_listener = isinstance(settings, ListenerTls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_listener else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([protocol])
    _load_own(context, where, settings)
    if isinstance(settings, ListenerTls):
        if settings.client_ca is not None:
            _load_authorities(context, f"{where}.client_ca", settings.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    elif not settings.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif settings.ca is not None:
        _load_authorities(context, f"{where}.ca", settings.ca)
    else:
        context.load_default_certs()  # the system's authorities, or those that SSL_CERT_FILE and SSL_CERT_DIR name
    return context


def _load_own(context: ssl.SSLContext, where: str, settings: Settings) -> None:
    """Load the gateway's own certificate and its key, if there are any."""
    certificate, key = settings.certificate, settings.key
    if certificate is None or key is None:  # the schema wants both or none
        return
    of_certificate, of_key = f"{where}.certificate: {certificate}", f"{where}.key: {key}"
    _check_readable(of_certificate, certificate)
    _check_readable(of_key, key)
    if not _decoded(certificate):
        raise ConfigError(f"{of_certificate}: {_NO_CERTIFICATE}")
    try:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks for one at the terminal
    except (OSError, ValueError) as error:
        reason = _words(error)
        if reason in ("key values mismatch", "key type mismatch"):
            raise ConfigError(f"{of_key}: does not belong to the certificate in {certificate}") from None
        expected = "expected a private key in PEM form without a passphrase (openssl pkey -in FILE -out FILE)"
        raise ConfigError(f"{of_key}: cannot be used: {reason}; {expected}") from None


def _load_authorities(context: ssl.SSLContext, where: str, path: str) -> None:
    """Trust the certificates in the file *path*, also one that is no root, or that is the other side's own."""
    _check_readable(f"{where}: {path}", path)
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {path}: {_NO_CERTIFICATE}: {_words(error)}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _check_readable(where: str, path: str) -> None:
    """Raise `ConfigError`, which begins with *where*, if the file *path* cannot be read."""
    try:
        read_file(Path(path), MAX_PEM_BYTES)
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from None


def _words(error: Exception) -> str:
    """The reason of *error*, without any content of the file."""
    reason = getattr(error, "reason", None)
    return reason.replace("_", " ").lower() if isinstance(reason, str) else "malformed"


def _decoded(path: str) -> dict[str, object]:
    """The fields of the first certificate in the file *path*; empty if no certificate can be read.

    Python's public functions decode only the certificates of connections.
    """
    try:
        read_file(Path(path), MAX_PEM_BYTES)  # refuses a pipe, for which OpenSSL would wait
        return dict(ssl._ssl._test_decode_cert(path))  # type: ignore[attr-defined]
    except (OSError, ValueError):
        return {}


def _expiry(settings: Settings) -> datetime | None:
    """When the gateway's own certificate expires; None if it has none, or one that cannot be read."""
    return None if settings.certificate is None else expiry_of(_decoded(settings.certificate))


def expiry_of(decoded: dict[str, object]) -> datetime | None:
    """When a certificate expires, from its *decoded* fields; None if they do not say."""
    not_after = decoded.get("notAfter")
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(not_after), UTC) if isinstance(not_after, str) else None
