"""Models and adapters for tests that import no torch, made in a process that does: `python -m tests.together.maker`.

tiny FOLDER                         the model and the adapters of tests.serving.tiny, with greedy answers to PROMPT
model FOLDER                        the model alone, with its tokenizer
families FOLDER NAME …              models of other families, each in a folder of its name, with a tokenizer
canary MODEL FOLDER SEED            an adapter of MODEL; prints the bytes by which it is found in memory, as JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tests.serving.tiny import ADAPTERS, ALL_TARGETS, make_tiny, write_adapter, write_model, write_tokenizer
from tests.together.canary import DISTINCT, WINDOW
from tests.together.tiny import ANSWERS, PROMPT, TOKENS


def make(folder: Path) -> None:
    """Write the tiny model, its adapters, and what transformers and PEFT answer to PROMPT."""
    tiny = make_tiny(folder)
    answers = {name or "": tiny.reference(name, PROMPT, TOKENS) for name in (None, *ADAPTERS)}
    (folder / ANSWERS).write_text(json.dumps(answers))


def families(folder: Path, names: list[str]) -> None:
    """Write a small model of each family, as transformers does."""
    from tests.serving.models.families import build

    for name in names:
        build(name).save_pretrained(folder / name)
        write_tokenizer(folder / name)


def canary(model: Path, adapter: Path, seed: int) -> dict[str, str]:
    """Write an adapter; returns its needles, with the code that reads adapters and the code that lays pages."""
    from lora_kernels import AdapterPool
    from serving.adapters.peft import PeftReader
    from serving.models.llama import pool_spec
    from serving.replica import Base

    write_adapter(adapter, model, seed, r=16, lora_alpha=16, target_modules=ALL_TARGETS)
    base = Base.from_dir(model)
    stored = (adapter / "adapter_model.safetensors").read_bytes()
    tensors = PeftReader(base.spec).read((adapter / "adapter_config.json").read_bytes(), bytearray(stored))
    needles = {}
    pair = tensors[1, "gate_up", 0]
    for name, matrix in (("A", pair.a), ("B", pair.b)):
        needles[f"file, float32, {name}"] = _window(_bytes_of(matrix))
        needles[f"file, bfloat16, {name}"] = _window(_bytes_of(matrix.to(torch.bfloat16)))
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        pool = AdapterPool(pool_spec(base.config), 2, 1, dtype)
        pool.load(0, tensors)
        page = pool.slot_pages(0)[0]
        site = pool.site("gate_up")
        for name, pages in (("A", site.a), ("B", site.b)):
            needles[f"pool, {str(dtype).removeprefix('torch.')}, {name}"] = _window(_bytes_of(pages[1, page]))
    assert len(set(needles.values())) >= 8  # float32 keeps the file's order within a block; all others differ
    assert needles["file, bfloat16, A"] not in needles["pool, bfloat16, A"] * 2
    return {name: needle.hex() for name, needle in needles.items()}


def _bytes_of(values: torch.Tensor) -> bytes:
    return values.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _window(data: bytes) -> bytes:
    """Return a stretch of `data`, from the start of a row on, that no other data has by chance."""
    for start in range(0, len(data) - WINDOW + 1, 64):
        window = data[start : start + WINDOW]
        if len(set(window)) >= DISTINCT and b"\0\0\0\0" not in window:
            return window
    raise AssertionError("no stretch is distinctive enough")


def main(words: list[str]) -> None:
    """Do what the first word says with the others."""
    match words:
        case ["tiny", folder]:
            make(Path(folder))
        case ["model", folder]:
            write_model(Path(folder))
        case ["families", folder, *names]:
            families(Path(folder), names)
        case ["canary", model, folder, seed]:
            print(json.dumps(canary(Path(model), Path(folder), int(seed))))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
