"""Families of models on the GPU runner against plain torch: biases, norms of heads, heads of 8 and 20 dimensions, and
keys and values in 8 bits; `gpu_cases` runs them."""

from __future__ import annotations

from pathlib import Path

import torch

from lora_kernels import AdapterPool
from serving.kv.paged import PagedKV
from serving.models.config import ModelConfig
from serving.models.llama import Llama, pool_spec
from serving.models.llama_gpu import GpuLlama
from serving.models.loader import load_weights
from serving.runner.gpu import GpuRunner
from serving.runner.torch_runner import TorchRunner
from tests.serving.models.extras import load, save, source_of
from tests.serving.models.families import build
from tests.serving.runner.driver import Adapters, Driver

# Windows begin within the prompt.
WINDOW = {"sliding_window": 10}
CASES: tuple[tuple[str, torch.dtype, dict[str, int]], ...] = (
    ("qwen2", torch.float32, {}),
    ("qwen3", torch.float32, {}),
    ("mistral", torch.float8_e4m3fn, {}),
    ("smollm3", torch.float32, {"num_hidden_layers": 2}),
    ("phi3-long", torch.float32, WINDOW),
    ("gemma", torch.float32, {}),
    ("gemma2", torch.float32, {**WINDOW, "num_hidden_layers": 2}),
    ("gemma3", torch.float8_e4m3fn, {**WINDOW, "num_hidden_layers": 2, "sliding_window_pattern": 2}),
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CPU = torch.device("cpu")
BLOCKS, BLOCK, MAX_LEN = 8, 16, 64


def drivers(folder: Path, kv_dtype: torch.dtype) -> tuple[Driver, Driver]:
    """Return the GPU runner without graphs and the torch runner on the CPU."""
    model = ModelConfig.from_dir(folder)
    made = []
    for device in (DEVICE, CPU):
        ours = not made
        pool = AdapterPool(pool_spec(model), 2, 2, torch.float32, device, backend="triton" if ours else None)
        weights = load_weights(folder, model, torch.float32, device)
        adapters, kv = Adapters(pool), PagedKV(model, BLOCKS, BLOCK, kv_dtype, device)
        if ours:
            llama = GpuLlama(model, weights, MAX_LEN, 2, interpreted=DEVICE == CPU)
            runner = GpuRunner(llama, kv, adapters, max_rows=32, max_samples=2, max_blocks=4, graphs=None)
            made.append(Driver(runner, adapters, model, list(range(1, BLOCKS))))
        else:
            torch_runner = TorchRunner(Llama(model, weights, MAX_LEN), kv, adapters)
            made.append(Driver(torch_runner, adapters, model, list(range(1, BLOCKS))))
    return made[0], made[1]


def extras_give_the_reference_s_tokens(folder: Path) -> None:
    """DoRA and biases in one row, an adapted embedding and head in another, in steps that they share."""
    save("qwen2", folder, "dora-and-biases", "tied")
    source, answers = source_of(folder), []
    for driver in drivers(folder / "model", torch.float32):
        for slot, name in enumerate(("dora-and-biases", "tied")):
            load(driver.adapters.pool, driver.runner, slot, source, name)
        sequences = [driver.start(range(40, 50), slot) for slot in (0, 1)]
        for _ in range(3):
            driver.step(*[(sequence, len(sequence.tokens) - sequence.computed) for sequence in sequences])
        answers.append([sequence.tokens for sequence in sequences])
    assert answers[0] == answers[1] and answers[0][0] != answers[0][1], answers


def every_family_gives_the_reference_s_tokens(folder: Path) -> None:
    for name, kv_dtype, changes in CASES:
        build(name, **changes).save_pretrained(folder / name)
        answers = [
            driver.generate(driver.start(range(40, 59)), 3, chunk=17) for driver in drivers(folder / name, kv_dtype)
        ]
        assert answers[0] == answers[1], (name, answers)
