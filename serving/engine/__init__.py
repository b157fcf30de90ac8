"""The engine: one thread that owns torch, the planner and the adapters. `engine` holds the loop and its public methods,
`inbox` carries calls from other threads, `active` holds the requests in flight and delivers their tokens."""

from serving.engine.engine import Engine

__all__ = ["Engine"]
