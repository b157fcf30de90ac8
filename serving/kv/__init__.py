"""Which KV block holds what: reference counts, prefix keys, eviction. Imports no torch."""
