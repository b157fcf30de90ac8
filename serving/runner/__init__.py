"""Runners of step plans: `cpu` through the C kernels, `gpu` through Triton, `torch_runner` in plain torch."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from serving.errors import ConfigError
from serving.kernels.library import load_library
from serving.kv.paged import PagedKV
from serving.kv.storage import BlockedKV
from serving.models.config import ModelConfig
from serving.models.llama import Llama
from serving.models.loader import ModelWeights, load_weights, part_sizes
from serving.models.packed import load_packed
from serving.ports import ResidentAdapters, Runner
from serving.runner.cpu import CpuRunner
from serving.runner.torch_runner import TorchRunner

if TYPE_CHECKING:
    from serving.runner.gpu import GpuRunner

log = logging.getLogger(__name__)

_CACHES = {"bfloat16": torch.bfloat16, "int8": torch.int8, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class Precision:
    """The types of linears (`weights`), KV (`cache`) and resident adapters. The C kernels sum in float32."""

    weights: torch.dtype
    cache: torch.dtype
    adapters: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings:
    """Everything about the base model and its memory; sizes in tokens, blocks, sequences."""

    folder: Path
    model: ModelConfig
    device: torch.device
    precision: Precision
    num_blocks: int
    block_size: int
    max_len: int
    max_rows: int
    max_sequences: int
    threads: int
    max_draft_rows: int = 0


def has_kernels(device: torch.device) -> bool:
    """Return whether steps on `device` run through the C library, which is compiled if needed."""
    return device.type == "cpu" and load_library() is not None


def choose_precision(name: str, device: torch.device, cache: str = "auto", adapters: str = "auto") -> Precision:
    """Choose types. "auto" is bfloat16, except in plain torch on a CPU that emulates it and is several times slower.

    "int8" quantises the linears (one scale per output) and, unless `cache` says otherwise, the KV cache (one scale per
    key and per value); adapters are quantised with one scale per rank. `cache` "fp8" has one scale per key and per
    value, on a GPU. Raises ConfigError where the kernels for that are missing.
    """
    if cache == "fp8":
        if device.type != "cuda":
            raise ConfigError("--kv-dtype fp8: only a GPU has it; the 8 bits of a CPU are int8")
        if torch.cuda.get_device_capability(device) < (8, 9):
            raise ConfigError("--kv-dtype fp8: this GPU does not convert 8-bit floats (compute capability 8.9 does)")
    needs_kernels = (
        ("--dtype", name, name == "int8"),
        ("--kv-dtype", cache, cache not in ("auto", "fp8")),
        ("--adapter-dtype", adapters, adapters == "int8"),
    )
    for flag, value, needed in needs_kernels:
        if needed and not has_kernels(device):
            instead = "; the 8 bits of a GPU are fp8" if (flag, value) == ("--kv-dtype", "int8") else ""
            raise ConfigError(f"{flag} {value}: only the C kernels on a CPU have it{instead}")
    floats = _floats(name, device)
    weights = torch.int8 if name == "int8" else floats
    kv = weights if cache == "auto" else _CACHES[cache]
    return Precision(weights, kv, torch.int8 if adapters == "int8" else floats)


def _floats(name: str, device: torch.device) -> torch.dtype:
    """Return the type of everything that is not quantised."""
    if name == "auto":
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        name = "bfloat16" if device.type == "cuda" or has_kernels(device) or fast else "float32"
    return torch.float32 if name == "float32" else torch.bfloat16


def keeps_eight_bits(model: ModelConfig, device: torch.device) -> bool:
    """Return whether linears in 4 or 8 bits stay so in a GPU's memory; else they are dequantised."""
    return model.quantization is not None and device.type == "cuda"


def bytes_per_block(
    model: ModelConfig, block_size: int, precision: Precision, device: torch.device, *, plain: bool = False
) -> int:
    """Return the bytes of one KV block over all layers. plain: of the runner in plain torch on a CPU."""
    storage = BlockedKV if has_kernels(device) and not plain else PagedKV
    return storage.bytes_per_block(model, block_size, precision.cache)


def choose_runner(settings: RunnerSettings, adapters: ResidentAdapters) -> Runner:
    """Load the base model into the fastest runner for its device. Raises ModelConfigError for a bad checkpoint."""
    s, model = settings, settings.model
    library = load_library() if s.device.type == "cpu" else None
    packed = library is not None and s.precision.weights == torch.bfloat16
    if model.quantization is not None and s.device.type == "cpu" and not packed:
        _log_dequantised(s)
    if library is not None:
        weights = load_packed(library, s.folder, model, s.precision.weights, s.threads)
        log.info("weights take %.1f MB", weights.nbytes / 1e6)
        return CpuRunner(
            library,
            weights,
            BlockedKV(model, s.num_blocks, s.block_size, s.precision.cache),
            adapters,
            max_rows=s.max_rows,
            max_samples=s.max_sequences,
            max_draft_rows=s.max_draft_rows,
            max_len=s.max_len,
            threads=s.threads,
        )
    scaled = keeps_eight_bits(model, s.device)
    loaded = load_weights(s.folder, model, s.precision.weights, s.device, scaled=scaled)
    kv = PagedKV(model, s.num_blocks, s.block_size, s.precision.cache, s.device)
    if s.device.type == "cuda":
        return _gpu_runner(s, loaded, kv, adapters)
    return TorchRunner(Llama(model, loaded, s.max_len), kv, adapters)


def _log_dequantised(s: RunnerSettings) -> None:
    numbers = s.model.num_layers * sum(width * sum(sizes) for width, sizes in part_sizes(s.model).values())
    log.info(
        "the checkpoint's linears in 4 or 8 bits are dequantised to %s and take %.1f MB; with the C kernels and "
        "--dtype bfloat16 they stay as they are",
        s.precision.weights,
        numbers * s.precision.weights.itemsize / 1e6,
    )


def _gpu_runner(s: RunnerSettings, weights: ModelWeights, kv: PagedKV, adapters: ResidentAdapters) -> GpuRunner:
    # Imported late: Triton comes with CUDA builds of torch alone.
    from serving.models.llama_gpu import GpuLlama
    from serving.runner.gpu import GpuRunner
    from serving.runner.graphs import CudaGraphs

    return GpuRunner(
        GpuLlama(s.model, weights, s.max_len, s.max_sequences),
        kv,
        adapters,
        max_rows=s.max_rows,
        max_samples=s.max_sequences,
        max_draft_rows=s.max_draft_rows,
        max_blocks=-(-s.max_len // s.block_size),
        graphs=CudaGraphs(),
    )
