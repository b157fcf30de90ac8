"""Held-out accuracy of the base model and of an adapter: transformers + PEFT, greedy decoding, fp32.

python -m examples.evaluate finance --base BASE/fp32 --adapter examples/adapters/finance
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.data import TASKS
from examples.score import accuracy, is_right, read_heldout

MAX_NEW_TOKENS = 24


def answers(model, tokenizer, rows: list[dict], batch: int) -> list[str]:
    """Return greedy answers to ``rows``, special tokens left out."""
    texts = []
    for start in range(0, len(rows), batch):
        prompts = [
            tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, tokenize=False)
            for row in rows[start : start + batch]
        ]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        with torch.inference_mode():
            output = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
                eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
            )
        new = output[:, inputs["input_ids"].shape[1] :]
        texts.extend(tokenizer.batch_decode(new, skip_special_tokens=True))
    return texts


def evaluate(name: str, base: Path, adapter: Path, batch: int, show_errors: bool) -> dict[str, float]:
    """Return the accuracy of base and adapter on the committed held-out rows, 0 to 1 each."""
    rows = read_heldout(name)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    expected = [row["expected"] for row in rows]
    scores = {"base": accuracy(answers(model, tokenizer, rows, batch), expected)}
    model = PeftModel.from_pretrained(model, adapter).eval()
    texts = answers(model, tokenizer, rows, batch)
    scores["adapter"] = accuracy(texts, expected)
    if show_errors:
        for row, text in zip(rows, texts, strict=True):
            if not is_right(text, row["expected"]):
                print(f"{row['messages'][-1]['content']}\n    expected {row['expected']}, got {text!r}")
    return scores


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=tuple(TASKS))
    parser.add_argument("--base", type=Path, required=True, help="folder of the fp32 base model")
    parser.add_argument("--adapter", type=Path, required=True, help="PEFT folder")
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--errors", action="store_true", help="show the adapter's wrong answers")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    scores = evaluate(args.name, args.base, args.adapter, args.batch, args.errors)
    print(json.dumps({"model": args.name, **{key: round(value, 4) for key, value in scores.items()}}))


if __name__ == "__main__":
    main()
