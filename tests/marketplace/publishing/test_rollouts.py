"""The version that a bare name means, through rollouts, rollbacks, reviews and withdrawals."""

from __future__ import annotations

import pytest

from marketplace.accounts.audit import PLATFORM
from marketplace.accounts.errors import Conflict, InvalidInput
from marketplace.catalog import selectors
from marketplace.catalog.models import Model, Rollout, Version
from marketplace.catalog.services import make_default, set_rollout, stop_rollout
from marketplace.publishing import services as publishing
from marketplace.publishing.gate import put_on_sale
from tests.marketplace.accounts.acts import acts_of
from tests.marketplace.catalog.factories import make_model, make_version

pytestmark = pytest.mark.django_db
State = Version.State


def pair(state: str = State.VERIFIED) -> tuple[Version, Version]:
    """A published version and one after it."""
    first = make_version()
    return first, make_version(first.model, state)


def meant(model: Model) -> int | None:
    version = selectors.default_version(model=model)
    listed = selectors.models_of(organization=model.organization).get(pk=model.pk).facts.newest
    assert listed == version, "a listing shows what the name means"
    return version and version.number


def outcome() -> str:
    return Rollout.objects.latest("started_at").outcome


def test_a_version_is_published_to_a_part_and_then_to_everybody() -> None:
    first, second = pair()
    rollout = publishing.roll_out(version=second, percent=10, actor=PLATFORM)
    second.refresh_from_db()
    assert rollout is not None and (rollout.percent, rollout.baseline) == (10, first)
    assert second.state == State.PUBLISHED and meant(first.model) == 1
    publishing.roll_out(version=second, percent=50, actor=PLATFORM)
    assert Rollout.objects.get().percent == 50
    assert publishing.roll_out(version=second, percent=100, actor=PLATFORM) is None
    assert meant(first.model) == 2 and outcome() == Rollout.Outcome.FINISHED
    acts = acts_of(first.model.organization, "version.default", "version.rollout")
    assert acts == ["version.default", "version.rollout", "version.rollout"]


def test_a_rollout_is_rolled_back_during_and_after_it() -> None:
    first, second = pair(State.PUBLISHED)
    make_default(version=first, actor=PLATFORM)
    publishing.roll_out(version=second, percent=20, actor=PLATFORM)
    publishing.roll_out(version=second, percent=0, actor=PLATFORM)
    assert meant(first.model) == 1 and outcome() == Rollout.Outcome.ROLLED_BACK
    make_default(version=second, actor=PLATFORM)
    assert meant(first.model) == 2
    make_default(version=first, actor=PLATFORM)
    assert meant(first.model) == 1
    third = make_version(first.model, State.VERIFIED)
    publishing.publish_version(version=third)
    assert meant(first.model) == 3, "published to everybody, a newer version is what the name means"


def test_what_cannot_be_rolled_out_is_refused_and_changes_nothing() -> None:
    first, second = pair()
    for percent in (-1, 101):
        with pytest.raises(InvalidInput):
            set_rollout(version=second, percent=percent, actor=PLATFORM)
    third = make_version(first.model, State.VERIFIED)
    lone, refused = make_version(make_model(), State.VERIFIED), make_version(first.model, State.REFUSED)
    publishing.roll_out(version=second, percent=5, actor=PLATFORM)
    wrong = [(third, 5, "rollout_open"), (third, 0, "rollout_open"), (lone, 5, "no_default"), (lone, 0, "no_rollout")]
    for version, percent, code in wrong:
        with pytest.raises(Conflict) as refusal:
            publishing.roll_out(version=version, percent=percent, actor=PLATFORM)
        assert refusal.value.code == code
    publishing.roll_out(version=second, percent=0, actor=PLATFORM)
    for version, code in ((refused, "wrong_state"), (first, "is_default")):
        with pytest.raises(Conflict) as refusal:
            publishing.roll_out(version=version, percent=5, actor=PLATFORM)
        assert refusal.value.code == code
    with pytest.raises(Conflict):
        make_default(version=third, actor=PLATFORM)
    assert meant(first.model) == 1 and not Rollout.objects.filter(ended_at=None).exists()


def test_a_version_in_review_is_rolled_out_once_it_is_approved() -> None:
    first = make_version(make_model(reviewed=False))
    second = make_version(first.model, State.VERIFIED)
    publishing.roll_out(version=second, percent=10, actor=PLATFORM)
    second.refresh_from_db()
    assert second.state == State.IN_REVIEW and meant(first.model) == 1
    put_on_sale(second)
    assert meant(first.model) == 1 and Rollout.objects.get().ended_at is None


@pytest.mark.parametrize("leaves", ["version", "baseline"])
def test_a_rollout_ends_with_either_version(leaves: str) -> None:
    first, second = pair()
    publishing.roll_out(version=second, percent=10, actor=PLATFORM)
    publishing.revoke_version(version=second if leaves == "version" else first, reason="x")
    assert outcome() == Rollout.Outcome.WITHDRAWN
    assert meant(first.model) == (1 if leaves == "version" else 2)


def test_the_platform_stops_a_rollout_once() -> None:
    first, second = pair()
    rollout = publishing.roll_out(version=second, percent=10, actor=PLATFORM)
    assert rollout is not None
    assert stop_rollout(rollout=rollout) and not stop_rollout(rollout=rollout)
    assert meant(first.model) == 1 and outcome() == Rollout.Outcome.STOPPED
