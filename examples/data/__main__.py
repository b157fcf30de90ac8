"""Write the held-out rows: ``python -m examples.data`` fills ``examples/<task>/heldout.jsonl``."""

from __future__ import annotations

import json
from pathlib import Path

from examples.data import TASKS, heldout_rows

HELDOUT_COUNT = 72


def heldout_lines(name: str) -> list[str]:
    """Return the lines of a task's ``heldout.jsonl``."""
    task = TASKS[name]
    return [
        json.dumps({"messages": task.messages(row), "expected": dict(row.expected)}, ensure_ascii=False)
        for row in heldout_rows(task, HELDOUT_COUNT)
    ]


def main() -> None:
    """Command line entry point."""
    for name in TASKS:
        path = Path(__file__).parent.parent / name / "heldout.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(heldout_lines(name)) + "\n", encoding="utf-8")
        print(f"wrote {HELDOUT_COUNT} rows to {path}")


if __name__ == "__main__":
    main()
