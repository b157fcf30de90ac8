"""A market written in bulk: listings, buyers with cards, and what they paid, as the sums of billing would have it.

Triggers and foreign keys are off while it is written, so the connection must be an administrator's. Amounts are in
dollars.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from billing.models import CardUse, Lot, TopUp
from billing.pricing import NANO_PER_CENT
from marketplace.accounts.models import Membership, Organization
from marketplace.catalog.models import Evaluation, Model, Standing, Version
from marketplace.catalog.services import register_base
from marketplace.standing.evidence import monday
from marketplace.standing.services import rank_models

LONG_AGO = 60  # days for which a card is known, unless a buyer says otherwise
WEEKS = 8  # over which honest buyers buy
POPULARITY = 0.8  # exponent of Zipf's law
MEASURED = 0.6  # of honest models
HONEST_ROWS = 200


@dataclass
class Market:
    """Rows that wait to be written, and the clock of the market. `draw` is the chance of everything."""

    now: datetime
    draw: random.Random
    rows: dict[type, list[Any]] = field(default_factory=dict)
    paid: dict[tuple[uuid.UUID, Any, uuid.UUID, int], int] = field(default_factory=dict)
    lots: dict[tuple[uuid.UUID, str | None], int] = field(default_factory=dict)
    next_id: int = 1_000_000

    def add(self, row: Any) -> Any:
        """Let a row wait."""
        self.rows.setdefault(type(row), []).append(row)
        return row

    def new_id(self) -> int:
        """Return a number that no row has."""
        self.next_id += 1
        return self.next_id

    def uuid(self) -> uuid.UUID:
        """Return an id that is the same in each run."""
        return uuid.UUID(int=self.draw.getrandbits(128))

    def organization(self, *, member: uuid.UUID | None = None) -> uuid.UUID:
        """Add an organization with one member, a new one unless it is named."""
        slug = f"o-{self.new_id()}"
        row = self.add(Organization(id=self.uuid(), slug=slug, name=slug, created_at=self.now))
        user_id = member or self.uuid()
        self.add(Membership(organization_id=row.pk, user_id=user_id, created_at=self.now))
        return row.pk

    def model(
        self,
        creator: uuid.UUID,
        *,
        state: str = Version.State.PUBLISHED,
        visibility: str = Model.Visibility.PUBLIC,
        correct: int | None = None,
        days_ago: int = LONG_AGO,
    ) -> uuid.UUID:
        """Add a listing with one version, measured on 200 rows if `correct` says so."""
        published = self.now - timedelta(days=days_ago)
        base = register_base(name="base", fingerprint="ab" * 32, config={}, context_length=4096)
        slug = f"m-{self.new_id()}"
        row = self.add(
            Model(
                id=self.uuid(), organization_id=creator, slug=slug, base_model=base, title=slug, visibility=visibility
            )
        )
        version = self.add(Version(model=row, number=1, state=state, published_at=published))
        if correct is not None:
            counts = {"rows": HONEST_ROWS, "correct": correct, "base_correct": 0}
            of = {"run_id": self.uuid(), "set_number": 1, "set_digest": "", "scorer": {"kind": "json"}}
            self.add(Evaluation(version=version, **of, **counts))
        return row.pk

    def card(self, organization_id: uuid.UUID, fingerprint: str, *, days_ago: int = LONG_AGO) -> None:
        """Let the organization pay a top-up with a card, used first so many days ago."""
        at = self.now - timedelta(days=days_ago)
        self.add(CardUse(organization_id=organization_id, fingerprint=fingerprint, first_used_at=at))

    def buy(
        self, organization_id: uuid.UUID, model_id: uuid.UUID, usd: float, *, card: str | None, weeks_ago: int
    ) -> int:
        """Spend credit that a card paid, or promotional credit; return the id of its lot."""
        lot_id = self.lots.get((organization_id, card))
        if lot_id is None:
            lot_id = self.lots[organization_id, card] = self.new_id()
            transaction_id = self.new_id()
            self.add(
                Lot(
                    pk=lot_id,
                    account_id=1,
                    kind=Lot.Kind.PAID if card else Lot.Kind.PROMOTIONAL,
                    transaction_id=transaction_id,
                )
            )
            if card:
                self.add(
                    TopUp(
                        organization_id=organization_id,
                        amount_cents=100_000,
                        state=TopUp.State.CREDITED,
                        ledger_transaction_id=transaction_id,
                        card_fingerprint=card,
                        credited_at=self.now,
                    )
                )
        if card:  # only draws of paid lots are summed up
            week = monday((self.now - timedelta(weeks=weeks_ago)).date())
            key = (model_id, week, organization_id, lot_id)
            self.paid[key] = self.paid.get(key, 0) + round(usd * 100 * NANO_PER_CENT)
        return lot_id

    def write(self) -> None:
        """Write every row that waits."""
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            for kind, rows in self.rows.items():
                kind._default_manager.bulk_create(rows, batch_size=2_000)  # type: ignore[attr-defined]
            with cursor.copy(
                "COPY billing_paidweek (model_id, week, organization_id, lot_id, paid_nano_usd) FROM STDIN"
            ) as copy:
                for key, nano_usd in self.paid.items():
                    copy.write_row((*key, nano_usd))
            cursor.execute("SET LOCAL session_replication_role = origin")
            # As autovacuum does: without it the planner takes the tables for empty.
            cursor.execute("ANALYZE billing_paidweek, billing_carduse, billing_topup, billing_lot, catalog_model")
        self.rows.clear()
        self.paid.clear()

    def places(self) -> dict[uuid.UUID, int]:
        """Let the platform's own task rank all models, and return their places."""
        self.write()
        rank_models(now=self.now)
        return dict(Standing.objects.values_list("model_id", "place"))


def honest_market(*, now: datetime, models: int, buyers: int, seed: int = 31) -> Market:
    """Return a market of honest creators and buyers: some models are bought far more often than others.

    A buyer takes 1 to 5 models, and calls each in 1 to 8 weeks for a few dollars in all.
    """
    market = Market(now, random.Random(seed))
    draw = market.draw
    listed = []
    for _ in range(models):
        correct = round(HONEST_ROWS * draw.uniform(0.6, 0.97)) if draw.random() < MEASURED else None
        listed.append(market.model(market.organization(), correct=correct))
    weights = [1 / (place + 1) ** POPULARITY for place in range(models)]
    for number in range(buyers):
        buyer, card = market.organization(), f"honest-{number}"
        market.card(buyer, card)
        for model_id in dict.fromkeys(draw.choices(listed, weights, k=draw.randint(1, 5))):
            usd = draw.lognormvariate(2.0, 1.0)
            weeks = draw.sample(range(WEEKS), draw.randint(1, WEEKS))
            for weeks_ago in weeks:
                market.buy(buyer, model_id, usd / len(weeks), card=card, weeks_ago=weeks_ago)
    market.write()
    return market


@contextmanager
def undone() -> Iterator[None]:
    """Take everything back that is written inside."""
    from django.db import transaction

    with transaction.atomic():
        yield
        transaction.set_rollback(True)
