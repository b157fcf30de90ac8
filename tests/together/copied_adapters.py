"""Sketches of weights: what copies of the sample adapters have in common with them, and what independent ones have."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from marketplace.publishing.checks.lineage import similarities
from sealed_weights import BaseSpec, check_layout
from serving.platform.sketch import sketch_of

ADAPTERS = Path(__file__).resolve().parents[2] / "examples" / "adapters"
SAMPLES = ("finance", "health", "telecom")
SMOLLM2_135M = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
}
Factors = dict[str, tuple[np.ndarray, np.ndarray]]  # by module: A (rank, in) and B (out, rank)


class Adapter:
    """An adapter in memory: its config and float32 factors."""

    def __init__(self, config: dict[str, Any], factors: Factors) -> None:
        self.config, self.factors = config, factors

    @classmethod
    def read(cls, folder: Path) -> Adapter:
        """Read PEFT's two files."""
        config = (folder / "adapter_config.json").read_bytes()
        data = memoryview((folder / "adapter_model.safetensors").read_bytes())
        layout = check_layout(config, data, base())
        found: Factors = {}
        for path in layout.summary.ranks:
            pair = []
            for factor in "AB":
                info = layout.tensors[f"base_model.model.{path}.lora_{factor}.weight"]
                raw = np.frombuffer(
                    data[info.start : info.end], {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[info.dtype]
                )
                values = (raw.astype(np.uint32) << 16).view(np.float32) if info.dtype == "BF16" else raw
                pair.append(values.astype(np.float32).reshape(info.shape))
            found[path] = (pair[0], pair[1])
        return cls(json.loads(config), found)

    def files(self) -> tuple[bytes, bytes]:
        """Return the two files as PEFT would write them, in float32."""
        header, blocks, at = {}, [], 0
        for path, pair in self.factors.items():
            for factor, values in zip("AB", pair, strict=True):
                raw = np.ascontiguousarray(values, "<f4").tobytes()
                name = f"base_model.model.{path}.lora_{factor}.weight"
                header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [at, at + len(raw)]}
                blocks.append(raw)
                at += len(raw)
        text = json.dumps(header).encode()
        return json.dumps(self.config).encode(), struct.pack("<Q", len(text)) + text + b"".join(blocks)

    def sketch(self) -> bytes:
        """Return the sketch that a verifying replica would report."""
        config, tensors = self.files()
        data = memoryview(tensors)
        return sketch_of(check_layout(config, data, base()), data)

    def changed(
        self, change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]], **config: Any
    ) -> Adapter:
        """Return an adapter with `change` applied to each module's factors."""
        return Adapter(self.config | config, {path: change(a, b) for path, (a, b) in self.factors.items()})


def base() -> BaseSpec:
    """Return the shapes of the samples' base."""
    return BaseSpec.from_hf_config(SMOLLM2_135M, bytes(32), "SmolLM2-135M")


def variants(adapter: Adapter, seed: int = 1) -> dict[str, Adapter]:
    """Return copies of an adapter, as somebody would make them who hopes that nobody notices."""
    draw = np.random.default_rng(seed)
    rank = int(adapter.config["r"])
    scaling = np.sqrt if adapter.config.get("use_rslora") else float

    def refactored(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turn = draw.normal(size=(rank, rank))
        return np.linalg.solve(turn, a), b @ turn

    def permuted(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order = draw.permutation(rank)
        return a[order], b[:, order]

    def padded(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.vstack([a, draw.normal(size=a.shape)]), np.hstack([b, np.zeros_like(b)])

    def noised(share: float) -> Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        def add(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return a + draw.normal(size=a.shape) * a.std() * share, b + draw.normal(size=b.shape) * b.std() * share

        return add

    every_other = {path: pair for n, (path, pair) in enumerate(adapter.factors.items()) if n % 4}
    return {
        "sealed again": adapter,
        "B·R and R⁻¹·A": adapter.changed(refactored),
        "A times 7, B by 7": adapter.changed(lambda a, b: (a * 7, b / 7)),
        "alpha times .6": adapter.changed(lambda a, b: (a, b), lora_alpha=adapter.config["lora_alpha"] * 0.6),
        "ranks permuted": adapter.changed(permuted),
        "rank doubled": adapter.changed(
            padded, r=2 * rank, lora_alpha=adapter.config["lora_alpha"] * float(scaling(2 * rank) / scaling(rank))
        ),
        "noise of 5 % on A and B": adapter.changed(noised(0.05)),
        "noise of 30 % on A and B": adapter.changed(noised(0.3)),
        "a quarter of the modules left out": Adapter(
            adapter.config | {"target_modules": list(every_other)}, every_other
        ),
    }


def compare(one: bytes, other: bytes) -> tuple[float, float]:
    """Return the largest cosine of a group, and of all."""
    group, whole = similarities(one, [other])
    return float(group[0]), float(whole[0])
