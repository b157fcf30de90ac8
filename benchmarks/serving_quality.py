"""What 16- and 8-bit weights cost in quality: next-token distributions on real text against float32 weights.

    python -m benchmarks.serving_quality MODEL [--text README.md docs/*.md] [--out results.json]

Prints, for each type, perplexity, the mean KL divergence from float32 (nats a token), and how often the likeliest token
is the same. Every position is computed as in serving: one decode step of the CPU runner for all texts together.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

import torch

from benchmarks.machine import describe
from lora_kernels import AdapterPool
from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.runner import CpuRunner, Precision, RunnerSettings, choose_runner
from serving.steps import Chunk, StepPlan
from serving.tokenization.output import CompletionText
from serving.tokenization.tokenizer import Tokenizer

TYPES = {
    "float32": Precision(torch.float32, torch.float32, torch.float32),
    "bfloat16": Precision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
    "int8": Precision(torch.int8, torch.bfloat16, torch.bfloat16),
}
BLOCK = 16


class NoAdapters:
    """The base model alone."""

    def __init__(self, model: ModelConfig, dtype: torch.dtype) -> None:
        self.pool = AdapterPool(pool_spec(model), 1, 1, dtype)

    def slot(self, digest: str | None) -> int:
        return -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, nargs="+", default=sorted(Path("docs").rglob("*.md")))
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    windows = cut(Tokenizer.from_dir(args.model), args.text, args.windows, args.length)
    results: dict[str, dict[str, float]] = {}
    reference: torch.Tensor | None = None
    for name, precision in TYPES.items():
        logprobs = predict(args.model, precision, windows, args.threads)
        reference = logprobs if reference is None else reference
        results[name] = compare(reference, logprobs, windows)
        print(f"{name:9} " + "  ".join(f"{key} {value:.5g}" for key, value in results[name].items()))
    if args.out is not None:
        args.out.write_text(json.dumps({"machine": describe(), "model": args.model.name, "results": results}, indent=1))


def cut(tokenizer: Tokenizer, texts: list[Path], count: int, length: int) -> list[list[int]]:
    """`count` windows of `length` tokens, spread evenly over the texts."""
    tokens = [token for path in texts for token in tokenizer.encode(path.read_text("utf-8"), add_special_tokens=False)]
    if len(tokens) < count * length:
        raise SystemExit(f"the texts have {len(tokens)} tokens, {count * length} are needed")
    step = (len(tokens) - length) // max(count - 1, 1)
    return [tokens[i * step : i * step + length] for i in range(count)]


def predict(folder: Path, precision: Precision, windows: list[list[int]], threads: int) -> torch.Tensor:
    """float32 log-probabilities [positions, windows, vocab] of what follows each token but the last."""
    model, length = ModelConfig.from_dir(folder), len(windows[0])
    blocks = -(-length // BLOCK)
    settings = RunnerSettings(
        folder=folder, model=model, device=torch.device("cpu"), precision=precision,
        num_blocks=1 + blocks * len(windows), block_size=BLOCK, max_len=length, max_rows=len(windows),
        max_sequences=len(windows), threads=threads,
    )  # fmt: skip
    runner = choose_runner(settings, NoAdapters(model, precision.cache))
    if not isinstance(runner, CpuRunner):
        raise SystemExit("the C kernels are not available here")
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
        str(index), "", "", AdapterRef(), tuple(window), SamplingParams(temperature=0, ignore_eos=True), 1
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
