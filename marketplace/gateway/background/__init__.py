"""`/v1/files`, `/v1/batches` and `/v1/predictions`: what is stored now and computed later (docs/batches.md)."""
