"""Seeded generators of the sample creators' training and held-out rows.

Each task module (finance, health, telecom) exports one ``TASK``. Training and held-out rows draw their templates and
phrases from disjoint lists, so a held-out score measures what an adapter understood and not what it remembered.
"""

from __future__ import annotations

from examples.data import finance, health, telecom
from examples.data.rows import Row, Split, Task, heldout_rows, train_rows

TASKS: dict[str, Task] = {task.name: task for task in (finance.TASK, health.TASK, telecom.TASK)}

__all__ = ["TASKS", "Row", "Split", "Task", "heldout_rows", "train_rows"]
