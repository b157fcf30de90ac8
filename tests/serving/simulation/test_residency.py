from __future__ import annotations

import random
from itertools import count

from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.simulation import SimulatedResidency
from tests.serving.scheduler.fakes import PlainText

_ids = count()


def waiting(digest: str) -> Sequence:
    request = Request(f"r{next(_ids)}", "t", "s", AdapterRef(digest), (1,), SamplingParams(), 1)
    return Sequence(request, 0.0, [1], PlainText(), random.Random(0))


def residency(slots: int = 2, pages: int | None = None, workers: int | None = None) -> SimulatedResidency:
    def rank(digest: str) -> int:
        return int(digest[1:])

    return SimulatedResidency(slots, rank=rank, load_seconds=lambda digest: 1.0, pages=pages, workers=workers)


def load(adapters: SimulatedResidency, digest: str, now: float) -> None:
    adapters.want([digest], now)
    adapters.pass_time(1.0, 1.0)
    adapters.poll(now + 1.0)


def test_a_load_takes_its_time_and_goes_on_slowly_beside_steps() -> None:
    adapters = residency()
    adapters.want(["a16"], 0.0)
    adapters.pass_time(1.0, 0.25)
    adapters.poll(1.0)
    assert not adapters.is_ready("a16") and adapters.next_arrival(1.0) == 1.75
    adapters.pass_time(0.75, 1.0)
    adapters.poll(1.75)
    assert adapters.is_ready("a16") and not adapters.loading


def test_no_more_loads_run_than_there_are_workers() -> None:
    adapters = residency(8, workers=2)
    adapters.want(["a1", "a2", "a3"], 0.0)
    adapters.pass_time(1.0, 1.0)
    adapters.poll(1.0)
    assert adapters.resident == ["a1", "a2"]


def test_the_adapter_that_is_used_least_goes_and_none_that_is_pinned_or_expected() -> None:
    adapters = residency(2)
    for now, digest in enumerate(("a1", "a2")):
        load(adapters, digest, float(now))
    for _ in range(3):
        adapters.pin("a1")
        adapters.unpin("a1")
    load(adapters, "a3", 2.0)
    assert sorted(adapters.resident) == ["a1", "a3"] and adapters.evictions == 1
    adapters.pin("a1")
    adapters.expect(waiting("a3"))
    adapters.expect(waiting("a4"))
    load(adapters, "a4", 3.0)
    assert sorted(adapters.resident) == ["a1", "a3"]  # a4 waits for room
    adapters.check_integrity()


def test_a_load_without_room_is_placed_by_force_after_a_while() -> None:
    adapters = residency(1)
    load(adapters, "a1", 0.0)
    adapters.pin("a1")
    adapters.expect(waiting("a2"))
    load(adapters, "a2", 1.0)
    assert adapters.next_arrival(2.0) == 2.25
    adapters.poll(2.25)
    assert not adapters.is_ready("a1")  # it runs on, and no sequence joins
    adapters.check_integrity()
    adapters.unpin("a1")
    adapters.poll(2.3)
    assert adapters.resident == ["a2"]


def test_pages_bound_what_is_resident_as_slots_do() -> None:
    adapters = residency(8, pages=4)
    for now, digest in enumerate(("a16", "a32", "a17")):  # 1, 2 and 2 pages
        load(adapters, digest, float(now))
    assert "a17" in adapters.resident and len(adapters.resident) == 2
    adapters.check_integrity()


def test_a_revoked_adapter_is_gone_when_its_last_pin_is_and_no_load_of_it_arrives() -> None:
    adapters = residency()
    load(adapters, "a1", 0.0)
    adapters.pin("a1")
    adapters.want(["a2"], 1.0)
    adapters.revoke("a1")
    adapters.revoke("a2")
    assert not adapters.is_ready("a1")
    adapters.unpin("a1")
    adapters.pass_time(1.0, 1.0)
    adapters.poll(2.0)
    assert adapters.resident == []
    adapters.check_integrity()
