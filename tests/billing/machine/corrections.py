"""Giving charges back: in parts, whole, once more, and by undoing their ledger transaction."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from billing.errors import CorrectionRefused
from billing.models import LedgerTransaction
from billing.services import correct_prediction, refund_prediction_sync, reverse_transaction
from tests.billing.machine.model import Account, divide
from tests.billing.machine.predictions import MAX_PROMPT, Hold, Predictions
from tests.billing.machine.wallets import number
from tests.billing.machine.world import pick


class Corrections(Predictions):
    """Operations on charges."""

    @rule(
        bought=st.lists(st.tuples(number, st.integers(0, MAX_PROMPT)), min_size=2, max_size=5),
        permille=st.lists(st.integers(1, 999), min_size=1, max_size=4),
    )
    def predict_and_correct(self, bought: list[tuple[int, int]], permille: list[int]) -> None:
        """Buy predictions, and give parts of each back, one after the other."""
        before = len(self.holds)
        self.predict(bought)
        for place in range(before, len(self.holds)):
            for part in permille:
                self.correct(place, part, False)

    @precondition(lambda self: self.holds)
    @rule(which=number, permille=st.none() | st.integers(-1, 1_100), again=st.booleans())
    def correct(self, which: int, permille: int | None, again: bool) -> None:
        """Give a part of a charge back, or all that is left; the same correction is made once."""
        hold = pick(self.holds.values(), which)
        left = hold.cost - hold.given_back
        amount = None if permille is None else left * permille // 1_000
        name = uuid4()

        def correct() -> int:
            return correct_prediction(
                prediction_id=hold.request.prediction_id, reason="x", amount_nano_usd=amount, correction_id=name
            )

        nothing_left = amount is None and hold.corrections > 0 and left == 0
        back = left if amount is None else amount
        if hold.state != "settled" or (not nothing_left and (not 0 <= back <= left or (back == 0 and hold.cost > 0))):
            with pytest.raises(CorrectionRefused):
                correct()
            return
        assert correct() == (0 if nothing_left else back)
        if not nothing_left:
            self._take_back(hold, back)
        if again:
            assert correct() == 0

    @precondition(lambda self: self.holds)
    @rule(which=number)
    def refund_prediction(self, which: int) -> None:
        """Give all of a charge back, once: its answer never went out."""
        hold = pick(self.holds.values(), which)
        left = hold.cost - hold.given_back
        due = hold.state == "settled" and (left > 0 or hold.corrections == 0)
        assert refund_prediction_sync(prediction_id=hold.request.prediction_id, reason="lost") == due
        if due:
            self._take_back(hold, left)

    @precondition(lambda self: any(hold.cost for hold in self.holds.values()))
    @rule(which=number)
    def reverse(self, which: int) -> None:
        """Undo the ledger transaction of a charge: the same as giving all of it back."""
        hold = pick([hold for hold in self.holds.values() if hold.cost], which)
        original = LedgerTransaction.objects.get(kind="prediction", reference=str(hold.request.prediction_id))
        assert reverse_transaction(transaction_id=original.pk, memo="x").corrects_id == original.pk
        if hold.cost > hold.given_back:
            self._take_back(hold, hold.cost - hold.given_back)

    def _take_back(self, hold: Hold, amount: int) -> None:
        hold.corrections += 1
        hold.given_back += amount
        if amount == 0:
            return
        for node in hold.path:
            node.spent -= amount
        self.model.give_back(hold.customer, amount, hold.drawn)
        parties = sorted(hold.shares, key=lambda party: (party is None, party.int if party else 0))
        amounts: dict[Account, int] = {("customer_credit", hold.customer): amount}
        for party, part in zip(parties, divide(amount, [hold.shares[party] for party in parties]), strict=True):
            hold.shares[party] -= part
            if party is None:
                amounts["platform_revenue", None] = -part
                continue
            self.model.earned[party] -= part
            for account, taken in self.taken_from(party, part).items():
                amounts[account] = -taken
        self.model.book("correction", amounts)
