"""usage, logs, wallet and keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.creator_cli.conftest import Machine
from tests.creator_cli.consumer_double import CSV, KEY, Consumption


def test_usage_is_summed_by_what_was_asked(creator: Machine, tmp_path: Path) -> None:
    shown = creator.ok("usage").stdout
    assert "acme/triage" in shown and "$0.00000152" in shown and "next: intarsia logs" in shown
    asked = creator.platform.consumption.asked
    assert [one["group_by"] for one in asked] == ["model", "model"], "two pages"
    of_key = creator.json("usage", "--by", "day", "--key", KEY, "--days", "7")
    assert asked[-1]["group_by"] == "day,key" and of_key["cost_nano_usd"] == 1_020
    assert [(row["day"], row["cost_nano_usd"]) for row in of_key["groups"]] == [
        ("2026-01-02", 1_000),
        ("2026-01-01", 20),
    ]
    assert creator.json("usage", "--model", "acme/triage")["groups"] == [
        {"model": "acme/triage", "predictions": 2, "prompt_tokens": 14, "completion_tokens": 6, "cost_nano_usd": 1_500}
    ]
    file = tmp_path / "usage.csv"
    assert "2 predictions" in creator.ok("usage", "--csv", str(file), "--model", "acme/triage").stdout
    assert file.read_bytes() == CSV and asked[-1]["model"] == "acme/triage"
    assert creator.run("usage", "--by", "customer").exit_code == 2


def test_logs_list_predictions_and_follow_them(creator: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = creator.ok("logs").stdout.splitlines()
    assert len(lines) == 3 and "00000000-0000-0000-0000-000000000001" in lines[0] and "stop" in lines[0]
    assert [row["prediction_id"][-1] for row in creator.json("logs", "-n", "1")] == ["2"]

    def later(_: float) -> None:
        predictions = creator.platform.consumption.predictions
        if len(predictions) == 4:
            raise KeyboardInterrupt
        predictions.insert(0, Consumption.prediction(len(predictions)))

    monkeypatch.setattr("creator_cli.commands.usage.time.sleep", later)
    followed = creator.run("logs", "--follow", "--json")
    numbers = [json.loads(line).get("prediction_id", "")[-1:] for line in followed.stdout.splitlines()]
    assert followed.exit_code == 130 and numbers[:4] == ["1", "2", "3", "4"], "each once"


def test_logs_of_a_model_are_sums_by_the_hour(creator: Machine) -> None:
    shown = creator.ok("logs", "acme/triage").stdout
    assert "2026-01-02T10:00 to 11:00  40 calls  2 failed  refused: rate_limited 3" in shown
    assert creator.json("logs", "acme/triage", "--days", "7")[0]["calls"] == 40
    assert creator.run("logs", "acme/triage", "--days", "2").exit_code == 2


def test_keys_are_made_rotated_and_revoked(creator: Machine) -> None:
    listed = creator.ok("keys", "list").stdout
    assert "billing" in listed and "active" in listed and "revoked" in listed
    made = creator.ok("keys", "create", "billing", "--monthly-limit", "20", "--model", "acme/triage", "--days", "30")
    assert made.stdout.startswith("ik_") and len(made.stdout.split()) == 1, "a script can take it as it is"
    sent = creator.platform.consumption.made[0]
    assert (sent["scopes"], sent["monthly_limit_nano_usd"], sent["models"]) == (
        ["predict"],
        20 * 10**9,
        ["acme/triage"],
    )
    assert creator.json("keys", "rotate", KEY, "--overlap-hours", "0.5")["key"].startswith("ik_")
    assert creator.platform.consumption.made[1] == {"overlap_seconds": 1800}
    assert creator.run("keys", "revoke", KEY).exit_code == 2, "nobody is there to confirm"
    creator.ok("keys", "revoke", KEY, "--yes")
    assert creator.platform.consumption.revoked == [f"keys/{KEY}"]


def test_the_wallet_says_where_to_top_up(creator: Machine) -> None:
    shown = creator.ok("wallet").stdout
    assert "$4.00" in shown and f"{creator.running.url}/dashboard/wallet" in shown
