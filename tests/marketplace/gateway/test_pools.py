"""The order of replicas follows their heartbeats, what was sent since, and what was lost, whatever a replica tells."""

from __future__ import annotations

import dataclasses
import json
import random
import time
import uuid
from collections import Counter
from typing import Any

import pytest

from marketplace.gateway.fleet.states import ReplicaState
from marketplace.gateway.pools import Pool, Pools, ReplicaAddress, Told, beginning_of
from protocol.fleet import FleetView, KeyChange, LoadNow, pack_keys
from routing import key_of


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def address(name: str) -> ReplicaAddress:
    return ReplicaAddress(uuid.uuid5(uuid.NAMESPACE_DNS, name), name, f"https://{name}", "ab" * 32, b"")


def told(name: str, age: float = 0.0, **stats: Any) -> Told:
    return Told(address(name), age, {"seats": 16, "running": 0, "waiting": 0, **stats})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pool(clock: Clock) -> Pool:
    return Pool(clock, random.Random(1))


def test_calls_of_one_adapter_meet_until_their_home_is_full(pool: Pool, clock: Clock) -> None:
    pool.refresh([told("a"), told("b")], senders=1)
    counts = Counter[str]()
    for _ in range(32):
        first = pool.ranked("adapter", "standard")[0]
        pool.sent(first)
        counts[first.name] += 1
    assert max(counts.values()) <= 24 and min(counts.values()) >= 8, counts
    clock.now += 2
    pool.refresh([told("a"), told("b")], senders=1)
    assert len({pool.ranked(str(n), "standard")[0].name for n in range(20)}) == 2


def test_the_same_heartbeat_read_again_does_not_forget_what_was_sent(pool: Pool, clock: Clock) -> None:
    beats = [told("a", age=0.5), told("b", age=0.5)]
    pool.refresh(beats, senders=1)
    home = pool.ranked("adapter", "standard")[0]
    for _ in range(9):
        pool.sent(home)
    clock.now += 1
    pool.refresh([told("a", age=1.5), told("b", age=1.5)], senders=1)
    assert pool.ranked("adapter", "standard")[0] != home


def test_a_lost_replica_is_asked_last_until_it_is_heard_of_again(pool: Pool, clock: Clock) -> None:
    pool.refresh([told("a"), told("b")], senders=1)
    home = pool.ranked("adapter", "standard")[0]
    pool.lost(home)
    assert home not in pool.ranked("adapter", "standard")
    clock.now += 1
    pool.refresh([told("a", age=1.5), told("b", age=1.5)], senders=1)
    assert home not in pool.ranked("adapter", "standard"), "that heartbeat is older than the loss"
    clock.now += 1
    pool.refresh([told("a", age=0.1), told("b", age=0.1)], senders=1)
    assert pool.ranked("adapter", "standard")[0] == home


def test_the_only_replica_is_asked_though_it_was_lost(pool: Pool) -> None:
    pool.refresh([told("a")], senders=1)
    pool.lost(address("a"))
    assert [one.name for one in pool.ranked("adapter", "standard")] == ["a"]
    pool.refresh([], senders=1)
    assert pool.ranked("adapter", "standard") == []


def test_draining_replicas_get_no_call(pool: Pool) -> None:
    pool.refresh([told("a", draining=True), told("b")], senders=1)
    assert {one.name for n in range(20) for one in pool.ranked(str(n), "batch")} == {"b"}


@pytest.mark.parametrize("lie", [-5, float("nan"), float("inf"), "many", None, [], {}, True, 10**30])
def test_a_replica_that_lies_about_its_figures_breaks_nothing(pool: Pool, lie: object) -> None:
    names = ("seats", "running", "waiting", "waits", "finished", "failed", "load_seconds", "resident", "draining")
    for turn in range(3):
        pool.refresh([Told(address("liar"), 0.0, dict.fromkeys(names, lie)), told("b", finished=turn)], senders=1)
        found = pool.ranked("adapter", "interactive")
        assert "b" in {one.name for one in found} and len(found) <= 4


def test_more_processes_that_send_count_for_as_many_calls(pool: Pool) -> None:
    def until_it_yields(senders: int) -> int:
        pool.refresh([told("a", age=0), told("b", age=0)], senders)
        home, count = pool.ranked("adapter", "standard")[0], 0
        while pool.ranked("adapter", "standard")[0] == home and count < 50:
            pool.sent(home)
            count += 1
        return count

    alone = until_it_yields(1)
    pool.refresh([], 1)
    assert until_it_yields(4) < alone


def test_a_conversation_keeps_to_one_of_the_homes_of_a_hot_adapter(pool: Pool, clock: Clock) -> None:
    names = [f"r{number}" for number in range(9)]
    pool.refresh([told(name, finished=0) for name in names], senders=1)
    clock.now += 2
    pool.refresh([told(name, running=4, finished=20) for name in names], senders=1)
    for _ in range(600):
        clock.now += 0.01
        pool.ranked("adapter", "standard")
    pool.refresh([told(name, running=4, finished=80) for name in names], senders=1)
    talks = {talk: pool.ranked("adapter", "standard", talk)[0].name for talk in range(60)}
    assert len(set(talks.values())) >= 2
    assert talks == {talk: pool.ranked("adapter", "standard", talk)[0].name for talk in range(60)}


def test_turns_of_a_conversation_begin_alike_and_organizations_apart() -> None:
    turn = {"model": "m", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "one"}]}
    later = {**turn, "messages": [*turn["messages"], {"role": "assistant", "content": "1"}], "temperature": 0}
    buyer, other = uuid.uuid4(), uuid.uuid4()
    first = beginning_of(buyer, json.dumps(turn).encode())
    assert first == beginning_of(buyer, json.dumps(later).encode()) != beginning_of(other, json.dumps(turn).encode())
    assert beginning_of(buyer, b'{"prompt": "x"}') != beginning_of(buyer, b'{"prompt": "y"}')


def test_replicas_of_other_checkpoints_are_in_other_pools() -> None:
    pools, reference, packed = Pools(), [told("reference")], [told("packed")]
    both = pools.of(("aa", "bb"), [reference, packed], 1)
    one = pools.of(("aa",), [reference], 1)
    assert {replica.name for n in range(20) for replica in both.ranked(str(n), "standard")} == {"reference", "packed"}
    assert {replica.name for n in range(20) for replica in one.ranked(str(n), "standard")} == {"reference"}
    pools.lost(address("reference"))
    assert [replica.name for replica in both.ranked("a", "standard")] == ["packed"]


def state_of(name: str, clock: Clock, *, seq: int = 1, running: int = 0, ended: int = 0, **sets: Any) -> ReplicaState:
    full = {key: KeyChange(pack_keys(value)) for key, value in sets.items()}
    view = FleetView(seq, True, LoadNow(16, running), ended, 0.5, 0.1, 0.01, **full)
    return ReplicaState.begun(address(name).id, name, view, clock.now)


def test_a_view_of_a_link_counts_more_than_the_heartbeat_in_the_books(clock: Clock) -> None:
    states = {"a": state_of("a", clock, running=9), "b": state_of("b", clock)}
    pool = Pool(clock, random.Random(1), states)
    pool.refresh([told("a", age=0.9), told("b", age=0.9)], senders=1)
    assert {one.name for n in range(20) for one in pool.ranked(str(n), "standard")[:1]} == {"b"}, "a is busy"
    states["a"].take(FleetView(2, False, LoadNow(16, 0)), clock.now + 0.2)
    clock.now += 0.2
    pool.hear(states["a"])
    assert {one.name for n in range(20) for one in pool.ranked(str(n), "standard")[:1]} == {"a", "b"}


def test_a_view_of_another_boot_of_the_name_is_left(clock: Clock) -> None:
    pool = Pool(clock, random.Random(1), {})
    pool.refresh([told("a"), told("b")], senders=1)
    older = state_of("a", clock, running=99)
    older.replica_id = uuid.uuid4()
    pool.hear(older)
    assert pool._fleet.busy(pool._fleet.place("a") or 0, clock.now) == 0


def test_a_conversation_goes_back_to_who_holds_it_and_costs_are_the_replica_s_own(clock: Clock) -> None:
    adapter, talk = key_of("adapter"), 77
    states = {name: state_of(name, clock, adapters=[adapter]) for name in ("a", "b", "c")}
    pool = Pool(clock, random.Random(1), states)
    pool.refresh([told(name) for name in states], senders=1)
    home = pool.ranked("adapter", "standard", talk)[0]
    other = next(name for name in states if name != home.name)
    states[other].take(FleetView(2, True, LoadNow(16), prefixes=KeyChange(pack_keys([talk]))), clock.now + 0.1)
    clock.now += 0.1
    pool.hear(states[other])
    assert pool.ranked("adapter", "standard", talk)[0] == home, "it has not the adapter any more"
    both = {"adapters": KeyChange(pack_keys([adapter])), "prefixes": KeyChange(pack_keys([talk]))}
    states[other].take(FleetView(3, True, LoadNow(16), **both), clock.now + 0.1)
    clock.now += 0.1
    pool.hear(states[other])
    assert pool.ranked("adapter", "standard", talk)[0].name == other
    assert pool.ranked("adapter", "standard", 78)[0] == home


def test_a_replica_whose_link_is_silent_is_asked_last_if_others_are_heard(clock: Clock) -> None:
    states = {name: state_of(name, clock) for name in ("a", "b")}
    pool = Pool(clock, random.Random(1), states)
    pool.refresh([told("a"), told("b")], senders=1)
    clock.now += 3.5
    pool.refresh([told("a", age=3.5), told("b", age=3.5)], senders=1)
    assert len(pool.ranked("x", "standard")) == 2, "it is this process that is deaf"
    states["b"].take(FleetView(2, False, LoadNow(16)), clock.now)
    pool.refresh([told("a", age=3.5), told("b", age=0.1)], senders=1)
    assert [one.name for one in pool.ranked("x", "standard")] == ["b"]
    states["a"].take(FleetView(2, False, LoadNow(16)), clock.now + 0.1)
    clock.now += 0.1
    pool.hear(states["a"])
    assert len(pool.ranked("x", "standard")) == 2


def test_heartbeats_count_when_a_link_is_gone(clock: Clock) -> None:
    states = {"a": state_of("a", clock, running=16)}
    pool = Pool(clock, random.Random(1), states)
    pool.refresh([told("a"), told("b")], senders=1)
    clock.now += 8
    pool.refresh([told("a", age=1.0), told("b", age=1.0, running=16)], senders=1)
    assert pool.ranked("x", "standard")[0].name == "a"


@pytest.mark.parametrize("header", [None, "", "[", "{}", "[-1]", "[1,2,3,NaN]", "[" * 900, "[16,1,0,0,0,0,false,1,2]"])
def test_the_load_of_an_answer_s_head_is_read_or_left(header: str | None) -> None:
    pools = Pools()
    pool = pools.of(("aa",), [[told("a"), told("b")]], 1)
    pools.answered(address("a"), header)
    pools.answered(address("a"), "[16,16,3,9.0,9.0,9.0,false]")
    assert pool.ranked("x", "standard")[0].name == "b"
    stranger = dataclasses.replace(address("b"), id=uuid.uuid4())
    pools.answered(stranger, "[16,16,9,99.0,99.0,99.0,false]")
    assert pool.ranked("x", "standard")[0].name == "b", "a replica speaks for itself alone"


def test_what_links_told_is_known_to_a_pool_that_is_made_later(clock: Clock) -> None:
    pools = Pools()
    pools.hear(ReplicaState.begun(address("a").id, "a", FleetView(1, True, LoadNow(16, 16, 9)), time.monotonic()))
    pool = pools.of(("aa",), [[told("a"), told("b")]], 1)
    assert pool.ranked("x", "standard")[0].name == "b"
