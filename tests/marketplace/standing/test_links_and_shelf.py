"""Organizations that are one, and the shelf of new models: for any input."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from marketplace.standing.links import unite
from marketplace.standing.shelf import ESTABLISHED_PAYERS, NEW_FOR, SHELF_SIZE, Candidate, choose_shelf

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
small_ids = st.integers(1, 30).map(lambda number: UUID(int=number))
groups = st.lists(st.lists(small_ids, min_size=1, max_size=5), max_size=20)


@given(groups, st.randoms())
def test_groups_with_one_in_common_are_one_in_any_order(found: list[list[UUID]], chance) -> None:
    united = unite(found)
    assert set(united) == {one for group in found for one in group}
    for group in found:
        assert len({united[one] for one in group}) == 1
    for one, stands_for in united.items():
        assert united[stands_for] == stands_for <= one
    shuffled = [chance.sample(group, len(group)) for group in chance.sample(found, len(found))]
    assert unite(shuffled) == united


def test_a_chain_of_cards_and_members_is_one_payer() -> None:
    a, b, c, d = (UUID(int=number) for number in range(1, 5))
    assert unite([[a, b], [c, d], [b, c]]) == {a: a, b: a, c: a, d: a}


def candidates(number: int, **changes) -> list[Candidate]:
    fields = {"organization_id": None, "listed_at": NOW - timedelta(days=1), "payers": 0} | changes
    return [
        Candidate(**fields | {"model_id": UUID(int=n), "organization_id": fields["organization_id"] or UUID(int=n)})
        for n in range(1, number + 1)
    ]


def test_the_shelf_is_bounded_and_one_creator_has_one_model_on_it() -> None:
    assert sorted(choose_shelf(candidates(200), now=NOW).values()) == list(range(1, SHELF_SIZE + 1))
    crowd = candidates(200, organization_id=UUID(int=999))
    assert list(choose_shelf(crowd, now=NOW).values()) == [1]
    # More listings are no more turns: the crowd's one model has no better place for being chosen of 200.
    places = []
    for day in range(400):
        shelf = choose_shelf([*candidates(40), *crowd[100:]], now=NOW + timedelta(hours=day % 24))
        places.append(len([one for one in shelf if one.int > 100]))
    assert max(places) <= 1


def test_each_new_model_has_its_turn() -> None:
    seen = set()
    for day in range(29):
        now = NOW + timedelta(days=day)
        seen |= set(choose_shelf(candidates(60, listed_at=NOW), now=now))
    assert len(seen) == 60


def test_old_and_established_models_are_not_new() -> None:
    assert choose_shelf(candidates(5, listed_at=NOW - NEW_FOR), now=NOW) == {}
    assert choose_shelf(candidates(5, payers=ESTABLISHED_PAYERS), now=NOW) == {}
    assert choose_shelf([], now=NOW) == {}
