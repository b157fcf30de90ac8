"""How fast `lora_apply` is beside everything else that serves many LoRA adapters at once.

`python -m benchmarks.kernels` prints a table and writes JSON and a plot. One process, the same inputs for every
contender, every output checked against the reference before anything is timed.
"""
