"""Any sequence of operations leaves the books as a model of plain dicts says, with every invariant after each step.

`make test` runs two hundred steps, `make test-all` some more; many, such as 50,000, by

    BOOKS_STEPS=50000 .venv/bin/pytest -n 2 tests/billing/machine
"""

from __future__ import annotations

import os
from uuid import UUID

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from billing.integrity import find_discrepancies
from billing.models import Account, Lot, Usage
from billing.pricing import Price, TokenUsage, cost_nano_usd
from tests.billing.machine.closes import Closes

STEPS_OF_AN_EXAMPLE = 100
EXAMPLES = -(-int(os.environ.get("BOOKS_STEPS", "300")) // STEPS_OF_AN_EXAMPLE)
EXAMPLES_OF_A_TEST = 10
EXAMPLES_OF_THE_FIRST = 2  # Hypothesis begins with the simplest steps; the second example is the first that is random


class Books(Closes):
    """All operations together."""

    @invariant()
    def the_books_agree_with_themselves(self) -> None:
        assert find_discrepancies() == []

    @invariant()
    def balances_are_those_of_the_model(self) -> None:
        rows = Account.objects.values_list("kind", "organization_id", "posted", "held", "may_be_negative")
        found: dict[tuple[str, UUID | None], tuple[int, int]] = {
            (kind, owner): (posted, held) for kind, owner, posted, held, _may in rows
        }
        assert all(posted >= held for _kind, _owner, posted, held, may in rows if not may)
        assert sum(posted for posted, _held in found.values()) == 0
        for account in found.keys() | self.model.balances.keys():
            kind, owner = account
            held = self.model.held[owner] if kind == "customer_credit" and owner is not None else 0
            assert found.get(account, (0, 0)) == (self.model.balances[account], held), account

    @invariant()
    def lots_are_those_of_the_model(self) -> None:
        found = list(Lot.objects.order_by("id").values_list("account__organization_id", "remaining"))
        assert found == [(lot.owner, lot.remaining) for lot in self.model.lots]

    @invariant()
    def budgets_and_payouts_are_those_of_the_model(self) -> None:
        self.compare_budgets()
        self.compare_payouts()

    def teardown(self) -> None:
        """Replaying the usage rows reproduces every charge."""
        for row in Usage.objects.all():
            price = Price(
                row.input_micro_usd_per_mtok,
                row.cached_input_micro_usd_per_mtok,
                row.output_micro_usd_per_mtok,
                row.per_prediction_nano_usd,
                row.class_bps,
            )
            cost = cost_nano_usd(price, TokenUsage(row.prompt_tokens, row.cached_tokens, row.completion_tokens))
            assert row.cost_nano_usd == min(cost, self.holds[row.prediction_id].amount)
        super().teardown()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("part", "examples"),
    [
        (0, EXAMPLES_OF_THE_FIRST),
        *(
            pytest.param(1 + place, min(EXAMPLES_OF_A_TEST, EXAMPLES - done), marks=pytest.mark.deep)
            for place, done in enumerate(range(0, EXAMPLES, EXAMPLES_OF_A_TEST))
        ),
    ],
)
def test_any_sequence_of_operations_agrees_with_a_plain_model(part: int, examples: int) -> None:
    run_state_machine_as_test(
        seed(part)(Books),
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_OF_AN_EXAMPLE,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
