"""Plans of the fleet for staff: the files they are made from, and the process that makes them.

`capacity` computes them, in a process of its own: neither this app nor any other imports it (docs/capacity.md).
"""
