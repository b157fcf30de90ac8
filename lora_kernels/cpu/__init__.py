"""The CPU backend: a small C library, compiled on first use. build.py compiles, library.py loads, backend.py calls.

Private; `lora_kernels.native` is its public face for other native code.
"""
