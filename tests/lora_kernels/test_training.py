"""Many adapters trained in one batch: each gets the gradients, and after some steps the weights, it would get alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from lora_kernels import AdapterPool, BatchMetadata, DtypeError, RankError, ShapeError, SlotError, lora_apply
from lora_kernels.training import AdapterBatch, AdapterRows, lora_delta, lora_linear
from tests.lora_kernels.factories import make_adapter, one_site

K, N = 12, 10
# (adapter of each sequence, lengths): ranks and rows differ; equal ones, out of order; one adapter without rows.
BATCHES = [
    ([0, 1, -1, 2], [3, 4, 2, 1]),
    ([2, 0, 1, 0, -1], [3, 1, 3, 2, 2]),
    ([1, 1], [2, 3]),
]
RANKS = [[2, 2, 2], [1, 4, 2]]


def weights(ranks: list[int], dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    a = [torch.randn(rank, K, generator=generator, dtype=torch.float64).to(dtype) for rank in ranks]
    b = [torch.randn(N, rank, generator=generator, dtype=torch.float64).to(dtype) for rank in ranks]
    return [t.requires_grad_() for t in a], [t.requires_grad_() for t in b]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("adapters", "lengths"), BATCHES)
def test_gradients_are_those_of_finite_differences(ranks, adapters, lengths) -> None:
    rows = AdapterRows.build(adapters, lengths, 3)
    a, b = weights(ranks, torch.float64)
    x = torch.randn(rows.rows, K, dtype=torch.float64, requires_grad=True)

    def delta(x: torch.Tensor, *pairs: torch.Tensor) -> torch.Tensor:
        return lora_delta(x, pairs[:3], pairs[3:], [0.5, 2.0, -1.0], rows)

    used = [j for j in range(3) if rows.count(j)]
    assert torch.autograd.gradcheck(delta, (x, *a, *b))
    delta(x, *a, *b).sum().backward()
    assert [j for j in range(3) if a[j].grad is not None] == [j for j in range(3) if b[j].grad is not None] == used


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("adapters", "lengths"), BATCHES)
def test_the_delta_and_its_gradients_equal_one_adapter_at_a_time(dtype, ranks, adapters, lengths) -> None:
    rows = AdapterRows.build(adapters, lengths, 3)
    a, b = weights(ranks, dtype)
    x = torch.randn(rows.rows, K).to(dtype).requires_grad_()
    scales, seed = [0.5, 2.0, -1.0], torch.randn(rows.rows, N).to(dtype)

    delta = lora_delta(x, a, b, scales, rows)
    got = torch.autograd.grad(delta, [x, *a, *b], seed, allow_unused=True)

    parts = []
    for adapter, part in zip(adapters, x.float().split(lengths), strict=True):
        if adapter < 0:
            parts.append(torch.zeros(len(part), N))
        else:
            parts.append(scales[adapter] * part @ a[adapter].float().T @ b[adapter].float().T)
    expected = torch.autograd.grad(torch.cat(parts), [x, *a, *b], seed.float(), allow_unused=True)
    tolerance = {"rtol": 1e-5, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.03, "atol": 0.6}
    torch.testing.assert_close(delta.float(), torch.cat(parts), **tolerance)
    for ours, theirs in zip(got, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours.float(), theirs.float(), **tolerance)


def test_two_adapters_trained_in_one_batch_become_what_each_becomes_alone_and_serve_as_such() -> None:
    torch.manual_seed(0)
    base, sequences = torch.randn(N, K), torch.randn(4, 5, K)
    wanted = torch.randn(4, 5, N)
    together = AdapterBatch(K, N, [2, 4], [2.0, 0.5])
    start = [[parameter.detach().clone() for parameter in together.parameters_of(j)] for j in range(2)]
    owner = [0, 1, 1, 0]
    rows = AdapterRows.build(owner, [5] * 4, 2)
    groups = [{"params": together.parameters_of(j), "lr": rate} for j, rate in ((0, 1e-2), (1, 3e-2))]
    optimizer = torch.optim.AdamW(groups)
    for _ in range(5):
        optimizer.zero_grad()
        (lora_linear(sequences, base, together, rows) - wanted).pow(2).sum().backward()
        optimizer.step()

    for j, rate in ((0, 1e-2), (1, 3e-2)):
        a, b = (parameter.requires_grad_() for parameter in start[j])
        alone = torch.optim.AdamW([a, b], lr=rate)
        mine = [i for i, adapter in enumerate(owner) if adapter == j]
        for _ in range(5):
            alone.zero_grad()
            # PEFT's Linear.forward computes this.
            x = sequences[mine]
            y = functional.linear(x, base) + functional.linear(functional.linear(x, a), b) * together.scales[j]
            (y - wanted[mine]).pow(2).sum().backward()
            alone.step()
        torch.testing.assert_close(together.a[j], a, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(together.b[j], b, rtol=1e-4, atol=1e-5)

    pool = AdapterPool(one_site(K, (N,)), 2, 2)
    for j in range(2):
        pool.load(j, {(0, "site", 0): together.pair(j)})
    flat = sequences.flatten(0, 1)
    served = lora_apply(flat @ base.T, flat, "site", 0, BatchMetadata.build(owner, [5] * 4, pool))
    trained = lora_linear(sequences, base, together, rows).flatten(0, 1)
    torch.testing.assert_close(served, trained.detach(), rtol=1e-4, atol=1e-4)


def test_a_new_batch_of_adapters_changes_nothing_and_a_frozen_one_gets_no_gradient() -> None:
    adapters = AdapterBatch(K, N, [2, 3], [1.0, 1.0], dropout=0.5, dtype=torch.float32)
    rows = AdapterRows.build([0, 1], [2, 2], 2)
    x = torch.randn(4, K, dtype=torch.bfloat16)
    assert not adapters(x, rows).any() and adapters(x, rows).dtype == torch.bfloat16
    for parameter in adapters.parameters_of(0):
        parameter.requires_grad_(False)
    adapters(x, rows).sum().backward()
    assert adapters.a[0].grad is adapters.b[0].grad is None
    assert adapters.b[1].grad is not None and len(adapters) == 2


def test_dropout_is_for_training_alone() -> None:
    adapters = AdapterBatch(K, N, [2], [1.0], dropout=0.5)
    torch.nn.init.ones_(adapters.b[0])
    rows, x = AdapterRows.build([0], [3], 1), torch.randn(3, K)
    assert not torch.equal(adapters(x, rows), adapters(x, rows))
    adapters.eval()
    assert torch.equal(adapters(x, rows), adapters(x, rows))


def test_gradients_of_x_and_y_flow_through_the_serving_operation() -> None:
    spec = one_site(K, (6, 4))
    pool = AdapterPool(spec, 2, 2)
    tensors = make_adapter(spec, 20)
    pool.load(0, tensors)
    meta = BatchMetadata.build([0, -1], [3, 1], pool)
    x = torch.randn(4, K, requires_grad=True)
    y = torch.randn(4, N, requires_grad=True)
    seed = torch.randn(4, N)
    lora_apply(y * 1.0, x, "site", 0, meta).backward(seed)
    dense = torch.cat([2.0 * tensors[0, "site", s].b @ tensors[0, "site", s].a for s in range(2)])
    assert x.grad is not None and y.grad is not None
    torch.testing.assert_close(x.grad[:3], seed[:3] @ dense, rtol=1e-4, atol=1e-4)
    assert not x.grad[3].any() and torch.equal(y.grad, seed)


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (ShapeError, lambda: AdapterRows.build([0, 1], [3], 2)),
        (ShapeError, lambda: AdapterRows.build([0], [-1], 2)),
        (SlotError, lambda: AdapterRows.build([2], [1], 2)),
        (RankError, lambda: AdapterBatch(K, N, [0], [1.0])),
        (ShapeError, lambda: AdapterBatch(K, N, [1, 2], [1.0])),
        (ShapeError, lambda: AdapterBatch(K, N, [1], [1.0])(torch.randn(3, K), AdapterRows.build([0], [2], 1))),
        (ShapeError, lambda: AdapterBatch(K, N, [1], [1.0])(torch.randn(2, K + 1), AdapterRows.build([0], [2], 1))),
        (
            DtypeError,
            lambda: lora_delta(
                torch.randn(1, K),
                [torch.randn(1, K).double()],
                [torch.randn(N, 1)],
                [1.0],
                AdapterRows.build([0], [1], 1),
            ),
        ),
    ],
)
def test_mismatched_inputs_are_refused(error, call) -> None:
    with pytest.raises(error):
        call()
