"""Certificates for tests: an authority that exists for one test, and the files that it issues."""

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, in PEM files."""

    certificate: Path
    key: Path

    def replace(self, other: "Pair") -> None:
        """Put another pair into these files, the key last, each in one step."""
        for mine, new in ((self.certificate, other.certificate), (self.key, other.key)):
            beside = mine.with_suffix(".new")
            beside.write_bytes(new.read_bytes())
            beside.replace(mine)

    def server_context(self, client_ca: Path | None = None) -> ssl.SSLContext:
        """For a server with this certificate; with *client_ca* it requires one of its clients."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class Authority:
    """Issues certificates into files of *folder*, each pair with names of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = trustme.CA()
        self._n_issued = 0
        self.path = folder / f"ca-{id(self)}.pem"
        self._authority.cert_pem.write_to_path(str(self.path))

    def issue(
        self, *names: str, not_before: datetime.datetime | None = None, not_after: datetime.datetime | None = None
    ) -> Pair:
        """A certificate for *names*, by default for a server on this machine."""
        names = names or ("127.0.0.1", "localhost")
        issued = self._authority.issue_cert(*names, not_before=not_before, not_after=not_after)
        self._n_issued += 1
        pair = Pair(
            self._folder / f"{self._n_issued}-{id(self)}.crt", self._folder / f"{self._n_issued}-{id(self)}.key"
        )
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(pair.key))
        return pair

    def client_context(self, own: Pair | None = None) -> ssl.SSLContext:
        """For a client that trusts this authority and shows *own*."""
        context = ssl.create_default_context(cafile=self.path)
        if own is not None:
            context.load_cert_chain(own.certificate, own.key)
        return context
