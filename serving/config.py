"""Every setting of one replica: declared, documented and checked once. Flags are made from the fields."""

from __future__ import annotations

import argparse
import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """A flag has an impossible value; the message names it."""


def _flag(default: Any, help_text: str, **kw: Any) -> Any:
    return field(default=default, metadata={"help": help_text, **kw})


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Validated settings. Sizes are tokens unless the name says otherwise."""

    model: Path = _flag(
        None, "Hugging Face folder of the base model (config.json, *.safetensors, tokenizer.json)", type=Path
    )
    adapters: Path | None = _flag(
        None, "folder of plain PEFT folders; each is served under its folder's name", type=Path
    )
    host: str = _flag("127.0.0.1", "address to listen on", type=str)
    port: int = _flag(8000, "port to listen on; 0 picks a free one", type=int)
    insecure: bool = _flag(False, "answer without tickets; for one user on one machine", action="store_true")
    dtype: str = _flag("auto", "float32, bfloat16, or auto (bfloat16 where the hardware multiplies it)", type=str)
    device: str = _flag("auto", "cpu, cuda, or auto", type=str)
    threads: int = _flag(0, "CPU threads for the forward pass; 0 means every core", type=int)
    max_model_len: int = _flag(
        0, "longest prompt + output; 0 means the model's own limit, as far as the KV cache reaches", type=int
    )
    kv_cache_mb: int = _flag(512, "memory for the KV cache, in MiB", type=int)
    block_size: int = _flag(16, "tokens per KV block", type=int)
    max_batched_tokens: int = _flag(512, "tokens computed in one step", type=int)
    max_num_seqs: int = _flag(64, "sequences running at once", type=int)
    max_queue: int = _flag(512, "requests waiting before new ones get 429", type=int)
    prefix_caching: bool = _flag(True, "reuse the KV of shared prefixes", action=argparse.BooleanOptionalAction)
    adapter_slots: int = _flag(64, "adapters resident at once", type=int)
    adapter_memory_mb: int = _flag(1024, "memory for resident adapters, in MiB", type=int)
    max_body_bytes: int = _flag(1 << 20, "largest accepted request body, in bytes", type=int)
    request_timeout_s: float = _flag(600.0, "seconds a request may take before it is ended", type=float)
    shutdown_grace_s: float = _flag(10.0, "seconds running requests get to finish after SIGTERM", type=float)

    def __post_init__(self) -> None:
        if self.model is None:
            raise ConfigError("--model is required: the folder of the base model")
        if not (self.model / "config.json").is_file():
            raise ConfigError(f"--model {self.model}: no config.json there")
        if self.adapters is not None and not self.adapters.is_dir():
            raise ConfigError(f"--adapters {self.adapters}: not a folder")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"--dtype {self.dtype}: one of float32, bfloat16, auto")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ConfigError(f"--device {self.device}: one of cpu, cuda, auto")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"--port {self.port}: between 0 and 65535")
        for name, least in (
            ("kv_cache_mb", 1),
            ("block_size", 1),
            ("max_batched_tokens", 1),
            ("max_num_seqs", 1),
            ("max_queue", 1),
            ("adapter_slots", 1),
            ("adapter_memory_mb", 1),
            ("max_body_bytes", 1024),
            ("threads", 0),
            ("max_model_len", 0),
            ("request_timeout_s", 1),
            ("shutdown_grace_s", 0),
        ):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: at least {least}")

        if self.max_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                "--max-batched-tokens must be at least --max-num-seqs, or decodes would starve one another"
            )

    @property
    def thread_count(self) -> int:
        return self.threads or os.cpu_count() or 1


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds one flag per field, with its help and default."""
    for item in dataclasses.fields(ServingConfig):
        kwargs = {k: v for k, v in item.metadata.items() if k != "help"}
        shown = "" if item.default in (None, False) else f" (default {item.default})"
        parser.add_argument(
            "--" + item.name.replace("_", "-"), default=item.default, help=item.metadata["help"] + shown, **kwargs
        )


def from_args(args: argparse.Namespace) -> ServingConfig:
    """Raises ConfigError with the flag's name when a value is impossible."""
    return ServingConfig(**{item.name: getattr(args, item.name) for item in dataclasses.fields(ServingConfig)})
