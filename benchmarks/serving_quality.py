"""The cost in quality of 16 and 8 bits of weights, KV cache and adapters: next-token distributions beside float32.

    python -m benchmarks.serving_quality [--base FOLDER] [--text README.md docs/*.md] [--out FOLDER]

Prints, for each type, perplexity, the mean KL divergence from float32 (nats per token), and how often the likeliest
token is the same. Every position is computed as in serving, by one decode step of the CPU runner for all texts at once.
Base and adapter are judged separately: the adapter, Gaussian on all sites of all layers, beside float32 weights.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.serving.__main__ import DEFAULT_BASE
from benchmarks.serving.worker import ROOT
from lora_kernels import AdapterPool, LoraPair, PoolSpec
from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.runner import Precision, RunnerSettings, choose_runner, has_kernels
from serving.steps import Chunk, StepPlan
from serving.tokenization.output import CompletionText
from serving.tokenization.tokenizer import Tokenizer

BASE_TYPES = {
    "float32": Precision(torch.float32, torch.float32, torch.float32),
    "bfloat16": Precision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "int8 weights": Precision(torch.int8, torch.bfloat16, torch.bfloat16),
    "int8 cache": Precision(torch.bfloat16, torch.int8, torch.bfloat16),
    "int8": Precision(torch.int8, torch.int8, torch.bfloat16),
}
ADAPTER_TYPES = {
    f"adapter {str(dtype)[6:]}": Precision(torch.float32, torch.float32, dtype)
    for dtype in (torch.float32, torch.bfloat16, torch.int8)
}
BLOCK = 16
ADAPTER_RANK = 16
# Standard deviation of b, where a keeps the size of activations: the adapter changes predictions by a quarter of a nat.
ADAPTER_B = 0.08


class Adapters:
    """The base model alone, or one adapter in slot 0."""

    def __init__(self, model: ModelConfig, dtype: torch.dtype, *, adapted: bool) -> None:
        self.pool = AdapterPool(pool_spec(model), 2, 1, dtype)
        self._slot = 0 if adapted else -1
        if adapted:
            self.pool.load(0, gaussian_adapter(self.pool.spec))

    def slot(self, digest: str | None) -> int:
        return self._slot


def gaussian_adapter(spec: PoolSpec) -> dict[tuple[int, str, int], LoraPair]:
    """Return weights for every target, the same at each call."""
    generator = torch.Generator().manual_seed(1)
    return {
        (layer, site.name, index): LoraPair(
            torch.randn(ADAPTER_RANK, site.in_features, generator=generator) / site.in_features**0.5,
            torch.randn(width, ADAPTER_RANK, generator=generator) * ADAPTER_B,
            1.0,
        )
        for site in spec.sites
        for layer in range(spec.layers_of(site))
        for index, width in enumerate(site.slices)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", type=Path, default=DEFAULT_BASE, help="Hugging Face folder of the base model")
    parser.add_argument("--text", type=Path, nargs="+", default=sorted((ROOT / "docs").rglob("*.md")))
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=machine.RESULTS / machine.cpu_kind(), help="folder of the results")
    args = parser.parse_args()
    windows = cut(Tokenizer.from_dir(args.base), args.text, args.windows, args.length)
    results: dict[str, dict[str, float]] = {}
    base = measure(BASE_TYPES, args.base, windows, args.threads, results, adapted=False)
    adapted = measure(ADAPTER_TYPES, args.base, windows, args.threads, results, adapted=True)
    show(results, "adapter's effect", compare(base, adapted, windows))
    report = {"machine": machine.describe(), "model": args.base.name, "results": results}
    machine.write_suite(args.out, "serving_quality", report)


def cut(tokenizer: Tokenizer, texts: list[Path], count: int, length: int) -> list[list[int]]:
    """Return `count` windows of `length` tokens, spread evenly over the texts."""
    tokens = [token for path in texts for token in tokenizer.encode(path.read_text("utf-8"), add_special_tokens=False)]
    if len(tokens) < count * length:
        raise SystemExit(f"the texts have {len(tokens)} tokens, but {count * length} are needed")
    step = (len(tokens) - length) // max(count - 1, 1)
    return [tokens[i * step : i * step + length] for i in range(count)]


def measure(
    types: dict[str, Precision],
    folder: Path,
    windows: list[list[int]],
    threads: int,
    results: dict[str, dict[str, float]],
    *,
    adapted: bool,
) -> torch.Tensor:
    """Compare each type with the first and return the first one's predictions."""
    reference: torch.Tensor | None = None
    for name, precision in types.items():
        logprobs = predict(folder, precision, windows, threads, adapted=adapted)
        reference = logprobs if reference is None else reference
        show(results, name, compare(reference, logprobs, windows))
    assert reference is not None
    return reference


def show(results: dict[str, dict[str, float]], name: str, figures: dict[str, float]) -> None:
    results[name] = figures
    print(f"{name:16} " + "  ".join(f"{key} {value:.5g}" for key, value in figures.items()), flush=True)


def predict(
    folder: Path, precision: Precision, windows: list[list[int]], threads: int, *, adapted: bool
) -> torch.Tensor:
    """Return float32 log-probabilities [positions, windows, vocab] of the token after each one except the last."""
    model = ModelConfig.from_dir(folder)
    length = len(windows[0])
    blocks = -(-length // BLOCK)
    settings = RunnerSettings(
        folder=folder,
        model=model,
        device=torch.device("cpu"),
        precision=precision,
        num_blocks=1 + blocks * len(windows),
        block_size=BLOCK,
        max_len=length,
        max_rows=len(windows),
        max_sequences=len(windows),
        threads=threads,
    )
    if not has_kernels(settings.device):
        raise SystemExit("the C kernels are not available here")
    runner = choose_runner(settings, Adapters(model, precision.adapters, adapted=adapted))
    sequences = [_sequence(index, window, blocks) for index, window in enumerate(windows)]
    out = []
    for position in range(length - 1):
        for sequence, window in zip(sequences, windows, strict=True):
            sequence.tokens.append(window[position])
        runner.execute(StepPlan([Chunk(sequence, position, 1) for sequence in sequences]))
        out.append(torch.log_softmax(runner.logits, -1))
    return torch.stack(out)


def _sequence(index: int, window: list[int], blocks: int) -> Sequence:
    request = Request(
        str(index), "", "", AdapterRef("0"), tuple(window), SamplingParams(temperature=0, ignore_eos=True), 1
    )
    output = CompletionText(lambda ids: "", ())
    sequence = Sequence(request, 0.0, [], output, random.Random(0))
    sequence.blocks = list(range(1 + index * blocks, 1 + (index + 1) * blocks))
    return sequence


def compare(reference: torch.Tensor, logprobs: torch.Tensor, windows: list[list[int]]) -> dict[str, float]:
    following = torch.tensor(windows).T[1:]
    kl = (reference.exp() * (reference - logprobs)).sum(-1)
    return {
        "perplexity": math.exp(-float(logprobs.gather(-1, following[..., None]).mean())),
        "mean_kl": float(kl.mean()),
        "largest_kl": float(kl.max()),
        "same_top_1": float((reference.argmax(-1) == logprobs.argmax(-1)).float().mean()),
    }


if __name__ == "__main__":
    main()
