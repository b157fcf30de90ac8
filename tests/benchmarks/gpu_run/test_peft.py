"""PEFT's side of the serving benchmark: it takes mixed adapters, which PEFT refuses in training mode."""

from __future__ import annotations

import torch

from benchmarks.serving import gpu
from benchmarks.serving.gpu_peft import PeftModel
from tests.benchmarks.gpu_run.tiny import TINY


def test_peft_decodes_mixed_adapters_and_its_time_joins_the_rows_that_ask_for_it() -> None:
    model = PeftModel(TINY, 2, torch.device("cpu"), torch.float32)
    assert model.step_seconds(3, 5, 4) > 0
    asked = []

    class Peer:
        def step_seconds(self, batch: int, context: int, steps: int) -> float:
            asked.append((batch, context))
            return 0.08

    def row(batch: int, adapters: int, context: int = 512, *, sampled: bool = False) -> dict[str, object]:
        return {"kind": "decode", "batch": batch, "adapters": adapters, "context": context, "sampled": sampled}

    rows = [row(1, 32), row(32, 32), row(32, 0), row(8, 32), row(32, 32, 2048), row(32, 32, sampled=True)]
    gpu.add_peft(rows, Peer(), 512)
    assert asked == [(1, 512), (32, 512)] and ["peft_ms" in one for one in rows] == [True, True, *[False] * 4]
