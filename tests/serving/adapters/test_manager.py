"""Adapters on their way through memory: states, room, fairness, hints, copies in host memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from serving.adapters.gate import Pause
from serving.adapters.residents import PATIENCE_SECONDS
from serving.core import AdapterRef
from serving.errors import AdapterUnavailable
from tests.serving.adapters.fakes import Clock, Running, Source, digest_of, refused

A, B, C, D = (digest_of(n) for n in range(1, 5))


@pytest.fixture
def run() -> Iterator[Running]:
    running = Running()
    yield running
    running.close()


def closing(run: Running) -> Iterator[Running]:
    yield run
    run.close()


def use(run: Running, digest: str, times: int = 1) -> None:
    for _ in range(times):
        run.manager.pin(digest)
        run.manager.unpin(digest)


def test_an_adapter_becomes_ready_and_its_plaintext_is_wiped(run: Running) -> None:
    run.load(A)
    slot = run.manager.slot(A)
    assert run.pool.is_loaded(slot) and run.manager.loads == 1 and run.failed == []
    assert run.source.memory == {} and run.plaintext_left() == 0 and run.source.released == []
    assert run.pool.site("o").a[:, run.pool.slot_pages(slot)].min() > 0
    seconds = run.manager.seconds.snapshot()
    assert seconds["copy"] > 0 and seconds["publish"] > 0 and run.manager.counters.cold_seconds > 0


def test_the_base_is_always_ready_and_costs_nothing(run: Running) -> None:
    assert run.manager.is_ready(None) and run.manager.slot(None) == -1 and not run.manager.is_revoked(None)
    assert run.manager.cost(None).seconds == 0


def test_a_load_under_way_blocks_no_other(run: Running) -> None:
    import threading

    run.source.gates[A] = threading.Event()
    run.manager.want([A, B])
    run.until(lambda: run.manager.is_ready(B))
    assert run.state(A) == "decrypting"
    run.source.gates[A].set()
    run.at(A, "ready")


def test_the_least_worthy_idle_adapter_makes_room_and_its_pages_are_zeroed(run: Running) -> None:
    for digest, times in ((A, 5), (B, 1), (C, 3)):
        run.load(digest)
        run.manager.residents.entries[digest].seconds = 0.01
        use(run, digest, times)
    run.load(D)
    run.manager.residents.entries[D].seconds = 0.01
    use(run, D, 7)
    before = run.weights_left()
    run.load(digest_of(9))
    assert run.state(B) == "cold" and run.source.released == [B]
    assert run.weights_left() == before  # one left, one came


def test_a_pinned_adapter_stays_whoever_wants_room() -> None:
    run = Running(pages=1, slots=1)
    run.load(A)
    run.manager.pin(A)
    run.manager.want([B])
    run.at(B, "host")
    for _ in range(5):
        run.turn()
    assert run.state(A) == "ready" and run.manager.slot(A) >= 0 and run.source.memory.keys() == {B}
    run.manager.unpin(A)
    run.at(B, "ready")
    run.close()


def test_while_one_waits_for_room_nothing_more_is_decrypted() -> None:
    run = Running(pages=1, slots=1, workers=1)
    run.load(A)
    run.manager.pin(A)
    run.manager.want([B, C, D])
    run.at(B, "host")
    run.turn()
    assert run.source.loaded == [A, B]
    run.manager.unpin(A)
    run.close()


def test_an_adapter_that_a_request_waits_for_is_not_evicted_before_it_was_served() -> None:
    run = Running(pages=1, slots=1)
    run.manager.expect(AdapterRef(A))
    run.load(A)
    run.manager.want([B])
    run.at(B, "host")
    run.turn()
    assert run.state(A) == "ready"
    run.manager.forget(AdapterRef(A))
    run.at(B, "ready")
    run.close()


def test_adapters_do_not_starve_beside_one_that_is_always_in_use() -> None:
    clock = Clock()
    run = Running(pages=1, slots=1, clock=clock)
    run.manager.expect(AdapterRef(A))
    run.load(A)
    run.manager.pin(A)
    run.manager.expect(AdapterRef(B))
    run.manager.want([B])
    run.at(B, "host")
    clock.now += PATIENCE_SECONDS * 1.1
    run.at(A, "draining")
    assert not run.manager.is_ready(A) and run.manager.slot(A) >= 0  # who runs goes on
    run.manager.unpin(A)
    run.at(B, "ready")
    assert run.manager.counters.drains == 1
    run.manager.want([A])  # its next request waits its turn
    run.at(A, "host")
    clock.now += PATIENCE_SECONDS * 1.1
    run.turn()
    run.turn()
    # B was asked for later than A, and nobody runs on it yet: it gives way.
    run.at(A, "ready")
    run.close()


def test_a_large_adapter_gathers_room_from_several_small_ones() -> None:
    run = Running(Source({D: 64}), pages=4, slots=4)
    for digest in (A, B, C):
        run.load(digest)
    run.load(D)
    assert {run.state(d) for d in (A, B, C)} == {"cold"} and len(run.pool.slot_pages(run.manager.slot(D))) == 4
    run.close()


def test_an_adapter_larger_than_the_pool_fails_and_leaves_nothing() -> None:
    run = Running(Source({A: 64}), pages=2, slots=2)
    run.manager.want([A])
    run.until(lambda: bool(run.failed))
    assert run.failed[0][0] == A and isinstance(run.failed[0][1], AdapterUnavailable) and "pages" in str(run.failed[0])
    assert run.state(A) == "cold" and run.source.released == [A] and run.source.memory == {}
    run.manager.want([])
    run.load(B)
    run.close()


@pytest.mark.parametrize("problem", [refused("gone"), ValueError("a secret")])
def test_a_failed_load_is_reported_without_its_secrets_and_may_be_tried_again(problem: Exception) -> None:
    run = Running()
    run.source.problems[A] = problem
    run.manager.want([A])
    run.until(lambda: bool(run.failed))
    assert isinstance(run.failed[0][1], AdapterUnavailable) and "secret" not in str(run.failed[0][1])
    assert run.source.released == [A] and run.pool.free_pages == 4
    del run.source.problems[A]
    run.load(A)
    run.close()


def test_a_load_that_failed_is_not_started_again_for_the_requests_that_it_failed() -> None:
    run = Running()
    run.source.problems[A], run.source.gates[A] = refused("no lease"), threading.Event()
    for _ in range(2):  # a plan is made again while the load is under way, and its list is the same
        run.manager.want([A])
    run.source.gates[A].set()
    run.until(lambda: bool(run.failed))
    assert run.manager.states() == {}
    run.close()  # waits for every job
    assert run.source.loaded == [A]


def test_weights_that_are_not_finite_never_reach_a_slot() -> None:
    run = Running()
    load = run.source.load

    def poisoned(digest: str, pause: Pause) -> object:
        tensors = load(digest, pause)
        run.source.memory[digest][5] = torch.nan
        return tensors

    run.source.load = poisoned  # type: ignore[method-assign, assignment]
    run.manager.want([A])
    run.until(lambda: bool(run.failed))
    assert "finite" in str(run.failed[0][1])
    assert run.weights_left() == 0 and run.source.memory == {} and run.pool.free_pages == 4
    run.close()


def test_a_hint_is_loaded_into_free_room_and_displaces_nothing_in_demand() -> None:
    run = Running(pages=2, slots=2, workers=1)
    run.load(A)
    use(run, A, 5)
    run.manager.hint([B])
    run.until(lambda: run.state(B) == "ready")
    assert run.manager.counters.prefetches == 1
    use(run, B, 5)
    run.manager.hint([C])
    run.until(lambda: C in run.source.loaded and run.state(C) == "cold")
    assert run.state(A) == run.state(B) == "ready" and run.source.released == [C]
    run.close()


def test_waiting_requests_come_before_hints() -> None:
    run = Running(workers=1)
    run.manager.hint([A, B])
    run.manager.want([C])
    run.until(lambda: run.ready(A, B, C))
    assert run.source.loaded[0] == C
    run.close()


def test_a_host_copy_saves_lease_and_decryption() -> None:
    run = Running(pages=1, slots=1, host_bytes=1 << 20)
    run.load(A)
    run.load(B)
    assert run.state(A) == "cold" and run.source.released == []  # its lease stays with the copy
    run.load(A)
    assert run.source.loaded == [A, B] and run.manager.counters.host_hits == 1
    assert run.manager.gauges().host_copies == 2
    assert run.pool.site("o").a[:, run.pool.slot_pages(run.manager.slot(A))].min() > 0
    run.close()
    assert run.source.memory == {} and run.plaintext_left() == 0 and sorted(run.source.released) == [A, B]


def test_host_copies_stay_within_their_budget_and_those_that_go_are_wiped() -> None:
    size = sum(pair.a.nbytes + pair.b.nbytes for pair in Source().load(A).values())
    run = Running(pages=1, slots=1, host_bytes=2 * size)
    for digest in (A, B, C, D):
        run.load(digest)
        use(run, digest)
        gauges = run.manager.gauges()
        assert gauges.host_bytes <= 2 * size and gauges.host_bytes == size * gauges.host_copies
        assert len(run.source.memory) == gauges.host_copies
    assert run.manager.counters.host_evictions >= 1 and run.source.released
    run.close()
    assert run.source.memory == {} and run.plaintext_left() == 0


def test_idle_adapters_are_zeroed_and_their_leases_released_but_used_ones_stay() -> None:
    clock = Clock()
    run = Running(idle=60.0, clock=clock)
    run.load(A)
    run.load(B)
    run.manager.pin(B)
    clock.now += 61
    run.turn()
    assert run.state(A) == "cold" and run.source.released == [A] and run.state(B) == "ready"
    run.manager.unpin(B)
    clock.now += 30
    run.turn()
    assert run.state(B) == "ready" and run.manager.counters.returned == 1
    run.close()


def test_the_page_limit_holds_and_shrinks_as_adapters_go_idle() -> None:
    run = Running(pages=4, slots=4)
    run.load(A)
    run.load(B)
    run.manager.set_page_limit(2)
    run.load(C)
    assert run.pool.free_pages == 2 and sum(run.manager.is_ready(d) for d in (A, B, C)) == 2
    run.close()


def test_the_cost_of_a_load_is_what_it_took_last_time(run: Running) -> None:
    run.load(A)
    assert run.manager.cost(A).seconds == 0 and run.manager.cost(A).rank == 16
    unseen = run.manager.cost(B)
    assert unseen.seconds > 0 and unseen.rank == 16  # as adapters typically do
    run.manager.revoke(A)
    assert run.manager.cost(A).seconds > 0 and run.manager.cost(A).bytes > 0


def test_closing_zeroes_and_releases_everything(run: Running) -> None:
    run.load(A, B)
    run.manager.pin(B)
    run.manager.close()
    assert run.weights_left() == 0 and sorted(run.source.released) == [A, B] and run.manager.states() == {}
