"""The inference tier: one base model, many LoRA adapters, one batch. Imports lora_kernels and sealed_weights, never
Django."""
