"""The law's rights over data: a copy of it, and its erasure, which keeps the books (docs/retention.md)."""
