"""KV blocks: which block holds what (`pool`, `prefix`; no torch), and the memory behind them (`storage`, `paged`)."""
