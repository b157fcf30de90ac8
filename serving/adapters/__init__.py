"""Adapters in memory: where they come from (sources), when they are resident (manager). Imports lora_kernels,
sealed_weights."""
