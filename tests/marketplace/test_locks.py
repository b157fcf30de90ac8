"""Row locks are taken in the `locks.py` of each app alone, so that the one stated order can be checked by reading."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_rows_are_locked_nowhere_but_in_locks_py() -> None:
    locking = {
        path.relative_to(ROOT).as_posix()
        for app in ("marketplace", "billing")
        for path in (ROOT / app).rglob("*.py")
        if "migrations" not in path.parts
        and any(word in path.read_text() for word in ("select_for_update(", "pg_advisory", "FOR UPDATE"))
    }
    assert locking == {
        "billing/locks.py",
        "marketplace/access/locks.py",
        "marketplace/accounts/locks.py",
        "marketplace/accounts/seals/locks.py",
        "marketplace/catalog/locks.py",
        "marketplace/evals/locks.py",
        "marketplace/jobs/locks.py",
        "marketplace/receipts/locks.py",
        "marketplace/standing/locks.py",
        "marketplace/vault/locks.py",
        "marketplace/watch/locks.py",
    }


def test_the_stated_order_names_every_lock() -> None:
    order = (ROOT / "marketplace/accounts/locks.py").read_text()
    for path in (ROOT / "marketplace").rglob("locks.py"):
        functions = [line[4:].partition("(")[0] for line in path.read_text().splitlines() if line.startswith("def ")]
        for function in functions:
            assert f"`{path.parent.name}.locks.{function}`" in order, function
    for line in (ROOT / "billing/locks.py").read_text().splitlines():
        if line.startswith("def "):
            assert f"`billing.locks.{line[4:].partition('(')[0]}`" in order, line
