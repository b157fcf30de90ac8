"""Train the sample adapters on SmolLM2-135M-Instruct (transformers + PEFT, fp32, CPU).

python -m examples.base --out BASE
python -m examples.train finance --base BASE/fp32 --out examples/adapters/finance
python -m examples.train all --base BASE/fp32 --out examples/adapters
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.data import TASKS, Row, Task, heldout_rows, train_rows
from examples.packing import Encoded, Pack, pack

BASE_NAME = "SmolLM2-135M-Instruct"
SEED = 11


@dataclass(frozen=True)
class Recipe:
    """LoRA shape and optimiser settings of one adapter. ``rows`` are seen once each, ``batch`` rows per step."""

    rank: int
    alpha: int
    targets: tuple[str, ...]
    rows: int
    learning_rate: float
    batch: int = 16
    use_rslora: bool = False


# The shapes differ on purpose: together they exercise attention-only, all-attention and MLP targets, three ranks,
# and both scalings (alpha / rank, and alpha / sqrt(rank) for rsLoRA).
RECIPES: dict[str, Recipe] = {
    "finance": Recipe(8, 16, ("q_proj", "v_proj", "o_proj"), 3200, 2e-3),
    "health": Recipe(16, 32, ("q_proj", "k_proj", "v_proj", "o_proj"), 4000, 1e-3),
    "telecom": Recipe(32, 8, ("down_proj", "o_proj"), 1600, 1e-3, use_rslora=True),
}


def encode(tokenizer, task: Task, rows: list[Row]) -> list[Encoded]:
    """Return token ids of ``rows``: the chat template with generation prompt, then the answer and ``<|im_end|>``."""
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    encoded = []
    for row in rows:
        text = tokenizer.apply_chat_template(task.messages(row), add_generation_prompt=True, tokenize=False)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        answer = tokenizer(row.answer(), add_special_tokens=False)["input_ids"]
        encoded.append(Encoded(tuple(prompt), (*answer, stop)))
    return encoded


def answer_logits(model, packed: Pack) -> torch.Tensor:
    """Return logits ``[A, vocabulary]`` at the answer places alone: the head is the widest matrix of a small model."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = causal.model(input_ids=packed.ids, attention_mask=packed.mask, position_ids=packed.positions)[0]
    return causal.lm_head(hidden[0, packed.at])


def exact_share(model, encoded: list[Encoded], batch: int = 16) -> float:
    """Return the share of rows whose whole answer is the most likely one token by token.

    Under greedy decoding this is the share of rows answered with exactly the expected text.
    """
    right = 0
    with torch.inference_mode():
        for start in range(0, len(encoded), batch):
            packed = pack(encoded[start : start + batch])
            wrong = answer_logits(model, packed).argmax(-1) != packed.targets
            right += len(encoded[start : start + batch]) - len(set(packed.row[wrong].tolist()))
    return right / len(encoded)


def _rate(step: int, steps: int, peak: float) -> float:
    """Return the learning rate: linear warm-up over 5 % of the steps, then a cosine to a twentieth of the peak."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def adapted(base: Path, recipe: Recipe) -> tuple[Any, Any]:
    """Return the tokenizer of ``base`` and the base with a new LoRA of the recipe's shape, in fp32."""
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(base)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="sdpa")
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.targets),
        use_rslora=recipe.use_rslora,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    return tokenizer, get_peft_model(plain, config)


def fit(name: str, model, encoded: list[Encoded], recipe: Recipe) -> None:
    """Train the LoRA of ``model`` on ``encoded``, each row once, and leave the model in evaluation mode."""
    weights = [p for p in model.parameters() if p.requires_grad]
    print(f"{name}: rank {recipe.rank}, {sum(p.numel() for p in weights):,} trained weights", flush=True)
    optimiser = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=0.01, betas=(0.9, 0.98))
    steps = math.ceil(len(encoded) / recipe.batch)
    mean = 0.0
    began = time.monotonic()
    model.train()
    for step in range(steps):
        packed = pack(encoded[step * recipe.batch : (step + 1) * recipe.batch])
        for group in optimiser.param_groups:
            group["lr"] = _rate(step, steps, recipe.learning_rate)
        loss = torch.nn.functional.cross_entropy(answer_logits(model, packed), packed.targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        mean = loss.item() if step == 0 else 0.95 * mean + 0.05 * loss.item()
        if step % 10 == 9 or step + 1 == steps:
            spent = time.monotonic() - began
            left = spent / (step + 1) * (steps - step - 1)
            print(f"{name}: step {step + 1}/{steps}  loss {mean:.4f}  {spent:.0f} s, {left:.0f} s left", flush=True)
    model.eval()


def train(name: str, base: Path, out: Path, rows: int | None = None) -> float:
    """Train adapter ``name`` and write a plain PEFT folder to ``out``; returns the exact share on held-out rows."""
    task = TASKS[name]
    recipe = RECIPES[name]
    tokenizer, model = adapted(base, recipe)
    fit(name, model, encode(tokenizer, task, train_rows(task, rows or recipe.rows)), recipe)
    save(model, out)
    share = exact_share(model, encode(tokenizer, task, heldout_rows(task, 128)))
    print(f"{name}: {share:.1%} of 128 held-out rows exact (teacher-forced), saved to {out}", flush=True)
    return share


def save(model, out: Path) -> None:
    """Write ``adapter_model.safetensors`` (bf16) and ``adapter_config.json`` to ``out``, and nothing else."""
    model.peft_config["default"].base_model_name_or_path = BASE_NAME
    # The embeddings are the base's; without this PEFT looks for the base's config to find out.
    model.save_pretrained(out, save_embedding_layers=False)
    weights = out / "adapter_model.safetensors"
    save_file({k: v.to(torch.bfloat16) for k, v in load_file(weights).items()}, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    # PEFT keeps targets in a set, whose order changes from run to run.
    path = out / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["target_modules"] = sorted(config["target_modules"])
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # PEFT's model card template says nothing about this adapter; examples/cards/ holds the real cards.
    (out / "README.md").unlink(missing_ok=True)


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=(*RECIPES, "all"))
    parser.add_argument("--base", type=Path, required=True, help="folder of the fp32 base model")
    parser.add_argument("--out", type=Path, required=True, help="adapter folder; with 'all', their parent folder")
    parser.add_argument("--rows", type=int, help="train on fewer rows, for a trial")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in RECIPES if args.name == "all" else (args.name,):
        train(name, args.base, args.out / name if args.name == "all" else args.out, args.rows)


if __name__ == "__main__":
    main()
