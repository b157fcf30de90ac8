"""A llama small enough to compare with transformers token by token: random weights, byte-level tokenizer, PEFT
adapters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

ALL_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ADAPTERS: dict[str, dict[str, Any]] = {
    "r4": {"r": 4, "lora_alpha": 8, "target_modules": ALL_TARGETS},
    "r8-attention": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "r16-rslora": {"r": 16, "lora_alpha": 8, "target_modules": ALL_TARGETS, "use_rslora": True},
    "r20-patterns": {
        "r": 20,
        "lora_alpha": 10,
        "target_modules": ["k_proj", "o_proj", "up_proj", "down_proj"],
        "rank_pattern": {"up_proj": 5},
        "alpha_pattern": {"down_proj": 30},
    },
}


def write_tokenizer(folder: Path) -> None:
    """One token a byte, and three special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(special + alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_model(folder: Path, *, seed: int = 0, layers: int = 3) -> LlamaForCausalLM:
    """Weights large enough that greedy choices are far from ties, and that adapters change them."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.15,
        rope_theta=10000.0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def write_adapter(folder: Path, base: Path, seed: int, **lora: Any) -> None:
    """A PEFT adapter whose B is random too, so that it does something."""
    torch.manual_seed(seed)
    model = get_peft_model(LlamaForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **lora))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.15)
    model.save_pretrained(folder)


@dataclass(frozen=True)
class Tiny:
    """model and adapters: folders; `reference` answers as transformers and PEFT do."""

    model: Path
    adapters: Path
    _peft: PeftModel

    def reference(self, adapter: str | None, prompt: list[int], tokens: int) -> list[int]:
        """Greedy continuation in float32, end-of-sequence ignored."""
        kwargs: dict[str, Any] = {
            "input_ids": torch.tensor([prompt]),
            "attention_mask": torch.ones(1, len(prompt), dtype=torch.int64),
            "max_new_tokens": tokens,
            "min_new_tokens": tokens,
            "do_sample": False,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
        with self._using(adapter):
            out = self._peft.generate(**kwargs)
        return out[0, len(prompt) :].tolist()

    def reference_beams(
        self, adapter: str | None, prompt: list[int], tokens: int, *, returned: int, ends: list[int], **search: Any
    ) -> list[list[int]]:
        """Return the best completions of a beam search in float32, without padding."""
        with self._using(adapter):
            out = self._peft.generate(
                input_ids=torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=ends or None,
                pad_token_id=0,
                num_return_sequences=returned,
                **search,
            )
        found = []
        for row in out[:, len(prompt) :].tolist():
            stop = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
            found.append(row[: stop + 1])
        return found

    def reference_logprobs(self, adapter: str | None, prompt: list[int]) -> list[float]:
        """Return the logprobs of the prompt's tokens, from the second on."""
        with self._using(adapter):
            logits = self._peft(input_ids=torch.tensor([prompt])).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist()

    @contextlib.contextmanager
    def _using(self, adapter: str | None) -> Iterator[None]:
        with torch.inference_mode(), self._peft.disable_adapter() if adapter is None else contextlib.nullcontext():
            if adapter is not None:
                self._peft.set_adapter(adapter)
            yield


def make_tiny(root: Path) -> Tiny:
    """Model and the adapters of ADAPTERS under `root`."""
    model_dir, adapters_dir = root / "model", root / "adapters"
    model = write_model(model_dir)
    adapters_dir.mkdir()
    for seed, (name, lora) in enumerate(ADAPTERS.items(), 1):
        write_adapter(adapters_dir / name, model_dir, seed, **lora)
    peft = None
    for name in ADAPTERS:
        if peft is None:
            peft = PeftModel.from_pretrained(model, adapters_dir / name, adapter_name=name)
        else:
            peft.load_adapter(adapters_dir / name, adapter_name=name)
    assert peft is not None
    return Tiny(model_dir, adapters_dir, peft.eval())
