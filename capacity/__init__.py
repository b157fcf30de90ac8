"""Plans of a fleet: how many accelerators, which, at what load, for how much, with the run that would prove it wrong.

The engine's own planner runs in simulated time (`serving.simulation`) on a step-time model that was fitted on the
hardware at hand. Imports neither torch nor Django.
"""
