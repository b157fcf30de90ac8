"""Loading in three steps: reserve and publish where kernels are launched, write anywhere; nothing shows in between."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from lora_kernels import (
    AdapterPool,
    BatchMetadata,
    LoraKernelError,
    LoraPair,
    NonFiniteError,
    PoolFullError,
    RankError,
    ReservationError,
    ShapeError,
    SlotError,
    lora_apply,
)
from lora_kernels.memory import runs
from tests.lora_kernels.factories import (
    assert_unchanged,
    dense_delta,
    make_adapter,
    one_site,
    poison_spare_pages,
    snapshot,
)

SPEC = one_site(40, (24, 8), layers=3, max_rank=64)


def delta(pool: AdapterPool, slot: int, x: torch.Tensor, *, layer: int = 0) -> torch.Tensor:
    meta = BatchMetadata.build([slot], [len(x)], pool)
    return lora_apply(torch.zeros(len(x), 32), x, "site", layer, meta).double()


def test_an_adapter_written_in_another_thread_serves_once_published() -> None:
    pool = AdapterPool(SPEC, 6, 3)
    old, new = make_adapter(SPEC, 20, seed=1), make_adapter(SPEC, 33, seed=2)
    x = torch.randn(4, 40)
    pool.load(0, old)
    served = delta(pool, 0, x)

    reservation = pool.reserve(pool.pages_needed(new))
    assert pool.free_pages == 1
    with ThreadPoolExecutor(1) as worker:
        worker.submit(reservation.write, new).result()
    assert not pool.is_loaded(1)
    assert torch.equal(delta(pool, 0, x), served)
    pool.publish(1, reservation)

    assert torch.equal(delta(pool, 0, x), served)
    for layer in range(3):
        expected = dense_delta(SPEC, new, x, layer=layer)
        torch.testing.assert_close(delta(pool, 1, x, layer=layer), expected, rtol=0, atol=1e-5)


def test_loads_beside_running_kernels_change_no_bit_of_what_they_serve() -> None:
    pool = AdapterPool(SPEC, 12, 3)
    pool.load(0, make_adapter(SPEC, 40, seed=1))
    adapters = [make_adapter(SPEC, rank, seed=rank) for rank in (5, 16, 50)]
    x = torch.randn(9, 40)
    served = delta(pool, 0, x)
    with ThreadPoolExecutor(2) as workers:
        for adapter in adapters * 10:
            reservations = [pool.reserve(pool.pages_needed(adapter)) for _ in range(2)]
            writes = [workers.submit(reservation.write, adapter) for reservation in reservations]
            while not all(write.done() for write in writes):
                assert torch.equal(delta(pool, 0, x), served)
            pool.publish(1, reservations[0])
            pool.cancel(reservations[1])
            torch.testing.assert_close(delta(pool, 1, x), dense_delta(SPEC, adapter, x), rtol=0, atol=1e-5)
            pool.evict(1)
    assert torch.equal(delta(pool, 0, x), served)
    assert pool.free_pages == 9


def test_pages_not_needed_are_free_again_at_publish() -> None:
    pool = AdapterPool(SPEC, 4, 1)
    reservation = pool.reserve(4)
    reservation.write(make_adapter(SPEC, 17))
    assert pool.free_pages == 0
    pool.publish(0, reservation)
    assert pool.free_pages == 2 and len(pool.slot_pages(0)) == 2


def test_a_blend_is_written_like_an_adapter() -> None:
    pool = AdapterPool(SPEC, 4, 1)
    parts = [(make_adapter(SPEC, 20, seed=1), 0.7), (make_adapter(SPEC, 7, seed=2, scale=0.5), 0.3)]
    reservation = pool.reserve(pool.pages_needed(parts))
    reservation.write(parts)
    pool.publish(0, reservation)
    x = torch.randn(2, 40)
    expected = sum(weight * dense_delta(SPEC, tensors, x) for tensors, weight in parts)
    torch.testing.assert_close(delta(pool, 0, x), expected, rtol=0, atol=1e-5)


def test_a_cancelled_write_leaves_zeroed_free_pages() -> None:
    pool = AdapterPool(SPEC, 4, 1)
    before = snapshot(pool)
    for written in (False, True):
        reservation = pool.reserve(3)
        if written:
            reservation.write(make_adapter(SPEC, 40))
        pool.cancel(reservation)
        assert_unchanged(pool, before)


def refused(a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> dict[tuple[int, str, int], LoraPair]:
    return make_adapter(SPEC, 8) | {(1, "site", 1): LoraPair(a, b, scale)}


@pytest.mark.parametrize(
    ("error", "tensors"),
    [
        (NonFiniteError, refused(torch.full((8, 40), math.nan), torch.ones(8, 8))),
        (NonFiniteError, refused(torch.ones(8, 40), torch.full((8, 8), -math.inf))),
        (NonFiniteError, refused(torch.ones(8, 40), torch.ones(8, 8), math.nan)),
        (ShapeError, refused(torch.ones(8, 41), torch.ones(8, 8))),
        (RankError, make_adapter(SPEC, 49)),
    ],
)
def test_a_refused_write_shows_nowhere_and_its_pages_can_be_written_again(error, tensors) -> None:
    pool = AdapterPool(SPEC, 5, 2)
    pool.load(1, make_adapter(SPEC, 16, seed=3))
    before = snapshot(pool)
    reservation = pool.reserve(3)
    with pytest.raises(error):
        reservation.write(tensors)
    with pytest.raises(ReservationError):
        pool.publish(0, reservation)
    assert not pool.is_loaded(0)

    small = make_adapter(SPEC, 3, seed=4)
    reservation.write(small)
    pool.publish(0, reservation)
    x = torch.randn(2, 40)
    torch.testing.assert_close(delta(pool, 0, x, layer=1), dense_delta(SPEC, small, x, layer=1), rtol=0, atol=1e-5)
    pool.evict(0)
    assert_unchanged(pool, before)


def test_values_whose_sum_overflows_are_finite_all_the_same() -> None:
    pool = AdapterPool(SPEC, 1, 1)
    tensors = refused(torch.full((8, 40), 3e38), torch.zeros(8, 8))
    pool.load(0, tensors)
    assert pool.site("site").a.max() == torch.tensor(3e38)


def test_a_reservation_is_used_once_and_by_its_own_pool() -> None:
    pool, other = AdapterPool(SPEC, 4, 2), AdapterPool(SPEC, 4, 2)
    adapter = make_adapter(SPEC, 8)
    reservation = pool.reserve(1)
    with pytest.raises(ReservationError):
        pool.publish(0, reservation)
    reservation.write(adapter)
    for call in (other.publish, lambda _, r: other.cancel(r)):
        with pytest.raises(ReservationError):
            call(0, reservation)
    with pytest.raises(SlotError):
        pool.publish(2, reservation)
    pool.publish(0, reservation)
    for end in (
        lambda: pool.publish(1, reservation),
        lambda: pool.cancel(reservation),
        lambda: reservation.write(adapter),
    ):
        with pytest.raises(ReservationError):
            end()
    assert pool.free_pages == 3 and pool.is_loaded(0) and not pool.is_loaded(1) and other.free_pages == 4


def test_a_reservation_being_written_cannot_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = AdapterPool(SPEC, 2, 1)
    reservation = pool.reserve(1)
    started, go_on = threading.Event(), threading.Event()
    prepare = pool.tables.prepare

    def slow_prepare(*args: object):
        started.set()
        go_on.wait(10)
        return prepare(*args)

    monkeypatch.setattr(pool.tables, "prepare", slow_prepare)
    with ThreadPoolExecutor(1) as worker:
        writing = worker.submit(reservation.write, make_adapter(SPEC, 8))
        assert started.wait(10)
        for call in (lambda: pool.cancel(reservation), lambda: pool.publish(0, reservation)):
            with pytest.raises(ReservationError):
                call()
        go_on.set()
        writing.result()
    assert pool.free_pages == 1
    pool.cancel(reservation)
    assert pool.free_pages == 2


@pytest.mark.parametrize(("error", "pages"), [(PoolFullError, 4), (RankError, 5)])
def test_more_pages_than_there_are_cannot_be_reserved(error: type[LoraKernelError], pages: int) -> None:
    pool = AdapterPool(SPEC, 3, 1)
    with pytest.raises(error):
        pool.reserve(pages)
    assert pool.free_pages == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_poison_left_in_free_pages_does_not_survive_a_write(dtype: torch.dtype) -> None:
    pool = AdapterPool(SPEC, 3, 1, dtype)
    poison_spare_pages(pool)
    small = {(2, "site", 0): make_adapter(SPEC, 3)[2, "site", 0], (2, "site", 1): make_adapter(SPEC, 18)[2, "site", 1]}
    pool.load(0, small)
    pages = list(pool.slot_pages(0))
    storage = pool.site("site")
    assert storage.a[:, pages].isfinite().all() and storage.b[:, pages].isfinite().all()


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_a_pool_of_a_gibibyte_takes_no_memory_before_it_is_written() -> None:
    before = resident_bytes()
    pool = AdapterPool(one_site(4096, (4096,), layers=16), 256, 4)
    assert pool.site("site").a.nbytes > 1 << 30
    assert resident_bytes() - before < 64 << 20


def test_pages_reserved_in_excess_take_no_memory() -> None:
    spec = one_site(4096, (4096,), layers=16)
    pool, adapter = AdapterPool(spec, 16, 4), make_adapter(spec, 4)
    before = resident_bytes()
    reservation = pool.reserve(12)  # 8 MiB each
    reservation.write(adapter)
    pool.publish(0, reservation)
    pool.cancel(pool.reserve(12))
    assert pool.free_pages == 15
    assert resident_bytes() - before < 32 << 20


def test_runs_are_maximal_stretches_of_adjacent_pages() -> None:
    assert list(runs([])) == []
    assert list(runs([4])) == [(4, 5)]
    assert list(runs([2, 3, 4, 7, 6, 9, 10])) == [(2, 5), (7, 8), (6, 7), (9, 11)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_write_pauses_between_its_pieces_and_can_be_given_up_at_each(dtype: torch.dtype) -> None:
    pool = AdapterPool(SPEC, 6, 3, dtype)
    adapter = make_adapter(SPEC, 33, seed=2)
    pool.load(0, adapter)
    x = torch.randn(4, 40)
    expected = delta(pool, 0, x)
    reservation = pool.reserve(pool.pages_needed(adapter))
    pauses = [0]

    def give_up_at(last: int) -> None:
        pauses[0] += 1
        if pauses[0] == last:
            raise TimeoutError("not now")

    reservation.write(adapter, pause=lambda: give_up_at(0))
    pool.publish(1, reservation)
    assert torch.equal(delta(pool, 1, x), expected)
    pool.evict(1)
    needed = pauses[0]
    assert needed >= 2 * 2 * 3  # both matrices of two slices on three pages
    reservation = pool.reserve(pool.pages_needed(adapter))
    for last in range(1, needed + 1):
        pauses[0] = 0
        with pytest.raises(TimeoutError, match="not now"):
            reservation.write(adapter, pause=lambda last=last: give_up_at(last))  # type: ignore[misc]
        assert torch.equal(delta(pool, 0, x), expected)
    reservation.write(adapter)
    pool.publish(1, reservation)
    assert torch.equal(delta(pool, 1, x), expected)
