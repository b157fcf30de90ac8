"""Stage: attention of tokens and prompts beside its limit and torch's SDPA."""

from __future__ import annotations

import dataclasses
import sys

import torch

from benchmarks.gpu_run import records
from benchmarks.gpu_run.stages import WRONG
from benchmarks.gpu_timing import Cuda, Device
from benchmarks.kernels.gpu_attention import attention_rows
from benchmarks.roofline import CARDS, Card, card_named
from benchmarks.serving.gpu_model import llama_3_8b
from serving.models.config import ModelConfig


def measure(config: ModelConfig, device: Device, card: Card, quick: bool = False) -> int:
    """Write a record per case. Returns how many were wrong."""
    wrong = 0
    with torch.inference_mode():
        for row in attention_rows(config, device, card, quick):
            records.emit({"record": "attention", **row})
            wrong += "wrong" in row
    return wrong


def main() -> int:
    """Return `WRONG` when ours differs from SDPA."""
    device = Cuda()
    known = card_named(torch.cuda.get_device_name()) or CARDS["H100"]
    card = dataclasses.replace(known, copy=device.copy_bytes_per_second())
    return WRONG * (measure(llama_3_8b(), device, card) > 0)


if __name__ == "__main__":
    sys.exit(main())
