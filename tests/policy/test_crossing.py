"""Which headers cross the gateway, and which are for one hop alone."""

from gateway.headers import Headers
from gateway.policy.crossing import relayed_to_client, transcoded_to_client


def test_headers_of_one_hop_and_those_that_connection_names_stay_behind() -> None:
    backend = Headers({"Connection": "close, X-Hop", "X-Hop": "1", "Keep-Alive": "5", "X-A": "2"}.items())
    assert dict(relayed_to_client(backend)) == {"X-A": "2"}


def test_headers_of_a_body_that_was_made_anew_stay_behind() -> None:
    backend = Headers({"ETag": "1", "Content-Length": "5", "X-A": "2"}.items())
    assert dict(transcoded_to_client(backend)) == {"X-A": "2"}
    assert relayed_to_client(backend) == [("ETag", "1"), ("X-A", "2")]
