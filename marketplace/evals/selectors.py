"""Reads: an organization's sets and runs, what is public of a run that is done, and versions on checkpoints."""

from __future__ import annotations

from uuid import UUID

from django.db.models import Q, QuerySet

from marketplace.accounts.models import Organization
from marketplace.catalog.models import Clearance, Evaluation, Model, Version
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
        "checkpoint",
        "guard__model__organization",
    )


def clearances(*, line: str = "", state: str = "") -> QuerySet[Clearance]:
    """Return every version on every checkpoint, of one base line or in one state alone; for the platform's staff."""
    found = _clearances()
    if line:
        found = found.filter(checkpoint__line__name=line)
    return found.filter(state=state) if state else found


def clearances_of(*, model: Model, owner: bool) -> QuerySet[Clearance]:
    """Return the model's versions on checkpoints, newest first; strangers see where those on sale are served."""
    found = _clearances().filter(version__model=model)
    return found if owner else found.filter(version__state=Version.State.PUBLISHED, is_cleared=True)


def clearance_of(*, version: Version, checkpoint: str) -> Clearance | None:
    """Return the version on this checkpoint, by its fingerprint or name. The caller has checked whose it is."""
    named = Q(checkpoint__fingerprint=checkpoint) | Q(checkpoint__name=checkpoint)
    return _clearances().filter(named, version=version).first()


def clearance_by_id(*, clearance_id: UUID) -> Clearance | None:
    """Return one version on one checkpoint, for the platform's staff."""
    return _clearances().filter(pk=clearance_id).first()


def _clearances() -> QuerySet[Clearance]:
    related = ("version__model__organization", "checkpoint__line")
    return Clearance.objects.select_related(*related).order_by("-version__created_at", "checkpoint__created_at", "id")
