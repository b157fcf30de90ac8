"""The same adapters in PEFT and in a pool: LoRA, rsLoRA, rank and alpha patterns, partial targets, embedding, head."""

from __future__ import annotations

import math

import peft
import pytest
import torch

from lora_kernels import AdapterPool, BatchMetadata, LoraPair, PoolSpec, SiteSpec, lora_apply
from lora_kernels.training import lora_embed, lora_logits

VOCABULARY, WIDTH = 70, 24
SITES = {"q_proj": (WIDTH, 32), "v_proj": (WIDTH, 16), "down_proj": (40, WIDTH), "lm_head": (WIDTH, VOCABULARY)}
SPEC = PoolSpec(
    (*(SiteSpec(name, k, (n,)) for name, (k, n) in SITES.items()), SiteSpec("embed", VOCABULARY, (WIDTH,))), 1
)
CONFIGS = {
    "plain": {"r": 8, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "rslora": {"r": 12, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj", "down_proj"]},
    "patterns": {
        "r": 16,
        "lora_alpha": 16,
        "rank_pattern": {"v_proj": 40, "down_proj": 3},
        "alpha_pattern": {"q_proj": 4, "down_proj": 9},
        "target_modules": ["q_proj", "v_proj", "down_proj"],
    },
    "embedding and head": {"r": 4, "lora_alpha": 8, "target_modules": ["embed", "lm_head"]},
}


class Layers(torch.nn.Module):
    """One linear layer for each site, and an embedding."""

    def __init__(self) -> None:
        super().__init__()
        for name, (k, n) in SITES.items():
            self.add_module(name, torch.nn.Linear(k, n, bias=False))
        self.embed = torch.nn.Embedding(VOCABULARY, WIDTH)


def pairs(model: peft.PeftModel) -> dict[tuple[int, str, int], LoraPair]:
    """The adapter's own tensors, with PEFT's own scale."""
    found = {}
    for name, module in model.base_model.model.named_children():
        if isinstance(module, peft.tuners.lora.Embedding):
            a, b = module.lora_embedding_A["default"], module.lora_embedding_B["default"]
        elif isinstance(module, peft.tuners.lora.Linear):
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
        else:
            continue
        torch.nn.init.normal_(a, std=0.3)
        torch.nn.init.normal_(b, std=0.3)
        found[0, name, 0] = LoraPair(a, b, module.scaling["default"])
    return found


@pytest.mark.parametrize("case", CONFIGS)
def test_a_row_gets_what_peft_computes(case: str) -> None:
    torch.manual_seed(0)
    model = peft.get_peft_model(Layers(), peft.LoraConfig(**CONFIGS[case])).eval()
    tensors = pairs(model)
    assert {name for _, name, _ in tensors} == set(CONFIGS[case]["target_modules"])
    if case == "rslora":
        assert tensors[0, "q_proj", 0].scale == pytest.approx(8 / math.sqrt(12))
    pool = AdapterPool(SPEC, 3, 1)
    pool.load(0, tensors)
    batch = BatchMetadata.build([0], [5], pool)
    layers = model.base_model.model
    with torch.no_grad():
        for name, (k, _) in SITES.items():
            x, layer = torch.randn(5, k), getattr(layers, name)
            y = x @ getattr(layer, "base_layer", layer).weight.T
            apply = lora_logits(y, x, name, batch) if name == "lm_head" else lora_apply(y, x, name, 0, batch)
            torch.testing.assert_close(apply, layer(x), rtol=1e-4, atol=1e-4)
        tokens = torch.tensor([0, 69, 3, 3, 8])
        base = getattr(layers.embed, "base_layer", layers.embed)
        torch.testing.assert_close(
            lora_embed(base(tokens), tokens, "embed", batch), layers.embed(tokens), rtol=1e-4, atol=1e-4
        )
