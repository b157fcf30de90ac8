"""transformers + PEFT: static left-padded batches of `concurrency`, adapters mixed by `adapter_names`.

transformers has no continuous batching for PEFT, so the next batch starts when the whole one is done.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, LogitsProcessor

from benchmarks.serving.metrics import Record
from benchmarks.serving.worker import Cell, serve
from benchmarks.serving.workload import Item, adapter_names


class _Clock(LogitsProcessor):
    """Records when each step's logits are ready."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return scores


def start(base: Path, adapters: Path, dtype: str, threads: int) -> Cell:
    """Load model and adapters; the returned function runs one cell."""
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype)).eval()
    padding = model.config.pad_token_id or 0
    first, *others = adapter_names()
    # autocast off: adapters stay in the model's dtype
    tuned: Any = PeftModel.from_pretrained(
        model, str(adapters / first), adapter_name=first, autocast_adapter_dtype=False
    ).eval()
    for name in others:
        tuned.load_adapter(str(adapters / name), adapter_name=name, autocast_adapter_dtype=False)
    tuned.eval()

    def generate(batch: list[Item]) -> list[Record]:
        longest = max(len(item.prompt_ids) for item in batch)
        ids = torch.full((len(batch), longest), padding)
        mask = torch.zeros_like(ids)
        for row, item in enumerate(batch):
            ids[row, longest - len(item.prompt_ids) :] = torch.tensor(item.prompt_ids)
            mask[row, longest - len(item.prompt_ids) :] = 1
        clock = _Clock()
        tokens = batch[0].max_tokens
        settings: dict[str, Any] = dict(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=padding,
            eos_token_id=None,
            logits_processor=[clock],
        )
        began = time.perf_counter()
        with torch.inference_mode():
            if batch[0].adapter is None:
                with tuned.disable_adapter():
                    tuned.generate(**settings)
            else:
                tuned.generate(adapter_names=[item.adapter for item in batch], **settings)
        return [Record(began, len(item.prompt_ids), list(clock.times)) for item in batch]

    def run(items: list[Item], concurrency: int) -> list[Record]:
        records = []
        for first_row in range(0, len(items), concurrency):
            records += generate(items[first_row : first_row + concurrency])
        return records

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--adapters", type=Path, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    serve(lambda: start(given.base, given.adapters, given.dtype, given.threads))
