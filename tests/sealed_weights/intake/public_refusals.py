"""Public configurations that are refused, and the words that the refusal must have."""

from __future__ import annotations

from tests.sealed_weights.intake.public_configs import TEXT_ALONE, PublicConfig, lora_of

REFUSED = [
    PublicConfig(
        "GLM-4, names of its own",
        "llama",
        "0.11",
        lora_of("THUDM/glm-4-9b-chat", 8, 16),
        ("self_attention.query_key_value", "mlp.dense_h_to_4h"),
        prefix="base_model.model.transformer.encoder.layers.{layer}.",
        words=("another family", "model.layers.N"),
    ),
    PublicConfig(
        "Phi-1.5, modules that no served family has",
        "llama",
        "0.4",
        lora_of("microsoft/phi-1_5", 16, 16),
        ("mlp.fc1", "mlp.fc2"),
        words=("must adapt a servable linear module", "llama"),
    ),
    PublicConfig(
        "Gemma 4, its language model inside a larger one",
        "gemma3_text",
        "0.19",
        lora_of("google/gemma-4-e4b-it", 64, 128, target_modules=TEXT_ALONE),
        prefix="base_model.model.model.language_model.layers.{layer}.",
        words=("vision or audio tower", "text model"),
    ),
    PublicConfig(
        "Qwen3-VL, the vision tower too",
        "qwen3",
        "0.18",
        lora_of("Qwen/Qwen3-VL-2B-Instruct", 32, 64),
        ("attn.qkv", "attn.proj"),
        prefix="base_model.model.model.visual.blocks.{layer}.",
        words=("vision or audio tower", "text model"),
    ),
    PublicConfig(
        "a hybrid's linear attention",
        "qwen3",
        "0.18",
        lora_of("Qwen/Qwen3.5-9B", 16, 32, lora_dropout=0.0),
        ("linear_attn.in_proj_qkv", "linear_attn.out_proj"),
        words=("must adapt a servable linear module", "qwen3"),
    ),
    PublicConfig(
        "FLAN-T5, an encoder and a decoder",
        "llama",
        "0.18",
        lora_of("google/flan-t5-base", 16, 32, task_type="SEQ_2_SEQ_LM"),
        ("layer.0.SelfAttention.q", "layer.0.SelfAttention.v"),
        prefix="base_model.model.encoder.block.{layer}.",
        words=("another family", "model.layers.N"),
    ),
    PublicConfig(
        "PiSSA as it was trained",
        "llama",
        "0.15",
        lora_of("meta-llama/Llama-3.2-1B", 16, 16, init_lora_weights="pissa_niter_16"),
        words=("init_lora_weights", "intarsia convert", "--initial"),
    ),
    PublicConfig(
        "AdaLoRA",
        "llama",
        "0.7",
        lora_of("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 8, 32, peft_type="ADALORA", target_r=8, init_r=12),
        words=("peft_type", "intarsia convert", "ADALORA"),
    ),
]
