"""Fifty configurations of kinds that are found in public, each with its verdict.

Keys and values follow `adapter_config.json` files of public repositories, 2023 to 2026, in their proportions: hobby and
course work, most of it on Llama's shapes and Qwen, a quarter on bases in 4 bits. A file is named by its kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ATTENTION = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
LINEAR = ATTENTION + MLP
Q_AND_V = ("self_attn.q_proj", "self_attn.v_proj")
FUSED = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")

# The keys that each release of PEFT added to the file, at the value that it writes when nothing is asked for.
_ADDED: dict[str, dict[str, Any]] = {
    "0.3": {
        "base_model_name_or_path": None,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": 16,
        "lora_dropout": 0.05,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": 8,
        "target_modules": None,
        "task_type": "CAUSAL_LM",
    },
    "0.4": {
        "auto_mapping": None,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "revision": None,
    },
    "0.6": {"alpha_pattern": {}, "rank_pattern": {}},
    "0.7": {"loftq_config": {}, "megatron_config": None, "megatron_core": "megatron.core"},
    "0.9": {"use_dora": False, "use_rslora": False},
    "0.11": {"layer_replication": None},
    "0.14": {"eva_config": None, "exclude_modules": None, "lora_bias": False},
    "0.15": {"corda_config": None, "trainable_token_indices": None},
    "0.16": {"qalora_group_size": 16, "use_qalora": False},
    "0.17": {"target_parameters": None},
    "0.18": {"alora_invocation_tokens": None, "arrow_config": None, "ensure_weight_tying": False, "peft_version": None},
    "0.19": {"lora_ga_config": None, "use_bdlora": None},
    "0.21": {"kasa_config": None, "monteclora_config": None, "velora_config": None},
}


@dataclass(frozen=True)
class PublicConfig:
    """One file.

    family: the base's `model_type`; release: of the PEFT that wrote it; keys: what it says beyond that release's values
    modules: that have tensors, by their suffix; prefix: of their tensors' names
    words: that the refusal must hold; empty: accepted
    """

    kind: str
    family: str
    release: str
    keys: dict[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = LINEAR
    prefix: str = "base_model.model.model.layers.{layer}."
    words: tuple[str, ...] = ()

    def to_fields(self) -> dict[str, Any]:
        """Return the file's content."""
        fields: dict[str, Any] = {}
        for release, added in _ADDED.items():
            fields |= added
            if release == self.release:
                break
        fields["target_modules"] = [suffix.rpartition(".")[2] for suffix in self.modules]
        if "peft_version" in fields:
            fields["peft_version"] = f"{self.release}.1"
        return fields | self.keys


def lora_of(base: str, r: int, alpha: int, **more: Any) -> dict[str, Any]:
    return {"base_model_name_or_path": base, "r": r, "lora_alpha": alpha, **more}


def _unsloth(family: str, **more: Any) -> dict[str, Any]:
    name = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "gemma3_text": "Gemma3"}[family]
    found = {"base_model_class": f"{name}ForCausalLM", "parent_library": f"transformers.models.{family}.modeling"}
    return {"auto_mapping": {**found, "unsloth_fixed": True}, "lora_dropout": 0, **more}


TEXT_ALONE = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)"
    r".*?(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj).*?)"
)
BNB = "-unsloth-bnb-4bit"

# -- accepted: Llama and its shapes ----------------------------------------------------------------------------------

LLAMAS = [
    PublicConfig(
        "PEFT 0.3, merge_weights and enable_lora still there",
        "llama",
        "0.3",
        lora_of("decapoda-research/llama-7b-hf", 8, 16, enable_lora=None, merge_weights=False),
        Q_AND_V,
    ),
    PublicConfig(
        "Llama 2, sharded for a notebook",
        "llama",
        "0.4",
        lora_of("guardrail/llama-2-7b-guanaco-instruct-sharded", 64, 16, lora_dropout=0.1),
        Q_AND_V,
    ),
    PublicConfig(
        "Llama 2, alpha below the rank", "llama", "0.6", lora_of("NousResearch/Llama-2-7b-chat-hf", 64, 16), Q_AND_V
    ),
    PublicConfig(
        "TinyLlama, attention alone",
        "llama",
        "0.14",
        lora_of("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 16, 32),
        ATTENTION,
    ),
    PublicConfig(
        "TinyLlama, two modules",
        "llama",
        "0.18",
        lora_of("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 8, 16),
        Q_AND_V,
    ),
    PublicConfig(
        "Llama 3.1 in 4 bits, a caption model's text part",
        "llama",
        "0.11",
        lora_of("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", 64, 16, lora_dropout=0),
    ),
    PublicConfig(
        "Llama 3.2, Unsloth, rank 16",
        "llama",
        "0.14",
        lora_of("unsloth/llama-3.2-3b-instruct-bnb-4bit", 16, 16, lora_dropout=0),
    ),
    PublicConfig(
        "Llama 3.2, Unsloth, auto_mapping",
        "llama",
        "0.18",
        lora_of(f"unsloth/llama-3.2-1b-instruct{BNB}", 16, 16, **_unsloth("llama")),
    ),
    PublicConfig(
        "Llama 3, rank-stabilised",
        "llama",
        "0.9",
        lora_of("meta-llama/Meta-Llama-3-8B-Instruct", 32, 16, use_rslora=True),
    ),
    PublicConfig(
        "Llama 3, a security model's",
        "llama",
        "0.16",
        lora_of("fdtn-ai/Foundation-Sec-8B", 8, 16),
        Q_AND_V,
    ),
    PublicConfig(
        "a merge of Llama's shape, three modules",
        "llama",
        "0.11",
        lora_of("vaiv/GeM2-Llamion-14B-Chat", 16, 16, lora_dropout=0.01),
        ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj"),
    ),
    PublicConfig(
        "SmolLM2, the word all-linear",
        "llama",
        "0.17",
        lora_of("HuggingFaceTB/SmolLM2-135M-Instruct", 16, 32, target_modules="all-linear"),
    ),
    PublicConfig(
        "DeepSeek's early coder, of Llama's shape",
        "llama",
        "0.7",
        lora_of("deepseek-ai/deepseek-coder-6.7b-instruct", 8, 32, lora_dropout=0.1),
        ATTENTION,
    ),
    PublicConfig(
        "a local path as the base's name",
        "llama",
        "0.7",
        lora_of("/content/drive/MyDrive/models/base", 64, 16, lora_dropout=0.1),
    ),
    PublicConfig(
        "no name of the base at all",
        "llama",
        "0.15",
        lora_of("", 8, 8, base_model_name_or_path=None, revision="main", task_type=None),
        Q_AND_V,
    ),
    PublicConfig(
        "ranks and alphas by module",
        "llama",
        "0.21",
        lora_of(
            "HuggingFaceTB/SmolLM2-360M-Instruct",
            8,
            16,
            rank_pattern={"mlp.down_proj": 16, "^model.layers.1.self_attn.q_proj": 4},
            alpha_pattern={"mlp.down_proj": 32},
        ),
    ),
    PublicConfig(
        "EVA, ranks by module from its search",
        "llama",
        "0.14",
        lora_of(
            "meta-llama/Llama-3.2-1B",
            16,
            1,
            init_lora_weights="eva",
            eva_config={"rho": 2.0, "tau": 0.99, "use_label_mask": True, "label_mask_value": -100},
            rank_pattern={"model.layers.0.self_attn.q_proj": 7, "model.layers.1.mlp.up_proj": 23},
        ),
    ),
    PublicConfig(
        "PiSSA written as LoRA by PEFT: twice the rank",
        "llama",
        "0.15",
        lora_of("meta-llama/Llama-3.2-3B-Instruct", 32, 32, init_lora_weights=True),
    ),
]

# -- accepted: Qwen --------------------------------------------------------------------------------------------------

QWENS = [
    PublicConfig(
        "Qwen2, LLaMA-Factory, all modules",
        "qwen2",
        "0.16",
        lora_of("Qwen/Qwen2-1.5B-Instruct", 32, 64, lora_dropout=0),
    ),
    PublicConfig(
        "Qwen2.5, Unsloth GRPO",
        "qwen2",
        "0.14",
        lora_of("unsloth/qwen2.5-7b-instruct-unsloth-bnb-4bit", 32, 32, lora_dropout=0),
    ),
    PublicConfig(
        "Qwen2.5 0.5B, two modules",
        "qwen2",
        "0.18",
        lora_of("Qwen/Qwen2.5-0.5B-Instruct", 8, 16),
        Q_AND_V,
    ),
    PublicConfig(
        "Qwen2.5 1.5B, attention",
        "qwen2",
        "0.18",
        lora_of("Qwen/Qwen2.5-1.5B-Instruct", 16, 32),
        ATTENTION,
    ),
    PublicConfig(
        "Qwen2.5 32B, rank 64",
        "qwen2",
        "0.19",
        lora_of("Qwen/Qwen2.5-32B-Instruct", 64, 128),
    ),
    PublicConfig(
        "Qwen2.5 coder, TRL",
        "qwen2",
        "0.19",
        lora_of("Qwen/Qwen2.5-Coder-7B-Instruct", 16, 32, target_modules=["v_proj", "q_proj"]),
        Q_AND_V,
    ),
    PublicConfig(
        "Qwen2.5, Unsloth, auto_mapping",
        "qwen2",
        "0.18",
        lora_of(f"unsloth/qwen2.5-3b-instruct{BNB}", 16, 16, **_unsloth("qwen2")),
    ),
    PublicConfig(
        "Qwen2.5, the task named as sequence to sequence",
        "qwen2",
        "0.18",
        lora_of("Qwen/Qwen2.5-7B-Instruct", 16, 32, task_type="SEQ_2_SEQ_LM"),
    ),
    PublicConfig(
        "Qwen2.5, orthogonal initialisation",
        "qwen2",
        "0.17",
        lora_of("Qwen/Qwen2.5-3B", 32, 32, init_lora_weights="orthogonal"),
    ),
    PublicConfig(
        "Qwen2.5, an expression over layers",
        "qwen2",
        "0.15",
        lora_of("Qwen/Qwen2.5-7B", 8, 16, target_modules=r"model\.layers\.\d+\.self_attn\.(q|v)_proj"),
        Q_AND_V,
    ),
    PublicConfig(
        "Qwen3, Unsloth in 4 bits",
        "qwen3",
        "0.17",
        lora_of(f"unsloth/qwen3-8b{BNB}", 16, 16, lora_dropout=0),
    ),
    PublicConfig(
        "Qwen3 4B, rank 64",
        "qwen3",
        "0.18",
        lora_of("Qwen/Qwen3-4B-Instruct-2507", 64, 128),
    ),
    PublicConfig(
        "Qwen3, Unsloth, auto_mapping and no task",
        "qwen3",
        "0.19",
        lora_of(f"unsloth/qwen3-4b{BNB}", 32, 32, **_unsloth("qwen3", task_type=None)),
    ),
]

# -- accepted: Mistral, Gemma, Phi, SmolLM3 --------------------------------------------------------------------------

OTHERS = [
    PublicConfig(
        "Mistral 0.1, attention",
        "mistral",
        "0.7",
        lora_of("mistralai/Mistral-7B-v0.1", 8, 16),
        ATTENTION,
    ),
    PublicConfig(
        "Mistral 0.3, Unsloth, rank-stabilised, auto_mapping",
        "mistral",
        "0.18",
        lora_of("unsloth/mistral-7b-instruct-v0.3-bnb-4bit", 16, 16, **_unsloth("mistral", use_rslora=True)),
    ),
    PublicConfig(
        "Gemma 1, gaussian initialisation",
        "gemma",
        "0.9",
        lora_of("google/gemma-2b", 8, 8, init_lora_weights="gaussian"),
    ),
    PublicConfig(
        "Gemma 2, the upper layers alone",
        "gemma2",
        "0.18",
        lora_of("google/gemma-2-9b-it", 16, 32, layers_to_transform=[1]),
    ),
    PublicConfig(
        "Gemma 2 in 4 bits, alpha an eighth of the rank",
        "gemma2",
        "0.14",
        lora_of("unsloth/gemma-2-9b-bnb-4bit", 64, 8, lora_dropout=0),
    ),
    PublicConfig(
        "Gemma 3 1B, text, an expression that names text",
        "gemma3_text",
        "0.18",
        lora_of(f"unsloth/gemma-3-1b-it{BNB}", 8, 8, **_unsloth("gemma3_text", target_modules=TEXT_ALONE)),
    ),
    PublicConfig(
        "Gemma 3 270M, a vision tower left out that it has not",
        "gemma3_text",
        "0.19",
        lora_of("google/gemma-3-270m-it", 16, 32, exclude_modules=r".*vision.*"),
    ),
    PublicConfig(
        "Phi-4-mini, fused projections",
        "phi3",
        "0.15",
        lora_of("microsoft/Phi-4-mini-instruct", 16, 32),
        FUSED,
    ),
    PublicConfig(
        "SmolLM3, attention",
        "smollm3",
        "0.17",
        lora_of("HuggingFaceTB/SmolLM3-3B", 16, 32, lora_dropout=0.1),
        ATTENTION,
    ),
]

# -- more than factors of linears ------------------------------------------------------------------------------------

EXTRAS = [
    PublicConfig(
        "QLoRA's recipe with the head among the targets",
        "mistral",
        "0.7",
        lora_of("mistralai/Mistral-7B-v0.1", 16, 16, target_modules=["q_proj", "v_proj", "lm_head"]),
        (*Q_AND_V, "lm_head"),
    ),
    PublicConfig(
        "DoRA, Axolotl",
        "llama",
        "0.14",
        lora_of("meta-llama/Llama-3.1-8B", 32, 16, use_dora=True),
    ),
]

SERVED = [*LLAMAS, *QWENS, *OTHERS, *EXTRAS]
