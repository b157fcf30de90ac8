"""READY on a GPU: an adapter is shown to the engine when its last layer is there, and no step waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lora_kernels import BatchMetadata, MetadataBuffers
from tests.lora_kernels.fake_cuda import FakeCuda
from tests.serving.adapters.fakes import Running, Source, digest_of

A, B, C = (digest_of(n) for n in range(1, 4))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda().install(monkeypatch)
    yield fake
    fake.check_is_idle()


def test_a_load_on_its_way_stalls_no_step_and_is_ready_when_complete(cuda: FakeCuda) -> None:
    run = Running(Source({B: 64}), pages=8, workers=2, backend="torch")
    run.load(A)
    cuda.default.waits.clear()
    buffers = MetadataBuffers(8, 4, max_pages=4)
    copies = run.pool._staging.stream
    with cuda.held(copies):
        run.manager.want([B])
        run.until(lambda: len(copies.work) > 1 and run.manager.loading)
        for rows in range(1, 4):  # steps of A's tenant, while B's layers wait for the device
            run.turn()
            BatchMetadata.build([run.manager.slot(A)], [rows], run.pool, buffers)
        assert not run.manager.is_ready(B) and run.manager.loading
        assert run.pool.is_settled and cuda.default.waits == []
    run.until(lambda: run.manager.is_ready(B))
    slot = run.manager.slot(B)
    assert run.pool.has_arrived(slot) and run.pool.site("o").a[:, run.pool.slot_pages(slot)].min() > 0
    BatchMetadata.build([run.manager.slot(A), slot], [1, 1], run.pool, buffers)
    assert cuda.default.waits == []
    run.close()
    assert run.plaintext_left() == 0 and run.weights_left() == 0 and not run.pool._staging.ring._memory.any()


def test_an_adapter_revoked_while_its_layers_are_on_their_way_leaves_nothing_and_stalls_nothing(
    cuda: FakeCuda,
) -> None:
    run = Running(backend="torch")
    copies = run.pool._staging.stream
    with cuda.held(copies):
        run.manager.want([C])
        run.until(lambda: len(copies.work) > 1)
        run.manager.revoke(C)
        run.manager.want([])
    run.until(lambda: not run.manager.loading)
    assert cuda.default.waits == [] and run.weights_left() == 0 and run.plaintext_left() == 0
    assert run.pool.free_pages == run.pool.num_pages and not run.pool._staging.ring._memory.any()
    run.close()
