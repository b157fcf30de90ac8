"""rollout, rollback and deprecate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.creator_cli.adapters import write_adapter
from tests.creator_cli.conftest import Machine


@pytest.fixture
def published(creator: Machine, adapter: str, listing: str) -> Machine:
    """acme/triage@1 is for sale."""
    creator.json("push", adapter, "--listing", listing, "--publish")
    return creator


@pytest.fixture
def two(published: Machine, tmp_path: Path) -> Machine:
    """A machine with version 1 on sale and version 2 verified."""
    published.ok("push", str(write_adapter(tmp_path / "second")), "--model", "acme/triage")
    return published


def test_a_version_is_rolled_out_and_back_step_by_step(two: Machine) -> None:
    shown = two.ok("rollout", "acme/triage@2", "10").stdout
    assert "acme/triage means version 1" in shown and "version 2 is rolled out to 10 %" in shown
    assert "next: intarsia rollout acme/triage@2 20, or intarsia rollback acme/triage" in shown
    assert "812.5 ms" in two.ok("rollout", "acme/triage").stdout
    assert two.json("rollback", "acme/triage")["rollout"] is None
    assert two.json("rollout", "acme/triage@2", "100")["default_version"] == 2
    assert two.json("rollback", "acme/triage")["default_version"] == 1, "the version before it"
    assert two.json("rollback", "acme/triage@2")["default_version"] == 2


def test_without_a_rollout_a_version_must_be_named(published: Machine) -> None:
    refused = published.json("rollback", "acme/triage", exit_code=1)["error"]
    assert refused["code"] == "no_rollout" and "rollback acme/triage@N" in refused["hint"]
    assert published.run("rollout", "acme/triage@1", "101").exit_code == 2


def test_an_end_is_announced_after_a_question_and_taken_back(two: Machine) -> None:
    command = ("deprecate", "acme/triage@1", "--on", "2999-01-01", "--replacement", "2")
    assert "--yes" in two.run(*command).stderr
    assert two.run("deprecate", "acme/triage@1").exit_code == 2
    shown = two.ok(*command, "--yes").stdout
    assert "ends on 2999-01-01" in shown and "--cancel takes it back" in shown
    assert json.loads(two.platform.bodies[-1]) == {"ends_at": "2999-01-01T00:00:00+00:00", "replacement": 2}
    assert two.json("deprecate", "acme/triage@1", "--cancel")["ends_at"] is None
