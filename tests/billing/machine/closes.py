"""Time: entries get their numbers and months, months close, sums count what was committed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from billing.account_statements import platform_statements
from billing.errors import MonthNotClosable
from billing.models import Posting
from billing.periods import close_month, post_entries
from billing.rollups.checks import find_wrong_sums
from billing.rollups.earnings import earnings_total
from billing.rollups.services import roll_up
from billing.rollups.usage import usage_summary
from tests.billing.machine.model import MOST_MONTHS_AGO
from tests.billing.machine.payments import Payments
from tests.billing.machine.world import change, month_day, month_noon


class Closes(Payments):
    """Operations on months and sums."""

    def post_now(self) -> None:
        post_entries()
        self.model.post()

    @rule()
    def post(self) -> None:
        self.post_now()
        assert Posting.objects.count() == sum(len(done.amounts) for done in self.model.transactions)

    @rule(months_ago=st.integers(1, MOST_MONTHS_AGO))
    def happened_in_an_earlier_month(self, months_ago: int) -> None:
        """Entries without a number yet were committed in another month, and come late if that is closed."""
        change(
            "UPDATE billing_ledgertransaction t SET created_at = %s WHERE NOT EXISTS "
            "(SELECT 1 FROM billing_posting p WHERE p.transaction_id = t.id)",
            month_noon(months_ago),
        )
        self.model.happened(months_ago)

    @rule(months_ago=st.integers(0, MOST_MONTHS_AGO))
    def close(self, months_ago: int) -> None:
        outcome = self.model.close(months_ago)
        if outcome == "closed":
            close_month(month=month_day(months_ago), closed_by="machine")
        else:
            with pytest.raises(MonthNotClosable) as refused:
                close_month(month=month_day(months_ago), closed_by="machine")
            assert refused.value.outcome == outcome

    @rule(months_ago=st.integers(0, MOST_MONTHS_AGO))
    def read_statements(self, months_ago: int) -> None:
        """Opening, movements by kind and closing of every kind of account, which sum to zero."""
        self.post_now()
        found = platform_statements(month_day(months_ago))
        expected = self.model.movements(months_ago)
        for statement in found:
            kind = str(statement.account_kind)
            moved = Counter({movement.kind: movement.amount_nano_usd for movement in statement.movements})
            assert +moved == +expected[kind] and -moved == -expected[kind]
            assert statement.opening_nano_usd == self.model.opening(kind, months_ago)
        assert sum(statement.closing_nano_usd for statement in found) == 0

    @rule()
    def count(self) -> None:
        """Add to the sums what they do not have yet; nothing is added twice."""
        roll_up()
        assert roll_up() == 0 and find_wrong_sums() == []
        for payee in self.payees:
            assert earnings_total(payee).creator_nano_usd == self.model.earned[payee.pk]
        for customer in self.customers:
            charged = [hold for hold in self.holds.values() if hold.customer == customer.pk and hold.state == "settled"]
            totals = usage_summary(customer, group_by=["model"])
            assert sum(total.predictions for total in totals) == len(charged)
            assert sum(total.cost_nano_usd for total in totals) == sum(hold.cost - hold.given_back for hold in charged)
