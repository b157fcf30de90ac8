"""Find the layer where our numbers leave those of transformers, by comparing the hidden states after each layer.

`python -m serving.debug.layers --model FOLDER [--adapter PEFT_FOLDER] [--dtype float32] [--text TEXT]`

Our runner computes models cut off after one layer, after two, and so on, as if for an embedding: states are compared
after the final norm and scaled to length one, on both sides. Needs transformers, and peft for an adapter.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from lora_kernels import AdapterPool, AdapterTensors
from serving.adapters.directory import DirectoryAdapterSource
from serving.adapters.extras import AdapterWithExtras, load_at_once, with_extras
from serving.core import AdapterRef, Request, SamplingParams, Sequence
from serving.cores import available_cores
from serving.errors import AdapterUnavailable
from serving.models.config import ModelConfig
from serving.models.llama import pool_spec
from serving.replica import Base
from serving.runner import RunnerSettings, choose_precision, choose_runner
from serving.steps import Chunk, StepPlan

BLOCK, MAX_POSITIONS = 16, 64
TEXT = "The quick brown fox jumps over the lazy dog, and nobody asks why."


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """One layer, all positions. relative: ‖ours − reference‖ / ‖reference‖; worst: largest difference of a value."""

    layer: int
    relative: float
    worst: float
    cosine: float


def compare(ours: list[torch.Tensor], reference: list[torch.Tensor]) -> list[LayerDifference]:
    """Compare states after each layer, first layer first; both lists hold float32 [positions, hidden]."""
    out = []
    for layer, (mine, theirs) in enumerate(zip(ours, reference, strict=True), start=1):
        difference = mine - theirs
        cosine = torch.nn.functional.cosine_similarity(mine.flatten(), theirs.flatten(), dim=0)
        relative = difference.norm() / theirs.norm()
        out.append(LayerDifference(layer, float(relative), float(difference.abs().max()), float(cosine)))
    return out


def table(differences: list[LayerDifference], tolerance: float) -> str:
    """Return a table of one line per layer that points at the first layer beyond `tolerance` (relative)."""
    lines = ["layer   relative      worst     cosine"]
    first = next((d.layer for d in differences if not d.relative <= tolerance), None)
    for d in differences:
        mark = f"  ← first beyond {tolerance:g}" if d.layer == first else ""
        lines.append(f"{d.layer:5}   {d.relative:8.2e}   {d.worst:8.2e}   {d.cosine:8.6f}{mark}")
    return "\n".join(lines)


def our_states(
    folder: Path, config: ModelConfig, tensors: AdapterTensors | None, ids: list[int], dtype: str
) -> Iterator[torch.Tensor]:
    """Return float32 [positions, hidden] after each layer, from the runner that a replica on this machine would use."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    precision = choose_precision(dtype, device)
    blocks = -(-len(ids) // BLOCK)
    for layers in range(1, config.num_layers + 1):
        model = config.first_layers(layers)
        adapters = _OneAdapter(AdapterPool(pool_spec(model), 16, 1, precision.adapters, device))
        settings = RunnerSettings(
            folder=folder,
            model=model,
            device=device,
            precision=precision,
            num_blocks=len(ids) * blocks + 1,
            block_size=BLOCK,
            max_len=len(ids),
            max_rows=len(ids) ** 2,
            max_sequences=len(ids),
            threads=available_cores(),
        )
        runner = choose_runner(settings, adapters)
        if tensors is not None:
            load_at_once(adapters.pool, 0, _of_layers(tensors, layers), runner.linears)
        plan = StepPlan()
        for count in range(1, len(ids) + 1):
            prefix = tuple(ids[:count])
            ref = AdapterRef(None if tensors is None else "adapter")
            request = Request("", "", "", ref, prefix, SamplingParams(temperature=0), 0, embed=True)
            sequence = Sequence(request, 0.0, list(prefix), _NoText(), random.Random(0))
            sequence.blocks = list(range(1 + (count - 1) * blocks, 1 + count * blocks))
            plan.fresh_blocks += sequence.blocks
            plan.chunks.append(Chunk(sequence, 0, count))
        with torch.inference_mode():
            answers = runner.launch(plan).result()
        vectors = [torch.frombuffer(bytearray(a.embedding or b""), dtype=torch.float32) for a in answers]
        yield torch.stack(vectors)


def reference_states(folder: Path, adapter: Path | None, ids: list[int]) -> list[torch.Tensor]:
    """Return the states of transformers (and PEFT) after each layer, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    norm = model.model.norm
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter)).eval()
    with torch.inference_mode():
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[1:]
        # transformers hands out the last state normalised already.
        normed = [*(norm(state[0]) for state in states[:-1]), states[-1][0]]
    return [torch.nn.functional.normalize(state, dim=-1) for state in normed]


def _of_layers(tensors: AdapterTensors, layers: int) -> AdapterTensors:
    kept = {target: pair for target, pair in tensors.items() if target[0] < layers}
    adapter = with_extras(tensors)
    return kept if adapter is None else AdapterWithExtras(kept, adapter.extras.first_layers(layers))


class _OneAdapter:
    def __init__(self, pool: AdapterPool) -> None:
        self.pool = pool

    def slot(self, digest: str | None) -> int:
        return -1 if digest is None else 0


class _NoText:
    stopped = False

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def main(argv: list[str] | None = None) -> int:
    """Return 0 if every layer is within the tolerance, 1 if a layer is not, 2 if something is missing."""
    parser = argparse.ArgumentParser(prog="python -m serving.debug.layers", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the base model")
    parser.add_argument("--adapter", type=Path, help="PEFT folder")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "int8"))
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--tolerance", type=float, help="relative; default 1e-4 for float32, 5e-2 for the others")
    options = parser.parse_args(argv)
    tolerance = options.tolerance or (1e-4 if options.dtype == "float32" else 5e-2)
    try:
        base = Base.from_dir(options.model)
        tensors = _load(options.adapter, base) if options.adapter else None
        ids = base.tokenizer.encode(options.text, add_special_tokens=True)[:MAX_POSITIONS]
        reference = reference_states(options.model, options.adapter, ids)
    except (ImportError, OSError, ValueError, AdapterUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    ours = list(our_states(options.model, base.config, tensors, ids, options.dtype))
    differences = compare(ours, reference)
    print(table(differences, tolerance))
    return int(any(not d.relative <= tolerance for d in differences))


def _load(adapter: Path, base: Base) -> AdapterTensors:
    source = DirectoryAdapterSource(adapter.resolve().parent, base.spec)
    digest = source.resolve(adapter.resolve().name)
    if digest is None:
        raise AdapterUnavailable(f"{adapter}: no PEFT adapter there")
    return source.load(digest)


if __name__ == "__main__":
    sys.exit(main())
