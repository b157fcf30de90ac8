"""What a process listens on, as the kernel tells."""

from __future__ import annotations

import os
import socket

import pytest

from serving.fleet.addresses import address_towards, address_towards_url
from serving.fleet.loopback import Listener, listeners


@pytest.mark.parametrize(
    ("family", "address", "loopback"),
    [
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET, "0.0.0.0", False),
        (socket.AF_INET6, "::1", True),
        (socket.AF_INET6, "::", False),
        (socket.AF_INET6, "::ffff:127.0.0.1", True),
    ],
)
def test_every_listener_is_found_with_its_reach(family: socket.AddressFamily, address: str, loopback: bool) -> None:
    with socket.socket(family) as listener:
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        (found,) = [one for one in listeners([os.getpid()]) if one.port == port]
        assert found.is_loopback is loopback
    assert port not in {one.port for one in listeners([os.getpid()])}


def test_a_process_that_has_ended_listens_on_nothing() -> None:
    assert listeners([2**22 + 1]) == []
    assert not Listener(1, "192.0.2.1", 80).is_loopback


def test_a_replica_registers_the_address_from_which_it_reaches_the_platform() -> None:
    assert address_towards("127.0.0.5") == "127.0.0.1" or address_towards("127.0.0.5").startswith("127.")
    assert address_towards_url("http://[::1]:8000") == "::1"
