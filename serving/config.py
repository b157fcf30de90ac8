"""Every setting of one replica: declared, documented and checked once. Flags are made from the fields."""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from serving.cores import available_cores
from serving.errors import ConfigError
from serving.scheduler.limits import Limits
from serving.scheduler.slo import Target, Targets

# Sizes by device, for flags left at 0. On a GPU 2,048 rows are a step of about 47 ms for an 8B model (predicted:
# 2 · 8e9 · 2,048 operations at 700 TFLOP/s), and decodes are bound by bytes up to about 256 rows.
_ON_CPU = {
    "max_batched_tokens": 512,
    "max_num_seqs": 64,
    "adapter_slots": 64,
    "kv_cache_mb": 512,
    "adapter_memory_mb": 1024,
}
_ON_GPU = {"max_batched_tokens": 2_048, "max_num_seqs": 256, "adapter_slots": 256}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingConfig:
    """Validated settings. Sizes are tokens unless the name says otherwise."""

    model: Annotated[Path, "Hugging Face folder of the base model (config.json, *.safetensors, tokenizer.json)"]
    adapters: Annotated[Path | None, "folder of plain PEFT folders; each is served under its folder's name"] = None
    host: Annotated[str, "address to listen on"] = "127.0.0.1"
    port: Annotated[int, "port to listen on; 0 picks a free one"] = 8000
    insecure: Annotated[bool, "answer without tickets: for one user on one machine"] = False
    dtype: Annotated[
        str,
        "float32, bfloat16 (weights in 4 and 8 bits stay packed), int8 (weights and KV cache), or auto: bfloat16 "
        "where it is not slower",
    ] = "auto"
    kv_dtype: Annotated[
        str,
        "KV cache: auto (as --dtype), bfloat16 (on a CPU alone), or half the memory: int8 on a CPU, fp8 on a GPU",
    ] = "auto"
    adapter_dtype: Annotated[
        str,
        "resident adapters: auto (as --dtype; int8: bfloat16), or int8 (half the memory, faster; on a CPU alone)",
    ] = "auto"
    device: Annotated[str, "cpu, cuda, or auto"] = "auto"
    threads: Annotated[int, "CPU threads for the forward pass; 0: every core it may use, CPU quotas included"] = 0
    tensor_parallel: Annotated[
        int, "processes that compute each step together, on a GPU each; sizes of memory are those of each process"
    ] = 1
    tensor_parallel_timeout_s: Annotated[
        float, "seconds that these processes wait for one another before the replica ends"
    ] = 30.0
    max_model_len: Annotated[int, "longest prompt plus output; 0: what model and KV cache allow"] = 0
    gpu_memory_fraction: Annotated[float, "share of a GPU's memory that this replica takes, with its weights"] = 0.9
    kv_cache_mb: Annotated[int, "memory for the KV cache, in MiB; 0: 512 on a CPU, what a GPU has left"] = 0
    block_size: Annotated[int, "tokens per KV block"] = 16
    max_batched_tokens: Annotated[int, "tokens computed in one step; 0: 512 on a CPU, 2048 on a GPU"] = 0
    max_num_seqs: Annotated[int, "sequences running at once; 0: 64 on a CPU, 256 on a GPU"] = 0
    max_draft_rows: Annotated[int, "guessed tokens verified in one step; 0: no speculation. They change no answer"] = 64
    max_queue: Annotated[int, "requests waiting before new ones get 429"] = 512
    max_tenant_queue: Annotated[int, "requests of one tenant waiting before new ones get 429; 0: as max_queue"] = 0
    min_prefill_tokens: Annotated[int, "prompt tokens a step computes even when decodes are late"] = 32
    interactive_ttft_ms: Annotated[float, "class interactive: target for the first token"] = 1_000.0
    interactive_itl_ms: Annotated[float, "class interactive: target between tokens"] = 100.0
    standard_ttft_ms: Annotated[float, "class standard: target for the first token"] = 5_000.0
    standard_itl_ms: Annotated[float, "class standard: target between tokens"] = 250.0
    standard_max_wait_s: Annotated[float, "class standard: after this long a request counts as interactive"] = 10.0
    batch_ttft_ms: Annotated[float, "class batch: target for the first token"] = 60_000.0
    batch_itl_ms: Annotated[float, "class batch: target between tokens"] = 1_000.0
    batch_max_wait_s: Annotated[float, "class batch: after this long a request counts as interactive"] = 60.0
    prefix_caching: Annotated[bool, "reuse the KV of shared prefixes"] = True
    kv_disk: Annotated[
        Path | None,
        "folder on a fast disk for KV that the cache evicts, encrypted; nothing there outlives the replica",
    ] = None
    kv_disk_gb: Annotated[float, "how much of that disk to use, in GB"] = 0.0
    kv_host_gb: Annotated[float, "host memory for KV that a GPU's cache evicts, in GB"] = 0.0
    adapter_slots: Annotated[int, "adapters resident at once; 0: 64 on a CPU, 256 on a GPU"] = 0
    adapter_memory_mb: Annotated[
        int, "memory for resident adapters, in MiB; 0: 1024 on a CPU, a quarter of what a GPU has left"
    ] = 0
    adapter_extras_mb: Annotated[
        int, "memory for what adapters change beside ΔW of linears (DoRA, biases, trained tokens, heads), in MiB"
    ] = 128
    host_adapter_memory_mb: Annotated[
        int | None,
        "memory for decrypted copies beside a GPU's, in MiB; default: none on a CPU, else a quarter of what this "
        "machine or container has available, at most 32768",
    ] = None
    elastic_memory: Annotated[
        bool, "let adapters and KV cache take memory from one another, as work needs it; on a CPU alone"
    ] = True
    adapter_workers: Annotated[int, "threads that decrypt and copy adapters"] = 2
    adapter_idle_s: Annotated[float, "seconds until an unused leased adapter is wiped and given back; 0: never"] = 600.0
    trace: Annotated[Path | None, "write where each step's time went there at the end (Chrome trace format)"] = None
    max_body_bytes: Annotated[int, "largest accepted request body, in bytes"] = 1 << 20
    request_timeout_s: Annotated[float, "seconds a request may take before it is ended"] = 600.0
    shutdown_grace_s: Annotated[float, "seconds running requests get to finish after SIGTERM"] = 10.0
    step_timeout_s: Annotated[
        float, "seconds one step may take: past them the process ends, for its supervisor to start another; 0: never"
    ] = 120.0

    def __post_init__(self) -> None:
        if not (self.model / "config.json").is_file():
            raise ConfigError(f"--model {self.model}: no config.json there")
        if self.adapters is not None and not self.adapters.is_dir():
            raise ConfigError(f"--adapters {self.adapters}: not a folder")
        if self.dtype not in ("auto", "float32", "bfloat16", "int8"):
            raise ConfigError(f"--dtype {self.dtype}: one of float32, bfloat16, int8, auto")
        if self.kv_dtype not in ("auto", "bfloat16", "int8", "fp8"):
            raise ConfigError(f"--kv-dtype {self.kv_dtype}: one of bfloat16, int8, fp8, auto")
        if self.adapter_dtype not in ("auto", "int8"):
            raise ConfigError(f"--adapter-dtype {self.adapter_dtype}: one of int8, auto")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device {self.device}: one of cpu, cuda, auto")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port {self.port}: between 0 and 65535")
        for name, least in (
            ("kv_cache_mb", 0),
            ("block_size", 1),
            ("max_batched_tokens", 0),
            ("max_num_seqs", 0),
            ("max_draft_rows", 0),
            ("max_queue", 1),
            ("max_tenant_queue", 0),
            ("min_prefill_tokens", 1),
            ("interactive_ttft_ms", 1),
            ("interactive_itl_ms", 1),
            ("standard_ttft_ms", 1),
            ("standard_itl_ms", 1),
            ("standard_max_wait_s", 0),
            ("batch_ttft_ms", 1),
            ("batch_itl_ms", 1),
            ("batch_max_wait_s", 0),
            ("kv_disk_gb", 0),
            ("kv_host_gb", 0),
            ("adapter_slots", 0),
            ("adapter_memory_mb", 0),
            ("adapter_extras_mb", 0),
            ("adapter_workers", 1),
            ("adapter_idle_s", 0),
            ("max_body_bytes", 1024),
            ("threads", 0),
            ("tensor_parallel", 1),
            ("tensor_parallel_timeout_s", 1),
            ("max_model_len", 0),
            ("request_timeout_s", 1),
            ("shutdown_grace_s", 0),
            ("step_timeout_s", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: at least {least}")

        if (self.kv_disk is None) != (self.kv_disk_gb == 0):
            raise ConfigError("--kv-disk and --kv-disk-gb: one needs the other")
        if (self.kv_disk is not None or self.kv_host_gb) and not self.prefix_caching:
            raise ConfigError("--no-prefix-caching: --kv-disk and --kv-host-gb keep what the prefix cache evicts")
        if self.host_adapter_memory_mb is not None and self.host_adapter_memory_mb < 0:
            raise ConfigError(f"--host-adapter-memory-mb {self.host_adapter_memory_mb}: at least 0")
        if not 0 < self.gpu_memory_fraction <= 1:
            raise ConfigError(f"--gpu-memory-fraction {self.gpu_memory_fraction:g}: above 0, at most 1")
        if self.max_batched_tokens and self.max_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "--max-batched-tokens must be at least --max-num-seqs, or decodes would starve one another"
            )

        self._check_tensor_parallel()

    def _check_tensor_parallel(self) -> None:
        """Raise ConfigError for what several ranks do not compute; docs/tensor-parallel.md has the list."""
        if self.tensor_parallel == 1:
            return
        for flag, value, refused in (
            ("--dtype", self.dtype, self.dtype == "int8"),
            ("--kv-dtype", self.kv_dtype, self.kv_dtype in ("bfloat16", "int8")),
            ("--adapter-dtype", self.adapter_dtype, self.adapter_dtype == "int8"),
            ("--kv-disk", self.kv_disk, self.kv_disk is not None),
            ("--kv-host-gb", f"{self.kv_host_gb:g}", self.kv_host_gb > 0),
        ):
            if refused:
                raise ConfigError(
                    f"{flag} {value}: not with --tensor-parallel {self.tensor_parallel}; leave it out, or serve with "
                    "one process"
                )

    def on(self, device_type: str) -> ServingConfig:
        """Return the settings on "cpu" or "cuda": sizes left at 0 get that device's defaults.

        A GPU's KV cache and adapter memory stay at 0: `serving.sizing` derives them from the card. Of rows and
        sequences in a step, one that was set bounds the other's default.
        """
        default = _ON_GPU if device_type == "cuda" else _ON_CPU
        rows = self.max_batched_tokens or max(default["max_batched_tokens"], self.max_num_seqs)
        sizes: dict[str, Any] = {name: getattr(self, name) or value for name, value in default.items()}
        sizes["max_batched_tokens"] = rows
        if self.tensor_parallel > 1 and device_type == "cpu" and self.dtype == "auto":
            sizes["dtype"] = "float32"  # ranks on a CPU compute in plain torch, which emulates bfloat16
        sizes["max_num_seqs"] = self.max_num_seqs or min(default["max_num_seqs"], rows)
        return dataclasses.replace(self, **sizes)

    @property
    def limits(self) -> Limits:
        return Limits(
            self.max_batched_tokens,
            self.max_num_seqs,
            self.max_queue,
            self.max_tenant_queue,
            self.min_prefill_tokens,
        )

    @property
    def targets(self) -> Targets:
        return Targets(
            Target(self.interactive_ttft_ms / 1e3, self.interactive_itl_ms / 1e3, 0.0),
            Target(self.standard_ttft_ms / 1e3, self.standard_itl_ms / 1e3, self.standard_max_wait_s),
            Target(self.batch_ttft_ms / 1e3, self.batch_itl_ms / 1e3, self.batch_max_wait_s),
        )

    @property
    def thread_count(self) -> int:
        """CPU threads of each process."""
        return self.threads or max(1, available_cores() // self.tensor_parallel)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per field, with its help and default."""
    hints = get_type_hints(ServingConfig, include_extras=True)
    for item in dataclasses.fields(ServingConfig):
        kind, text = get_args(hints[item.name])
        flag = "--" + item.name.replace("_", "-")
        if item.default is dataclasses.MISSING:
            parser.add_argument(flag, type=kind, required=True, help=text)
        elif kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=item.default, help=text)
        else:
            parse = next(t for t in (get_args(kind) or (kind,)) if t is not type(None))
            shown = text if item.default is None else f"{text} (default {item.default})"
            parser.add_argument(flag, type=parse, default=item.default, help=shown)


def from_args(args: argparse.Namespace) -> ServingConfig:
    """Raises ConfigError with the flag's name when a value is impossible."""
    return ServingConfig(**{item.name: getattr(args, item.name) for item in dataclasses.fields(ServingConfig)})
