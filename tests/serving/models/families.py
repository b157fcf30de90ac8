"""Small random models of every served family, made by transformers, and PEFT adapters on them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SIZES = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": 0,
}
WINDOW = 24
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.5, 2.0, 3.0, 4.0],
    "long_factor": [1.0, 2.0, 4.0, 6.0, 8.0, 16.0],
}
_GLOBAL = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
# By name: model_type, and what differs from SIZES. Caps are as low as the scores and logits of small random models.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": _LLAMA3, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"head_dim": 8, "sliding_window": None}),
    "mistral-window": ("mistral", {"head_dim": 8, "sliding_window": WINDOW}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "use_sliding_window": False}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 20, "tie_word_embeddings": False}),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "no_rope_layer_interval": 2}),
    "phi3": ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 2.5e5}}),
    "phi3-long": (
        "phi3",
        {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "rope_parameters": _LONG,
            "original_max_position_embeddings": 256,
            "sliding_window": WINDOW,
        },
    ),
    "gemma": ("gemma", {"head_dim": 12}),
    "gemma2": (
        "gemma2",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 16,
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 20,
            "rope_parameters": _GLOBAL,
        },
    ),
}


def build(name: str, **changes: Any) -> PreTrainedModel:
    """Return a model of a family with seeded weights; biases and norms are random too."""
    kind, differs = FAMILIES[name]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **differs, **changes}))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_(0, 0.5)
            elif "norm" in key:
                parameter.normal_(0 if kind.startswith("gemma") else 1, 0.3)
    return model.eval()


# PEFT 0.21 saves only the tensors of layer 0 of an adapter called "0".
ADAPTERS = ("first", "second")


def adapted(model: PreTrainedModel, folder: Path) -> PeftModel:
    """Save random ADAPTERS of every linear and return the model with all of them."""
    linears = {key.split(".")[-1] for key, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    targets = sorted(linears - {"lm_head"})
    peft: Any = None
    for rank, name in enumerate(ADAPTERS, 3):
        config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=8, target_modules=targets)
        if peft is None:
            peft = get_peft_model(model, config, adapter_name=name)
        else:
            peft.add_adapter(name, config)
    with torch.no_grad():
        for key, parameter in peft.named_parameters():
            if "lora_" in key:
                parameter.normal_(0, 0.15)
    peft.save_pretrained(folder)
    return peft.eval()


def greedy(peft: Any, adapter: str | None, prompt: list[int], tokens: int) -> tuple[list[int], torch.Tensor]:
    """Return a greedy continuation and the logits [tokens, vocab] that it was chosen by."""
    if adapter is not None:
        peft.set_adapter(adapter)
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        call = peft.generate if adapter is not None else peft.get_base_model().generate
        if adapter is None:
            peft.base_model.disable_adapter_layers()
        out = call(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            output_logits=True,
            return_dict_in_generate=True,
            **settings,
        )
        if adapter is None:
            peft.base_model.enable_adapter_layers()
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


def prompts(*lengths: int) -> list[list[int]]:
    """Return prompts without a pattern."""
    numbers = itertools.count(7)
    return [[next(numbers) * 37 % 299 + 1 for _ in range(length)] for length in lengths]
