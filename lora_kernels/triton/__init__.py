"""The GPU backend in Triton: one operation per file, launched by launch.py; sizes are data, read by tuning.py."""
