"""A base model with an adapter on it, as transformers and PEFT load them from folders of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from peft_bridge.errors import BridgeError

# The bars of transformers would write between the command's own lines.
transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()


@dataclass(frozen=True, slots=True, repr=False)
class LoadedAdapter:
    """A base with one adapter: `model` is a PeftModel in evaluation mode, `dtype` that of the base's weights."""

    model: Any
    tokenizer: Any
    dtype: str

    @property
    def ends(self) -> frozenset[int]:
        """Return the tokens that end an answer: the tokenizer's, and those that the base's generation_config names."""
        named = self.model.generation_config.eos_token_id
        listed = named if isinstance(named, list) else [named]
        return frozenset(one for one in (*listed, self.tokenizer.eos_token_id) if isinstance(one, int))


def load_adapter(base: Path, adapter: Path) -> LoadedAdapter:
    """Load `adapter` on `base`, both folders, without the network and without code from either.

    On a GPU weights keep the base's dtype. On a CPU they are widened to float32, exactly: torch's products of one row
    in bfloat16 took 68 times as long there (15 ms instead of 0.2 for 576 x 1,536 on two cores). An adapter's are
    float32. Raises `BridgeError`.
    """
    if not (base / "config.json").is_file():
        raise BridgeError("base", f"{base} must be the base model's folder, with its config.json and weights")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            base,
            dtype="auto" if torch.cuda.is_available() else torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            low_cpu_mem_usage=True,
        )
        model = model.to("cuda" if torch.cuda.is_available() else "cpu")
        tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise BridgeError("base", f"transformers cannot load {base}: {_first_line(error)}") from None
    dtype = str(model.dtype).removeprefix("torch.")
    try:
        loaded = PeftModel.from_pretrained(model, str(adapter), is_trainable=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        raise BridgeError("adapter", f"PEFT cannot load {adapter} on this base: {_first_line(error)}") from None
    return LoadedAdapter(loaded.eval(), tokenizer, dtype)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def versions() -> dict[str, str]:
    """Return the versions of what computes here, as a record names them."""
    import peft
    import transformers

    return {"peft": peft.__version__, "transformers": transformers.__version__, "torch": str(torch.__version__)}
