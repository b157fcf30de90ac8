"""The order of replicas follows their heartbeats, what was sent since, and what was lost, whatever a replica tells."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from typing import Any

import pytest

from marketplace.gateway.pools import Pool, Pools, ReplicaAddress, Told, beginning_of


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
