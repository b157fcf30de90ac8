"""Staff switch features: declared ones alone, by share and by name, recorded; whoever asks is refused by name."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from marketplace.accounts.errors import InvalidInput, NotFound, Refusal
from marketplace.accounts.features import FEATURES, Switch, is_on, require_on
from marketplace.accounts.models import AuditEntry, FeatureSwitch
from marketplace.operations.features import feature, features, switch_feature
from tests.marketplace.catalog.factories import make_organization, make_user


def test_a_larger_share_contains_each_smaller_one_and_names_count_first() -> None:
    organizations = [uuid4() for _ in range(500)]

    def on(percent: int) -> set[UUID]:
        return {one for one in organizations if Switch(percent).is_on("batches", one)}

    assert on(0) == set() and on(100) == set(organizations)
    assert on(10) < on(50) < on(100) and 150 < len(on(50)) < 350
    assert on(50) != {one for one in organizations if Switch(50).is_on("top-ups", one)}
    first, second = organizations[:2]
    assert Switch(0, on_for={first}).is_on("batches", first)
    assert not Switch(100, off_for={second}).is_on("batches", second)
    assert not Switch(99).is_on("batches", None) and Switch(100).is_on("batches", None)


@pytest.mark.django_db
def test_a_switch_is_recorded_once_and_refuses_by_name() -> None:
    staff, acme, other = make_user(is_staff=True), make_organization("acme"), make_organization("other")
    make_organization("intarsia")
    assert [(one.state, one.changed_at) for one in features()] == [("on", None)] * len(FEATURES)
    for _ in range(2):
        state = switch_feature(name="batches", percent=0, on_for=["acme"], by=staff)
    assert (state.state, state.on_for, state.off_for) == ("in part", ("acme",), ())
    assert is_on("batches", acme.pk) and is_on("top-ups", other.pk)
    with pytest.raises(Refusal) as refused:
        require_on("batches", other.pk)
    assert (refused.value.code, refused.value.status) == ("feature_off", 503)
    (entry,) = AuditEntry.objects.filter(act="feature.switched")
    assert (entry.subject, entry.as_staff) == ("batches", True)
    assert entry.data == {"percent": 0, "on_for": str(acme.pk), "off_for": ""}
    FeatureSwitch.objects.update(on_for=[uuid4()])  # of an organization that was erased since
    assert feature("batches").on_for == ()


@pytest.mark.django_db
def test_switches_that_mean_nothing_are_refused_and_change_nothing() -> None:
    staff = make_user(is_staff=True)
    make_organization("acme")
    with pytest.raises(NotFound):
        switch_feature(name="teleports", percent=0, by=staff)
    for field, wanted in (
        ("percent", {"percent": 101}),
        ("on_for", {"percent": 0, "on_for": ["nobody"]}),
        ("off_for", {"percent": 0, "on_for": ["acme"], "off_for": ["acme"]}),
        ("percent", {"name": "sign-ups", "percent": 50}),
        ("percent", {"name": "sign-ups", "percent": 0, "on_for": ["acme"]}),
    ):
        with pytest.raises(InvalidInput) as refused:
            switch_feature(**{"name": "batches", "by": staff, **wanted})
        assert refused.value.field == field
    assert {one.state for one in features()} == {"on"} and not AuditEntry.objects.filter(as_staff=True).exists()
