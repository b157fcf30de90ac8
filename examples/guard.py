"""Train the guard: an adapter that says of a text whether it tries to give the model other instructions.

The attacks are public rows (columns `text` and `label`, 1 for an attack), which stay where they are; the honest texts
of the three sample tasks are drawn from their generators, because a guard that has never seen the texts of a trade
takes them for attacks.

python -m examples.guard --base BASE/fp32 --rows train.csv --test test.csv --out examples/adapters/guard
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.data import TASKS, heldout_rows, train_rows
from examples.packing import Encoded, pack
from examples.train import Recipe, adapted, answer_logits, fit, save

RECIPE = Recipe(rank=8, alpha=16, targets=("q_proj", "v_proj", "o_proj"), rows=3600, learning_rate=1e-3)
HONEST = 400  # rows of each sample task, of which every second one gets an attack appended
LONGEST = 600  # characters of a training row; the guard reads longer texts in pieces of this length
TESTED = 400  # attacks and harmless rows of the report
SEED = 5


@dataclass(frozen=True)
class Text:
    """One text, and whether it is an attack."""

    text: str
    attack: bool


def contract() -> dict[str, object]:
    """Return the contract that is sealed with the guard."""
    path = Path(__file__).with_name("adapters") / "guard" / "contract.json"
    loaded: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def read_rows(path: Path) -> list[Text]:
    """Return the rows of a CSV file with the columns `text` and `label`."""
    with path.open(encoding="utf-8", newline="") as lines:
        return [
            Text(row["text"][:LONGEST], row["label"] == "1") for row in csv.DictReader(lines) if row["text"].strip()
        ]


def mixture(public: list[Text], rows: int) -> list[Text]:
    """Return the training rows: public ones, and honest texts of each task, alone and with an attack appended."""
    draw = random.Random(SEED)
    attacks = [row.text for row in public if row.attack]
    mixed = []
    for task in TASKS.values():
        for number, row in enumerate(train_rows(task, HONEST)):
            mixed.append(Text(row.text, False))
            if number % 2:
                mixed.append(Text(f"{row.text} {draw.choice(attacks)}"[:LONGEST], True))
    mixed += draw.sample(public, rows - len(mixed))
    draw.shuffle(mixed)
    return mixed


def encode(tokenizer, texts: list[Text]) -> list[Encoded]:
    """Return token ids: the instructions and the text as the replica renders them, and one word as the answer."""
    encoded = []
    for one in texts:
        messages = [{"role": "system", "content": contract()["instructions"]}, {"role": "user", "content": one.text}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        answer = tokenizer("attack" if one.attack else "safe", add_special_tokens=False)["input_ids"]
        encoded.append(Encoded(tuple(tokenizer(prompt, add_special_tokens=False)["input_ids"]), tuple(answer)))
    return encoded


def scores(model, tokenizer, texts: list[Text], batch: int = 16) -> list[float]:
    """Return for each text the log-odds that it is an attack."""
    attack, safe = (tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("attack", "safe"))
    encoded = encode(tokenizer, texts)
    found: list[float] = []
    with torch.inference_mode():
        for start in range(0, len(encoded), batch):
            logits = answer_logits(model, pack(encoded[start : start + batch]))
            found.extend((logits[:, attack] - logits[:, safe]).tolist())
    return found


def report(model, tokenizer, test: list[Text]) -> None:
    """Print how many attacks are found at thresholds that flag at most 1 of 200 honest rows of each task."""
    held = {name: heldout_rows(task, 200) for name, task in TASKS.items()}
    attacks = [row for row in test if row.attack][:TESTED]
    harmless = [row for row in test if not row.attack][:TESTED]
    found, other = scores(model, tokenizer, attacks), scores(model, tokenizer, harmless)
    draw = random.Random(SEED)
    for name, rows in held.items():
        honest = sorted(scores(model, tokenizer, [Text(row.text, False) for row in rows]))
        appended = [Text(f"{row.text} {draw.choice(attacks).text}"[:LONGEST], True) for row in rows]
        hidden = scores(model, tokenizer, appended)
        threshold = honest[-1]  # flags none of these 200, where one is allowed
        shares = [sum(score > threshold for score in one) / len(one) for one in (found, hidden, other)]
        print(
            f"{name}: threshold {threshold:.2f}: finds {shares[0]:.0%} alone, {shares[1]:.0%} appended to a message; "
            f"flags {shares[2]:.1%} of public harmless questions"
        )


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base model")
    parser.add_argument(
        "--rows", type=Path, help="CSV of training rows: text, label; left out: report on `--out` alone"
    )
    parser.add_argument("--test", type=Path, required=True, help="CSV of other rows, for the report")
    parser.add_argument("--out", type=Path, required=True, help="adapter folder")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.rows is None:
        tokenizer = AutoTokenizer.from_pretrained(args.base)
        model = AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32)
        model = PeftModel.from_pretrained(model, args.out).eval()
    else:
        tokenizer, model = adapted(args.base, RECIPE)
        fit("guard", model, encode(tokenizer, mixture(read_rows(args.rows), RECIPE.rows)), RECIPE)
        save(model, args.out)
    report(model, tokenizer, read_rows(args.test))


if __name__ == "__main__":
    main()
