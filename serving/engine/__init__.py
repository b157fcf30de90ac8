"""The engine: one thread that owns torch, the planner and the adapters. `engine` is the loop and what others may ask of
it, `inbox` how they ask, `active` the requests in flight and what becomes of their tokens."""

from serving.engine.engine import Engine

__all__ = ["Engine"]
