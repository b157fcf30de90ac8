"""Limits of an API key beside its money: the networks it is used from and the models it may call. Pure.

An empty list limits nothing. The gateway and the control API both judge by these functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from marketplace.accounts.errors import InvalidInput, NotAllowed
from protocol.errors import ProtocolError
from protocol.names import parse_model_name

Network = IPv4Network | IPv6Network

MAX_NETWORKS = 20
MAX_MODELS = 50
MAX_NETWORK_LENGTH = 43  # characters of the longest IPv6 network
MAX_MODEL_LENGTH = 81  # two slugs and a slash
_MAPPED = IPv6Network("::ffff:0:0/96")


def checked_networks(texts: Iterable[str]) -> list[str]:
    """Return networks such as 203.0.113.0/24 and 2001:db8::/32 in their normal form. Raises InvalidInput."""
    found: dict[str, None] = {}
    for text in texts:
        try:
            network = ip_network(text.strip())
        except ValueError as error:
            raise InvalidInput(f"must be networks such as 203.0.113.0/24: {error}"[:200], field="networks") from None
        if isinstance(network, IPv6Network) and network.overlaps(_MAPPED) and network.prefixlen >= _MAPPED.prefixlen:
            raise InvalidInput(f"{network} is an IPv4 network; write it as one", field="networks")
        found[str(network)] = None
    if len(found) > MAX_NETWORKS:
        raise InvalidInput(f"a key has at most {MAX_NETWORKS} networks", field="networks")
    return list(found)


def checked_models(texts: Iterable[str]) -> list[str]:
    """Return names of models, `organization/model`, each once. Raises InvalidInput.

    A name need not exist yet: a key may wait for a model. Versions are not named: a key may call all of a model's.
    """
    found: dict[str, None] = {}
    for text in texts:
        try:
            name = parse_model_name(text.strip())
        except ProtocolError:
            raise InvalidInput("must be names of models: organization/model", field="models") from None
        if name.version is not None:
            raise InvalidInput(f"name the model without its version: {name.listing}", field="models")
        found[str(name)] = None
    if len(found) > MAX_MODELS:
        raise InvalidInput(f"a key has at most {MAX_MODELS} models", field="models")
    return list(found)


def networks_of(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return the networks of a row."""
    return tuple(ip_network(text) for text in texts)


def require_address(networks: Collection[Network], address: str | None) -> None:
    """Raise NotAllowed if the caller's address is in none of the key's networks; one that is not known is in none."""
    if networks and not _is_within(networks, address):
        raise NotAllowed(
            "this API key may not be used from this network address; its allow-list is on its page under API keys",
            code="address_not_allowed",
        )


def _is_within(networks: Collection[Network], address: str | None) -> bool:
    try:
        found = ip_address(address or "")
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in networks if network.version == found.version)


def require_model(models: Collection[str], name: str) -> None:
    """Raise NotAllowed if the key may not call the model `organization/model`."""
    if models and name not in models:
        raise NotAllowed(
            f"This API key may not call {name!r}; the models that it may call are on its page under API keys.",
            code="model_not_allowed",
            field="model",
        )
