"""Runs: a budget, a count of calls and a deadline over many predictions of one key (docs/runs.md)."""
