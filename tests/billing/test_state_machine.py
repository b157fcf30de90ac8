"""Any sequence of credits, holds, settlements, releases and reversals agrees with a model made of plain dicts."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from billing.errors import BudgetExceeded, DuplicateRequest, HoldReleased, InsufficientFunds
from billing.integrity import find_discrepancies
from billing.limited_keys import set_key_budget
from billing.models import Account, BudgetNode, LedgerTransaction, Usage
from billing.pricing import Price, TokenUsage, cost_nano_usd, shares
from billing.rollups.checks import find_wrong_sums
from billing.rollups.earnings import balances, earnings_total
from billing.rollups.services import roll_up
from billing.selectors import platform_summary, wallet
from billing.services import credit_promotion, release_hold_sync, reverse_transaction
from marketplace.accounts.models import ApiKey
from tests.billing.support import hold_request, make_organization, place, settle, settle_kept

BUDGET = 3_000
PRICES = (Price(150, 75, 600), Price(0, 0, 0, 40), Price(0, 0, 0), Price(10_000, 20_000, 30_000, 5))


@dataclass
class ModelHold:
    customer: int
    creator: int
    price: Price
    amount: int
    state: str = "open"
    cost: int = 0
    budgeted: bool = False
    keyed: bool = False


class Books(RuleBasedStateMachine):
    """Two customers, two creators; the first customer's key has a budget."""

    holds = Bundle("holds")
    credits = Bundle("credits")

    @initialize()
    def start(self) -> None:
        self.customers = [make_organization() for _ in range(2)]
        self.creators = [make_organization() for _ in range(2)]
        self.key = ApiKey.objects.create(
            organization=self.customers[0], name="k", prefix=uuid.uuid4().hex[:12], digest=b"0", scopes=[]
        )
        set_key_budget(api_key=self.key, monthly_limit_nano_usd=None, total_limit_nano_usd=BUDGET)
        self.platform_before = self._platform()
        # The model.
        self.posted = [0, 0]
        self.payable = [0, 0]
        self.platform = 0
        self.open_holds: dict[uuid.UUID, ModelHold] = {}
        self.keys_in_use: dict[tuple[int, str], uuid.UUID] = {}

    def _platform(self) -> int:
        account = Account.objects.filter(kind=Account.Kind.PLATFORM_REVENUE).first()
        return account.posted if account else 0

    def _held(self, customer: int, *, budgeted: bool = False) -> int:
        return sum(
            hold.amount
            for hold in self.open_holds.values()
            if hold.customer == customer and hold.state == "open" and (hold.budgeted or not budgeted)
        )

    @rule(target=credits, customer=st.integers(0, 1), amount=st.integers(1, 5_000))
    def credit(self, customer: int, amount: int) -> tuple[int, int, int]:
        organization = self.customers[customer]
        reference = str(uuid.uuid4())
        first = credit_promotion(organization=organization, amount_nano_usd=amount, reference=reference)
        with transaction.atomic():
            again = credit_promotion(organization=organization, amount_nano_usd=amount, reference=reference)
        assert first == again
        self.posted[customer] += amount
        return first.pk, customer, amount

    @rule(credit=credits)
    def reverse(self, credit: tuple[int, int, int]) -> None:
        transaction_id, customer, amount = credit
        if LedgerTransaction.objects.filter(corrects=transaction_id).exists():
            reverse_transaction(transaction_id=transaction_id, memo="again")  # changes nothing
        elif self.posted[customer] - self._held(customer) < amount:
            with pytest.raises(InsufficientFunds):
                reverse_transaction(transaction_id=transaction_id, memo="spent")
        else:
            reverse_transaction(transaction_id=transaction_id, memo="mistake")
            self.posted[customer] -= amount

    @rule(
        target=holds,
        customer=st.integers(0, 1),
        creator=st.integers(0, 1),
        price=st.sampled_from(PRICES),
        amount=st.integers(0, 2_000),
        key=st.sampled_from([None, "a", "b"]),
    )
    def place(self, customer: int, creator: int, price: Price, amount: int, key: str | None) -> uuid.UUID:
        budgeted = customer == 0
        request = hold_request(
            self.customers[customer],
            self.creators[creator],
            price=price,
            amount_nano_usd=amount,
            idempotency_key=key,
            api_key_id=self.key.pk if budgeted else None,
        )
        earlier = self.keys_in_use.get((customer, key)) if key else None
        if earlier is not None and self.open_holds[earlier].state != "released":
            with pytest.raises(DuplicateRequest) as duplicate:
                place(request)
            assert duplicate.value.prediction_id == earlier and duplicate.value.same_body
            return earlier
        if self.posted[customer] - self._held(customer) < amount:
            with pytest.raises(InsufficientFunds):
                place(request)
            return request.prediction_id
        spent = sum(hold.cost for hold in self.open_holds.values() if hold.budgeted)
        if budgeted and spent + self._held(customer) + amount > BUDGET:
            with pytest.raises(BudgetExceeded):
                place(request)
            return request.prediction_id
        place(request)
        self.open_holds[request.prediction_id] = ModelHold(
            customer, creator, price, amount, budgeted=budgeted, keyed=key is not None
        )
        if key:
            self.keys_in_use[(customer, key)] = request.prediction_id
        return request.prediction_id

    @rule(hold_id=holds, prompt=st.integers(0, 200), cached=st.integers(0, 200), completion=st.integers(0, 100))
    def settle(self, hold_id: uuid.UUID, prompt: int, cached: int, completion: int) -> None:
        hold = self.open_holds.get(hold_id)
        if hold is None:
            return  # it was refused
        usage = TokenUsage(prompt, min(prompt, cached), completion)
        if hold.state == "released" and completion > 0:
            with pytest.raises(HoldReleased):
                settle(hold_id, usage)
            return
        settlement = settle_kept(hold_id, usage) if hold.keyed else settle(hold_id, usage)
        assert settlement.already_settled == (hold.state != "open")
        if hold.state == "open" and completion > 0:
            hold.state = "settled"
            hold.cost = min(hold.amount, cost_nano_usd(hold.price, usage))
            (creator,), platform = shares(hold.cost, [8_000])
            self.posted[hold.customer] -= hold.cost
            self.payable[hold.creator] += creator
            self.platform += platform
        elif hold.state == "open":
            hold.state = "released"
        assert settlement.cost == hold.cost

    @rule(hold_id=holds)
    def release(self, hold_id: uuid.UUID) -> None:
        hold = self.open_holds.get(hold_id)
        was_open = hold is not None and hold.state == "open"
        assert release_hold_sync(prediction_id=hold_id, reason="test") == was_open
        if hold is not None and was_open:
            hold.state = "released"

    @rule()
    def count(self) -> None:
        """Add to the sums what they do not have yet; the check of the books sees that nothing is added twice."""
        roll_up()
        assert find_wrong_sums() == []
        for number, organization in enumerate(self.creators):
            assert earnings_total(organization).creator_nano_usd == self.payable[number]

    @invariant()
    def the_books_agree_with_the_model(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what a commit would check
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        assert find_discrepancies() == [] and platform_summary().ledger_sum == 0
        for number, organization in enumerate(self.customers):
            found = wallet(organization)
            assert (found.posted, found.held) == (self.posted[number], self._held(number))
            assert found.available >= 0
        for number, organization in enumerate(self.creators):
            assert balances(organization).net_nano_usd == self.payable[number]
        assert self._platform() - self.platform_before == self.platform
        budget = BudgetNode.objects.get(api_key=self.key)
        assert budget.spent_total_nano_usd == sum(hold.cost for hold in self.open_holds.values() if hold.budgeted)
        assert budget.held_nano_usd == self._held(0)
        assert budget.spent_total_nano_usd + budget.held_nano_usd <= BUDGET

    def teardown(self) -> None:
        """Replaying the usage rows reproduces every charge."""
        for row in Usage.objects.filter(organization_id__in=[customer.pk for customer in self.customers]):
            price = Price(
                row.input_micro_usd_per_mtok,
                row.cached_input_micro_usd_per_mtok,
                row.output_micro_usd_per_mtok,
                row.per_prediction_nano_usd,
            )
            cost = cost_nano_usd(price, TokenUsage(row.prompt_tokens, row.cached_tokens, row.completion_tokens))
            assert row.cost_nano_usd == min(cost, self.open_holds[row.prediction_id].amount)


@pytest.mark.django_db
def test_any_sequence_of_money_movements_agrees_with_a_plain_model() -> None:
    run_state_machine_as_test(
        Books,
        settings=settings(
            max_examples=10,
            stateful_step_count=20,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
