"""Products and norms of the weights that are served, for loads of adapters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from serving.models.config import ModelConfig
from serving.models.linears import HEAD, PackedLinears, TorchLinears
from serving.models.loader import load_weights
from tests.serving.models.families import build
from tests.serving.runner.driver import CPU, make_driver

SITES = ((0, "qkv"), (1, "o"), (1, "gate_up"), (0, "down"), (0, HEAD))


@pytest.mark.parametrize(
    ("weights", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.int8, 2e-2)], ids=str
)
def test_packed_weights_give_what_the_checkpoint_s_do_to_their_rounding(
    weights: torch.dtype, error: float, tmp_path: Path
) -> None:
    build("qwen2").save_pretrained(tmp_path)
    model = ModelConfig.from_dir(tmp_path)
    truth = TorchLinears(load_weights(tmp_path, model, torch.float32, CPU))
    ours = make_driver(tmp_path, weights=weights).runner.linears
    assert isinstance(ours, PackedLinears)
    for layer, site in SITES:
        x = torch.randn(5, 80 if site == "down" else 48, generator=torch.Generator().manual_seed(layer))
        for found, right in (
            (ours.products(layer, site, x), truth.products(layer, site, x)),
            (ours.squares(layer, site), truth.squares(layer, site)),
        ):
            assert found.shape == right.shape and (found - right).norm() < error * right.norm(), (layer, site)
        own, exact = ours.bias(layer, site), truth.bias(layer, site)
        assert (own is None and exact is None) or (own is not None and exact is not None and torch.equal(own, exact))
        assert (own is not None) == (site == "qkv")
