"""What docs/operations.md says of the pools that tenants share, and what the sources say. For tests of both halves."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from protocol.shares import BOUNDS, Bound

ROOT = Path(__file__).parents[2]
_ROW = re.compile(r"^\| `([a-z ]+)` \|[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|[^|]+\|$", re.M)
_BARE = {"ThreadPoolExecutor", "Semaphore", "BoundedSemaphore", "ProcessPoolExecutor"}


def documented() -> dict[str, Bound]:
    """Return the rows of the table."""
    text = (ROOT / "docs" / "operations.md").read_text().partition("## Shared places")[2].partition("\n## ")[0]
    found = {}
    for name, places, share, waiting, seconds in _ROW.findall(text):
        limit = None if seconds.strip() == "–" else float(seconds)
        found[name] = Bound(name, int(places), int(share), int(waiting), limit)
    return found


def declared_in(*packages: str) -> dict[str, Bound]:
    """Import every module that declares a pool, and return what they declare."""
    names = set()
    for path, tree in _sources(*packages):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Bound":
                importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
                assert node.args and isinstance(node.args[0], ast.Constant), f"{path}: name the pool in its call"
                names.add(node.args[0].value)
    return {name: BOUNDS[name] for name in names}


def bare_pools(*packages: str) -> set[str]:
    """Return the modules that make threads or semaphores without `protocol.shares`."""
    found = set()
    for path, tree in _sources(*packages):
        for node in ast.walk(tree):
            function = node.func if isinstance(node, ast.Call) else None
            name = getattr(function, "id", getattr(function, "attr", ""))
            if name in _BARE:
                found.add(str(path.relative_to(ROOT)))
    return found


def _sources(*packages: str) -> Iterator[tuple[Path, ast.AST]]:
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path, ast.parse(path.read_text())
