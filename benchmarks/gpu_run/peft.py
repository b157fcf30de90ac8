"""Stage: decode steps of transformers + PEFT with mixed adapters, for comparison with whole steps of ours."""

from __future__ import annotations

import os
import sys

from benchmarks.gpu_run import records
from benchmarks.gpu_run.stages import LAYERS
from benchmarks.gpu_timing import Cuda
from benchmarks.serving.gpu import PEFT_ADAPTERS, PEFT_BATCHES, PEFT_STEPS
from benchmarks.serving.gpu_cases import CONTEXT
from benchmarks.serving.gpu_model import llama_3_8b
from benchmarks.serving.gpu_peft import PeftModel


def main() -> int:
    """Write a record per batch size."""
    device, config = Cuda(), llama_3_8b(int(os.environ.get(LAYERS) or 32))
    model = PeftModel(config, PEFT_ADAPTERS, device.device, device.dtype)
    for batch in PEFT_BATCHES:
        seconds = model.step_seconds(batch, CONTEXT, PEFT_STEPS)
        records.emit({"record": "peft", "batch": batch, "layers": config.num_layers, "step_ms": 1e3 * seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
