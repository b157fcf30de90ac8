"""Royalties of derived models, and how a cost is divided among creator, ancestors, referrer and platform."""

from __future__ import annotations

import uuid

import pytest
from django.db import IntegrityError, transaction
from hypothesis import given
from hypothesis import strategies as st

from marketplace.accounts.errors import Conflict, InvalidInput, NotFound
from marketplace.catalog import services
from marketplace.catalog.models import MAX_SOURCES, Model, Source
from marketplace.catalog.services import DeclaredSource
from marketplace.catalog.services.derivation import MAX_GENERATIONS
from marketplace.catalog.shares import Royalty, Share, shares
from tests.database import as_owner
from tests.marketplace.catalog.factories import make_model, make_organization, make_version

A, B, C, R = (uuid.UUID(int=number) for number in range(1, 5))


def test_each_model_above_takes_its_royalty_of_what_the_one_below_has() -> None:
    parts = shares(
        creator=C, royalties=[Royalty(B, 2_000, (Royalty(A, 5_000),))], fee_bps=2_000, referrer=R, referral_bps=500
    )
    assert parts == (
        Share(C, 6_400, "creator"),
        Share(B, 800, "upstream"),
        Share(A, 800, "upstream"),
        Share(R, 500, "referral"),
        Share(None, 1_500, "platform"),
    )


def test_parts_of_nothing_are_left_out_and_a_referrer_takes_no_more_than_the_fee() -> None:
    assert shares(creator=C, royalties=[Royalty(B, 10_000)], fee_bps=300, referrer=R, referral_bps=500) == (
        Share(B, 9_700, "upstream"),
        Share(R, 300, "referral"),
    )
    assert shares(creator=C, royalties=[], fee_bps=2_000) == (
        Share(C, 8_000, "creator"),
        Share(None, 2_000, "platform"),
    )


def test_the_models_of_a_blend_take_theirs_and_a_common_ancestor_has_one_part() -> None:
    from_a = (Royalty(A, 5_000),)
    blend = [Royalty(B, 2_000, from_a), Royalty(R, 1_000, from_a), Royalty(A, 500)]
    assert shares(creator=C, royalties=blend, fee_bps=2_000) == (
        Share(C, 5_200, "creator"),
        Share(B, 800, "blend"),
        Share(A, 800 + 400 + 400, "upstream"),
        Share(R, 400, "blend"),
        Share(None, 2_000, "platform"),
    )


bps = st.integers(0, 10_000)
payee = st.integers(1, 6).map(lambda number: uuid.UUID(int=number))


@st.composite
def above(draw: st.DrawFn, generations: int = MAX_GENERATIONS) -> tuple[Royalty, ...]:
    """Sources, with those above them, whose royalties are together at most everything."""
    left, found = 10_000, []
    for _ in range(draw(st.integers(0, 3)) if generations else 0):
        royalty_bps = draw(st.integers(0, left))
        left -= royalty_bps
        found.append(Royalty(draw(payee), royalty_bps, draw(above(generations - 1))))
    return tuple(found)


@given(above(), bps, st.booleans(), bps)
def test_the_parts_are_the_whole(royalties: tuple[Royalty, ...], fee: int, referred: bool, referral: int) -> None:
    parts = shares(creator=C, royalties=royalties, fee_bps=fee, referrer=R if referred else None, referral_bps=referral)
    assert sum(part.basis_points for part in parts) == 10_000
    assert all(part.basis_points > 0 for part in parts)
    assert sum(part.basis_points for part in parts if part.reason in ("referral", "platform")) == fee
    earners = [part.organization_id for part in parts if part.reason in ("upstream", "blend")]
    assert len(earners) == len(set(earners))


def derive(model: Model, *sources: Model | str | DeclaredSource) -> None:
    services.derive_from(
        model=model,
        sources=[
            one if isinstance(one, DeclaredSource) else DeclaredSource(one if isinstance(one, str) else one.full_name)
            for one in sources
        ],
    )


def declared(model: Model) -> list[tuple[Model, int]]:
    return [(source.upstream, source.royalty_bps) for source in model.sources.order_by("place")]


def upstream(royalty_bps: int | None = 1_000) -> Model:
    model = make_version().model
    return services.offer_derivation(model=model, royalty_bps=royalty_bps)


@pytest.mark.django_db
def test_a_derivation_keeps_the_royalty_at_which_it_was_declared() -> None:
    above, below = upstream(1_000), make_model()
    derive(below, above)
    services.offer_derivation(model=above, royalty_bps=9_000)
    derive(below, above)  # again: nothing new
    assert declared(below) == [(above, 1_000)]
    other = upstream()
    for change in ([other], [above, other], [DeclaredSource(above.full_name, 9_000)]):
        with pytest.raises(Conflict, match="stands"):
            derive(below, *change)
    assert declared(below) == [(above, 1_000)]


@pytest.mark.django_db
def test_the_database_keeps_a_declaration_as_it_is() -> None:
    above, other, below = upstream(6_000), upstream(5_000), make_model()
    derive(below, above)
    rows = Source.objects.filter(model=below)
    refused = [
        lambda: rows.update(royalty_bps=1),
        lambda: rows.delete(),
        lambda: Source.objects.create(model=below, upstream=other, royalty_bps=0, place=2, count=2),
        lambda: Source.objects.create(model=below, upstream=other, royalty_bps=0, place=2, count=1),
        lambda: Source.objects.create(model=above, upstream=other, royalty_bps=0, place=1, count=1),  # has a derivative
        lambda: Source.objects.bulk_create(
            Source(model=other, upstream=one, royalty_bps=6_000, place=place, count=2)
            for place, one in enumerate((above, below), start=1)
        ),
    ]
    for change in refused:
        with pytest.raises(IntegrityError), as_owner(), transaction.atomic():
            change()
    assert declared(below) == [(above, 1_000 * 6)] and Source.objects.count() == 1


@pytest.mark.django_db
def test_a_blend_names_its_sources_at_once_and_pays_each_what_it_asks_or_more() -> None:
    first, second, below = upstream(1_000), upstream(2_000), make_model()
    with pytest.raises(Conflict, match="asks for 2000"):
        derive(below, first, DeclaredSource(second.full_name, 1_999))
    assert declared(below) == []
    derive(below, DeclaredSource(first.full_name, 2_500), second)
    derive(below, second, first)  # again, in another order: nothing new
    assert declared(below) == [(first, 2_500), (second, 2_000)]


@pytest.mark.django_db
def test_a_blend_has_at_most_eight_sources_that_differ_and_cost_no_more_than_it_earns() -> None:
    below, dear = make_model(), [upstream(5_001), upstream(5_000)]
    with pytest.raises(Conflict, match="more than all"):
        derive(below, *dear)
    with pytest.raises(InvalidInput, match="twice"):
        derive(below, dear[0], dear[0])
    many = [upstream(0) for _ in range(MAX_SOURCES + 1)]
    for sources in ([], many):
        with pytest.raises(InvalidInput, match="1 to 8"):
            derive(below, *sources)
    assert declared(below) == []
    derive(below, *many[:-1])
    assert len(declared(below)) == MAX_SOURCES


@pytest.mark.django_db
def test_no_more_models_are_above_than_a_split_can_pay_and_a_common_one_counts_once() -> None:
    common = upstream(0)
    blends = [upstream(0), upstream(0)]
    for blend in blends:
        derive(blend, common, *[upstream(0) for _ in range(4)])
    derive(make_model(), *blends)  # 2 + 4 + 4 and the one above both
    with pytest.raises(Conflict, match="12 models above"):
        derive(make_model(), *blends, upstream(0), upstream(0))


@pytest.mark.django_db
def test_a_model_is_derived_only_from_what_is_open_and_seen() -> None:
    below, closed, draft = make_model(), upstream(None), make_model()
    services.offer_derivation(model=draft, royalty_bps=0)
    with pytest.raises(Conflict, match="not open"):
        derive(below, closed)
    for name in (draft.full_name, "no-body/nothing", f"{closed.full_name}@1"):
        with pytest.raises(NotFound):
            derive(below, name)
    for name in (below.full_name, "no slash", ""):
        with pytest.raises(InvalidInput):
            derive(below, name)
    assert declared(below) == []


@pytest.mark.django_db
def test_an_organization_derives_from_its_own_model_for_nothing() -> None:
    organization = make_organization()
    above, below = make_model(organization, slug="one"), make_model(organization, slug="two")
    derive(below, above)
    assert declared(below) == [(above, 0)]


@pytest.mark.django_db
def test_chains_have_no_circles_and_an_end() -> None:
    first, second = upstream(), upstream()
    derive(second, first)
    with pytest.raises(Conflict):
        derive(first, second)
    last = second
    for _ in range(MAX_GENERATIONS - 1):
        above, last = last, upstream()
        derive(last, above)
    one_more = make_model()
    with pytest.raises(Conflict):
        derive(one_more, last)
    assert declared(one_more) == declared(first) == []
