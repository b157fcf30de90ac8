"""The way to a GPU: a blob that holds what a load in place would write, pinned memory in turns, arrival by layer."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest
import torch

from lora_kernels import (
    AdapterPool,
    AdapterTensors,
    BackendError,
    BatchMetadata,
    LoraPair,
    MetadataBuffers,
    NonFiniteError,
    PoolSpec,
    Reservation,
    SiteSpec,
    StagingError,
    Target,
    lora_apply,
)
from lora_kernels.loading import staging
from lora_kernels.loading.plan import plan_load
from lora_kernels.loading.quantize import FP8
from lora_kernels.loading.staging import HostBlob
from lora_kernels.loading.writing import write_plan
from tests.lora_kernels.factories import dense_delta, make_adapter
from tests.lora_kernels.fake_cuda import CaptureBroken, FakeCuda

SPEC = PoolSpec(
    (SiteSpec("qkv", 40, (24, 8, 8)), SiteSpec("o", 24, (40,)), SiteSpec("head", 40, (50,), num_layers=1)),
    num_layers=3,
    max_rank=48,
)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda().install(monkeypatch)
    yield fake
    fake.check_is_idle()


def pool_of(pages: int = 8, dtype: torch.dtype = torch.float32, **options: int) -> AdapterPool:
    return AdapterPool(SPEC, pages, 4, dtype, backend="torch", max_error=math.inf, **options)


def written(pool: AdapterPool, tensors: AdapterTensors) -> Reservation:
    reservation = pool.reserve(pool.pages_needed(tensors))
    reservation.write(tensors)
    return reservation


def assert_same_pages(pool: AdapterPool, other: AdapterPool, slot: int) -> None:
    for site in SPEC.sites:
        for mine, theirs in zip(pool.site(site.name).tensors(), other.site(site.name).tensors(), strict=True):
            for page, twin in zip(pool.slot_pages(slot), other.slot_pages(slot), strict=True):
                assert torch.equal(mine[:, page].view(torch.uint8), theirs[:, twin].view(torch.uint8))


def assert_serves(pool: AdapterPool, slot: int, tensors: AdapterTensors) -> None:
    x = torch.randn(4, 40)
    for layer in range(3):
        y = lora_apply(torch.zeros(4, 40), x, "qkv", layer, BatchMetadata.build([slot], [4], pool))
        torch.testing.assert_close(y.double(), dense_delta(SPEC, tensors, x, layer=layer), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
@pytest.mark.parametrize("layers", [range(3), range(1, 3)])
def test_a_blob_holds_what_a_load_writes_into_these_layers(dtype: torch.dtype, layers: range) -> None:
    tensors = make_adapter(SPEC, 40)
    pool, other = pool_of(6, dtype), pool_of(6, dtype)
    pool.load(0, tensors)
    plan = plan_load(SPEC, tensors)
    storages = {site.name: other.site(site.name) for site in SPEC.sites}
    memory = torch.zeros(HostBlob.bytes_for(storages.values(), plan.pages, layers), dtype=torch.uint8)
    blob = HostBlob(storages, plan.pages, layers, memory)
    write_plan(plan.of_layers(layers), blob.pages, pool.backend.copy, lambda: None)
    whole = [tensor for site in SPEC.sites for tensor in pool.site(site.name).tensors()]
    for (target, source), expected in zip(blob.copies, whole, strict=True):
        assert target.shape[0] == source.shape[0] == len(range(len(expected))[layers.start : layers.stop])
        assert torch.equal(
            source.view(torch.uint8), expected[layers.start : layers.stop, : plan.pages].view(torch.uint8)
        )


@pytest.mark.parametrize("dtype", [torch.float32, FP8])
@pytest.mark.parametrize("staging_bytes", [1, 1 << 30])
def test_loads_through_pinned_memory_whole_or_in_pieces_write_what_a_load_in_place_writes(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, staging_bytes: int
) -> None:
    pool = pool_of(8, dtype, staging_bytes=staging_bytes)
    pinned = list(cuda.allocated)
    adapters = [make_adapter(SPEC, rank, seed=rank) for rank in (40, 4, 17)]
    for slot, tensors in enumerate(adapters):
        pool.load(slot, tensors)
    assert cuda.allocated == pinned and len(pinned) == 1, "pinned once, whatever is loaded"
    monkeypatch.undo()
    other = pool_of(8, dtype)
    for slot, tensors in enumerate(adapters):
        other.load(slot, tensors)
        assert_same_pages(pool, other, slot)
    assert not pool._staging.ring._memory.any(), "decrypted weights are wiped behind every load"


def test_pages_that_are_not_adjacent_are_copied_run_by_run(cuda: FakeCuda) -> None:
    pool = pool_of(6)
    for slot in range(4):
        pool.load(slot, make_adapter(SPEC, 4, seed=slot))
    for slot in (0, 2):
        pool.evict(slot)
    tensors = make_adapter(SPEC, 48)
    pool.evict(1)
    pool.load(1, make_adapter(SPEC, 4))
    pool.load(0, tensors)
    assert pool.slot_pages(0) == (1, 2, 4)
    assert_serves(pool, 0, tensors)


def test_operations_wait_for_their_layer_alone_and_for_nothing_once_all_have_arrived(cuda: FakeCuda) -> None:
    pool = pool_of()
    tensors = make_adapter(SPEC, 40)
    with cuda.held(pool._staging.stream):
        reservation = written(pool, tensors)
        pool.publish(0, reservation)
        assert not pool.has_arrived(0) and not pool.is_settled
        events = reservation.arrival.events
        meta = BatchMetadata.build([0], [4], pool)
        assert cuda.default.waits == []
        for layer in range(3):
            meta.wait_for_layer(layer)
        assert cuda.default.waits == list(events)
    assert pool.has_arrived(0) and pool.is_settled
    assert_serves(pool, 0, tensors)
    assert cuda.default.waits == list(events)


def test_a_load_that_was_waited_for_before_its_publish_makes_no_step_wait_and_asks_nothing_later(
    cuda: FakeCuda,
) -> None:
    pool = pool_of()
    for slot in (0, 1):
        pool.load(slot, make_adapter(SPEC, 4, seed=slot))
    cuda.default.waits.clear()
    assert pool.has_arrived(0) and pool.has_arrived(1)
    buffers = MetadataBuffers(8, 3)
    started = threading.Event()

    def load() -> None:
        reservation = written(pool, tensors)
        started.set()
        reservation.wait()
        ready.append(reservation)

    tensors, ready = make_adapter(SPEC, 17), []
    worker = threading.Thread(target=load, daemon=True)
    with cuda.held(pool._staging.stream):
        worker.start()
        assert started.wait(60)
        for step in range(3):  # the other tenants' steps
            BatchMetadata.build([step % 2], [4], pool, buffers)
        assert worker.is_alive() and cuda.default.waits == []
    worker.join(60)
    pool.publish(2, ready[0])
    assert pool.is_settled
    BatchMetadata.build([2], [4], pool, buffers)
    assert cuda.default.waits == []
    with cuda.capture():
        assert_serves(pool, 2, tensors)


def test_a_load_in_one_call_is_complete_and_a_graph_may_be_captured_over_it_at_once(cuda: FakeCuda) -> None:
    pool = pool_of()
    tensors = make_adapter(SPEC, 40)
    pool.load(0, tensors)
    meta = BatchMetadata.build([0], [4], pool)
    x, y = torch.randn(4, 40), torch.zeros(4, 40)
    with cuda.capture():
        lora_apply(y, x, "qkv", 0, meta)
    assert y.any() and pool.is_settled and cuda.default.waits == []


def test_under_capture_a_load_on_its_way_is_refused_before_any_event_is_asked(cuda: FakeCuda) -> None:
    pool = pool_of()
    tensors = make_adapter(SPEC, 40)
    pool.publish(0, written(pool, tensors))
    x, y = torch.randn(4, 40), torch.zeros(4, 40)
    meta = BatchMetadata.build([0], [4], pool)
    with cuda.capture():
        for forbidden in (
            pool.settle,
            lambda: pool.has_arrived(0),
            lambda: pool.evict(0),
            lambda: lora_apply(y, x, "qkv", 0, meta),
            lambda: pool.load(1, tensors),
        ):
            with pytest.raises(BackendError):
                forbidden()
    assert pool.free_pages == 5 and not y.any()
    pool.settle()
    with cuda.capture():
        pool.settle()
        lora_apply(y, x, "qkv", 0, meta)
        assert pool.has_arrived(0)
    assert y.any()


def test_the_fake_refuses_what_cuda_refuses(cuda: FakeCuda) -> None:
    event = cuda.record()
    with cuda.capture():
        with pytest.raises(CaptureBroken):
            event.query()
        with pytest.raises(CaptureBroken):
            event.synchronize()


def test_parallel_loads_larger_than_the_pinned_memory_all_arrive_whole(cuda: FakeCuda) -> None:
    pool = pool_of(16, staging_bytes=1)
    adapters = [make_adapter(SPEC, 48, seed=seed) for seed in range(4)]
    reservations = [pool.reserve(3) for _ in adapters]
    threads = [
        threading.Thread(target=reservation.write, args=(tensors,), daemon=True)
        for reservation, tensors in zip(reservations, adapters, strict=True)
    ]
    for thread in threads:
        thread.start()
    for slot, (thread, reservation) in enumerate(zip(threads, reservations, strict=True)):
        thread.join(60)
        pool.publish(slot, reservation)
        assert_serves(pool, slot, adapters[slot])


def test_a_load_without_room_in_pinned_memory_is_refused_in_time_and_can_be_written_again(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "ROOM_SECONDS", 0.01)
    pool = pool_of(staging_bytes=1)
    tensors = make_adapter(SPEC, 48)
    ring = pool._staging.ring
    other = ring.take(ring.nbytes, seconds=0)
    reservation = pool.reserve(3)
    with pytest.raises(StagingError):
        reservation.write(tensors)
    ring.give(other)
    reservation.write(tensors)
    pool.publish(0, reservation)
    assert_serves(pool, 0, tensors)


def test_a_load_refused_after_its_first_layers_were_sent_leaves_zeros_and_no_memory_taken(cuda: FakeCuda) -> None:
    pool = pool_of(staging_bytes=1)
    tensors = dict(make_adapter(SPEC, 48))
    key = Target(2, "qkv", 1)
    tensors[key] = LoraPair(torch.full_like(tensors[key].a, math.nan), tensors[key].b, 1.0)
    reservation = pool.reserve(3)
    with pytest.raises(NonFiniteError, match="layer=2, site='qkv'"):
        reservation.write(tensors)
    assert any(tensor.any() for tensor in pool.site("qkv").tensors()), "the first layers were sent"
    pool.cancel(reservation)
    for site in SPEC.sites:
        assert not any(tensor.any() for tensor in pool.site(site.name).tensors())
    ring = pool._staging.ring
    assert pool.free_pages == 8 and not ring._memory.any()
    assert ring.take(ring.nbytes, seconds=0).begin == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
def test_on_cuda_a_published_adapter_serves_while_its_layers_arrive_and_captures_stay_whole() -> None:
    pool = AdapterPool(SPEC, 8, 3, torch.float32, "cuda", backend="torch")
    tensors = make_adapter(SPEC, 40)
    reservation = pool.reserve(pool.pages_needed(tensors))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(500_000_000)  # a quarter of a second: the copies wait behind it
    reservation.write(tensors, stream=stream)
    pool.publish(0, reservation)
    assert not pool.has_arrived(0)
    x = torch.randn(4, 40, device="cuda")
    meta = BatchMetadata.build([0], [4], pool)
    for layer in range(3):
        y = lora_apply(torch.zeros(4, 40, device="cuda"), x, "qkv", layer, meta)
        expected = dense_delta(SPEC, tensors, x.cpu(), layer=layer)
        torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-3, atol=1e-3)

    # Entering a capture waits for the device, so that everything has arrived; but nobody has asked since.
    pool.publish(1, written(pool, tensors))
    buffers = MetadataBuffers(8, 2, "cuda")
    count = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        count.add_(1)
        for forbidden in (pool.settle, lambda: BatchMetadata.build([0], [4], pool, buffers)):
            with pytest.raises(BackendError):
                forbidden()
    graph.replay()
    assert count.item() == 1, "the refusals did not break the capture"
    pool.settle()
    assert pool.is_settled
    BatchMetadata.build([0], [4], pool, buffers)
    for slot in (0, 1):
        pool.evict(slot)
    torch.cuda.synchronize()
    assert not pool.site("qkv").a.any() and pool.free_pages == 8
    assert not pool._staging.ring._memory.any(), "wiped"
