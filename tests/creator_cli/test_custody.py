"""The custody log: shown, exported, verified offline, and every tampering noticed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

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
    assert creator.platform.chain[0].hash().hex()[:16] in shown.stdout
    document = creator.json("custody", "acme/triage")
    assert document["verified"]["releases"] == 1 and document["releases"][0]["purpose"] == "verify"


def test_a_good_export_verifies_without_the_platform(creator: Machine, export: Path) -> None:
    creator.running.stop()
    result = creator.ok("custody", "verify", str(export))
    assert "the chain is intact and signed; releases: 3" in result.stdout
    assert f"pinned for {creator.running.url}" in result.stdout


def test_an_export_verifies_on_a_machine_that_never_saw_the_platform(
    machine: Machine, export: Path, tmp_path: Path
) -> None:
    result = machine.ok("custody", "verify", str(export), "--json", INTARSIA_CONFIG_DIR=str(tmp_path / "fresh"))
    document = json.loads(result.stdout)
    assert document["ok"] and document["platform"] is None and "no pinned key" not in result.stdout


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


def test_a_changed_vault_key_is_refused(creator: Machine, export: Path) -> None:
    creator.platform.vault = Ed25519PrivateKey.generate()
    refused = creator.run("custody", "acme/triage")
    assert refused.exit_code == 1 and "the key that signs the custody log changed" in refused.stderr
