"""The engine's own kernels: a C library for CPUs, loaded by ctypes. May import `lora_kernels` for its builder."""
