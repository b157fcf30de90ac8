"""Who runs next. Pure policy over `core`, `kv.pool` and the `Residency` protocol: no torch, no clock, no I/O."""
