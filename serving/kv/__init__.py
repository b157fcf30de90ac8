"""KV blocks: which block holds what (`pool`, `prefix`; no torch), and the memory behind them (`storage`, `paged`, in
8-bit floats by `eight_bits`)."""
