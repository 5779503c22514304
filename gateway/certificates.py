"""TLS contexts from PEM files, made anew when the files change.

The configuration's certificates and keys are read here, with an explanation in words for each that cannot be used. Not
here: handshakes and connections (`tls`), and which connection uses which context (`client`, `backend`).
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from gateway.config import BackendTls, Config, ListenerTls
from gateway.config.outside import read_file
from gateway.errors import ConfigError

LOOK_S = 3.0
"""How often the files are checked. A changed file is read once it has stayed the same until the next check, so that a
certificate is not read before its key is written, too: within ten seconds."""

MAX_PEM_BYTES = 16 * 1024**2
"""The largest file that is read; a system's collection of authorities has some 200 KiB."""

EXPIRES_SOON_S = 14 * 24 * 3600.0
"""How long before its end a certificate is a problem."""

HTTP1, HTTP2 = "http/1.1", "h2"
"""The protocols above TLS, by their names in the handshake (ALPN)."""

log = logging.getLogger("gateway")

Settings = ListenerTls | BackendTls


class TlsContext:
    """The TLS of one place in the configuration: `tls`, or `backends.NAME.tls`.

    New connections take one of `contexts`; open connections keep the context that they began with.
    """

    contexts: dict[str, ssl.SSLContext]
    """The contexts for handshakes that begin now, by the protocol above TLS."""
    expires_s: float | None
    """When the gateway's own certificate expires, in seconds since 1970; None if it has none."""

    def __init__(self, where: str, settings: Settings) -> None:
        """*where* is the path of *settings* in the configuration. Raises `ConfigError`."""
        self.where = where
        self.settings = settings
        self._last_seen = self._stamps()
        self._load()

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
        log.info("%s: changed files were read again", self.where)

    def _load(self) -> None:
        """Read the files. Raises `ConfigError`, and the contexts stay as they were."""
        # stamps are taken before reading: a file that changes meanwhile is seen at the next look
        self._judged = stamps = self._stamps()
        protocols = (HTTP1, HTTP2) if isinstance(self.settings, ListenerTls) else (HTTP1,)
        self.contexts = {protocol: _context(self.where, self.settings, protocol) for protocol in protocols}
        self.expires_s = times[1] if (times := _times_of_own(self.settings)) is not None else None
        self._loaded = stamps

    def _stamps(self) -> list[tuple[int, ...] | None]:
        paths = [getattr(self.settings, key, None) for key in ("certificate", "key", "ca", "client_ca")]
        return [_stamp(path) for path in paths if path is not None]


async def watch(contexts: Callable[[], Iterable[TlsContext | None]]) -> None:
    """Every `LOOK_S` look at the files of all current *contexts*, until this is cancelled."""
    while True:
        await asyncio.sleep(LOOK_S)
        for context in [each for each in contexts() if each is not None]:
            try:
                # in a thread: disks can be slow, and reading the system's authorities takes tens of milliseconds
                await asyncio.to_thread(context.look)
            except Exception:  # must not end the task: all files are looked at again in `LOOK_S`
                log.exception("%s: the files could not be looked at", context.where)


def uses_tls(endpoints: Iterable[str]) -> bool:
    """Whether one of the *endpoints* is reached with https."""
    return any(endpoint.startswith("https:") for endpoint in endpoints)


def tls_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Read all TLS files that *config* uses; for each that cannot be used the path of its key, and the reason."""
    for where, settings in _used(config).items():
        try:
            _context(where, settings)
        except ConfigError as error:
            path, _, reason = str(error).partition(": ")
            yield path, reason


def _used(config: Config) -> dict[str, Settings]:
    """The settings of TLS that *config* uses, by their paths in it."""
    used: dict[str, Settings] = {"tls": config.tls} if config.tls is not None else {}
    used |= {f"backends.{name}.tls": each.tls for name, each in config.backends.items() if uses_tls(each.endpoints)}
    return used


def tls_warnings(config: Config) -> Iterator[tuple[str, str]]:
    """Which of the gateway's certificates are not valid now, or not for long: the path of the key, and the reason."""
    for where, settings in _used(config).items():
        if (times := _times_of_own(settings)) is not None:
            begins_s, left_s = (time_s - time.time() for time_s in times)
            if words := "is not valid yet" if begins_s > 0 else expiry_words(left_s):
                yield f"{where}.certificate", f"the certificate {words}"


def expiry_words(left_s: float) -> str:
    """What has to be said of a certificate that expires in *left_s* seconds, behind its name; empty if nothing has."""
    if left_s <= 0:
        return "has expired"
    return f"expires in {left_s / 86400:.1f} days" if left_s < EXPIRES_SOON_S else ""


def _stamp(path: str) -> tuple[int, ...] | None:
    """Device, inode, time of change and size of a file, with links followed; None if it cannot be found."""
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
    _check_readable(f"{where}.certificate: {certificate}", certificate)
    _check_readable(f"{where}.key: {key}", key)
    try:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL asks for one at the terminal
    except (OSError, ValueError) as error:
        expected = "expected a certificate and its private key in PEM form, the key without a passphrase"
        raise ConfigError(
            f"{where}.key: {key}: cannot be used with {certificate}: {_words(error)}; {expected}"
        ) from None


def _load_authorities(context: ssl.SSLContext, where: str, path: str) -> None:
    """Trust the certificates in the file *path*, also one that is no root, or that is the other side's own."""
    _check_readable(f"{where}: {path}", path)
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        expected = "expected certificates in PEM form"
        raise ConfigError(f"{where}: {path}: cannot be used: {_words(error)}; {expected}") from None
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


def _times_of_own(settings: Settings) -> tuple[float, float] | None:
    """When the gateway's own certificate begins and ends; None if it has none, or one that cannot be read any more."""
    if settings.certificate is not None:
        with suppress(OSError, ValueError):
            # Python's public functions decode only the certificates of connections
            fields = ssl._ssl._test_decode_cert(settings.certificate)  # type: ignore[attr-defined]
            return ssl.cert_time_to_seconds(fields["notBefore"]), ssl.cert_time_to_seconds(fields["notAfter"])
    return None
