"""Addresses of this machine, as others reach it."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from serving.errors import ConfigError


def address_towards(host: str) -> str:
    """Return the address of this machine from which it reaches `host`. Nothing is sent. Raises ConfigError."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"{host} cannot be reached from here: {error.strerror}") from None


def address_towards_url(url: str) -> str:
    """Return the address of this machine from which it reaches the host of `url`. Raises ConfigError."""
    return address_towards(urlsplit(url).hostname or "")


def own_address() -> str:
    """Return the address that this machine's name stands for. Raises ConfigError."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise ConfigError(f"this machine's name has no address: {error.strerror}") from None
