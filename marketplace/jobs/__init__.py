"""Work that nobody waits for: files of requests, batches of them, and single predictions that are fetched later.

Imports `accounts`, `alerts`, `catalog`, `vault`, `calls` and `billing` (docs/batches.md).
"""
