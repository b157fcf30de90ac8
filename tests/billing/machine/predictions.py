"""Predictions: holds placed one by one and in batches, verdicts, charges, releases."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from uuid import UUID

from django.db import connection
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from billing.errors import BillingError, BudgetExceeded, DuplicateRequest, HoldReleased, InsufficientFunds
from billing.hotpath import Charge, HoldPlaced, HoldRequest
from billing.pricing import Price, TokenUsage, cost_nano_usd, worst_case_nano_usd
from billing.services import record_delivery_sync, release_hold_sync
from billing.statements import (
    PLACE_HOLDS,
    SETTLE_KEPT,
    Settlement,
    kept_parameters,
    parse_placed,
    parse_settled,
    place_parameters,
)
from tests.billing.machine.budgets import Budgets, Node
from tests.billing.machine.model import Account
from tests.billing.machine.payees import Payees, Share
from tests.billing.machine.wallets import number
from tests.billing.machine.world import pick
from tests.billing.support import charge, hold_request

MAX_PROMPT, MAX_TOKENS = 100, 50
# In picodollars for each token: a cent, a thousandth of it, nothing but the prediction, nothing at all. Odd numbers, so
# that shares have remainders.
PRICES = (
    Price(10_000_000_019, 5_000_000_029, 30_000_000_091),
    Price(12_345_678, 23_456_789, 34_567_891, 77),
    Price(0, 0, 0, 123_456_789, class_bps=5_000),
    Price(0, 0, 0),
)
ITEM = st.tuples(
    st.integers(0, 1),  # customer
    st.integers(0, 99),  # split
    st.sampled_from(PRICES),
    st.sampled_from([None, None, "a", "b"]),  # idempotency key
    st.sampled_from([b"one body", b"another"]),
    st.sampled_from([None, "ann", "bob"]),  # end user
    st.sampled_from(["refuse", "stop"]),
)
USAGE = st.tuples(st.integers(0, MAX_PROMPT), st.integers(0, MAX_PROMPT), st.integers(0, MAX_TOKENS))


@dataclass
class Hold:
    """One prediction; `drawn` is what each lot still misses of its charge, `shares` what each party still has of it."""

    request: HoldRequest
    customer: UUID
    split: list[Share]
    amount: int
    max_tokens: int
    path: list[Node]
    state: str = "open"
    delivered: int | None = None
    cost: int = 0
    given_back: int = 0
    corrections: int = 0
    drawn: dict[int, int] = field(default_factory=dict)
    shares: dict[UUID | None, int] = field(default_factory=dict)


class Predictions(Budgets, Payees):
    """Operations on holds."""

    def arrange(self) -> None:
        super().arrange()
        self.holds: dict[UUID, Hold] = {}

    # Placing

    @rule(items=st.lists(ITEM, min_size=1, max_size=4))
    def place(self, items: list[tuple[int, int, Price, str | None, bytes, str | None, str]]) -> None:
        """Place a batch, which is the same as one after the other."""
        requests, splits = [], []
        for customer, split, price, key, body, end_user, on_budget in items:
            number_of_split, parties = self.splits[split % len(self.splits)]
            splits.append((customer, parties))
            requests.append(
                hold_request(
                    self.customers[customer],
                    self.payees[0],
                    split_id=number_of_split,
                    price=price,
                    amount_nano_usd=worst_case_nano_usd(price, MAX_PROMPT, MAX_TOKENS),
                    max_prompt_tokens=MAX_PROMPT,
                    max_tokens=MAX_TOKENS,
                    idempotency_key=key,
                    request_hash=hashlib.sha256(body).digest(),
                    end_user=end_user if customer == 0 else None,
                    api_key_id=self.keys[split % len(self.keys)].pk if customer == 0 else None,
                    on_budget=on_budget,
                )
            )
        self._place(requests, splits)

    @rule(bought=st.lists(st.tuples(number, st.integers(0, MAX_PROMPT)), min_size=1, max_size=5))
    def predict(self, bought: list[tuple[int, int]]) -> None:
        """Place predictions that cost a dollar or two each, and settle them at once."""
        held = len(self.holds)
        self.place([(which % 2, which // 2, PRICES[0], None, b"one body", None, "refuse") for which, _prompt in bought])
        reports = [(place, (bought[place - held][1], 0, MAX_TOKENS)) for place in range(held, len(self.holds))]
        if reports:
            self.settle(reports)

    @precondition(lambda self: self.holds)
    @rule(which=number)
    def place_again(self, which: int) -> None:
        hold = pick(self.holds.values(), which)
        self._place([hold.request], [(0 if hold.customer == self.customers[0].pk else 1, hold.split)])

    def _place(self, requests: list[HoldRequest], splits: list[tuple[int, list[Share]]]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(PLACE_HOLDS, place_parameters(requests))
            rows = cursor.fetchall()
        for row, request, (customer, split) in zip(rows, requests, splits, strict=True):
            answer = parse_placed(row, request)
            expected = self._expect_placed(request, customer, split)
            if isinstance(expected, Hold):
                assert isinstance(answer, HoldPlaced), answer
                assert (answer.amount_nano_usd, answer.max_tokens) == (expected.amount, expected.max_tokens)
                self.holds[request.prediction_id] = expected
                self.model.held[expected.customer] += expected.amount
                for node in expected.path:
                    node.held += expected.amount
            else:
                assert type(answer) is expected, answer

    def _expect_placed(self, request: HoldRequest, customer: int, split: list[Share]) -> Hold | type[BillingError]:
        organization = self.customers[customer].pk
        if self._stands_against(request):
            return DuplicateRequest
        path = self.path_of(customer, request.end_user)
        rooms = [room for node in path if (room := node.room()) is not None]
        available = self.model.available(organization)
        money = min([available, *rooms])
        hold = Hold(request, organization, split, request.amount_nano_usd, request.max_tokens, path)
        if money >= hold.amount:
            return hold
        tokens = self._affordable(request, max(money, 0)) if request.on_budget == "stop" else 0
        if tokens:
            cut = replace(request, max_tokens=tokens)
            return Hold(cut, organization, split, worst_case_nano_usd(request.price, MAX_PROMPT, tokens), tokens, path)
        return BudgetExceeded if available >= hold.amount else InsufficientFunds

    def _stands_against(self, request: HoldRequest) -> bool:
        if request.prediction_id in self.holds:
            return True
        if request.idempotency_key is None:
            return False
        name = (request.organization_id, request.idempotency_key)
        same = [h for h in self.holds.values() if (h.customer, h.request.idempotency_key) == name]
        return bool(same) and (same[-1].state != "released" or same[-1].request.request_hash != request.request_hash)

    @staticmethod
    def _affordable(request: HoldRequest, money: int) -> int:
        """Return the most tokens whose worst case costs so much at most; none where tokens cost nothing."""
        if request.price.output_micro_usd_per_mtok == 0:
            return 0
        fitting = [n for n in range(1, MAX_TOKENS + 1) if worst_case_nano_usd(request.price, MAX_PROMPT, n) <= money]
        return max(fitting, default=0)

    # Closing

    @precondition(lambda self: self.holds)
    @rule(which=number, tokens=st.integers(0, MAX_TOKENS))
    def deliver(self, which: int, tokens: int) -> None:
        """A verdict: the first one stands, nothing delivered is free."""
        hold = pick(self.holds.values(), which)
        answer = record_delivery_sync(prediction_id=hold.request.prediction_id, attempt=1, tokens=tokens)
        if hold.state != "open":
            assert answer == "closed"
        elif hold.delivered is not None or tokens > 0:
            assert answer == "recorded"
            hold.delivered = tokens if hold.delivered is None else hold.delivered
        else:
            assert answer == "released"
            hold.delivered = 0
            self._close(hold, "released")

    @precondition(lambda self: self.holds)
    @rule(reports=st.lists(st.tuples(number, USAGE), min_size=1, max_size=4))
    def settle(self, reports: list[tuple[int, tuple[int, int, int]]]) -> None:
        """Settle a batch; a prediction that is reported twice in it, or again, is charged once."""
        charges: dict[UUID, Charge] = {}
        for which, (prompt, cached, completion) in reports:
            hold = pick(self.holds.values(), which)
            usage = TokenUsage(prompt, min(prompt, cached), min(completion, hold.max_tokens))
            answer = b"encrypted" if hold.request.idempotency_key else None
            charges.setdefault(hold.request.prediction_id, charge(hold.request.prediction_id, usage, answer=answer))
        with connection.cursor() as cursor:
            cursor.execute(SETTLE_KEPT, kept_parameters(list(charges.values())))
            answers = {row[0]: parse_settled(row) for row in cursor.fetchall()}
        for prediction_id in sorted(charges):
            self._expect_settled(self.holds[prediction_id], charges[prediction_id].usage, answers[prediction_id])

    def _expect_settled(self, hold: Hold, usage: TokenUsage, answer: Settlement | BillingError) -> None:
        tokens = usage.completion_tokens if hold.delivered is None else min(hold.delivered, usage.completion_tokens)
        was_open = hold.state == "open"
        if hold.state == "released" and tokens > 0:
            assert isinstance(answer, HoldReleased)
            return
        assert isinstance(answer, Settlement), answer
        if was_open and tokens == 0:
            self._close(hold, "released")
        elif was_open:
            charged = TokenUsage(usage.prompt_tokens, usage.cached_tokens, tokens)
            self._charge(hold, min(hold.amount, cost_nano_usd(hold.request.price, charged)))
        assert answer == Settlement(hold.cost - hold.given_back, already_settled=not was_open)

    @precondition(lambda self: self.holds)
    @rule(which=number)
    def release(self, which: int) -> None:
        hold = pick(self.holds.values(), which)
        assert release_hold_sync(prediction_id=hold.request.prediction_id, reason="x") == (hold.state == "open")
        if hold.state == "open":
            self._close(hold, "released")

    def _close(self, hold: Hold, state: str) -> None:
        hold.state = state
        self.model.held[hold.customer] -= hold.amount
        for node in hold.path:
            node.held -= hold.amount

    def _charge(self, hold: Hold, cost: int) -> None:
        self._close(hold, "settled")
        hold.cost = cost
        for node in hold.path:
            node.spent += cost
        hold.drawn = self.model.draw(hold.customer, cost)
        hold.shares = self.shares_of(hold.split, cost)
        if cost > 0:
            amounts: dict[Account, int] = {("customer_credit", hold.customer): -cost}
            for payee, part in hold.shares.items():
                amounts["platform_revenue" if payee is None else "creator_reserve", payee] = part
                if payee is not None:
                    self.model.earned[payee] += part
            self.model.book("prediction", amounts)
