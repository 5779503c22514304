"""TLS over asyncio's transports: handshakes of both sides, and words that say why a handshake failed.

All uses of private parts of asyncio's TLS are in this file. Its class is used as it is, except where a proxy must know
more or act differently, see `TlsLayer`. tests/backend/test_tls.py fails if a new Python has changed a part used here.
"""

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any

from gateway.certificates import HTTP1, TlsContext

SHUTDOWN_S = 1.0
"""How long the other side may take to confirm the end of a connection."""

READ_BYTES = 256 * 1024
"""How much is read from a socket at once."""

_RECORD_BYTES = 16 * 1024  # the longest record's content (RFC 8446 section 5.1)
_RECORD_HEAD_BYTES = 5

_SHARED = memoryview(bytearray(READ_BYTES))

# Alerts of a server that refuses the gateway's certificate, or that requires one (RFC 8446 section 6.2).
_REFUSED = (
    "ACCESS_DENIED BAD_CERTIFICATE CERTIFICATE_EXPIRED CERTIFICATE_REQUIRED CERTIFICATE_REVOKED CERTIFICATE_UNKNOWN "
    "DECRYPT_ERROR HANDSHAKE_FAILURE UNKNOWN_CA UNSUPPORTED_CERTIFICATE"
)
# OpenSSL's reasons for bytes that are no TLS handshake.
_NO_TLS = "HTTP_REQUEST PACKET_LENGTH_TOO_LONG RECORD_LAYER_FAILURE UNKNOWN_PROTOCOL WRONG_VERSION_NUMBER"

# OpenSSL's codes of the reasons not to accept a certificate (X509_V_ERR_...), and what to do about them.
_NOT_ACCEPTED = (
    ((2, 18, 19, 20, 21), "; set {where}.ca to the file of its authority"),
    ((62, 63, 64), "; if another name is right, set {where}.server_name"),
)


class TlsLayer(SSLProtocol):
    """One connection's TLS, between the socket's transport and a protocol.

    It differs from asyncio's class in five points. `on_closing` is called before the socket closes. `is_at_rest` says
    whether bytes wait in it. An alert is sent before a failed handshake closes the connection. A reply that is being
    sent when the connection is to be closed is sent to its end. All connections read into one buffer, where asyncio
    has 256 KiB for each.
    """

    max_size = _RECORD_BYTES

    # attributes of asyncio's class
    _incoming: ssl.MemoryBIO
    _sslobj: ssl.SSLObject
    _ssl_shutdown_timeout: float

    def __init__(
        self, *arguments: Any, on_closing: Callable[[BaseException | None], None] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        # one event loop serves all connections, and copies each piece before it reads the next
        self._ssl_buffer_view = self._ssl_buffer = _SHARED
        self.on_closing = on_closing
        """Called before the socket closes, so that its counters can still be read."""
        self.version: str | None = None
        """The version of TLS after the handshake, such as `TLSv1.3`."""
        self._record_head = b""
        self._record_left = 0

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing waits in either direction, not even a part of a record."""
        return not (self._record_head or self._record_left or self._incoming.pending or self._get_write_buffer_size())

    @property
    def has_ended(self) -> bool:
        """Whether the other side has announced the end of its stream; valid once everything before it was read."""
        try:
            return self._sslobj.read(1) == b""
        except ssl.SSLZeroReturnError:  # the end as well, raised once this side has announced its own end, too
            return True
        except ssl.SSLError:
            return False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. The socket is kept in `_extra`, since asyncio's TLS, unlike TCP, forgets it when it closes."""
        self._extra["socket"] = transport.get_extra_info("socket")
        super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt, and keep track of where records begin and end, for `is_at_rest`. See asyncio."""
        at = 0
        while at < nbytes:
            if self._record_left:
                step = min(self._record_left, nbytes - at)
                self._record_left -= step
            else:
                step = min(_RECORD_HEAD_BYTES - len(self._record_head), nbytes - at)
                self._record_head += bytes(_SHARED[at : at + step])
                if len(self._record_head) == _RECORD_HEAD_BYTES:
                    self._record_left = int.from_bytes(self._record_head[3:], "big")
                    self._record_head = b""
            at += step
        super().buffer_updated(nbytes)

    def decrypt(self, data: bytes) -> None:
        """Take *data*, at most `READ_BYTES`, that was read from the socket directly and not by its transport."""
        _SHARED[: len(data)] = data
        self.buffer_updated(len(data))

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio, which would tell the protocol only after the socket is closed."""
        if self.on_closing is not None:
            self.on_closing(exc)
        super().connection_lost(exc)

    def _on_handshake_complete(self, handshake_exc: BaseException | None) -> None:
        self.version = self._sslobj.version()
        if isinstance(handshake_exc, ssl.SSLError):
            self._process_outgoing()  # type: ignore[attr-defined]  # the alert that says why
        super()._on_handshake_complete(handshake_exc)

    def _check_shutdown_timeout(self) -> None:
        if self._get_write_buffer_size():  # the other side reads slowly, which its own limits bound
            self._shutdown_timeout_handle = self._loop.call_later(
                self._ssl_shutdown_timeout, self._check_shutdown_timeout
            )
        else:
            super()._check_shutdown_timeout()  # type: ignore[misc]

    def _get_write_buffer_size(self) -> int:
        """How many bytes wait to be sent, also in the transport below TLS."""
        n_bytes: int = super()._get_write_buffer_size()  # type: ignore[misc]
        if self._transport is not None:
            n_bytes += self._transport.get_write_buffer_size()  # type: ignore[attr-defined]
        return n_bytes


async def accept(client: Any, protocol: asyncio.Protocol, context: ssl.SSLContext, timeout_s: float) -> None:
    """Do the handshake on the accepted socket *client*; afterwards *protocol*'s `connection_made` is called.

    Raises `OSError` if the handshake fails, and its subclass `TimeoutError` if it takes longer than *timeout_s*.
    """
    async with asyncio.timeout(timeout_s):
        # asyncio's own timer, which ends a handshake without saying why, must not be the first
        longer_s = timeout_s + SHUTDOWN_S
        await _shake_hands(client, protocol, context, server_side=True, ssl_handshake_timeout=longer_s)


async def connect(
    server: Any,
    protocol: asyncio.Protocol,
    tls: TlsContext,
    name: str,
    on_closing: Callable[[BaseException | None], None],
) -> TlsLayer:
    """Speak TLS as a client over the connected socket *server*, to the server that is called *name*.

    The configuration's `server_name` takes precedence over *name*. *on_closing* is called before the socket closes.
    Raises `OSError`, whose message says why the handshake failed.
    """
    expected, context = getattr(tls.settings, "server_name", None) or name, tls.contexts[HTTP1]
    try:
        return await _shake_hands(server, protocol, context, on_closing=on_closing, server_hostname=expected)
    except ssl.SSLError as error:
        raise OSError(_why(error, tls.where)) from None
    except ConnectionError as error:
        raise OSError(f"it closed the connection in the TLS handshake ({type(error).__name__})") from None


async def _shake_hands(sock: Any, protocol: asyncio.Protocol, context: ssl.SSLContext, **options: Any) -> TlsLayer:
    """Put TLS between the connected socket *sock* and *protocol*; *options* are those of `TlsLayer`."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    layer = TlsLayer(loop, protocol, context, done, ssl_shutdown_timeout=SHUTDOWN_S, **options)
    transport, _ = await loop.connect_accepted_socket(lambda: layer, sock)
    try:
        await done
    except BaseException:
        transport.abort()
        raise
    return layer


def why_refused(error: BaseException | None, where: str) -> str | None:
    """Why a server refused the gateway's certificate, in words, if *error* is an alert that says so; else None.

    With TLS 1.3 the client's handshake is over before the server has judged the client's certificate. The alert ends
    the server's handshake, so the server has read nothing of a request. *where* is the path of the settings.
    """
    if not isinstance(error, ssl.SSLError) or _name_of(error) not in _REFUSED.split():
        return None
    return f"it requires a client certificate, or refuses {where}.certificate: {_words_of(error)}"


def _name_of(error: ssl.SSLError) -> str:
    """The standard's name of the alert in *error*, or OpenSSL's name of another reason."""
    reason = getattr(error, "reason", None) or type(error).__name__
    return reason.partition("ALERT_")[2] or reason


def _words_of(error: ssl.SSLError) -> str:
    return _name_of(error).replace("_", " ").lower()


def _why(error: ssl.SSLError, where: str) -> str:
    """Why a handshake with a server failed, in words; *where* is the path of the settings."""
    if isinstance(error, ssl.SSLCertVerificationError):
        what_to_do = next((words for codes, words in _NOT_ACCEPTED if error.verify_code in codes), "")
        return f"its certificate is not accepted: {error.verify_message.rstrip('.')}{what_to_do.format(where=where)}"
    if _name_of(error) in _NO_TLS.split():
        return "it does not speak TLS; if it speaks plain HTTP, write http:// in the endpoint"
    return why_refused(error, where) or f"the TLS handshake failed: {_words_of(error)}; see {where}"
