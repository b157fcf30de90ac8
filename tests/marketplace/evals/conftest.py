"""A creator with credit, a published model, and a set of rows that is sealed and uploaded as the command does it."""

from __future__ import annotations

import dataclasses
import io
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from billing.lots import deposit
from billing.models import Account, LedgerTransaction, Lot
from marketplace.calls import caller
from marketplace.evals.models import EvalRun, EvalSet
from marketplace.evals.runs import start_run
from marketplace.evals.sets import append_set_chunk, complete_set, start_set
from marketplace.evals.tasks import run_evaluation
from marketplace.vault import keys
from marketplace.vault.services import register_signing_key
from sealed_weights import CreatorIdentity, generate_key, seal_rows, wrap_dek_for_platform
from tests.marketplace.gateway.conftest import World, _own_database_url, shared_gateway, world

__all__ = ["_own_database_url", "api", "shared_gateway", "world"]

IDENTITY = CreatorIdentity.generate()
LABEL = {"kind": "label", "field": "category"}
CONTRACT = {
    "instruction_tokens": 20,
    "max_tokens": 24,
    "output_schema": {"type": "object", "properties": {"category": {"enum": ["dining", "income"]}}},
    "messages": "single",
    "system": "replace",
    "logprobs": "none",
}
CANARY = "kanarienvogel"


def rows(*labels: str) -> bytes:
    """Rows with texts that are found nowhere else."""
    return b"".join(
        json.dumps({"message": f"{CANARY} {number}", "expected": {"category": label}}).encode() + b"\n"
        for number, label in enumerate(labels)
    )


def fund(world: World, amount: int = 500_000_000) -> None:
    """Give the creator credit."""
    deposit(
        organization=world.creator,
        amount_nano_usd=amount,
        source=Account.Kind.STRIPE_CASH,
        lot_kind=Lot.Kind.PAID,
        kind=LedgerTransaction.Kind.TOP_UP,
        reference=str(uuid.uuid4()),
    )


def upload_set(
    world: World, data: bytes, folder: Path, *, scorer: dict[str, Any] = LABEL, announced: int | None = None
) -> EvalSet:
    """Seal `data` and upload it, as the creator's command does."""
    key = register_signing_key(organization=world.creator, public_key=IDENTITY.public_bytes())
    sealed_size = len(data) + 164 + 64 + 16 * -(-len(data) // (1 << 20))
    count = data.count(b"\n") if announced is None else announced
    started = start_set(model=world.model, signing_key=key, package_size=sealed_size, rows=count, scorer=scorer)
    dek = generate_key()
    package = seal_rows(
        data,
        folder / f"set-{started.number}.sealed",
        dek=dek,
        identity=IDENTITY,
        creator_id=world.creator.pk,
        model_id=world.model.pk,
        number=started.number,
        base_fingerprint=bytes.fromhex(world.model.base_model.fingerprint),
    )
    wrapped = wrap_dek_for_platform(
        dek,
        keys.intake_public_key(),
        creator_id=world.creator.pk,
        model_id=world.model.pk,
        version=started.number,
        digest=package.digest,
    )
    stored = package.path.read_bytes()
    append_set_chunk(eval_set=started, offset=0, stream=io.BytesIO(stored), length=len(stored))
    return complete_set(eval_set=started, digest=package.digest, wrapped_data_key=wrapped)


@pytest.fixture
def api(world: World, settings: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world, called by a worker; its model has a contract and answers `dining`."""
    environment = dataclasses.replace(settings.ENV, api_url=world.url, blob_dir=tmp_path / "blobs")  # type: ignore[attr-defined]
    settings.ENV = environment  # type: ignore[attr-defined]
    monkeypatch.setattr(caller, "LONGEST_WAIT", 0.2)
    world.replica.texts = ['{"category":"dining"}']
    return world


@pytest.fixture
def begin(api: World, tmp_path: Path) -> Callable[..., Any]:
    """Upload rows and start a run of them."""

    @sync_to_async
    def begin(data: bytes, *, budget: int | None = None, **options: Any) -> EvalRun:
        api.version.contract = CONTRACT
        api.version.save(update_fields=["contract"])
        fund(api)
        return start_run(
            eval_set=upload_set(api, data, tmp_path, **options), version=api.version, budget_nano_usd=budget
        )

    return begin


@sync_to_async
def work(run: EvalRun) -> EvalRun:
    """Do what a worker does with the run's task."""
    run_evaluation(str(run.pk))
    return EvalRun.objects.get(pk=run.pk)
