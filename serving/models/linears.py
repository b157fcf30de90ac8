"""A base's linears for loads of adapters: products and norms of the weights that are served."""

from __future__ import annotations

import ctypes
import functools

import torch
from torch.nn import functional

from serving.kernels.forward import SITES
from serving.kernels.library import KernelLibrary
from serving.kernels.linear import CLinear, multiply_rows, row_squares
from serving.models.loader import Linear, ModelWeights, dense
from serving.models.packed import PackedModel

# The site of the output head, which is in no layer.
HEAD = "head"


class PackedLinears:
    """`serving.ports.BaseLinears` over packed weights, one thread a call."""

    def __init__(self, library: KernelLibrary, model: PackedModel) -> None:
        self._library, self._model = library, model
        self.squares = functools.cache(self._squares)

    def products(self, layer: int, site: str, x: torch.Tensor) -> torch.Tensor:
        """Multiply as `BaseLinears.products`."""
        return multiply_rows(self._library, self._linear(layer, site), x)

    def bias(self, layer: int, site: str) -> torch.Tensor | None:
        """Return as `BaseLinears.bias`."""
        target = self._model.layers[layer]
        if site != "qkv" or not target.qkv_bias:
            return None
        count = target.linear[SITES.index(site)].n
        return torch.frombuffer((ctypes.c_float * count).from_address(target.qkv_bias), dtype=torch.float32)

    def _squares(self, layer: int, site: str) -> torch.Tensor:
        return row_squares(self._library, self._linear(layer, site))

    def _linear(self, layer: int, site: str) -> CLinear:
        linear: CLinear = self._model.head.c if site == HEAD else self._model.layers[layer].linear[SITES.index(site)]
        return linear


class TorchLinears:
    """`serving.ports.BaseLinears` over tensors, on their device."""

    def __init__(self, weights: ModelWeights) -> None:
        self._weights = weights
        self.squares = functools.cache(self._squares)

    def products(self, layer: int, site: str, x: torch.Tensor) -> torch.Tensor:
        """Multiply as `BaseLinears.products`."""
        weight = dense(self._linear(layer, site))
        return functional.linear(x.to(weight.device, weight.dtype), weight).float()

    def bias(self, layer: int, site: str) -> torch.Tensor | None:
        """Return as `BaseLinears.bias`."""
        bias = self._weights.layers[layer].qkv_bias if site == "qkv" else None
        return None if bias is None else bias.float()

    def _squares(self, layer: int, site: str) -> torch.Tensor:
        weight = self._linear(layer, site)
        parts = weight if isinstance(weight, torch.Tensor) else weight.dequantised()
        return torch.linalg.vector_norm(parts, dim=1, dtype=torch.float32).square()

    def _linear(self, layer: int, site: str) -> Linear:
        linear: Linear = self._weights.head if site == HEAD else getattr(self._weights.layers[layer], site)
        return linear
