"""Which peers are trusted to say who the client is, and which client they name (`trusted_proxies`)."""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache

MAX_HOPS = 32
"""How many addresses of `X-Forwarded-For` are looked at, from its end. If all of these are trusted proxies, the last
one looked at counts as the client's."""

# An address alone, in brackets, or with a port; perhaps in quotes, as in `Forwarded`.
_PORT = "(?::[0-9]{1,5})?"
_ENTRY = re.compile(rf'"?(?:\[([0-9A-Fa-f:.]{{2,45}})\]{_PORT}|([0-9.]{{7,15}}){_PORT}|([0-9A-Fa-f:.]{{2,45}}))"?')

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxies:
    """The proxies in front of the gateway."""

    def __init__(self, networks: Iterable[str]) -> None:
        """*networks* are addresses, networks, and names of other peers, such as `unix`."""
        self._networks: list[_Network] = []
        self._names = set()
        for network in networks:
            try:
                self._networks.append(ipaddress.ip_network(_address(network) or network))
            except ValueError:
                self._names.add(network)

    def trusts(self, peer: str) -> bool:
        """Whether *peer*, as the socket names it, is one of the trusted proxies."""
        if peer in self._names:
            return True
        # the zone of a link-local address names a network interface of this machine
        address = _address(peer.partition("%")[0])
        return address is not None and self._holds(address)

    def client_of(self, peer: str, forwarded_for: str) -> str:
        """The client's address behind the trusted *peer*, by the whole of `X-Forwarded-For`, joined with commas.

        Each proxy appends the address of the peer that asked it. So the client is the last address that is no trusted
        proxy, or the first if all are; entries before it may be made up. An entry that is no address ends the search.
        """
        client = peer
        for entry in reversed(forwarded_for.rsplit(",", MAX_HOPS)):
            text = entry.strip()
            if not text:
                continue  # RFC 9110 section 5.6.1: empty elements of a list count for nothing
            found = _ENTRY.fullmatch(text)
            address = _address(found[found.lastindex or 0]) if found is not None else None
            if address is None:
                break
            client = str(address)
            if not self._holds(address):
                break
        return client

    def _holds(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)


@lru_cache(maxsize=1024)
def _address(text: str) -> _Address | None:
    """The address in *text*; a mapped address becomes IPv4 (`::ffff:1.2.3.4`, from sockets that take both)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
