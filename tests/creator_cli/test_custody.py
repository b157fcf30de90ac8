"""The custody log: shown, exported, verified offline, and every tampering noticed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.encoding import encode_base64url
from tests.creator_cli.conftest import Machine


@pytest.fixture
def export(creator: Machine, adapter: str, listing: str, tmp_path: Path) -> Path:
    """An export of three releases."""
    for _ in range(3):
        creator.json("push", adapter, "--listing", listing, "--publish")
    path = tmp_path / "custody.json"
    creator.ok("custody", "acme/triage", "--export", str(path))
    return path


def test_custody_lists_every_release_of_the_model(creator: Machine, adapter: str, listing: str) -> None:
    creator.json("push", adapter, "--listing", listing)
    shown = creator.ok("custody", "acme/triage")
    assert "verify" in shown.stdout and "cpu-1" in shown.stdout and "the chain is intact" in shown.stdout
    assert creator.platform.chain[0].hash().hex()[:16] in shown.stdout and "and signed 20" in shown.stdout
    document = creator.json("custody", "acme/triage")
    assert document["verified"]["releases"] == 1 and document["releases"][0]["purpose"] == "verify"


def test_a_good_export_verifies_without_the_platform(creator: Machine, export: Path) -> None:
    creator.running.stop()
    result = creator.ok("custody", "verify", str(export))
    assert "the chain is intact and signed 20" in result.stdout and "UTC; releases: 3" in result.stdout
    assert f"pinned for {creator.running.url}" in result.stdout
    document = creator.json("custody", "verify", str(export))
    assert document["ok"] and document["platform"] == creator.running.url and document["signed_at"].startswith("20")


def test_an_unknown_signer_proves_nothing(machine: Machine, export: Path, tmp_path: Path) -> None:
    refused = machine.run("custody", "verify", str(export), "--json", INTARSIA_CONFIG_DIR=str(tmp_path / "fresh"))
    assert refused.exit_code == 2 and json.loads(refused.stdout)["error"]["code"] == "unknown_signer"
    assert "intact" not in refused.output


def test_nothing_to_prove_is_never_called_intact(creator: Machine, adapter: str, listing: str, tmp_path: Path) -> None:
    creator.json("push", adapter, "--listing", listing)
    creator.platform.chain.clear()
    path = tmp_path / "empty.json"
    shown = creator.ok("custody", "acme/triage", "--export", str(path))
    assert "nothing is proven" in shown.stdout and "intact" not in shown.output
    assert creator.json("custody", "acme/triage")["verified"]["ok"] is False
    refused = creator.run("custody", "verify", str(path))
    assert refused.exit_code == 2 and "nothing is proven" in refused.stderr and "intact" not in refused.output


def test_a_chain_of_another_organization_is_refused_even_if_the_platform_signed_it(
    creator: Machine, export: Path
) -> None:
    """The platform answers with somebody else's chain, good in itself: it says nothing about the own keys."""
    platform = creator.platform
    chain, own = platform.chain, platform.organization_id
    platform.organization_id, platform.chain = uuid.uuid4(), []
    version = next(iter(platform.versions.values()))
    for _ in chain:
        platform.release(version, "serve")
    foreign = platform.export()[1]
    platform.organization_id = own  # what `me` says
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform, "export", lambda: (200, foreign))
        refused = creator.run("custody", "acme/triage", "--json")
    assert refused.exit_code == 2 and json.loads(refused.stdout)["error"]["code"] == "foreign_chain"
    export.write_text(json.dumps(foreign))
    refused = creator.run("custody", "verify", str(export), "--json")
    assert refused.exit_code == 2 and json.loads(refused.stdout)["error"]["code"] == "foreign_chain"


def test_an_organization_that_changes_its_id_is_noticed(creator: Machine, export: Path) -> None:
    creator.platform.organization_id = uuid.uuid4()
    creator.platform.chain.clear()
    refused = creator.run("custody", "acme/triage", "--json")
    assert refused.exit_code == 2 and json.loads(refused.stdout)["error"]["code"] == "organization_changed"


def test_the_rows_listed_are_those_of_the_chain(creator: Machine, export: Path) -> None:
    platform = creator.platform
    honest = platform.custody("acme/triage")

    def lies(change: Callable[[dict[str, Any]], None]) -> Any:
        value = json.loads(json.dumps(honest[1]))
        change(value)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(platform, "custody", lambda name: (200, value))
            return creator.run("custody", "acme/triage", "--json")

    other = encode_base64url(bytes(32))
    for change in (
        lambda value: value["releases"][0].update(entry_hash=other),
        lambda value: value["releases"][0].update(sequence=2),
        lambda value: value["releases"][0].update(sequence=9),
    ):
        refused = lies(change)
        assert refused.exit_code == 2 and "the platform lists it" in refused.stderr
    # Rows that the list leaves out, or gives another purpose and time, are shown as the chain has them.
    for change in (
        lambda value: value["releases"].clear(),
        lambda value: value["releases"][0].update(purpose="serve", version=9, released_at=1),
    ):
        rows = json.loads(lies(change).stdout)["releases"]
        assert [(row["sequence"], row["version"], row["purpose"]) for row in rows] == [
            (3, 3, "verify"),
            (2, 2, "verify"),
            (1, 1, "verify"),
        ]
        assert [row["released_at"] for row in rows] == [entry.released_at for entry in reversed(platform.chain)]


def _drop_row(value: dict[str, Any]) -> None:
    del value["releases"][1]


def _cut_the_end(value: dict[str, Any]) -> None:
    value["releases"].pop()


def _change_a_time(value: dict[str, Any]) -> None:
    value["releases"][0]["released_at"] += 1


def _change_a_purpose(value: dict[str, Any]) -> None:
    value["releases"][-1]["purpose"] = "serve"


def _swap(value: dict[str, Any]) -> None:
    value["releases"][:2] = value["releases"][1::-1]


def _remove_the_checkpoint(value: dict[str, Any]) -> None:
    value["checkpoint"] = None


def _sign_with_another_key(value: dict[str, Any]) -> None:
    import base64

    value["vault_public_key"] = base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode()


def _say_it_is_somebody_elses(value: dict[str, Any]) -> None:
    value["creator_id"] = "00000000-0000-0000-0000-000000000001"


def _add_a_field(value: dict[str, Any]) -> None:
    value["releases"][0]["more"] = 1


@pytest.mark.parametrize(
    "tamper",
    [
        _drop_row,
        _cut_the_end,
        _change_a_time,
        _change_a_purpose,
        _swap,
        _remove_the_checkpoint,
        _sign_with_another_key,
        _say_it_is_somebody_elses,
        _add_a_field,
    ],
)
def test_a_tampered_export_is_refused(creator: Machine, export: Path, tamper: Callable[[dict[str, Any]], None]) -> None:
    value = json.loads(export.read_text())
    tamper(value)
    export.write_text(json.dumps(value))
    refused = creator.run("custody", "verify", str(export), "--json")
    assert refused.exit_code == 2, refused.output
    assert "error" in json.loads(refused.stdout) and "Traceback" not in refused.output


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "other"}', "\x00\xff", "[" * 100_000])
def test_a_file_that_is_no_export_is_refused(machine: Machine, tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    refused = machine.run("custody", "verify", str(path))
    assert refused.exit_code == 2 and "Traceback" not in refused.output


def test_a_chain_that_became_shorter_or_was_rewritten_is_noticed(creator: Machine, export: Path) -> None:
    last = creator.platform.chain.pop()
    shorter = creator.run("custody", "acme/triage")
    assert shorter.exit_code == 2 and "had 3 when it was last seen" in shorter.stderr
    creator.platform.release({**next(iter(creator.platform.versions.values())), "number": 1}, "verify")
    assert creator.platform.chain[-1].hash() != last.hash()
    rewritten = creator.run("custody", "acme/triage")
    assert rewritten.exit_code == 2 and "its hash is not the one in the signed checkpoint" in rewritten.stderr


def trust_new_key(creator: Machine) -> None:
    creator.ok("login", "--trust-new-key")


def test_checkpoints_survive_a_changed_key_that_the_user_accepts(creator: Machine, export: Path) -> None:
    platform = creator.platform
    whole = list(platform.chain)
    platform.vault = Ed25519PrivateKey.generate()
    trust_new_key(creator)
    platform.chain.pop()
    assert "had 3 when it was last seen" in creator.run("custody", "acme/triage").stderr
    platform.release({**next(iter(platform.versions.values())), "number": 1}, "verify")
    assert "its hash is not the one" in creator.run("custody", "acme/triage").stderr
    platform.chain[:] = whole
    assert "the chain is intact" in creator.ok("custody", "acme/triage").stdout


def test_an_export_that_was_cut_and_signed_again_is_refused_but_an_older_one_is_not(
    creator: Machine, export: Path, tmp_path: Path
) -> None:
    platform = creator.platform
    platform.release(next(iter(platform.versions.values())), "serve")
    creator.ok("custody", "acme/triage")  # four are seen now
    creator.ok("custody", "verify", str(export))  # three were all there were when it was signed
    platform.chain.pop()
    export.write_text(json.dumps(platform.export()[1]))  # three, signed after four were seen
    refused = creator.run("custody", "verify", str(export))
    assert refused.exit_code == 2 and "had 4 when it was last seen" in refused.stderr


def test_an_old_checkpoint_is_not_accepted_as_todays(creator: Machine, export: Path) -> None:
    creator.platform.signed_earlier = 600.0
    refused = creator.run("custody", "acme/triage")
    assert refused.exit_code == 2 and "older than the one that was last seen" in refused.stderr


def test_checkpoints_of_an_earlier_version_without_a_time_still_count(creator: Machine, export: Path) -> None:
    path = creator.config_dir / "known_platforms.json"
    known = json.loads(path.read_text())
    for platform in known.values():
        for checkpoint in platform["checkpoints"].values():
            del checkpoint["signed_at"], checkpoint["vault_public_key"]
    path.write_text(json.dumps(known))
    creator.ok("custody", "verify", str(export))
    creator.platform.chain.pop()
    assert "had 3 when it was last seen" in creator.run("custody", "acme/triage").stderr


def test_a_changed_vault_key_is_refused(creator: Machine, export: Path) -> None:
    creator.platform.vault = Ed25519PrivateKey.generate()
    refused = creator.run("custody", "acme/triage")
    assert refused.exit_code == 2 and "the key that signs the custody log changed" in refused.stderr
