"""An endpoint of the configuration, taken apart."""

import pytest

from gateway.backend.endpoints import Endpoint
from gateway.certificates import TlsContext
from gateway.config import BackendTls

TLS = TlsContext("backends.a.tls", BackendTls())


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "base_path"),
    [
        ("http://10.0.0.7:8000", "10.0.0.7", 8000, "10.0.0.7:8000", ""),
        ("http://models.example", "models.example", 80, "models.example", ""),
        ("http://models.example:80", "models.example", 80, "models.example", ""),
        ("https://models.example", "models.example", 443, "models.example", ""),
        ("https://models.example:443/", "models.example", 443, "models.example", ""),
        ("http://models.example:443", "models.example", 443, "models.example:443", ""),
        ("https://models.example:80", "models.example", 80, "models.example:80", ""),
        ("http://[::1]:8000", "::1", 8000, "[::1]:8000", ""),
        ("http://[fd00::7]", "fd00::7", 80, "[fd00::7]", ""),
        ("http://models.example/team/a", "models.example", 80, "models.example", "/team/a"),
        ("http://models.example/team/a/", "models.example", 80, "models.example", "/team/a"),
        ("http://Models.Example:8000", "models.example", 8000, "models.example:8000", ""),
    ],
)
def test_a_url_is_taken_apart(url: str, host: str, port: int, authority: str, base_path: str) -> None:
    endpoint = Endpoint.parse(url, TLS)
    assert (endpoint.host, endpoint.port, endpoint.authority) == (host, port, authority)
    assert endpoint.base_path == base_path
    assert endpoint.url == f"{url.partition(':')[0]}://{authority}"
    assert (endpoint.tls is TLS) == url.startswith("https")
