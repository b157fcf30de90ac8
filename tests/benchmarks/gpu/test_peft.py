"""PEFT's side of the benchmark: it takes mixed adapters, which PEFT refuses in training mode."""

from __future__ import annotations

import torch

from benchmarks.gpu.peft import PeftModel
from tests.benchmarks.gpu.tiny import TINY


def test_peft_decodes_mixed_adapters() -> None:
    assert PeftModel(TINY, 2, torch.device("cpu"), torch.float32).step_seconds(3, 5, 4) > 0
