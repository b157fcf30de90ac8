"""The running gateway of the gateway's tests, as the platform's own API."""

from __future__ import annotations

import dataclasses

import pytest

from tests.marketplace.gateway.conftest import World, _own_database_url, shared_gateway, world

__all__ = ["_own_database_url", "api", "shared_gateway", "world"]


@pytest.fixture
def api(world: World, settings: object) -> World:
    """The world, whose address is the one that workers call."""
    settings.ENV = dataclasses.replace(settings.ENV, api_url=world.url)  # type: ignore[attr-defined]
    return world
