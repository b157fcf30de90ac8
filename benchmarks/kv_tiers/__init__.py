"""KV in memory levels: what a disk below the pool saves, what it costs others, and that it tells nothing."""
