"""The host's part of each step of a GPU replica, with launches that do nothing: no GPU is needed.

device.py stands in for the GPU, replica.py builds an engine on it, steps.py runs mixes of steps and times them.
Run `python -m benchmarks.serving_host`.
"""
