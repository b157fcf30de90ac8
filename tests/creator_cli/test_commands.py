"""The other commands: what they show, what they refuse, and that scripts get one document."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.creator_cli.adapters import BASE_CONFIG, RANK, write_adapter, write_base, write_listing
from tests.creator_cli.conftest import Machine


@pytest.fixture
def published(creator: Machine, adapter: str, listing: str) -> Machine:
    """acme/triage@1 is for sale."""
    creator.json("push", adapter, "--listing", listing, "--publish")
    return creator


def test_check_shows_what_the_adapter_is(machine: Machine, adapter: str) -> None:
    shown = machine.ok("check", adapter).stdout
    assert "accepted" in shown and "self_attn.q_proj, self_attn.v_proj" in shown
    document = machine.json("check", adapter)
    assert document["ok"] and document["rank"] == RANK and document["base"] == "tiny"
    assert document["parameters"] == 2 * RANK * (64 + 64 + 64 + 32)


def test_check_with_a_base_config_asks_nobody(machine: Machine, adapter: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(BASE_CONFIG))
    assert machine.ok("check", adapter, "--base-config", str(path)).exit_code == 0
    assert machine.platform.requests == []


def test_check_refuses_with_field_and_rule(machine: Machine, tmp_path: Path) -> None:
    bad = str(write_adapter(tmp_path / "bad", value=float("inf")))
    refused = machine.run("check", bad, "--json")
    assert refused.exit_code == 2
    error = json.loads(refused.stdout)["error"]
    assert error["field"].endswith("lora_A.weight") and "finite" in error["message"]
    assert machine.run("check", str(tmp_path / "nowhere")).exit_code == 2
    (tmp_path / "bad" / "adapter_model.safetensors").rename(tmp_path / "bad" / "adapter_model.bin")
    assert "pickled" in machine.run("check", bad).stderr


def test_rows_rewrites_a_saved_head_and_refuses_one_that_was_trained_whole(machine: Machine, tmp_path: Path) -> None:
    base, folder = write_base(tmp_path / "base"), write_adapter(tmp_path / "saved")
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    head = np.zeros((256, 64), np.float32)
    head[[3, 200]] = 0.5
    save_file({**tensors, "base_model.model.lm_head.weight": head}, file)
    assert "intarsia rows" in machine.run("check", str(folder)).stderr
    written = machine.json("rows", str(folder), str(tmp_path / "out"), "--base", str(base))
    assert written["tokens"] == {"lm_head": [3, 200]}
    assert machine.json("check", str(tmp_path / "out"))["extras"] == ["2 trained token rows"]
    again = machine.run("rows", str(folder), str(tmp_path / "out"), "--base", str(base))
    assert again.exit_code == 2 and "is there already" in again.stderr
    save_file({**tensors, "base_model.model.lm_head.weight": head + 0.1}, file)
    refused = machine.run("rows", str(folder), str(tmp_path / "other"), "--base", str(base))
    assert refused.exit_code == 2 and "256 of 256 rows differ" in refused.stderr
    assert not (tmp_path / "other").exists()


def test_check_shows_the_contract_and_refuses_a_wrong_one_by_field_and_rule(machine: Machine, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "with-contract")
    contract = {"contract": 1, "instructions": "A secret.", "max_tokens": 24, "output": {"schema": {"enum": [1]}}}
    (folder / "contract.json").write_text(json.dumps(contract))
    shown = machine.ok("check", str(folder)).stdout
    assert "JSON by its schema out, at most 24 tokens" in shown and "A secret." not in shown
    document = machine.json("check", str(folder))
    assert document["contract"]["output"] == "schema" and document["contract"]["instructions"] == len("A secret.")
    (folder / "contract.json").write_text(json.dumps(contract | {"max_token": 3}))
    refused = machine.run("check", str(folder))
    assert refused.exit_code != 0 and "contract.json max_token: is unknown" in refused.stderr
    (folder / "contract.json").write_text(json.dumps(contract | {"examples": [{"message": "x", "answer": "{"}]}))
    assert "examples[0].answer: must be JSON" in machine.run("check", str(folder)).stderr


def test_status_and_versions_show_what_there_is(published: Machine, adapter: str) -> None:
    for _ in range(3):
        published.json("push", adapter, "--model", "acme/triage")
    assert "acme/triage" in published.ok("status").stdout
    assert "$0.06 / $0.24" in published.ok("status", "acme/triage").stdout
    assert [version["version"] for version in published.json("versions", "acme/triage")] == [4, 3, 2, 1]
    assert published.json("status", "acme/triage")["newest"]["state"] == "verified"
    assert published.json("status")[0]["published_version"] == 1
    assert published.run("status", "acme/other").exit_code == 1


def test_prices_are_exact(published: Machine) -> None:
    answer = published.json(
        "price", "acme/triage", "--input", "0.000001", "--output", "$1.5", "--per-prediction", "0.00002"
    )
    assert answer["price"] == {
        "input_micro_usd_per_mtok": 1,
        "cached_input_micro_usd_per_mtok": 1,
        "output_micro_usd_per_mtok": 1_500_000,
        "embedding_micro_usd_per_mtok": None,
        "per_prediction_nano_usd": 20_000,
        "interactive_bps": 10_000,
        "batch_bps": 10_000,
        "monthly_free_nano_usd": 0,
        "intro_free_nano_usd": 0,
        "version": None,
        "effective_at": "2026-01-02T03:04:05+00:00",
        "copy": {"calls": 1_600, "nano_usd": 52_000_000, "predictions": None},
    }
    assert published.json("price", "acme/triage") == answer
    shown = published.ok("price", "acme/triage").stdout
    assert "$0.000001 per million tokens" in shown and "$0.00002" in shown
    assert "1,600 calls, enough for a copy of a model like this, cost at most $0.052 at this price" in shown


@pytest.mark.parametrize("amount", ["0.0000001", "-1", "NaN", "inf", "1e30", "x", ""])
def test_an_amount_that_is_none_sets_no_price(published: Machine, amount: str) -> None:
    before = published.platform.prices_set
    assert published.run("price", "acme/triage", "--input", amount, "--output", "1").exit_code == 2
    assert published.platform.prices_set == before


@pytest.mark.parametrize(
    "option", [("--batch", "0.001"), ("--interactive", "10.1"), ("--batch", "x"), ("--from", "soon")]
)
def test_a_multiplier_or_a_day_that_is_none_sets_no_price(published: Machine, option: tuple[str, str]) -> None:
    before = published.platform.prices_set
    assert published.run("price", "acme/triage", "--input", "1", "--output", "1", *option).exit_code == 2
    assert published.platform.prices_set == before


def test_a_price_with_classes_and_free_amounts_is_announced_for_one_version(published: Machine) -> None:
    before = published.json("price", "acme/triage")["price"]
    terms = (
        "--interactive",
        "1.75",
        "--batch",
        "0.5",
        "--free-monthly",
        "2",
        "--free-once",
        "5",
        "--embedding",
        "0.01",
    )
    told = published.json(
        "price", "acme/triage", "--input", "1", "--output", "2", *terms, "--version", "1", "--from", "2999-01-01"
    )["price"]
    assert (told["interactive_bps"], told["batch_bps"], told["embedding_micro_usd_per_mtok"]) == (17_500, 5_000, 10_000)
    assert (told["monthly_free_nano_usd"], told["intro_free_nano_usd"]) == (2 * 10**9, 5 * 10**9)
    assert (told["version"], told["effective_at"]) == (1, "2999-01-01T00:00:00+00:00")
    found = published.json("price", "acme/triage")
    assert found["price"] == before and found["announced"] == [told]
    shown = published.ok("price", "acme/triage").stdout
    assert "2999-01-01 00:00 UTC" in shown and "priority 1.75 ×, flex 0.5 ×" in shown and "version 1" in shown


def test_retire_and_revoke_ask_first(published: Machine) -> None:
    for command in (["retire", "acme/triage@1"], ["revoke", "acme/triage@1", "--reason", "x"]):
        refused = published.run(*command)
        assert refused.exit_code == 2 and "--yes" in refused.stderr
    assert next(iter(published.platform.versions.values()))["state"] == "published"


def test_revoked_means_that_every_replica_confirmed(published: Machine) -> None:
    shown = published.ok("revoke", "acme/triage@1", "--reason", "demonstration", "--yes").stdout
    assert "acme/triage@1 is revoked" in shown and "confirmed that it is gone: cpu-1" in shown
    assert published.platform.count("GET", "holders") >= 1
    assert json.loads(published.platform.bodies[-1]) == {"reason": "demonstration"}


def test_a_replica_that_does_not_confirm_is_named_with_the_end_of_its_lease(
    published: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("creator_cli.releases._PUSH_SECONDS", 0.0)
    published.platform.silent_lease = "2026-01-02T03:04:05Z"
    command = ("revoke", "acme/triage@1", "--reason", "demonstration", "--yes")
    shown = published.run(*command)
    assert shown.exit_code == 1 and "cpu-1 (its lease ended 03:04:05 UTC)" in shown.stderr
    assert "is revoked" not in shown.output and "takes no new predictions" in shown.stderr
    assert published.json(*command, exit_code=1)["error"]["code"] == "not_confirmed"
    assert published.platform.versions.popitem()[1]["state"] == "revoked"


def test_retire_with_json(published: Machine) -> None:
    assert published.json("retire", "acme/triage@1", "--yes")["state"] == "retired"


def test_earnings_are_shown_in_all_and_by_model(creator: Machine) -> None:
    shown = creator.ok("earnings").stdout
    assert "$0.000001" in shown and "acme/triage" in shown and "2026-01-02" in shown
    document = creator.json("earnings")
    assert document["total_nano_usd"] == 1000 and len(document["by_day"]) == 1 and "next" not in document
    assert [line["model"] for line in document["by_model"]] == ["acme/triage", "acme/sums"], "both pages"


def test_payouts_are_shown_and_asked_for_with_a_key_that_may(creator: Machine) -> None:
    assert "$40.00" in creator.ok("payouts").stdout
    refused = creator.run("payouts", "--now", "--yes")
    assert refused.exit_code == 1 and "scope account" in refused.stderr
    assert creator.platform.payouts == []
    creator.platform.scopes = ["account"]
    assert "$12.50 is on its way" in creator.ok("payouts", "--now", "--amount", "12.50", "--yes").stdout
    assert creator.ok("payouts", "--setup").stdout.strip() == "https://connect.stripe.example/setup/x"
    assert [line["amount_cents"] for line in creator.json("payouts")["payouts"]] == [1_250]


@pytest.mark.parametrize("options", [["--amount", "5"], ["--now", "--setup"], ["--now", "--amount", "1.001"]])
def test_options_of_payouts_that_do_not_fit_reach_nobody(creator: Machine, options: list[str]) -> None:
    creator.platform.requests.clear()
    assert creator.run("payouts", *options, "--yes").exit_code == 2
    assert creator.platform.requests == []


@pytest.mark.parametrize("name", ["triage", "acme/triage@0", "ACME/triage@1", "acme/../x@1", "acme/triage"])
def test_a_name_that_is_no_version_reaches_nobody(creator: Machine, name: str) -> None:
    creator.platform.requests.clear()
    assert creator.run("publish", name).exit_code == 2
    assert creator.platform.requests == []


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"price": {"input_micro_usd_per_mtok": 1}}, "price output_micro_usd_per_mtok"),
        ({"derivative_royalty_bps": 10_001}, "derivative_royalty_bps"),
        ({"derivative_royalty_bps": True}, "derivative_royalty_bps"),
        ({"derived_from": "acme/triage"}, "derived_from"),
        ({"derived_from": [{"royalty_bps": 5}]}, "derived_from 0"),
        ({"price": {"input_micro_usd_per_mtok": 0.5, "output_micro_usd_per_mtok": 1}}, "price input"),
        ({"titel": "x"}, "titel"),
        ({"slug": "Has Spaces"}, "model"),
        ({"org_slug": "somebody"}, "model"),
        ({"tags": "x"}, "tags"),
    ],
)
def test_a_wrong_listing_is_refused_before_anything_is_created(
    creator: Machine, adapter: str, tmp_path: Path, changed: dict[str, object], field: str
) -> None:
    listing = str(write_listing(tmp_path / "wrong", **changed))
    refused = creator.run("push", adapter, "--listing", listing, "--json")
    assert refused.exit_code == 2, refused.output
    error = json.loads(refused.stdout)["error"]
    assert field in f"{error['field']} {error['message']}"
    assert creator.platform.models == {}


def test_a_card_elsewhere_on_the_disk_is_never_published(creator: Machine, adapter: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.md"
    secret.write_text("private")
    for name in (str(secret), "../../secret.md"):
        listing = write_listing(tmp_path / "a" / "b")
        listing.write_text(json.dumps({**json.loads(listing.read_text()), "card": name}))
        assert creator.run("push", adapter, "--listing", str(listing)).exit_code == 2
    assert creator.platform.models == {}


def test_a_card_in_the_cards_folder_is_found(creator: Machine, adapter: str, tmp_path: Path) -> None:
    listing = write_listing(tmp_path / "samples" / "finance")
    (listing.parent / "card.md").unlink()
    (tmp_path / "samples" / "cards").mkdir()
    (tmp_path / "samples" / "cards" / "card.md").write_text("# Beside")
    creator.json("push", adapter, "--listing", str(listing))
    assert creator.platform.models["acme/triage"]["card_markdown"] == "# Beside"


def test_a_platforms_text_cannot_steer_the_terminal(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.refusal = {"field": "x", "rule": "bad", "message": "\x1b]0;owned\x07\x1b[31m[bold]hello"}
    refused = creator.run("push", adapter, "--listing", listing)
    assert refused.exit_code == 2 and "\x1b" not in refused.output and "\x07" not in refused.output


def test_an_unexpected_error_is_one_message(creator: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("creator_cli.control_api.ControlApi.earnings", broken)
    result = creator.run("earnings")
    assert result.exit_code == 1 and "INTARSIA_DEBUG=1" in result.stderr
    assert "Traceback" not in result.output and "secret detail" not in result.output


def test_an_answer_that_is_not_the_api_is_one_message(creator: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.creator_cli.platform_double.Platform.me", lambda self: (200, ["surprise"]))
    result = creator.run("whoami")
    assert result.exit_code == 1 and "not understood (me)" in result.stderr


_LIGHTNESS = """
import sys
sys.argv = ["intarsia", "--help"]
from creator_cli.main import main
try:
    main()
except SystemExit:
    pass
heavy = {"torch", "django", "numpy", "cryptography", "httpx", "sealed_weights", "platformdirs"} & set(sys.modules)
assert not heavy, heavy
import creator_cli.push, creator_cli.login, creator_cli.custody
assert not {"torch", "django", "transformers"} & set(sys.modules)
"""


def test_help_loads_nothing_heavy_and_no_command_loads_torch_or_django(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _LIGHTNESS], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "push" in done.stdout and "custody" in done.stdout


def test_every_command_has_help_with_an_example(machine: Machine) -> None:
    for command in (
        "login",
        "logout",
        "whoami",
        "check",
        "rows",
        "push",
        "status",
        "versions",
        "publish",
        "price",
        "rollout",
        "rollback",
        "deprecate",
        "retire",
        "revoke",
        "earnings",
    ):
        assert f"Example: intarsia {command}" in machine.ok(command, "--help").stdout.replace("\n", " ")
    assert "verify" in machine.ok("custody", "--help").stdout


def test_a_reader_that_leaves_early_is_no_error(published: Machine) -> None:
    environment = {**os.environ, **published.environment}
    command = f"{sys.executable} -m creator_cli status | true"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=300)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
