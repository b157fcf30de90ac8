"""`intarsia push`: the happy path, interruptions, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from creator_cli import upload
from sealed_weights import Reference, ReferenceAnswer, source_digest
from tests.creator_cli.adapters import RANK, write_adapter, write_listing
from tests.creator_cli.conftest import Machine
from tests.creator_cli.platform_double import PlatformKeypair


def test_push_creates_the_listing_seals_uploads_prices_and_publishes(
    creator: Machine, adapter: str, listing: str
) -> None:
    pushed = creator.json("push", adapter, "--listing", listing, "--changelog", "first", "--publish")
    version = creator.platform.versions[pushed["version_id"]]
    assert pushed["model"] == "acme/triage" and pushed["version"] == 1 and pushed["state"] == "published"
    assert pushed["digest"] == version["package_digest"] and pushed["size"] == version["package_size"]
    assert pushed["report"]["rank"] == RANK and pushed["report"]["targets"] == ["self_attn.q_proj", "self_attn.v_proj"]
    assert pushed["report"]["verification"]["smoke_prompts"] == 3
    assert pushed["price"]["output_micro_usd_per_mtok"] == 240000
    assert version["changelog"] == "first"
    model = creator.platform.models["acme/triage"]
    assert model["card_markdown"].startswith("# Triage") and model["tags"] == ["support"]
    assert creator.packages == [] and not list((creator.folder / "cache").rglob("push.json"))


def test_pefts_answers_go_with_the_weights_and_what_the_replica_found_is_shown(
    creator: Machine, adapter: str, listing: str
) -> None:
    answers = (ReferenceAnswer((11, 12), (13, 14, 15)),)
    kept = Reference(source_digest(Path(adapter)), "float32", answers).to_bytes()
    (Path(adapter) / "reference.json").write_bytes(kept)
    pushed = creator.ok("push", adapter, "--listing", listing)
    assert "3 of 3 tokens are PEFT's (bfloat16 there, float32 under PEFT)" in pushed.stdout
    (version,) = creator.platform.versions.values()
    assert version["report"]["peft"]["base_agreed"] == 1
    assert not any(b"prompt" in body for body in creator.platform.bodies), "prompts are sealed"
    config = Path(adapter) / "adapter_config.json"
    config.write_text(config.read_text().replace('"lora_alpha": 32', '"lora_alpha": 16'))
    refused = creator.json("push", adapter, "--listing", listing, exit_code=2)
    assert refused["error"]["field"] == "reference.json" and len(creator.platform.versions) == 1


def test_the_platform_never_sees_the_weights(creator: Machine, adapter: str, listing: str) -> None:
    pushed = creator.json("push", adapter, "--listing", listing)
    sent = bytes(creator.platform.parts[pushed["version_id"]])
    plain = (Path(adapter) / "adapter_model.safetensors").read_bytes()
    assert sent.startswith(b"INTARSIA")
    assert plain[-64:] not in sent and b"lora_A" not in sent
    assert not any(plain[-64:] in body or b"lora_A" in body for body in creator.platform.bodies)


def test_pushing_again_makes_a_new_version_and_changes_nothing_else(
    creator: Machine, adapter: str, listing: str
) -> None:
    first = creator.json("push", adapter, "--listing", listing, "--publish")
    again = creator.json("push", adapter, "--listing", listing, "--publish")
    assert (first["version"], again["version"]) == (1, 2)
    assert first["digest"] != again["digest"]
    assert creator.platform.prices_set == 1
    assert creator.platform.count("PATCH", "models/") == 0


def test_a_changed_listing_is_brought_up_to_date(creator: Machine, adapter: str, listing: str, tmp_path: Path) -> None:
    creator.json("push", adapter, "--listing", listing)
    write_listing(tmp_path / "listing", summary="Better.")
    creator.json("push", adapter, "--listing", listing)
    assert creator.platform.models["acme/triage"]["summary"] == "Better."


def test_an_upload_dropped_in_the_middle_goes_on_where_it_was(
    creator: Machine, adapter: str, listing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "FIRST_CHUNK", 8192)
    monkeypatch.setattr(upload, "MIN_CHUNK", 4096)
    creator.platform.drop_after = 12_000
    pushed = creator.json("push", adapter, "--listing", listing)
    assert pushed["state"] == "verified"
    assert creator.platform.drop_after is None, "the connection was cut"
    assert creator.platform.count("POST", "versions$") == 1


def test_a_push_that_gave_up_continues_with_the_same_bytes(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.drop_after = 9_000
    fail = {"PUT package": 99, "HEAD package": 99}
    creator.platform.interrupt_after = lambda: creator.platform.failures.update(fail)
    broken = creator.run("push", adapter, "--listing", listing)
    assert broken.exit_code == 4, broken.output
    (version,) = creator.platform.versions.values()
    arrived = len(creator.platform.parts[version["id"]])
    assert 0 < arrived < version["package_size"]
    (package,) = creator.packages
    sealed = package.read_bytes()

    creator.platform.failures.clear()
    continued = creator.run("push", adapter, "--listing", listing, "--json")
    assert continued.exit_code == 0, continued.output
    assert "continuing version 1" in continued.stderr
    assert json.loads(continued.stdout)["version"] == 1
    assert bytes(creator.platform.parts[version["id"]]) == sealed


def test_another_adapter_does_not_continue_an_interrupted_push(
    creator: Machine, adapter: str, listing: str, tmp_path: Path
) -> None:
    creator.platform.failures["PUT package"] = 99
    assert creator.run("push", adapter, "--listing", listing).exit_code == 4
    creator.platform.failures.clear()
    other = str(write_adapter(tmp_path / "other", seed=1))
    assert creator.json("push", other, "--listing", listing)["version"] == 2
    assert all(
        version["state"] == "uploading" for version in creator.platform.versions.values() if version["number"] == 1
    )


def test_a_damaged_cache_is_sealed_afresh_never_uploaded(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.failures["PUT package"] = 99
    assert creator.run("push", adapter, "--listing", listing).exit_code == 4
    creator.platform.failures.clear()
    (package,) = creator.packages
    damaged = bytearray(package.read_bytes())
    damaged[5000] ^= 1
    package.write_bytes(damaged)
    assert creator.json("push", adapter, "--listing", listing)["version"] == 2


def test_a_wrong_offset_is_corrected_by_the_platform(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.wrong_offset_once = True
    assert creator.json("push", adapter, "--listing", listing)["state"] == "verified"
    assert creator.platform.count("PUT", "package") == 2


def test_a_passing_failure_of_a_repeatable_request_is_tried_again(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.failures = {"POST complete": 2, "GET ^me": 1, "POST publish": 1}
    assert creator.json("push", adapter, "--listing", listing, "--publish")["state"] == "published"


def test_starting_a_version_is_never_sent_twice(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.failures = {"POST versions$": 1}
    assert creator.run("push", adapter, "--listing", listing).exit_code == 4
    assert creator.platform.count("POST", "versions$") == 1


def test_an_interrupted_wait_continues_without_another_upload(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.polls_until_verified = 10**9
    waiting = creator.run("push", adapter, "--listing", listing, "--wait", "0", "--publish")
    assert waiting.exit_code == 1 and "still being verified" in waiting.stderr
    uploads = creator.platform.count("PUT", "package")
    creator.platform.polls_until_verified = 1
    assert creator.json("push", adapter, "--listing", listing, "--publish")["version"] == 1
    assert creator.platform.count("PUT", "package") == uploads


def test_a_refusal_of_the_platform_names_field_and_rule(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.refusal = {"field": "lora_A", "rule": "norm", "message": "is too large"}
    refused = creator.run("push", adapter, "--listing", listing, "--publish", "--json")
    assert refused.exit_code == 2
    assert json.loads(refused.stdout)["error"]["field"] == "lora_A"
    assert "lora_A: norm (is too large)" in refused.stderr
    assert creator.platform.count("POST", "publish") == 0 and creator.platform.prices_set == 0
    creator.platform.refusal = None
    assert creator.json("push", adapter, "--listing", listing)["version"] == 2


def test_an_adapter_refused_here_touches_nothing_on_the_platform(
    creator: Machine, listing: str, tmp_path: Path
) -> None:
    bad = str(write_adapter(tmp_path / "bad", value=float("nan")))
    refused = creator.run("push", bad, "--listing", listing)
    assert refused.exit_code == 2 and "finite" in refused.stderr
    assert creator.platform.models == {} and creator.platform.versions == {} and creator.packages == []


def test_a_changed_intake_key_is_refused_and_nothing_is_sent(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.requests.clear()
    creator.platform.intake = PlatformKeypair.generate()
    refused = creator.run("push", adapter, "--listing", listing)
    assert (
        refused.exit_code == 1
        and "a different key than before" in refused.stderr
        and "--trust-new-key" in refused.stderr
    )
    assert creator.platform.requests == [("GET", "vault/intake-key")]
    assert creator.packages == []


def test_login_refuses_a_changed_key_before_the_password_is_sent(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.requests.clear()
    creator.platform.intake = PlatformKeypair.generate()
    assert creator.run("login").exit_code == 1
    assert creator.platform.requests == [("GET", "vault/intake-key")]
    assert creator.run("login", "--trust-new-key").exit_code == 0
    assert creator.json("push", adapter, "--listing", listing)["state"] == "verified"


def test_an_upload_sealed_to_a_replaced_key_is_not_continued(creator: Machine, adapter: str, listing: str) -> None:
    creator.platform.failures["PUT package"] = 99
    assert creator.run("push", adapter, "--listing", listing).exit_code == 4
    creator.platform.failures.clear()
    creator.platform.intake = PlatformKeypair.generate()
    creator.ok("login", "--trust-new-key")
    assert creator.json("push", adapter, "--listing", listing)["version"] == 2


def test_publishing_without_a_price_says_what_to_run(creator: Machine, adapter: str, tmp_path: Path) -> None:
    listing = str(write_listing(tmp_path / "free", price=None))
    refused = creator.run("push", adapter, "--listing", listing, "--publish")
    assert refused.exit_code == 1 and "intarsia price acme/triage" in refused.stderr
    creator.ok("price", "acme/triage", "--input", "0.06", "--output", "0.24")
    assert "published" in creator.ok("publish", "acme/triage@1").stdout


def test_two_pushes_of_one_model_at_once_are_refused(creator: Machine, adapter: str, listing: str) -> None:
    results = []
    creator.platform.interrupt_after = lambda: results.append(creator_run_elsewhere(creator, adapter, listing))
    creator.json("push", adapter, "--listing", listing)
    (second,) = results
    assert second.returncode == 1 and "another push of acme/triage is running" in second.stderr


@pytest.mark.parametrize("when", ["sealing", "uploading"])
def test_control_c_leaves_a_state_to_continue_from_and_says_so(
    creator: Machine, adapter: str, listing: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        target = "creator_cli.push.seal_for_upload" if when == "sealing" else "creator_cli.push.upload_package"
        patched.setattr(target, interrupt)
        stopped = creator.run("push", adapter, "--listing", listing)
    assert stopped.exit_code == 130 and "when you run the same command again" in stopped.stderr
    assert "Traceback" not in stopped.output
    assert creator.json("push", adapter, "--listing", listing)["version"] == 1


@pytest.mark.deep
def test_a_killed_process_continues_in_another_one(creator: Machine, adapter: str, listing: str) -> None:
    """The real command, killed by SIGINT while its first chunk is on the way, then run again."""
    environment = {**os.environ, **creator.environment}
    command = [sys.executable, "-m", "creator_cli", "push", adapter, "--listing", listing, "--json"]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell ignores SIGINT for what it runs in the background, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    creator.platform.interrupt_after = lambda: process.send_signal(signal.SIGINT)
    creator.platform.drop_after = 5000
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["error"]["code"] == "interrupted" and "Traceback" not in stderr
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == 1


def creator_run_elsewhere(creator: Machine, adapter: str, listing: str) -> subprocess.CompletedProcess[str]:
    """The same push from another process."""
    command = [sys.executable, "-m", "creator_cli", "push", adapter, "--listing", listing]
    environment = {**os.environ, **creator.environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_a_version_that_waits_for_a_person_says_why_until_when_and_what_to_do(
    creator: Machine, adapter: str, listing: str
) -> None:
    creator.platform.reviewing = True
    said = creator.ok("push", adapter, "--listing", listing, "--publish").stdout
    assert "acme/triage@1 is in review" in said
    assert "No public model of this organization has been reviewed yet." in said
    assert "Mon 05 Jan 2026, 03:04 UTC" in said
    assert "acme/triage@1, and nobody else finds it" in said and '"visibility": "unlisted"' in said
    shown = creator.ok("status", "acme/triage").stdout
    assert "in review" in shown and "answer by" in shown
    creator.platform.reviewing = False
    pushed = creator.json("push", adapter, "--listing", listing, "--publish")
    assert pushed["version"] == 2 and pushed["state"] == "published", "a version in review holds nobody up"
