"""The commands of `python -m capacity`, one module each: `add_flags` and `run`."""
