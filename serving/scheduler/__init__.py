"""The choice of what runs next: pure policy over `core`, `kv.pool` and the `Residency` protocol. No torch, no clock, no
I/O: the same calls with the same times give the same plans, which the simulator in the tests replays."""
