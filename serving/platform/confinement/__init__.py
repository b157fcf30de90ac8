"""A process gives up its rights for good: limits, namespaces, Landlock, seccomp. Standard library and ctypes alone.

system.py calls the kernel; limits.py, namespaces.py, landlock.py and seccomp.py each take one kind of right away;
layers.py puts them in order. Each works alone: a kernel, or a container around it, that refuses one leaves the others.
"""

from serving.platform.confinement.layers import confine

__all__ = ["confine"]
