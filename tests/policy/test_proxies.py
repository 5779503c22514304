"""Who is trusted to name the client, and who the client is by a chain of addresses."""

import pytest

from gateway.policy.proxies import MAX_HOPS, TrustedProxies

TRUSTED = TrustedProxies(["10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "fe80::1"])


@pytest.mark.parametrize(
    ("peer", "is_trusted"),
    [
        ("10.1.2.3", True),
        ("11.0.0.1", False),
        ("192.0.2.1", True),
        ("192.0.2.2", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:11.0.0.1", False),
        ("2001:db8::7", True),
        ("2001:db9::7", False),
        ("fe80::1%eth0", True),
        ("fe80::2%eth0", False),
        ("unix", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_addresses_and_networks_are_trusted(peer: str, is_trusted: bool) -> None:
    assert TRUSTED.trusts(peer) is is_trusted


def test_addresses_of_ipv4_may_be_written_as_those_of_ipv6_around_them() -> None:
    trusted = TrustedProxies(["::ffff:192.0.2.1"])
    for peer, is_trusted in (("192.0.2.1", True), ("::ffff:192.0.2.1", True), ("192.0.2.2", False)):
        assert trusted.trusts(peer) is is_trusted


def test_peers_without_an_address_are_trusted_by_name() -> None:
    trusted = TrustedProxies(["unix"])
    assert trusted.trusts("unix")
    assert not trusted.trusts("127.0.0.1")
    assert trusted.client_of("unix", "198.51.100.1") == "198.51.100.1"


@pytest.mark.parametrize(
    ("chain", "client"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("1.1.1.1, 198.51.100.1", "198.51.100.1"),  # the client has written the first
        ("198.51.100.1, 10.0.0.2, 2001:db8::2", "198.51.100.1"),
        ("1.1.1.1,198.51.100.1 ,\t10.0.0.2", "198.51.100.1"),
        ("10.0.0.3, 10.0.0.2", "10.0.0.3"),  # all are trusted
        ("", "10.0.0.1"),
        (", ,", "10.0.0.1"),
        ("198.51.100.1, , 10.0.0.2,", "198.51.100.1"),
        ("198.51.100.1:4711", "198.51.100.1"),
        ('"198.51.100.1:4711"', "198.51.100.1"),
        ("2001:db9::1", "2001:db9::1"),
        ("[2001:db9::1]", "2001:db9::1"),
        ("[2001:DB9:0:0::1]:4711", "2001:db9::1"),
        ('"[2001:db9::1]:4711"', "2001:db9::1"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("::ffff:10.0.0.9", "10.0.0.9"),
        ("198.51.100.1, [2001:db8::2]:4711", "198.51.100.1"),
        # no address: the proxy behind it is the last that is known
        ("unknown", "10.0.0.1"),
        ("198.51.100.1, unknown, 10.0.0.2", "10.0.0.2"),
        ("198.51.100.1, _hidden", "10.0.0.1"),
        ("198.51.100.1 198.51.100.2", "10.0.0.1"),
        ("198.51.100.1:x", "10.0.0.1"),
        ("198.51.100.256", "10.0.0.1"),
        ("0300.1.1.1", "10.0.0.1"),
        ("[198.51.100.1", "10.0.0.1"),
        ("fe80::1%<script>", "10.0.0.1"),
        ('198.51.100.1" x="', "10.0.0.1"),
        ("\u0661.1.1.1", "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(chain: str, client: str) -> None:
    assert TRUSTED.client_of("10.0.0.1", chain) == client


def test_a_chain_is_looked_at_to_a_limit() -> None:
    chain = ["198.51.100.1", *["10.0.0.2"] * (MAX_HOPS - 1)]
    assert TRUSTED.client_of("10.0.0.1", ", ".join(chain)) == "198.51.100.1"
    longer = [*chain[:1], *["10.0.0.2"] * (MAX_HOPS + 1)]
    assert TRUSTED.client_of("10.0.0.1", ", ".join(longer)) == "10.0.0.2"
