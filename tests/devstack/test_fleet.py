"""The fleet of `make fleet`: settings that a pool accepts, secrets in files of their own."""

from __future__ import annotations

import json
from pathlib import Path

from devstack.fleet import POOLS, REPLICAS_ALLOWED, LocalFleet
from devstack.state import State
from serving.fleet.settings import PoolSettings


def test_the_local_fleet_is_two_pools_that_a_small_machine_bears(tmp_path: Path) -> None:
    fleet = LocalFleet(State(tmp_path, {}))
    fleet.write("http://127.0.0.1:8000")
    pools = [PoolSettings.parse(one) for one in json.loads(fleet.pools_file.read_text())["pools"]]
    assert [one.pool for one in pools] == [one.name for one in POOLS]
    assert sum(one.min_replicas for one in pools) == 3
    assert any(one.max_replicas > one.min_replicas for one in pools), "nothing would be counted"
    assert all(one.address == "127.0.0.1" and one.cpus == 1 for one in pools)
    assert all(2 * one.max_replicas <= REPLICAS_ALLOWED for one in pools)
    assert {f"--pool={one.name}={one.dtype}" for one in POOLS} < set(fleet.preparation())


def test_the_token_of_ray_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    fleet = LocalFleet(State(tmp_path, {}))
    fleet.write("http://127.0.0.1:8000")
    token = fleet.token_file.read_text()
    fleet.write("http://127.0.0.1:8001")
    assert fleet.token_file.read_text() == token and len(token) == 64
    for file in (fleet.token_file, fleet.pools_file):
        assert file.stat().st_mode & 0o777 == 0o600
    assert fleet.folder.stat().st_mode & 0o777 == 0o700
    assert token not in fleet.pools_file.read_text()
