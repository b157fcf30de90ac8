"""Staff switch features (`accounts/features.py`): how far each is on, and for which organizations in any case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import transaction

from marketplace.accounts.audit import Value
from marketplace.accounts.errors import InvalidInput, NotFound
from marketplace.accounts.features import FEATURES, Feature
from marketplace.accounts.locks import lock_feature_switch
from marketplace.accounts.models import FeatureSwitch, Organization, User
from marketplace.accounts.selectors import organization_named
from marketplace.operations.acts import record_act

MAX_NAMED = 200


@dataclass(frozen=True, slots=True)
class FeatureState:
    """A declared feature and its switch; organizations by name."""

    feature: Feature
    percent: int
    on_for: tuple[str, ...]
    off_for: tuple[str, ...]
    changed_at: datetime | None

    @property
    def state(self) -> str:
        """Return `on`, `off`, or `in part`."""
        if self.percent == 100 and not self.off_for:
            return "on"
        return "off" if self.percent == 0 and not self.on_for else "in part"


def features() -> list[FeatureState]:
    """Return every feature in the order of its declaration."""
    rows = {row.name: row for row in FeatureSwitch.objects.all()}
    ids = {one for row in rows.values() for one in (*row.on_for, *row.off_for)}
    names = dict(Organization.objects.filter(pk__in=ids).values_list("pk", "slug"))
    return [_state(feature, rows.get(feature.name), names) for feature in FEATURES.values()]


def feature(name: str) -> FeatureState:
    """Return one feature. Raises NotFound."""
    for state in features():
        if state.feature.name == name:
            return state
    raise NotFound("there is no such feature")


@transaction.atomic
def switch_feature(
    *, name: str, percent: int, on_for: Sequence[str] = (), off_for: Sequence[str] = (), by: User
) -> FeatureState:
    """Switch a feature: on for `percent` of the organizations, and on or off for those named. Idempotent.

    Gateways follow within 2 s, everything else at once; what has begun goes on. Raises NotFound, InvalidInput.
    """
    wanted = FEATURES.get(name)
    if wanted is None:
        raise NotFound("there is no such feature")
    if not 0 <= percent <= 100:
        raise InvalidInput("must be from 0 to 100", field="percent")
    if not wanted.per_organization and (percent not in (0, 100) or on_for or off_for):
        raise InvalidInput("this feature is on or off for everybody: 100 or 0, and no organization", field="percent")
    on, off = _ids(on_for, "on_for"), _ids(off_for, "off_for")
    if set(on) & set(off):
        raise InvalidInput("an organization is in one of the lists alone", field="off_for")
    row = lock_feature_switch(name)
    if (row.percent, row.on_for, row.off_for) != (percent, on, off):
        row.percent, row.on_for, row.off_for = percent, on, off
        row.save()
        # Ids, not names: an erasure could not take those out of the log.
        data: dict[str, Value] = {"percent": percent}
        data |= {"on_for": " ".join(map(str, on)), "off_for": " ".join(map(str, off))}
        record_act(by=by, act="feature.switched", subject=name, data=data)
    return feature(name)


def _ids(slugs: Sequence[str], field: str) -> list[UUID]:
    if len(slugs) > MAX_NAMED:
        raise InvalidInput(f"at most {MAX_NAMED} organizations are named", field=field)
    found = []
    for slug in slugs:
        organization = organization_named(slug)
        if organization is None:
            raise InvalidInput(f"there is no organization {slug!r}", field=field)
        found.append(organization.pk)
    return sorted(set(found))


def _state(feature: Feature, row: FeatureSwitch | None, names: dict[UUID, str]) -> FeatureState:
    if row is None:
        return FeatureState(feature, 100, (), (), None)

    def named(ids: Sequence[UUID]) -> tuple[str, ...]:
        return tuple(sorted(names[one] for one in ids if one in names))  # an erased organization is nobody

    return FeatureState(feature, row.percent, named(row.on_for), named(row.off_for), row.changed_at)
