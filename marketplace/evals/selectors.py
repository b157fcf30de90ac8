"""Reads: an organization's sets and runs, and what is public of a run that is done."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Evaluation, Model, Version
from marketplace.evals.models import EvalCall, EvalRun, EvalSet, ModelGuard


def sets_of(*, model: Model) -> QuerySet[EvalSet]:
    """Return the model's sets, newest first. The caller has checked that the model is the viewer's."""
    return EvalSet.objects.filter(model=model).select_related("model__organization", "model__base_model")


def owned_set(*, organization: Organization, set_id: UUID) -> EvalSet | None:
    """Return one set of this organization, or None."""
    owned = EvalSet.objects.select_related("model__organization", "model__base_model", "signing_key")
    return owned.filter(organization=organization, pk=set_id).first()


def runs_of(*, model: Model) -> QuerySet[EvalRun]:
    """Return the runs of the model's sets, newest first. The caller has checked that the model is the viewer's."""
    return _runs().filter(eval_set__model=model).order_by("-created_at", "-id")


def owned_run(*, organization: Organization, run_id: UUID) -> EvalRun | None:
    """Return one run of this organization, or None."""
    return _runs().filter(eval_set__organization=organization, pk=run_id).first()


def public_run(*, run_id: UUID, viewer: Organization | None) -> tuple[EvalRun, Evaluation] | None:
    """Return a run that is done, with its figure, if its model may be seen; None else."""
    run = _runs().filter(pk=run_id, state=EvalRun.State.DONE).first()
    if run is None:
        return None
    model = run.version.model
    owner = viewer is not None and viewer.pk == model.organization_id
    if not owner and (model.visibility == Model.Visibility.PRIVATE or run.version.state != Version.State.PUBLISHED):
        return None
    evaluation = Evaluation.objects.select_related("version__model__base_model").filter(run_id=run_id).first()
    return None if evaluation is None else (run, evaluation)


def calls_of(*, run: EvalRun) -> QuerySet[EvalCall]:
    """Return the calls of a run that is done, row by row, the version's before the base's."""
    return EvalCall.objects.filter(run=run).order_by("row", "base")


def guard_of(*, model: Model) -> ModelGuard | None:
    """Return the guard of the model, or None. The caller has checked that the model is the viewer's."""
    return ModelGuard.objects.select_related("guard__model__organization", "run").filter(model=model).first()


def _runs() -> QuerySet[EvalRun]:
    return EvalRun.objects.select_related(
        "eval_set",
        "version__model__organization",
        "version__model__base_model",
        "eval_set__organization",
        "guard__model__organization",
    )
