"""Royalties of derived models, and how a cost is divided among creator, ancestors, referrer and platform."""

from __future__ import annotations

import uuid

import pytest
from django.db import IntegrityError, transaction
from hypothesis import given
from hypothesis import strategies as st

from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.catalog import services
from marketplace.catalog.models import Model
from marketplace.catalog.services.derivation import MAX_GENERATIONS
from marketplace.catalog.shares import Share, shares
from tests.marketplace.catalog.factories import make_model, make_organization, make_version

A, B, C, R = (uuid.UUID(int=number) for number in range(1, 5))


def test_each_model_above_takes_its_royalty_of_what_the_one_below_has() -> None:
    parts = shares(creator=C, royalties=[(B, 2_000), (A, 5_000)], fee_bps=2_000, referrer=R, referral_bps=500)
    assert parts == (
        Share(C, 6_400, "creator"),
        Share(B, 800, "upstream"),
        Share(A, 800, "upstream"),
        Share(R, 500, "referral"),
        Share(None, 1_500, "platform"),
    )


def test_parts_of_nothing_are_left_out_and_a_referrer_takes_no_more_than_the_fee() -> None:
    assert shares(creator=C, royalties=[(B, 10_000)], fee_bps=300, referrer=R, referral_bps=500) == (
        Share(B, 9_700, "upstream"),
        Share(R, 300, "referral"),
    )
    assert shares(creator=C, royalties=[], fee_bps=2_000) == (
        Share(C, 8_000, "creator"),
        Share(None, 2_000, "platform"),
    )


bps = st.integers(0, 10_000)


@given(st.lists(bps, max_size=MAX_GENERATIONS), bps, st.booleans(), bps)
def test_the_parts_are_the_whole(royalties: list[int], fee: int, referred: bool, referral: int) -> None:
    chain = [(uuid.UUID(int=10 + number), royalty) for number, royalty in enumerate(royalties)]
    parts = shares(creator=C, royalties=chain, fee_bps=fee, referrer=R if referred else None, referral_bps=referral)
    assert sum(part.basis_points for part in parts) == 10_000
    assert all(part.basis_points > 0 for part in parts)
    assert sum(part.basis_points for part in parts if part.reason in ("referral", "platform")) == fee


def upstream(royalty_bps: int | None = 1_000) -> Model:
    model = make_version().model
    return services.offer_derivation(model=model, royalty_bps=royalty_bps)


@pytest.mark.django_db
def test_a_derivation_keeps_the_royalty_at_which_it_was_declared() -> None:
    above, below = upstream(1_000), make_model()
    services.derive_from(model=below, upstream_name=above.full_name)
    services.offer_derivation(model=above, royalty_bps=9_000)
    services.derive_from(model=below, upstream_name=above.full_name)  # again: nothing new
    below.refresh_from_db()
    assert (below.derived_from, below.royalty_bps) == (above, 1_000)
    with pytest.raises(Conflict, match="stands"):
        services.derive_from(model=below, upstream_name=upstream().full_name)
    for change in ({"derived_from": None, "royalty_bps": 0}, {"royalty_bps": 1}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Model.objects.filter(pk=below.pk).update(**change)
    below.refresh_from_db()
    assert (below.derived_from, below.royalty_bps) == (above, 1_000)


@pytest.mark.django_db
def test_a_model_is_derived_only_from_what_is_open_and_seen() -> None:
    below, closed, draft = make_model(), upstream(None), make_model()
    services.offer_derivation(model=draft, royalty_bps=0)
    with pytest.raises(Conflict, match="not open"):
        services.derive_from(model=below, upstream_name=closed.full_name)
    for name in (draft.full_name, "no-body/nothing", f"{closed.full_name}@1"):
        with pytest.raises(NotFound):
            services.derive_from(model=below, upstream_name=name)
    for name in (below.full_name, "no slash", ""):
        with pytest.raises(InvalidInput):
            services.derive_from(model=below, upstream_name=name)
    below.refresh_from_db()
    assert below.derived_from is None


@pytest.mark.django_db
def test_an_organization_derives_from_its_own_model_for_nothing() -> None:
    organization = make_organization()
    above, below = make_model(organization, slug="one"), make_model(organization, slug="two")
    services.derive_from(model=below, upstream_name=above.full_name)
    assert (below.derived_from, below.royalty_bps) == (above, 0)


@pytest.mark.django_db
def test_chains_have_no_circles_and_an_end() -> None:
    first, second = upstream(), upstream()
    services.derive_from(model=second, upstream_name=first.full_name)
    with pytest.raises(Conflict):
        services.derive_from(model=first, upstream_name=second.full_name)
    last = second
    for _ in range(MAX_GENERATIONS - 1):
        above, last = last, upstream()
        services.derive_from(model=last, upstream_name=above.full_name)
    one_more = make_model()
    with pytest.raises(Conflict):
        services.derive_from(model=one_more, upstream_name=last.full_name)
    one_more.refresh_from_db()
    first.refresh_from_db()
    assert one_more.derived_from is None and first.derived_from is None
