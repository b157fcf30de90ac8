"""`intarsia-fleet status` shows what the API says, for people and for scripts, and fails when a pool needs a person."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from creator_cli.control_api import ControlApi
from creator_cli.errors import ApiError
from creator_cli.fleet import app

CLASSES = [
    {"name": "interactive", "target_s": 1.0, "wait_s": 0.12, "arrivals_per_s": 4.0, "refused_per_s": 0.0},
    {"name": "standard", "target_s": 5.0, "wait_s": None, "arrivals_per_s": 1.5, "refused_per_s": 0.5},
]
POOL = {
    "name": "small",
    "state": "healthy",
    "live": 2,
    "load_percent": 43,
    "waiting": 1,
    "kv_percent": None,
    "classes": CLASSES,
    "scaling": {"wanted": 3, "why": "burst", "ordered": 3, "most": 4, "fresh": True, "age_seconds": 1.0},
}
REPLICA = {
    "name": "small-n1-0",
    "state": "live",
    "running": 3,
    "waiting": 0,
    "tokens_per_second": 12.5,
    "kv_percent": 20,
    "resident_count": 7,
    "build": "ab" * 32,
}
EVENT = {
    "at": "2026-11-27T12:00:00+00:00",
    "replica": "small-n1-1",
    "what": "ended\x1b[31m",
    "effects": {"moved": 3, "cut": 0, "refused": 0},
}


def fleet(**changes: Any) -> dict[str, Any]:
    answer = {"healthy": True, "pools": [POOL], "replicas": [REPLICA], "events": [EVENT], "adapters": None}
    return answer | changes


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def run(answer: dict[str, Any], *arguments: str) -> Result:
        asked: list[str | None] = []
        monkeypatch.setattr(ControlApi, "fleet", lambda self, model=None: asked.append(model) or answer)
        environment = {"INTARSIA_URL": "http://127.0.0.1:9", "INTARSIA_TOKEN": "ik_x", "COLUMNS": "200"}
        return CliRunner().invoke(app, ["status", *arguments], env=environment)

    return run


def test_people_see_pools_replicas_and_events(run: Callable[..., Result]) -> None:
    shown = run(fleet())
    assert shown.exit_code == 0, shown.output
    for text in ("small", "43 %", "0.1 / –", "5.5", "wants 3 (burst)", "small-n1-0", "12.5", "3 moved"):
        assert text in shown.output, text
    assert "\x1b" not in shown.output, "a server's words do not steer the terminal"


def test_a_pool_that_needs_a_person_fails(run: Callable[..., Result]) -> None:
    late = fleet(healthy=False, pools=[POOL | {"state": "late"}])
    assert run(late).exit_code == 1
    asked = run(late, "--json")
    assert asked.exit_code == 1 and json.loads(asked.stdout) == late


def test_a_controller_that_fell_silent_is_named(run: Callable[..., Result]) -> None:
    silent = POOL | {"scaling": POOL["scaling"] | {"fresh": False, "age_seconds": 90.4}}  # type: ignore[operator]
    assert "last reported 90.4 s ago" in run(fleet(pools=[silent])).output
    assert "wants" not in run(fleet(pools=[POOL | {"scaling": None}])).output


def test_the_places_of_a_models_adapters_are_shown(run: Callable[..., Result]) -> None:
    places = [{"name": "acme/triage@2", "replicas": ["small-n1-0"]}, {"name": "acme/triage@1", "replicas": []}]
    shown = run(fleet(adapters=places), "--model", "acme/triage").output
    assert "acme/triage@2" in shown and "nowhere" in shown


def test_an_answer_that_is_none_and_a_refusal_are_one_message(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = run({"healthy": True, "pools": "many"})
    assert odd.exit_code == 1 and "error:" in odd.output

    def refuse(self: ControlApi, model: str | None = None) -> None:
        raise ApiError(403, "staff_only", "only the platform's staff may do this", field=None)

    monkeypatch.setattr(ControlApi, "fleet", refuse)
    environment = {"INTARSIA_URL": "http://127.0.0.1:9", "INTARSIA_TOKEN": "ik_x"}
    refused = CliRunner().invoke(app, ["status", "--json"], env=environment)
    assert refused.exit_code != 0 and json.loads(refused.stdout)["error"]["code"] == "staff_only"


def test_watching_prints_one_document_a_look_until_it_is_stopped(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("creator_cli.fleet.time.sleep", sleep)
    watched = run(fleet(), "--watch", "--json", "--every", "5")
    assert watched.exit_code == 130 and looks == [5.0, 5.0]
    assert [json.loads(line)["healthy"] for line in watched.stdout.splitlines()[:2]] == [True, True]


def test_its_help_loads_neither_http_nor_torch_nor_django() -> None:
    script = (
        "import sys\nfrom creator_cli.fleet import app\n"
        "try:\n    app(['status', '--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('httpx', 'torch', 'django', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout
