"""A fleet of replicas on Ray Serve: how many there are, where they run, and how they come and go.

`policy.py`, `rises.py`, `targets.py` and `figures.py` are functions of values: the simulation of `benchmarks.fleet`
calls them as the fleet does.
"""
