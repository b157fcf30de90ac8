"""Attempts to buy a place, in a market of 2,000 honest buyers and 201 models, on the platform's own tables and task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from marketplace.catalog.models import Standing
from tests.database import as_superuser
from tests.marketplace.standing.attacks import ATTACKS
from tests.marketplace.standing.market import honest_market, undone

NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
MODELS, BUYERS = 200, 2_000
# The payers that an attack is left with; None: its model is not in the catalogue.
PAYERS = {
    "no money": 0,
    "one card, 500 accounts": 1,
    "one card, and easy rows in the eval": 1,
    "100 cards, one member in common": 1,
    "100 cards, the creator is a member": 0,
    "100 cards, known for 13 days": 0,
    "100 cards, all on one day": 0,
    "promotional credit of 100 accounts": 0,
    "100 cards, disputed afterwards": 0,
    "two creators, of each other": 1,
    "an unreviewed copy, 100 cards": None,
}


@pytest.fixture
def superuser(db: None) -> Iterator[None]:
    with as_superuser():
        yield


@pytest.mark.deep
def test_1000_dollars_of_lost_fees_buy_no_place_among_the_first_hundred(superuser: None) -> None:
    market = honest_market(now=NOW, models=MODELS, buyers=BUYERS)
    for name, payers in PAYERS.items():
        with undone():
            model_id = ATTACKS[name](market)
            place = market.places().get(model_id)
            if payers is None:
                assert place is None, name
            else:
                assert place is not None and place > 100, f"{name}: place {place}"
                assert Standing.objects.get(pk=model_id).payers == payers, name
        market.lots.clear()


def test_people_who_pay_with_cards_of_their_own_do_raise_a_model(superuser: None) -> None:
    market = honest_market(now=NOW, models=40, buyers=200)
    with undone():
        model_id = ATTACKS["no money"](market)
        before = market.places()[model_id]
    with undone():
        model_id = ATTACKS["100 people with cards of their own"](market)
        after = market.places()[model_id]
        assert after < before == 41
        assert Standing.objects.get(pk=model_id).payers == 100
