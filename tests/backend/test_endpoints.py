"""An endpoint of the configuration, taken apart."""

from dataclasses import replace

import pytest

from gateway.backend.endpoints import Endpoint, EndpointSet
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


@pytest.mark.parametrize(
    ("url", "addresses"),
    [
        ("http://10.0.0.7:8000", ("10.0.0.7",)),
        ("http://[fd00::7]:8000", ("fd00::7",)),
        ("http://models.example:8000", ()),
        ("http://127.1:8000", ()),  # the operating system reads it as an address, as it does a name
    ],
)
def test_an_address_is_known_and_a_name_is_not(url: str, addresses: tuple[str, ...]) -> None:
    assert Endpoint.parse(url, TLS).addresses == addresses


@pytest.mark.parametrize(
    ("other", "is_kept"),
    [
        ("https://10.0.0.7:8000", True),
        ("https://10.0.0.7:8000/", True),
        ("https://10.0.0.8:8000", False),
        ("https://10.0.0.7:8001", False),
        ("https://10.0.0.7:8000/team/a", False),
        ("http://10.0.0.7:8000", False),
    ],
)
def test_an_endpoint_that_stays_keeps_its_state_also_with_other_certificates(other: str, is_kept: bool) -> None:
    endpoints = EndpointSet()
    endpoints.replace([Endpoint.parse("https://10.0.0.7:8000", TLS)])
    (before,) = endpoints.states
    new = Endpoint.parse(other, TlsContext("backends.a.tls", BackendTls()))
    endpoints.replace([Endpoint.parse("https://10.0.0.1:8000", TLS), new])
    assert (endpoints.states[1] is before) == is_kept
    assert endpoints.states[1].endpoint is new


def test_two_endpoints_never_share_one_state() -> None:
    both = replace(Endpoint.parse("http://a.example", TLS), addresses=("10.0.0.1", "fd00::1"))
    endpoints = EndpointSet()
    endpoints.replace([both])
    (before,) = endpoints.states
    endpoints.replace(replace(both, addresses=(address,)) for address in both.addresses)
    first, second = endpoints.states
    assert first is before
    assert second is not before


def test_endpoints_that_stay_keep_their_state_in_any_order() -> None:
    endpoints = EndpointSet()
    a, b, c = (Endpoint.parse(f"http://{name}:8000", TLS) for name in "abc")
    endpoints.replace([a, b])
    state_a, state_b = endpoints.states
    endpoints.replace([c, b, a])
    assert endpoints.states[1:] == (state_b, state_a)
    endpoints.replace([a])
    endpoints.replace([a, b])
    assert endpoints.states[0] is state_a
    assert endpoints.states[1] is not state_b


def test_an_endpoint_that_is_written_in_two_ways_is_one() -> None:
    endpoints = EndpointSet()
    for _ in range(2):
        endpoints.replace(Endpoint.parse(url, TLS) for url in ("http://a", "http://a:80/", "http://a/x"))
        assert [state.endpoint.base_path for state in endpoints.states] == ["", "/x"]
