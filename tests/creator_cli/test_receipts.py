"""`intarsia receipt`: keys are kept and never contradicted, and receipts verify with the network away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.creator_cli.conftest import Machine
from tests.protocol.proofs import made


@pytest.fixture
def files(creator: Machine, tmp_path: Path) -> tuple[Path, Path]:
    """A receipt and a key file, kept while the platform was there. It is gone."""
    receipt, keys = tmp_path / "receipt.json", tmp_path / "keys.json"
    creator.ok("receipt", "get", made.PREDICTION, "-o", str(receipt))
    creator.ok("receipt", "keys", "--export", str(keys))
    creator.running.stop()
    return receipt, keys


def code(machine: Machine, *arguments: str) -> str:
    """The code with which a command refuses, with exit status 2."""
    return str(machine.json(*arguments, exit_code=2)["error"]["code"])


def test_a_receipt_verifies_offline_with_the_saved_keys_and_with_a_file(
    creator: Machine, files: tuple[Path, Path]
) -> None:
    receipt, keys = files
    shown = creator.ok("receipt", "verify", str(receipt)).stdout
    for part in ("is valid", "$0.000018999", "batch, 50 % of the list price", "tree of 2025-11-24, of 5 receipts"):
        assert part in shown, part
    found: Any = creator.json("receipt", "verify", str(receipt), "--keys", str(keys))
    assert found["ok"] and found["charged_nano_usd"] == 18_999 and found["day"]["size"] == 5
    assert found["keys"]["source"] == str(keys)
    assert [part["nano_usd"] for part in found["charge"]["split"]] == [15_553, 446, 4_000]


def test_a_changed_receipt_is_refused_by_its_rule(creator: Machine, files: tuple[Path, Path]) -> None:
    receipt, _ = files
    document = json.loads(receipt.read_bytes())
    for change, rule in (
        ({"charge": made.signed(made.charge(cost_nano_usd=1))}, "cost"),
        ({"charge": made.signed(made.charge(), made.NEW)}, "signature"),
        ({"corrections": [made.signed(made.correction(20_000))]}, "corrections"),
        ({"format": "other"}, "malformed"),
    ):
        receipt.write_text(json.dumps({**document, **change}))
        assert code(creator, "receipt", "verify", str(receipt)) == rule
    assert code(creator, "receipt", "verify", str(receipt.parent / "none.json")) == "refused"


def test_a_key_that_the_saved_file_does_not_have_or_had_ended_proves_nothing(
    creator: Machine, files: tuple[Path, Path], tmp_path: Path
) -> None:
    receipt, keys = files
    document = json.loads(receipt.read_bytes())
    receipt.write_text(json.dumps({**document, "charge": made.signed(made.charge(), made.NEW, made.NEW_ID)}))
    assert code(creator, "receipt", "verify", str(receipt)) == "unknown_key"
    keys.write_bytes(msgspec.json.encode(made.key_file(rotated=True)))
    assert code(creator, "receipt", "verify", str(receipt), "--keys", str(keys)) == "key_not_valid_then"


def test_nothing_is_proven_on_a_machine_without_keys(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "receipt.json").write_bytes(made.document())
    assert code(machine, "receipt", "verify", str(tmp_path / "receipt.json")) == "unknown_key"


def test_endorsed_keys_are_added_and_other_ones_refused_without_being_saved(creator: Machine) -> None:
    creator.ok("receipt", "keys")
    creator.platform.receipt_keys = made.key_file(rotated=True)
    assert len(creator.json("receipt", "keys")["keys"]) == 2
    saved = (creator.config_dir / "receipt_keys.json").read_bytes()
    creator.platform.receipt_keys = made.key_file()  # the second key is denied
    assert code(creator, "receipt", "keys") == "key_changed"
    assert (creator.config_dir / "receipt_keys.json").read_bytes() == saved


def test_keys_need_no_login_but_receipts_do(machine: Machine) -> None:
    machine.ok("receipt", "keys")
    assert machine.run("receipt", "get", made.PREDICTION).exit_code == 3
