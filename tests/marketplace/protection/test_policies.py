"""The alarm and the limits as pure functions, and simulated customers before the alarm."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from marketplace.protection.policies import (
    ALARM_AT,
    ASK_CALLS_PER_DAY,
    EVEN,
    Asked,
    Gate,
    Rules,
    Standing,
    allowance,
    evenness,
    gate_of,
    is_copying,
    measure_of,
    pseudonym,
)
from tests.marketplace.protection.customers import KINDS, LATEST, Kind, simulate

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NEW = Standing(first_seen_at=NOW)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.must is not None], ids=lambda kind: kind.name)
def test_each_copier_raises_the_alarm_in_time_and_no_honest_customer_does_in_30_days(kind: Kind) -> None:
    outcome = simulate(kind, customers=5, seed=7)
    assert outcome.passes, outcome.raised
    if kind.must:
        assert max(outcome.raised) < LATEST
        assert outcome == simulate(kind, customers=5, seed=7), "the same seed, the same figures"


def test_the_docs_name_what_cannot_be_told_apart() -> None:
    hiding, even, large, free = (simulate(kind, customers=3, seed=7) for kind in KINDS if kind.must is None)
    assert not hiding.raised, "messages as they come in life pass"
    assert len(even.raised) == len(large.raised) == len(free.raised) == 3, "these raise an alarm without being copiers"


def test_evenness_is_that_of_a_closed_set_of_answers() -> None:
    assert evenness([40] * 10) == 1.0
    assert evenness([300, 30, 15, 10, 5]) is not None and evenness([300, 30, 15, 10, 5]) < EVEN  # type: ignore[operator]
    assert evenness([100] * 4) is None, "two to four answers are often as even"
    assert evenness([1] * 400) is None and evenness([6] * 65) is None, "free text"
    assert evenness([60] * 6 + [1] * 20) == pytest.approx(1.0), "slips of the model are no answers"
    assert evenness([]) is None


def test_an_alarm_needs_many_different_messages_and_repeats_are_no_excuse() -> None:
    even = [40] * 10
    assert not is_copying(Asked(ALARM_AT - 1, 10_000, even)) and is_copying(Asked(ALARM_AT, ALARM_AT, even))
    assert is_copying(Asked(ALARM_AT, 100 * ALARM_AT, even))
    assert is_copying(Asked(ALARM_AT, ALARM_AT, [1])), "answers that nobody heard to their end"
    assert not is_copying(Asked(50_000, 60_000, [40_000, 5_000, 2_500, 1_500, 1_000]))


def test_an_allowance_doubles_each_week_and_ends() -> None:
    days = [allowance(100, first_seen_at=NOW - timedelta(days=days), now=NOW) for days in (0, 6, 7, 14, 28, 100)]
    assert days == [100, 100, 200, 400, 1_600, None]
    assert allowance(100, first_seen_at=NOW + timedelta(days=1), now=NOW) == 100


def test_the_limits_of_a_customer_follow_from_rules_and_standing() -> None:
    def gate(rules: Rules, **changes: object) -> Gate | None:
        return gate_of(rules, Standing(first_seen_at=NOW, **changes), now=NOW)  # type: ignore[arg-type]

    assert gate(Rules(None, "")) is None and gate(Rules(None, "stop")) is None
    assert gate(Rules(10, "")) == Gate(10, 86_400, "introductory_allowance")
    assert gate(Rules(10, ""), granted_calls_per_day=50) == Gate(50, 86_400, "introductory_allowance")
    assert gate(Rules(10, "slow"), trusted=True, noticed=True) is None
    assert gate(Rules(10, "slow"), noticed=True) == Gate(1, 300, "extraction_slowed")
    assert gate(Rules(10, "ask"), noticed=True, granted_calls_per_day=50) == Gate(10, 86_400, "extraction_asked")
    assert gate(Rules(None, "ask"), noticed=True) == Gate(ASK_CALLS_PER_DAY, 86_400, "extraction_asked")
    assert gate(Rules(None, "stop"), noticed=True, measure="tell") is None


def test_the_creators_answer_stands_before_the_models_rule() -> None:
    noticed = Standing(first_seen_at=NOW, noticed=True)
    assert measure_of(Rules(None, "stop"), NEW) == "" and measure_of(Rules(None, "stop"), noticed) == "stop"
    slowed = Standing(first_seen_at=NOW, noticed=True, measure="slow")
    assert measure_of(Rules(None, "stop"), slowed) == "slow"
    assert measure_of(Rules(5, ""), slowed) == "", "without the counter nothing is held against anybody"


def test_a_pseudonym_is_the_same_for_one_model_alone() -> None:
    one, other, customer = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    assert pseudonym(model_id=one, organization_id=customer) == pseudonym(model_id=one, organization_id=customer)
    assert pseudonym(model_id=one, organization_id=customer) != pseudonym(model_id=other, organization_id=customer)
    assert str(customer)[:8] not in pseudonym(model_id=one, organization_id=customer)
