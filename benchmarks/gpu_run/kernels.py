"""Stage: the kernels of one layer, one line of the table each; a kernel that fails is named, and its group ends."""

from __future__ import annotations

import os
import sys
import traceback

import torch

from benchmarks.gpu_run import records
from benchmarks.gpu_run.predictions import standard_step
from benchmarks.gpu_run.stages import LAYERS
from benchmarks.gpu_timing import Cuda, Device
from benchmarks.kernels.gpu_layer import kernels
from benchmarks.roofline import StepShape
from benchmarks.serving.gpu_model import llama_3_8b
from serving.models.config import ModelConfig

PROMPTS = (2048, 8192)


def write_card(device: Device, name: str) -> float:
    """Write the copy bandwidth of this run. Returns bytes per second."""
    copy = device.copy_bytes_per_second()
    records.emit({"record": "card", "device": name, "copy_bytes_per_s": copy})
    return copy


def measure(config: ModelConfig, device: Device, step: StepShape, prompts: tuple[int, ...]) -> int:
    """Write a record per kernel. Returns how many failed. Raises OutOfMemoryError for the run to try again."""
    failed = 0
    with torch.inference_mode():
        for group, make in kernels(config, device, step, prompts):
            name = group
            try:
                for one in make():
                    name = one.name
                    us = 1e6 * device.seconds(one.call, one.layers)
                    records.emit({"record": "line", "line": name, "us": us})
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                failed += 1
                traceback.print_exc()
                records.emit({"record": "failed", "line": name, "problem": f"{type(error).__name__}: {error}"[:500]})
    return failed


def main() -> int:
    """Return 1 when a kernel failed."""
    write_card(Cuda(), torch.cuda.get_device_name())
    config = llama_3_8b(int(os.environ.get(LAYERS) or 32))
    return int(measure(config, Cuda(), standard_step(), PROMPTS) > 0)


if __name__ == "__main__":
    sys.exit(main())
