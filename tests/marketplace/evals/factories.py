"""Evaluations as a run leaves them, without the run."""

from __future__ import annotations

import uuid

from django.utils import timezone

from marketplace.catalog.models import Evaluation, Version
from marketplace.evals.models import EvalCall, EvalRun, EvalSet
from marketplace.vault.models import SigningKey


def make_set(version: Version, *, rows: int) -> EvalSet:
    """A set that is ready to be run."""
    model = version.model
    key, _ = SigningKey.objects.get_or_create(organization=model.organization, public_key=model.pk.bytes * 2)
    return EvalSet.objects.create(
        organization=model.organization,
        model=model,
        number=EvalSet.objects.filter(model=model).count() + 1,
        scorer={"kind": "label", "field": "category"},
        rows=rows,
        signing_key=key,
        package_size=rows * 100,
        package_digest=uuid.uuid4().hex * 2,
        wrapped_key=b"wrapped",
        state=EvalSet.State.READY,
    )


def make_evaluation(
    version: Version, *, rows: int = 120, correct: int = 113, base_correct: int = 31, stored: EvalSet | None = None
) -> Evaluation:
    """The figure of a run that is done, with its calls; the first ones of each are right. `stored`: the set."""
    stored = stored or make_set(version, rows=rows)
    run = EvalRun.objects.create(
        eval_set=stored,
        version=version,
        state=EvalRun.State.DONE,
        budget_nano_usd=10**9,
        spent_nano_usd=10**6,
        calls_done=2 * rows,
        ended_at=timezone.now(),
    )
    EvalCall.objects.bulk_create(
        EvalCall(
            run=run,
            row=row,
            base=base,
            right=row <= (base_correct if base else correct),
            prediction_id=uuid.uuid4(),
            receipt_sha256=None if base and row == rows else bytes(32),
        )
        for row in range(1, rows + 1)
        for base in (False, True)
    )
    return Evaluation.objects.create(
        version=version,
        run_id=run.pk,
        set_number=stored.number,
        set_digest=str(stored.package_digest),
        scorer=stored.scorer,
        rows=rows,
        correct=correct,
        base_correct=base_correct,
        macro_f1_bps=9_400,
        base_macro_f1_bps=2_500,
    )
