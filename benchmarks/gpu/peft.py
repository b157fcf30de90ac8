"""Stage: decode steps of transformers + PEFT on the same GPU, with mixed adapters in the batch."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from typing import Any

import torch

from benchmarks.gpu import records
from benchmarks.gpu.cases import CONTEXT
from benchmarks.gpu.model import RANK, llama_3_8b
from benchmarks.gpu.stages import LAYERS
from benchmarks.gpu.timing import Cuda
from serving.models.config import ModelConfig

BATCHES, ADAPTERS, STEPS = (1, 32), 32, 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class PeftModel:
    """A model of random weights with adapters "0", "1" …, loaded once for all batch sizes.

    Raises ImportError where transformers or PEFT is missing.
    """

    def __init__(self, config: ModelConfig, adapters: int, device: torch.device, dtype: torch.dtype) -> None:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM, LlamaConfig

        shape = LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rope_theta=config.ropes[0].theta,
            tie_word_embeddings=False,
        )
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
            lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=TARGETS)
            tuned: Any = get_peft_model(model, lora, adapter_name="0", autocast_adapter_dtype=False)
            for index in range(1, adapters):
                tuned.add_adapter(str(index), lora)
        # PEFT refuses `adapter_names` in training mode, and adding adapters leaves it in that.
        self._tuned = tuned.eval()
        self._adapters, self._device = adapters, device

    def step_seconds(self, batch: int, context: int, steps: int) -> float:
        """Return the median seconds between tokens of `batch` sequences, adapters in rotation."""
        ids = torch.ones(batch, context, dtype=torch.int64, device=self._device)
        times: list[float] = []

        def clock(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if self._device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())
            return scores

        with torch.inference_mode():
            self._tuned.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=steps,
                min_new_tokens=steps,
                do_sample=False,
                adapter_names=[str(index % self._adapters) for index in range(batch)],
                logits_processor=[clock],
                pad_token_id=0,
            )
        return statistics.median(b - a for a, b in itertools.pairwise(times[1:]))


def main() -> int:
    """Write a record per batch size."""
    device, config = Cuda(), llama_3_8b(int(os.environ.get(LAYERS) or 32))
    model = PeftModel(config, ADAPTERS, device.device, device.dtype)
    for batch in BATCHES:
        seconds = model.step_seconds(batch, CONTEXT, STEPS)
        records.emit({"record": "peft", "batch": batch, "layers": config.num_layers, "step_ms": 1e3 * seconds})
    return 0


if __name__ == "__main__":
    sys.exit(main())
