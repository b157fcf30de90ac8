"""Ray Serve for real: a head, two pools, tiny models, the platform's internal API. A fleet takes seconds to start, so
that one test tells the whole story of its life."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from marketplace.catalog.services import read_base_folder, register_reference
from marketplace.vault.fleets import issue_fleet_credential
from marketplace.vault.identities import Terms
from marketplace.vault.models import Replica
from protocol.checkpoints import ComputedIn
from serving.fleet.__main__ import ray_folder
from serving.fleet.loopback import listeners
from tests.together.fleet_process import Callers, FleetProcess, living, pid_of, tiny_pool, wait_for
from tests.together.tiny import Tiny

pytestmark = [pytest.mark.deep, pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]


@pytest.fixture
def fleet(platform_url: str, tiny: Tiny, tmp_path: Path) -> FleetProcess:
    """A fleet of one pool that staff allowed, not started."""
    computed = ComputedIn.of_flags(dtype="float32", kv_dtype="auto", adapter_dtype="auto")
    base = register_reference(name="tiny", folder=read_base_folder(tiny.model, computed))
    credential = issue_fleet_credential(pool="small", terms=Terms(base, "127.0.0.0/8"), replicas=4)
    (tmp_path / "credential-small").write_text(credential)
    pool = tiny_pool("small", tiny.model, tmp_path, platform_url, min_replicas=2, max_replicas=2)
    return FleetProcess(tmp_path, [pool])


def test_the_life_of_a_fleet(fleet: FleetProcess) -> None:
    with fleet.running():
        first, second = wait_for(lambda: len(living("small")) == 2 and living("small"), 20, "two replicas", fleet.log)
        assert (first.name[-2:], second.name[-2:]) == ("-0", "-1")
        assert not [one for one in listeners(fleet.ready()["pids"]) if not one.is_loopback]
        second = _a_killed_replica_is_replaced_under_its_name(fleet, second)
        _an_update_to_fewer_replicas_fails_no_stream(fleet, [first, second])
        pids = fleet.ready()["pids"]
    assert fleet.stop() == 0, fleet.log()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids), "a process of Ray was left behind"
    assert not ray_folder(fleet.pools_file).exists()


def _a_killed_replica_is_replaced_under_its_name(fleet: FleetProcess, replica: Replica) -> Replica:
    os.kill(pid_of(replica), signal.SIGKILL)

    def successor() -> Replica | None:
        return next((one for one in living("small") if one.name == replica.name and one.pk != replica.pk), None)

    found = wait_for(successor, 60, "a successor", fleet.log)
    wait_for(lambda: httpx.get(f"{found.url}/readyz", trust_env=False).status_code == 200, 5, "it serves", fleet.log)
    assert isinstance(found, Replica)
    return found


def _an_update_to_fewer_replicas_fails_no_stream(fleet: FleetProcess, before: list[Replica]) -> None:
    old = {one.pk for one in before}
    with Callers("small") as callers:
        wait_for(lambda: callers.answered > 3, 20, "calls", fleet.log)
        fleet.update(revision="2", min_replicas=1, max_replicas=1)
        least = 2

        def replaced() -> bool:
            nonlocal least
            now = living("small")
            least = min(least, sum(not one.stats.get("draining") for one in now))
            return len(now) == 1 and not {one.pk for one in now} & old

        wait_for(replaced, 240, "an update", fleet.log)
        answered = callers.answered
        wait_for(lambda: callers.answered > answered + 3, 20, "calls of the new one", fleet.log)
    assert callers.failures == [] and least >= 1
