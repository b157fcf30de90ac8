"""The version that a bare name means: rolled out by percentage, rolled back, or made the default (`catalog.rollouts`).

Every function that changes it locks the model first, or is called under its lock.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Now

from marketplace.accounts import audit
from marketplace.accounts.audit import Actor
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.catalog import selectors
from marketplace.catalog.locks import lock_model
from marketplace.catalog.models import Model, Rollout, Version
from marketplace.catalog.rollouts import MOST_PERCENT

_Outcome = Rollout.Outcome
_ON_ITS_WAY = (Version.State.VERIFIED, Version.State.IN_REVIEW, Version.State.PUBLISHED)


@transaction.atomic
def set_rollout(*, version: Version, percent: int, actor: Actor) -> Rollout | None:
    """Give the version to `percent` of the model's customers under its bare name; return the rollout that is open.

    0 takes it back from all of them, 100 makes it the default. The customers of a smaller percentage stay among those
    of a larger one. Before the version is on sale nobody gets it. Raises InvalidInput for another percentage, Conflict
    while another version is rolled out, without a default beside it, and for the default itself.
    """
    if not 0 <= percent <= MOST_PERCENT:
        raise InvalidInput(f"must be 0 to {MOST_PERCENT}", field="percent")
    model = lock_model(version.model_id)
    version.refresh_from_db(fields=["state"])
    if percent == MOST_PERCENT and version.state == Version.State.PUBLISHED:
        make_default(version=version, actor=actor)
        return None
    rollout = selectors.open_rollout(model=model)
    if rollout is not None and rollout.version_id != version.pk:
        raise Conflict(
            f"version {rollout.version.number} is rolled out: end that first, with 0 or 100 percent",
            code="rollout_open",
        )
    if percent == 0:
        if rollout is None:
            raise Conflict(f"version {version.number} is not rolled out", code="no_rollout")
        _end(rollout, _Outcome.ROLLED_BACK)
    elif percent == MOST_PERCENT:
        if rollout is not None:  # once on sale, the version is the default
            _end(rollout, _Outcome.FINISHED)
    elif rollout is None:
        rollout = _begin(model, version, percent)
    else:
        Rollout.objects.filter(pk=rollout.pk).update(percent=percent)
    _record(version, "version.rollout", actor, percent=percent)
    return selectors.open_rollout(model=model)


@transaction.atomic
def make_default(*, version: Version, actor: Actor) -> Version:
    """Let the bare name mean this version for every customer, which ends a rollout. Idempotent.

    Raises Conflict unless the version is on sale.
    """
    model = lock_model(version.model_id)
    version.refresh_from_db(fields=["state"])
    if version.state != Version.State.PUBLISHED:
        raise Conflict(f"version {version.number} is {version.state}, so it is not for sale", code="wrong_state")
    rollout = selectors.open_rollout(model=model)
    if rollout is not None:
        ends = {rollout.version_id: _Outcome.FINISHED, rollout.baseline_id: _Outcome.ROLLED_BACK}
        _end(rollout, ends.get(version.pk, _Outcome.SUPERSEDED))
    elif selectors.default_version(model=model) == version:
        return version
    Model.objects.filter(pk=model.pk).update(default_version=version)
    _record(version, "version.default", actor)
    return version


@transaction.atomic
def stop_rollout(*, rollout: Rollout) -> bool:
    """End a rollout in the platform's name, because its version is worse; False if it has ended already."""
    lock_model(rollout.model_id)
    if not _end(rollout, _Outcome.STOPPED):
        return False
    _record(rollout.version, "version.rollout", audit.PLATFORM, percent=0)
    return True


def version_offered(version: Version, *, is_new: bool) -> None:
    """Let a version that came on sale be what the name means, if it is the newest: to all, or as it is rolled out.

    `is_new`: it was never on sale before. Called under the model's lock.
    """
    rollout = selectors.open_rollout(model=version.model)
    if not is_new or (rollout is not None and rollout.version_id == version.pk):
        return
    newer = Version.objects.filter(model_id=version.model_id, state=Version.State.PUBLISHED, number__gt=version.number)
    if newer.exists():
        return
    if rollout is not None:
        _end(rollout, _Outcome.SUPERSEDED)
    Model.objects.filter(pk=version.model_id).update(default_version=None)


def version_withdrawn(version: Version) -> None:
    """End the rollouts of a version that left the market; its replacement takes its place, or the newest on sale."""
    Rollout.objects.filter(Q(version=version) | Q(baseline=version), ended_at=None).update(
        ended_at=Now(), outcome=_Outcome.WITHDRAWN
    )
    if version.state not in (Version.State.RETIRED, Version.State.REVOKED):
        return
    on_sale = Version.objects.filter(model_id=version.model_id, state=Version.State.PUBLISHED)
    chosen = Model.objects.values_list("default_version_id", flat=True).get(pk=version.model_id)
    if chosen == version.pk or (chosen is None and not on_sale.filter(number__gt=version.number).exists()):
        named = version.replacement_id
        instead = None if named is None else on_sale.filter(pk=named).first()
        Model.objects.filter(pk=version.model_id).update(default_version=instead)


def _begin(model: Model, version: Version, percent: int) -> Rollout:
    if version.state not in _ON_ITS_WAY:
        raise Conflict(f"version {version.number} is {version.state} and cannot be rolled out", code="wrong_state")
    baseline = selectors.default_version(model=model)
    if baseline is None:
        raise Conflict("nothing of this model is for sale yet: publish the version to everybody", code="no_default")
    if baseline == version:
        raise Conflict(f"version {version.number} is what everybody gets already", code="is_default")
    # Without it the newest version would become the default as soon as it is on sale.
    Model.objects.filter(pk=model.pk).update(default_version=baseline)
    return Rollout.objects.create(model=model, version=version, baseline=baseline, percent=percent)


def _end(rollout: Rollout, outcome: Rollout.Outcome) -> bool:
    changes = {"percent": MOST_PERCENT} if outcome == _Outcome.FINISHED else {}
    return bool(Rollout.objects.filter(pk=rollout.pk, ended_at=None).update(ended_at=Now(), outcome=outcome, **changes))


def _record(version: Version, act: str, actor: Actor, **data: int) -> None:
    model = version.model
    audit.record(
        organization=model.organization,
        actor=actor,
        act=act,
        subject=f"{model.full_name}@{version.number}",
        data=data,
    )
