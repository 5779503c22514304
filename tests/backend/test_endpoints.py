"""An endpoint of the configuration, taken apart."""

import ssl

import pytest

from gateway.backend.endpoints import Endpoint, EndpointSet

TLS = ssl.create_default_context()


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
