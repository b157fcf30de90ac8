"""The GPU backend in Triton: one operation per file; backend.py launches them."""
