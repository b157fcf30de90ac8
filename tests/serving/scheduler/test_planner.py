"""The planner's promises, without torch or a clock."""

from __future__ import annotations

import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.core import Sequence, Status
from tests.serving.scheduler.fakes import FakeResidency, planner, run_step, sequence


def test_decodes_come_before_prefills_and_prefills_fill_the_budget() -> None:
    plans = planner(budget=10)
    first, second = sequence(4), sequence(30)
    plans.add(first)
    run_step(plans)
    plans.add(second)
    plan = plans.plan(0)
    assert [(c.sequence, c.count) for c in plan.chunks] == [(first, 1), (second, 9)]


def test_a_long_prompt_is_cut_into_chunks_and_samples_only_at_its_end() -> None:
    plans = planner(budget=8)
    seq = sequence(20, tokens=1)
    plans.add(seq)
    for computed in (8, 16):
        run_step(plans)
        assert seq.computed == computed and seq.output_tokens == 0
    run_step(plans)
    assert seq.output_tokens == 1 and seq.status is Status.FINISHED


def test_a_request_whose_adapter_is_missing_waits_and_blocks_nobody() -> None:
    residency = FakeResidency()
    plans = planner(residency)
    cold, warm = sequence(4, digest="cold"), sequence(4)
    plans.add(cold)
    plans.add(warm)
    plan = plans.plan(0)
    assert [c.sequence for c in plan.chunks] == [warm] and plan.wanted == ["cold"]
    residency.ready.add("cold")
    assert cold in [c.sequence for c in plans.plan(0).chunks]


def test_tenants_take_turns_whatever_the_length_of_their_queues() -> None:
    plans = planner(seqs=4)
    greedy = [sequence([i] * 4, tenant="greedy") for i in range(10)]
    modest = [sequence([i] * 4, tenant="modest") for i in range(2)]
    for seq in greedy + modest:
        plans.add(seq)
    assert [c.sequence for c in plans.plan(0).chunks] == [greedy[0], modest[0], greedy[1], modest[1]]


def test_the_newest_gives_way_when_kv_runs_out_and_loses_no_token() -> None:
    plans = planner(blocks=9, caching=False)  # 8 blocks of 4 tokens
    old, new = sequence(12, tokens=12), sequence(12, tokens=12)
    plans.add(old)
    plans.add(new)
    seen: list[Sequence] = []
    for _ in range(60):
        seen += run_step(plans)
        assert list(plans.waiting) in ([], [new])
    assert plans.preemptions > 0
    assert old.output_tokens == new.output_tokens == 12
    assert plans.pool.used == 0


def test_a_preempted_sequence_gives_up_its_pin() -> None:
    residency = FakeResidency("a")
    plans = planner(residency, blocks=9, caching=False)
    for _ in range(2):
        plans.add(sequence(12, digest="a", tokens=12))
    while not plans.preemptions:
        run_step(plans)
    assert residency.pins == {"a": 1}


def test_expired_requests_are_reported_and_not_computed() -> None:
    plans = planner()
    late, fine = sequence(4, deadline=1.0), sequence(4, deadline=9.0)
    plans.add(late)
    plans.add(fine)
    plan = plans.plan(5.0)
    assert plan.expired == [late] and [c.sequence for c in plan.chunks] == [fine]


def test_prefix_blocks_are_shared_within_a_scope_and_adapter_only() -> None:
    plans = planner(FakeResidency("a", "b"))
    prompt = list(range(100, 117))

    def cached(**kwargs: str) -> int:
        seq = sequence(prompt, tokens=1, **kwargs)
        plans.add(seq)
        run_step(plans)
        return seq.cached_tokens

    assert cached(scope="x", digest="a") == 0
    assert cached(scope="x", digest="a") == 16
    assert cached(scope="y", digest="a") == 0
    assert cached(scope="x", digest="b") == 0
    assert cached(scope="x") == 0
    plans.drop_prefixes("a")
    assert cached(scope="x", digest="a") == 0
    assert cached(scope="x", digest="b") == 16


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    plans = planner()
    for expected in (0, 15):
        seq = sequence(list(range(16)), tokens=1)
        plans.add(seq)
        run_step(plans)
        assert seq.cached_tokens == expected and seq.output_tokens == 1


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sequences_do_not_starve_and_blocks_do_not_leak_under_any_load(data: st.DataObject) -> None:
    residency = FakeResidency()
    plans = planner(residency, blocks=data.draw(st.integers(9, 30)), budget=data.draw(st.integers(4, 40)), seqs=4)
    active: list[Sequence] = []
    for _ in range(data.draw(st.integers(1, 40))):
        action = data.draw(st.sampled_from(["add", "add", "step", "step", "cancel", "load", "unload", "drop"]))
        digest = data.draw(st.sampled_from(["a", "b"]))
        if action == "add":
            size = data.draw(st.integers(1, 20))
            adapter = data.draw(st.sampled_from([None, "a", "b"]))
            seq = sequence(size, digest=adapter, tenant=data.draw(st.sampled_from("xyz")), tokens=8)
            active.append(seq)
            plans.add(seq)
        elif action == "cancel" and active:
            plans.finish(active.pop(data.draw(st.integers(0, len(active) - 1))))
        elif action == "load":
            residency.ready.add(digest)
        elif action == "unload" and not residency.pins.get(digest):
            residency.ready.discard(digest)
        elif action == "drop":
            plans.drop_prefixes(digest)
        else:
            run_step(plans)
        active = [seq for seq in active if seq.status is not Status.FINISHED]
        plans.check_integrity()
    residency.ready |= {"a", "b"}
    for _ in range(2000):
        if not plans.sequences():
            break
        run_step(plans)
    assert not plans.sequences() and plans.pool.used == 0
    assert all(count == 0 for count in residency.pins.values())


def test_the_scheduler_imports_no_torch() -> None:
    import subprocess

    code = "import sys, serving.scheduler.planner; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
