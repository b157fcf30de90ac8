"""The choice of what the next step computes: pure policy over `core`, `kv.pool` and the `Residency` protocol, without
torch, clock or I/O. The same calls with the same times give the same plans; `serving.simulation` replays them."""
