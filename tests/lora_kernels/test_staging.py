"""The way to a GPU: a blob that holds what a load in place would write; on CUDA, arrival layer by layer."""

from __future__ import annotations

import pytest
import torch

from lora_kernels import AdapterPool, BackendError, BatchMetadata, MetadataBuffers, PoolSpec, SiteSpec, lora_apply
from lora_kernels.loading.plan import plan_load
from lora_kernels.loading.quantize import FP8
from lora_kernels.loading.staging import HostBlob, copy_pages
from lora_kernels.loading.writing import write_plan
from tests.lora_kernels.factories import dense_delta, make_adapter

SPEC = PoolSpec(
    (SiteSpec("qkv", 40, (24, 8, 8)), SiteSpec("o", 24, (40,)), SiteSpec("head", 40, (50,), num_layers=1)), num_layers=3
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_a_blob_copied_page_by_page_is_what_a_load_writes(dtype: torch.dtype) -> None:
    tensors = make_adapter(SPEC, 40)
    pool, other = (AdapterPool(SPEC, 6, 2, dtype, backend="torch") for _ in range(2))
    pool.load(0, tensors)
    pages = pool.slot_pages(0)
    plan = plan_load(SPEC, tensors)
    storages = {site.name: other.site(site.name) for site in SPEC.sites}

    blob = HostBlob(storages, len(pages), pinned=False)
    assert not blob.memory.any()
    write_plan(plan, blob.pages, pool.backend.copy, lambda: None)
    for target, source in blob._copies:
        for layer in range(len(target)):
            copy_pages(target[layer], source[layer], pages)

    for name, storage in storages.items():
        assert torch.equal(storage.a.view(torch.uint8), pool.site(name).a.view(torch.uint8))
        assert torch.equal(storage.b.view(torch.uint8), pool.site(name).b.view(torch.uint8))


def test_pages_that_are_not_adjacent_are_copied_run_by_run() -> None:
    target, source = torch.zeros(8, 2), torch.arange(8.0).view(4, 2) + 1
    copy_pages(target, source, [6, 2, 3, 0])
    assert torch.equal(target[[6, 2, 3, 0]], source)
    assert not target[[1, 4, 5, 7]].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
def test_on_cuda_a_published_adapter_serves_while_its_layers_arrive_and_the_blob_is_wiped() -> None:
    pool = AdapterPool(SPEC, 8, 3, torch.float32, "cuda", backend="torch")
    tensors = make_adapter(SPEC, 40)
    reservation = pool.reserve(pool.pages_needed(tensors))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
    reservation.write(tensors, stream=stream)
    pool.publish(0, reservation)
    assert not pool.is_settled
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(BackendError), torch.cuda.graph(graph):
        pool.settle()

    x = torch.randn(4, 40, device="cuda")
    meta = BatchMetadata.build([0], [4], pool)
    for layer in range(3):
        y = lora_apply(torch.zeros(4, 40, device="cuda"), x, "qkv", layer, meta)
        expected = dense_delta(SPEC, tensors, x.cpu(), layer=layer)
        torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-3, atol=1e-3)
    BatchMetadata.build([0], [4], pool, MetadataBuffers(8, 2, "cuda"))
    torch.cuda.synchronize()
    pool.settle()
    assert pool.is_settled
    pool.evict(0)
    assert not pool.site("qkv").a.any() and pool.free_pages == 8
