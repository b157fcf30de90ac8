"""Virtual token counters: shares by weight, no credit for idle time, no starvation by newcomers."""

from __future__ import annotations

import itertools

from serving.core import LatencyClass
from serving.scheduler.fairness import Prices, VirtualCounters
from tests.serving.scheduler.fakes import FakeResidency, planner, run_step, sequence


def serve(counters: VirtualCounters, tenants: list[str], rounds: int, cost: float = 10.0) -> dict[str, float]:
    got = dict.fromkeys(tenants, 0.0)
    for _ in range(rounds):
        chosen = min(tenants, key=counters.of)
        counters.charge(chosen, cost)
        got[chosen] += cost
    return got


def test_backlogged_tenants_get_service_by_weight() -> None:
    counters = VirtualCounters()
    counters.join("light", 1.0)
    counters.join("heavy", 3.0)
    got = serve(counters, ["light", "heavy"], 400)
    assert abs(got["heavy"] - 3 * got["light"]) <= 40


def test_a_returning_tenant_gets_no_credit_for_the_time_it_was_away() -> None:
    counters = VirtualCounters()
    counters.join("busy", 1.0)
    counters.charge("busy", 1000.0)
    counters.join("back", 1.0)
    assert counters.of("back") == counters.of("busy")
    got = serve(counters, ["busy", "back"], 100)
    assert abs(got["busy"] - got["back"]) <= 10


def test_service_without_competition_is_held_against_nobody() -> None:
    counters = VirtualCounters()
    counters.join("alone", 1.0)
    counters.charge("alone", 1e6)
    counters.leave("alone")
    counters.join("new", 1.0)
    counters.join("alone", 1.0)
    assert counters.of("new") == counters.of("alone") == 1e6


def test_an_endless_stream_of_new_tenants_starves_nobody() -> None:
    counters, fresh = VirtualCounters(), (f"n{i}" for i in itertools.count())
    counters.join("old", 1.0)
    counters.join("first", 1.0)
    counters.charge("old", 50.0)
    waiting, turns = ["first"], 0
    while min(["old", *waiting], key=counters.of) != "old":
        waiting.append(next(fresh))  # there is always another one in line before the one that is served leaves
        counters.join(waiting[-1], 1.0)
        served = waiting.pop(0)
        counters.charge(served, 10.0)
        counters.leave(served)
        turns += 1
        assert turns < 50, "newcomers start at the bottom for ever"


def test_counters_of_idle_tenants_do_not_pile_up() -> None:
    counters = VirtualCounters()
    for i in range(20_000):
        counters.join(f"t{i}", 1.0)
        counters.charge(f"t{i}", 1.0)
        counters.leave(f"t{i}")
    assert len(counters._counters) < 5_000


def test_rank_makes_a_token_dearer() -> None:
    prices = Prices()
    assert prices.tokens(10, 0, 0) == 10 and prices.tokens(0, 10, 0) == 20
    assert prices.tokens(10, 0, 64) == 10 * (1 + 64 / 256)


def test_computing_again_after_a_preemption_is_free_and_cached_tokens_are_too() -> None:
    plans = planner(caching=True)
    plans.accounts._prices = Prices(block_second=0.0)
    prompt = list(range(17))
    for expected in (17.0, 18.0):  # the second time only the last token is computed
        plans.add(sequence(prompt, tokens=1))
        run_step(plans)
        assert plans.accounts.of("t") == expected
    victim = sequence(list(range(100, 120)), tokens=4)
    plans.add(victim)
    run_step(plans)
    before = plans.accounts.of("t")
    plans._stop(victim)
    victim.status = type(victim.status).WAITING
    plans._wait(victim)
    run_step(plans)
    assert victim.output_tokens == 2 and plans.accounts.of("t") == before + 2.0  # one new output token


def test_the_tenant_that_asked_first_pays_for_the_adapter() -> None:
    residency = FakeResidency()
    plans = planner(residency)
    plans.add(sequence(4, digest="a", tenant="first"))
    plans.plan(0.0)
    residency.ready.add("a")
    plans.accounts.settle([], 0.0)
    assert plans.accounts.of("first") == 1.0  # one MiB


def test_kv_is_charged_by_blocks_and_seconds() -> None:
    plans = planner(caching=False)
    plans.add(sequence(16, tokens=8, latency_class=LatencyClass.BATCH))
    run_step(plans, now=0.0)
    before = plans.accounts.of("t")
    plans.accounts.settle(plans.running, 0.5)
    assert abs(plans.accounts.of("t") - before - 4 * 0.5 * 0.1) < 1e-9
