"""Attempts to buy a place. Each has $5,000 to spend on a model without worth, of which a fifth is lost as fees: $1,000.

An attack gets the market and returns the model that is to rise.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta

from billing.models import Dispute, TopUp
from marketplace.catalog.models import Version
from tests.marketplace.standing.market import HONEST_ROWS, LONG_AGO, Market

SPENT_USD = 5_000.0
Attack = Callable[[Market], uuid.UUID]


def _buyers(
    market: Market,
    model_id: uuid.UUID,
    *,
    accounts: int,
    cards: int,
    weeks: int = 4,
    known_days: int = LONG_AGO,
    member: uuid.UUID | None = None,
) -> None:
    """Let accounts share so many cards, and spend all of the money evenly over the last weeks."""
    for number in range(accounts):
        buyer, card = market.organization(member=member), f"attacker-{number % cards}"
        market.card(buyer, card, days_ago=known_days)
        for weeks_ago in range(weeks):
            market.buy(buyer, model_id, SPENT_USD / accounts / weeks, card=card, weeks_ago=weeks_ago)


def nothing(market: Market) -> uuid.UUID:
    """No money at all."""
    return market.model(market.organization())


def one_card(market: Market) -> uuid.UUID:
    """One person with 500 accounts and one card, over four weeks."""
    model_id = market.model(market.organization())
    _buyers(market, model_id, accounts=500, cards=1)
    return model_id


def one_card_and_easy_rows(market: Market) -> uuid.UUID:
    """The same, and an evaluation on rows that anything gets right."""
    model_id = market.model(market.organization(), correct=HONEST_ROWS)
    _buyers(market, model_id, accounts=500, cards=1)
    return model_id


def one_member(market: Market) -> uuid.UUID:
    """100 accounts with 100 cards and one member in common."""
    model_id = market.model(market.organization())
    _buyers(market, model_id, accounts=100, cards=100, member=uuid.UUID(int=7))
    return model_id


def creators_member(market: Market) -> uuid.UUID:
    """100 accounts with 100 cards, and the creator is a member of each."""
    model_id = market.model(market.organization(member=uuid.UUID(int=8)))
    _buyers(market, model_id, accounts=100, cards=100, member=uuid.UUID(int=8))
    return model_id


def fresh_cards(market: Market) -> uuid.UUID:
    """100 cards, first used 13 days ago, that pay in two weeks."""
    model_id = market.model(market.organization())
    _buyers(market, model_id, accounts=100, cards=100, weeks=2, known_days=13)
    return model_id


def one_day(market: Market) -> uuid.UUID:
    """100 cards that were known for long, and paid on one day."""
    model_id = market.model(market.organization())
    _buyers(market, model_id, accounts=100, cards=100, weeks=1)
    return model_id


def promotional_credit(market: Market) -> uuid.UUID:
    """The promotional credit of 100 accounts, over four weeks."""
    model_id = market.model(market.organization())
    for _ in range(100):
        buyer = market.organization()
        for weeks_ago in range(4):
            market.buy(buyer, model_id, SPENT_USD / 400, card=None, weeks_ago=weeks_ago)
    return model_id


def disputed(market: Market) -> uuid.UUID:
    """100 cards over four weeks, whose holders take the money back at their banks."""
    model_id = market.model(market.organization())
    _buyers(market, model_id, accounts=100, cards=100)
    for top_up in market.rows[TopUp]:
        market.add(
            Dispute(
                pk=f"dp_{top_up.pk.hex}",
                top_up=top_up,
                amount_cents=top_up.amount_cents,
                reason="fraudulent",
                state=Dispute.State.LOST,
                status="lost",
                closed_at=market.now - timedelta(days=1),
            )
        )
    return model_id


def each_other(market: Market) -> uuid.UUID:
    """Two creators who buy from each other, each with a card."""
    first, second = market.organization(), market.organization()
    models = {first: market.model(first), second: market.model(second)}
    for number, (buyer, seller) in enumerate(((first, second), (second, first))):
        market.card(buyer, f"partner-{number}")
        for weeks_ago in range(4):
            card = f"partner-{number}"
            market.buy(buyer, models[seller], SPENT_USD / 4, card=card, weeks_ago=weeks_ago)
    return models[first]


def unreviewed_copy(market: Market) -> uuid.UUID:
    """A copy that waits to be published, with 100 cards over four weeks."""
    model_id = market.model(market.organization(), state=Version.State.VERIFIED)
    _buyers(market, model_id, accounts=100, cards=100)
    return model_id


def five_cards(market: Market) -> uuid.UUID:
    """Five people with a card each, over four weeks, and the evaluation on easy rows."""
    model_id = market.model(market.organization(), correct=HONEST_ROWS)
    _buyers(market, model_id, accounts=5, cards=5)
    return model_id


def hundred_cards(market: Market) -> uuid.UUID:
    """100 people with a card each, over four weeks."""
    model_id = market.model(market.organization())
    _buyers(market, model_id, accounts=100, cards=100)
    return model_id


# In the order of the table. Those below the line are people who really pay with cards of their own.
ATTACKS: dict[str, Attack] = {
    "no money": nothing,
    "one card, 500 accounts": one_card,
    "one card, and easy rows in the eval": one_card_and_easy_rows,
    "100 cards, one member in common": one_member,
    "100 cards, the creator is a member": creators_member,
    "100 cards, known for 13 days": fresh_cards,
    "100 cards, all on one day": one_day,
    "promotional credit of 100 accounts": promotional_credit,
    "100 cards, disputed afterwards": disputed,
    "two creators, of each other": each_other,
    "an unreviewed copy, 100 cards": unreviewed_copy,
    "5 people, and easy rows in the eval": five_cards,
    "100 people with cards of their own": hundred_cards,
}
