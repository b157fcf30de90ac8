"""The examples of lora_kernels/README.md, run as they stand, one after another."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.optim import AdamW

import lora_kernels
from lora_kernels import AdapterPool, BatchMetadata, PoolSpec, SiteSpec
from tests.lora_kernels.factories import make_adapter

README = Path(lora_kernels.__file__).parent / "README.md"
PACKAGE = README.parent


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(), re.S)


def test_every_example_runs() -> None:
    first, loading, training, heads = blocks()
    names: dict[str, object] = {name: getattr(lora_kernels, name) for name in lora_kernels.__all__}
    names |= {"torch": torch, "AdamW": AdamW, "layer": 0}

    spec = PoolSpec((SiteSpec("qkv", 576, (576, 192, 192)), SiteSpec("o", 576, (576,))), num_layers=30)
    names |= {"a": torch.randn(8, 576), "b": torch.randn(192, 8)}
    names |= {"tensors_a": make_adapter(spec, 16), "tensors_b": make_adapter(spec, 4)}
    names |= {"x": torch.ones(19, 576), "y": torch.zeros(19, 960)}
    exec(first, names)
    y = names["y"]
    assert isinstance(y, torch.Tensor) and y[0].any() and not y[17].any() and y[18].any()

    names |= {"tensors": names["tensors_a"], "slot": 2}
    exec(loading, names)
    pool = names["pool"]
    assert isinstance(pool, AdapterPool) and pool.is_loaded(2)

    names |= {"x": torch.randn(3, 128, 576), "frozen_weight": torch.randn(576, 576), "slot": 3}
    exec(training, names)
    assert pool.is_loaded(3)

    head = AdapterPool(PoolSpec((SiteSpec("embed", 50, (16,)), SiteSpec("lm_head", 16, (50,))), num_layers=1), 2, 1)
    head.load(0, make_adapter(head.spec, 4))
    names |= {"meta": BatchMetadata.build([0], [19], head), "tokens": torch.arange(19)}
    names |= {"hidden": torch.zeros(19, 16), "logits": torch.zeros(2, 50)}
    exec(heads, names)
    logits = names["logits"]
    assert isinstance(logits, torch.Tensor) and logits.any()


def test_the_map_names_every_file() -> None:
    (table,) = re.findall(r"## The map\n.*?(\|.*?)\n\n", README.read_text(), re.S)
    named = set(re.findall(r"`(\w+(?:\.py|/))`", table))
    files = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    folders = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    within = {path.name for path in PACKAGE.glob("*/*.py")}
    assert files | folders <= named <= files | folders | within


def test_public_names_are_documented() -> None:
    for name in lora_kernels.__all__:
        assert getattr(lora_kernels, name).__doc__, name
