"""Fine-tune many adapters in one batch: their parameters as a module, and the linear layer they adapt."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from lora_kernels.errors import RankError, ShapeError
from lora_kernels.spec import LoraPair
from lora_kernels.training.delta import AdapterRows, lora_delta


class AdapterBatch(torch.nn.Module):
    """The A and B of several adapters for one linear layer, each pair parameters of its own.

    a[j] [r_j, in_features] starts as PEFT's (Kaiming uniform), b[j] [out_features, r_j] as zero, so ΔW starts as zero.
    Ranks may differ. Because parameters are apart, each creator's adapter can have its own optimiser group, learning
    rate and end (`requires_grad_(False)`), and gets the gradients it would get alone.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        ranks: Sequence[int],
        scales: Sequence[float],
        *,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Make the parameters; `scales[j]` is alpha/r, or alpha/sqrt(r) for rsLoRA. Raises RankError or ShapeError."""
        super().__init__()
        if not ranks or min(ranks) < 1:
            raise RankError(f"ranks must be positive, got {list(ranks)}")
        if len(ranks) != len(scales):
            raise ShapeError(f"{len(scales)} scales for {len(ranks)} ranks")
        self.scales = tuple(map(float, scales))
        self.dropout = dropout
        a = [torch.empty(rank, in_features, dtype=dtype, device=device) for rank in ranks]
        b = [torch.zeros(out_features, rank, dtype=dtype, device=device) for rank in ranks]
        self.a, self.b = torch.nn.ParameterList(a), torch.nn.ParameterList(b)
        for parameter in self.a:
            torch.nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))

    def __len__(self) -> int:
        return len(self.scales)

    def pair(self, adapter: int) -> LoraPair:
        """Return one adapter's weights as `AdapterPool.load` takes them: views, detached from the graph."""
        return LoraPair(self.a[adapter].detach(), self.b[adapter].detach(), self.scales[adapter])

    def parameters_of(self, adapter: int) -> list[torch.nn.Parameter]:
        """Return one adapter's parameters, for an optimiser group of its own."""
        return [self.a[adapter], self.b[adapter]]

    def forward(self, x: torch.Tensor, rows: AdapterRows) -> torch.Tensor:
        """Return Δ [..., out_features] for x [..., in_features], computed in the parameters' dtype, returned in x's.

        Raises ShapeError when the leading dimensions of x do not multiply to `rows.rows`.
        """
        flat = x.reshape(-1, x.shape[-1]).to(self.a[0].dtype)
        flat = functional.dropout(flat, self.dropout, self.training)
        return lora_delta(flat, list(self.a), list(self.b), self.scales, rows).to(x.dtype).view(*x.shape[:-1], -1)


def lora_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    adapters: AdapterBatch,
    rows: AdapterRows,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return x Wᵀ + bias + Δ: a frozen linear layer with every row's own adapter. Differentiable in x and the adapters.

    x: [..., K]; weight: [N, K], bias: [N] or None, as torch.nn.functional.linear. Raises ShapeError.
    """
    return functional.linear(x, weight, bias) + adapters(x, rows)
